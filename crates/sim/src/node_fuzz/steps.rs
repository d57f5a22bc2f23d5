//! What happens next: clients act, work ends, things go wrong.

use std::ops::Range;

use outcrop_format::{NodeFill, NodePart, PIECE_BYTES_MAX};
use outcrop_grants::{Event, PAGE_BYTES, Request};

use super::{
    actor::{Actor, Doing, Stamp, Write},
    world::{Checked, Work, World},
};

/// How long files are, mostly.
const FILE_BYTES: u64 = 60_000;
/// ENOSPC.
const FULL: u32 = 28;

/// What stands for a checksum.
fn sum(stamps: &[Stamp]) -> u64 {
    stamps.iter().fold(17, |sum, stamp| (sum ^ u64::from(*stamp)).wrapping_mul(0x0100_0000_01b3).rotate_left(9))
}

impl World {
    pub(super) fn run(&mut self) -> Checked {
        for _ in 0..self.rng.usize(50..600) {
            self.step()?;
        }
        self.finish()
    }

    pub(super) fn step(&mut self) -> Checked {
        match self.rng.u8(..100) {
            0..60 => {
                let actor = self.rng.usize(..self.actors.len());
                self.act(actor)
            }
            60..88 => self.end_work(),
            88..92 => self.touch(),
            92 => {
                let bytes = self.rng.u64(2..=self.settings.reserve_bytes / PAGE_BYTES) * PAGE_BYTES;
                self.tell(Event::Limit { bytes })
            }
            93 => self.tell(Event::Short),
            94 | 95 => self.client_dies(),
            96..99 => self.tick(),
            _ if self.rng.u8(..4) == 0 => self.daemon_dies(),
            _ => Ok(()),
        }
    }

    pub(super) fn touch(&mut self) -> Checked {
        let to = self.grants.touched_bytes() + self.rng.u64(1..30) * PAGE_BYTES;
        self.tell(Event::Touched { to: to.min(self.settings.reserve_bytes) })
    }

    pub(super) fn tick(&mut self) -> Checked {
        if let Some(at) = self.grants.poll_timeout().filter(|at| at.0 < u64::MAX) {
            self.now = self.now.max(at.0);
            return self.tell(Event::Tick);
        }
        Ok(())
    }

    /// A client dies, and another one comes.
    fn client_dies(&mut self) -> Checked {
        self.coverage.faults += 1;
        let position = self.rng.usize(..self.actors.len());
        let new = Actor::new(self.next_client);
        self.next_client += 1;
        let old = std::mem::replace(&mut self.actors[position], new);
        self.leave(&old)
    }

    /// The daemon notices that a client is gone, also one that it only knows from the journal.
    fn leave(&mut self, old: &Actor) -> Checked {
        self.tell(Event::Left { client: old.id })?;
        // The daemon may have died of it, and knows nobody then.
        for file in &old.opened {
            if let Some(id) = self.files[*file].id.filter(|_| !self.has_just_died()) {
                self.tell(Event::Closed { file: id })?;
            }
        }
        Ok(())
    }

    /// No client has joined the present daemon.
    fn has_just_died(&self) -> bool {
        self.actors.iter().all(|actor| actor.opened.is_empty())
    }

    /// A client does something.
    pub(super) fn act(&mut self, position: usize) -> Checked {
        if !self.actors[position].is_joined {
            return self.join(position);
        }
        if self.actors[position].reading.is_some() {
            return self.release(position);
        }
        if self.actors[position].pending.is_some() {
            return Ok(());
        }
        match self.actors[position].write.clone() {
            Some(write) => self.go_on_writing(position, &write),
            None => self.begin(position),
        }
    }

    pub(super) fn release(&mut self, position: usize) -> Checked {
        let Some((parts, seen)) = self.actors[position].reading.take() else { return Ok(()) };
        if self.read_memory(&parts) != seen {
            return Err("what a reader copies from was changed".to_owned());
        }
        self.tell(Event::Released { client: self.actors[position].id })
    }

    /// A client connects, and learns what it still has.
    fn join(&mut self, position: usize) -> Checked {
        let client = self.actors[position].id;
        self.tell(Event::Joined { client, process: client as u32 })?;
        let granted = self.grants.granted_to(client);
        let actor = &mut self.actors[position];
        actor.is_joined = true;
        actor.spare = granted.into_iter().map(|(at, bytes)| at..at + bytes).collect();
        let Some((request, doing)) = actor.pending.take() else { return Ok(()) };
        match doing {
            Doing::Fill { fill } => {
                let range = fill.part.at..fill.part.at + fill.part.bytes;
                if !self.actors[position].holds(&range) {
                    // The last daemon has recorded it.
                    self.wrote(position, fill.part.bytes);
                }
                Ok(())
            }
            Doing::Ask => Ok(()),
            doing => {
                let file = match &doing {
                    Doing::Read { file, .. } => Some(*file),
                    Doing::Drain { file, .. } => *file,
                    _ => request.file().and_then(|id| self.index_of(id).ok()),
                };
                let Some(file) = file else { return Ok(()) };
                let id = self.open(position, file)?;
                let request = with_file(request, id);
                self.ask(position, request, doing)
            }
        }
    }

