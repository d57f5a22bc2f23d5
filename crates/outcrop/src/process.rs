//! What belongs to one process, and is of no use to a child that was forked from it.

use std::process;

use crate::{Error, Result};

/// Something with threads, such as a tape or a store. A forked child has its memory but not its threads: there it can be neither
/// used nor ended, and dropping it does nothing.
pub struct OfProcess<T> {
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    /// Something of this process.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// What it is; an error in another process than the one that made it, and when it is closed.
    pub fn get(&self) -> Result<&T> {
        self.check()?;
        self.value.as_ref().ok_or(Error::Closed)
    }

    /// As [`get`](Self::get), to be changed.
    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or(Error::Closed)
    }

    /// Takes it out, so that it is closed from now on; an error if it is already.
    pub fn close(&mut self) -> Result<T> {
        self.check()?;
        self.value.take().ok_or(Error::Closed)
    }

    fn check(&self) -> Result<()> {
        if process::id() == self.process { Ok(()) } else { Err(Error::Forked { process: self.process }) }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.check().is_err() {
            std::mem::forget(self.value.take());
        }
    }
}
