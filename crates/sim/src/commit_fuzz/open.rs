//! Restarts: crashes, directories that disappear and come back, and what a session finds when it is
//! opened again.

use std::collections::{BTreeMap, VecDeque};

use outcrop_commit::{Event, Everybody, Ledger, Settings};
use outcrop_format::{Held, Holdings, RunId};

use super::{
    disk::Disk,
    program::{Content, Progress, Stage},
    world::{Checked, Rank, World},
};

impl World {
    /// All processes end, by a power failure or because they are killed. After that, some
    /// directories are missing, or are back.
    pub(super) fn crash(&mut self) {
        let is_power_cut = self.random.bool();
        self.note(format!("everything ends, by a power cut: {is_power_cut}"));
        for disks in &mut self.disks {
            disks.iter_mut().for_each(|disk| disk.crash(&mut self.random, is_power_cut));
        }
        self.ranks.clear();
        self.lose_nodes();
        self.choose_count();
        if self.missing.is_empty() && self.disks.len() > 1 && self.may_fault && self.random.u8(..4) == 0 {
            let (rank, layer) = (self.random.usize(..self.disks.len()), self.random.usize(..self.layers.len()));
            self.note(format!("the directory of rank {rank} on layer {layer} is missing"));
            let disk = std::mem::take(&mut self.disks[rank][layer]);
            self.missing.insert((rank, layer), disk);
            self.was_missing = true;
            self.suspended[layer] = Some(std::mem::take(&mut self.promised[layer]));
        } else if self.random.bool() {
            self.bring_back();
        }
    }

    /// Nodes are lost with all that they had on the first layer. The last layer stands for parity,
    /// which other nodes keep: before the session is opened again, what is there is made again on
    /// the first one, its mark included. What had not got there yet is not promised any more.
    fn lose_nodes(&mut self) {
        let parity = self.layers.len() - 1;
        if parity == 0 || self.is_shared || !self.missing.is_empty() || self.random.u8(..3) > 0 {
            return;
        }
        for rank in 0..self.disks.len() {
            if self.random.u8(..3) == 0 {
                self.note(format!("the node of rank {rank} is lost"));
                self.disks[rank][0] = self.disks[rank][parity].clone();
                self.coverage.faults += 1;
            }
        }
        let promised = std::mem::take(&mut self.promised[0]);
        self.promised[0] = promised.into_iter().filter(|(version, run)| self.is_sure(0, *version, *run)).collect();
    }

    /// Missing directories are back, in place of what was written there meanwhile.
    pub(super) fn bring_back(&mut self) {
        for ((rank, layer), disk) in std::mem::take(&mut self.missing) {
            self.note(format!("the directory of rank {rank} on layer {layer} is back"));
            self.disks[rank][layer] = disk;
            // A version that was complete with the other directory is not complete with this one.
            // Otherwise everything is as before.
            self.promised[layer] = self.suspended[layer].take().unwrap_or_default();
        }
    }

    /// Opens the session on all ranks.
    pub(super) fn open(&mut self) -> Checked {
        self.run_number += 1;
        let run = self.run_id();
        let count = self.count;
        self.note(format!("run {run} is opened by {count} ranks"));
        self.has_fault = false;
        for disks in &mut self.disks {
            for disk in disks {
                let is_failing = self.may_fault && self.random.u8(..8) == 0;
                disk.obscure(&mut self.random, is_failing);
                self.has_fault |= !disk.unreadable.is_empty();
                self.coverage.faults += disk.unreadable.len() as u64;
            }
        }
        let everybody = self.holdings(run);
        let encoded = everybody.iter().map(|it| Holdings::decode(&it.encode()).map_err(|error| error.to_string()));
        let everybody = Everybody::new(encoded.collect::<Result<Vec<_>, String>>()?);
        if let Some((layer, former)) = everybody.occupied().next() {
            return Err(format!("rank {former} on layer {layer} counts as locked by somebody else"));
        }
        self.ranks.clear();
        for rank in 0..count {
            let found = self.disks[rank].iter().map(Disk::found).collect();
            let settings = Settings {
                rank: rank as u32,
                ranks: count as u32,
                run,
                is_shared: self.is_shared && count > 1,
                layers: self.layers.clone(),
            };
            let ledger = Ledger::open(settings, found, &everybody);
            let versions = everybody.versions();
            let content = Content { next_number: ledger.next_number(), ..Content::default() };
            let progress = |(version, (held, there)): (u64, (Held, Vec<bool>))| {
                let layers = there.iter().map(|is_there| Some(*is_there)).collect();
                (version, Progress { attempt: 0, run: held.run, layers, there })
            };
            self.ranks.push(Rank {
                ledger,
                inbox: VecDeque::from([Event::Reading(false)]),
                steps: vec![None; self.layers.len()],
                transfers: Vec::new(),
                content,
                versions: versions.into_iter().map(progress).collect(),
                position: 0,
                stage: Stage::Before,
                forgotten: None,
                is_alive: true,
                is_alone: false,
                has_quit: false,
                is_closed: false,
                has_ended: false,
                mail: vec![VecDeque::new(); count],
                stale: Vec::new(),
            });
        }
        // A run that ends here has not marked all directories, and has saved nothing.
        for rank in 0..count {
            for layer in 0..self.layers.len() {
                self.disks[rank][layer].runs = self.ranks[rank].ledger.marks(layer, &everybody);
            }
        }
        self.script.clear();
        self.told.clear();
        self.completed.iter_mut().for_each(std::collections::BTreeSet::clear);
        self.rewinding = None;
        self.has_left_out = false;
        self.returning = everybody.returning();
        self.check_found()?;
        let newest = self.ranks[0].versions.last_key_value().map(|(version, _)| version + 1);
        self.next_version = newest.unwrap_or(0);
        Ok(())
    }

    /// The versions that a rank has found complete on a layer.
    pub(super) fn found_on(&self, rank: usize, layer: usize) -> BTreeMap<u64, RunId> {
        let there = self.ranks[rank].versions.iter().filter(|(_, it)| it.there[layer]);
        there.map(|(version, it)| (*version, it.run)).collect()
    }
}
