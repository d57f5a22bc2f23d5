//! Real programs, byte for byte against a run without Outcrop.

mod command;
mod faults;
mod memory;
mod mount;
mod programs;
mod python;
mod scene;
mod staged;
mod suites;
