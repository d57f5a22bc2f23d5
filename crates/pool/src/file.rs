//! The file of a pool: its pages, and which of them are in use.

use std::{io::ErrorKind, ops::Range, os::fd::BorrowedFd, sync::Arc};

use outcrop_format::{PAGE_BYTES, POOL_PAGES_MAX, PoolEntry, pool_check};

use crate::{Error, Medium, Result, medium::OfThisCrate, space::Space};

/// A pool grows by at least so many pages, and by what it expects to need.
const GROWTH_PAGES: u64 = 16;

pub(crate) struct PoolFile {
    /// Shared with threads that write.
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) location: String,
    pub(crate) space: Space,
    /// It grows to at most so many pages.
    pub(crate) pages_max: u64,
    /// At most so many pages are taken for what has changed: to grow once takes one flush.
    pub(crate) expected_pages: u64,
    /// A write or a flush has failed: what the medium holds is not known.
    pub(crate) is_poisoned: bool,
}

impl PoolFile {
    /// Free pages. The pool grows if there are none.
    pub(crate) fn take(&mut self, pages: u64) -> Result<u64> {
        let expected = self.expected_pages.max(pages);
        self.expected_pages = expected - pages;
        if let Some(page) = self.space.take(pages) {
            return Ok(page);
        }
        let now = self.space.pages();
        let pages_max = self.pages_max.min(POOL_PAGES_MAX);
        let Some(least) = now.checked_add(pages).filter(|least| *least <= pages_max) else {
            let reason = format!("it has reached its limit of {} bytes", pages_max * PAGE_BYTES as u64);
            return Err(Error::Full { location: self.location.clone(), reason });
        };
        // A page of entries is for 256 blocks; there is the list of structures, too.
        let more = expected.saturating_add(expected / 128 + GROWTH_PAGES).max(now / 4);
        let longer = now.saturating_add(more).min(pages_max);
        // If there is no room for so much more, there may be for what is needed.
        let grown = self.medium.grow(longer * PAGE_BYTES as u64);
        let grown = grown.map(|()| longer).or_else(|error| match least < longer && is_full(&error) {
            true => self.medium.grow(least * PAGE_BYTES as u64).map(|()| least),
            false => Err(error),
        });
        let pages_now = grown.map_err(|source| match is_full(&source) {
            true => Error::Full { location: self.location.clone(), reason: source.to_string() },
            false => self.failed("grow", source),
        })?;
        self.space.grow(pages_now);
        self.space.take(pages).ok_or_else(|| Error::Misfit("a pool that has grown has no room".to_owned()))
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.medium.write(at, bytes).map_err(|source| self.failed("write to", source))
    }

    pub(crate) fn flush(&mut self, ranges: &[Range<u64>]) -> Result<()> {
        let flushed = self.medium.flush(ranges);
        self.is_poisoned |= flushed.is_err();
        flushed.map_err(|source| self.failed("flush", source))
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.medium.read(at, into).map_err(|source| self.failed("read", source))
    }

    /// The descriptor, if the file can be mapped.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.medium.file(OfThisCrate)
    }

    /// The entries of a page, if they are what was written.
    pub(crate) fn entries(&self, entry: PoolEntry) -> Result<Vec<PoolEntry>> {
        let mut page = [0; PAGE_BYTES];
        self.read_checked(entry, &mut page)?;
        let entries = PoolEntry::decode_page(&page);
        let damaged = |source| Error::Damaged { location: self.location.clone(), source };
        Ok(entries.map_err(damaged)?.to_vec())
    }

    /// Reads what an entry refers to, and compares its checksum.
    pub(crate) fn read_checked(&self, entry: PoolEntry, into: &mut [u8]) -> Result<()> {
        read_checked(&*self.medium, &self.location, entry, into)
    }

    pub(crate) fn failed(&self, attempt: &'static str, source: std::io::Error) -> Error {
        Error::File { attempt, location: self.location.clone(), source }
    }
}

/// Whether a medium has no more room.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Reads what an entry refers to, and compares its checksum.
pub(crate) fn read_checked(medium: &dyn Medium, location: &str, entry: PoolEntry, into: &mut [u8]) -> Result<()> {
    if entry.is_zeros() {
        into.fill(0);
        return Ok(());
    }
    let read = medium.read(entry.page() * PAGE_BYTES as u64, into);
    read.map_err(|source| Error::File { attempt: "read", location: location.to_owned(), source })?;
    match pool_check(into) == entry.check() {
        true => Ok(()),
        false => {
            let problem = format!("the {} bytes at page {} have changed", into.len(), entry.page());
            Err(Error::Wrong { location: location.to_owned(), problem })
        }
    }
}
