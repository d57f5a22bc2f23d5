//! The file of a pool: its pages, and which of them are in use.

use std::ops::Range;

use outcrop_format::{PAGE_BYTES, POOL_PAGES_MAX, PoolEntry, pool_check};

use crate::{Error, Medium, Result, space::Space};

/// A pool grows by at least so many pages.
const GROWTH_PAGES: u64 = 16;

pub(crate) struct PoolFile {
    pub(crate) medium: Box<dyn Medium>,
    pub(crate) location: String,
    pub(crate) space: Space,
    /// A write or a flush has failed: what the medium holds is not known.
    pub(crate) is_poisoned: bool,
}

impl PoolFile {
    /// Free pages. The pool grows if there are none.
    pub(crate) fn take(&mut self, pages: u64) -> Result<u64> {
        if let Some(page) = self.space.take(pages) {
            return Ok(page);
        }
        let now = self.space.pages();
        let more = pages.max(GROWTH_PAGES).max(now / 4);
        let longer = now.checked_add(more).filter(|pages| *pages <= POOL_PAGES_MAX);
        let longer = longer.ok_or_else(|| Error::Misfit(format!("the pool {} cannot grow further", self.location)))?;
        // If there is no room for a quarter more, there may be for what is needed.
        let grown = self.medium.grow(longer * PAGE_BYTES as u64);
        let grown = grown.map(|()| longer).or_else(|error| match now + pages {
            least if least < longer => self.medium.grow(least * PAGE_BYTES as u64).map(|()| least),
            _ => Err(error),
        });
        let pages_now = grown.map_err(|source| self.failed("grow", source))?;
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
        if entry.is_zeros() {
            into.fill(0);
            return Ok(());
        }
        self.read(entry.page() * PAGE_BYTES as u64, into)?;
        match pool_check(into) == entry.check() {
            true => Ok(()),
            false => {
                let problem = format!("the {} bytes at page {} have changed", into.len(), entry.page());
                Err(Error::Wrong { location: self.location.clone(), problem })
            }
        }
    }

    pub(crate) fn failed(&self, attempt: &'static str, source: std::io::Error) -> Error {
        Error::File { attempt, location: self.location.clone(), source }
    }
}
