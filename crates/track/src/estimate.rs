//! The estimate behind `Way::Chosen`: whether it is cheaper to watch memory or to hash all of it.
//! Pure: times and counts are passed in.
//!
//! Watching costs one scan of the page table, a page fault for the first write to each page, and
//! hashing what was written. Not watching costs hashing everything. If many pages are written,
//! watching costs several times as much, so even one interval of it would be too expensive. So a
//! *sample* of the pages is watched first, while everything is hashed.

use std::fmt;

/// The default cost of the first write to a watched page, used if it cannot be measured.
pub(crate) const WRITE_NS: f64 = 1_300.0;

/// The default cost of hashing, used until it is measured.
const HASH_NS_PER_BYTE: f64 = 0.07;

/// The default cost of scanning a page, used until it is measured.
const SCAN_NS_PER_PAGE: f64 = 5.0;

/// Smaller memory is always hashed: scanning it would take as long.
const WORTH_BYTES: usize = 2 << 20;

/// Watching begins if its estimated cost is below this fraction of hashing everything, because a
/// sample can be wrong.
const ENTER_BELOW: f64 = 0.8;

/// The limit of all costs so far, as a multiple of the cost of hashing everything.
const SPENT_MAX: f64 = 1.1;

/// How many calls to pause after watching did not pay. The number doubles each time, up to the
/// maximum.
const PAUSE: u32 = 8;
const PAUSE_MAX: u32 = 64;

/// One in this many pages is in a sample.
const SAMPLE_OF: usize = 64;

/// The maximum number of stripes of a sample: each costs a system call and may split a huge page.
const STRIPES_MAX: usize = 64;

/// What is watched until the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    Nothing,
    Sample,
    All,
}

/// The observations of an interval between two calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// What was watched, and the number of pages.
    pub(crate) watch: Watch,
    pub(crate) pages: usize,
    /// The cost of the page faults for the program, one for each written page.
    pub(crate) faults_ns: f64,
    /// The size of the blocks in the watched pages that have to be hashed.
    pub(crate) hash_bytes: usize,
    /// The time for collecting and protecting again.
    pub(crate) scan_ns: u64,
}

/// Why memory is watched or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reason {
    Told,
    Pinned { bytes: u64 },
    Small { bytes: usize },
    Sampling,
    Pausing { calls: u32 },
    Compared { watching_ns: f64, hashing_ns: f64 },
    Repaying { spent: f64 },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told => write!(f, "as set"),
            Self::Pinned { bytes } => write!(
                f,
                "hardware may write unseen to {bytes} bytes that are pinned in this process (VmPin), so everything is hashed"
            ),
            Self::Small { bytes } => write!(f, "{bytes} bytes are hashed as fast as their pages could be scanned"),
            Self::Sampling => write!(f, "a sample of the pages is watched to see how many are written to"),
            Self::Pausing { calls } => write!(f, "watching did not pay; it is tried again after {calls} more calls"),
            Self::Compared { watching_ns, hashing_ns } => {
                let (watching, hashing) = (watching_ns / 1e6, hashing_ns / 1e6);
                write!(f, "watching should cost {watching:.2} ms per call, and hashing everything {hashing:.2} ms")
            }
            Self::Repaying { spent } => {
                write!(f, "watching looks cheaper, but so far has cost {spent:.2} times what hashing everything would")
            }
        }
    }
}

/// The measurements of one region.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    bytes: usize,
    pages: usize,
    /// The cost of hashing: everything at once, and scattered parts, once that is known.
    hash_ns_per_byte: f64,
    partial_ns_per_byte: Option<f64>,
    is_rate_known: bool,
    /// The cost of collecting all pages.
    scan_ns: f64,
    /// The cost of all intervals so far, and what hashing everything would have cost.
    spent_ns: f64,
    whole_ns: f64,
    /// What the present period of watching has saved so far, and whether its last interval cost
    /// more than hashing.
    saved_ns: f64,
    is_losing: bool,
    /// The largest loss in one interval of watching.
    loss_ns_max: f64,
    wait: u32,
    pause: u32,
    reason: Reason,
}

