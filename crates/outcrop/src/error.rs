//! Everything that can go wrong, in one type, with one table of kinds.

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on what, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine or one of its layers refused.
    #[error(transparent)]
    Engine(#[from] outcrop_engine::Error),
    /// The snapshot holds elements of another type.
    #[error("snapshot {key} holds {saved} but {asked} was asked for; ask for the type that was saved")]
    Element {
        /// The snapshot.
        key: u64,
        /// What it holds.
        saved: String,
        /// What was asked for.
        asked: String,
    },
    /// The buffer is not as long as the snapshot.
    #[error("snapshot {key} has {saved} elements but the buffer has {given}; nothing was taken")]
    Length {
        /// The snapshot.
        key: u64,
        /// Its elements.
        saved: usize,
        /// The buffer's.
        given: usize,
    },
    /// There is no region of this name, or more than one where one was meant.
    #[error("snapshot {key} has {}; {remedy}", regions(names))]
    Region {
        /// The snapshot.
        key: u64,
        /// The regions that it has.
        names: Vec<String>,
        /// What can be done.
        remedy: String,
    },
    /// A key that is not a number from 0 to 2⁶⁴-1.
    #[error("{0} cannot be the key of a snapshot: keys are whole numbers from 0 upwards")]
    Key(String),
    /// A size that cannot be understood.
    #[error("{0:?} is not a size; write it as in \"2 GiB\" or \"500 MB\", and larger than nothing")]
    Size(String),
    /// More than can be addressed.
    #[error("snapshot {key} is larger than memory can be")]
    Huge {
        /// The snapshot.
        key: u64,
    },
    /// A survey's profile cannot be used.
    #[error(transparent)]
    Profile(#[from] outcrop_survey::Error),
    /// The timeline cannot be written.
    #[error("cannot write the timeline to {path}: {source}")]
    Timeline {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

fn regions(names: &[String]) -> String {
    match names {
        [name] if name.is_empty() => "one region without a name".to_owned(),
        names => format!("the regions {}", names.join(", ")),
    }
}

/// The kinds of errors: what a program can decide on, and what other languages and the shell are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense: a wrong type, length, name, size or stack.
    Usage,
    /// The key is in use.
    Exists,
    /// There is no such snapshot.
    Missing,
    /// It is larger than the tape's host memory.
    TooLarge,
    /// There is no room, and none can be made.
    Full,
    /// There is no room because of what the program holds.
    Held,
    /// Bytes came back changed.
    Damaged,
    /// A layer or a file failed.
    Storage,
}

impl ErrorKind {
    /// The exit code of a program that ends with such an error. Codes below 10 are left to the program itself.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 10,
            Self::Exists => 11,
            Self::Missing => 12,
            Self::TooLarge => 13,
            Self::Full => 14,
            Self::Held => 15,
            Self::Damaged => 16,
            Self::Storage => 17,
        }
    }
}

impl Error {
    /// Which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        use outcrop_engine::Error as Engine;
        match self {
            Self::Engine(Engine::Exists { .. }) => ErrorKind::Exists,
            Self::Engine(Engine::Missing { .. }) => ErrorKind::Missing,
            Self::Engine(Engine::TooLarge { .. }) | Self::Huge { .. } => ErrorKind::TooLarge,
            Self::Engine(Engine::Full { .. }) => ErrorKind::Full,
            Self::Engine(Engine::Held { .. }) => ErrorKind::Held,
            Self::Engine(Engine::Damaged { .. }) => ErrorKind::Damaged,
            Self::Engine(Engine::Stack(_)) => ErrorKind::Usage,
            Self::Engine(_) | Self::Timeline { .. } => ErrorKind::Storage,
            Self::Element { .. }
            | Self::Length { .. }
            | Self::Region { .. }
            | Self::Key(_)
            | Self::Size(_)
            | Self::Profile(_) => ErrorKind::Usage,
        }
    }
}
