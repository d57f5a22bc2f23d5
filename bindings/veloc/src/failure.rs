//! What went wrong, as a sentence for who runs the program.

use std::{
    fmt,
    io::{self, Write},
};

use crate::number;

/// The outcome of a call.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A sentence that says what failed and what to do. Programs see only that there was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    sentence: String,
    /// Memory or descriptors are short: that says nothing about what is stored.
    pub(crate) is_shortage: bool,
}

impl Failure {
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), is_shortage: false }
    }

    /// Several at once.
    pub(crate) fn all(failures: &[Self]) -> Self {
        let sentences: Vec<_> = failures.iter().map(|failure| failure.sentence.as_str()).collect();
        Self { sentence: sentences.join("; "), is_shortage: failures.iter().any(|failure| failure.is_shortage) }
    }

    /// What other ranks are told; never nothing.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut message = vec![u8::from(self.is_shortage)];
        message.extend_from_slice(self.sentence.as_bytes());
        message
    }

    /// What another rank has told; nothing if all went well there.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let (is_shortage, sentence) = message.split_first()?;
        Some(Self { sentence: String::from_utf8_lossy(sentence).into_owned(), is_shortage: *is_shortage != 0 })
    }

    /// The same, said of where it was.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        Self { sentence: format!("{place}: {}", self.sentence), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl From<outcrop::Error> for Failure {
    fn from(error: outcrop::Error) -> Self {
        Self::new(number::in_sentence(&format!("{error:#}")))
    }
}

impl From<outcrop::store::RanksError> for Failure {
    fn from(error: outcrop::store::RanksError) -> Self {
        outcrop::Error::from(error).into()
    }
}

impl From<outcrop::catalog::Error> for Failure {
    fn from(error: outcrop::catalog::Error) -> Self {
        let is_shortage = error.is_shortage();
        Self { is_shortage, ..Self::new(number::in_sentence(&error.to_string())) }
    }
}

/// Says something to who runs the program.
pub(crate) fn say(rank: u32, sentence: impl fmt::Display) {
    // In one call: other ranks write to the same place.
    let line = format!("veloc (outcrop), rank {rank}: {sentence}\n");
    // A program may have no stderr, or one that nobody reads; it goes on nevertheless.
    let _ = io::stderr().write_all(line.as_bytes());
}
