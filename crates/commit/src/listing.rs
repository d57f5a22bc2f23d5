//! The manifests and packs of one layer, and which manifest lists which pack.
//!
//! Every version that becomes complete raises two questions: which versions are not kept, and which
//! packs nothing needs. The answers are maintained incrementally, so their cost does not grow with
//! the number of versions.

use std::collections::{BTreeMap, BTreeSet};

use outcrop_format::{Held, Manifest, ManifestPack, RunId};
use outcrop_plan::Retention;

use crate::layer::Standing;

#[derive(Debug, Default)]
pub(crate) struct Listing {
    keep: Retention,
    /// Manifests of this rank that are visible, or may be, by version.
    manifests: BTreeMap<u64, Visible>,
    /// Packs of this rank that have arrived, with their lengths.
    packs: BTreeMap<u64, u64>,
    /// The total length of these packs.
    all_pack_bytes: u64,
    /// Pairs of a pack of this rank and a version that lists it.
    listed: BTreeSet<(u64, u64)>,
    /// Packs that have arrived and that no manifest lists.
    unlisted: BTreeSet<u64>,
    /// Versions that all ranks have, and versions that only some have.
    complete: BTreeSet<u64>,
    incomplete: BTreeSet<u64>,
    /// Incomplete versions that may become complete again.
    returning: BTreeSet<u64>,
    /// Versions that all ranks have and that some cannot read. They count as neither complete nor
    /// incomplete.
    unread: BTreeSet<u64>,
    /// Complete versions that are kept because they are among the newest.
    last: BTreeSet<u64>,
    /// Other complete versions that only their age can keep: the time of the save, and the version.
    aging: BTreeSet<(u64, u64)>,
}

#[cfg(test)]
thread_local! {
    /// The number of manifests and packs that were looked at.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts accesses, for tests.
fn seen<T>(it: T) -> T {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    it
}

/// What is kept in memory of a manifest that is visible, or may be. The rest is in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) run: RunId,
    pub(crate) saved_at_unix_ns: u64,
    /// The packs of this rank that it lists, newest first.
    pub(crate) chain: Box<[u64]>,
    /// Packs of this rank to which only extents of other packs in the list refer.
    borrowed: Box<[u64]>,
    pub(crate) standing: Standing,
}

impl Visible {
    /// A manifest of this rank that lists these packs.
    pub(crate) fn new(manifest: &Manifest, packs: &[ManifestPack], standing: Standing) -> Self {
        let own = |is_borrowed: bool| {
            let own = packs.iter().filter(move |pack| pack.id.rank == manifest.rank && pack.is_borrowed == is_borrowed);
            own.map(|pack| pack.id.number).collect()
        };
        let (run, saved_at_unix_ns) = (manifest.run, manifest.saved_at_unix_ns);
        Self { run, saved_at_unix_ns, chain: own(false), borrowed: own(true), standing }
    }

    /// A version of which this rank has no packs: other ranks, or former ones, have it.
    pub(crate) fn without_packs(held: &Held, standing: Standing) -> Self {
        let (run, saved_at_unix_ns) = (held.run, held.saved_at_unix_ns);
        Self { run, saved_at_unix_ns, chain: Box::default(), borrowed: Box::default(), standing }
    }

    /// All packs of this rank that it lists.
    pub(crate) fn packs(&self) -> impl Iterator<Item = u64> {
        self.chain.iter().chain(&self.borrowed).copied()
    }
}

impl Listing {
    pub(crate) fn new(keep: Retention, packs: BTreeMap<u64, u64>) -> Self {
        let all_pack_bytes = packs.values().fold(0, |all: u64, bytes| all.saturating_add(*bytes));
        Self { keep, unlisted: packs.keys().copied().collect(), packs, all_pack_bytes, ..Self::default() }
    }

    pub(crate) fn manifest(&self, version: u64) -> Option<&Visible> {
        seen(self.manifests.get(&version))
    }

