//! What can go wrong on a layer.

use std::{io, ops::Range, path::PathBuf};

use crate::DeviceKind;
use outcrop_error::{ErrorKind, OfKind};

/// The outcome of what a layer was asked to do.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, on which layer, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium has no room left, although the limit is not reached.
    #[error("{layer}: no space left on the medium: {source}; free some, or set a lower limit")]
    Full {
        /// The layer's name.
        layer: String,
        /// What the system said.
        source: io::Error,
    },
    /// A transfer failed.
    #[error("{layer}: cannot {attempt}: {source}")]
    Broken {
        /// The layer's name.
        layer: String,
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A transfer beyond the limit, or not at a multiple of the alignment.
    #[error("{layer}: bytes {} to {} are not an aligned part of its {capacity} bytes", range.start, range.end)]
    OutOfRange {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// The bytes there are.
        capacity: u64,
    },
    /// Memory was asked for that is in use.
    #[error("{layer}: bytes {} to {} are in use", range.start, range.end)]
    InUse {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
    },
    /// The host gives no memory.
    #[error("cannot reserve {bytes} bytes of host memory: {source}; set a lower limit")]
    NoMemory {
        /// The bytes asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is no more memory now. What has been touched before can be used as before.
    #[error("{layer}: no memory for {bytes} more bytes: {limit}; free some, or set a lower limit")]
    Exhausted {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        bytes: u64,
        /// What there is, and why not more.
        limit: String,
    },
    /// Shared memory was to be used that has not been touched.
    #[error("{layer}: bytes {} to {} have no memory yet; touch them first", range.start, range.end)]
    Untouched {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
    },
    /// A buffer that processes share cannot be used.
    #[error("cannot share memory through {}: {reason}", path.display())]
    Segment {
        /// Its file.
        path: PathBuf,
        /// Why, and what can be done.
        reason: String,
    },
    /// This user may not pin that much memory.
    #[error(
        "cannot pin {bytes} bytes of host memory: {source}; at most {limit_bytes} bytes may be locked: raise the limit \
         (`ulimit -l {}`, memlock in /etc/security/limits.conf, or LimitMEMLOCK= of the service) or grant CAP_IPC_LOCK",
        bytes.div_ceil(1024)
    )]
    PinLimit {
        /// The bytes that would be locked.
        bytes: u64,
        /// The bytes that may be.
        limit_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What would drive devices of this kind is not there.
    #[error("no {kind} driver ({library}) on this machine: {reason}; install it, or do without such a device")]
    NoDriver {
        /// What kind of devices.
        kind: DeviceKind,
        /// The library that was looked for.
        library: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There are fewer devices of this kind.
    #[error("no {kind} device {index} on this machine: there are {count}, counted from 0")]
    NoDevice {
        /// What kind of devices.
        kind: DeviceKind,
        /// The one asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device gives no memory.
    #[error("{device}: cannot provide {bytes} bytes of device memory: {reason}; set a lower limit")]
    DeviceFull {
        /// The device's name.
        device: String,
        /// The bytes asked for.
        bytes: u64,
        /// What the driver said.
        reason: String,
    },
    /// The device is gone, and with it all that it held. Memory of the host is as it was.
    #[error("{device}: the device is lost, and what it held with it: {reason}; close it and open it again")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// What the driver said first.
        reason: String,
    },
    /// Device memory was used before the device has provided it.
    #[error("{layer}: bytes {} to {} are not all mapped yet; touch them first", range.start, range.end)]
    Unmapped {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
    },
    /// More was asked of a buffer than it has.
    #[error("{device}: bytes {} to {} are not all in a buffer of {bytes} bytes", range.start, range.end)]
    BufferTooSmall {
        /// The device's name.
        device: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// The bytes there are.
        bytes: u64,
    },
    /// A buffer belongs elsewhere.
    #[error("{device}: the buffer belongs to {other}; copy it by way of host memory")]
    OtherDevice {
        /// The device's name.
        device: String,
        /// The name of the device that the buffer belongs to.
        other: String,
    },
    /// A directory cannot be used.
    #[error("cannot use directory {}: {attempt}: {source}; {remedy}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// What can be done.
        remedy: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl From<outcrop_local::Error> for Error {
    fn from(error: outcrop_local::Error) -> Self {
        match error {
            outcrop_local::Error::Segment { path, reason } => Self::Segment { path, reason },
            outcrop_local::Error::Directory { path, attempt, remedy, source } => {
                Self::Directory { path, attempt, remedy, source }
            }
        }
    }
}

impl Error {
    /// What went wrong with the memory of `layer`.
    pub(crate) fn memory(layer: &str, error: outcrop_memory::Error) -> Self {
        use outcrop_memory::Error as Memory;
        match error {
            Memory::NoMemory { bytes, source } => Self::NoMemory { bytes, source },
            Memory::Exhausted { bytes, limit } => Self::Exhausted { layer: layer.to_owned(), bytes, limit },
            Memory::PinLimit { bytes, limit_bytes, source } => Self::PinLimit { bytes, limit_bytes, source },
            Memory::Failed { attempt, source } => Self::transfer(layer, attempt, source),
            other => Self::transfer(layer, "use memory", io::Error::other(other)),
        }
    }

    /// A failed transfer, sorted into "no room left" and all others.
    pub fn transfer(layer: &str, attempt: &'static str, source: io::Error) -> Self {
        let layer = layer.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { layer, source },
            _ => Self::Broken { layer, attempt, source },
        }
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OtherDevice { .. } | Self::BufferTooSmall { .. } => ErrorKind::Usage,
            Self::NoDriver { .. } | Self::NoDevice { .. } => ErrorKind::Missing,
            _ => ErrorKind::Storage,
        }
    }
}
