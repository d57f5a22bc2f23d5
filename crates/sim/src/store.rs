//! How a simulated program keeps its snapshots: the interface of every approach.

use std::collections::BTreeMap;

use outcrop_plan::LayerIndex;

use crate::{
    error::Result,
    world::{Task, World},
};

/// The state of a request of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The program waits.
    Pending,
    /// The program continues.
    Done,
}

/// A way to keep snapshots. A program has one request at a time.
pub(crate) trait Store {
    /// The program starts. Preparations may start with it.
    fn begin(&mut self, _world: &mut World) -> Result<()> {
        Ok(())
    }

    /// The program saves a snapshot.
    fn save(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step>;

    /// The program takes a snapshot.
    fn take(&mut self, world: &mut World, key: u64) -> Result<Step>;

    /// The program has computed with a snapshot that it took, and gives it back.
    fn give_back(&mut self, world: &mut World, key: u64) -> Result<()>;

    /// A task that was begun has ended.
    fn wake(&mut self, world: &mut World, task: Task) -> Result<Step>;

    /// Bytes moved from one layer to another.
    fn lane_bytes(&self) -> BTreeMap<(LayerIndex, LayerIndex), u64>;

    /// The present touching strategy, and its reason.
    fn strategy(&self) -> Option<String> {
        None
    }
}
