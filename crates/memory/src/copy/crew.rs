//! Threads that help with long copies and sleep in between.
//!
//! They are kept, not started for each copy. A thread that is just ending seems to occupy its core
//! still when the copy is over, so that a thread woken at that time is put on the program's core
//! instead of the free one. Timings suggest this; it is not proven.

use std::{
    fmt, hint, mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Sender, channel},
    },
    thread::{self, Builder, JoinHandle},
    time::{Duration, Instant},
};

use super::{SHARE_BYTES, Share};

/// Roughly how long it takes to copy one share.
const LOOKING: Duration = Duration::from_micros(100);

/// The threads. They end when the crew is dropped.
pub(super) struct Crew {
    members: Vec<(Sender<Arc<Work>>, JoinHandle<()>)>,
}

impl Crew {
    /// Starts up to `count` threads; fewer if the system allows no more.
    pub(super) fn new(count: usize) -> Self {
        let start = |number| {
            let (to_member, work) = channel::<Arc<Work>>();
            let thread = Builder::new().name(format!("outcrop-copy-{number}"));
            let thread = thread.spawn(move || work.iter().for_each(|work| work.help())).ok()?;
            Some((to_member, thread))
        };
        Self { members: (0..count).map_while(start).collect() }
    }

    /// Copies with this thread and with those of the crew that arrive in time.
    pub(super) fn copy(&self, target: &mut [u8], source: &[u8], share: Share<'_>) {
        debug_assert_eq!(target.len(), source.len());
        // SAFETY: only threads that have entered the door use it, and the work is closed before
        // this function returns, also by a panic.
        let share = unsafe { mem::transmute::<Share<'_>, Share<'static>>(share) };
        let work = Arc::new(Work {
            target: target.as_mut_ptr(),
            source: source.as_ptr(),
            bytes: target.len(),
            share,
            next: AtomicUsize::new(0),
            door: Mutex::default(),
            left: Condvar::new(),
        });
        for (member, _) in &self.members {
            // If a thread has ended, the others do its part.
            let _ = member.send(Arc::clone(&work));
        }
        let closing = Closing(&work);
        // SAFETY: both slices are borrowed until this function returns, and the work is closed
        // before that.
        unsafe { work.copy_shares() };
        drop(closing);
        assert!(!work.door().is_broken, "a thread has panicked in the middle of its share");
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (member, thread) in self.members.drain(..) {
            drop(member);
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crew({})", self.members.len())
    }
}

/// One copy. Each thread takes shares of it.
struct Work {
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    /// Copies one share.
    share: Share<'static>,
    /// The offset of the next share.
    next: AtomicUsize,
    door: Mutex<Door>,
    left: Condvar,
}

/// Which threads are copying. Nobody enters once it is closed.
#[derive(Default)]
struct Door {
    is_closed: bool,
    inside: usize,
    /// A thread has left without its share.
    is_broken: bool,
}

/// Closes the door when it is dropped.
struct Closing<'a>(&'a Work);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A thread that is inside. It leaves when this is dropped.
struct Inside<'a>(&'a Work);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut door = self.0.door();
        door.inside -= 1;
        door.is_broken |= thread::panicking();
        drop(door);
        self.0.left.notify_one();
    }
}

// SAFETY: only threads that have entered the door access the memory behind the pointers, each share
// by one of them.
unsafe impl Send for Work {}
// SAFETY: as above; the rest is atomic or behind a mutex.
unsafe impl Sync for Work {}

impl Work {
    /// Copies shares until none is left, unless the copy has already ended.
    fn help(&self) {
        let mut door = self.door();
        if door.is_closed {
            return;
        }
        door.inside += 1;
        drop(door);
        let _inside = Inside(self);
        // SAFETY: this thread is inside the door, and `close` waits for it.
        unsafe { self.copy_shares() };
    }

    /// Lets no more threads in, and waits for those that are inside. They are copying their last
    /// share. Sleeping and waking would take longer than most of them need, so this thread spins
    /// for a moment first.
    fn close(&self) {
        let mut door = self.door();
        door.is_closed = true;
        let since = Instant::now();
        while door.inside > 0 && since.elapsed() < LOOKING {
            drop(door);
            hint::spin_loop();
            door = self.door();
        }
        while door.inside > 0 {
            door = self.left.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies shares until none is left.
    ///
    /// # Safety
    /// Source and target must be borrowed, the latter by this copy alone, until it returns.
    unsafe fn copy_shares(&self) {
        loop {
            let start = self.next.fetch_add(SHARE_BYTES, Relaxed);
            if start >= self.bytes {
                return;
            }
            let bytes = SHARE_BYTES.min(self.bytes - start);
            // SAFETY: the share lies inside the target, and `next` has given it to this thread
            // alone.
            let target = unsafe { std::slice::from_raw_parts_mut(self.target.add(start), bytes) };
            // SAFETY: the share lies inside the source, which nobody changes.
            let source = unsafe { std::slice::from_raw_parts(self.source.add(start), bytes) };
            (self.share)(start / SHARE_BYTES, target, source);
        }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
