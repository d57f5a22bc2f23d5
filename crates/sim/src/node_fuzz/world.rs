//! The world: files, memory and the daemon; carries out actions, and checks.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use outcrop_format::{JournalRecord, NodePart};
use outcrop_grants::{
    Action, Answer, ClientId, Event, FileId, Grants, HoldSettings, JobId, PAGE_BYTES, PieceSum, Settings, Timestamp,
};

use super::{
    Sabotage,
    actor::{Actor, Doing, Stamp},
};
use crate::fuzz::Coverage;

pub(super) type Checked = Result<(), String>;

/// A file: what it is on the disk, and what it should be to a reader.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    /// Its number for the present daemon.
    pub(super) id: Option<FileId>,
    pub(super) disk: Vec<Stamp>,
    pub(super) truth: Vec<Stamp>,
    /// How often it was cut off or extended.
    pub(super) cuts: u64,
}

/// Work that takes time.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Drain { job: JobId, file: usize, parts: Vec<NodePart>, pieces: Vec<PieceSum>, before: Vec<Stamp> },
    Truncate { file: usize, bytes: u64 },
    Sync { client: ClientId },
    Settle { file: usize },
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) sabotage: Sabotage,
    pub(super) settings: Settings,
    pub(super) now: u64,
    pub(super) grants: Grants,
    pub(super) journal: Vec<JournalRecord>,
    pub(super) memory: Vec<Stamp>,
    pub(super) files: Vec<File>,
    pub(super) actors: Vec<Actor>,
    pub(super) work: Vec<Work>,
    pub(super) next_client: ClientId,
    pub(super) next_file: FileId,
    pub(super) stamp: Stamp,
    /// The stamps of fills, in the order in which the journal has them.
    pub(super) applied: Vec<Stamp>,
    pub(super) is_calm: bool,
    pub(super) coverage: Coverage,
    log: VecDeque<String>,
}

impl World {
    pub(super) fn new(seed: u64, sabotage: Sabotage) -> Self {
        let mut rng = Rng::with_seed(seed);
        let reserve_bytes = rng.u64(4..80) * PAGE_BYTES;
        let mut settings = Settings::new(reserve_bytes);
        settings.drains_max = [1, 2, 4][rng.usize(..3)];
        settings.pieces_max = if rng.bool() { rng.usize(4..40) } else { 1 << 12 };
        settings.drain_bytes_max = [PAGE_BYTES, 64 << 10, 16 << 20][rng.usize(..3)];
        if rng.bool() {
            settings.hold = HoldSettings::NONE;
        } else {
            settings.hold.bytes = rng.u64(..reserve_bytes);
        }
        let files = vec![File::default(); rng.usize(1..=4)];
        let actors = (1..=rng.u64(1..=6)).map(Actor::new).collect::<Vec<_>>();
        Self {
            next_client: actors.len() as u64 + 1,
            grants: Grants::new(settings.clone()),
            memory: vec![0; reserve_bytes as usize],
            settings,
            rng,
            sabotage,
            now: 0,
            journal: Vec::new(),
            files,
            actors,
            work: Vec::new(),
            next_file: 0,
            stamp: 0,
            applied: Vec::new(),
            is_calm: false,
            coverage: Coverage { seeds: 1, ..Coverage::default() },
            log: VecDeque::new(),
        }
    }

    pub(super) fn last(&self) -> Vec<String> {
        self.log.iter().cloned().collect()
    }

    pub(super) fn say(&mut self, text: String) {
        if self.log.len() >= 60 {
            self.log.pop_front();
        }
        self.log.push_back(text);
    }

