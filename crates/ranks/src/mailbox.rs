//! Mailboxes as files: one rank appends to its own, the others read what is new in it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use outcrop_format::{HELLO_BYTES, Hello, RECORD_HEAD_BYTES, Record, RecordHead};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

/// So much is read at once, unless a record is longer.
const READ_BYTES: usize = 64 << 10;

/// How much another rank reads before it says so, and how much is freed at once.
pub(crate) const READ_EVERY_BYTES: u64 = 1 << 20;

/// The mailbox of this rank.
pub(crate) struct Outbox {
    file: File,
    /// Where the next record begins. One that could not be written whole is written over by the
    /// next.
    end: u64,
    /// The memory or disk of all bytes before this one has been given back.
    freed: u64,
}

impl Outbox {
    /// Makes a mailbox in place of the one that an earlier run may have left.
    pub(crate) fn make(path: &Path, hello: &Hello) -> io::Result<Self> {
        // Under another name first, so that nobody reads the beginning of a file that is not there
        // yet.
        let draft = path.with_extension("draft");
        let file = File::create(&draft)?;
        file.write_all_at(&hello.encode(), 0)?;
        fs::rename(&draft, path)?;
        Ok(Self { file, end: HELLO_BYTES as u64, freed: 0 })
    }

    /// Adds a record.
    pub(crate) fn add(&mut self, record: &Record<'_>) -> io::Result<()> {
        let bytes = record.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// All others have read up to here: what lies before it is not needed any more.
    pub(crate) fn free_up_to(&mut self, read: u64) {
        // Never the beginning, which tells others whose it is.
        let (from, to) = (self.freed.max(HELLO_BYTES as u64), read.min(self.end));
        if to.saturating_sub(from) < READ_EVERY_BYTES {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, hole, from, to - from) {
            Ok(()) => self.freed = to,
            // Asked for again with the next.
            Err(Errno::INTR) => {}
            // The file system cannot: the mailbox grows.
            Err(_) => self.freed = u64::MAX,
        }
    }
}

/// The mailbox of another rank.
pub(crate) struct Inbox {
    file: File,
    hello: Hello,
    /// Where the next record begins.
    at: u64,
    /// Up to where its owner has been told that it was read.
    told: u64,
}

impl Inbox {
    /// Opens a mailbox; nothing if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = [0; HELLO_BYTES];
        let read = read_up_to(&file, 0, &mut bytes)?;
        let hello = Hello::decode(&bytes[..read]).map_err(invalid)?;
        Ok(Some(Self { file, hello, at: HELLO_BYTES as u64, told: 0 }))
    }

    /// How it begins.
    pub(crate) fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Gives all records that are new and complete to `take`, in order.
    ///
    /// An error if the next one is not what was written. On a shared file system that may change:
    /// its length can be seen before its bytes. So whoever gets it looks again, and gives up when
    /// it has waited long enough.
    pub(crate) fn read(&mut self, mut take: impl FnMut(Record<'_>)) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let left = self.file.metadata()?.len().saturating_sub(self.at);
            if left < RECORD_HEAD_BYTES as u64 {
                return Ok(());
            }
            buffer.resize(READ_BYTES.min(left as usize), 0);
            let mut count = read_up_to(&self.file, self.at, &mut buffer)?;
            if count < RECORD_HEAD_BYTES {
                return Ok(());
            }
            // One record at least, if it is all there.
            let whole = RECORD_HEAD_BYTES + RecordHead::decode(&buffer).map_err(invalid)?.body_bytes() as usize;
            if whole as u64 > left {
                return Ok(());
            }
            if whole > count {
                buffer.resize(whole, 0);
                count = read_up_to(&self.file, self.at, &mut buffer)?;
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                match Record::decode(rest) {
                    Ok((record, bytes)) => {
                        take(record);
                        self.at += bytes as u64;
                        rest = &rest[bytes..];
                    }
                    Err(outcrop_format::Error::Short { .. }) => break,
                    Err(error) => return Err(invalid(error)),
                }
            }
            // Nothing of what was read is a whole record: it is still being written.
            if rest.len() == count {
                return Ok(());
            }
        }
    }

    /// What its owner has to be told about how far it was read, if it is time for it.
    pub(crate) fn due(&self) -> Option<Record<'static>> {
        let is_due = self.at >= self.told + READ_EVERY_BYTES;
        is_due.then_some(Record::Read { rank: self.hello.rank, end: self.at })
    }

    /// Its owner has been told.
    pub(crate) fn told(&mut self) {
        self.told = self.at;
    }

    /// Begins with the first record again.
    pub(crate) fn rewind(&mut self) {
        self.at = HELLO_BYTES as u64;
    }

    /// Whether `path` leads to another file by now: that of a later run.
    pub(crate) fn is_replaced(&self, path: &Path) -> io::Result<bool> {
        let here = self.file.metadata()?;
        match fs::metadata(path) {
            Ok(there) => Ok((there.dev(), there.ino()) != (here.dev(), here.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

fn read_up_to(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], at + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

fn invalid(error: outcrop_format::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
