//! Former ranks: a run of fewer ranks adopts the directories of those that it does not have.

use std::collections::BTreeSet;

use outcrop_commit::LayerIndex;
use outcrop_format::{Former, Holdings, RunId};

use super::{
    disk::{Disk, Name},
    world::{Checked, World},
};

impl World {
    /// The next run may have another number of ranks.
    pub(super) fn choose_count(&mut self) {
        if self.random.u8(..3) == 0 {
            self.count = self.random.usize(1..=5);
            let layers = self.layers.len();
            let count = self.disks.len().max(self.count);
            self.disks.resize_with(count, || vec![Disk::default(); layers]);
        }
    }

    /// What each rank tells the others when the session is opened. Any rank may be the first to
    /// lock the directory of a former rank.
    pub(super) fn holdings(&mut self, run: RunId) -> Vec<Holdings> {
        let layers = |disks: &Vec<Disk>| disks.iter().map(Disk::held).collect();
        let holdings = |disks| Holdings { proposal: run, layers: layers(disks), former: Vec::new() };
        let mut everybody: Vec<Holdings> = self.disks.iter().take(self.count).map(holdings).collect();
        self.adopted.clear();
        for former in self.count..self.disks.len() {
            for layer in 0..self.layers.len() {
                if self.missing.contains_key(&(former, layer)) && self.disks[former][layer].is_new() {
                    continue;
                }
                let by = self.random.usize(..self.count);
                self.adopted.insert((former, layer), by);
                for (rank, holdings) in everybody.iter_mut().enumerate() {
                    let held = (rank == by).then(|| self.disks[former][layer].held());
                    holdings.former.push(Former { layer: layer as u32, rank: former as u32, held });
                }
            }
        }
        everybody
    }

    fn adopted_by(&self, rank: usize, layer: LayerIndex) -> Vec<usize> {
        let is_mine =
            |((former, on), by): (&(usize, LayerIndex), &usize)| (*on == layer && *by == rank).then_some(*former);
        self.adopted.iter().filter_map(is_mine).collect()
    }

    /// Removes a version of former ranks, durably, or fails at any of them.
    pub(super) fn drop_former(&mut self, rank: usize, layer: LayerIndex, version: u64, fails: bool) -> Checked {
        let former = self.adopted_by(rank, layer);
        let until = if fails { self.random.usize(..=former.len()) } else { former.len() };
        for (nth, former) in former.into_iter().enumerate().take(until) {
            let disk = &mut self.disks[former][layer];
            if disk.manifest(version).is_some() {
                disk.put(Name::Version(version), None);
            }
            match fails && nth + 1 == until {
                true => disk.fail_sync(&mut self.random),
                false => disk.sync(),
            }
            self.check_disk(former, layer)?;
        }
        Ok(())
    }

    /// Removes manifests of former ranks, and packs that no manifest lists.
    pub(super) fn clear(&mut self, rank: usize, layer: LayerIndex, stale: &BTreeSet<(u64, RunId)>) -> Checked {
        for former in self.adopted_by(rank, layer) {
            let disk = &mut self.disks[former][layer];
            for (version, _) in stale
                .iter()
                .filter(|(version, run)| disk.manifest(*version).is_some_and(|it| it.run == *run))
                .copied()
                .collect::<Vec<_>>()
            {
                disk.put(Name::Version(version), None);
            }
            disk.sync();
        }
        self.check_promises(layer)?;
        for former in self.adopted_by(rank, layer) {
            let listed = self.listed(former, layer);
            let idle: Vec<u64> = self.disks[former][layer].packs().filter(|number| !listed.contains(number)).collect();
            idle.into_iter().for_each(|number| self.disks[former][layer].put(Name::Pack(number), None));
            self.check_disk(former, layer)?;
        }
        Ok(())
    }

    /// The packs of a rank that manifests of any rank list on a layer.
    pub(super) fn listed(&self, rank: usize, layer: LayerIndex) -> Vec<u64> {
        let everywhere = self.disks.iter().flat_map(|disks| disks[layer].manifests());
        let packs = everywhere.flat_map(|manifest| &manifest.packs).filter(|pack| pack.id.rank == rank as u32);
        packs.map(|pack| pack.id.number).collect()
    }
}
