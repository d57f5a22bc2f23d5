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
    /// What was read from a store makes no sense, or what was to be written to it does not.
    #[error(transparent)]
    Format(#[from] outcrop_format::Error),
    /// What is in a directory cannot be read.
    #[error(transparent)]
    Catalog(#[from] outcrop_catalog::Error),
    /// A store cannot do what was asked, as it was asked.
    #[error("session {session}: {problem}")]
    Session {
        /// Which.
        session: String,
        /// What is wrong, and what can be done.
        problem: String,
    },
    /// The version is there already, or a newer one is.
    #[error("session {session} has version {newest} already; save a higher one than {version}, or rewind first")]
    VersionExists {
        /// Which.
        session: String,
        /// What was to be saved.
        version: u64,
        /// What is there.
        newest: u64,
    },
    /// There is no such version.
    #[error("session {session} has no version {version}: it was never complete on all ranks, or is not kept any more")]
    VersionMissing {
        /// Which.
        session: String,
        /// What was asked for.
        version: u64,
    },
    /// A version does not fit the memory that it is to be restored to.
    #[error("version {version} of {session} cannot be restored here: {problem}; nothing was changed")]
    Mismatch {
        /// The session.
        session: String,
        /// The version.
        version: u64,
        /// What differs.
        problem: String,
    },
    /// No version that could be used is undamaged.
    #[error("no version of {session} can be restored: {detail}")]
    NothingWhole {
        /// The session.
        session: String,
        /// What is wrong with each.
        detail: String,
    },
    /// A version has not reached a layer, and will not.
    #[error("version {version} of {session} has not reached {layer}: {reason}; it is not durable there")]
    NotReached {
        /// The session.
        session: String,
        /// The version.
        version: u64,
        /// The layer.
        layer: String,
        /// Why.
        reason: String,
    },
    /// Another process uses the same place.
    #[error("{what} is in use by another process; end it, or use another place")]
    InUse {
        /// Which place.
        what: String,
    },
    /// The files of a store cannot be used.
    #[error("cannot {attempt} in {location}: {source}")]
    StoreFiles {
        /// What was tried.
        attempt: String,
        /// Where.
        location: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The processes of a run do not come together.
    #[error("the ranks of this run: {detail}")]
    Ranks {
        /// What is wrong, and what can be done.
        detail: String,
    },
    /// The files through which processes talk cannot be used.
    #[error(
        "cannot talk to other ranks through {path}: {source}; all ranks need the same directory, and may write there"
    )]
    RankFiles {
        /// Where.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Live memory cannot be watched or frozen.
    #[error(transparent)]
    Track(#[from] outcrop_track::Error),
    /// A handle that was closed is used.
    #[error("it is closed; open it anew")]
    Closed,
    /// A handle is used by a child of the process that made it.
    #[error(
        "it belongs to process {process}, from which this one was forked without its threads; open it in the child"
    )]
    Forked {
        /// Who made it.
        process: u32,
    },
    /// A configuration says something that cannot be.
    #[error("the configuration {problem}")]
    Config {
        /// What is wrong, and what can be done.
        problem: String,
    },
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
    /// Another process is in the way, or one is missing.
    Busy,
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
            Self::Busy => 18,
        }
    }
}

fn catalog_kind(error: &outcrop_catalog::Error) -> ErrorKind {
    use outcrop_catalog::Error as Catalog;
    match error {
        Catalog::NoSession { .. } | Catalog::NoVersion { .. } | Catalog::NoRegion { .. } | Catalog::Empty { .. } => {
            ErrorKind::Missing
        }
        Catalog::Damaged { .. } | Catalog::Lost { .. } => ErrorKind::Damaged,
        Catalog::OutOfRange { .. } => ErrorKind::Usage,
        Catalog::Held { .. } => ErrorKind::Busy,
        _ => ErrorKind::Storage,
    }
}

impl Error {
    /// Which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        use outcrop_engine::Error as Engine;
        use outcrop_layers::Error as Layer;
        match self {
            Self::Engine(Engine::Exists { .. }) => ErrorKind::Exists,
            Self::Engine(Engine::Missing { .. }) => ErrorKind::Missing,
            Self::Engine(Engine::TooLarge { .. }) | Self::Huge { .. } => ErrorKind::TooLarge,
            Self::Engine(Engine::Full { .. }) => ErrorKind::Full,
            Self::Engine(Engine::Held { .. }) => ErrorKind::Held,
            Self::Engine(Engine::Damaged { .. }) => ErrorKind::Damaged,
            Self::Engine(
                Engine::Stack(_) | Engine::Layer(Layer::OtherDevice { .. } | Layer::BufferTooSmall { .. }),
            ) => ErrorKind::Usage,
            Self::Engine(_)
            | Self::Timeline { .. }
            | Self::NotReached { .. }
            | Self::StoreFiles { .. }
            | Self::RankFiles { .. }
            | Self::Track(_) => ErrorKind::Storage,
            Self::VersionExists { .. } => ErrorKind::Exists,
            Self::VersionMissing { .. } => ErrorKind::Missing,
            Self::Format(outcrop_format::Error::Name { .. } | outcrop_format::Error::Unfit { .. }) => ErrorKind::Usage,
            Self::NothingWhole { .. } | Self::Format(_) => ErrorKind::Damaged,
            Self::Catalog(error) => catalog_kind(error),
            Self::InUse { .. } | Self::Ranks { .. } => ErrorKind::Busy,
            Self::Element { .. }
            | Self::Length { .. }
            | Self::Region { .. }
            | Self::Key(_)
            | Self::Size(_)
            | Self::Session { .. }
            | Self::Closed
            | Self::Forked { .. }
            | Self::Config { .. }
            | Self::Mismatch { .. }
            | Self::Profile(_) => ErrorKind::Usage,
        }
    }
}
