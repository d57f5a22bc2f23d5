//! Dirty tracking of named regions of memory, each in the cheapest way.

use std::{
    collections::HashMap,
    fmt, io,
    ops::Range,
    time::{Duration, Instant},
};

use outcrop_memory::pinned_by_others;

use crate::{
    estimate::{self, Estimate, Reason, Seen, Watch},
    overlaps::Overlaps,
    pages::{self, Pages},
    process,
    protection::{self, Protection},
    ranges::{addresses, block_bytes_of, page_bytes, shared, tidy, whole_pages},
    received::Received,
};

/// How changes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Way {
    /// The cheapest of the others for each region, as measured while the program runs.
    #[default]
    Chosen,
    /// The kernel records dirty pages (userfaultfd and PAGEMAP_SCAN, Linux 6.7), including those
    /// written by system calls and other threads. Shared memory and mapped files count as changed,
    /// because they can change without a write to these pages.
    Pages,
    /// Memory is read-only (`mprotect`), and a signal handler records writes. **A system call that
    /// writes to watched memory fails with EFAULT**, and the memory must not be moved or discarded
    /// (`realloc`, `mremap`, `madvise`) before [`Tracker::stop`].
    Protection,
    /// Nothing is watched: all memory counts as changed.
    Everything,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "chosen",
            Self::Pages => "pages",
            Self::Protection => "protection",
            Self::Everything => "everything",
        })
    }
}

/// Options of a [`Tracker`].
#[derive(Debug, Clone)]
pub struct TrackOptions {
    /// How changes are found. Memory that cannot be watched in this way counts as changed.
    pub way: Way,
    /// The size of the blocks that the program hashes. For one dirty page it hashes a whole block.
    pub block_bytes: usize,
    /// Whether `Way::Chosen` may use `Way::Protection` if `Way::Pages` is not possible.
    pub allow_protection: bool,
    /// Whether the program reports with [`Tracker::mark_dirty`] everything that hardware or the
    /// system writes to pinned memory. If not, nothing is watched while memory of this process is
    /// pinned by others than Outcrop.
    pub marks_pinned: bool,
}

impl Default for TrackOptions {
    fn default() -> Self {
        Self { way: Way::Chosen, block_bytes: 64 << 10, allow_protection: false, marks_pinned: false }
    }
}

/// What may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The changed bytes, as ascending ranges with gaps between them. They always include the first
    /// and last page of the memory if only part of the page belongs to it.
    pub ranges: Vec<Range<usize>>,
    /// Whether this is all of the memory.
    pub is_everything: bool,
    /// How they were found: `Pages`, `Protection` or `Everything`.
    pub way: Way,
}

/// Statistics of a region.
#[derive(Debug, Clone)]
pub struct TrackStats {
    /// How it is watched until the next call.
    pub way: Way,
    /// Why, as a sentence.
    pub reason: String,
    /// The time of the last start of watching, in nanoseconds.
    pub arm_ns: u64,
    /// The time of the last search for dirty pages, in nanoseconds.
    pub collect_ns: u64,
    /// How many of the watched pages were dirty at the last search.
    pub written_pages: usize,
    /// How many pages were watched then.
    pub watched_pages: usize,
    /// The estimated cost of the first write to a watched page (or granule) for the program, in
    /// nanoseconds.
    pub write_ns: f64,
}

/// How a region is watched at present.
enum Guard {
    Nothing,
    Sample(Vec<Range<usize>>),
    Pages,
    Protection(Protection),
}

struct Region {
    /// Addresses of the memory, and of the whole pages in it.
    range: Range<usize>,
    inner: Range<usize>,
    guard: Guard,
    /// Offsets in the memory that the next call reports in any case.
    marked: Vec<Range<usize>>,
    /// What MPI writes to it.
    received: Received,
    /// `None` unless the way is to be chosen.
    estimate: Option<Estimate>,
    samples: u64,
    /// Whether it is not watched because this process has pinned memory.
    is_pinned: bool,
    stats: TrackStats,
}

/// Finds what changes in named regions of memory between two calls.
///
/// Hardware and the system can write to pinned memory without a page fault, so such writes cannot
/// be detected. While memory of this process is pinned by others, according to the system (`VmPin`:
/// buffers registered with io_uring, and RDMA), nothing is watched, and everything counts as
/// changed; see [`TrackOptions::marks_pinned`]. Some drivers pin memory without counting it (CUDA,
/// VFIO, AF_XDP): report what they write with [`mark_dirty`](Tracker::mark_dirty).
pub struct Tracker {
    options: TrackOptions,
    /// The process that watches. A process forked from it watches nothing.
    generation: u64,
    /// Created when it is first needed.
    pages: Option<Result<Pages, String>>,
    regions: HashMap<String, Region>,
    /// By their whole pages.
    overlaps: Overlaps,
    /// How many regions are registered with `pages`.
    registered: usize,
}

