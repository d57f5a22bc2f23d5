//! One world: ranks with their ledgers, disks, and everything that is moving.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fastrand::Rng;
use outcrop_commit::{Action, Event, LayerIndex, LayerSettings, Ledger, Outcome, Report, SaveId, Step};
use outcrop_format::{Manifest, News, RunId};
use outcrop_plan::Retention;

use super::{
    disk::{Disk, File, Name},
    program::{Content, Op, Packer, Progress, Saving, Stage, Transfer, candidate},
};
use crate::fuzz::Coverage;

/// The error describes the problem.
pub(super) type Checked<T = ()> = Result<T, String>;

/// How many of the last events are kept for a report.
const LAST: usize = 120;

/// How many versions may be in flight at once.
const IN_FLIGHT: usize = 2;

/// One rank of a run.
pub(super) struct Rank {
    pub(super) ledger: Ledger,
    /// Events from the packer, the engine and the program, in this order.
    pub(super) inbox: VecDeque<Event>,
    /// By layer: the pending step.
    pub(super) steps: Vec<Option<Step>>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) content: Content,
    pub(super) versions: BTreeMap<u64, Progress>,
    /// The next operation of the script, and its stage.
    pub(super) position: usize,
    pub(super) stage: Stage,
    pub(super) forgotten: Option<Result<(), String>>,
    pub(super) is_alive: bool,
    /// It knows that another rank is dead.
    pub(super) is_alone: bool,
    /// Its program has ended its session after a failure.
    pub(super) has_quit: bool,
    pub(super) is_closed: bool,
    pub(super) has_ended: bool,
    /// By rank: what was announced to it, and is not delivered yet.
    pub(super) mail: Vec<VecDeque<News>>,
    /// What was delivered, and may be delivered again.
    pub(super) stale: Vec<(u32, News)>,
}

