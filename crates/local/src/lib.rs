//! How processes of one machine find each other, and notice when one has ended.
//!
//! - [`Alive`] is a lock file that a process holds while it lives. [`is_alive`] and [`Watch`] let
//!   others see it.
//! - [`Meeting`] is the directory in which processes meet. [`Meeting::alone`] runs a short critical
//!   section in it.
//! - [`Turn`] lets one process at a time do something, first come first served.
//! - [`Scratch`] is a directory of one process. If the process is killed, the next one removes it.
//! - [`Segment`] is memory in a file. Several processes own chunks of it.
//! - [`mounts_over`] lists what is mounted over a path.
//! - [`Peer`] is the process at the other end of a Unix socket.
//!
//! The others use one kind of lock, which the system releases when its holder ends, in whatever
//! way. A forked child neither keeps what its parent holds nor releases it.

mod alive;
mod error;
mod lock;
mod meeting;
mod mounts;
mod peer;
mod scratch;
mod segment;
mod turn;

pub use alive::{Alive, Watch, is_alive, is_held_here};
pub use error::{Error, Result};
pub use meeting::Meeting;
pub use mounts::{Mounted, mounts_over};
pub use peer::Peer;
pub use scratch::Scratch;
pub use segment::Segment;
pub use turn::Turn;
