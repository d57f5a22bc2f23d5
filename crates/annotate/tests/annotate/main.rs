//! The translator, and what its programs do. One test program, so that only one has to be linked.

mod compiled;
mod crash;
mod golden;
mod hints;
// The very code that `cargo xtask install` runs; these tests need a part of it.
#[allow(dead_code)]
#[path = "../../../../xtask/src/install.rs"]
mod install;
mod killed;
// The medium of the pool's own tests; these need a part of it.
#[allow(dead_code)]
#[path = "../../../pool/tests/pool/medium.rs"]
mod medium;
mod ranks;
mod refusals;
mod structures;
mod untouched;
