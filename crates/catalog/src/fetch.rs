//! Reads stored blocks, many at a time, and verifies each of them.

use std::{fmt, io, ops::Range, sync::Mutex, thread};

use outcrop_format::{Decoder, HashKind, Place, Stored};

use crate::{
    buffer::Buffer,
    open::again,
    pack::{Pack, is_damage},
};

/// The default amount of work for one thread at a time.
pub(crate) const WINDOW_BYTES: u64 = 8 << 20;
/// Blocks that are closer to each other than this are read together with the bytes between them,
/// because that takes less time than another read.
const GAP_BYTES_MAX: u64 = 256 << 10;
/// The number of threads that read, verify and copy. It does not depend on the number of cores,
/// because most threads wait for the medium. Measured on two busy cores with 1 GiB, as a ratio to
/// reading one file in pieces of 16 MiB: 2 threads and 4 MiB, 0.5 to 0.7; 8 threads and 2 MiB, 0.8;
/// 8 threads and 1 MiB, 1.0.
const THREADS: usize = 8;

/// How much of `bytes` one thread works on at a time. With more, more blocks of one pack can be
/// read together. With less, the work is spread more evenly over the threads.
pub(crate) fn window_bytes(bytes: u64) -> u64 {
    (bytes / 16).clamp(WINDOW_BYTES / 4, WINDOW_BYTES * 4)
}

/// A block to read.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The caller's number for it.
    pub(crate) tag: usize,
    /// The pack whose file contains it.
    pub(crate) pack: &'a Pack,
    pub(crate) place: Place,
    pub(crate) hash_kind: HashKind,
}

/// A block that was read, and whose hash matches.
pub(crate) struct Fetched<'a> {
    /// Its bytes as they are stored.
    pub(crate) stored: &'a [u8],
    /// Its bytes.
    pub(crate) plain: &'a [u8],
}

/// Why a block could not be read.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Its bytes are missing, or not what was saved.
    Changed(String),
    /// It could not be read, so nobody knows whether it is damaged.
    Unread(io::Error),
}

impl Problem {
    fn of(error: &io::Error) -> Self {
        match is_damage(error) {
            true => Self::Changed(format!("cannot be read: {error}")),
            false => Self::Unread(again(error)),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(problem) => f.write_str(problem),
            Self::Unread(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

/// The memory that one thread works with.
#[derive(Default)]
pub(crate) struct Fetcher {
    buffer: Buffer,
    plain: Vec<u8>,
    decoder: Decoder,
}

impl Fetcher {
    /// Reads blocks, in any order. Passes each of them, or what is wrong with it, to `take`.
    pub(crate) fn fetch(
        &mut self,
        wanted: &mut [Wanted<'_>],
        mut take: impl FnMut(usize, Result<Fetched<'_>, Problem>),
    ) {
        wanted.sort_unstable_by_key(|block| (block.pack.id, block.place.at));
        let mut rest = &*wanted;
        while let [first, ..] = rest {
            let file = first.pack.file();
            let (count, range) = read_together(rest, file.as_ref().map_or(1, |file| file.read_bytes()));
            let (together, others) = rest.split_at(count);
            rest = others;
            match file.and_then(|file| self.buffer.read(&*file, range.clone())) {
                Ok(bytes) => {
                    for block in together {
                        let stored = block.place.range();
                        let stored = &bytes[(stored.start - range.start) as usize..(stored.end - range.start) as usize];
                        let plain = checked(&mut self.decoder, &mut self.plain, block, stored);
                        take(block.tag, plain.map(|plain| Fetched { stored, plain }).map_err(Problem::Changed));
                    }
                }
                Err(error) => {
                    for block in together {
                        take(block.tag, Err(Problem::of(&error)));
                    }
                }
            }
        }
    }

    /// The first byte in `range` of a pack that is not zero, if any.
    pub(crate) fn first_not_zero(&mut self, pack: &Pack, range: Range<u64>) -> Result<Option<u64>, Problem> {
        let file = pack.file().map_err(|error| Problem::of(&error))?;
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at + file.read_bytes());
            let bytes = self.buffer.read(&*file, piece.clone()).map_err(|error| Problem::of(&error))?;
            if let Some(found) = bytes.iter().position(|&byte| byte != 0) {
                return Ok(Some(at + found as u64));
            }
            at = piece.end;
        }
        Ok(None)
    }
}

/// How many of these blocks to read at once, and their range in the file. It has at most
/// `bytes_max` bytes, unless one block is longer.
fn read_together(blocks: &[Wanted<'_>], bytes_max: u64) -> (usize, Range<u64>) {
    let mut range = blocks[0].place.range();
    let mut count = 1;
    for block in &blocks[1..] {
        let next = block.place.range();
        let end = range.end.max(next.end);
        let is_near = next.start <= range.end.saturating_add(GAP_BYTES_MAX);
        if block.pack.id != blocks[0].pack.id || !is_near || end - range.start > bytes_max {
            break;
        }
        range.end = end;
        count += 1;
    }
    (count, range)
}

/// The plain bytes of a block, if its hash matches.
fn checked<'a>(
    decoder: &mut Decoder,
    plain: &'a mut Vec<u8>,
    block: &Wanted<'_>,
    stored: &'a [u8],
) -> Result<&'a [u8], String> {
    let Place { coding, plain_bytes, hash, stored: Stored { check, .. }, .. } = block.place;
    let bytes = if coding.is_raw() {
        stored
    } else {
        plain.resize(plain_bytes as usize, 0);
        decoder.decode(coding, check, stored, plain).map_err(|error| error.to_string())?;
        plain
    };
    match block.hash_kind.hash(bytes) == hash {
        true => Ok(bytes),
        false => Err(format!("its {} hash does not match the saved one", block.hash_kind)),
    }
}

/// Distributes `work`, of at most `items_max` items, among threads until none is left.
pub(crate) fn share<W: Send>(
    work: impl Iterator<Item = W> + Send,
    items_max: u64,
    each: impl Fn(&mut Fetcher, W) + Sync,
) {
    let threads = THREADS.min(items_max.max(1) as usize);
    let work = Mutex::new(work);
    let serve = || {
        let mut fetcher = Fetcher::default();
        while let Some(item) = next(&work) {
            each(&mut fetcher, item);
        }
    };
    if threads == 1 {
        return serve();
    }
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(serve);
        }
        serve();
    });
}

/// The next piece of work; `None` also if another thread has panicked while it took one.
fn next<W>(work: &Mutex<impl Iterator<Item = W>>) -> Option<W> {
    work.lock().ok()?.next()
}
