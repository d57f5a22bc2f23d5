//! What the tests of a store's survival share: states that can be told apart, and what must be
//! found of them afterwards.

pub(crate) mod history;
pub(crate) mod observed;
pub(crate) mod talk;
pub(crate) mod trees;

use fastrand::Rng;
use outcrop::{Part, PartMut, Session};

/// What a program saves. No two saves of a test have the same stamp, so that it tells what the rest
/// must be.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) stamp: u64,
    pub(crate) field: Vec<u8>,
    /// Changes its length.
    pub(crate) tail: Vec<u8>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the state with the stamp {}", self.stamp)
    }
}

impl State {
    /// Bytes that can be compressed, with pieces that are equal.
    pub(crate) fn new(random: &mut Rng, field_bytes: usize) -> Self {
        let piece: Vec<u8> = (0..1024).map(|_| random.u8(..4)).collect();
        let field = piece.iter().copied().cycle().take(field_bytes).collect();
        Self { stamp: 0, field, tail: vec![7; 700] }
    }

    /// Computes a step: a few bytes change, or many; sometimes a region gets another length.
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

    /// A place for a state of this shape.
    pub(crate) fn empty(&self) -> Self {
        Self { stamp: 0, field: vec![0; self.field.len()], tail: vec![0; self.tail.len()] }
    }

    /// As it comes back if these bytes of the field are left out.
    pub(crate) fn without(&self, excluded: &[std::ops::Range<u64>]) -> Self {
        let mut state = self.clone();
        excluded.iter().for_each(|range| state.field[range.start as usize..range.end as usize].fill(0));
        state
    }

    fn parts_mut(&mut self) -> [PartMut<'_>; 3] {
        let Self { stamp, field, tail } = self;
        [PartMut::one("stamp", stamp), PartMut::new("field", field), PartMut::new("tail", tail)]
    }

    /// Restores this version into itself.
    pub(crate) fn restore(&mut self, session: &mut Session, version: u64) -> outcrop::Result<()> {
        session.restore(version, &mut self.parts_mut()).map(drop)
    }

    /// Reads this version into itself, without going on from there.
    pub(crate) fn read(&mut self, session: &mut Session, version: u64) -> outcrop::Result<()> {
        session.read(version, &mut self.parts_mut())
    }
}
