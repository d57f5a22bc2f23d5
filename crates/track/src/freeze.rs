//! Copy-on-write images: memory as it was at one moment, while the program continues to write.

mod child;
mod choice;
mod protect;

use std::{
    fmt, io,
    ops::Range,
    time::{Duration, Instant},
};

use outcrop_memory::{Maps, pinned_by_others};

use crate::{
    Error, Result, process,
    ranges::{addresses, touched_pages},
};

pub use child::image_bytes;

use child::Child;
use protect::Protected;

/// How to freeze memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FreezeWay {
    /// The cheapest of the others that is possible.
    #[default]
    Chosen,
    /// A child process keeps the memory; the system copies a page when the program writes to it.
    /// Making the child takes longer the more memory the whole process has.
    Fork,
    /// The memory is write-protected, and a page is copied before the program may write to it. Each
    /// such write takes longer than with `Fork`. Needs permission to handle page faults of system
    /// calls (root, CAP_SYS_PTRACE, access to `/dev/userfaultfd`, or
    /// `vm.unprivileged_userfaultfd=1`), and memory that no [`Tracker`](crate::Tracker) watches
    /// through its pages. Refused while memory of this process is pinned (registered with io_uring
    /// or RDMA): hardware would write to it in spite of the protection.
    Protect,
}

impl fmt::Display for FreezeWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "the cheapest way",
            Self::Fork => "fork",
            Self::Protect => "write protection",
        })
    }
}

/// Options for freezing.
#[derive(Debug, Clone)]
pub struct FreezeOptions {
    /// The way.
    pub way: FreezeWay,
    /// The maximum of extra memory that the image may use. With `Fork` all of the memory must fit.
    /// With `Protect`, if this is used up, writes of the program wait until something is released.
    pub extra_bytes_max: u64,
    /// How long such a write waits while nothing is released. After that the image is given up, and
    /// the program continues.
    pub wait_max: Duration,
}

impl Default for FreezeOptions {
    fn default() -> Self {
        Self { way: FreezeWay::Chosen, extra_bytes_max: u64::MAX, wait_max: Duration::from_secs(60) }
    }
}

/// Where the image is.
enum Image {
    Child(Child),
    Protected(Protected),
}

/// Memory as it was when it was frozen. Can be read from any thread.
pub struct Frozen {
    image: Image,
    /// The length of each part.
    parts: Vec<usize>,
    generation: u64,
}

/// Makes an image of the parts of `memory` as they are now. The borrow guarantees that nobody
/// writes to them during the call. Afterwards the program may change them, and with `Fork` also
/// free them.
///
/// Only private anonymous memory can be frozen: that of the allocator, the stack, or `mmap`. Parts
/// that overlap are refused.
pub fn freeze(memory: &[&[u8]], options: FreezeOptions) -> Result<Frozen> {
    let unknown = |source| refused(FreezeWay::Chosen, "look at its maps", source);
    let maps = Maps::now().map_err(unknown)?;
    for (part, memory) in memory.iter().enumerate().filter(|(_, memory)| !memory.is_empty()) {
        if !maps.is_private_anonymous(&touched_pages(addresses(memory))).map_err(unknown)? {
            return Err(Error::NotPrivate { part });
        }
    }
    check_apart(memory)?;
    let image = match options.way {
        FreezeWay::Fork => fork(memory, &options)?,
        FreezeWay::Protect => protect(memory, &options)?,
        FreezeWay::Chosen => {
            let bytes = image_bytes(memory.iter().copied());
            let (first, second): (Freeze, Freeze) = match choice::choose(bytes, choice::page_table_bytes()) {
                FreezeWay::Protect => (protect, fork),
                _ => (fork, protect),
            };
            first(memory, &options).or_else(|reason| {
                tracing::debug!(%reason, "cannot freeze in the way that looked cheapest");
                second(memory, &options).map_err(|other| prefer(reason, other))
            })?
        }
    };
    Ok(Frozen { image, parts: memory.iter().map(|part| part.len()).collect(), generation: process::generation() })
}

