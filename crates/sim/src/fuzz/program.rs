//! Random programs: handles that save, lend, take, get, release and discard at random.

use std::collections::VecDeque;

use fastrand::Rng;
use outcrop_plan::{Event, Refusal, SnapshotId};

use super::{
    stack::{BYTES_MAX, KEYS},
    trial::{Checked, Saved, Trial},
};

/// More rounds than this count as an endless loop.
const ROUNDS_MAX: u32 = 10_000;

/// What a handle waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// A slot to copy into, while the handle does nothing else.
    Copy,
    /// A slot to compute into.
    Slot,
    /// To read a snapshot.
    Get,
    /// To read it for the last time.
    Take,
}

/// A handle of the program.
#[derive(Debug, Clone, Default)]
struct Handle {
    waits: Option<(SnapshotId, Wish)>,
    /// The slot that it copies into, while it does nothing else.
    copies: Option<SnapshotId>,
    /// Slots that it is filling, and snapshots that it reads.
    lent: Vec<SnapshotId>,
    handed: Vec<SnapshotId>,
}

impl Handle {
    fn is_free(&self) -> bool {
        self.waits.is_none() && self.copies.is_none()
    }

    fn has_something(&self) -> bool {
        self.copies.is_some() || !self.lent.is_empty() || !self.handed.is_empty()
    }
}

/// All handles.
#[derive(Debug, Clone)]
pub(super) struct Program {
    handles: Vec<Handle>,
    /// The waiting requests, in order.
    waiting: VecDeque<usize>,
    next_id: u64,
    steps: u32,
    /// The percentage of steps that belong to the program instead of the layers.
    eagerness: u32,
}

impl Program {
    pub(super) fn new(random: &mut Rng) -> Self {
        let count = random.usize(1..=4);
        Self {
            handles: vec![Handle::default(); count],
            waiting: VecDeque::new(),
            next_id: 0,
            steps: random.u32(30..600),
            eagerness: random.u32(20..80),
        }
    }

    /// Handles the answer to a request. Returns whether the request was a take.
    pub(super) fn answer(&mut self, id: SnapshotId, why: Option<Refusal>) -> Checked<bool> {
        let position =
            self.waiting.iter().position(|&handle| self.handles[handle].waits.is_some_and(|(wanted, _)| wanted == id));
        let index = position.and_then(|position| self.waiting.remove(position));
        let index = index.ok_or_else(|| format!("{id:?} is given to nobody who waits"))?;
        let handle = &mut self.handles[index];
        let wish = handle.waits.take().map(|(_, wish)| wish);
        match (why, wish) {
            (Some(_), _) | (None, None) => {}
            (None, Some(Wish::Copy)) => handle.copies = Some(id),
            (None, Some(Wish::Slot)) => handle.lent.push(id),
            (None, Some(Wish::Get | Wish::Take)) => handle.handed.push(id),
        }
        Ok(wish == Some(Wish::Take))
    }

    pub(super) fn is_somebody_else_waiting(&self, id: SnapshotId) -> bool {
        self.handles.iter().any(|handle| handle.waits.is_some_and(|(wanted, _)| wanted != id))
    }

    /// The saves that wait for room.
    pub(super) fn waiting_saves(&self) -> impl Iterator<Item = SnapshotId> {
        let waits = self.handles.iter().filter_map(|handle| handle.waits);
        waits.filter(|(_, wish)| matches!(wish, Wish::Copy | Wish::Slot)).map(|(id, _)| id)
    }

    pub(super) fn is_all_waiting(&self) -> bool {
        self.waiting.len() >= self.handles.len()
    }

