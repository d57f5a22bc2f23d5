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
    bindings::{
        Anchor, OfProcess, closed,
        patience::{Awaited, asking},
    },
};
use pyo3::prelude::*;

use crate::{errors::raise, waiting::detached};

/// How often a thread that waits for others looks whether the user wants to end the program.
const SIGNALS: Duration = Duration::from_millis(100);

/// After how many such looks the user is told what a thread waits for.
const SLICES_UNTIL_WARNING: u32 = 300;

/// A tape that every thread may use. A thread has a handle to it only during a call, so that the
/// tape itself waits for nobody who does nothing. But a thread that has used the tape may do so
/// again: as long as another one lives, what finds no room waits for it, here. To look at it is not
/// to use it.
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

    /// Looks at the tape: waits for nobody, and nobody waits for this thread because of it.
    pub(crate) fn look<T: Send>(&self, py: Python<'_>, look: impl FnOnce(&Anchor) -> Result<T> + Send) -> PyResult<T> {
        let look = || {
            let anchor = lock(self.anchor.get()?).clone().ok_or_else(|| closed("tape"))?;
            look(&anchor)
        };
        py.detach(look).map_err(|error| raise(py, &error))
    }

    /// Calls the tape, without the interpreter. If it is full, does so again when another thread
    /// has called it. If the tape is closed meanwhile, or the user wants to end the call, it ends.
    pub(crate) fn call<T: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        call: impl FnMut(&mut Tape) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.call_or_undo(py, call, |_, _| Ok(()))
    }

    /// As [`call`](Self::call). If the user ends the call and it succeeds nevertheless, it is
    /// undone: who is told that it was interrupted must find everything as it was.
    pub(crate) fn call_or_undo<T: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        mut call: impl FnMut(&mut Tape) -> Result<T> + Send,
        undo: impl FnOnce(&mut Tape, T) -> Result<()> + Send,
    ) -> PyResult<T> {
        loop {
            let before = self.calls.load(SeqCst);
            let tape = Arc::downgrade(self);
            let is_over = move |awaited| {
                tape.upgrade().is_none_or(|tape| tape.is_closed()) || awaited == Awaited::Program && is_alone()
            };
            let (outcome, raised) = detached(py, is_over, || {
                let anchor = lock(self.anchor.get()?).clone().ok_or_else(|| closed("tape"))?;
                self.join();
                call(&mut anchor.tape())
            })?;
            if let Some(raised) = raised {
                let anchor = outcome.ok().and_then(|value| Some((value, lock(self.anchor.get().ok()?).clone()?)));
                if let Some((value, anchor)) = anchor
                    && let Err(error) = py.detach(|| asking(|_| true, || undo(&mut anchor.tape(), value)))
                {
                    let message = format!("what an interrupted call had taken could not be put back: {error}");
                    warn(py, &message)?;
                }
                return Err(raised);
            }
            match outcome {
                Err(_) if self.is_closed() => return Err(raise(py, &closed("tape"))),
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

    /// Gives the tape up, unless that was done before. Calls that wait end with an error, others as
    /// usual.
    pub(crate) fn close(&self) -> Result<()> {
        let anchor = lock(self.anchor.get()?).take();
        self.calls.fetch_add(1, SeqCst);
        drop(lock(&self.waiting));
        self.ended.notify_all();
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
                warn(py, WAITS_FOR_LONG)?;
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

/// What is said when a thread has been waiting for long: perhaps for one that will never do
/// anything.
const WAITS_FOR_LONG: &str = "a tape is full, and a call has waited for half a minute for another thread to take or discard \
     something: one that has used the tape is alive; if it has nothing more to do with the tape, let it end";

fn warn(py: Python<'_>, message: &str) -> PyResult<()> {
    py.import("logging")?.call_method1("getLogger", ("outcrop",))?.call_method1("warning", (message,))?;
    Ok(())
}

/// Whether no other thread of the program could give back what it holds.
fn is_alone() -> bool {
    let count = |py: Python<'_>| py.import("threading")?.call_method0("active_count")?.extract::<usize>();
    Python::attach(|py| count(py).is_ok_and(|count| count <= 1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
