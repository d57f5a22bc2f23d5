//! A tape among the threads of a Python program.

use std::{
    cell::RefCell,
    collections::HashSet,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use outcrop::{
    ErrorKind, Result, Tape,
    bindings::{Anchor, OfProcess, closed},
};
use pyo3::prelude::*;

use crate::errors::raise;

/// How often a thread that waits for others looks whether the user wants to end the program.
const SIGNALS: Duration = Duration::from_millis(100);

/// After how many such looks the user is told what a thread waits for.
const SLICES_UNTIL_WARNING: u32 = 300;

/// A tape that every thread may use. A thread has a handle to it only during a call, so that the
/// tape itself waits for nobody who does nothing. But a thread that has used the tape may do so
/// again: as long as another one lives, what finds no room waits for it, here.
pub(crate) struct Shared {
    anchor: OfProcess<Mutex<Option<Anchor>>>,
    /// Threads that have used it and have not ended.
    users: Mutex<HashSet<ThreadId>>,
    /// How many calls have ended well, any of which may have made room.
    calls: AtomicU64,
    waiting: Mutex<usize>,
    ended: Condvar,
}

/// That a thread uses a tape, until it ends.
struct Membership {
    tape: Weak<Shared>,
    thread: ThreadId,
}

thread_local! {
    static MEMBERSHIPS: RefCell<Vec<Membership>> = const { RefCell::new(Vec::new()) };
}

impl Shared {
    pub(crate) fn new(tape: &Tape) -> Arc<Self> {
        Arc::new(Self {
            anchor: OfProcess::new("tape", Mutex::new(Some(tape.anchor()))),
            users: Mutex::default(),
            calls: AtomicU64::new(0),
            waiting: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Calls the tape, without the interpreter. If it is full, does so again when another thread
    /// has called it.
    pub(crate) fn call<T: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        mut call: impl FnMut(&mut Tape) -> Result<T> + Send,
    ) -> PyResult<T> {
        loop {
            let before = self.calls.load(SeqCst);
            let outcome = py.detach(|| {
                let anchor = lock(self.anchor.get()?).clone().ok_or_else(|| closed("tape"))?;
                self.join();
                call(&mut anchor.tape())
            });
            match outcome {
                Err(error) if error.kind() == ErrorKind::Full && self.has_changed_since(py, before)? => {}
                Err(error) => return Err(raise(py, &error)),
                Ok(value) => {
                    self.calls.fetch_add(1, SeqCst);
                    if *lock(&self.waiting) > 0 {
                        self.ended.notify_all();
                    }
                    return Ok(value);
                }
            }
        }
    }

    /// Gives the tape up, unless that was done before. Calls under way end as usual.
    pub(crate) fn close(&self) -> Result<()> {
        let anchor = lock(self.anchor.get()?).take();
        drop(anchor);
        Ok(())
    }

    /// An error if it cannot be used any more, or not by this process.
    pub(crate) fn check(&self) -> Result<()> {
        lock(self.anchor.get()?).as_ref().map(drop).ok_or_else(|| closed("tape"))
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.anchor.get().is_ok_and(|anchor| lock(anchor).is_none())
    }

    /// Waits for a call of another thread to end. Does not if all that use the tape wait.
    fn has_changed_since(&self, py: Python<'_>, before: u64) -> PyResult<bool> {
        let mut slices = 0;
        loop {
            let (has_changed, has_others) = py.detach(|| {
                let mut waiting = lock(&self.waiting);
                *waiting += 1;
                let has_others = *waiting < lock(&self.users).len();
                if has_others && self.calls.load(SeqCst) == before {
                    waiting = self.ended.wait_timeout(waiting, SIGNALS).unwrap_or_else(PoisonError::into_inner).0;
                }
                *waiting -= 1;
                (self.calls.load(SeqCst) != before, has_others)
            });
            if has_changed || !has_others {
                return Ok(has_changed);
            }
            py.check_signals()?;
            slices += 1;
            if slices == SLICES_UNTIL_WARNING {
                warn(py)?;
            }
        }
    }

    /// Remembers that this thread uses the tape.
    fn join(self: &Arc<Self>) {
        MEMBERSHIPS.with_borrow_mut(|memberships| {
            if memberships.iter().any(|membership| membership.tape.as_ptr() == Arc::as_ptr(self)) {
                return;
            }
            memberships.retain(|membership| membership.tape.strong_count() > 0);
            let thread = thread::current().id();
            lock(&self.users).insert(thread);
            memberships.push(Membership { tape: Arc::downgrade(self), thread });
        });
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A child has none of the threads that could hold these locks, and no use for them.
        let Some(tape) = self.tape.upgrade().filter(|tape| tape.anchor.get().is_ok()) else { return };
        lock(&tape.users).remove(&self.thread);
        // Who waits for this thread need not any more.
        drop(lock(&tape.waiting));
        tape.ended.notify_all();
    }
}

/// Says that a thread has been waiting for long: perhaps for one that will never do anything.
fn warn(py: Python<'_>) -> PyResult<()> {
    let message = "a tape is full, and a call has waited for half a minute for another thread to take or discard something: one that \
                   has used the tape is alive; if it has nothing more to do with the tape, let it end";
    py.import("logging")?.call_method1("getLogger", ("outcrop",))?.call_method1("warning", (message,))?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
