//! A layer that is slower than the one it wraps, to simulate slow hardware in tests and models.
//!
//! It behaves like one serial device: a transfer occupies it for its length divided by the rate,
//! others wait their turn, and each ends one latency later. Waiting is sleeping.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Layer, Result};

/// A layer with the given rates and latency, as far as the wrapped layer is faster.
pub struct Throttled {
    inner: Arc<dyn Layer>,
    name: String,
    write_bytes_per_second: AtomicU64,
    read_bytes_per_second: AtomicU64,
    latency_ns: AtomicU64,
    /// When the device will have carried out all transfers so far.
    busy_until: Mutex<Instant>,
}

impl fmt::Debug for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttled").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Throttled {
    /// Slows `inner` down. A rate of 0 counts as 1 byte per second, and `u64::MAX` as no limit.
    pub fn new(
        inner: Arc<dyn Layer>,
        write_bytes_per_second: u64,
        read_bytes_per_second: u64,
        latency: Duration,
    ) -> Self {
        let throttled = Self {
            name: format!("throttled {}", inner.name()),
            inner,
            write_bytes_per_second: AtomicU64::new(write_bytes_per_second),
            read_bytes_per_second: AtomicU64::new(read_bytes_per_second),
            latency_ns: AtomicU64::new(0),
            busy_until: Mutex::new(Instant::now()),
        };
        throttled.set_latency(latency);
        throttled
    }

    /// Changes the rate of writing for transfers that begin from now on.
    pub fn set_write_rate(&self, bytes_per_second: u64) {
        self.write_bytes_per_second.store(bytes_per_second, Relaxed);
    }

    /// Changes the rate of reading for transfers that begin from now on.
    pub fn set_read_rate(&self, bytes_per_second: u64) {
        self.read_bytes_per_second.store(bytes_per_second, Relaxed);
    }

    /// Changes the time between the end of a transfer and its report.
    pub fn set_latency(&self, latency: Duration) {
        self.latency_ns.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Occupies the device for `bytes`. Returns when the transfer may be reported as done.
    fn occupy(&self, bytes: usize, bytes_per_second: &AtomicU64) -> Instant {
        let bytes_per_second = bytes_per_second.load(Relaxed).max(1);
        let duration = Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
        let mut busy_until = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
        *busy_until = (*busy_until).max(Instant::now()) + duration;
        *busy_until + Duration::from_nanos(self.latency_ns.load(Relaxed))
    }
}

impl Layer for Throttled {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let end = self.occupy(bytes.len(), &self.write_bytes_per_second);
        let result = self.inner.write(at, bytes);
        thread::sleep(end.saturating_duration_since(Instant::now()));
        result
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let end = self.occupy(bytes.len(), &self.read_bytes_per_second);
        let result = self.inner.read(at, bytes);
        thread::sleep(end.saturating_duration_since(Instant::now()));
        result
    }
}
