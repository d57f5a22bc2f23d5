//! Real programs, byte for byte against a run without Outcrop.

mod command;
mod faults;
mod left;
mod limit;
mod memory;
mod mount;
mod mpi;
mod programs;
mod python;
mod scene;
mod staged;
mod suites;
mod terminal;
