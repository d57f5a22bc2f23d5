//! The four programs: their numerics, and that they go on after any interruption.

mod interrupted;
mod numerics;
mod refusals;
