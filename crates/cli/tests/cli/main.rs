//! All tests of this crate from outside: one program, so that there is one to link.

mod commands;
mod common;
mod hostile;
mod sim;
mod store;
mod survey;
