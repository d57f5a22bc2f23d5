//! The node daemon turns spare memory of a machine into a write-back cache for files, and the
//! client is how programs use it.
//!
//! [`Client::connect`] finds the daemon of this user, or starts it. What a client writes to a file
//! is copied into the daemon's memory, the **reserve**, which both share. The daemon **drains** it
//! to the file. `outcrop_grants` decides; this crate carries it out. [`serve`] is the daemon.

mod cached;
mod client;
mod daemon;
mod failed;
mod journal;
mod line;
mod pending;
mod place;
mod reserve;
mod serve;
mod start;
mod status;
mod target;
mod timeline;
mod wire;
mod workers;
mod writing;

pub use cached::{Cache, Cached};
pub use client::{Client, ClientFile};
pub use failed::failed;
pub use pending::{PENDING_MAX, Pending};
pub use serve::{ServeOptions, serve};
pub use start::Connect;
pub use status::{ClientStatus, FileStatus, Status};
