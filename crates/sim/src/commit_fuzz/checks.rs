//! Checks the promises of `docs/store.md` on the simulated disks.

use std::collections::BTreeMap;

use outcrop_commit::LayerIndex;
use outcrop_format::{Manifest, RunId};

use super::{
    disk::Disk,
    world::{Checked, World},
};

impl World {
    /// For every manifest that a crash may leave, the packs of its rank that it lists are there
    /// too.
    pub(super) fn check_disk(&self, rank: usize, layer: LayerIndex) -> Checked {
        let disk = &self.disks[rank][layer];
        for manifest in disk.possible() {
            let own = manifest.packs.iter().filter(|pack| pack.id.rank == rank as u32);
            for pack in own {
                if !disk.surely_has(pack) {
                    let (version, id) = (manifest.version, pack.id);
                    return Err(format!(
                        "after a crash version {version} may lack {id} of rank {rank} on layer {layer}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether every rank has a version on a layer, with everything that it needs, after any crash.
    pub(super) fn is_sure(&self, layer: LayerIndex, version: u64, run: RunId) -> bool {
        let has_all = |manifest: &Manifest| {
            manifest.packs.iter().all(|pack| self.disks[pack.id.rank as usize][layer].surely_has(pack))
        };
        let is_whole = |manifests: Vec<&std::sync::Arc<Manifest>>| manifests.iter().all(|it| has_all(it));
        let Some(ranks) = self.disks[0][layer].sure(version, run).and_then(|all| Some(all.first()?.ranks)) else {
            return false;
        };
        let mut saved_by = self.disks.iter().take(ranks as usize);
        self.disks.len() >= ranks as usize
            && saved_by.all(|disks| disks[layer].sure(version, run).is_some_and(is_whole))
    }

    /// The number of ranks that saved a version.
    pub(super) fn saved_by(&self, version: u64, run: RunId) -> Option<u32> {
        let mut found = self.disks[0].iter().filter_map(|disk| disk.manifest(version));
        found.find(|manifest| manifest.run == run).map(|manifest| manifest.ranks)
    }

    /// Versions that were reported complete are there, unless retention drops them or they were
    /// given up.
    pub(super) fn check_promises(&mut self, layer: LayerIndex) -> Checked {
        let first = self.disks[0][layer].manifests();
        let candidates: Vec<(u64, RunId)> = first.map(|manifest| (manifest.version, manifest.run)).collect();
        let mut complete: BTreeMap<u64, RunId> =
            candidates.into_iter().filter(|(version, run)| self.is_sure(layer, *version, *run)).collect();
        let now = self.run_id();
        let newest = complete.iter().rev().find(|(_, run)| **run == now).map(|(version, _)| *version);
        if let (Some(suspended), Some(newest)) = (&mut self.suspended[layer], newest) {
            // A newer version is complete: older ones in a missing directory need not be kept any
            // more.
            suspended.retain(|version, _| *version > newest);
        }
        self.completed[layer].extend(complete.iter().filter(|(_, run)| **run == now).map(|(version, _)| *version));
        complete.extend(&self.promised[layer]);
        let ages: Vec<(u64, u64)> = complete.keys().map(|version| (*version, 0)).collect();
        let dropped = self.layers[layer].keep.dropped(0, &ages);
        self.promised[layer].retain(|version, _| !dropped.contains(version));
        for (version, run) in &self.promised[layer] {
            if !self.is_sure(layer, *version, *run) {
                return Err(format!("version {version} of run {run} was complete on layer {layer}, and may be lost"));
            }
        }
        Ok(())
    }

    /// A version that is reported complete is on all ranks, after any crash.
    pub(super) fn check_reached(&mut self, version: u64, layer: LayerIndex) -> Checked {
        let run = self.run_id();
        if self.rewinding.is_some_and(|to| to.is_none_or(|to| version > to)) {
            self.completed[layer].insert(version);
            return Ok(());
        }
        self.check_told(version, layer, 0)?;
        // A late report may be about a version that retention has dropped.
        self.completed[layer].insert(version);
        let completed: Vec<(u64, u64)> = self.completed[layer].iter().map(|version| (*version, 0)).collect();
        if !self.layers[layer].keep.dropped(0, &completed).contains(&version) {
            self.promised[layer].insert(version, run);
        }
        self.check_promises(layer)
    }

    /// No version is complete for one rank and failed for another.
    pub(super) fn check_told(&mut self, version: u64, layer: LayerIndex, what: usize) -> Checked {
        let told = self.told.entry((version, layer)).or_default();
        told[what] = true;
        if *told == [true, true] && !self.is_lossy && self.ranks.iter().all(|rank| rank.is_alive) {
            return Err(format!("version {version} is complete for one rank and failed for another on layer {layer}"));
        }
        Ok(())
    }

    /// The session is about to forget versions, so they are not promised any more.
    pub(super) fn give_up_above(&mut self, to: Option<u64>) {
        for promised in &mut self.promised {
            promised.retain(|version, _| to.is_some_and(|to| *version <= to));
        }
        for suspended in self.suspended.iter_mut().flatten() {
            suspended.retain(|version, _| to.is_some_and(|to| *version <= to));
        }
    }

    /// The session is about to forget versions that are not whole: they are not promised any more.
    pub(super) fn give_up_unread(&mut self) {
        self.suspended.iter_mut().flatten().for_each(BTreeMap::clear);
        for (layer, promised) in self.promised.iter_mut().enumerate() {
            promised.retain(|version, _| !self.disks.iter().any(|disks| disks[layer].unreadable.contains(version)));
        }
    }

    /// All ranks find the same versions, and all that were promised.
    pub(super) fn check_found(&mut self) -> Checked {
        for layer in 0..self.layers.len() {
            let found = self.found_on(0, layer);
            for rank in 0..self.ranks.len() {
                if self.found_on(rank, layer) != found {
                    return Err(format!("rank {rank} finds other versions on layer {layer} than rank 0"));
                }
                self.check_disk(rank, layer)?;
            }
            self.check_promises(layer)?;
            for (version, run) in &self.promised[layer] {
                // A later run may have saved the same version, complete on another layer: then that
                // one counts.
                let known = self.ranks[0].versions.get(version).map(|progress| progress.run);
                let is_unread = || self.disks.iter().any(|disks| disks[layer].unreadable.contains(version));
                if found.get(version) != Some(run) && known.is_none_or(|known| known == *run) && !is_unread() {
                    return Err(format!("version {version} was complete on layer {layer}, and is not found"));
                }
            }
            // What cannot be read now may be whole at the next opening. If another run has saved it
            // since, on another layer, then that counts.
            let disks = &self.disks;
            let versions = &self.ranks[0].versions;
            self.promised[layer].retain(|version, run| {
                disks.iter().any(|disks| disks[layer].unreadable.contains(version))
                    && versions.get(version).is_none_or(|progress| progress.run == *run)
            });
            self.promised[layer].extend(found);
            self.check_promises(layer)?;
        }
        Ok(())
    }

    /// Everything has ended, on all ranks.
    pub(super) fn check_end(&self, is_closing: bool, end: usize) -> Checked {
        if self.has_left_out && !is_closing {
            return Ok(());
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            if !rank.is_alive {
                continue;
            }
            if let Some((version, _)) = rank.versions.iter().find(|(_, it)| !it.is_settled()) {
                return Err(format!("rank {index} waits for version {version} for ever"));
            }
            let are_all_there = self.ranks.iter().all(|rank| rank.is_alive && !rank.has_quit);
            if rank.position < end && !self.has_left_out && are_all_there {
                return Err(format!("rank {index} waits in operation {} of {end} for ever", rank.position));
            }
            if is_closing && !rank.has_ended {
                return Err(format!("rank {index} does not end"));
            }
        }
        // If ranks share packs, a pack that others do not need any more is removed when its owner
        // checks the next time. While a version is kept that may become complete again, nothing is
        // removed.
        if is_closing
            && !self.has_fault
            && !self.is_shared
            && !self.was_missing
            && self.ranks.iter().all(|rank| rank.is_alive)
        {
            return self.check_garbage();
        }
        Ok(())
    }

    /// A rank writes a version. It must not replace one that may become complete again.
    pub(super) fn check_written(&mut self, rank: usize, version: u64, layer: LayerIndex) -> Checked {
        let now = self.run_id();
        let has_read =
            |disk: &Disk| disk.manifest(version).is_some_and(|it| it.run != now) && !disk.unreadable.contains(&version);
        if !self.disks.iter().any(|disks| has_read(&disks[layer])) {
            // Nobody could read it, and the program saves it anew.
            self.promised[layer].remove(&version);
            self.suspended[layer].as_mut().and_then(|suspended| suspended.remove(&version));
        }
        let replaced = self.disks[rank][layer].manifest(version).map(|manifest| manifest.run);
        let suspended = self.suspended[layer].as_ref().and_then(|suspended| suspended.get(&version).copied());
        match suspended.filter(|run| Some(*run) == replaced) {
            None => Ok(()),
            Some(run) => Err(format!("version {version} of run {run} might have been whole again on layer {layer}")),
        }
    }

    /// After incomplete versions are forgotten, all that is there is complete, and everything is
    /// needed.
    pub(super) fn check_left(&self) -> Checked {
        for (rank, disks) in self.disks.iter().enumerate() {
            for (layer, disk) in disks.iter().enumerate() {
                if let Some(it) = disk.manifests().find(|it| !self.is_sure(layer, it.version, it.run)) {
                    return Err(format!("version {} stays on layer {layer}, and only rank {rank} has it", it.version));
                }
            }
        }
        self.check_garbage()
    }

    /// If nothing has failed, there is no garbage.
    fn check_garbage(&self) -> Checked {
        for (rank, disks) in self.disks.iter().enumerate() {
            for (layer, disk) in disks.iter().enumerate() {
                let listed = self.listed(rank, layer);
                if let Some(number) = disk.packs().find(|number| !listed.contains(number)) {
                    return Err(format!("pack {number} of rank {rank} on layer {layer} stays, and nobody needs it"));
                }
            }
        }
        Ok(())
    }
}
