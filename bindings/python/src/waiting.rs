//! Calls of the core that may wait: without the interpreter, and until the user ends them.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

use outcrop::{
    Error, ErrorKind, Result,
    bindings::{
        closed,
        patience::{self, ASK_EVERY, Awaited, asking},
    },
};
use pyo3::{intern, prelude::*, sync::PyOnceLock};

use crate::errors::raise;

/// Calls the core without the interpreter. While it waits, signals are handled, so that Ctrl-C ends
/// it; and so does `is_over`. What a handler raises comes with the outcome, which may be good: what
/// was waited for may come while the handler runs.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    is_over: impl Fn(Awaited) -> bool + Send + 'static,
    call: impl FnOnce() -> Result<T> + Send,
) -> PyResult<(Result<T>, Option<PyErr>)> {
    let is_main = is_main(py)?;
    Ok(py.detach(|| {
        let raised = Rc::new(RefCell::new(None));
        let of_handler = Rc::clone(&raised);
        let ask = move |awaited| {
            // Other threads handle no signals, and the interpreter may have ended when they ask.
            let signals = if is_main { Python::attach(|py| py.check_signals()) } else { Ok(()) };
            let is_raised = signals.map_err(|error| of_handler.replace(Some(error))).is_err();
            is_raised || is_over(if is_main { awaited } else { Awaited::Others })
        };
        let outcome = asking(ask, call);
        (outcome, raised.take())
    }))
}

/// Calls the core, and lets the user end it while it waits.
pub(crate) fn waited<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let (outcome, raised) = detached(py, |_| false, call)?;
    raised.map_or_else(|| outcome.map_err(|error| raise(py, &error)), Err)
}

/// A lock that no panic keeps from others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this is the main thread, of which each program has one.
fn is_main(py: Python<'_>) -> PyResult<bool> {
    static THREADING: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let threading = THREADING.get_or_try_init(py, || py.import("threading").map(Bound::unbind))?.bind(py);
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    threading.call_method0(intern!(py, "get_ident"))?.eq(main)
}

/// Something that one thread at a time uses.
pub(crate) struct Turns<T> {
    what: &'static str,
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Idle(T),
    InUse(ThreadId),
    Closed,
}

impl<T> Turns<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, state: Mutex::new(State::Idle(value)), changed: Condvar::new() }
    }

    /// Uses it when no other thread does.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        self.with_open(call)?.ok_or_else(|| closed(self.what))
    }

    /// As [`with`](Self::with); nothing if it was closed.
    pub(crate) fn with_open<R>(&self, call: impl FnOnce(&mut T) -> Result<R>) -> Result<Option<R>> {
        /// Gives it back, also after a panic.
        struct Taken<'a, T>(&'a Turns<T>, Option<T>);
        impl<T> Drop for Taken<'_, T> {
            fn drop(&mut self) {
                *self.0.lock() = self.1.take().map_or(State::Closed, State::Idle);
                self.0.changed.notify_all();
            }
        }
        let Some(value) = self.take(|| State::InUse(thread::current().id()))? else { return Ok(None) };
        let mut taken = Taken(self, Some(value));
        taken.1.as_mut().map(call).transpose()
    }

    /// Takes it for good; nothing if that was done before.
    pub(crate) fn close(&self) -> Result<Option<T>> {
        let value = self.take(|| State::Closed)?;
        self.changed.notify_all();
        Ok(value)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.lock(), State::Closed)
    }

    /// Takes it out when no thread uses it, and leaves something in its place; nothing if it was
    /// closed.
    fn take(&self, leave: impl FnOnce() -> State<T>) -> Result<Option<T>> {
        let mut state = self.lock();
        loop {
            match &*state {
                State::InUse(thread) if *thread == thread::current().id() => {
                    let message = format!(
                        "this {} is in a call of this thread, from which a signal handler was called; have the handler \
                         take a note, and act on it after the call",
                        self.what
                    );
                    return Err(Error::new(ErrorKind::Busy, message));
                }
                State::InUse(_) => {}
                State::Closed => return Ok(None),
                State::Idle(_) => {
                    return match std::mem::replace(&mut *state, leave()) {
                        State::Idle(value) => Ok(Some(value)),
                        _ => Ok(None),
                    };
                }
            }
            let (again, timeout) = self.changed.wait_timeout(state, ASK_EVERY).unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() {
                drop(state);
                patience::ask(Awaited::Others)?;
                state = self.lock();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}
