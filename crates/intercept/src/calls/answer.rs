//! What a program gets for a call.

use std::{io, os::fd::OwnedFd};

/// The answer to a call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The kernel carries out the call as if nobody had looked at it.
    Go,
    /// The call returns this.
    Value(i64),
    /// The call fails with this error.
    Failed(i32),
    /// The call returns this descriptor.
    Descriptor { file: OwnedFd, closes_at_exec: bool },
}

impl Answer {
    /// The call failed, or returns 0.
    pub(crate) fn done(outcome: io::Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Value(0),
            Err(error) => Self::failed(&error),
        }
    }

    pub(crate) fn failed(error: &io::Error) -> Self {
        Self::Failed(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