    fn is_anybody_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Trial {
    /// A whole life: runs a random program, ends it, and reads everything that is left.
    pub(super) fn run(&mut self) -> Checked {
        self.tell(Event::Handles(self.program.handles.len() as u32))?;
        self.change_kept()?;
        for _ in 0..self.program.steps {
            let is_program = self.jobs.is_empty() || self.random.u32(0..100) < self.program.eagerness;
            match is_program {
                true => self.act()?,
                false => self.end_job()?,
            }
            if self.random.u32(0..20) == 0 {
                self.tick()?;
            }
        }
        self.may_fault = false;
        self.finish()?;
        self.check_persisted()?;
        self.read_all()
    }

    /// Advances the time to the planner's timeout. Returns whether it has one.
    fn tick(&mut self) -> Checked<bool> {
        let Some(at) = self.planner.poll_timeout() else { return Ok(false) };
        self.now_ns = self.now_ns.max(at.0);
        self.tell(Event::Tick)?;
        Ok(true)
    }

    /// Lets one free handle do something.
    fn act(&mut self) -> Checked {
        let index = self.random.usize(..self.program.handles.len());
        let handle = &self.program.handles[index];
        if let Some(id) = handle.copies {
            self.program.handles[index].copies = None;
            let is_abandoned = self.random.u32(0..10) == 0;
            return self.fill(index, id, is_abandoned, false);
        }
        if let Some((id, wish)) = handle.waits
            && self.random.u32(0..20) == 0
        {
            return self.withdraw(index, id, wish);
        }
        if !handle.is_free() {
            return Ok(());
        }
        match self.random.u32(0..16) {
            0..=5 => self.save(index),
            6..=8 if !handle.lent.is_empty() => {
                let slot = self.random.usize(..handle.lent.len());
                let id = self.program.handles[index].lent.swap_remove(slot);
                let (is_abandoned, keeps) = (self.random.u32(0..6) == 0, self.random.u32(0..4) == 0);
                self.fill(index, id, is_abandoned, keeps)
            }
            6..=11 if !handle.handed.is_empty() => self.release(index),
            12 if self.random.u32(0..4) == 0 => self.discard(),
            13 if self.random.u32(0..8) == 0 => self.change_handles(),
            14 if self.persists => self.change_kept(),
            _ => {
                let is_last = self.random.u32(0..3) > 0;
                self.read(index, is_last)
            }
        }
    }

    fn save(&mut self, index: usize) -> Checked {
        let key = self.random.u64(0..KEYS);
        if self.planner.has_key(key) {
            return Ok(());
        }
        self.run_out_of_memory()?;
        let id = SnapshotId(self.program.next_id);
        self.program.next_id += 1;
        let bytes = self.random.u64(1..=BYTES_MAX);
        let is_copy = self.random.bool();
        self.program.handles[index].waits = Some((id, if is_copy { Wish::Copy } else { Wish::Slot }));
        self.program.waiting.push_back(index);
        let yields = self.random.u32(0..8) == 0;
        self.saved.insert(id, Saved { key, bytes, yields, ..Saved::default() });
        self.tell(Event::RoomWanted { id, key, bytes, is_copy, yields })
    }

    /// Who waits does not any more.
    fn withdraw(&mut self, index: usize, id: SnapshotId, wish: Wish) -> Checked {
        self.program.handles[index].waits = None;
        self.program.waiting.retain(|&waiting| waiting != index);
        self.tell(Event::Withdrawn { id, consume: wish == Wish::Take })
    }

    /// Sometimes lets memory run out, for a front that can be used untouched.
    fn run_out_of_memory(&mut self) -> Checked {
        let real = &mut self.layers[0];
        let can_run_out =
            self.planner.memory(0).is_some() && !real.needs_touch && !real.is_shared && !real.is_exhausted;
        if !can_run_out || !self.may_fault || self.random.u32(0..60) > 0 {
            return Ok(());
        }
        self.coverage.faults += 1;
        real.is_exhausted = true;
        self.tell(Event::Exhausted { layer: 0 })
    }

    /// Seals a lent slot, or gives it back unfilled.
    fn fill(&mut self, index: usize, id: SnapshotId, is_abandoned: bool, keeps: bool) -> Checked {
        let saved = self.saved.get_mut(&id).ok_or("a slot that is filled was lent")?;
        saved.is_lent = false;
        if is_abandoned {
            return self.tell(Event::Abandoned(id));
        }
        if self.random.u32(0..4) == 0 {
            self.shorten(id)?;
        }
        let saved = self.saved.get_mut(&id).ok_or("a slot that is filled was lent")?;
        saved.is_live = true;
        if keeps {
            saved.holders += 1;
            self.program.handles[index].handed.push(id);
        }
        self.tell(Event::Sealed { id, keep: keeps })
    }

    /// Shortens a slot.
    fn shorten(&mut self, id: SnapshotId) -> Checked {
        let saved = self.saved.get_mut(&id).ok_or("a slot that is filled was lent")?;
        saved.bytes = self.random.u64(1..=saved.bytes);
        let bytes = saved.bytes;
        for place in saved.complete.values_mut().flatten() {
            place.end = place.start + bytes;
            if let Some(extent) = self.layers[0].extents.get_mut(&place.start) {
                extent.0 = place.end;
            }
        }
        self.tell(Event::Shortened { id, bytes })
    }

    /// Lets the owner of a layer that keeps bytes remove some, or find some that were there before.
    fn change_kept(&mut self) -> Checked {
        for layer in 1..self.layers.len() {
            let is_new = self.saved.is_empty();
            let Some(kept) = self.layers[layer].kept_bytes.as_mut() else { continue };
            *kept = if is_new { self.random.u64(0..3) } else { self.random.u64(0..=*kept) };
            let bytes = *kept;
            self.tell(Event::Kept { layer, bytes })?;
        }
        Ok(())
    }

    fn release(&mut self, index: usize) -> Checked {
        let handle = &mut self.program.handles[index];
        let id = handle.handed.swap_remove(self.random.usize(..handle.handed.len()));
        let saved = self.saved.get_mut(&id).ok_or("what is released was handed over")?;
        saved.holders -= 1;
        self.tell(Event::Released(id))
    }

    fn discard(&mut self) -> Checked {
        self.any_live().map_or(Ok(()), |id| self.discard_one(id))
    }

    fn discard_one(&mut self, id: SnapshotId) -> Checked {
        self.saved.get_mut(&id).ok_or("what is discarded is there")?.is_live = false;
        self.tell(Event::Discarded(id))
    }

    /// Creates a handle, or drops one that holds nothing.
    fn change_handles(&mut self) -> Checked {
        let is_idle = |handle: &Handle| handle.is_free() && !handle.has_something();
        let program = &mut self.program;
        let last = program.handles.len() - 1;
        if last > 0 && is_idle(&program.handles[last]) {
            program.handles.pop();
        } else if last < 5 {
            program.handles.push(Handle::default());
        }
        let count = program.handles.len() as u32;
        self.tell(Event::Handles(count))
    }

    /// A random snapshot that the program can read.
    fn any_live(&mut self) -> Option<SnapshotId> {
        let live: Vec<_> = self.planner.keys().collect();
        assert_eq!(self.planner.count(), live.len(), "keys are counted");
        let key = *live.get(self.random.usize(..live.len().max(1)))?;
        self.planner.find(key)
    }

    /// Reads a snapshot: mostly the one that the order announces, which is the newest or the
    /// oldest; otherwise any.
    fn read(&mut self, index: usize, is_last: bool) -> Checked {
        let live = self.saved.iter().filter(|(_, saved)| saved.is_live).map(|(&id, saved)| (id, saved.key));
        let wanted = match self.random.u32(0..4) {
            0 | 1 => live.max(),
            2 => live.min(),
            _ => None,
        };
        let wanted = wanted.and_then(|(id, key)| self.planner.find(key).filter(|&found| found == id));
        match wanted.or_else(|| self.any_live()) {
            Some(id) => self.want(index, id, is_last),
            None => Ok(()),
        }
    }

    fn want(&mut self, index: usize, id: SnapshotId, is_last: bool) -> Checked {
        self.program.handles[index].waits = Some((id, if is_last { Wish::Take } else { Wish::Get }));
        self.program.waiting.push_back(index);
        self.tell(Event::Wanted { id, consume: is_last })
    }

    /// The program gives back everything that it holds, until all requests are answered.
    fn finish(&mut self) -> Checked {
        for round in 0.. {
            for index in 0..self.program.handles.len() {
                self.give_back(index)?;
            }
            // A slot that is given back may be lent to another request at once.
            if self.program.handles.iter().any(Handle::has_something) {
                continue;
            }
            if !self.program.is_anybody_waiting() && self.jobs.is_empty() {
                return Ok(());
            }
            if round > ROUNDS_MAX {
                return Err("there is no end to what the planner wants done".to_owned());
            }
            if !self.jobs.is_empty() {
                self.end_job()?;
            } else if !self.tick()? {
                // Nothing is moving: the program itself has to make room, otherwise a request is
                // refused.
                let free = self.program.handles.iter().position(Handle::is_free);
                match (free, self.any_live()) {
                    (Some(_), Some(id)) if self.saved[&id].damaged != 0 => self.discard_one(id)?,
                    (Some(index), Some(id)) if !self.layers[0].is_broken => self.want(index, id, true)?,
                    (Some(_), _) if !self.program.is_all_waiting() => self.drop_free_handles()?,
                    _ => return Err("somebody waits, and nothing will ever happen".to_owned()),
                }
            }
        }
        Ok(())
    }

    fn give_back(&mut self, index: usize) -> Checked {
        if let Some(id) = self.program.handles[index].copies.take() {
            self.fill(index, id, false, false)?;
        }
        while let Some(id) = self.program.handles[index].lent.pop() {
            self.fill(index, id, false, false)?;
        }
        while !self.program.handles[index].handed.is_empty() {
            self.release(index)?;
        }
        Ok(())
    }

    /// If nothing can be given back any more, free handles are dropped, so that the planner knows
    /// that the others wait in vain.
    fn drop_free_handles(&mut self) -> Checked {
        let count = self.program.waiting.len() as u32;
        let keep: Vec<_> = self.program.handles.iter().map(|handle| !handle.is_free()).collect();
        let renamed = |old: usize| keep[..old].iter().filter(|&&kept| kept).count();
        self.program.waiting = self.program.waiting.iter().map(|&old| renamed(old)).collect();
        let mut kept = keep.iter();
        self.program.handles.retain(|_| *kept.next().unwrap_or(&true));
        self.tell(Event::Handles(count))
    }

    /// Everything that is left can be read, except what was reported as lost.
    fn read_all(&mut self) -> Checked {
        self.program.handles = vec![Handle::default()];
        self.tell(Event::Handles(1))?;
        let mut left: Vec<_> = self.saved.iter().filter(|(_, saved)| saved.is_live).map(|(&id, _)| id).collect();
        while !left.is_empty() {
            self.random.shuffle(&mut left);
            let before = left.len();
            let mut refused = Vec::new();
            for id in std::mem::take(&mut left) {
                self.want(0, id, true)?;
                self.finish_waiting()?;
                let saved = &self.saved[&id];
                // A snapshot that could not be read before may be reported as lost.
                if saved.is_live && saved.doubtful == 0 {
                    refused.push(id);
                }
            }
            left = refused;
            // Nothing comes up to a broken front, and its requests have failed.
            if self.layers[0].is_broken {
                return Ok(());
            }
            // Snapshots that have been read make room for those that found none.
            if left.len() == before {
                return Err(format!("{left:?} cannot be read, and nobody was told"));
            }
        }
        Ok(())
    }

    fn finish_waiting(&mut self) -> Checked {
        for round in 0.. {
            if !self.program.is_anybody_waiting() {
                break;
            }
            if round > ROUNDS_MAX {
                return Err("a read is tried for ever".to_owned());
            }
            if !self.jobs.is_empty() {
                self.end_job()?;
            } else if !self.tick()? {
                return Err("a read waits, and nothing will ever happen".to_owned());
            }
        }
        self.give_back(0)
    }
}
