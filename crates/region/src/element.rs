//! What regions are made of, for programs in other languages.

use std::{any::type_name, borrow::Cow};

/// What a region is made of: a number type, by the name that it has in Rust, and its length.
///
/// Programs in Rust need not know it. Others name it, so that what one language saves another one
/// reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element {
    name: Cow<'static, str>,
    bytes: usize,
}

impl Element {
    /// Bytes without a meaning.
    pub const BYTE: Self = Self::known("u8", 1);

    /// All that every language knows. Complex numbers are called after the length of the whole, as
    /// elsewhere; the elements of a text are the bytes of its UTF-8.
    pub const ALL: [Self; 15] = [
        Self::BYTE,
        Self::known("i8", 1),
        Self::known("u16", 2),
        Self::known("i16", 2),
        Self::known("u32", 4),
        Self::known("i32", 4),
        Self::known("u64", 8),
        Self::known("i64", 8),
        Self::known("f16", 2),
        Self::known("f32", 4),
        Self::known("f64", 8),
        Self::known("c64", 8),
        Self::known("c128", 16),
        Self::known("bool", 1),
        Self::known("text", 1),
    ];

    const fn known(name: &'static str, bytes: usize) -> Self {
        Self { name: Cow::Borrowed(name), bytes }
    }

    /// That of a type of this program.
    pub fn of<T>() -> Self {
        Self::known(type_name::<T>(), size_of::<T>())
    }

    /// The one of this name that every language knows.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name == name)
    }

    /// One that has a meaning in one language only.
    pub fn other(name: impl Into<Cow<'static, str>>, bytes: usize) -> Self {
        Self { name: name.into(), bytes }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The length of one.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
