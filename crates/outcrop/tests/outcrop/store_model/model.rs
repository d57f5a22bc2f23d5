//! The model of what must be there: every version that a program tried to save, where it was
//! reported as durable, and what may have happened to it since. It knows the promises of
//! docs/store.md, and nothing about the implementation.

use std::collections::BTreeMap;

use outcrop::Retention;

use super::memory::Content;

/// A directory of a rank on a layer, wherever it is mounted.
pub(super) type DiskId = u64;

/// One attempt to save a version.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) version: u64,
    /// By rank.
    pub(super) contents: Vec<Content>,
    /// By layer.
    pub(super) on: Vec<OnLayer>,
}

/// An attempt on one layer.
#[derive(Debug)]
pub(super) struct OnLayer {
    pub(super) fate: Fate,
    /// By rank: the directory to which it was written.
    pub(super) disks: Vec<DiskId>,
    /// Whether all ranks had it when the session was opened, or it was reported since.
    pub(super) is_whole: bool,
    /// Whether it need not stay, reported or not.
    may_go: bool,
}

/// Whether a version is on a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It may be there or not.
    Possible,
    /// It was reported, and nothing allows its removal.
    Promised,
    /// It was reported, and may have been removed.
    Loose,
    /// It must not come back.
    Gone,
}

/// All attempts, and where they are.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) ranks: u32,
    /// By stamp.
    pub(super) attempts: BTreeMap<u64, Attempt>,
    /// By layer and rank: the directory that is mounted.
    pub(super) mounts: Vec<Vec<DiskId>>,
    next_disk: DiskId,
}

impl Model {
    pub(super) fn new(ranks: u32, layers: usize) -> Self {
        let count = u64::from(ranks);
        let mounts = (0..layers as u64).map(|layer| (layer * count..(layer + 1) * count).collect()).collect();
        Self { ranks, attempts: BTreeMap::new(), mounts, next_disk: layers as u64 * count }
    }

    pub(super) fn new_disk(&mut self) -> DiskId {
        self.next_disk += 1;
        self.next_disk - 1
    }

    /// Whether all directories to which an attempt was written on a layer are mounted in their
    /// place.
    pub(super) fn is_mounted(&self, stamp: u64, layer: usize) -> bool {
        self.attempts[&stamp].on[layer].disks == self.mounts[layer]
    }

    /// A version is about to be saved.
    pub(super) fn save(&mut self, version: u64, contents: Vec<Content>, stamp: u64, keep: &[Retention]) {
        let on = |disks: &Vec<DiskId>| OnLayer {
            fate: Fate::Possible,
            disks: disks.clone(),
            is_whole: false,
            may_go: false,
        };
        let on = self.mounts.iter().map(on).collect();
        self.attempts.insert(stamp, Attempt { version, contents, on });
        for (layer, keep) in keep.iter().enumerate() {
            for other in self.stamps() {
                let at = &self.attempts[&other];
                let (before, disks) = (at.version, &at.on[layer].disks);
                let here = &self.mounts[layer];
                // It may replace an attempt with the same number, wherever that one is mounted.
                let is_replaced = before == version && disks.iter().any(|disk| here.contains(disk));
                // A version that not all ranks have may be removed when a later version is
                // complete.
                let is_partly_here = disks.iter().zip(here).any(|(disk, mounted)| disk == mounted);
                let is_passed = before < version && is_partly_here && !at.on[layer].is_whole;
                let is_dropped = before < version && is_partly_here && !self.is_kept(other, layer, *keep);
                if other != stamp && (is_replaced || is_passed || is_dropped) {
                    self.loosen(other, layer);
                }
            }
        }
    }

    fn stamps(&self) -> Vec<u64> {
        self.attempts.keys().copied().collect()
    }

    fn loosen(&mut self, stamp: u64, layer: usize) {
        let on = &mut self.attempts.get_mut(&stamp).expect("it is known").on[layer];
        on.may_go = true;
        if on.fate == Fate::Promised {
            on.fate = Fate::Loose;
        }
    }

