//! How processes of one machine find and outlive each other.
//!
//! - [`Alive`] is a lock file that a process holds while it lives; [`is_alive`] and [`Watch`] tell
//!   others.
//! - [`Meeting`] is the directory in which processes meet. [`Meeting::alone`] is a short section in
//!   it for one at a time.
//! - [`Turn`] lets one process do something at a time, first come first served.
//! - [`Scratch`] is a directory of one process; if that is killed, the next to come removes it.
//! - [`Segment`] is memory in a file, of which several processes have chunks.
//!
//! All of them stand on one kind of lock, which the system gives up when its holder ends, in
//! whatever way. A forked child neither keeps what its parent holds nor gives it up.

mod alive;
mod error;
mod lock;
mod meeting;
mod scratch;
mod segment;
mod turn;

pub use alive::{Alive, Watch, is_alive};
pub use error::{Error, Result};
pub use meeting::Meeting;
pub use scratch::Scratch;
pub use segment::Segment;
pub use turn::Turn;
