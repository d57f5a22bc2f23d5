//! Reads a structure from front to back, and knows its position.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::error::{Error, Problem, Result, Structure};

pub(crate) struct Cursor<'a> {
    structure: Structure,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(structure: Structure, bytes: &'a [u8]) -> Self {
        Self { structure, bytes, at: 0 }
    }

    /// The position of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The next `count` bytes.
    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let available = self.bytes.len() - self.at;
        if count > available as u64 {
            let (structure, at) = (self.structure, self.at());
            return Err(Error::Short { structure, at, needed: count, available: available as u64 });
        }
        let taken = &self.bytes[self.at..self.at + count as usize];
        self.at += count as usize;
        Ok(taken)
    }

    /// The next `count` values. Nothing is copied, so a large count costs nothing.
    pub(crate) fn slice<T>(&mut self, count: u64) -> Result<&'a [T]>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let taken = self.take(count.saturating_mul(size_of::<T>() as u64))?;
        <[T]>::ref_from_bytes(taken).map_err(|_| self.wrong("its length fits no number of entries"))
    }

    /// The next value.
    pub(crate) fn value<T>(&mut self) -> Result<&'a T>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        Ok(&self.slice(1)?[0])
    }

    /// The next `count` bytes as text.
    pub(crate) fn text(&mut self, count: u64) -> Result<&'a str> {
        let at = self.at();
        let taken = self.take(count)?;
        std::str::from_utf8(taken).map_err(|_| self.wrong_at(at, "a name that is not UTF-8"))
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&self) -> Result<()> {
        let rest = self.bytes.len() - self.at;
        if rest == 0 { Ok(()) } else { Err(self.wrong(format!("{rest} bytes follow where it should end"))) }
    }

    /// An error at the next byte.
    pub(crate) fn wrong(&self, problem: impl Into<Problem>) -> Error {
        self.wrong_at(self.at(), problem)
    }

    /// An error at byte `at`.
    pub(crate) fn wrong_at(&self, at: u64, problem: impl Into<Problem>) -> Error {
        Error::Wrong { structure: self.structure, at, problem: problem.into() }
    }
}

/// Checks the magic bytes and the format number at the start of a file. Returns that number, from 1
/// to `newest`.
pub(crate) fn check_start(structure: Structure, expected: [u8; 8], newest: u32, bytes: &[u8]) -> Result<u32> {
    let mut cursor = Cursor::new(structure, bytes);
    let found = *cursor.value::<[u8; 8]>()?;
    if found != expected {
        return Err(Error::Magic { structure, found, expected });
    }
    let format = cursor.value::<zerocopy::little_endian::U32>()?.get();
    match (1..=newest).contains(&format) {
        true => Ok(format),
        false => Err(Error::Format { structure, found: format, newest }),
    }
}