    /// A part of a write is done.
    pub(super) fn wrote(&mut self, position: usize, bytes: u64) {
        let Some(write) = self.actors[position].write.as_mut() else { return };
        write.offset += bytes;
        write.bytes -= bytes;
        if write.bytes == 0 {
            self.actors[position].write = None;
        }
    }

    fn open(&mut self, position: usize, file: usize) -> Result<u64, String> {
        let id = *self.files[file].id.get_or_insert_with(|| {
            self.next_file += 1;
            self.next_file
        });
        if self.actors[position].opened.insert(file) {
            let path = format!("file-{file}").into_bytes();
            self.tell(Event::Opened { file: id, device: 1, inode: file as u64, path })?;
            self.tell(Event::Reached { file: id })?;
        }
        Ok(self.files[file].id.unwrap_or(id))
    }

    fn ask(&mut self, position: usize, request: Request, doing: Doing) -> Checked {
        // The daemon may have died just now.
        let actor = &mut self.actors[position];
        if !actor.is_joined {
            return Ok(());
        }
        actor.pending = Some((request.clone(), doing));
        let client = actor.id;
        self.tell(Event::Requested { client, request })
    }

    fn begin(&mut self, position: usize) -> Checked {
        let file = self.rng.usize(..self.files.len());
        let length = self.files[file].truth.len() as u64;
        let id = self.open(position, file)?;
        match self.rng.u8(..40) {
            0..20 => {
                let most = if self.rng.u8(..8) == 0 { 3 * PIECE_BYTES_MAX } else { 3 * PAGE_BYTES };
                let bytes = self.rng.u64(1..most);
                let offset = if self.rng.bool() { length.min(4 * FILE_BYTES) } else { self.rng.u64(..FILE_BYTES) };
                self.actors[position].write = Some(Write { file, offset, bytes });
                Ok(())
            }
            20..28 => {
                let offset = self.rng.u64(..=length);
                let bytes = self.rng.u64(..FILE_BYTES);
                let doing = Doing::Read { file, range: offset..offset + bytes };
                self.ask(position, Request::Read { file: id, offset, bytes }, doing)
            }
            28 | 29 => {
                let bytes = self.rng.u64(..FILE_BYTES);
                self.ask(position, Request::SetBytes { file: id, bytes }, Doing::Other)
            }
            30 => {
                let times = Request::SetTimes { file: id, accessed_ns: Some(1), modified_ns: Some(2) };
                self.ask(position, times, Doing::Other)
            }
            31 => self.ask(position, Request::Length { file: id }, Doing::Other),
            32..36 => {
                let is_sync = self.rng.bool();
                let before = vec![self.files[file].truth.clone()];
                let (applied, cuts) = (self.applied.len(), self.cuts());
                let doing = Doing::Drain { file: Some(file), before, applied, cuts };
                let request = if is_sync { Request::Sync { file: id } } else { Request::Drain { file: id } };
                self.ask(position, request, doing)
            }
            36 => {
                let before = self.files.iter().map(|file| file.truth.clone()).collect();
                let (applied, cuts) = (self.applied.len(), self.cuts());
                self.ask(position, Request::DrainAll, Doing::Drain { file: None, before, applied, cuts })
            }
            37 => self.give_back(position),
            _ => self.close(position, file),
        }
    }

    pub(super) fn cuts(&self) -> u64 {
        self.files.iter().map(|file| file.cuts).sum()
    }

    /// A client returns a part of its memory.
    pub(super) fn give_back(&mut self, position: usize) -> Checked {
        let Some(range) = self.actors[position].spare.pop() else { return Ok(()) };
        self.tell(Event::Returned { client: self.actors[position].id, range })
    }

    fn close(&mut self, position: usize, file: usize) -> Checked {
        let id = self.files[file].id;
        match id.filter(|_| self.actors[position].opened.remove(&file)) {
            Some(file) => self.tell(Event::Closed { file }),
            None => Ok(()),
        }
    }

