//! Errors of layers: what failed, and what to do about it.

use std::{io, ops::Range, path::PathBuf};

use crate::DeviceKind;
use outcrop_error::{ErrorKind, OfKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on which layer, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium has no space left, although the limit is not reached.
    #[error("{layer}: no space left on the medium: {source}; free some, or set a lower limit")]
    Full {
        /// The layer's name.
        layer: String,
        /// The system's error.
        source: io::Error,
    },
    /// A transfer failed.
    #[error("{layer}: cannot {attempt}: {source}")]
    Broken {
        /// The layer's name.
        layer: String,
        /// What was attempted.
        attempt: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A transfer is beyond the limit, or not aligned.
    #[error("{layer}: bytes {} to {} are not an aligned part of its {capacity} bytes", range.start, range.end)]
    OutOfRange {
        /// The layer's name.
        layer: String,
        /// The range requested.
        range: Range<u64>,
        /// The size of the layer.
        capacity: u64,
    },
    /// The requested memory is in use.
    #[error("{layer}: bytes {} to {} are in use", range.start, range.end)]
    InUse {
        /// The layer's name.
        layer: String,
        /// The range requested.
        range: Range<u64>,
    },
    /// The system provides no host memory.
    #[error("cannot reserve {bytes} bytes of host memory: {source}; set a lower limit (host)")]
    NoMemory {
        /// The bytes requested.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// There is no more memory at present. Touched memory remains usable.
    #[error("{layer}: no memory for {bytes} more bytes: {limit}; free some, or set a lower limit")]
    Exhausted {
        /// The layer's name.
        layer: String,
        /// The bytes requested.
        bytes: u64,
        /// How much there is, and what limits it.
        limit: String,
    },
    /// Shared memory must be touched before use.
    #[error("{layer}: bytes {} to {} have no memory yet; touch them first", range.start, range.end)]
    Untouched {
        /// The layer's name.
        layer: String,
        /// The range requested.
        range: Range<u64>,
    },
    /// A memory segment that processes share cannot be used.
    #[error("cannot share memory through {}: {reason}", path.display())]
    Segment {
        /// Its file.
        path: PathBuf,
        /// Why, and what to do.
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
        /// The bytes that this user may lock.
        limit_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// There is no driver for devices of this kind.
    #[error("no {kind} driver ({library}) on this machine: {reason}; install it, or do without such a device")]
    NoDriver {
        /// The kind of device.
        kind: DeviceKind,
        /// The driver library.
        library: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such device.
    #[error("no {kind} device {index} on this machine: there are {count}, counted from 0")]
    NoDevice {
        /// The kind of device.
        kind: DeviceKind,
        /// The requested index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The device has too little memory.
    #[error("{device}: cannot provide {bytes} bytes of device memory: {reason}; set a lower limit")]
    DeviceFull {
        /// The device's name.
        device: String,
        /// The bytes requested.
        bytes: u64,
        /// The driver's error.
        reason: String,
    },
    /// The device is lost, with everything that it held. Host memory is not affected.
    #[error("{device}: the device is lost, and what it held with it: {reason}; close it and open it again")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The driver's first error.
        reason: String,
    },
    /// Device memory must be touched before use.
    #[error("{layer}: bytes {} to {} are not all mapped yet; touch them first", range.start, range.end)]
    Unmapped {
        /// The layer's name.
        layer: String,
        /// The range requested.
        range: Range<u64>,
    },
    /// The range is not all inside the buffer.
    #[error("{device}: bytes {} to {} are not all in a buffer of {bytes} bytes", range.start, range.end)]
    BufferTooSmall {
        /// The device's name.
        device: String,
        /// The range requested.
        range: Range<u64>,
        /// The length of the buffer.
        bytes: u64,
    },
    /// The buffer belongs to another device.
    #[error("{device}: the buffer belongs to {other}; copy it by way of host memory")]
    OtherDevice {
        /// The device's name.
        device: String,
        /// The device that the buffer belongs to.
        other: String,
    },
    /// A directory cannot be used.
    #[error("cannot use directory {}: {attempt}: {source}; {remedy}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was attempted.
        attempt: &'static str,
        /// What to do.
        remedy: &'static str,
        /// The system's error.
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
    /// Converts an error of the memory of `layer`.
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

    /// A failed transfer: `Full` if there is no space left, otherwise `Broken`.
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
