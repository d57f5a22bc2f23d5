//! All tests of this crate from outside: one program, so that there is one to link.

mod common;
mod heat;
// The very code that `cargo xtask install` runs; these tests need a part of it.
#[allow(dead_code)]
#[path = "../../../../xtask/src/install.rs"]
mod install;
mod interface;
mod model;
mod steps;