    /// Tells the daemon. It may die after any of the actions.
    pub(super) fn tell(&mut self, event: Event) -> Checked {
        self.say(format!("{event:?}"));
        self.coverage.events += 1;
        let used = self.grants.used_bytes();
        self.now += self.rng.u64(..50_000_000);
        self.grants.handle(Timestamp(self.now), event);
        self.grants.check()?;
        let most = self.grants.limit_bytes().max(used);
        if self.grants.used_bytes() > most {
            return Err(format!("{} bytes are in use, and {most} may be", self.grants.used_bytes()));
        }
        let dies_after = (!self.is_calm && self.rng.u16(..400) == 0).then(|| self.rng.usize(..6));
        let mut is_covered = false;
        let mut nth = 0;
        while let Some(action) = self.grants.poll() {
            if dies_after == Some(nth) {
                if is_covered {
                    // The journal has the rest of this event already.
                    let rest: Vec<Action> =
                        std::iter::once(action).chain(std::iter::from_fn(|| self.grants.poll())).collect();
                    for action in rest {
                        if let Action::Journal(record) = action {
                            self.apply(&record)?;
                        }
                    }
                }
                return self.daemon_dies();
            }
            nth += 1;
            self.say(format!("    {action:?}"));
            match action {
                Action::Journal(record) => {
                    self.apply(&record)?;
                    if self.sabotage.loses_records && self.rng.u8(..20) == 0 {
                        continue;
                    }
                    if self.rng.u8(..40) == 0 && !is_covered {
                        // The half is full: another one begins, which contains all of this event.
                        self.journal = self.grants.records();
                        is_covered = true;
                    } else if !is_covered {
                        self.journal.push(record);
                    }
                }
                action => self.carry_out(action)?,
            }
        }
        Ok(())
    }

