//! Integration tests of locks and turns. One program, so that only one has to be linked.

mod alive;
mod turn;
