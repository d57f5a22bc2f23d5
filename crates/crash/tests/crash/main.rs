//! All integration tests of this crate, in one program, so that only one has to be linked.

mod common;
mod failing;
mod images;
mod power_cut;
mod protocol;
mod recording;
