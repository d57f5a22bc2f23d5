//! How a simulated program keeps its snapshots: what every approach offers.

use std::collections::BTreeMap;

use outcrop_plan::LayerIndex;

use crate::{
    error::Result,
    world::{Task, World},
};

/// How far a request of the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The program waits.
    Pending,
    /// It goes on.
    Done,
}

/// A way of keeping snapshots. A program has one request at a time.
pub(crate) trait Store {
    /// The program begins; what is done ahead can begin with it.
    fn begin(&mut self, _world: &mut World) -> Result<()> {
        Ok(())
    }

    /// The program wants to save.
    fn save(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step>;

    /// The program wants to have a snapshot back, for the last time.
    fn take(&mut self, world: &mut World, key: u64) -> Result<Step>;

    /// The program has computed with what it took.
    fn give_back(&mut self, world: &mut World, key: u64) -> Result<()>;

    /// Something that was begun has come to its end.
    fn wake(&mut self, world: &mut World, task: Task) -> Result<Step>;

    /// Bytes that went from one layer to another.
    fn lane_bytes(&self) -> BTreeMap<(LayerIndex, LayerIndex), u64>;

    /// The strategy of touching in use, and why.
    fn strategy(&self) -> Option<String> {
        None
    }
}
