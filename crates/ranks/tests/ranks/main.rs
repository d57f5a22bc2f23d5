//! All integration tests of this crate, in one program, so that only one has to be linked.

mod directory;
mod nfs;
mod rehearsal;
