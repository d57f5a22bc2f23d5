//! Errors of a survey and of its profile.

use std::{io, path::PathBuf};

use outcrop_error::{ErrorKind, OfKind};

/// The result of a survey or of an operation on its profile.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, where, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory cannot be measured.
    #[error(
        "cannot survey {}: {attempt}: {source}; {}",
        path.display(),
        remedy(source)
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A directory has too little room.
    #[error(
        "cannot survey {}: {free_bytes} bytes are free, and a survey uses at most a tenth of that; free at least \
         {needed_bytes} bytes, or choose another directory",
        path.display()
    )]
    LittleSpace {
        /// The directory.
        path: PathBuf,
        /// The bytes that are free in it.
        free_bytes: u64,
        /// The bytes that should be.
        needed_bytes: u64,
    },
    /// There is too little memory.
    #[error(
        "cannot survey memory: {free_bytes} bytes are free, and a survey uses at most a tenth of that; free at least \
         {needed_bytes} bytes"
    )]
    LittleMemory {
        /// The bytes that are free.
        free_bytes: u64,
        /// The bytes that should be.
        needed_bytes: u64,
    },
    /// Memory cannot be used.
    #[error("cannot survey memory: {0}")]
    Memory(#[from] outcrop_layers::Error),
    /// A file cannot be read or written.
    #[error("cannot {attempt} the profile {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not a profile, or has impossible values.
    #[error("{} is not a usable profile: {reason}; make a new one with `outcrop survey`", path.display())]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        // Others have filled it meanwhile, or this user has a quota.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space there, or choose another directory"
        }
        _ => "choose a directory in which this user may create files",
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { .. } => ErrorKind::Storage,
            _ => ErrorKind::Usage,
        }
    }
}
