//! What regions are made of, for programs in other languages.

use std::any::type_name;

/// What a region is made of: a number type, by the name that it has in Rust, and its length.
///
/// Programs in Rust need not know it. Others name it, so that what one language saves another one reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Element {
    name: &'static str,
    bytes: usize,
}

impl Element {
    /// Bytes without a meaning.
    pub const BYTE: Self = Self { name: "u8", bytes: 1 };

    /// All that have a name. Complex numbers are called after the length of the whole, as elsewhere.
    pub const ALL: [Self; 14] = [
        Self::BYTE,
        Self { name: "i8", bytes: 1 },
        Self { name: "u16", bytes: 2 },
        Self { name: "i16", bytes: 2 },
        Self { name: "u32", bytes: 4 },
        Self { name: "i32", bytes: 4 },
        Self { name: "u64", bytes: 8 },
        Self { name: "i64", bytes: 8 },
        Self { name: "f16", bytes: 2 },
        Self { name: "f32", bytes: 4 },
        Self { name: "f64", bytes: 8 },
        Self { name: "c64", bytes: 8 },
        Self { name: "c128", bytes: 16 },
        Self { name: "bool", bytes: 1 },
    ];

    /// That of a type of this program.
    pub(crate) fn of<T>() -> Self {
        Self { name: type_name::<T>(), bytes: size_of::<T>() }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The length of one.
    pub fn bytes(self) -> usize {
        self.bytes
    }
}
