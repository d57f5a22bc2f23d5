//! A directory of segment files.
//!
//! The layer's bytes are cut into segments, each a file of its own that is made when it is first
//! written to and then overwritten in place for as long as the layer lives: the file system's
//! blocks that were written before take new bytes twice as fast as new ones. Files are opened past
//! the page cache, which would double the memory and hide late errors. Nothing outlives the layer:
//! [`Scratch`] removes it, also for a program that was killed.

mod segments;

use std::{fmt, io, ops::Range, path::Path};

use outcrop_io::{Carrier, CarrierOptions, Direction, Method, Pieces};
use outcrop_local::Scratch;
use segments::Segments;

use crate::{Feed, Layer, Result, places, places::Places};

/// What can be chosen for a [`Dir`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirOptions {
    /// How bytes are moved. Default: what the environment variable `OUTCROP_IO` says (`uring` or
    /// `blocking`), else io_uring where the system has it.
    pub method: Option<Method>,
    /// The length of a segment file. Default: 256 MiB.
    pub segment_bytes: u64,
    /// How many requests are in flight at once. Default: 32.
    pub depth: u32,
    /// The most that one request moves. Default: what was measured to be best for the method.
    pub request_bytes: Option<u64>,
    /// Whether to bypass the page cache where the file system can. Default: yes.
    pub direct: bool,
    /// Whether to register host memory with the kernel, which spares it work at each request.
    /// Default: yes.
    pub register: bool,
}

impl Default for DirOptions {
    fn default() -> Self {
        let CarrierOptions { method, depth, request_bytes, register } = CarrierOptions::default();
        Self { method, segment_bytes: 256 << 20, depth, request_bytes, direct: true, register }
    }
}

/// A layer of segment files in a directory, removed when it is dropped.
pub struct Dir {
    name: String,
    capacity: u64,
    carrier: Carrier,
    segments: Segments,
}

impl Dir {
    /// Makes a layer of `capacity` bytes, rounded up to whole units, or `u64::MAX` for no limit, in
    /// the directory `path`, which is made if missing.
    pub fn open(path: &Path, capacity: u64, options: DirOptions) -> Result<Self> {
        let name = format!("dir {}", path.display());
        let capacity = crate::aligned(capacity);
        let DirOptions { method, depth, request_bytes, register, .. } = options;
        let carrier = places::carrier(path, &CarrierOptions { method, depth, request_bytes, register })?;
        let scratch = Scratch::open(path, segments::is_segment_name)?;
        Ok(Self { segments: Segments::new(name.clone(), scratch, capacity, &options), name, capacity, carrier })
    }

    /// How bytes are moved.
    pub fn method(&self) -> Method {
        self.carrier.method()
    }

    /// The directory of this layer alone, inside the one that was given.
    pub fn path(&self) -> &Path {
        self.segments.path()
    }

    /// How much host memory is registered with the kernel at present.
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

    fn settle(&self, range: &Range<u64>, direction: Direction) -> io::Result<()> {
        self.segments.settle(range, direction)
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
