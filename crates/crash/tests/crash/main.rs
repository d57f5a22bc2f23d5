//! All tests of this crate from outside: one program, so that there is one to link.

mod common;
mod failing;
mod images;
mod power_cut;
mod protocol;
mod recording;
