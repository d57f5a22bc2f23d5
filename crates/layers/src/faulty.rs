//! A layer that fails on demand, to test the rest of Outcrop with broken hardware.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rustix::io::Errno;

use crate::{Error, Layer, Result, layer::ALIGN};

/// The faults that can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A write fails with an I/O error, and nothing is written.
    WriteFails,
    /// A write fails because the medium is full, and nothing is written.
    WriteFull,
    /// Only the first half of a write arrives, and success is reported.
    WriteTorn,
    /// Nothing of a write arrives, and success is reported.
    WriteLost,
    /// One bit of a write arrives changed, and success is reported.
    WriteFlipsBit,
    /// A read fails with an I/O error.
    ReadFails,
    /// One bit of a read is changed, and success is reported. The stored bytes do not change.
    ReadFlipsBit,
}

impl Fault {
    fn is_of_writes(self) -> bool {
        !matches!(self, Self::ReadFails | Self::ReadFlipsBit)
    }
}

/// A layer that behaves like the one it wraps, except for injected faults.
pub struct Faulty {
    inner: Arc<dyn Layer>,
    name: String,
    rules: Mutex<Vec<Rule>>,
    writes: AtomicU64,
    reads: AtomicU64,
    faults: AtomicU64,
}

/// An injected fault.
struct Rule {
    fault: Fault,
    /// How many operations succeed first.
    after: u64,
    /// How many fail after that; `None` means all.
    times: Option<u64>,
}

impl Rule {
    /// Counts an operation, and returns whether it should fail.
    fn strikes(&mut self) -> bool {
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        match &mut self.times {
            None => true,
            Some(0) => false,
            Some(times) => {
                *times -= 1;
                true
            }
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Faulty {
    /// A layer without faults yet.
    pub fn new(inner: Arc<dyn Layer>) -> Self {
        Self {
            name: format!("faulty {}", inner.name()),
            inner,
            rules: Mutex::default(),
            writes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        }
    }

    /// Lets `after` operations of the fault's kind succeed, and then makes `times` of them fail, or
    /// all.
    ///
    /// Each rule counts every operation of its kind. If several apply at once, the one injected
    /// first decides.
    pub fn inject(&self, fault: Fault, after: u64, times: Option<u64>) {
        self.rules().push(Rule { fault, after, times });
    }

    /// Removes all faults that have not happened yet.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// How many writes there were so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    /// How many reads there were so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// How many operations have failed so far.
    pub fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        // A rule is changed by single assignments, so the list is consistent even after a panic
        // elsewhere.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault, if any, for the next operation.
    fn strike(&self, is_write: bool) -> Option<Fault> {
        let mut struck = None;
        for rule in self.rules().iter_mut().filter(|rule| rule.fault.is_of_writes() == is_write) {
            if rule.strikes() && struck.is_none() {
                struck = Some(rule.fault);
            }
        }
        self.faults.fetch_add(u64::from(struck.is_some()), Relaxed);
        struck
    }

    fn failure(&self, attempt: &'static str, errno: Errno) -> Error {
        Error::transfer(&self.name, attempt, io::Error::from(errno))
    }
}

impl Layer for Faulty {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        match self.strike(true) {
            Some(Fault::WriteFails) => Err(self.failure("write", Errno::IO)),
            Some(Fault::WriteFull) => Err(self.failure("write", Errno::NOSPC)),
            Some(Fault::WriteLost) => Ok(()),
            Some(Fault::WriteTorn) => {
                // Whole units, because the wrapped layer takes no others: of a single unit, nothing
                // arrives.
                let arrived = bytes.len() / 2 / ALIGN as usize * ALIGN as usize;
                if arrived == 0 { Ok(()) } else { self.inner.write(at, &bytes[..arrived]) }
            }
            Some(Fault::WriteFlipsBit) => {
                let mut changed = bytes.to_vec();
                flip_bit(&mut changed);
                self.inner.write(at, &changed)
            }
            Some(Fault::ReadFails | Fault::ReadFlipsBit) | None => self.inner.write(at, bytes),
        }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        match self.strike(false) {
            Some(Fault::ReadFails) => Err(self.failure("read", Errno::IO)),
            Some(Fault::ReadFlipsBit) => {
                self.inner.read(at, bytes)?;
                flip_bit(bytes);
                Ok(())
            }
            _ => self.inner.read(at, bytes),
        }
    }
}

/// Changes one bit in the middle.
fn flip_bit(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0b0001_0000;
    }
}
