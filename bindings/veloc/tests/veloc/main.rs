//! All tests of this crate from outside: one program, so that there is one to link.

mod common;
mod heat;
mod interface;
mod steps;
