//! A directory of files that survive: one file for each snapshot, under a name that its owner has chosen.
//!
//! As on every layer the plan decides how many bytes may be where, but here its places only stand for a file each. A file is
//! complete when it has been written and flushed; what it means, and whether anybody may rely on it, is for its owner to say.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Range,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::{
    Error, Extents, Feed, Layer, Result, Transfer,
    dir::{
        BLOCK_BYTES, BLOCK_BYTES_ALONE, Method, blocking, choose_method,
        flight::Flight,
        ring::Rings,
        segments::{Piece, Places, Segment},
    },
    files::{File, Files},
    host::check_range,
    layer::run_in_turn,
};

/// So many places: more than there is use for. What really fits is said by the medium and by the limit.
const CAPACITY: u64 = 1 << 60;

/// How many blocks are under way at once.
const DEPTH: u32 = 32;

/// A layer of named files in a directory.
pub struct Shelf {
    name: String,
    files: Arc<dyn Files>,
    limit_bytes: Option<u64>,
    /// Without: one block after the other.
    rings: Option<Rings>,
    books: RwLock<Books>,
}

/// What is on the shelf, as far as it was put there through the layer.
#[derive(Default)]
struct Books {
    /// The bytes of all files, also of those that were there before.
    used_bytes: u64,
    /// Of snapshots that are still to come.
    names: HashMap<u64, String>,
    by_key: HashMap<u64, Arc<Book>>,
    /// Start of a place to its end, the snapshot, and where in its file that is.
    by_place: BTreeMap<u64, (u64, u64, u64)>,
}

/// One file that is being written, or has been.
struct Book {
    name: String,
    bytes: u64,
    is_complete: AtomicBool,
    file: Arc<dyn File>,
    /// Its other side, for transfers past the page cache.
    segment: Option<Arc<Segment>>,
}

/// Where a place leads.
struct Found {
    key: u64,
    book: Arc<Book>,
    /// As far as it lies in this file.
    range: Range<u64>,
    /// Where in the file.
    at: u64,
}

impl Shelf {
    /// A layer of the files in `files`, called `name` in messages, that may hold `limit_bytes`.
    pub fn new(name: &str, files: Arc<dyn Files>, limit_bytes: Option<u64>) -> Result<Self> {
        let rings = Rings::new(DEPTH, true);
        let method = choose_method(name.as_ref(), None, &rings)?;
        let rings = (method == Method::Uring).then_some(rings);
        Ok(Self { name: name.to_owned(), files, limit_bytes, rings, books: RwLock::default() })
    }

    /// The bytes that it may hold, if that is limited.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Its files.
    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// Says under which name snapshot `key` is to be kept. Before it is written.
    pub fn name_file(&self, key: u64, name: String) {
        self.books_mut().names.insert(key, name);
    }

    /// Takes note of files that are there, or not any more, without the layer's doing.
    pub fn change_used(&self, by: i64) {
        let mut books = self.books_mut();
        books.used_bytes = books.used_bytes.saturating_add_signed(by);
    }

    /// The bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.books().used_bytes
    }

    fn books(&self) -> RwLockReadGuard<'_, Books> {
        self.books.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn books_mut(&self) -> RwLockWriteGuard<'_, Books> {
        self.books.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown(&self, attempt: &'static str) -> Error {
        self.failure(attempt, io::Error::new(io::ErrorKind::NotFound, "there is no file for this place"))
    }

    /// The file behind the beginning of `range`.
    fn find(&self, range: &Range<u64>) -> Option<Found> {
        let books = self.books();
        let (&start, &(end, key, at)) = books.by_place.range(..=range.start).next_back()?;
        let book = Arc::clone(books.by_key.get(&key).filter(|_| end > range.start)?);
        Some(Found { key, book, range: range.start..range.end.min(end), at: at + (range.start - start) })
    }

    /// Whether files here can be written past the page cache, which is the same for all of them.
    fn is_direct(&self, transfer: &Transfer) -> bool {
        let found = transfer.extents.first().and_then(|extent| self.find(extent));
        found.is_some_and(|found| found.book.segment.is_some())
    }

    fn make(&self, key: u64, bytes: u64) -> Result<Book> {
        let name = self.books_mut().names.remove(&key).ok_or_else(|| self.unknown("name"))?;
        let used_bytes = self.used_bytes();
        if self.limit_bytes.is_some_and(|limit| used_bytes.saturating_add(bytes) > limit) {
            let reason = format!("{used_bytes} bytes of the limit are used, and {bytes} more are needed");
            return Err(self.failure("make a file", io::Error::new(io::ErrorKind::StorageFull, reason)));
        }
        let file = self.files.create(&name, bytes).map_err(|source| self.failure("make a file", source))?;
        let direct = file.direct().map(|direct| direct.try_clone()).transpose();
        let direct = direct.map_err(|source| self.failure("open a file", source))?;
        if let Some(direct) = &direct {
            // A file that grows with every write is written one block after the other by some file systems. Measured on ext4 with
            // 32 blocks of 1 MiB under way: 1.8 GB/s growing, 2.5 GB/s with its length set first.
            rustix::fs::ftruncate(direct, bytes).map_err(|errno| self.failure("make a file", errno.into()))?;
        }
        let segment = direct.map(|direct| Arc::new(Segment::new(direct, true, bytes)));
        Ok(Book { name, bytes, is_complete: AtomicBool::new(false), file, segment })
    }

    fn segment(&self, piece: &Piece) -> Option<Arc<Segment>> {
        self.books().by_key.get(&piece.segment).and_then(|book| book.segment.clone())
    }
}

