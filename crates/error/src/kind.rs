//! The kinds of errors, and what each is called in C, in Python and in the shell.

use std::fmt;

/// What a program can decide on, and what other languages and the shell are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense: a wrong type, length, name, size or setting, or something that is
    /// closed.
    Usage,
    /// The key, version or file is in use.
    Exists,
    /// There is no such snapshot, version, region or device.
    Missing,
    /// It is larger than the memory that it has to pass through.
    TooLarge,
    /// There is no room, and none can be made.
    Full,
    /// There is no room because of what the program holds.
    Held,
    /// Bytes came back changed.
    Damaged,
    /// A layer or a file failed.
    Storage,
    /// Another process is in the way, or one is missing.
    Busy,
}

/// What a kind is called elsewhere.
struct Row {
    kind: ErrorKind,
    /// The exit code of a program, and the status of a call in C. Codes below 10 are left to the
    /// program itself.
    code: u8,
    c: &'static str,
    python: &'static str,
}

const fn row(kind: ErrorKind, code: u8, c: &'static str, python: &'static str) -> Row {
    Row { kind, code, c, python }
}

/// The table that all languages follow.
const TABLE: [Row; 9] = [
    row(ErrorKind::Usage, 10, "OUTCROP_USAGE", "Usage"),
    row(ErrorKind::Exists, 11, "OUTCROP_EXISTS", "Exists"),
    row(ErrorKind::Missing, 12, "OUTCROP_MISSING", "Missing"),
    row(ErrorKind::TooLarge, 13, "OUTCROP_TOO_LARGE", "TooLarge"),
    row(ErrorKind::Full, 14, "OUTCROP_FULL", "Full"),
    row(ErrorKind::Held, 15, "OUTCROP_HELD", "Held"),
    row(ErrorKind::Damaged, 16, "OUTCROP_DAMAGED", "Damaged"),
    row(ErrorKind::Storage, 17, "OUTCROP_STORAGE", "Storage"),
    row(ErrorKind::Busy, 18, "OUTCROP_BUSY", "Busy"),
];

impl ErrorKind {
    /// All kinds, in the order of their codes.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.kind)
    }

    /// The exit code of a program that ends with such an error, which is also the status of a call
    /// in C.
    pub fn exit_code(self) -> u8 {
        self.row().code
    }

    /// The name of the status in C.
    pub fn c_name(self) -> &'static str {
        self.row().c
    }

    /// The name of the exception in Python.
    pub fn python_name(self) -> &'static str {
        self.row().python
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().python)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_row_and_a_code_of_its_own() {
        for (index, kind) in ErrorKind::all().enumerate() {
            assert_eq!((kind as usize, usize::from(kind.exit_code())), (index, index + 10));
            assert_eq!(format!("{kind:?}"), kind.python_name());
        }
    }
}
