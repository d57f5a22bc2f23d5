//! Programs that nobody changes: their output lands in memory of the node daemon and drains behind.
//!
//! Each way of interception gives the program real descriptors, and acts only on calls that name
//! paths.

mod calls;
mod crew;
pub mod fuse;
mod paths;
pub mod preload;
mod run;
pub mod seccomp;
mod signals;
pub mod stage;
mod via;
mod write_through;

pub use self::{
    paths::{Paths, Pattern},
    run::{Event, Fsync, Outcome, RunOptions, Undrained, choose, run},
    signals::end_by,
    via::Via,
    write_through::WriteThrough,
};
