//! What went wrong, as a sentence for who runs the program.

use std::{
    fmt,
    io::{self, Write},
};

/// The outcome of a call.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A sentence that says what failed and what to do. Programs see only that there was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<outcrop::Error> for Failure {
    fn from(error: outcrop::Error) -> Self {
        Self(format!("{error:#}"))
    }
}

impl From<outcrop::store::RanksError> for Failure {
    fn from(error: outcrop::store::RanksError) -> Self {
        outcrop::Error::from(error).into()
    }
}

impl From<outcrop::catalog::Error> for Failure {
    fn from(error: outcrop::catalog::Error) -> Self {
        Self(error.to_string())
    }
}

/// Says something to who runs the program.
pub(crate) fn say(rank: u32, sentence: impl fmt::Display) {
    // A program may have no stderr, or one that nobody reads; it goes on nevertheless.
    let _ = writeln!(io::stderr(), "veloc (outcrop), rank {rank}: {sentence}");
}
