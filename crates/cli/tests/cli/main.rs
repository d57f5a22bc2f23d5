//! Integration tests of the program. One test program, so that only one has to be linked.

mod annotate;
mod apps;
mod boxes;
mod commands;
mod common;
mod hostile;
// The very code that `cargo xtask install` runs; these tests need a part of it.
#[allow(dead_code)]
#[path = "../../../../xtask/src/install.rs"]
mod install;
mod node;
mod object;
mod pool;
mod sim;
mod slurm;
mod store;
mod survey;
