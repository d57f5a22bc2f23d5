//! Carries transfers out, by one of two methods.

use std::{env, ffi::OsString, fmt, io, sync::Arc};

use crate::{ALIGN, Feed, File, Memory, blocking, flight::Flight, ring::Rings};

/// The best request lengths, with many requests in flight and with one. Measured on ext4 in a
/// virtual machine, in GB/s written anew / overwritten / read, and relative to one file that was
/// written and read in calls of 32 MiB in the same run:
///
/// | request | ring, 32 in flight | of that file | alone | of that file |
/// |---|---|---|---|---|
/// | 256 KiB | 1.2 / 2.8 / 3.2 | 53 / 84 / 83 % | 0.1 / 2.3 / 2.3 | 4 / 68 / 60 % |
/// | 1 MiB | 2.5 / 3.8 / 4.4 | 110 / 104 / 115 % | 1.9 / 3.1 / 3.2 | 83 / 84 / 84 % |
/// | 4 MiB | 2.5 / 3.4 / 3.1 | 96 / 106 / 91 % | 1.9 / 2.2 / 2.9 | 73 / 68 / 83 % |
/// | 16 MiB | 3.0 / 4.2 / 4.5 | 98 / 94 / 91 % | 2.8 / 4.5 / 4.9 | 92 / 101 / 99 % |
const REQUEST_BYTES: u64 = 1 << 20;
const REQUEST_BYTES_ALONE: u64 = 16 << 20;

/// The largest number of requests in flight, and the longest request: more than is useful, but
/// within the kernel's limits.
const DEPTH_MAX: u32 = 4096;
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// The environment variable that chooses the [`Method`] if the program does not.
const METHOD_VARIABLE: &str = "OUTCROP_IO";

/// How to transfer bytes to and from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Many concurrent requests, through io_uring.
    Uring,
    /// One request after the other, through pread and pwrite.
    Blocking,
}

/// Options of a [`Carrier`].
#[derive(Debug, Clone)]
pub struct CarrierOptions {
    /// How to transfer bytes. Default: the environment variable `OUTCROP_IO` (`uring` or
    /// `blocking`); without it io_uring, if the system has it.
    pub method: Option<Method>,
    /// How many requests are in flight at once. Default: 32.
    pub depth: u32,
    /// The largest request. Default: the best length measured for the method.
    pub request_bytes: Option<u64>,
    /// Whether to register memory with the kernel, which makes requests cheaper. Default: yes.
    pub register: bool,
}

impl Default for CarrierOptions {
    fn default() -> Self {
        Self { method: None, depth: 32, request_bytes: None, register: true }
    }
}

/// Why a carrier could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The program or the environment requests io_uring, and it cannot be used.
    #[error(
        "set up io_uring: {0}; let this program use io_uring (sysctl kernel.io_uring_disabled, seccomp), or set \
         OUTCROP_IO=blocking"
    )]
    NoUring(io::Error),
    /// The environment variable has an unknown value.
    #[error("read the environment variable OUTCROP_IO: {0:?} is not known; set it to uring or blocking, or unset it")]
    UnknownMethod(OsString),
}

/// Carries transfers out. Many threads can use it at once. Each `run` has its own ring.
pub struct Carrier {
    method: Method,
    request_bytes: u64,
    /// As `request_bytes`, if only one request is in flight.
    request_bytes_alone: u64,
    rings: Rings,
}

impl Carrier {
    /// Chooses the method, and creates the first ring if the method needs one.
    pub fn new(options: &CarrierOptions) -> Result<Self, SetupError> {
        let rings = Rings::new(options.depth.clamp(1, DEPTH_MAX), options.register);
        let method = choose_method(options.method, &rings)?;
        let request_bytes = |best: u64| {
            let bytes = options.request_bytes.unwrap_or(best).clamp(1, REQUEST_BYTES_MAX);
            bytes.next_multiple_of(ALIGN)
        };
        Ok(Self {
            method,
            request_bytes: request_bytes(REQUEST_BYTES),
            request_bytes_alone: request_bytes(REQUEST_BYTES_ALONE),
            rings,
        })
    }

    /// The method in use.
    pub fn method(&self) -> Method {
        self.method
    }

    /// How many bytes are registered with the kernel at present.
    pub fn registered_bytes(&self) -> u64 {
        self.rings.registered_bytes()
    }

    /// Carries out all transfers of `feed`, and returns when it has no more and all have ended.
    ///
    /// The feed may be slow: requests in flight continue meanwhile. If it panics, this waits for
    /// all transfers before it releases their memory.
    pub fn run<M: Memory>(&self, feed: &mut dyn Feed<M>) {
        match self.method {
            Method::Blocking => blocking::run(feed, self.request_bytes_alone),
            Method::Uring => match self.rings.take() {
                Ok(mut ring) => {
                    Flight::new(&mut ring, self.request_bytes, self.rings.depth()).run(feed);
                    self.rings.give(ring);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot create another io_uring: this run uses blocking calls");
                    blocking::run(feed, self.request_bytes_alone);
                }
            },
        }
    }

    /// Writes `bytes` to `file` at `offset`, in this thread. With O_DIRECT, offset and length must
    /// be multiples of [`ALIGN`]; unaligned memory is copied first.
    pub fn write(&self, file: &Arc<File>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        blocking::write(file, offset, bytes, self.request_bytes_alone)
    }

    /// Fills `bytes` from `file` at `offset`, in this thread, by the same rules. Returns
    /// `UnexpectedEof` if the file is too short.
    pub fn read(&self, file: &Arc<File>, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        blocking::read(file, offset, bytes, self.request_bytes_alone)
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carrier({:?})", self.method)
    }
}

/// The method that the program requests, otherwise the environment, otherwise io_uring if
/// available. If it is io_uring, the first ring exists afterwards.
fn choose_method(option: Option<Method>, rings: &Rings) -> Result<Method, SetupError> {
    let asked = option.map_or_else(|| method_of(env::var_os(METHOD_VARIABLE)), |method| Ok(Some(method)))?;
    if asked == Some(Method::Blocking) {
        return Ok(Method::Blocking);
    }
    match (rings.take(), asked) {
        (Ok(ring), _) => {
            rings.give(ring);
            Ok(Method::Uring)
        }
        (Err(error), Some(_)) => Err(SetupError::NoUring(error)),
        (Err(error), None) => {
            tracing::info!(%error, "io_uring is not available: files are read and written by blocking calls");
            Ok(Method::Blocking)
        }
    }
}

/// Parses the value of the environment variable.
fn method_of(value: Option<OsString>) -> Result<Option<Method>, SetupError> {
    let Some(value) = value else { return Ok(None) };
    match value.to_str() {
        Some("uring") => Ok(Some(Method::Uring)),
        Some("blocking") => Ok(Some(Method::Blocking)),
        _ => Err(SetupError::UnknownMethod(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_understood() {
        assert_eq!(method_of(None).unwrap(), None);
        assert_eq!(method_of(Some("uring".into())).unwrap(), Some(Method::Uring));
        assert_eq!(method_of(Some("blocking".into())).unwrap(), Some(Method::Blocking));
        for nonsense in ["", "Uring", "aio"] {
            let error = method_of(Some(nonsense.into())).unwrap_err().to_string();
            assert!(error.contains(&format!("{nonsense:?}")) && error.contains("uring or blocking"), "{error}");
        }
    }
}
