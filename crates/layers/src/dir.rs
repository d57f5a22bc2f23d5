//! A directory of segment files.
//!
//! The layer's bytes are divided into segments. Each is a file that is created when it is first
//! written, and then overwritten in place as long as the layer exists: blocks that the file system
//! has written before take new bytes twice as fast as new blocks. Files are opened with O_DIRECT,
//! because the page cache would double the memory and hide late errors. The layer leaves no files:
//! [`Scratch`] removes them, even those of a program that was killed.

mod segments;

use std::{fmt, io, ops::Range, path::Path};

use outcrop_io::{Carrier, CarrierOptions, Direction, Method, Pieces};
use outcrop_local::Scratch;
use segments::Segments;

use crate::{Feed, Layer, Result, places, places::Places};

/// Options of a [`Dir`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirOptions {
    /// How to transfer bytes. Default: the environment variable `OUTCROP_IO` (`uring` or
    /// `blocking`); without it io_uring, if the system has it.
    pub method: Option<Method>,
    /// The length of a segment file. Default: 256 MiB.
    pub segment_bytes: u64,
    /// How many requests are in flight at once. Default: 32.
    pub depth: u32,
    /// The largest request. Default: the best length measured for the method.
    pub request_bytes: Option<u64>,
    /// Whether to bypass the page cache (O_DIRECT) if the file system supports it. Default: yes.
    pub direct: bool,
    /// Whether to register host memory with the kernel, which makes requests cheaper. Default: yes.
    pub register: bool,
}

impl Default for DirOptions {
    fn default() -> Self {
        let CarrierOptions { method, depth, request_bytes, register } = CarrierOptions::default();
        Self { method, segment_bytes: 256 << 20, depth, request_bytes, direct: true, register }
    }
}

/// A layer of segment files in a directory. Dropping it removes them.
pub struct Dir {
    name: String,
    capacity: u64,
    carrier: Carrier,
    segments: Segments,
}

impl Dir {
    /// Creates a layer in the directory `path`, which is created if it is missing. `capacity` is
    /// rounded up to the alignment; `u64::MAX` means no limit.
    pub fn open(path: &Path, capacity: u64, options: DirOptions) -> Result<Self> {
        let name = format!("dir {}", path.display());
        let capacity = crate::aligned(capacity);
        let DirOptions { method, depth, request_bytes, register, .. } = options;
        let carrier = places::carrier(path, &CarrierOptions { method, depth, request_bytes, register })?;
        let scratch = Scratch::open(path, segments::is_segment_name)?;
        Ok(Self { segments: Segments::new(name.clone(), scratch, capacity, &options), name, capacity, carrier })
    }

    /// The method in use.
    pub fn method(&self) -> Method {
        self.carrier.method()
    }

    /// The directory of this layer alone, inside the one that was given.
    pub fn path(&self) -> &Path {
        self.segments.path()
    }

    /// How many bytes of host memory are registered with the kernel at present.
    pub fn registered_bytes(&self) -> u64 {
        self.carrier.registered_bytes()
    }
}

impl Layer for Dir {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> Option<u64> {
        (self.capacity < crate::aligned(u64::MAX)).then_some(self.capacity)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        places::write(self, &self.carrier, at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        places::read(self, &self.carrier, at, bytes)
    }

    fn run(&self, feed: &mut dyn Feed) {
        places::run(self, &self.carrier, feed);
    }
}

impl Places for Dir {
    fn find(&self, range: &Range<u64>, direction: Direction, pieces: &mut Pieces) -> Result<()> {
        self.segments.find(range, direction, pieces)
    }

    fn settle(&self, ranges: &[Range<u64>], direction: Direction) -> io::Result<()> {
        self.segments.settle(ranges, direction)
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dir")
            .field("path", &self.path())
            .field("capacity", &self.capacity)
            .field("method", &self.method())
            .finish_non_exhaustive()
    }
}
