//! Shared by the tests of crashes: states with unique stamps, and what must be found of them later.

pub(crate) mod history;
pub(crate) mod observed;
pub(crate) mod talk;
pub(crate) mod trees;

use fastrand::Rng;
use outcrop::{Part, PartMut, Session};

/// The state of a program. Every save of a test has another stamp, from which the expected content
/// follows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) stamp: u64,
    pub(crate) field: Vec<u8>,
    /// A region whose length changes.
    pub(crate) tail: Vec<u8>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the state with the stamp {}", self.stamp)
    }
}

impl State {
    /// Compressible bytes, with some equal pieces.
    pub(crate) fn new(random: &mut Rng, field_bytes: usize) -> Self {
        let piece: Vec<u8> = (0..1024).map(|_| random.u8(..4)).collect();
        let field = piece.iter().copied().cycle().take(field_bytes).collect();
        Self { stamp: 0, field, tail: vec![7; 700] }
    }

    /// Computes a step: changes a few bytes or many, and sometimes the length of a region.
    pub(crate) fn step(&mut self, random: &mut Rng, stamp: u64) {
        self.stamp = stamp;
        for _ in 0..random.usize(..4) {
            let at = random.usize(..self.field.len());
            let end = self.field.len().min(at + random.usize(1..600));
            let value = random.u8(..);
            self.field[at..end].fill(value);
        }
        match random.u8(..8) {
            0 => self.field.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
            1 => self.tail.resize(random.usize(..3000), random.u8(..)),
            2 => self.tail.iter_mut().for_each(|byte| *byte ^= 3),
            _ => {}
        }
    }

    pub(crate) fn parts(&self) -> [Part<'_>; 3] {
        [Part::new("field", &self.field), Part::one("stamp", &self.stamp), Part::new("tail", &self.tail)]
    }

    /// A state of the same shape to restore to.
    pub(crate) fn empty(&self) -> Self {
        Self { stamp: 0, field: vec![0; self.field.len()], tail: vec![0; self.tail.len()] }
    }

    /// The state as it is restored if these bytes of the field are excluded.
    pub(crate) fn without(&self, excluded: &[std::ops::Range<u64>]) -> Self {
        let mut state = self.clone();
        excluded.iter().for_each(|range| state.field[range.start as usize..range.end as usize].fill(0));
        state
    }

    fn parts_mut(&mut self) -> [PartMut<'_>; 3] {
        let Self { stamp, field, tail } = self;
        [PartMut::one("stamp", stamp), PartMut::new("field", field), PartMut::new("tail", tail)]
    }

    /// Restores this version to itself.
    pub(crate) fn restore(&mut self, session: &mut Session, version: u64) -> outcrop::Result<()> {
        session.restore(version, &mut self.parts_mut()).map(drop)
    }

    /// Reads this version to itself, without continuing from it.
    pub(crate) fn read(&mut self, session: &mut Session, version: u64) -> outcrop::Result<()> {
        session.read(version, &mut self.parts_mut())
    }
}
