//! The ways to make room: all at once, on demand, incrementally, and Outcrop's.

use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::Instant,
};

use anyhow::Result;
use outcrop::{
    Tape, Touching,
    layers::{Host, Sealed},
};
use outcrop_memory::{Copier, Pages, Private};
use serde::{Deserialize, Serialize};

use super::process::{Order, Outcome, Room};

/// The size of the pieces in which memory is zeroed.
const MEMSET_BYTES: usize = 1 << 20;

/// A way to make room for snapshots in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Allocates and pins everything first, with ordinary pages.
    DirectPin,
    /// The same with huge pages.
    DirectPinHuge,
    /// Allocates everything, and lets the first write to each page fault it in.
    OnDemand,
    /// Allocates everything. Another thread zeroes it from the start, in ordinary pages, and saves
    /// follow behind it.
    IncrementalMemset,
    /// A tape that touches memory during writes.
    Concurrent,
    /// A tape that touches memory only between writes.
    Sequential,
    /// A tape that chooses the strategy.
    Ours,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::DirectPin,
        Self::DirectPinHuge,
        Self::OnDemand,
        Self::IncrementalMemset,
        Self::Concurrent,
        Self::Sequential,
        Self::Ours,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::DirectPin => "direct pin",
            Self::DirectPinHuge => "direct pin, huge pages",
            Self::OnDemand => "on demand",
            Self::IncrementalMemset => "incremental memset",
            Self::Concurrent => "outcrop, concurrent",
            Self::Sequential => "outcrop, sequential",
            Self::Ours => "outcrop",
        }
    }

    /// Whether its strategy is fixed before the run.
    pub fn is_static(self) -> bool {
        self != Self::Ours
    }
}

/// Makes room as ordered, and passes it to `measure` with the time that this took.
pub(super) fn with_room(order: &Order, measure: impl FnOnce(f64, &mut dyn Room) -> Result<Outcome>) -> Result<Outcome> {
    let start = Instant::now();
    let bytes = order.host_bytes as usize;
    let ready = |room: &mut dyn Room| measure(start.elapsed().as_secs_f64(), room);
    match order.way {
        Way::DirectPin => {
            let memory = Private::new(bytes, Pages::Small)?;
            memory.mapping().pin()?;
            ready(&mut Plain::new(memory, order))
        }
        Way::OnDemand => ready(&mut Plain::new(Private::new(bytes, Pages::Small)?, order)),
        Way::DirectPinHuge => {
            let host = Host::new(order.host_bytes)?;
            host.pin()?;
            ready(&mut Slots { host, saved: Vec::new(), copier: Copier::default() })
        }
        Way::IncrementalMemset => {
            let mut memory = Private::new(bytes, Pages::Small)?;
            thread::scope(|scope| {
                let (sender, zeroed) = channel();
                let slots = memory.chunks_exact_mut(order.snapshot_bytes as usize);
                let zero = move || {
                    for slot in slots {
                        slot.chunks_mut(MEMSET_BYTES).for_each(|piece| piece.fill(0));
                        if sender.send(slot).is_err() {
                            break;
                        }
                    }
                };
                scope.spawn(zero);
                ready(&mut Zeroed { zeroed, saved: Vec::new(), copier: Copier::default() })
            })
        }
        Way::Concurrent => ready(&mut OnTape(tape(order, Touching::Concurrent)?)),
        Way::Sequential => ready(&mut OnTape(tape(order, Touching::Sequential)?)),
        Way::Ours => ready(&mut OnTape(tape(order, Touching::Chosen)?)),
    }
}

fn tape(order: &Order, touching: Touching) -> Result<Tape> {
    Ok(Tape::builder().host(order.host_bytes).touching(touching).open()?)
}

/// One large mapping.
struct Plain {
    memory: Private,
    bytes: usize,
    copier: Copier,
}

impl Plain {
    fn new(memory: Private, order: &Order) -> Self {
        Self { memory, bytes: order.snapshot_bytes as usize, copier: Copier::default() }
    }
}

impl Room for Plain {
    fn save(&mut self, step: usize, state: &[u8]) -> Result<()> {
        self.copier.copy(&mut self.memory[step * self.bytes..][..self.bytes], state);
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        read(&self.memory[step * self.bytes..][..self.bytes]);
        Ok(())
    }
}

/// Huge pages, pinned.
struct Slots {
    host: Host,
    saved: Vec<Sealed>,
    copier: Copier,
}

impl Room for Slots {
    fn save(&mut self, step: usize, state: &[u8]) -> Result<()> {
        let mut slot = self.host.slot((step * state.len()) as u64, state.len() as u64)?;
        self.copier.copy(&mut slot, state);
        self.saved.push(slot.seal());
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        read(&self.saved[step]);
        Ok(())
    }
}

/// Slots that another thread has zeroed.
struct Zeroed<'a> {
    zeroed: Receiver<&'a mut [u8]>,
    saved: Vec<&'a mut [u8]>,
    copier: Copier,
}

impl Room for Zeroed<'_> {
    fn save(&mut self, _: usize, state: &[u8]) -> Result<()> {
        let slot = self.zeroed.recv()?;
        self.copier.copy(slot, state);
        self.saved.push(slot);
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        read(self.saved[step]);
        Ok(())
    }
}

struct OnTape(Tape);

impl Room for OnTape {
    fn save(&mut self, step: usize, state: &[u8]) -> Result<()> {
        Ok(self.0.save(step, state)?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        read(&self.0.take::<u8>(step)?);
        Ok(())
    }

    fn details(&self) -> serde_json::Value {
        let layer = &self.0.stats().layers[0];
        let Some(memory) = &layer.memory else { return serde_json::Value::Null };
        serde_json::json!({
            "strategy": memory.strategy.to_string(),
            "reason": memory.reason.to_string(),
            "memory": memory,
            "capacity_bytes": layer.capacity_bytes,
        })
    }
}