impl Estimate {
    pub(crate) fn new(bytes: usize, page_bytes: usize) -> Self {
        let pages = bytes / page_bytes;
        Self {
            bytes,
            pages,
            hash_ns_per_byte: HASH_NS_PER_BYTE,
            partial_ns_per_byte: None,
            is_rate_known: false,
            scan_ns: pages as f64 * SCAN_NS_PER_PAGE,
            spent_ns: 0.0,
            whole_ns: 0.0,
            saved_ns: 0.0,
            is_losing: false,
            loss_ns_max: 0.0,
            wait: 0,
            pause: PAUSE,
            reason: Reason::Sampling,
        }
    }

    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// Records that the program has hashed `bytes` in this time.
    pub(crate) fn hashed(&mut self, bytes: usize, ns: f64) {
        if bytes == 0 || ns <= 0.0 {
            return;
        }
        let rate = ns / bytes as f64;
        let smoothed = |before: f64| (before + rate) / 2.0;
        if bytes < self.bytes / 2 {
            self.partial_ns_per_byte = Some(self.partial_ns_per_byte.map_or(rate, smoothed));
        } else {
            self.hash_ns_per_byte = if self.is_rate_known { smoothed(self.hash_ns_per_byte) } else { rate };
            self.is_rate_known = true;
        }
    }

    /// What to watch after an interval with these observations. Before the first call nothing is
    /// watched.
    pub(crate) fn next(&mut self, seen: Seen) -> Watch {
        if self.bytes < WORTH_BYTES {
            self.reason = Reason::Small { bytes: self.bytes };
            return Watch::Nothing;
        }
        let whole_ns = self.bytes as f64 * self.hash_ns_per_byte;
        let tracking_ns = seen.scan_ns as f64 + seen.faults_ns;
        let partial_ns =
            seen.hash_bytes.min(self.bytes) as f64 * self.partial_ns_per_byte.unwrap_or(self.hash_ns_per_byte);
        let cost_ns = tracking_ns + if seen.watch == Watch::All { partial_ns } else { whole_ns };
        self.whole_ns += whole_ns;
        self.spent_ns += cost_ns;
        match seen.watch {
            Watch::Nothing if self.wait > 1 => {
                self.wait -= 1;
                self.reason = Reason::Pausing { calls: self.wait };
                Watch::Nothing
            }
            Watch::Nothing => self.sample(),
            Watch::Sample => {
                let scale = self.pages as f64 / seen.pages.max(1) as f64;
                let hash_ns = (partial_ns * scale).min(whole_ns);
                let watching_ns = self.scan_ns + seen.faults_ns * scale + hash_ns;
                self.enter_or_pause(watching_ns, whole_ns)
            }
            Watch::All => {
                self.scan_ns = (self.scan_ns + seen.scan_ns as f64) / 2.0;
                self.stay_or_pause(cost_ns, whole_ns)
            }
        }
    }

    fn sample(&mut self) -> Watch {
        self.reason = Reason::Sampling;
        self.begin();
        Watch::Sample
    }

    fn enter_or_pause(&mut self, watching_ns: f64, hashing_ns: f64) -> Watch {
        self.reason = Reason::Compared { watching_ns, hashing_ns };
        if watching_ns >= ENTER_BELOW * hashing_ns {
            return self.pause();
        }
        if self.loss_ns_max > 0.0 && self.spent_ns + self.loss_ns_max > SPENT_MAX * self.whole_ns {
            self.reason = Reason::Repaying { spent: self.spent_ns / self.whole_ns };
            return self.pause();
        }
        self.begin();
        Watch::All
    }

