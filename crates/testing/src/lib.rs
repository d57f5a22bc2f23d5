//! Shared tools of the tests. Only dev-dependencies may name this crate; `cargo xtask tidy` checks
//! that.
//!
//! - [`skip`]: a test that cannot run here is skipped, or fails if all must run.
//! - [`soak`] and [`amount`]: how much a sweep tries by default, and in `cargo xtask soak`.
//! - [`alone`], [`child`], [`Companion`]: child processes of a test.
//! - [`Counting`]: an allocator that knows how much is allocated.
//! - [`Registered`]: memory that the system writes to without a page fault.
//! - [`Group`], [`with_own_mounts`], [`Disk`]: memory limits, file systems and power cuts for one
//!   test.
//! - [`ObjectServer`]: a server of objects that speaks S3.
//! - [`Guest`]: a virtual machine with another kernel.
//! - `device` (feature `layers`): a device that asks a test before each call.
//! - `layer` (feature `layers`): layers in memory that ask a test before each call, and gates.

mod companion;
mod counting;
#[cfg(feature = "layers")]
pub mod device;
mod group;
mod guest;
#[cfg(feature = "layers")]
pub mod layer;
mod mounts;
mod object_server;
mod power;
mod process;
mod registered;
mod size;
mod skipping;

pub use self::{
    companion::{Companion, answer, listen},
    counting::Counting,
    group::Group,
    guest::Guest,
    mounts::{mount_ext4, mount_memory, with_own_mounts},
    object_server::ObjectServer,
    power::{Cut, Disk, FileSystem},
    process::{alone, carry_out, child, child_directory, expect_success, in_fork, of_process, program_in, until},
    registered::Registered,
    size::{amount, covered, soak},
    skipping::{does_not_apply, must_run_all, say, skip},
};

/// Bytes that depend on the seed.
pub fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|index| (seed.wrapping_mul(31) ^ index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

/// The names in a directory, sorted.
pub fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
