//! Memory for tests, and trackers of it.

use std::{
    io, ptr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use outcrop_testing::skip;
use outcrop_track::{Changes, TrackOptions, TrackStats, Tracker, Way};

/// The page size that the tests assume.
pub(crate) const PAGE: usize = 4096;

/// A private anonymous mapping.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference only allows reading.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize) -> Self {
        Self::with(bytes, ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    /// Maps new memory at the same address in place of the old, which is unmapped.
    pub(crate) fn replace(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        std::mem::forget(Self::with(self.bytes, self.start, flags));
    }

    pub(crate) fn shared(bytes: usize) -> Self {
        Self::with(bytes, ptr::null_mut(), libc::MAP_SHARED | libc::MAP_ANONYMOUS)
    }

    fn with(bytes: usize, at: *mut u8, flags: i32) -> Self {
        // SAFETY: a new mapping, or one in place of memory that the caller owns.
        let start = unsafe { libc::mmap(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { start: start.cast(), bytes }
    }

    /// Memory at a multiple of 2 MiB, in huge pages if the system has any.
    pub(crate) fn huge(bytes: usize) -> Self {
        const HUGE: usize = 2 << 20;
        let reserved = Self::new(bytes + HUGE);
        let start = reserved.start.map_addr(|start| start.next_multiple_of(HUGE));
        // SAFETY: inside the mapping. The rest of the reservation stays mapped until the process
        // ends.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
        std::mem::forget(reserved);
        let mut made = Self { start, bytes };
        made.fill(1);
        made
    }

    pub(crate) fn advise(&self, from: usize, bytes: usize, advice: i32) {
        // SAFETY: inside the mapping.
        let outcome = unsafe { libc::madvise(self.start.add(from).cast(), bytes, advice) };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
    }

    /// Unmaps part of it. The rest stays mapped until the process ends, because the addresses may
    /// belong to others by then.
    pub(crate) fn unmap(&mut self, from: usize, bytes: usize) {
        // SAFETY: inside the mapping, which nobody can use any more.
        assert_eq!(unsafe { libc::munmap(self.start.add(from).cast(), bytes) }, 0);
        self.bytes = 0;
    }
}

impl std::ops::Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and filled with zeroes at least.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl std::ops::DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: our own.
            unsafe { libc::munmap(self.start.cast(), self.bytes) };
        }
    }
}

pub(crate) fn tracker(way: Way) -> Tracker {
    Tracker::new(TrackOptions { way, ..TrackOptions::default() })
}

/// Whether a way works here. If not, the test is skipped, or fails if all tests must run.
pub(crate) fn has(way: Way) -> bool {
    let memory = Mapping::new(16 * PAGE);
    let mut probe = tracker(way);
    probe.changed("probe", &memory);
    let is_there = probe.changed("probe", &memory).way == way;
    if !is_there {
        skip(format_args!("this system cannot watch memory by {way}: {}", probe.stats("probe").unwrap().reason));
    }
    is_there
}

/// The reported pages, of memory that begins at a page boundary.
pub(crate) fn pages(changes: &Changes) -> Vec<usize> {
    changes.ranges.iter().flat_map(|range| range.start / PAGE..range.end.div_ceil(PAGE)).collect()
}

/// Work that another thread repeats until this is dropped.
pub(crate) struct Meanwhile {
    is_over: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Meanwhile {
    pub(crate) fn repeat(mut work: impl FnMut() + Send + 'static) -> Self {
        let is_over = std::sync::Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                work();
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Memory whose pages have all been written, and a tracker that watches it. Drop the tracker first.
pub(crate) fn watched(way: Way, bytes: usize) -> (Mapping, Tracker) {
    let mut memory = Mapping::new(bytes);
    memory.fill(1);
    let mut tracker = tracker(way);
    let first = tracker.changed("memory", &memory);
    assert!(first.is_everything && first.way == Way::Everything);
    (memory, tracker)
}

pub(crate) fn everything(changes: &Changes, bytes: usize) -> bool {
    changes.is_everything && changes.ranges.iter().eq(std::iter::once(&(0..bytes)))
}

/// A program with enough memory to be watched, that writes every `step`-th byte and reports this
/// cost of hashing.
pub(crate) fn chosen(options: TrackOptions, step: usize, hash_ns_per_byte: f64) -> (Vec<Way>, TrackStats) {
    let mut memory = Mapping::new(16 << 20);
    memory.fill(1);
    let mut tracker = Tracker::new(options);
    let mut ways = Vec::new();
    for call in 0..10 {
        let changes = tracker.changed("memory", &memory);
        let bytes: usize = changes.ranges.iter().map(ExactSizeIterator::len).sum();
        tracker.hashed("memory", bytes, Duration::from_nanos((bytes as f64 * hash_ns_per_byte) as u64));
        ways.push(changes.way);
        memory.iter_mut().step_by(step).for_each(|byte| *byte = call);
    }
    (ways, tracker.stats("memory").unwrap())
}

/// Makes the system call userfaultfd fail from now on, as on an old kernel or in a container.
/// Returns false if that is not possible.
pub(crate) fn refuse_userfaultfd() -> bool {
    let filter = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        filter(0x20, 0, 0, 0), // the number of the call
        filter(0x15, libc::SYS_userfaultfd as u32, 0, 1),
        filter(0x06, 0x0005_0000 | libc::EPERM as u32, 0, 0),
        filter(0x06, 0x7fff_0000, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a valid program, for this process alone.
    let is_done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if !is_done {
        skip("this system does not let a process refuse itself a call");
    }
    is_done
}

/// Memory in which all pages differ.
pub(crate) fn patterned(bytes: usize) -> Mapping {
    let mut memory = Mapping::new(bytes);
    for (i, word) in memory.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(i as u64 + 1).to_le_bytes());
    }
    memory
}