    /// A record is in the journal: from now on it counts, whether its client hears of it or not.
    fn apply(&mut self, record: &JournalRecord) -> Checked {
        match record {
            JournalRecord::Filled(fill) => {
                let index = self.index_of(fill.file)?;
                let end = (fill.part.offset + fill.part.bytes) as usize;
                let file = &mut self.files[index];
                file.truth.resize(file.truth.len().max(end), 0);
                let (at, count) = (fill.part.at as usize, fill.part.bytes as usize);
                file.truth[fill.part.offset as usize..end].copy_from_slice(&self.memory[at..at + count]);
                self.applied.push(self.memory[at]);
            }
            JournalRecord::Cut { file, bytes } => {
                let index = self.index_of(*file)?;
                self.files[index].truth.resize(*bytes as usize, 0);
                self.files[index].cuts += 1;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn index_of(&self, id: FileId) -> Result<usize, String> {
        self.files.iter().position(|file| file.id == Some(id)).ok_or(format!("file {id} was forgotten"))
    }

    fn carry_out(&mut self, action: Action) -> Checked {
        match action {
            Action::Reply { client, answer, .. } => return self.answered(client, answer),
            Action::Drop { client, reason } => return Err(format!("client {client} is dropped: {reason}")),
            Action::Journal(_) | Action::Mark { .. } => {}
            Action::Drain { job, file, parts, pieces } => {
                let file = self.index_of(file)?;
                self.check_drain(file, &parts)?;
                let before = self.read_memory(&parts);
                self.work.push(Work::Drain { job, file, parts, pieces, before });
            }
            Action::Truncate { file, bytes } => {
                let file = self.index_of(file)?;
                let is_beyond = |work: &Work| match work {
                    Work::Drain { file: other, parts, .. } => {
                        *other == file && parts.iter().any(|part| part.offset + part.bytes > bytes)
                    }
                    _ => false,
                };
                if self.work.iter().any(is_beyond) {
                    return Err("a file is cut off while what is beyond is written".to_owned());
                }
                self.work.push(Work::Truncate { file, bytes });
            }
            Action::Sync { client, .. } => self.work.push(Work::Sync { client }),
            Action::Settle { file, .. } => {
                let file = self.index_of(file)?;
                self.work.push(Work::Settle { file });
            }
            Action::Forget { file } => {
                let file = self.index_of(file)?;
                if self.files[file].disk != self.files[file].truth {
                    return Err(format!("file {file} is forgotten, and not drained"));
                }
                self.files[file].id = None;
            }
            Action::GiveBack { range } => {
                self.memory[range.start as usize..range.end as usize].fill(Stamp::MAX);
            }
        }
        Ok(())
    }

    /// No two drains of a file overlap, and none changes what a truncation in flight cuts off.
    fn check_drain(&self, file: usize, parts: &[NodePart]) -> Checked {
        let (start, end) = (parts[0].offset, parts[parts.len() - 1].offset + parts[parts.len() - 1].bytes);
        for pair in parts.windows(2) {
            if pair[0].offset + pair[0].bytes != pair[1].offset {
                return Err("the parts of a drain are not consecutive".to_owned());
            }
        }
        for work in &self.work {
            match work {
                Work::Drain { file: other, parts, .. } if *other == file => {
                    let last = parts[parts.len() - 1];
                    if start < last.offset + last.bytes && parts[0].offset < end {
                        return Err("two drains of a file overlap".to_owned());
                    }
                }
                Work::Truncate { file: other, .. } if *other == file => {
                    return Err("a drain begins while the file is cut off".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn read_memory(&self, parts: &[NodePart]) -> Vec<Stamp> {
        let part = |part: &NodePart| &self.memory[part.at as usize..(part.at + part.bytes) as usize];
        parts.iter().flat_map(part).copied().collect()
    }

    /// A client has an answer.
    fn answered(&mut self, client: ClientId, answer: Answer) -> Checked {
        let Some(position) = self.actors.iter().position(|actor| actor.id == client) else { return Ok(()) };
        let Some((request, doing)) = self.actors[position].pending.take() else {
            return Err(format!("client {client} has an answer that it did not ask for"));
        };
        match (doing, answer) {
            (_, Answer::Failed(_)) => self.coverage.refusals += 1,
            (Doing::Ask, Answer::Granted(range)) if !range.is_empty() => {
                self.actors[position].spare.push(range);
            }
            (Doing::Fill { fill }, Answer::Granted(ahead)) => {
                let range = fill.part.at..fill.part.at + fill.part.bytes;
                self.actors[position].filled(&range);
                if !ahead.is_empty() {
                    self.actors[position].spare.push(ahead);
                }
                self.wrote(position, fill.part.bytes);
            }
            (Doing::Read { file, range }, Answer::Cached { end, known_to, parts }) => {
                self.check_read(file, range.start..range.end.min(known_to), end, &parts)?;
                let seen = self.read_memory(&parts);
                self.actors[position].reading = Some((parts, seen));
            }
            (Doing::Drain { file, before, applied, cuts }, Answer::Done) => {
                for (nth, before) in before.iter().enumerate() {
                    self.check_drained(file.unwrap_or(nth), before, applied, cuts)?;
                }
            }
            (Doing::Other, Answer::Done | Answer::Length { .. }) => {}
            (_, answer) => return Err(format!("client {client} asked {request:?} and got {answer:?}")),
        }
        Ok(())
    }

    /// A reader sees the newest write.
    fn check_read(&self, file: usize, range: std::ops::Range<u64>, end: u64, parts: &[NodePart]) -> Checked {
        let found = &self.files[file];
        let length = found.disk.len().max(end as usize);
        if length != found.truth.len() {
            return Err(format!("file {file} seems to have {length} bytes, and has {}", found.truth.len()));
        }
        let to = (range.end as usize).min(length);
        let mut cached: BTreeMap<usize, Stamp> = BTreeMap::new();
        for part in parts {
            for nth in 0..part.bytes {
                cached.insert((part.offset + nth) as usize, self.memory[(part.at + nth) as usize]);
            }
        }
        for at in range.start as usize..to {
            let seen = cached.get(&at).copied().unwrap_or_else(|| found.disk.get(at).copied().unwrap_or(0));
            if seen != found.truth[at] {
                return Err(format!(
                    "byte {at} of file {file} is {seen} to a reader, and {} is newest",
                    found.truth[at]
                ));
            }
        }
        Ok(())
    }

    /// What was written before a drain was asked for is on the disk, or something newer.
    fn check_drained(&self, file: usize, before: &[Stamp], applied: usize, cuts: u64) -> Checked {
        let found = &self.files[file];
        if self.files.iter().map(|file| file.cuts).sum::<u64>() != cuts {
            return Ok(());
        }
        for (at, old) in before.iter().enumerate() {
            let there = found.disk.get(at).copied().unwrap_or(0);
            if there != *old && !self.applied[applied..].contains(&there) {
                return Err(format!("byte {at} of file {file} is {there} on the disk after a drain of {old}"));
            }
        }
        Ok(())
    }
}
