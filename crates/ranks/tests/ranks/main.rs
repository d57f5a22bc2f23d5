//! All tests of this crate from outside: one program, so that there is one to link.

mod directory;
mod nfs;
