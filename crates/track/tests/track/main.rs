//! All tests of this crate from outside: one program, so that there is one to link.

mod common;
mod fork;
mod freeze;
mod freeze_process;
mod hash;
mod pinned;
mod shadow;
mod signals;
mod tracker;
