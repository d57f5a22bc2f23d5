//! FUSE: a mount over the directory itself, so that every process of the node sees what is cached.
//!
//! The real directory is reached through a descriptor that was opened before the mount.

mod attributes;
mod caller;
mod content;
mod crowd;
mod directory;
mod file;
mod mount;
mod node;
mod server;
mod tree;

pub use self::mount::{Mount, Mounting, clear_stale, possible};
