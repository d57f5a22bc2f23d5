//! Model trees on known data, and beside Weka's.

// Tests may talk to the system.
#![allow(clippy::disallowed_methods)]

mod data;
mod machines;
mod measured;