/// See the module's documentation.
pub(super) struct World {
    pub(super) random: Rng,
    pub(super) layers: Vec<LayerSettings>,
    pub(super) is_shared: bool,
    /// Messages may be lost. Then a rank may wait forever.
    pub(super) is_lossy: bool,
    pub(super) may_fault: bool,
    pub(super) now: u64,
    pub(super) run_number: u128,
    pub(super) next_serial: u128,
    pub(super) ranks: Vec<Rank>,
    /// How many ranks there are in this run.
    pub(super) count: usize,
    /// By rank and layer, also of former ranks.
    pub(super) disks: Vec<Vec<Disk>>,
    /// By former rank and layer: who has adopted its directory.
    pub(super) adopted: BTreeMap<(usize, LayerIndex), usize>,
    /// Missing directories.
    pub(super) missing: BTreeMap<(usize, LayerIndex), Disk>,
    /// Whether a directory was ever missing.
    pub(super) was_missing: bool,
    pub(super) script: Vec<Op>,
    pub(super) next_version: u64,
    /// By layer: versions that were reported complete, and not given up since.
    pub(super) promised: Vec<BTreeMap<u64, RunId>>,
    /// Promises that are suspended until missing directories come back.
    pub(super) suspended: Vec<Option<BTreeMap<u64, RunId>>>,
    /// By version and layer, in this run and era: whether some rank was told that it is complete,
    /// and whether some rank was told that it failed.
    pub(super) told: BTreeMap<(u64, LayerIndex), [bool; 2]>,
    /// By layer: versions that were complete in this run and era, whether any rank was told or not.
    pub(super) completed: Vec<BTreeSet<u64>>,
    /// By layer: versions that were found, and may become complete again.
    pub(super) returning: Vec<BTreeSet<u64>>,
    /// Some ranks rewind, perhaps not all yet: versions above this one are not promised.
    pub(super) rewinding: Option<Option<u64>>,
    /// A rank has left a version out in this run: the others wait until it announces a later one,
    /// or ends.
    pub(super) has_left_out: bool,
    /// Whether something has failed in this run.
    pub(super) has_fault: bool,
    pub(super) coverage: Coverage,
    last: VecDeque<String>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let ranks = random.usize(1..=4);
        let count = random.usize(1..=3);
        let keep = |random: &mut Rng| match random.u8(..4) {
            0 => Retention::default(),
            1 => Retention { keep_every: Some(3), ..Retention::default() },
            _ => Retention { keep_last: Some(random.u32(1..4)), ..Retention::default() },
        };
        let layers = (0..count).map(|_| LayerSettings { keep: keep(&mut random), is_limited: random.bool() }).collect();
        let (is_shared, is_lossy) = (ranks > 1 && random.bool(), random.u8(..5) == 0);
        let may_fault = random.u8(..4) > 0;
        Self {
            layers,
            is_shared,
            is_lossy,
            may_fault,
            now: 1,
            run_number: 0,
            next_serial: 0,
            ranks: Vec::new(),
            count: ranks,
            disks: vec![vec![Disk::default(); count]; ranks],
            adopted: BTreeMap::new(),
            missing: BTreeMap::new(),
            was_missing: false,
            script: Vec::new(),
            next_version: 0,
            promised: vec![BTreeMap::new(); count],
            suspended: vec![None; count],
            told: BTreeMap::new(),
            completed: vec![BTreeSet::new(); count],
            returning: Vec::new(),
            rewinding: None,
            has_left_out: false,
            has_fault: false,
            coverage: Coverage { seeds: 1, ..Coverage::default() },
            last: VecDeque::with_capacity(LAST),
            random,
        }
    }

    pub(super) fn last(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }

    pub(super) fn note(&mut self, line: String) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(super) fn run_id(&self) -> RunId {
        RunId(self.run_number)
    }

    /// Runs several runs.
    pub(super) fn run(&mut self) -> Checked {
        for _ in 0..self.random.u32(1..5) {
            self.open()?;
            for _ in 0..self.random.u32(50..400) {
                self.step()?;
            }
            match self.random.u8(..3) {
                0 => self.calm()?,
                1 if self.ranks.len() > 1 => self.die()?,
                _ => {}
            }
            self.crash();
        }
        self.is_lossy = false;
        self.may_fault = false;
        self.bring_back();
        self.open()?;
        (0..100).try_for_each(|_| self.step())?;
        self.calm()?;
        // Once more, to remove what ranks do not need from each other any more.
        self.open()?;
        self.script.push(Op::Forget);
        self.calm()?;
        self.check_left()
    }

    /// Whether something fails now.
    fn fails(&mut self) -> bool {
        let fails = self.may_fault && self.random.u8(..25) == 0;
        self.coverage.faults += u64::from(fails);
        self.has_fault |= fails;
        fails
    }

    /// Does something random on a random rank.
    fn step(&mut self) -> Checked {
        let rank = self.random.usize(..self.ranks.len());
        if !self.ranks[rank].is_alive {
            return Ok(());
        }
        match self.random.u8(..12) {
            0 | 1 => self.act(rank),
            2 | 3 => self.transfer(rank),
            4..=6 => self.take(rank),
            7..=9 => self.perform(rank),
            10 => self.deliver(rank),
            _ => self.tidy(rank),
        }
    }

    /// Lets everything end, without new faults and new operations. All learn who is dead.
    fn calm(&mut self) -> Checked {
        let could_fault = std::mem::replace(&mut self.may_fault, false);
        let end = self.script.len();
        for is_closing in [false, true] {
            // More rounds than anything can need.
            for _ in 0..2000 {
                let before = self.coverage.events;
                if self.ranks.iter().any(|rank| !rank.is_alive) {
                    (0..self.ranks.len()).for_each(|rank| self.learn_of_death(rank));
                }
                for rank in (0..self.ranks.len()).filter(|rank| self.ranks[*rank].is_alive).collect::<Vec<_>>() {
                    if is_closing {
                        self.close(rank);
                    } else if self.ranks[rank].position < end {
                        self.act(rank)?;
                    }
                    self.transfer(rank)?;
                    self.take(rank)?;
                    self.perform(rank)?;
                    self.deliver(rank)?;
                    self.tidy(rank)?;
                }
                if self.coverage.events == before {
                    break;
                }
            }
            if !self.is_lossy {
                self.check_end(is_closing, end)?;
            }
        }
        self.may_fault = could_fault;
        Ok(())
    }

    /// The program of a rank closes its session once nothing is in flight.
    fn close(&mut self, rank: usize) {
        let me = &mut self.ranks[rank];
        if !me.is_closed && me.versions.values().all(Progress::is_settled) {
            me.is_closed = true;
            me.inbox.push_back(Event::Closed);
            self.coverage.events += 1;
        }
    }

    /// One rank dies. The others learn about it at some time.
    fn die(&mut self) -> Checked {
        let dead = self.random.usize(..self.ranks.len());
        self.ranks[dead].is_alive = false;
        for _ in 0..self.random.u32(..200) {
            self.step()?;
            let rank = self.random.usize(..self.ranks.len());
            if self.random.u8(..30) == 0 {
                self.learn_of_death(rank);
            }
        }
        Ok(())
    }

    /// A rank learns that another one is dead.
    fn learn_of_death(&mut self, rank: usize) {
        let me = &mut self.ranks[rank];
        if me.is_alive && !std::mem::replace(&mut me.is_alone, true) {
            me.inbox.push_back(Event::Alone { reason: "a rank is gone".to_owned() });
            self.coverage.events += 1;
        }
    }

    /// The program of a rank continues.
    fn act(&mut self, rank: usize) -> Checked {
        let position = self.ranks[rank].position;
        if self.ranks[rank].has_quit {
            self.close(rank);
            return Ok(());
        }
        if position == self.script.len() {
            let op = self.next_op();
            self.script.push(op);
        }
        let before = (self.ranks[rank].position, self.ranks[rank].stage);
        match self.script[position] {
            Op::Save(version) => self.act_save(rank, version),
            op @ (Op::Rewind(_) | Op::Forget) => self.act_forget(rank, op),
            Op::Restore => self.act_restore(rank)?,
        }
        self.coverage.events += u64::from(before != (self.ranks[rank].position, self.ranks[rank].stage));
        Ok(())
    }

    fn next_op(&mut self) -> Op {
        match self.random.u8(..16) {
            0 if self.next_version > 0 => {
                let to = self.random.u64(..self.next_version);
                let to = (self.random.u8(..4) > 0).then_some(to);
                self.next_version = to.map_or(0, |to| to + 1);
                Op::Rewind(to)
            }
            1 => Op::Restore,
            2 if self.random.u8(..4) == 0 => Op::Forget,
            _ => {
                self.next_version += 1 + u64::from(self.random.u8(..8) == 0);
                while self.is_taken(self.next_version - 1) {
                    if self.may_fault && self.random.u8(..8) == 0 {
                        // A program that ignores a failure must not succeed.
                        self.has_fault = true;
                        break;
                    }
                    self.next_version += 1;
                }
                Op::Save(self.next_version - 1)
            }
        }
    }

    /// Whether a save must refuse this number, because an existing version with it may become
    /// complete again.
    fn is_taken(&self, version: u64) -> bool {
        self.returning.iter().any(|returning| returning.contains(&version))
    }

    fn act_save(&mut self, rank: usize, version: u64) {
        let me = &self.ranks[rank];
        let on_their_way = me.versions.values().filter(|it| !it.is_settled()).count();
        if me.stage == Stage::Before && on_their_way >= IN_FLIGHT {
            return;
        }
        if self.is_shared {
            self.ranks[rank].stage = Stage::Waiting;
            let position = self.ranks[rank].position;
            let is_here = |it: &Rank| it.position == position && it.stage == Stage::Waiting;
            if self.ranks.iter().all(is_here) {
                self.save_together(version);
            }
            return;
        }
        self.ranks[rank].position += 1;
        if self.ranks.len() > 1 && self.may_fault && self.random.u8(..40) == 0 {
            // It leaves this version out.
            (self.has_fault, self.has_left_out) = (true, true);
            return;
        }
        let mut attempt = 1;
        while self.fails() && attempt < 3 {
            self.pack(rank, SaveId { version, attempt }, None);
            attempt += 1;
        }
        self.pack(rank, SaveId { version, attempt }, Some(&[]));
    }

    /// All ranks save a version and share blocks, or none does.
    fn save_together(&mut self, version: u64) {
        let losses: Vec<u64> = self.ranks.iter().map(|rank| rank.content.losses).collect();
        let mut is_failed = self.fails();
        for rank in &mut self.ranks {
            let content = &mut rank.content;
            if content.is_full() || content.losses_before.is_empty() {
                content.losses_before.clone_from(&losses);
            } else if content.losses_before != losses {
                content.is_broken = true;
                is_failed = true;
            }
        }
        let mut offered = Vec::new();
        for rank in 0..self.ranks.len() {
            let save = SaveId { version, attempt: 1 };
            let made = self.pack(rank, save, (!is_failed).then_some(&offered[..]));
            offered.extend(made);
            self.ranks[rank].position += 1;
            self.ranks[rank].stage = Stage::Before;
        }
    }

    /// Packs a version, or fails to. Returns the packs that others may refer to.
    fn pack(
        &mut self,
        rank: usize,
        save: SaveId,
        offered: Option<&[outcrop_format::ManifestPack]>,
    ) -> Vec<outcrop_format::ManifestPack> {
        let (run, ranks, layers) = (self.run_id(), self.ranks.len() as u32, self.layers.len());
        let me = &mut self.ranks[rank];
        let mut packer = Packer {
            random: &mut self.random,
            content: &mut me.content,
            events: Vec::new(),
            made: Vec::new(),
            offered: Vec::new(),
            next_serial: &mut self.next_serial,
        };
        match offered {
            Some(offered) => {
                let saving = Saving { rank: rank as u32, ranks, run, save, now: self.now };
                packer.save(saving, offered);
            }
            None => packer.fail(rank as u32, save),
        }
        let Packer { events, made, offered, .. } = packer;
        let nothing = Progress { attempt: save.attempt, run, layers: vec![None; layers], there: vec![false; layers] };
        me.versions.insert(save.version, nothing);
        me.inbox.extend(events);
        let to_all = |pack| (0..layers).map(move |layer| Transfer { pack, layer });
        me.transfers.extend(made.iter().copied().flat_map(to_all));
        offered
    }

    /// A rank forgets versions: those above a given one, or those that not all ranks have.
    fn act_forget(&mut self, rank: usize, op: Op) {
        let me = &self.ranks[rank];
        let is_settled = me.versions.values().all(Progress::is_settled) || op == Op::Forget;
        match me.stage {
            Stage::Before if is_settled && me.inbox.is_empty() => {
                let event = if let Op::Rewind(to) = op {
                    self.rewinding = Some(to);
                    self.give_up_above(to);
                    Event::Rewind(to)
                } else {
                    self.give_up_unread();
                    Event::ForgetIncomplete
                };
                self.ranks[rank].stage = Stage::Under;
                self.ranks[rank].inbox.push_back(event);
            }
            Stage::Under => match self.ranks[rank].forgotten.take() {
                None => {}
                Some(Ok(())) => {
                    if let Op::Rewind(to) = op {
                        let versions = &mut self.ranks[rank].versions;
                        versions.retain(|version, _| to.is_some_and(|to| *version <= to));
                    }
                    self.ranks[rank].stage = Stage::Waiting;
                }
                // The program ends, or only its session.
                Some(Err(_)) if self.random.bool() => self.ranks[rank].is_alive = false,
                Some(Err(_)) => self.ranks[rank].has_quit = true,
            },
            Stage::Before => {}
            Stage::Waiting => {
                let position = self.ranks[rank].position;
                if self.ranks.iter().all(|it| it.position == position && it.stage == Stage::Waiting) {
                    let is_left = |version: &u64| matches!(op, Op::Rewind(Some(to)) if *version <= to);
                    self.returning.iter_mut().for_each(|returning| returning.retain(is_left));
                    if let Op::Rewind(_) = op {
                        self.told.clear();
                        self.completed.iter_mut().for_each(BTreeSet::clear);
                        self.rewinding = None;
                    }
                    self.go_on();
                }
            }
        }
    }

    /// All ranks continue after a collective operation.
    fn go_on(&mut self) {
        for rank in &mut self.ranks {
            rank.position += 1;
            rank.stage = Stage::Before;
        }
    }

    fn act_restore(&mut self, rank: usize) -> Checked {
        let me = &mut self.ranks[rank];
        match me.stage {
            Stage::Before => {
                me.stage = Stage::Under;
                me.inbox.push_back(Event::Reading(true));
            }
            Stage::Under => {
                let is_removing = |step: &Option<Step>| matches!(step, Some(Step::Drop { .. } | Step::Remove { .. }));
                if me.inbox.is_empty() && !me.steps.iter().any(is_removing) {
                    me.stage = Stage::Waiting;
                }
            }
            Stage::Waiting => {
                let position = me.position;
                if self.ranks.iter().all(|it| it.position == position && it.stage == Stage::Waiting) {
                    let of_ranks: Vec<_> = self.ranks.iter().map(|it| &it.versions).collect();
                    let candidate = candidate(&of_ranks);
                    for rank in 0..self.ranks.len() {
                        candidate.map_or(Ok(()), |(version, run)| self.restore(rank, version, run))?;
                        self.ranks[rank].inbox.push_back(Event::Reading(false));
                    }
                    self.go_on();
                }
            }
        }
        Ok(())
    }

    /// A rank reads a version. The next one is based on it, if it is the same on all layers.
    fn restore(&mut self, rank: usize, version: u64, run: RunId) -> Checked {
        let progress = self.ranks[rank].versions[&version].clone();
        let saved_by = self.saved_by(version, run);
        if saved_by != Some(self.count as u32) {
            // All parts are read, and the next version is a full one. A rank to which messages got
            // lost may not know that others have dropped the version on some layer.
            let is_there = |it: &Rank, layer: usize| it.versions.get(&version).is_some_and(|it| it.there[layer]);
            for layer in (0..self.layers.len()).filter(|layer| self.ranks.iter().all(|it| is_there(it, *layer))) {
                if !self.is_sure(layer, version, run) {
                    return Err(format!("rank {rank} cannot restore version {version} of {saved_by:?} from {layer}"));
                }
            }
            self.ranks[rank].content.reset();
            self.ranks[rank].inbox.push_back(Event::Based { version, packs: Vec::new() });
            return Ok(());
        }
        let mut packs = None;
        for layer in (0..self.layers.len()).filter(|layer| progress.there[*layer]) {
            let manifest = self.disks[rank][layer].manifest(version).filter(|it| it.run == run);
            let manifest =
                manifest.ok_or_else(|| format!("rank {rank} cannot restore version {version} from {layer}"))?;
            for pack in &manifest.packs {
                let is_there = self.disks[pack.id.rank as usize][layer].packs().any(|number| number == pack.id.number);
                if !is_there {
                    return Err(format!("rank {rank}: {pack:?} of version {version} is gone from {layer}"));
                }
            }
            packs.get_or_insert_with(|| manifest.packs.clone());
        }
        let is_same = |disk: &Disk| {
            disk.manifest(version)
                .is_some_and(|it: &std::sync::Arc<Manifest>| it.run == run && Some(&it.packs) == packs.as_ref())
        };
        let is_everywhere = !progress.there.contains(&false) && self.disks[rank].iter().all(is_same);
        let content = &mut self.ranks[rank].content;
        content.reset();
        let packs = packs.filter(|_| is_everywhere).unwrap_or_default();
        (content.borrows, content.chain) = packs.into_iter().partition(|pack| pack.is_borrowed);
        let own = content.chain.iter().chain(&content.borrows).filter(|pack| pack.id.rank == rank as u32);
        let packs = own.map(|pack| pack.id.number).collect();
        self.ranks[rank].inbox.push_back(Event::Based { version, packs });
        Ok(())
    }

    /// The engine ends a transfer.
    fn transfer(&mut self, rank: usize) -> Checked {
        if self.ranks[rank].transfers.is_empty() {
            return Ok(());
        }
        let index = self.random.usize(..self.ranks[rank].transfers.len());
        let Transfer { pack, layer } = self.ranks[rank].transfers.swap_remove(index);
        let failure = self.fails().then(|| "not written".to_owned());
        self.coverage.events += 1;
        if failure.is_none() {
            self.disks[rank][layer].put(Name::Pack(pack.id.number), Some(File::Pack(pack.index_check)));
        }
        // The engine does not wait for the packer to say what else it makes.
        let inbox = &mut self.ranks[rank].inbox;
        let is_made = |event: &Event| matches!(event, Event::Expected { pack: made, .. } if made.id == pack.id);
        let earliest = inbox.iter().position(is_made).map_or(0, |made| made + 1);
        let at = self.random.usize(earliest..=inbox.len());
        inbox.insert(at, Event::Arrived { number: pack.id.number, layer, failure });
        Ok(())
    }

    /// A rank handles an event from its own threads.
    fn take(&mut self, rank: usize) -> Checked {
        match self.ranks[rank].inbox.pop_front() {
            Some(event) => self.tell(rank, event),
            None => Ok(()),
        }
    }

    /// A rank carries out one of its pending steps.
    fn perform(&mut self, rank: usize) -> Checked {
        let asked: Vec<LayerIndex> =
            (0..self.layers.len()).filter(|it| self.ranks[rank].steps[*it].is_some()).collect();
        let Some(&layer) = self.random.choice(&asked) else { return Ok(()) };
        let Some(step) = self.ranks[rank].steps[layer].take() else { return Ok(()) };
        // Who looks has to read the manifests of the others, too.
        let is_obscure = |disks: &Vec<Disk>| !disks[layer].unreadable.is_empty();
        let fails = self.fails()
            || (matches!(step, Step::Look | Step::Clear { .. })
                && self.disks.iter().any(is_obscure)
                && (step != Step::Look || self.random.bool()));
        let next_number = self.ranks[rank].content.next_number;
        let dropped = match &step {
            Step::Drop { version } => self.disks[rank][layer].readable().find(|it| it.version == *version).cloned(),
            _ => None,
        };
        let mut failed = Outcome::Failed { reason: "it failed".to_owned(), may_be_visible: false, next_number };
        let written = self.manifest_of(&step, rank, layer)?;
        if let Step::Write { manifest, .. } = &step {
            self.check_written(rank, manifest.version, layer)?;
        }
        match &step {
            Step::Drop { version } => self.drop_former(rank, layer, *version, fails)?,
            Step::Clear { stale } if !fails => self.clear(rank, layer, stale)?,
            _ => {}
        }
        let disk = &mut self.disks[rank][layer];
        match &step {
            Step::Sync if fails => disk.fail_sync(&mut self.random),
            Step::Sync => disk.sync(),
            Step::Write { .. } | Step::Rewrite { .. } if !fails || self.random.bool() => {
                if let Some(written) = written {
                    disk.put(Name::Version(written.version), Some(File::Manifest(written.into())));
                }
                match fails {
                    false => disk.sync(),
                    true => {
                        disk.fail_sync(&mut self.random);
                        failed = Outcome::Failed { reason: "not synced".to_owned(), may_be_visible: true, next_number };
                    }
                }
            }
            Step::Drop { version } if !fails => disk.put(Name::Version(*version), None),
            Step::Remove { number, .. } if !fails => disk.put(Name::Pack(*number), None),
            Step::Write { .. } | Step::Rewrite { .. } | Step::Drop { .. } | Step::Remove { .. } => {}
            Step::Look | Step::Clear { .. } => {}
        }
        let outcome = match (&step, fails) {
            (_, true) => failed,
            (Step::Drop { .. }, false) => dropped.map_or(Outcome::Done, Outcome::Dropped),
            (Step::Look, false) => Outcome::Borrowed(self.borrowed(rank, layer)),
            _ => Outcome::Done,
        };
        // The rank may die here, before it knows the result of the step.
        self.check_disk(rank, layer)?;
        self.check_promises(layer)?;
        self.tell(rank, Event::Done { layer, outcome })
    }

    /// The manifest that a step writes, if it writes one.
    fn manifest_of(&self, step: &Step, rank: usize, layer: LayerIndex) -> Checked<Option<Manifest>> {
        match step {
            Step::Write { manifest, packs } => Ok(Some(Manifest { packs: packs.clone(), ..(**manifest).clone() })),
            Step::Rewrite { version, merges } => {
                let there = self.disks[rank][layer].manifest(*version);
                let mut manifest = (**there.ok_or_else(|| format!("version {version} is not there"))?).clone();
                match merges.iter().all(|merge| merge.apply(rank as u32, &mut manifest.packs)) {
                    true => Ok(Some(manifest)),
                    false => Err(format!("version {version} does not list what was merged: {:?}", manifest.packs)),
                }
            }
            _ => Ok(None),
        }
    }

    fn borrowed(&self, rank: usize, layer: LayerIndex) -> BTreeSet<u64> {
        let others = self.disks.iter().enumerate().filter(|(other, _)| *other != rank);
        let packs = others.flat_map(|(_, disks)| disks[layer].manifests()).flat_map(|manifest| &manifest.packs);
        packs.filter(|pack| pack.id.rank == rank as u32).map(|pack| pack.id.number).collect()
    }

    /// Delivers an announcement of another rank.
    fn deliver(&mut self, rank: usize) -> Checked {
        let from = self.random.usize(..self.ranks.len());
        if self.may_fault && self.random.u8(..10) == 0 {
            let stale = &self.ranks[rank].stale;
            if let Some((from, news)) = self.random.choice(stale).cloned() {
                return self.tell(rank, Event::Heard { rank: from, news });
            }
        }
        let waiting = (0..self.ranks.len()).map(|by| (from + by) % self.ranks.len());
        let from = waiting.into_iter().find(|from| !self.ranks[rank].mail[*from].is_empty());
        let Some((from, news)) = from.and_then(|from| Some((from, self.ranks[rank].mail[from].pop_front()?))) else {
            return Ok(());
        };
        if self.is_lossy && self.random.u8(..10) == 0 {
            self.has_fault = true;
            return Ok(());
        }
        let news = News::decode(&news.encode()).map_err(|error| error.to_string())?;
        self.ranks[rank].stale.push((from as u32, news.clone()));
        self.tell(rank, Event::Heard { rank: from as u32, news })
    }

    /// A rank removes garbage.
    fn tidy(&mut self, rank: usize) -> Checked {
        match self.ranks[rank].ledger.poll_idle() {
            Some(action) => self.carry_out(rank, action),
            None => Ok(()),
        }
    }

    /// Sends an event to a rank, and records its actions.
    pub(super) fn tell(&mut self, rank: usize, event: Event) -> Checked {
        if self.ranks[rank].has_ended {
            return Ok(());
        }
        self.coverage.events += 1;
        self.now += 1;
        self.note(format!("rank {rank}: {}", brief(&event)));
        self.ranks[rank].ledger.handle(self.now, event);
        while let Some(action) = self.ranks[rank].ledger.poll() {
            self.carry_out(rank, action)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, rank: usize, action: Action) -> Checked {
        self.note(format!("    -> {action:.200?}"));
        match action {
            Action::Do { layer, step } => {
                let is_removal = matches!(step, Step::Drop { .. } | Step::Remove { .. });
                let is_reading = self.script.get(self.ranks[rank].position) == Some(&Op::Restore);
                if is_removal && is_reading && self.ranks[rank].stage == Stage::Waiting {
                    return Err(format!("rank {rank} removes something while its program reads"));
                }
                match self.ranks[rank].steps[layer].replace(step) {
                    None => Ok(()),
                    Some(step) => Err(format!("rank {rank} has two steps at once on {layer}, one is {step:?}")),
                }
            }
            Action::Announce(news) => {
                for other in (0..self.ranks.len()).filter(|other| *other != rank) {
                    self.ranks[other].mail[rank].push_back(news.clone());
                }
                Ok(())
            }
            Action::Report(report) => self.hear(rank, report),
            Action::Lose => {
                self.ranks[rank].content.is_broken = true;
                self.ranks[rank].content.losses += 1;
                Ok(())
            }
            Action::Reset => {
                self.ranks[rank].content.reset();
                Ok(())
            }
            Action::Release { .. } => Ok(()),
            Action::End => {
                self.ranks[rank].has_ended = true;
                Ok(())
            }
        }
    }

    /// Handles a report to the program of a rank.
    fn hear(&mut self, rank: usize, report: Report) -> Checked {
        let versions = &mut self.ranks[rank].versions;
        let mut settle = |save: SaveId, layer: LayerIndex, is_complete: bool| {
            let progress = versions.get_mut(&save.version).filter(|it| it.attempt == save.attempt);
            let Some(progress) = progress.filter(|it| it.layers[layer].is_none()) else { return false };
            progress.layers[layer] = Some(is_complete);
            progress.there[layer] |= is_complete;
            true
        };
        match report {
            Report::Reached { save, layer } => {
                if settle(save, layer, true) {
                    self.check_reached(save.version, layer)?;
                }
            }
            Report::Failed { save, layer, .. } => {
                if settle(save, layer, false) {
                    self.coverage.refusals += 1;
                    self.check_told(save.version, layer, 1)?;
                    let is_calm = !self.has_fault && !self.is_lossy;
                    if is_calm && self.ranks.iter().all(|it| it.is_alive) {
                        return Err(format!("version {} fails on layer {layer}, and nothing has failed", save.version));
                    }
                }
            }
            Report::Dropped { version, layer } => {
                if let Some(progress) = versions.get_mut(&version) {
                    progress.there[layer] = false;
                }
            }
            Report::Forgotten(result) => self.ranks[rank].forgotten = Some(result),
            Report::Over { .. } => {
                let unsettled = versions.values_mut().flat_map(|it| it.layers.iter_mut());
                unsettled.filter(|layer| layer.is_none()).for_each(|layer| *layer = Some(false));
            }
            Report::Here { .. } | Report::Stays { .. } => {}
        }
        Ok(())
    }
}

/// An event on one line.
fn brief(event: &Event) -> String {
    match event {
        Event::Drafted(draft) => {
            let packs: Vec<_> = draft.manifest.packs.iter().map(|pack| (pack.id.rank, pack.id.number)).collect();
            format!("Drafted {:?}, packs {packs:?}, losses {}", draft.save, draft.losses)
        }
        other => format!("{other:.200?}"),
    }
}
