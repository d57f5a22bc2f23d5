//! Values that belong to one process, and cannot be used by a forked child.

use std::{fmt, process};

use crate::{
    Result,
    error::{closed, forked},
};

/// Something with threads, such as a tape or a store. A forked child has its memory but not its
/// threads, so it can neither use nor close it. Dropping it there does nothing.
pub struct OfProcess<T> {
    what: &'static str,
    value: Option<T>,
    process: u32,
}

impl<T> fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfProcess").field("what", &self.what).field("process", &self.process).finish_non_exhaustive()
    }
}

impl<T> OfProcess<T> {
    /// A value of this process. `what` is its name in messages: tape, store.
    pub fn new(what: &'static str, value: T) -> Self {
        Self { what, value: Some(value), process: process::id() }
    }

    /// The value. Fails if it is closed, or in another process than the one that made it.
    pub fn get(&self) -> Result<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(|| closed(self.what))
    }

    /// Like [`get`](Self::get), for changing it.
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(|| closed(self.what))
    }

    /// Takes the value out, so that this is closed from now on. Fails if it is closed already.
    pub fn close(&mut self) -> Result<T> {
        self.check()?;
        self.value.take().ok_or_else(|| closed(self.what))
    }

    fn check(&self) -> Result<()> {
        if process::id() == self.process { Ok(()) } else { Err(forked(self.what, self.process)) }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(self.value.take());
        }
    }
}
