//! Dirty pages, as recorded by the kernel: asynchronous userfaultfd write protection and
//! PAGEMAP_SCAN. No write waits for this process.
//!
//! A page is unchanged if and only if it is write-protected and its mapping is registered here.
//! Everything else that can happen to it (a write, `madvise`, `munmap` and `mmap`) removes the
//! protection.

use std::{io, ops::Range, sync::OnceLock, time::Instant};

use outcrop_memory::{Maps, Pages as PageKind, Private};

use crate::{
    pagemap::Pagemap,
    protection::mappings_max,
    ranges::{addresses, page_bytes},
    userfault::Userfault,
};

/// How many pages a calibration writes.
const CALIBRATION_PAGES: usize = 64;

/// The memory that one tracker watches through pages, in the process that created it.
pub(crate) struct Pages {
    fault: Userfault,
    map: Pagemap,
    /// How many ranges can be registered. Each may split mappings, and the program needs some too.
    pub(crate) ranges_max: usize,
}

impl Pages {
    pub(crate) fn new() -> io::Result<Self> {
        let (fault, map) = (Userfault::asynchronous()?, Pagemap::open()?);
        Ok(Self { fault, map, ranges_max: mappings_max() / 4 })
    }

    /// Registers the pages of `range`, unless they are registered. Fails for memory that can change
    /// without a write to these pages (shared memory, files), and for memory that is registered
    /// with another userfaultfd.
    pub(crate) fn claim(&self, range: &Range<usize>) -> io::Result<()> {
        if !Maps::now()?.is_private_anonymous(range)? {
            return Err(io::Error::other("it is not private anonymous memory"));
        }
        self.fault.register(range).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => io::Error::other("another userfaultfd watches it"),
            _ => error,
        })
    }

    /// Visits the dirty pages of `range`, which must be claimed, and protects them again.
    pub(crate) fn collect(&mut self, range: &Range<usize>, visit: impl FnMut(Range<usize>)) -> io::Result<()> {
        self.map.protect_anew(range, visit)
    }

    /// Unregisters `range`.
    pub(crate) fn release(&self, range: &Range<usize>) {
        self.fault.unregister(range);
    }
}

/// The cost of the first write to a watched page for the program, in nanoseconds. Measured once per
/// process.
pub(crate) fn write_ns() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| calibrate().unwrap_or(crate::estimate::WRITE_NS))
}

fn calibrate() -> io::Result<f64> {
    let mut memory = Private::new(CALIBRATION_PAGES * page_bytes(), PageKind::Small)?;
    let range = addresses(&memory);
    let mut pages = Pages::new()?;
    pages.claim(&range)?;
    let mut write = || {
        let begin = Instant::now();
        memory.iter_mut().step_by(page_bytes()).for_each(|byte| *byte = byte.wrapping_add(1));
        std::hint::black_box(&mut memory);
        begin.elapsed().as_nanos() as f64
    };
    write();
    // The fastest of a few, because other load on this machine can only make it slower.
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        pages.collect(&range, |_| ())?;
        best = best.min(write() - write());
    }
    Ok((best / CALIBRATION_PAGES as f64).clamp(100.0, 100_000.0))
}
