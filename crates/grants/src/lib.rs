//! Decides who gets memory of the node, what drains next, and what is reported: no I/O, clock,
//! threads or unsafe.
//!
//! ```ignore
//! grants.handle(now, event);                // what happened
//! while let Some(action) = grants.poll() {} // what to do, in this order
//! grants.poll_timeout();                    // when to tell it that time has passed
//! ```
//!
//! - The **reserve** is one range of bytes. A **grant** is a part of it that one client may fill.
//!   Grants are whole pages; what is filled begins in its page where its file offset begins in a
//!   page of the file, so whole pages can bypass the page cache.
//! - What is filled is cut into **pieces**, each with a checksum. The **view** of a file says which
//!   piece has the newest bytes of each range. A piece keeps its memory until nothing of it is in
//!   the view, no drain uses it, and no reader copies from it.
//! - Every client has at most one request open, and every request gets one answer.
//! - An [`Action::Journal`] comes before the answer that depends on it.
//! - Of one file, no two drains overlap, and a new piece drains after the older drain that it
//!   overlaps has ended. A file is cut off after the drains of what is cut off.
//! - Draining waits while programs write, for a moment: until nobody has written for a while, much
//!   waits, memory is short, or somebody waits for something.
//! - Waiting clients get memory by start-time fair queueing: the one that has got least comes
//!   first, and what a client did not ask for is not saved up.

#![forbid(unsafe_code)]

mod client;
mod drain;
mod event;
mod figures;
mod file;
mod grants;
mod hold;
mod recover;
mod serve;
mod space;
#[cfg(test)]
mod tests;

pub use event::{Action, Answer, ClientId, Event, FileId, JobId, PieceId, PieceSum, Request, Timestamp};
pub use figures::{ClientFigures, Figures, FileFigures};
pub use grants::{Grants, Settings};
pub use hold::HoldSettings;
pub use space::PAGE_BYTES;
