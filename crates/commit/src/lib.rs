//! Decides when a version is complete, what becomes visible and what is removed.
//!
//! A [`Ledger`] is one session of one rank, as a state machine: [`handle`](Ledger::handle) tells it
//! what happened (packs that arrived, versions that are packed, what another rank said, how a step
//! ended), [`poll`](Ledger::poll) gives what to do next (sync, write or remove files, tell other
//! ranks, tell the program). It does no I/O, has no clock and no threads, so that several of them
//! can be driven through delays, failures, deaths and restarts in microseconds
//! (`outcrop sim fuzz`).
//!
//! These rules decide everything:
//!
//! - A manifest is written when all packs that it lists are there, durably. It is removed durably
//!   before any of its packs is. Whatever a crash may bring back keeps its packs.
//! - Where ranks share blocks, it also waits for packs of earlier versions that are on their way,
//!   whether those versions have failed or not: manifests of other ranks may list them.
//! - A version is complete on a layer when all ranks have said that they have it there. Each says
//!   so in the order of versions: who has a later one and not an earlier one has left that out.
//! - Versions that not all ranks have are kept until a later one is complete on that layer, unless
//!   a rank says that it will never have its part. Opening a session removes no version.
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
pub use found::{Found, returning};
pub use ledger::{LayerSettings, Ledger, Settings};
pub use merges::Merge;