    /// All manifests, by version.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (u64, &Visible)> {
        self.manifests.iter().map(|(version, visible)| seen((*version, visible)))
    }

    pub(crate) fn standing(&self, version: u64) -> Option<Standing> {
        self.manifest(version).map(|visible| visible.standing)
    }

    /// Inserts a manifest, and returns the one that it replaces.
    pub(crate) fn insert(&mut self, version: u64, visible: Visible) -> Option<Visible> {
        let before = self.remove(version);
        for number in visible.packs() {
            self.listed.insert((number, version));
            self.unlisted.remove(&number);
        }
        self.manifests.insert(version, visible);
        self.count_in(version);
        before
    }

    pub(crate) fn remove(&mut self, version: u64) -> Option<Visible> {
        self.count_out(version);
        let visible = self.manifests.remove(&version)?;
        for number in visible.packs() {
            self.listed.remove(&(number, version));
            if self.packs.contains_key(&number) && self.listing(number).next().is_none() {
                self.unlisted.insert(number);
            }
        }
        Some(visible)
    }

    /// Changes the standing of a version.
    pub(crate) fn stand(&mut self, version: u64, standing: Standing) {
        self.count_out(version);
        if let Some(visible) = self.manifests.get_mut(&version) {
            visible.standing = standing;
            self.count_in(version);
        }
    }

    /// Replaces the chain of a manifest.
    pub(crate) fn relist(&mut self, version: u64, chain: Box<[u64]>) {
        if let Some(visible) = self.manifest(version).cloned() {
            self.insert(version, Visible { chain, ..visible });
        }
    }

    /// Versions that list a pack of this rank.
    pub(crate) fn listing(&self, number: u64) -> impl Iterator<Item = u64> {
        self.listed.range((number, 0)..=(number, u64::MAX)).map(|(_, version)| seen(*version))
    }

    /// The length of a pack, if it has arrived.
    pub(crate) fn pack_bytes(&self, number: u64) -> Option<u64> {
        self.packs.get(&number).copied()
    }

    /// The total length of all packs that have arrived.
    pub(crate) fn all_pack_bytes(&self) -> u64 {
        self.all_pack_bytes
    }

    pub(crate) fn add_pack(&mut self, number: u64, bytes: u64) {
        let before = self.packs.insert(number, bytes).unwrap_or(0);
        self.all_pack_bytes = self.all_pack_bytes.saturating_sub(before).saturating_add(bytes);
        if self.listing(number).next().is_none() {
            self.unlisted.insert(number);
        }
    }

    pub(crate) fn remove_pack(&mut self, number: u64) -> Option<u64> {
        self.unlisted.remove(&number);
        let bytes = self.packs.remove(&number)?;
        self.all_pack_bytes = self.all_pack_bytes.saturating_sub(bytes);
        Some(bytes)
    }

    /// Packs that have arrived and that no manifest lists.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = u64> {
        self.unlisted.iter().copied().map(seen)
    }

    /// The newest version that all ranks have.
    pub(crate) fn newest_complete(&self) -> Option<u64> {
        self.complete.last().copied()
    }

    /// Versions below this one that not all ranks have.
    pub(crate) fn incomplete_below(&self, version: u64) -> impl Iterator<Item = u64> {
        self.incomplete.range(..version).copied().map(seen)
    }

    /// Versions that may become complete again.
    pub(crate) fn returning(&self) -> impl Iterator<Item = u64> {
        self.returning.iter().copied().map(seen)
    }

    /// Versions that are not kept, as [`Retention::dropped`] defines it. Versions that some ranks
    /// cannot read are treated as if they were complete.
    pub(crate) fn dropped(&self, now_unix_ns: u64) -> impl Iterator<Item = u64> {
        let keep_for_ns = self.keep.keep_for_ns;
        // If the clock went back, a version may seem to be saved in the future. It is kept.
        let is_old = move |saved_at: u64| keep_for_ns.is_none_or(|ns| now_unix_ns.saturating_sub(saved_at) > ns);
        let old = self.aging.iter().take_while(move |(saved_at, _)| is_old(*saved_at)).map(|(_, version)| *version);
        let oldest_of_last = self.last.first().filter(|_| self.last.len() >= self.last_max());
        let before_last = self.unread.range(..oldest_of_last.copied().unwrap_or(0));
        let is_dropped = move |version: &u64| self.age(*version).is_some_and(|(saved_at, _)| is_old(saved_at));
        old.chain(before_last.copied().filter(is_dropped)).map(seen)
    }

    /// How many complete versions are kept because they are the newest.
    fn last_max(&self) -> usize {
        self.keep.keep_last.map_or(1, |count| count.max(1) as usize)
    }

    /// Adds a version to the sets that its standing requires.
    fn count_in(&mut self, version: u64) {
        match self.standing(version) {
            None => {}
            Some(Standing::Complete) => {
                self.complete.insert(version);
                if self.keep != Retention::default() {
                    self.last.insert(version);
                    let older = if self.last.len() > self.last_max() { self.last.pop_first() } else { None };
                    self.aging.extend(older.and_then(|older| self.age(older)));
                }
            }
            Some(Standing::Unread) => {
                self.unread.insert(version);
            }
            Some(standing) => {
                self.incomplete.insert(version);
                if standing == (Standing::Kept { may_return: true }) {
                    self.returning.insert(version);
                }
            }
        }
    }

    /// Removes a version from all these sets.
    fn count_out(&mut self, version: u64) {
        self.incomplete.remove(&version);
        self.returning.remove(&version);
        self.unread.remove(&version);
        if !self.complete.remove(&version) {
            return;
        }
        if let Some(age) = self.age(version) {
            self.aging.remove(&age);
        }
        if self.last.remove(&version) {
            let below = self.last.first().copied().unwrap_or(u64::MAX);
            if let Some(&next) = self.complete.range(..below).next_back() {
                self.last.insert(next);
                self.age(next).map(|age| self.aging.remove(&age));
            }
        }
    }

    /// The time at which a version was saved, unless `keep_every` keeps it for ever.
    fn age(&self, version: u64) -> Option<(u64, u64)> {
        let is_kept = self.keep.keep_every.is_some_and(|every| version.is_multiple_of(every));
        self.manifest(version).filter(|_| !is_kept).map(|visible| (visible.saved_at_unix_ns, version))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SaveId;

    /// A random change of a layer.
    #[derive(Debug, Clone)]
    enum Change {
        Insert { version: u64, saved_at: u64, chain: Vec<u64>, borrowed: Vec<u64>, standing: Standing },
        Remove(u64),
        Stand(u64, Standing),
        Relist(u64, Vec<u64>),
        AddPack(u64),
        RemovePack(u64),
    }

    fn standings() -> impl Strategy<Value = Standing> {
        prop_oneof![
            3 => Just(Standing::Complete),
            1 => any::<bool>().prop_map(|may_return| Standing::Kept { may_return }),
            1 => Just(Standing::Pending(SaveId { version: 0, attempt: 1 })),
            1 => Just(Standing::Unread),
            1 => Just(Standing::Doubtful),
        ]
    }

    fn changes() -> impl Strategy<Value = Change> {
        let packs = || prop::collection::btree_set(0u64..12, 0..4).prop_map(|packs| packs.into_iter().collect());
        prop_oneof![
            4 => (0u64..20, 0u64..100, packs(), packs(), standings()).prop_map(
                |(version, saved_at, chain, borrowed, standing)| Change::Insert {
                    version, saved_at, chain, borrowed, standing
                }
            ),
            2 => (0u64..20).prop_map(Change::Remove),
            2 => (0u64..20, standings()).prop_map(|(version, standing)| Change::Stand(version, standing)),
            1 => (0u64..20, packs()).prop_map(|(version, chain)| Change::Relist(version, chain)),
            2 => (0u64..12).prop_map(Change::AddPack),
            1 => (0u64..12).prop_map(Change::RemovePack),
        ]
    }

    fn apply(listing: &mut Listing, change: Change) {
        match change {
            Change::Insert { version, saved_at, chain, borrowed, standing } => {
                let borrowed = borrowed.into_iter().filter(|number| !chain.contains(number)).collect();
                let (run, saved_at_unix_ns, chain) = (RunId(1), saved_at, chain.into());
                listing.insert(version, Visible { run, saved_at_unix_ns, chain, borrowed, standing });
            }
            Change::Remove(version) => drop(listing.remove(version)),
            Change::Stand(version, standing) => listing.stand(version, standing),
            Change::Relist(version, chain) => listing.relist(version, chain.into()),
            Change::AddPack(number) => listing.add_pack(number, number + 1),
            Change::RemovePack(number) => drop(listing.remove_pack(number)),
        }
    }

    /// Compares every answer with the result of a full scan of all manifests.
    fn check(listing: &Listing, keep: Retention, now: u64) -> Result<(), TestCaseError> {
        let of = |is_wanted: &dyn Fn(Standing) -> bool| -> Vec<u64> {
            listing.manifests().filter(|(_, it)| is_wanted(it.standing)).map(|(version, _)| version).collect()
        };
        let complete = of(&|standing| standing == Standing::Complete);
        let ages: Vec<_> = complete.iter().map(|it| (*it, listing.manifests[it].saved_at_unix_ns)).collect();
        let mut expected = keep.dropped(now, &ages);
        for unread in of(&|standing| standing == Standing::Unread) {
            let with_it = [&ages[..], &[(unread, listing.manifests[&unread].saved_at_unix_ns)]].concat();
            expected.extend(keep.dropped(now, &with_it).contains(&unread).then_some(unread));
        }
        expected.sort_unstable();
        let mut dropped: Vec<u64> = listing.dropped(now).collect();
        dropped.sort_unstable();
        prop_assert_eq!(dropped, expected);
        prop_assert_eq!(listing.newest_complete(), complete.last().copied());
        let incomplete: Vec<u64> = listing.incomplete_below(u64::MAX).collect();
        let is_incomplete = |standing| !matches!(standing, Standing::Complete | Standing::Unread);
        prop_assert_eq!(incomplete, of(&is_incomplete));
        let returning: Vec<u64> = listing.returning().collect();
        prop_assert_eq!(returning, of(&|standing| standing == Standing::Kept { may_return: true }));
        for number in 0..12 {
            let lists = |(version, it): (u64, &Visible)| it.packs().any(|pack| pack == number).then_some(version);
            let by: Vec<u64> = listing.manifests().filter_map(lists).collect();
            let is_unlisted = by.is_empty() && listing.pack_bytes(number).is_some();
            prop_assert_eq!(listing.unlisted().any(|pack| pack == number), is_unlisted, "pack {}", number);
            prop_assert_eq!(listing.listing(number).collect::<Vec<_>>(), by);
        }
        prop_assert_eq!(listing.all_pack_bytes(), listing.packs.values().sum::<u64>());
        Ok(())
    }

    proptest! {
        #[test]
        fn answers_are_those_of_looking_at_everything(
            keep_last in prop::option::of(0u32..6),
            keep_every in prop::option::of(0u64..6),
            keep_for_ns in prop::option::of(0u64..100),
            changes in prop::collection::vec(changes(), 0..60),
            now in 0u64..150,
        ) {
            let keep = Retention { keep_last, keep_every, keep_for_ns };
            let mut listing = Listing::new(keep, BTreeMap::from([(3, 1), (5, 1)]));
            for change in changes {
                apply(&mut listing, change);
                check(&listing, keep, now)?;
            }
        }
    }
}
