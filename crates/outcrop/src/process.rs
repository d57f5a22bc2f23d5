//! What belongs to one process, and is of no use to a child that was forked from it.

use std::{fmt, process};

use crate::{
    Result,
    error::{closed, forked},
};

/// Something with threads, such as a tape or a store. A forked child has its memory but not its
/// threads: there it can be neither used nor ended, and dropping it does nothing.
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
    /// Something of this process, which messages call `what`: a tape, a store.
    pub fn new(what: &'static str, value: T) -> Self {
        Self { what, value: Some(value), process: process::id() }
    }

    /// What it is; an error in another process than the one that made it, and when it is closed.
    pub fn get(&self) -> Result<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(|| closed(self.what))
    }

    /// As [`get`](Self::get), to be changed.
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(|| closed(self.what))
    }

    /// Takes it out, so that it is closed from now on; an error if it is already.
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