impl Layer for Shelf {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut range = at..at.saturating_add(bytes.len() as u64);
        check_range(&self.name, &range, CAPACITY)?;
        while !range.is_empty() {
            let found = self.find(&range).ok_or_else(|| self.unknown("write"))?;
            let part = &bytes[(found.range.start - at) as usize..(found.range.end - at) as usize];
            match found.book.segment {
                Some(_) => blocking::write(self, BLOCK_BYTES_ALONE, found.range.start, part)?,
                None => found.book.file.write_at(found.at, part).map_err(|source| self.failure("write", source))?,
            }
            range.start = found.range.end;
        }
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let mut range = at..at.saturating_add(bytes.len() as u64);
        check_range(&self.name, &range, CAPACITY)?;
        while !range.is_empty() {
            let found = self.find(&range).ok_or_else(|| self.unknown("read"))?;
            let part = &mut bytes[(found.range.start - at) as usize..(found.range.end - at) as usize];
            match found.book.segment {
                Some(_) => blocking::read(self, BLOCK_BYTES_ALONE, found.range.start, part)?,
                None => found.book.file.read_at(found.at, part).map_err(|source| self.failure("read", source))?,
            }
            range.start = found.range.end;
        }
        Ok(())
    }

    fn run(&self, feed: &mut dyn Feed) {
        let Some(first) = feed.next() else { return };
        let is_direct = self.is_direct(&first);
        let mut feed = Peeked { first: Some(first), feed };
        match self.rings.as_ref().filter(|_| is_direct).map(|rings| (rings, rings.take())) {
            Some((rings, Ok(mut ring))) => {
                Flight::new(&self.name, CAPACITY, self, &mut ring, BLOCK_BYTES, rings.depth()).run(&mut feed);
                rings.give(ring);
            }
            Some((_, Err(error))) => {
                tracing::warn!(layer = self.name, %error, "no further io_uring: this run goes without");
                run_in_turn(self, &mut feed);
            }
            None => run_in_turn(self, &mut feed),
        }
    }

    fn begin(&self, key: u64, extents: &Extents) -> Result<()> {
        let bytes = extents.iter().map(|place| place.end - place.start).sum();
        let book = self.make(key, bytes)?;
        let mut books = self.books_mut();
        books.used_bytes += bytes;
        books.by_key.insert(key, Arc::new(book));
        let mut at = 0;
        for place in extents {
            books.by_place.insert(place.start, (place.end, key, at));
            at += place.end - place.start;
        }
        Ok(())
    }

    fn complete(&self, key: u64) -> Result<()> {
        let book = self.books().by_key.get(&key).cloned().ok_or_else(|| self.unknown("complete"))?;
        book.file.sync().map_err(|source| self.failure("flush a file", source))?;
        book.is_complete.store(true, Relaxed);
        Ok(())
    }

    fn forget(&self, key: u64) {
        let mut books = self.books_mut();
        let Some(book) = books.by_key.remove(&key) else { return };
        books.by_place.retain(|_, (_, owner, _)| *owner != key);
        if book.is_complete.load(Relaxed) {
            return;
        }
        books.used_bytes -= book.bytes;
        drop(books);
        if let Err(error) = self.files.remove(&book.name) {
            tracing::warn!(layer = self.name, name = book.name, %error, "cannot remove a file that was not written whole");
        }
    }
}

impl Places for Shelf {
    fn first_piece(&self, range: &Range<u64>, bytes_max: u64) -> Piece {
        // What is not there is refused when it is asked for.
        let (key, at, end) =
            self.find(range).map_or((u64::MAX, 0, range.end), |found| (found.key, found.at, found.range.end));
        Piece { segment: key, at, bytes: (end - range.start).min(bytes_max) }
    }

    fn for_reading(&self, piece: &Piece) -> Result<Arc<Segment>> {
        self.segment(piece).ok_or_else(|| self.unknown("read"))
    }

    fn for_writing(&self, piece: &Piece) -> Result<Arc<Segment>> {
        self.segment(piece).ok_or_else(|| self.unknown("write"))
    }

    fn failure(&self, attempt: &'static str, source: io::Error) -> Error {
        Error::transfer(&self.name, attempt, source)
    }
}

/// A feed whose first transfer has been looked at.
struct Peeked<'feed> {
    first: Option<Transfer>,
    feed: &'feed mut dyn Feed,
}

impl Feed for Peeked<'_> {
    fn next(&mut self) -> Option<Transfer> {
        self.first.take().or_else(|| self.feed.next())
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        self.feed.done(transfer, result);
    }
}
