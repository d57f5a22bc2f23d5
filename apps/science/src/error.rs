//! What can go wrong, and what to do about it.

use std::{io, path::PathBuf};

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot work.
    #[error("{setting}: {advice}")]
    Setting {
        /// The option of the command line.
        setting: &'static str,
        /// What would work.
        advice: String,
    },
    /// The state was made by another program, or with other settings.
    #[error(
        "{path} has the state of: {found}; this is: {expected}; continue with the same settings, or use another --state"
    )]
    OtherSettings {
        /// The file of the state.
        path: PathBuf,
        /// What made the state.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// Only a pool can tell when it is worth it.
    #[error("--every worth needs a pool: with --keep {way}, say after how many iterations the state is kept")]
    NotWorth {
        /// How the state is kept.
        way: &'static str,
    },
    /// The pool cannot do it.
    #[error(transparent)]
    Pool(#[from] outcrop_pool::Error),
    /// A file cannot be used.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A checkpoint cannot be continued from.
    #[error("the checkpoint {path} cannot be used: {problem}; remove it to start over")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another process has the checkpoint.
    #[error("{path} is in use by another process; wait for its end, or use another --state")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The picture cannot be encoded.
    #[error("cannot encode the picture: {0}")]
    Picture(#[from] png::EncodingError),
    /// The compute threads cannot be started.
    #[error("cannot start the compute threads: {0}; use fewer --threads")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// Signals cannot be listened for.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
}

impl Error {
    /// For a call on a file.
    pub(crate) fn file(action: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }

    /// Checks a setting.
    pub(crate) fn require(is_fit: bool, setting: &'static str, advice: impl FnOnce() -> String) -> Result<()> {
        if is_fit { Ok(()) } else { Err(Self::Setting { setting, advice: advice() }) }
    }
}
