//! Errors of the daemon and its client as errors of every public call.

use std::io;

use outcrop_error::{Error, ErrorKind};
use rustix::io::Errno;

/// The error of a call, with what was attempted, unless that is empty, and with the kind that its
/// cause has.
pub fn failed(attempt: impl std::fmt::Display, error: io::Error) -> Error {
    let kind = kind(&error);
    match attempt.to_string() {
        attempt if attempt.is_empty() && error.raw_os_error().is_none() => Error::new(kind, error.to_string()),
        attempt if attempt.is_empty() => Error::caused(kind, "the node daemon", error),
        attempt => Error::caused(kind, attempt, error),
    }
}

fn kind(error: &io::Error) -> ErrorKind {
    if let Some(errno) = error.raw_os_error() {
        // A call of the system has failed, and the program has to know for which file.
        return match Errno::from_raw_os_error(errno) {
            Errno::FBIG => ErrorKind::Usage,
            Errno::BUSY => ErrorKind::Busy,
            _ => ErrorKind::Storage,
        };
    }
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied => ErrorKind::Usage,
        io::ErrorKind::NotFound => ErrorKind::Missing,
        // A daemon that does not answer, or one of another version, is in the way.
        io::ErrorKind::TimedOut | io::ErrorKind::ConnectionRefused | io::ErrorKind::Unsupported => ErrorKind::Busy,
        io::ErrorKind::InvalidData => ErrorKind::Damaged,
        io::ErrorKind::OutOfMemory => ErrorKind::Full,
        _ => ErrorKind::Storage,
    }
}