    /// Whether a version must stay on a layer, whichever other versions are complete there.
    fn is_kept(&self, stamp: u64, layer: usize, keep: Retention) -> bool {
        let version = self.attempts[&stamp].version;
        let is_newer = |other: &&Attempt| other.version > version && other.on[layer].fate != Fate::Gone;
        let newer: std::collections::BTreeSet<u64> =
            self.attempts.values().filter(is_newer).map(|other| other.version).collect();
        let is_last = newer.len() < keep.keep_last.map_or(1, |last| last.max(1) as usize);
        let is_nth = keep.keep_every.is_some_and(|every| version.is_multiple_of(every));
        // Retention times are an hour or zero.
        let is_young = keep.keep_for_ns.is_some_and(|ns| ns > 1_000_000_000);
        keep == Retention::default() || is_last || is_nth || is_young
    }

    /// A version was reported as durable on a layer.
    pub(super) fn promise(&mut self, stamp: u64, layer: usize, keep: Retention) {
        let is_kept = self.is_kept(stamp, layer, keep);
        let attempt = self.attempts.get_mut(&stamp).expect("it was saved");
        let version = attempt.version;
        let on = &mut attempt.on[layer];
        on.is_whole = true;
        if on.fate == Fate::Possible {
            on.fate = if is_kept && !on.may_go { Fate::Promised } else { Fate::Loose };
            // There is only one version with this number in the same directories.
            let disks = on.disks.clone();
            let same = self.attempts.iter_mut().filter(|(other, it)| **other < stamp && it.version == version);
            for (_, other) in same.filter(|(_, it)| it.on[layer].disks == disks) {
                other.on[layer].fate = Fate::Gone;
            }
        }
    }

    /// The session was rewound, or could not be.
    pub(super) fn rewind(&mut self, to: Option<u64>, is_ok: bool) {
        let mounts = &self.mounts;
        for attempt in self.attempts.values_mut().filter(|it| to.is_none_or(|to| it.version > to)) {
            for (layer, on) in attempt.on.iter_mut().enumerate() {
                let here = &mounts[layer];
                let is_partly_here = on.disks.iter().zip(here).any(|(disk, mounted)| disk == mounted);
                on.may_go |= is_partly_here;
                on.fate = match on.fate {
                    // A part that was missing may come back alone.
                    _ if is_ok && on.disks == *here => Fate::Gone,
                    Fate::Promised if is_partly_here => Fate::Loose,
                    fate => fate,
                };
            }
        }
    }

    /// The session is opened: records which versions all ranks have. `is_readable` tells whether a
    /// manifest that should be there can be read.
    pub(super) fn open(&mut self, is_readable: impl Fn(usize, u32, u64) -> bool) {
        for stamp in self.stamps() {
            for layer in 0..self.mounts.len() {
                let version = self.attempts[&stamp].version;
                let is_whole =
                    self.is_mounted(stamp, layer) && (0..self.ranks).all(|rank| is_readable(layer, rank, version));
                self.attempts.get_mut(&stamp).expect("it is known").on[layer].is_whole = is_whole;
            }
        }
    }

    /// The attempt with this stamp, if its version has this number.
    pub(super) fn find(&self, stamp: u64, version: u64) -> Result<&Attempt, String> {
        let attempt = self.attempts.get(&stamp).ok_or(format!("version {version} has the stamp {stamp} of none"))?;
        if attempt.version != version {
            return Err(format!("version {version} holds what was saved as {}", attempt.version));
        }
        if attempt.on.iter().all(|on| on.fate == Fate::Gone) {
            return Err(format!("version {version}, attempt {stamp}, is back after it was forgotten or replaced"));
        }
        Ok(attempt)
    }

    /// The attempts that every rank must be able to restore, given which manifests cannot be read.
    pub(super) fn required(&self, is_unreadable: impl Fn(usize, u32, u64) -> bool) -> Vec<(u64, u64)> {
        let is_required = |(stamp, attempt): &(&u64, &Attempt)| {
            let is_there = |layer: &usize| {
                let on = &attempt.on[*layer];
                on.fate == Fate::Promised && on.is_whole && self.is_mounted(**stamp, *layer)
            };
            let layers: Vec<usize> = (0..self.mounts.len()).filter(is_there).collect();
            let can_read = |rank: u32| layers.iter().any(|layer| !is_unreadable(*layer, rank, attempt.version));
            (0..self.ranks).all(can_read)
        };
        let mut required: Vec<(u64, u64)> =
            self.attempts.iter().filter(is_required).map(|(stamp, it)| (it.version, *stamp)).collect();
        required.sort_unstable();
        required
    }
}
