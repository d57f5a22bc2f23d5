//! Integration tests of the simulator. One program, so that only one has to be linked.

mod figures;
mod fuzz;
mod machines;
mod simulation;
