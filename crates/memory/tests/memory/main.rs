//! Integration tests of mappings, limits and copies. One program, so that only one has to be
//! linked.

mod before;
mod copy;
mod limits;
mod mapping;
mod media;
mod overlay;