/// Checks that no byte is in two parts: releasing one part would take it from the other.
fn check_apart(memory: &[&[u8]]) -> Result<()> {
    let mut parts: Vec<_> = (0..memory.len()).filter(|part| !memory[*part].is_empty()).collect();
    parts.sort_unstable_by_key(|part| memory[*part].as_ptr());
    let is_wrong = |pair: &&[usize]| addresses(memory[pair[0]]).end > addresses(memory[pair[1]]).start;
    match parts.windows(2).find(is_wrong) {
        Some(pair) => Err(Error::Overlap { part: pair[0].min(pair[1]), other: pair[0].max(pair[1]) }),
        None => Ok(()),
    }
}

type Freeze = fn(&[&[u8]], &FreezeOptions) -> Result<Image>;

fn fork(memory: &[&[u8]], options: &FreezeOptions) -> Result<Image> {
    let begin = Instant::now();
    let child = Child::new(memory, options.extra_bytes_max)?;
    choice::forked(choice::page_table_bytes(), begin.elapsed().as_nanos() as f64);
    Ok(Image::Child(child))
}

fn protect(memory: &[&[u8]], options: &FreezeOptions) -> Result<Image> {
    let begin = Instant::now();
    if pinned_by_others().is_ok_and(|bytes| bytes > 0) {
        let reason = io::Error::other("this process has pinned memory (VmPin), which hardware may write to unseen");
        return Err(refused(FreezeWay::Protect, "protect the memory", reason));
    }
    let protected = Protected::new(memory, options)?;
    choice::protected(image_bytes(memory.iter().copied()), begin.elapsed().as_nanos() as f64);
    Ok(Image::Protected(protected))
}

/// Of two errors, the one with more useful advice.
fn prefer(first: Error, second: Error) -> Error {
    match (first, second) {
        (Error::Bound { bytes, bytes_max, reason }, other) | (other, Error::Bound { bytes, bytes_max, reason }) => {
            Error::Bound { bytes, bytes_max, reason: format!("{reason}; and {other}") }
        }
        (first, _) => first,
    }
}

fn refused(way: FreezeWay, attempt: &'static str, source: impl Into<io::Error>) -> Error {
    let source = source.into();
    let remedy = match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "run as root, grant CAP_SYS_PTRACE, or set vm.unprivileged_userfaultfd and kernel.yama.ptrace_scope to allow it"
        }
        io::ErrorKind::ResourceBusy => "end watching it first, or freeze by fork",
        _ => "copy the memory instead",
    };
    Error::Refused { way, attempt, remedy, source }
}

impl Frozen {
    /// Reads bytes of part `part`, from byte `at` on.
    pub fn read(&self, part: usize, at: usize, into: &mut [u8]) -> Result<()> {
        self.check_process()?;
        let bytes = into.len();
        let is_inside = self.parts.get(part).is_some_and(|len| at.checked_add(bytes).is_some_and(|end| end <= *len));
        if !is_inside {
            return Err(Error::OutOfRange { part, at, bytes });
        }
        match &self.image {
            Image::Child(child) => child.read(part, at, into),
            Image::Protected(protected) => protected.read(part, at, into),
        }
    }

    /// Releases bytes that are not needed any more: their extra memory is freed, and writes that
    /// wait for it continue. Release in ascending order, because memory is freed in whole pages.
    pub fn release(&mut self, part: usize, range: Range<usize>) {
        let Some(bytes) = self.parts.get(part).copied() else { return };
        if self.check_process().is_err() || range.is_empty() {
            return;
        }
        let range = range.start.min(bytes)..range.end.min(bytes);
        match &mut self.image {
            Image::Child(child) => child.release(part, range),
            Image::Protected(protected) => protected.release(part, range),
        }
    }

    /// How it was made: `Fork` or `Protect`.
    pub fn way(&self) -> FreezeWay {
        match self.image {
            Image::Child(_) => FreezeWay::Fork,
            Image::Protected(_) => FreezeWay::Protect,
        }
    }

    /// The extra memory that it uses now. With `Fork` this is the private memory of the child, and
    /// asking the system for it takes time.
    pub fn extra_bytes(&self) -> u64 {
        match &self.image {
            _ if self.check_process().is_err() => 0,
            Image::Child(child) => child.extra_bytes(),
            Image::Protected(protected) => protected.extra_bytes(),
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.generation == process::generation() { Ok(()) } else { Err(Error::OtherProcess) }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let is_ours = self.check_process().is_ok();
        match &mut self.image {
            Image::Child(child) => child.end(is_ours),
            Image::Protected(protected) => protected.end(is_ours),
        }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("way", &self.way()).field("parts", &self.parts).finish()
    }
}
