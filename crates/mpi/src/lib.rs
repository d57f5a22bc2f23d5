//! The processes of an MPI communicator as [`Ranks`](outcrop_ranks::Ranks).
//!
//! MPIs differ in what a communicator is, so nothing here is linked with one. A small library in C,
//! `liboutcrop-mpi.so`, is compiled with the compiler of the MPI that a program uses ([`build`]),
//! once, and loaded when a store is opened ([`join`]).
//!
//! MPI is used only inside that call, by the thread that makes it: to agree on a directory, of
//! which all ranks then know that all see it. From then on ranks talk through files there. Programs
//! may initialise MPI for one thread, and versions become complete while the program computes: a
//! thread of ours could not use MPI then, and messages that move only inside calls of the program
//! would make every rank wait for the one that computes longest.

mod build;
mod error;
mod join;
mod process;
mod shim;

pub use build::{Built, build};
pub use error::{Error, Result};
pub use join::join;
