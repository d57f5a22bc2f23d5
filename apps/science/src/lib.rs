//! Four scientific programs, each with its state in plain memory, in emulated non-volatile memory,
//! in checkpoint files, or in a pool.
//!
//! - [`lu`]: LU decomposition of a dense matrix with partial pivoting.
//! - [`crack`]: a crystal in two dimensions that is pulled until it cracks.
//! - [`pagerank`]: PageRank of a graph whose degrees follow a power law.
//! - [`droplet`]: a droplet in a flow, on an octree that is refined at its surface.
//!
//! A [`Program`] is numerics on arrays and other structures that a [`Keeper`] provides; it does not
//! know how they are kept. A [`Job`] runs it, and goes on after an interruption with exactly the
//! result of an undisturbed run: nothing depends on the number of threads.

mod checkpoint;
mod command;
pub mod crack;
pub mod droplet;
mod error;
mod job;
mod keep;
pub mod lu;
pub mod pagerank;
mod picture;
mod random;
mod stop;

pub use command::{Keeping, main};
pub use error::{Error, Result};
pub use job::{Job, Program, Stepped, Traffic};
pub use keep::{Element, Field, Keep, Keeper, Way};
pub use picture::Picture;
pub use random::Random;
pub use stop::{Signal, Stop};
