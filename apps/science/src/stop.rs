//! Signals that ask a program to end: it finishes its iteration, keeps its state, and ends.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use signal_hook::{SigId, consts, flag, low_level};

use crate::{Error, Result};

/// A signal that asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    /// Its name.
    pub fn name(self) -> &'static str {
        if self.0 == consts::SIGINT { "SIGINT" } else { "SIGTERM" }
    }

    /// The exit code of a program that ended for it: 128 and its number, as shells have it.
    pub fn exit_code(self) -> u8 {
        128 + self.0 as u8
    }
}

/// Listens for SIGTERM and SIGINT while it lives.
#[derive(Debug)]
pub struct Stop {
    asked: Arc<AtomicUsize>,
    listening: Vec<SigId>,
}

impl Stop {
    /// Listens from now on.
    pub fn listen() -> Result<Self> {
        let mut stop = Self { asked: Arc::default(), listening: Vec::new() };
        for signal in [consts::SIGTERM, consts::SIGINT] {
            let registered = flag::register_usize(signal, Arc::clone(&stop.asked), signal as usize);
            stop.listening.push(registered.map_err(Error::Signals)?);
        }
        Ok(stop)
    }

    /// The last signal that has come.
    pub fn asked(&self) -> Option<Signal> {
        let signal = self.asked.load(Relaxed);
        (signal != 0).then_some(Signal(signal as i32))
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        for listening in self.listening.drain(..) {
            low_level::unregister(listening);
        }
    }
}
