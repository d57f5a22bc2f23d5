//! Integration tests of trackers, hashes and images. One program, so that only one has to be
//! linked.

mod common;
mod fork;
mod freeze;
mod freeze_process;
mod hash;
mod hash_device;
mod pinned;
mod shadow;
mod signals;
mod tracker;