    /// Begins a period of watching. Also called for a sample: a way that cannot sample watches
    /// everything instead.
    fn begin(&mut self) {
        self.saved_ns = 0.0;
        self.is_losing = false;
    }

    /// One bad interval is tolerated as long as this period of watching has saved more before.
    fn stay_or_pause(&mut self, cost_ns: f64, whole_ns: f64) -> Watch {
        self.reason = Reason::Compared { watching_ns: cost_ns, hashing_ns: whole_ns };
        let lost_ns = cost_ns - whole_ns;
        let was_losing = std::mem::replace(&mut self.is_losing, lost_ns > 0.0);
        self.saved_ns -= lost_ns;
        self.loss_ns_max = self.loss_ns_max.max(lost_ns);
        if self.saved_ns < 0.0 || (self.is_losing && was_losing) {
            if self.saved_ns > 0.0 {
                self.pause = PAUSE;
            }
            return self.pause();
        }
        Watch::All
    }

    fn pause(&mut self) -> Watch {
        self.wait = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Watch::Nothing
    }
}

/// The pages of sample number `round`, out of `pages`: stripes of equal length, spread evenly but
/// not regularly.
pub(crate) fn sample(pages: usize, round: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let stripes = (pages / 256).clamp(1, STRIPES_MAX);
    let stripe_pages = (pages / SAMPLE_OF / stripes).max(1);
    (0..stripes).map(move |stripe| {
        let (start, end) = (pages * stripe / stripes, pages * (stripe + 1) / stripes);
        let room = (end - start).saturating_sub(stripe_pages) as u64 + 1;
        let at = start + (mixed(round << 32 | stripe as u64) % room) as usize;
        at..(at + stripe_pages).min(end)
    })
}

