//! Several concurrent transfers between host memory and a device, for `run`.

use std::collections::VecDeque;

use super::{DeviceLayer, Event, Stream, layer::Piece};
use crate::{Feed, Layer, Memory, Result, Transfer, layer::carry_out};

/// The largest number of transfers in flight. Enough that the next one is queued when one ends,
/// even if the feed is slow.
const UNDER_WAY_MAX: usize = 8;

/// The transfers in flight. Dropping it waits for all of them, so that memory is never released
/// while the device may use it, not even if the feed panics.
pub(super) struct Flight<'run> {
    layer: &'run DeviceLayer,
    /// One stream per direction, because devices copy in both at once. Created when first needed.
    inward: Option<Box<dyn Stream>>,
    outward: Option<Box<dyn Stream>>,
    under_way: VecDeque<Moving>,
}

/// A transfer, and the event that marks its end.
struct Moving {
    transfer: Transfer,
    end: Box<dyn Event>,
}

impl<'run> Flight<'run> {
    pub(super) fn new(layer: &'run DeviceLayer) -> Self {
        Self { layer, inward: None, outward: None, under_way: VecDeque::new() }
    }

    /// Carries out the transfers of `feed` until it has no more.
    pub(super) fn run(mut self, feed: &mut dyn Feed) {
        loop {
            while self.under_way.len() < UNDER_WAY_MAX {
                let Some(mut transfer) = feed.next() else { break };
                match self.begin(&mut transfer) {
                    Ok(Some(end)) => self.under_way.push_back(Moving { transfer, end }),
                    Ok(None) => feed.done(transfer, Ok(())),
                    Err(error) => feed.done(transfer, Err(error)),
                }
            }
            // The oldest stays in the queue until it has ended: if waiting panics, its memory is
            // still in use.
            let Some(oldest) = self.under_way.front() else { return };
            let outcome = self.layer.notice(oldest.end.wait());
            if outcome.is_err() {
                self.settle();
            }
            let Some(moving) = self.under_way.pop_front() else { return };
            feed.done(moving.transfer, outcome);
        }
    }

    /// Begins a transfer. Returns the event that marks its end, or `None` if it has already been
    /// carried out. After an error, none of it is in flight.
    fn begin(&mut self, transfer: &mut Transfer) -> Result<Option<Box<dyn Event>>> {
        self.layer.check_alive()?;
        let slot = match &transfer.memory {
            Memory::Write(sealed) => sealed.slot(),
            Memory::Read(slot) => slot,
        };
        let device = self.layer.device();
        if device.needs_registration() && !self.layer.registered().contains(slot.mapping()) {
            return carry_out(self.layer, transfer).map(|()| None);
        }
        transfer.check(self.layer.name(), self.layer.capacity())?;
        let pieces = self.pieces(transfer)?;
        let stream = match &transfer.memory {
            Memory::Write(_) => &mut self.inward,
            Memory::Read(_) => &mut self.outward,
        };
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(self.layer.take_stream()?),
        };
        let begun = begin_pieces(&mut **stream, &mut transfer.memory, &pieces).and_then(|()| stream.record());
        self.layer.notice(begun).map(Some).inspect_err(|_| self.settle())
    }

    /// The pieces of all extents of a transfer, one after the other in memory.
    fn pieces(&self, transfer: &Transfer) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut extent_at = 0;
        for extent in &transfer.extents {
            for piece in self.layer.pieces(extent.clone())? {
                pieces.push(Piece { memory_at: extent_at + piece.memory_at, ..piece });
            }
            extent_at += (extent.end - extent.start) as usize;
        }
        Ok(pieces)
    }

    /// Waits until the device uses no memory of any transfer.
    fn settle(&mut self) {
        for stream in self.inward.iter_mut().chain(&mut self.outward) {
            // If waiting fails, the device does nothing any more.
            if let Err(error) = self.layer.notice(stream.wait()) {
                tracing::warn!(layer = self.layer.name(), %error, "a stream failed");
            }
        }
    }
}

fn begin_pieces(stream: &mut dyn Stream, memory: &mut Memory, pieces: &[Piece]) -> Result<()> {
    for &Piece { place, memory_at, bytes } in pieces {
        match memory {
            // SAFETY: the piece lies inside the memory, because the transfer was checked to be as
            // long as its extents, and in mapped chunks. The memory is registered if that is
            // needed. The flight keeps it, sealed or exclusive, until it has waited for the end of
            // the transfer; the layer keeps the chunks and the registration.
            Memory::Write(sealed) => unsafe { stream.begin_copy_in(sealed.as_ptr().add(memory_at), place, bytes) }?,
            // SAFETY: as above; the slot belongs to this transfer alone.
            Memory::Read(slot) => unsafe { stream.begin_copy_out(place, slot.as_mut_ptr().add(memory_at), bytes) }?,
        }
    }
    Ok(())
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let is_idle = self.under_way.is_empty();
        for stream in [self.inward.take(), self.outward.take()].into_iter().flatten() {
            // Dropping a stream waits for the copies that it has begun, before the transfers and
            // their memory are dropped.
            if is_idle {
                self.layer.give_back(stream);
            }
        }
    }
}