impl Tracker {
    /// A tracker that watches nothing yet.
    pub fn new(options: TrackOptions) -> Self {
        let (regions, overlaps) = (HashMap::new(), Overlaps::default());
        Self { options, generation: process::generation(), pages: None, regions, overlaps, registered: 0 }
    }

    /// Returns what may have changed in `memory` since the last call with this name, and watches it
    /// from now on. That is everything at the first call, if the address or the length differs from
    /// the last call, after a fork, and in case of doubt.
    ///
    /// The memory is not changed. The borrow guarantees that nobody writes to it during the call.
    pub fn changed(&mut self, name: &str, memory: &[u8]) -> Changes {
        self.notice_fork();
        let mut region = self.take(name, memory);
        let begin = Instant::now();
        let found = self.collect(name, &mut region).unwrap_or_else(|error| {
            tracing::debug!(name, %error, "a region cannot be watched any more");
            self.unguard(&mut region);
            None
        });
        let mut way = region.guard.way_found(found.is_some());
        let seen = region.seen(found.as_deref(), begin.elapsed(), self.options.block_bytes);
        let wanted = region.wanted(seen, self.options.way);
        region.is_pinned = region.is_pinned && self.find_pinned(&mut region);
        if !region.is_pinned {
            self.guard(name, &mut region, wanted);
            // Check last, because protecting memory does not detect what was pinned before.
            let is_believed = way != Way::Everything || region.stats.way != Way::Everything;
            region.is_pinned = is_believed && self.find_pinned(&mut region);
        }
        if region.is_pinned {
            self.unguard(&mut region);
            way = Way::Everything;
        }
        let changes = region.changes(found.filter(|_| way != Way::Everything), way);
        tracing::trace!(name, ranges = changes.ranges.len(), %way, next = %region.stats.way, reason = region.stats.reason);
        self.regions.insert(name.to_owned(), region);
        changes
    }

    /// Makes the next call report the bytes of `range` in any case, for memory that hardware writes
    /// to.
    pub fn mark_dirty(&mut self, name: &str, range: Range<usize>) {
        // The first call for a region reports everything.
        if let Some(region) = self.regions.get_mut(name) {
            region.marked.push(range);
            if region.marked.len().is_power_of_two() {
                tidy(&mut region.marked, 0..region.range.len());
            }
        }
    }

    /// Reports that the program has hashed `bytes` of this region in that time. `Way::Chosen`
    /// compares with this rate.
    pub fn hashed(&mut self, name: &str, bytes: usize, took: Duration) {
        if let Some(estimate) = self.regions.get_mut(name).and_then(|region| region.estimate.as_mut()) {
            estimate.hashed(bytes, took.as_nanos() as f64);
        }
    }

    /// Stops watching `memory` until the next call of [`changed`](Tracker::changed) with this name,
    /// which then reports everything. [`stats`](Tracker::stats) gives `reason`.
    pub fn unwatch(&mut self, name: &str, memory: &[u8], reason: &str) {
        self.notice_fork();
        let mut region = self.take(name, memory);
        self.unguard(&mut region);
        reason.clone_into(&mut region.stats.reason);
        self.regions.insert(name.to_owned(), region);
    }

    /// Stops watching a region and forgets it.
    pub fn stop(&mut self, name: &str) {
        self.notice_fork();
        if let Some(mut region) = self.regions.remove(name) {
            self.forget(name, &mut region);
        }
    }

    /// Statistics of a region; `None` for an unknown name.
    pub fn stats(&self, name: &str) -> Option<TrackStats> {
        self.regions.get(name).map(|region| region.stats.clone())
    }

    /// Removes a region from the map, or creates it. The caller puts it back.
    fn take(&mut self, name: &str, memory: &[u8]) -> Region {
        let range = addresses(memory);
        match self.regions.remove(name) {
            Some(region) if region.range == range => return region,
            Some(mut other) => self.forget(name, &mut other),
            None => {}
        }
        let region = Region::new(range, &self.options);
        self.overlaps.insert(name, region.inner.clone());
        region
    }

    fn forget(&mut self, name: &str, region: &mut Region) {
        self.unguard(region);
        self.overlaps.remove(name, &region.inner);
    }

    /// Whether writes may be missed because memory of this process is pinned.
    fn find_pinned(&self, region: &mut Region) -> bool {
        if self.options.marks_pinned {
            return false;
        }
        // If it is unknown, assume that everything is pinned.
        let bytes = pinned_by_others().unwrap_or(u64::MAX);
        if bytes > 0 {
            region.stats.reason = Reason::Pinned { bytes }.to_string();
        }
        bytes > 0
    }

