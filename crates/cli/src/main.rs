//! The outcrop program.
fn main() {}
