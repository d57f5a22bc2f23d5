//! Decides when a version is complete, what becomes visible and what is removed.
//!
//! A [`Ledger`] is a state machine for one session of one rank. [`handle`](Ledger::handle) tells it
//! what happened: packs that arrived, versions that are packed, messages of other ranks, how a step
//! ended. [`poll`](Ledger::poll) returns what to do next: sync, write or remove files, send a
//! message to the other ranks, report to the program. It does no I/O and has no clock and no
//! threads. So `outcrop sim fuzz` can drive several ledgers through delays, failures, deaths and
//! restarts in microseconds.
//!
//! These rules decide everything:
//!
//! - A manifest is written when all packs that it lists are durable. It is removed, durably, before
//!   any of its packs. A manifest that a crash may bring back keeps its packs.
//! - If ranks share blocks, a manifest also waits for packs of earlier versions that are in flight,
//!   even if those versions have failed: manifests of other ranks may list these packs.
//! - A version is complete on a layer when all ranks have announced that they have it there. Each
//!   rank announces versions in ascending order. So a rank that announces a later version without
//!   an earlier one has left the earlier one out.
//! - An incomplete version is kept until a later one is complete on that layer, or until a rank
//!   announces that it will never have its part. Opening a session removes no version.
//! - Directories of ranks that this run does not have are adopted by one of its ranks, which
//!   removes their manifests together with its own, first theirs, and then their packs.
//! - What could not be made durable counts as not written, and what builds upon it fails. The next
//!   version is saved in full.

#![forbid(unsafe_code)]

mod collect;
mod drafts;
mod event;
mod found;
mod layer;
mod ledger;
mod listing;
mod merges;
mod ranks;
mod steps;
#[cfg(test)]
mod tests;

pub use drafts::MAY_RETURN;
pub use event::{Action, Draft, Event, LayerIndex, Outcome, Report, SaveId, Step};
pub use found::{Everybody, Found};
pub use ledger::{LayerSettings, Ledger, Settings};
pub use merges::Merge;
