//! Integration tests of the planner. One program, so that only one has to be linked.

mod memory;
mod persist;
mod properties;
mod world;