    fn go_on_writing(&mut self, position: usize, write: &Write) -> Checked {
        let id = self.open(position, write.file)?;
        let in_page = write.offset % PAGE_BYTES;
        let fits = |range: &Range<u64>| {
            let at = match range.start % PAGE_BYTES == in_page {
                true => range.start,
                false => range.start.next_multiple_of(PAGE_BYTES) + in_page,
            };
            (at < range.end).then_some(at..range.end)
        };
        let Some(room) = self.actors[position].spare.iter().find_map(fits) else {
            if !self.actors[position].spare.is_empty() {
                // What is too little for it may be enough for another.
                return self.give_back(position);
            }
            let bytes = in_page + write.bytes;
            return self.ask(position, Request::Ask { file: id, bytes }, Doing::Ask);
        };
        let most = write.bytes.min(room.end - room.start);
        let bytes = if self.rng.u8(..4) == 0 { self.rng.u64(1..=most) } else { most };
        self.stamp += 1;
        let memory = &mut self.memory[room.start as usize..(room.start + bytes) as usize];
        memory.fill(self.stamp);
        if self.rng.u8(..8) == 0 {
            // It copies now, and tells the daemon later, if both live.
            return Ok(());
        }
        let part = NodePart { offset: write.offset, at: room.start, bytes };
        let (mut sums, mut from) = (Vec::new(), 0);
        while from < bytes {
            let to = bytes.min(from + PIECE_BYTES_MAX - (part.offset + from) % PIECE_BYTES_MAX);
            sums.push(sum(&self.memory[(part.at + from) as usize..(part.at + to) as usize]));
            from = to;
        }
        let ask_bytes = if self.rng.bool() { self.rng.u64(..10 * PAGE_BYTES) } else { 0 };
        let fill = NodeFill { file: id, part, modified_ns: 3, ask_bytes, sums };
        self.ask(position, Request::Fill(fill.clone()), Doing::Fill { fill })
    }

    /// Some work ends.
    pub(super) fn end_work(&mut self) -> Checked {
        if self.work.is_empty() {
            return Ok(());
        }
        let work = self.work.swap_remove(self.rng.usize(..self.work.len()));
        let fails = !self.is_calm && self.rng.u8(..25) == 0;
        self.coverage.faults += u64::from(fails);
        match work {
            Work::Drain { job, .. } => {
                let fails = fails.then(|| self.rng.u8(..2) == 0);
                let share = if fails.is_some() { self.rng.u8(..=4) } else { 4 };
                if !self.sabotage.lies_about_drains || self.rng.u8(..30) > 0 {
                    self.write_to_disk(&work, share)?;
                }
                let outcome = if fails.is_some() { Err(FULL) } else { Ok(()) };
                self.tell(Event::Drained { job, outcome })
            }
            Work::Truncate { file, bytes } => {
                self.files[file].disk.resize(bytes as usize, 0);
                let file = self.files[file].id.ok_or("a file that is cut off was forgotten")?;
                self.tell(Event::Truncated { file, outcome: Ok(()) })
            }
            Work::Sync { client } => {
                let outcome = if fails { Err(5) } else { Ok(()) };
                self.tell(Event::Synced { client, outcome })
            }
            Work::Settle { file } => {
                let file = self.files[file].id.ok_or("a file that is being settled was forgotten")?;
                self.tell(Event::Settled { file })
            }
        }
    }

    /// Writes as many quarters of a drain.
    pub(super) fn write_to_disk(&mut self, work: &Work, quarters: u8) -> Checked {
        let Work::Drain { file, parts, pieces, before, .. } = work else { return Ok(()) };
        if self.read_memory(parts) != *before {
            return Err("what is being drained was changed".to_owned());
        }
        for piece in pieces {
            let stamps = &self.memory[piece.at as usize..(piece.at + piece.bytes) as usize];
            if sum(stamps) != piece.sum {
                return Err(format!("the piece at {} has another checksum", piece.offset));
            }
        }
        let start = parts[0].offset as usize;
        let count = before.len() * usize::from(quarters) / 4;
        if count > 0 {
            let disk = &mut self.files[*file].disk;
            disk.resize(disk.len().max(start + count), 0);
            disk[start..start + count].copy_from_slice(&before[..count]);
        }
        Ok(())
    }
}

fn with_file(request: Request, id: u64) -> Request {
    match request {
        Request::Ask { bytes, .. } => Request::Ask { file: id, bytes },
        Request::Read { offset, bytes, .. } => Request::Read { file: id, offset, bytes },
        Request::Length { .. } => Request::Length { file: id },
        Request::SetBytes { bytes, .. } => Request::SetBytes { file: id, bytes },
        Request::SetTimes { accessed_ns, modified_ns, .. } => Request::SetTimes { file: id, accessed_ns, modified_ns },
        Request::Drain { .. } => Request::Drain { file: id },
        Request::Sync { .. } => Request::Sync { file: id },
        Request::Discard { .. } => Request::Discard { file: id },
        other => other,
    }
}
