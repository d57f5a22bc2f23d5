//! The errors of a tape.

use outcrop_error::{Error, ErrorKind, OfKind};

/// What failed, on what, and what to do. Calls of the program return it as an
/// [`Error`](crate::Error).
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The snapshot has elements of another type.
    #[error("snapshot {key} holds {saved} but {asked} was asked for; ask for the type that was saved")]
    Element { key: u64, saved: String, asked: String },
    /// Elements that cannot be read or written in place.
    #[error(
        "{asked} is aligned to {align} bytes, and what is read or written in place to at most {most}; use an element \
         type of less alignment"
    )]
    Alignment { asked: &'static str, align: usize, most: usize },
    /// Elements without bytes.
    #[error("region {name:?} of snapshot {key} has elements of 0 bytes; an element needs at least one")]
    NoBytes { key: u64, name: String },
    /// The buffer is not as long as the snapshot.
    #[error("snapshot {key} has {saved} elements but the buffer has {given}; nothing was taken")]
    Length { key: u64, saved: usize, given: usize },
    /// There is no region with this name, or there are several where one is expected.
    #[error("snapshot {key} has {}; {remedy}", regions(names))]
    Region { key: u64, names: Vec<String>, remedy: String },
    /// The shape of a region is not possible.
    #[error(transparent)]
    Shape(outcrop_region::ShapeError),
    /// A key that is not a number from 0 to 2⁶⁴-1.
    #[error("{0} cannot be the key of a snapshot: keys are whole numbers from 0 upwards")]
    Key(String),
    /// The snapshot is larger than the address space.
    #[error("snapshot {key} is larger than memory can be")]
    Huge { key: u64 },
    /// A closed handle is used.
    #[error("this {what} is closed; open it again")]
    Closed { what: &'static str },
    /// A handle is used by a forked child of the process that made it.
    #[error(
        "this {what} belongs to process {process}, from which this one was forked without its threads; open it in the child"
    )]
    Forked { what: &'static str, process: u32 },
}

impl OfKind for Problem {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Huge { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::Usage,
        }
    }
}

/// The error if something, such as a tape or a store, is used after it was closed.
pub fn closed(what: &'static str) -> Error {
    Problem::Closed { what }.into()
}

/// The error if something is used by a forked child of the process that made it.
pub fn forked(what: &'static str, process: u32) -> Error {
    Problem::Forked { what, process }.into()
}

/// The error if a snapshot is larger than the address space.
pub fn huge(key: u64) -> Error {
    Problem::Huge { key }.into()
}

/// The error if something cannot be the key of a snapshot.
pub fn no_key(text: impl Into<String>) -> Error {
    Problem::Key(text.into()).into()
}

fn regions(names: &[String]) -> String {
    match names {
        [name] if name.is_empty() => "one region without a name".to_owned(),
        names => format!("the regions {}", names.join(", ")),
    }
}
