//! Pools in memory that records what is done to it, and that can fail.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_crash::Stores;
use outcrop_pool::Medium;

/// A medium that records.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) stores: Stores,
    /// How many calls succeed before one fails.
    left: Arc<AtomicI64>,
    /// How often it has grown.
    pub(crate) grown: Arc<AtomicU64>,
    /// It is full at this length.
    pub(crate) bytes_max: u64,
}

impl Recorded {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        Self { stores: Stores::new(bytes), left, grown: Arc::default(), bytes_max: u64::MAX }
    }

    /// Fails after so many calls, and from then on if `is_lasting`.
    pub(crate) fn fail_after(&self, calls: i64) {
        self.left.store(calls, Relaxed);
    }

    fn call(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Relaxed) {
            0 => Err(io::Error::other("it was to fail")),
            _ => Ok(()),
        }
    }
}

impl Medium for Recorded {
    fn bytes(&self) -> u64 {
        self.stores.len() as u64
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        self.call()?;
        if bytes > self.bytes_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.stores.grow(bytes as usize);
        self.grown.fetch_add(1, Relaxed);
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.stores.read(at as usize, into) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.call()?;
        self.stores.store(at as usize, bytes);
        Ok(())
    }

    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.call()?;
        self.stores.flush(ranges);
        Ok(())
    }
}