    /// After a fork, forgets what the parent watches: the descriptors act on the parent's memory.
    fn notice_fork(&mut self) {
        let generation = process::generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.pages = None;
            self.registered = 0;
            for region in self.regions.values_mut() {
                region.guard = Guard::Nothing;
            }
        }
    }

    fn pages(&mut self) -> io::Result<&mut Pages> {
        let pages = self.pages.get_or_insert_with(|| {
            Pages::new().map_err(|error| {
                tracing::debug!(%error, "this system cannot watch pages");
                format!("this system cannot watch pages: {error}")
            })
        });
        pages.as_mut().map_err(|reason| io::Error::other(reason.clone()))
    }

    /// Returns what has changed in the watched pages, as offsets in the memory, and protects it
    /// again. `None` if nothing is watched.
    fn collect(&mut self, name: &str, region: &mut Region) -> io::Result<Option<Vec<Range<usize>>>> {
        let mut found = Vec::new();
        match &mut region.guard {
            Guard::Nothing => return Ok(None),
            Guard::Protection(protection) => protection.collect(|range| found.push(range))?,
            Guard::Pages => self.collect_pages(name, &region.inner, std::slice::from_ref(&region.inner), &mut found)?,
            Guard::Sample(stripes) => self.collect_pages(name, &region.inner, stripes, &mut found)?,
        }
        for range in &mut found {
            *range = range.start - region.range.start..range.end - region.range.start;
        }
        Ok(Some(found))
    }

    /// Collects the pages of `stripes`, which lie in `inner`, the whole pages of this region.
    fn collect_pages(
        &mut self,
        name: &str,
        inner: &Range<usize>,
        stripes: &[Range<usize>],
        found: &mut Vec<Range<usize>>,
    ) -> io::Result<()> {
        let pages = self.pages()?;
        pages.claim(inner)?;
        let outcome = stripes.iter().try_for_each(|stripe| pages.collect(stripe, |range| found.push(range)));
        // Regions may overlap. These pages are clean from now on, so record them in the other
        // regions.
        for other in self.overlaps.others(name, inner) {
            let Some(other) = self.regions.get_mut(other) else { continue };
            let start = other.range.start;
            let both = found.iter().filter_map(|range| shared(range, &other.range));
            other.marked.extend(both.map(|range| range.start - start..range.end - start));
            tidy(&mut other.marked, 0..other.range.len());
        }
        outcome
    }

    /// Starts, continues or stops watching, as wanted and as far as possible.
    fn guard(&mut self, name: &str, region: &mut Region, wanted: Watch) {
        let is_as_wanted = match &region.guard {
            Guard::Nothing => wanted == Watch::Nothing,
            Guard::Sample(_) => wanted == Watch::Sample,
            Guard::Pages => wanted == Watch::All,
            Guard::Protection(_) => wanted != Watch::Nothing,
        };
        if is_as_wanted {
            return;
        }
        let begin = Instant::now();
        self.unguard(region);
        if wanted == Watch::Nothing || region.inner.is_empty() {
            return;
        }
        let may = |way| self.options.way == way || self.options.way == Way::Chosen;
        let (may_pages, may_protection) = (may(Way::Pages), may(Way::Protection));
        let is_allowed = self.options.way == Way::Protection || self.options.allow_protection;
        let mut outcome =
            if may_pages { self.guard_pages(name, region, wanted) } else { Err(io::Error::other("as set")) };
        if outcome.is_err() && may_protection && is_allowed {
            outcome = Protection::new(region.inner.clone()).map(|protection| {
                region.stats.way = Way::Protection;
                region.stats.write_ns = protection::WRITE_NS;
                region.guard = Guard::Protection(protection);
            });
        }
        if let Err(error) = outcome {
            region.stats.reason = format!("it cannot be watched: {error}");
        }
        region.stats.arm_ns = begin.elapsed().as_nanos() as u64;
    }

    fn guard_pages(&mut self, name: &str, region: &mut Region, wanted: Watch) -> io::Result<()> {
        let page = page_bytes();
        let start = region.inner.start;
        let stripes = match wanted {
            Watch::Sample => estimate::sample(region.inner.len() / page, region.samples)
                .map(|stripe| start + stripe.start * page..start + stripe.end * page)
                .collect(),
            _ => vec![region.inner.clone()],
        };
        let registered = self.registered;
        let pages = self.pages()?;
        if registered >= pages.ranges_max {
            return Err(io::Error::other(format!(
                "{registered} regions are watched, and more could use up all mappings"
            )));
        }
        pages.claim(&region.inner)?;
        if let Err(error) = self.collect_pages(name, &region.inner, &stripes, &mut Vec::new()) {
            self.pages()?.release(&region.inner);
            return Err(error);
        }
        self.registered += 1;
        region.stats.write_ns = pages::write_ns();
        if wanted == Watch::Sample {
            region.samples += 1;
            region.guard = Guard::Sample(stripes);
        } else {
            region.guard = Guard::Pages;
            region.stats.way = Way::Pages;
        }
        Ok(())
    }

    fn unguard(&mut self, region: &mut Region) {
        region.stats.way = Way::Everything;
        let guard = std::mem::replace(&mut region.guard, Guard::Nothing);
        if let (Guard::Sample(_) | Guard::Pages, Some(Ok(pages))) = (guard, &self.pages) {
            pages.release(&region.inner);
            self.registered -= 1;
        }
    }
}

