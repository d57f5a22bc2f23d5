//! The death of the daemon, and the end of the world.

use outcrop_grants::{Event, Grants};

use super::{
    actor::Doing,
    world::{Checked, Work, World},
};

impl World {
    /// The daemon dies; what it had begun to write is written as far as it is. Another one begins
    /// with the journal.
    pub(super) fn daemon_dies(&mut self) -> Checked {
        self.coverage.faults += 1;
        self.say("the daemon dies".to_owned());
        for work in std::mem::take(&mut self.work) {
            match &work {
                Work::Drain { .. } => {
                    let quarters = self.rng.u8(..=4);
                    self.write_to_disk(&work, quarters)?;
                }
                Work::Truncate { file, bytes } if self.rng.bool() => {
                    self.files[*file].disk.resize(*bytes as usize, 0);
                }
                _ => {}
            }
        }
        for actor in &mut self.actors {
            (actor.is_joined, actor.reading) = (false, None);
            actor.opened.clear();
            if let Some((_, Doing::Read { .. } | Doing::Drain { .. } | Doing::Other)) = &actor.pending {
                // It asks again, or for something else.
                if self.rng.bool() {
                    actor.pending = None;
                }
            }
        }
        self.grants = Grants::recover(self.settings.clone(), self.journal.iter().cloned());
        self.grants.check().map_err(|problem| format!("after recovery: {problem}"))?;
        if self.grants.damaged_records() > 0 {
            return Err(format!("{} records of the journal make no sense", self.grants.damaged_records()));
        }
        self.journal = self.grants.records();
        self.files.iter_mut().for_each(|file| file.id = None);
        for (id, _, inode, _) in self.grants.known_files() {
            self.files[inode as usize].id = Some(id);
        }
        for (client, _) in self.grants.absent() {
            if !self.actors.iter().any(|actor| actor.id == client) {
                self.tell_calmly(Event::Left { client })?;
            }
        }
        for (id, ..) in self.grants.known_files() {
            let event = match self.rng.u8(..4) {
                0 => Event::Unreached { file: id, errno: 2 },
                _ => Event::Reached { file: id },
            };
            self.tell_calmly(event)?;
        }
        Ok(())
    }

    /// Tells the daemon, which does not die of it.
    fn tell_calmly(&mut self, event: Event) -> Checked {
        let was_calm = std::mem::replace(&mut self.is_calm, true);
        let told = self.tell(event);
        self.is_calm = was_calm;
        told
    }

    /// Nothing fails any more: everybody gets an answer, and everything is drained.
    pub(super) fn finish(&mut self) -> Checked {
        self.is_calm = true;
        self.say("from now on nothing fails".to_owned());
        self.tell(Event::Limit { bytes: self.settings.reserve_bytes })?;
        self.tell(Event::Touched { to: self.settings.reserve_bytes })?;
        for (id, ..) in self.grants.known_files() {
            self.tell(Event::Reached { file: id })?;
        }
        for _ in 0..20_000 {
            if !self.settle_one()? {
                break;
            }
        }
        for actor in &self.actors {
            if let Some((request, _)) = &actor.pending {
                return Err(format!("client {} waits for ever: {request:?}", actor.id));
            }
        }
        for actor in std::mem::take(&mut self.actors) {
            self.tell(Event::Left { client: actor.id })?;
            for file in &actor.opened {
                if let Some(file) = self.files[*file].id {
                    self.tell(Event::Closed { file })?;
                }
            }
        }
        while !self.work.is_empty() || self.grants.poll_timeout().is_some() {
            self.end_work()?;
            self.tick()?;
        }
        for (nth, file) in self.files.iter().enumerate() {
            if file.disk != file.truth {
                let at = file.disk.iter().zip(&file.truth).position(|(one, other)| one != other);
                let (there, wanted) = (file.disk.len(), file.truth.len());
                return Err(format!("file {nth} is not as it was written: {there} bytes of {wanted}, first at {at:?}"));
            }
        }
        if !self.grants.is_idle() || self.grants.used_bytes() > 0 {
            return Err(format!("{} bytes are in use at the end", self.grants.used_bytes()));
        }
        Ok(())
    }

    /// One step towards the end. Returns whether there was anything to do.
    fn settle_one(&mut self) -> Result<bool, String> {
        for position in 0..self.actors.len() {
            let actor = &self.actors[position];
            if !actor.is_joined || actor.reading.is_some() || (actor.write.is_some() && actor.pending.is_none()) {
                self.act(position)?;
                return Ok(true);
            }
            // Memory that it does not need must not keep others waiting.
            if actor.pending.is_none() && !actor.spare.is_empty() {
                self.give_back(position)?;
                return Ok(true);
            }
        }
        if !self.work.is_empty() {
            self.end_work()?;
            return Ok(true);
        }
        if self.grants.poll_timeout().is_some() {
            self.tick()?;
            return Ok(true);
        }
        Ok(false)
    }
}
