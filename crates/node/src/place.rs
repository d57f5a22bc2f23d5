//! Where the daemon of a user and its clients meet: a directory of that user alone.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use outcrop_local::Meeting;

/// The directory of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// The usual directory of this user, or another one. It is made if it is missing.
    pub(crate) fn new(directory: Option<&Path>) -> io::Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let usual = || Meeting::usual_directory().join(format!("outcrop-node-{user}"));
        let path = directory.map_or_else(usual, Path::to_owned);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let error = said(&error, format!("make the directory {} of the node daemon", path.display()));
                // The user has named it, or the meeting place.
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(&path)?;
        let refuse = |problem: &str| {
            let text = format!("the directory {} of the node daemon {problem}", path.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        };
        if !found.is_dir() {
            return refuse("is not a directory: remove it, or choose another one");
        }
        if found.uid() != user {
            return refuse("belongs to another user: choose another one");
        }
        if found.mode() & 0o077 != 0 {
            return refuse("may be used by others: make it accessible to yourself alone (chmod 700)");
        }
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The lock that the daemon holds while it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("alive")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// The identity of the reserve in use, while anything may be in it.
    pub(crate) fn nonce(&self) -> PathBuf {
        self.0.join("reserve")
    }
}

/// An error with what was attempted.
pub(crate) fn said(error: &io::Error, what: impl std::fmt::Display) -> io::Error {
    match error.raw_os_error() {
        // The number must stay: a file system passes it on.
        Some(errno) => {
            tracing::debug!(%error, "{what}");
            let text = io::Error::from_raw_os_error(errno);
            io::Error::new(text.kind(), Said { what: what.to_string(), errno })
        }
        None => io::Error::new(error.kind(), format!("{what}: {error}")),
    }
}

/// What failed, with the number of the system's error.
#[derive(Debug)]
pub(crate) struct Said {
    what: String,
    pub(crate) errno: i32,
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Said {}
