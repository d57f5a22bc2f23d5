//! The error of every public call: its kind, a message, and what caused it.
//!
//! Each crate has an error type of its own, in its own words, and says of what [`ErrorKind`] each
//! of them is ([`OfKind`]). Where a call of the program ends, it becomes an [`Error`]. The message
//! says what failed, on what, and what can be done.
//!
//! ```
//! use outcrop_error::{Error, ErrorKind};
//! let cause = std::io::Error::from_raw_os_error(2);
//! let error = Error::caused(ErrorKind::Storage, "cannot read the profile p.json", cause);
//! assert_eq!(error.kind().exit_code(), 17);
//! assert!(error.to_string().starts_with("cannot read the profile p.json: No such file"));
//! assert_eq!(error.os_error(), Some(2));
//! ```

#![forbid(unsafe_code)]

mod kind;
pub mod patience;

use std::{error::Error as StdError, fmt, io};

pub use kind::ErrorKind;

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of one crate that knows of what kind it is.
pub trait OfKind: StdError {
    /// Which kind of error it is.
    fn kind(&self) -> ErrorKind;

    /// The version of a session that has failed, if it is about that.
    fn failed_version(&self) -> Option<u64> {
        None
    }
}

/// What failed, on what, and what can be done.
///
/// The message is complete: it names the cause where that helps. [`source`](StdError::source) gives
/// the causes that it does not name, so that nothing is said twice by programs that print all of
/// them.
pub struct Error(Box<Content>);

struct Content {
    kind: ErrorKind,
    message: String,
    failed_version: Option<u64>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Content { kind, message: message.into(), failed_version: None, cause: None }))
    }

    /// An error whose message ends with its cause.
    pub fn caused(
        kind: ErrorKind,
        message: impl fmt::Display,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let cause = cause.into();
        Self(Box::new(Content {
            kind,
            message: format!("{message}: {cause}"),
            failed_version: None,
            cause: Some(cause),
        }))
    }

    /// The same error with these words before its message: what the program was about to do.
    #[must_use]
    pub fn within(mut self, attempt: impl fmt::Display) -> Self {
        self.0.message.insert_str(0, &format!("{attempt}: "));
        self
    }

    /// Which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The version that has not become durable, if that is what the error is about. A session
    /// reports each once.
    pub fn failed_version(&self) -> Option<u64> {
        self.0.failed_version
    }

    /// What the system said (`errno`), if a call of the system has failed.
    pub fn os_error(&self) -> Option<i32> {
        chain(self.cause()).filter_map(|cause| cause.downcast_ref::<io::Error>()).find_map(io::Error::raw_os_error)
    }

    fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

impl<E: OfKind + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let (kind, message, failed_version) = (error.kind(), error.to_string(), error.failed_version());
        Self(Box::new(Content { kind, message, failed_version, cause: Some(Box::new(error)) }))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let is_new = |cause: &&(dyn StdError + 'static)| !self.0.message.contains(&cause.to_string());
        chain(self.cause()).find(is_new)
    }
}

impl fmt::Display for Error {
    /// The message; with `{:#}`, followed by the causes that it does not name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if f.alternate() {
            for cause in chain(self.source()) {
                write!(f, ": {cause}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    /// As it is printed when `main` returns it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.0.kind)
    }
}

/// A cause, and what caused it, and so on.
fn chain<'a>(first: Option<&'a (dyn StdError + 'static)>) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(first, |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names its cause, or does not.
    #[derive(Debug)]
    struct Broken(bool, io::Error);

    impl fmt::Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            if self.0 { write!(f, "dir a: {}; free some", self.1) } else { f.write_str("dir a: it is broken") }
        }
    }

    impl StdError for Broken {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.1)
        }
    }

    impl OfKind for Broken {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Storage
        }
    }

    fn full() -> io::Error {
        io::Error::from_raw_os_error(28)
    }

    #[test]
    fn a_cause_is_said_once() {
        let names = Error::from(Broken(true, full()));
        assert_eq!(names.to_string(), format!("dir a: {}; free some", full()));
        assert_eq!(format!("{names:#}"), names.to_string());
        assert!(names.source().is_none(), "the message has named it");
        let does_not = Error::from(Broken(false, full()));
        assert_eq!(does_not.to_string(), "dir a: it is broken");
        assert_eq!(format!("{does_not:#}"), format!("dir a: it is broken: {}", full()));
        assert_eq!(does_not.source().map(ToString::to_string), Some(full().to_string()));
        for error in [names, does_not, Error::caused(ErrorKind::Full, "cannot grow", full())] {
            assert_eq!(error.os_error(), Some(28));
        }
    }

    #[test]
    fn what_was_attempted_comes_first() {
        let error = Error::new(ErrorKind::Usage, "\"x\" is not a size").within("host of a tape");
        assert_eq!(error.to_string(), "host of a tape: \"x\" is not a size");
        assert_eq!(format!("{error:?}"), "Usage: host of a tape: \"x\" is not a size");
        assert_eq!((error.kind(), error.os_error()), (ErrorKind::Usage, None));
    }

    #[test]
    fn an_error_is_small_and_goes_to_other_threads() {
        const fn is_sent<T: Send + Sync + 'static>() {}
        const { is_sent::<Error>() };
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
