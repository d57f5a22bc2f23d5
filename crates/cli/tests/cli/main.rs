//! Integration tests of the program. One test program, so that only one has to be linked.

mod commands;
mod common;
mod hostile;
mod pool;
mod sim;
mod store;
mod survey;