/// A hash of a number.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const BYTES: usize = 1 << 30;
    const PAGES: usize = BYTES / PAGE;
    const FIRST: Seen = Seen { watch: Watch::Nothing, pages: 0, faults_ns: 0.0, hash_bytes: 0, scan_ns: 0 };

    /// Simulates a program that writes to this share of scattered pages in each interval. Returns
    /// the total cost relative to hashing everything, and how often everything was watched.
    fn run(calls: usize, mut share: impl FnMut(usize) -> f64) -> (f64, usize) {
        let mut estimate = Estimate::new(BYTES, PAGE);
        let mut watch = estimate.next(FIRST);
        let (mut spent, mut whole, mut watched) = (0.0, 0.0, 0);
        for call in 0..calls {
            let pages = match watch {
                Watch::Nothing => 0,
                Watch::Sample => sample(PAGES, call as u64).map(|stripe| stripe.len()).sum(),
                Watch::All => PAGES,
            };
            watched += usize::from(watch == Watch::All);
            let written = (pages as f64 * share(call)).round() as usize;
            let faults_ns = written as f64 * 1_260.0;
            let seen = Seen { watch, pages, faults_ns, hash_bytes: written * PAGE, scan_ns: pages as u64 * 14 };
            let hash_bytes = if watch == Watch::All { seen.hash_bytes } else { BYTES };
            let hash_ns = hash_bytes as f64 * 0.07;
            spent += seen.scan_ns as f64 + faults_ns + hash_ns;
            whole += BYTES as f64 * 0.07;
            watch = estimate.next(seen);
            estimate.hashed(hash_bytes, hash_ns);
        }
        (spent / whole, watched)
    }

    #[test]
    fn a_steady_program_pays_at_most_a_tenth_more() {
        for percent in 0..=100 {
            for calls in [20, 40, 80] {
                let (ratio, _) = run(calls, |_| f64::from(percent) / 100.0);
                assert!(ratio <= 1.1, "{percent}% in {calls} calls cost {ratio}");
            }
        }
    }

    #[test]
    fn few_written_pages_are_watched_and_many_are_not() {
        let (ratio, watched) = run(40, |_| 0.01);
        assert!(ratio < 0.2 && watched == 39, "{ratio}, {watched}");
        let (_, watched) = run(40, |_| 0.5);
        assert_eq!(watched, 0);
    }

    #[test]
    fn a_program_that_changes_its_ways_is_followed() {
        let (ratio, watched) = run(80, |call| if call < 40 { 1.0 } else { 0.01 });
        assert!(ratio < 0.9 && watched > 10, "{ratio}, {watched}");
        let (ratio, watched) = run(80, |call| if call < 40 { 0.01 } else { 1.0 });
        assert!(ratio < 0.9 && watched < 45, "{ratio}, {watched}");
    }

    #[test]
    fn one_burst_is_forgiven() {
        let (_, watched) = run(40, |call| if call == 20 { 1.0 } else { 0.01 });
        assert_eq!(watched, 39);
    }

    #[test]
    fn a_program_that_deceives_does_not_cost_much() {
        for period in 2..10 {
            let (ratio, _) = run(80, |call| if call % period == 0 { 0.0 } else { 1.0 });
            assert!(ratio < 1.15, "period {period}: {ratio}");
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100 {
            let (ratio, _) = run(80, |_| if random.bool() { 0.0 } else { 1.0 });
            assert!(ratio < 1.25, "{ratio}");
        }
    }

    #[test]
    fn small_memory_is_never_watched() {
        let mut estimate = Estimate::new(WORTH_BYTES - 1, PAGE);
        for _ in 0..100 {
            assert_eq!(estimate.next(FIRST), Watch::Nothing);
        }
        assert!(matches!(estimate.reason(), Reason::Small { .. }));
    }

    #[test]
    fn a_slow_hash_makes_watching_worthwhile() {
        let faults_ns = PAGES as f64 / 128.0 * 1_260.0;
        let seen = Seen { watch: Watch::Sample, pages: PAGES / 64, faults_ns, hash_bytes: BYTES / 128, scan_ns: 1 };
        let mut fast = Estimate::new(BYTES, PAGE);
        assert_eq!(fast.next(FIRST), Watch::Sample);
        assert_eq!(fast.next(seen), Watch::Nothing);
        let mut slow = Estimate::new(BYTES, PAGE);
        assert_eq!(slow.next(FIRST), Watch::Sample);
        slow.hashed(BYTES, BYTES as f64 * 3.0);
        assert_eq!(slow.next(seen), Watch::All);
    }

    #[test]
    fn parts_that_hash_slowly_make_watching_dearer() {
        let seen = |watch| Seen { watch, pages: PAGES, faults_ns: 0.0, hash_bytes: BYTES / 4, scan_ns: 1 };
        let mut estimate = Estimate::new(BYTES, PAGE);
        estimate.hashed(BYTES, BYTES as f64);
        assert_eq!(estimate.next(seen(Watch::Sample)), Watch::All);
        estimate.hashed(BYTES / 4, BYTES as f64 / 4.0);
        assert_eq!(estimate.next(seen(Watch::All)), Watch::All);
        estimate.hashed(BYTES / 4, BYTES as f64 * 4.0);
        assert_eq!(estimate.next(seen(Watch::All)), Watch::Nothing);
    }

    #[test]
    fn samples_are_spread_inside() {
        for pages in [1, 2, 255, 256, 512, 1_000, 65_536, PAGES] {
            for round in 0..5 {
                let stripes: Vec<_> = sample(pages, round).collect();
                assert!(stripes.iter().all(|stripe| !stripe.is_empty() && stripe.end <= pages));
                assert!(stripes.windows(2).all(|pair| pair[0].end <= pair[1].start));
                let sum: usize = stripes.iter().map(ExactSizeIterator::len).sum();
                assert!(sum <= (pages / SAMPLE_OF).max(1), "{sum} of {pages}");
            }
        }
        assert_ne!(sample(PAGES, 0).next(), sample(PAGES, 1).next());
    }
}