impl Drop for Tracker {
    /// Closing the descriptors is not enough: a forked process may have them open too.
    fn drop(&mut self) {
        self.notice_fork();
        for mut region in std::mem::take(&mut self.regions).into_values() {
            self.unguard(&mut region);
        }
    }
}

impl Guard {
    /// How changes were found with this guard, if they were.
    fn way_found(&self, is_found: bool) -> Way {
        match self {
            Self::Pages if is_found => Way::Pages,
            Self::Protection(_) if is_found => Way::Protection,
            _ => Way::Everything,
        }
    }
}

impl Region {
    fn new(range: Range<usize>, options: &TrackOptions) -> Self {
        let inner = whole_pages(range.clone());
        let estimate = (options.way == Way::Chosen).then(|| Estimate::new(inner.len(), page_bytes()));
        let stats = TrackStats {
            way: Way::Everything,
            reason: String::new(),
            arm_ns: 0,
            collect_ns: 0,
            written_pages: 0,
            watched_pages: 0,
            write_ns: 0.0,
        };
        let received = Received::watch(&range);
        let (guard, marked) = (Guard::Nothing, Vec::new());
        Self { range, inner, guard, marked, received, estimate, samples: 0, is_pinned: false, stats }
    }

    /// The observations of the interval before this call.
    fn seen(&mut self, found: Option<&[Range<usize>]>, took: Duration, block_bytes: usize) -> Seen {
        let (watch, watched_bytes, unit_bytes) = match &self.guard {
            Guard::Nothing => (Watch::Nothing, 0, page_bytes()),
            Guard::Sample(stripes) => (Watch::Sample, stripes.iter().map(Range::len).sum(), page_bytes()),
            Guard::Pages => (Watch::All, self.inner.len(), page_bytes()),
            Guard::Protection(protection) => (Watch::All, self.inner.len(), protection.granule_bytes()),
        };
        let found = found.unwrap_or_default();
        let written_bytes: usize = found.iter().map(Range::len).sum();
        let scan_ns = if watch == Watch::Nothing { 0 } else { took.as_nanos() as u64 };
        if watch != Watch::Nothing {
            self.stats.collect_ns = scan_ns;
            self.stats.written_pages = written_bytes / page_bytes();
            self.stats.watched_pages = watched_bytes / page_bytes();
        }
        Seen {
            watch,
            pages: watched_bytes / page_bytes(),
            faults_ns: written_bytes.div_ceil(unit_bytes) as f64 * self.stats.write_ns,
            hash_bytes: block_bytes_of(found, block_bytes.max(1)),
            scan_ns,
        }
    }

    /// What to watch until the next call.
    fn wanted(&mut self, seen: Seen, way: Way) -> Watch {
        let (watch, reason) = match &mut self.estimate {
            Some(estimate) => (estimate.next(seen), estimate.reason()),
            None if way == Way::Everything => (Watch::Nothing, Reason::Told),
            None => (Watch::All, Reason::Told),
        };
        self.stats.reason = reason.to_string();
        watch
    }

    /// The changes to report: what was found, what was marked, and the ends that are not whole
    /// pages.
    fn changes(&mut self, found: Option<Vec<Range<usize>>>, way: Way) -> Changes {
        let whole = 0..self.range.len();
        let start = self.range.start;
        let mut ranges = std::mem::take(&mut self.marked);
        ranges.extend(self.received.take().into_iter().map(|written| written.start - start..written.end - start));
        match found {
            Some(found) => {
                ranges.extend(found);
                ranges.extend([0..self.inner.start - start, self.inner.end - start..whole.end]);
            }
            None => ranges.push(whole.clone()),
        }
        tidy(&mut ranges, whole.clone());
        let is_everything = whole.is_empty() || ranges == [whole];
        Changes { ranges, is_everything, way }
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions: HashMap<_, _> = self.regions.iter().map(|(name, region)| (name, &region.stats)).collect();
        f.debug_struct("Tracker").field("options", &self.options).field("regions", &regions).finish()
    }
}
