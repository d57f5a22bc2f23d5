//! A program that saves versions, as one rank of a scenario.

use std::{ops::Range, sync::Arc};

use fastrand::Rng;
use outcrop::{PartMut, Reached, Session, layers::files::Files, store::RegionOptions};
use outcrop_crash::Recording;

use super::scenario::{SESSIONS, Scenario};
use crate::common::{
    State,
    history::{History, Promises, begun, durable, forgotten, rewinding},
    talk::Meeting,
};

pub(crate) struct Program<'a> {
    scenario: &'a Scenario,
    recording: &'a Recording,
    history: &'a History,
    meeting: &'a Arc<Meeting>,
    rank: u32,
    files: Vec<Arc<dyn Files>>,
    /// How often it has opened the store.
    opened: usize,
    /// Equal on all ranks, so that all do the same.
    random: Rng,
    stamp: u64,
    sessions: Vec<Session>,
    states: Vec<State>,
    /// By session: the version that was saved or restored last, and its stamp.
    versions: Vec<(u64, u64)>,
    /// By session: the bytes of the field that are excluded.
    excluded: Vec<Vec<Range<u64>>>,
    /// Whether something has failed. Then it makes no more calls that all ranks must make.
    is_hurt: bool,
}

impl<'a> Program<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        recording: &'a Recording,
        history: &'a History,
        meeting: &'a Arc<Meeting>,
        (rank, files): (u32, Vec<Arc<dyn Files>>),
    ) -> Self {
        let mut random = Rng::with_seed(scenario.seed);
        let states = (0..scenario.sessions).map(|_| State::new(&mut random, scenario.field_bytes)).collect();
        Self {
            scenario,
            recording,
            history,
            meeting,
            rank,
            files,
            opened: 0,
            random,
            stamp: 1,
            sessions: Vec::new(),
            states,
            versions: vec![(0, 0); scenario.sessions],
            excluded: vec![Vec::new(); scenario.sessions],
            is_hurt: false,
        }
    }

    fn open(&mut self) -> Result<(), String> {
        self.sessions.clear();
        let mut builder = self.scenario.builder(&self.files);
        if self.scenario.ranks > 1 {
            builder = builder.ranks(self.meeting.seat(self.opened, self.rank));
        }
        self.opened += 1;
        let store = builder.open().map_err(text)?;
        let names = &SESSIONS[..self.scenario.sessions];
        self.sessions = names.iter().map(|name| store.session(name)).collect::<outcrop::Result<_>>().map_err(text)?;
        self.excluded.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    /// Runs the steps of the scenario. If the scenario has failures, errors are expected.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        let result = self.work();
        self.sessions.clear();
        self.meeting.end(self.rank);
        if self.scenario.is_troubled() { Ok(()) } else { result }
    }

    fn work(&mut self) -> Result<(), String> {
        self.open()?;
        for _ in 0..self.scenario.steps {
            let which = self.random.usize(..self.sessions.len());
            match self.random.u8(..14) {
                0 if self.can_agree()? => self.reopen()?,
                1 if self.can_agree()? => self.rewind(which)?,
                2 if self.can_agree()? => self.take_up(which)?,
                3 if self.scenario.excludes => self.exclude(which),
                _ => self.save(which)?,
            }
        }
        (0..self.sessions.len()).try_for_each(|which| self.wait(which))?;
        self.finish()
    }

    /// Whether it can make a call that all ranks must make together. After a failure it cannot know
    /// where the other ranks are, and ends.
    fn can_agree(&self) -> Result<bool, String> {
        match self.is_hurt && self.scenario.ranks > 1 {
            true => Err("this rank gives up".to_owned()),
            false => Ok(true),
        }
    }

    /// Continues after an error if errors are expected.
    fn bear<T>(&mut self, result: outcrop::Result<T>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(_) if self.scenario.is_troubled() => {
                self.is_hurt = true;
                Ok(None)
            }
            Err(error) => Err(text(error)),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        for session in std::mem::take(&mut self.sessions) {
            let finished = session.finish();
            self.bear(finished)?;
        }
        Ok(())
    }

    /// Changes which bytes are excluded from the next versions.
    fn exclude(&mut self, which: usize) {
        let end = self.states[which].field.len() as u64;
        let start = self.random.u64(..end - 200);
        let range = start..end.min(start + self.random.u64(1..3000));
        self.excluded[which] = if self.random.bool() { vec![range] } else { Vec::new() };
        let options = RegionOptions { excluded: self.excluded[which].clone(), ..RegionOptions::default() };
        self.sessions[which].region("field", options);
    }

    fn save(&mut self, which: usize) -> Result<(), String> {
        let version = self.versions[which].0 + self.random.u64(1..3);
        let stamp = self.stamp;
        self.stamp += 1;
        self.compute(which, stamp);
        let state = &self.states[which];
        self.history.note(SESSIONS[which], self.rank, version, &state.without(&self.excluded[which]));
        self.recording.mark(begun(SESSIONS[which], version, stamp));
        let saved = self.sessions[which].save(version, &state.parts());
        if self.bear(saved)?.is_none() {
            return Ok(());
        }
        self.versions[which] = (version, stamp);
        if self.random.u8(..3) > 0 { self.wait(which) } else { Ok(()) }
    }

    /// Computes the next state in place, so that memory changes while it is still being saved.
    fn compute(&mut self, which: usize, stamp: u64) {
        let mut next = self.states[which].clone();
        next.step(&mut self.random, stamp);
        // The ranks save different states, but not all blocks differ.
        next.field[..100].fill(self.rank as u8 + 1);
        let state = &mut self.states[which];
        if state.tail.len() == next.tail.len() {
            state.stamp = stamp;
            state.field.copy_from_slice(&next.field);
            state.tail.copy_from_slice(&next.tail);
        } else {
            // Whether it was saved is not checked here.
            let _ = self.sessions[which].wait(self.versions[which].0, Reached::Host);
            *state = next;
        }
    }

    /// Waits for the newest version, and records that it is durable.
    fn wait(&mut self, which: usize) -> Result<(), String> {
        let (version, _) = self.versions[which];
        if !self.sessions[which].versions().contains(&version) {
            return Ok(());
        }
        for layer in 0..self.scenario.layers() {
            let waited = self.sessions[which].wait(version, Reached::Layer(layer + 1));
            if self.bear(waited)?.is_some() {
                self.say_durable(which, layer);
            }
        }
        Ok(())
    }

    fn say_durable(&self, which: usize, layer: usize) {
        let (version, stamp) = self.versions[which];
        self.recording.mark(durable(SESSIONS[which], layer, version, stamp));
    }

    /// Continues from a version that was restored.
    fn go_on_from(&mut self, which: usize, (version, state): (u64, State)) {
        self.versions[which] = (version, state.stamp);
        self.states[which] = state;
    }

    /// Ends all sessions, and continues with what is found.
    fn reopen(&mut self) -> Result<(), String> {
        self.finish()?;
        self.open()?;
        (0..self.sessions.len()).try_for_each(|which| self.take_up(which))
    }

    /// Restores the newest version, which must be the one that was saved last.
    fn take_up(&mut self, which: usize) -> Result<(), String> {
        let (expected, _) = self.versions[which];
        let found = Promises::default().check_latest(self.history, &mut self.sessions[which], self.rank)?;
        match found {
            Some(found) if found.0 == expected || self.scenario.is_troubled() => self.go_on_from(which, found),
            None if expected == 0 || self.scenario.is_troubled() => {}
            found => return Err(format!("version {expected} was saved last, and there is {found:?}")),
        }
        Ok(())
    }

    fn rewind(&mut self, which: usize) -> Result<(), String> {
        let flushed = self.sessions[which].flush();
        if self.bear(flushed)?.is_none() {
            return self.can_agree().map(drop);
        }
        // All ranks choose the same version, which is not about to be removed.
        let versions = self.sessions[which].restorable().map_err(text)?;
        let all: Vec<_> = versions.iter().map(|version| (*version, 0)).collect();
        let dropped = self.scenario.keep[0].dropped(u64::MAX, &all);
        let mut kept = versions.iter().rev().filter(|version| !dropped.contains(version));
        let Some(&version) = kept.nth(self.random.usize(..2)) else { return Ok(()) };
        self.recording.mark(rewinding(SESSIONS[which], version, self.stamp));
        self.sessions[which].rewind(Some(version)).map_err(text)?;
        self.recording.mark(forgotten(SESSIONS[which], version, self.stamp));
        self.versions[which].0 = version;
        self.take_up(which)
    }

    /// After a crash: restores what is there, and saves further versions that build upon it.
    pub(crate) fn go_on(&mut self, promises: &Promises, stamp: u64, saves: u64) -> Result<(), String> {
        self.stamp = stamp;
        self.open()?;
        for which in 0..self.sessions.len() {
            let latest = promises.check_latest(self.history, &mut self.sessions[which], self.rank)?;
            if let Some(latest) = latest {
                let version = latest.0;
                self.go_on_from(which, latest);
                // From here on the program relies on it.
                for layer in 0..self.scenario.layers() {
                    if self.sessions[which].wait(version, Reached::Layer(layer + 1)).is_ok() {
                        self.say_durable(which, layer);
                    }
                }
            }
            (0..saves).try_for_each(|_| self.save(which))?;
            self.wait(which)?;
        }
        self.finish()
    }

    /// Restores once more what is there, which must have this stamp or a higher one, and reads all
    /// of it.
    pub(crate) fn find_again(&mut self, promises: &Promises, stamp: u64) -> Result<(), String> {
        self.open()?;
        for session in &mut self.sessions {
            let found = promises.check_latest(self.history, session, self.rank)?;
            if found.is_none_or(|(_, state)| state.stamp < stamp) && !self.scenario.is_troubled() {
                return Err("what was saved after the crash is not the newest".to_owned());
            }
            for version in session.versions() {
                let mut stamp = 0u64;
                session.read(version, &mut [PartMut::one("stamp", &mut stamp)]).map_err(text)?;
                let state = self.history.state(session.name(), self.rank, version, stamp)?;
                let mut found = state.empty();
                found.read(session, version).map_err(text)?;
                if found != state {
                    return Err(format!("version {version} is not what rank {} saved", self.rank));
                }
            }
        }
        self.finish()
    }
}

fn text(error: outcrop::Error) -> String {
    error.to_string()
}
