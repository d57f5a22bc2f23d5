//! Directories for tests: they record every change, rebuild what a crash could leave of them, and
//! fail on demand.
//!
//! ```
//! use outcrop_crash::{Options, Recording, check};
//! use outcrop_layers::files::{Files, read_whole, write_whole};
//!
//! let recording = Recording::new();
//! recording.make_dir("run")?;
//! recording.sync_dir("")?;
//! for version in 1..=3 {
//!     write_whole(&recording, "run", "state", &[version; 2000])?;
//!     recording.mark(version.to_string());
//! }
//! let report = check(&recording.log(), &Options::default(), |image, marks| {
//!     let found = Recording::from_tree(image.tree().clone());
//!     let oldest: u8 = marks.last().map_or(0, |mark| mark.parse().unwrap());
//!     match read_whole(&found, "run/state", 1 << 20) {
//!         Ok(bytes) if bytes.len() == 2000 && bytes[0] >= oldest && bytes.iter().all(|byte| *byte == bytes[0]) => Ok(()),
//!         Err(_) if oldest == 0 => Ok(()),
//!         other => Err(format!("version {oldest} was durable, but there is {other:?}")),
//!     }
//! });
//! report.expect_none_lost();
//! println!("{report}");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What a crash can do
//!
//! A crash comes between two steps of a log. What was synced before it is there. Every other
//! operation may have happened or not, in any order and independently of the others:
//!
//! - A write that did not happen leaves the old bytes. A write can also be torn: some of its
//!   sectors of 512 bytes arrive, the first ones or any. If it extended the file, the new length
//!   may be there without the bytes, which are then zero or anything. Each sector is either old or
//!   new.
//! - The truncation of a file that was created again can be lost, even if later writes to the file
//!   were not.
//! - Names belong to a directory, not to a file. A synced file is absent if its directory was not
//!   synced. A synced directory is absent, with everything in it, if its parent was not synced.
//! - A new name, a rename or a removal happens completely or not at all. A rename between two
//!   directories is durable when both are synced.
//! - After a failed sync, what it should have made durable may be lost for ever, although it can be
//!   read until the crash.
//!
//! Local file systems guarantee more than that. Not covered: bytes that change on the medium after
//! they were synced (use [`Tree::put`] for this), and media that report a sync that did not happen.

#![forbid(unsafe_code)]

mod check;
pub mod contract;
mod error;
mod failing;
mod images;
mod log;
mod medium;
mod mirror;
mod pick;
mod recording;
mod replay;
mod stores;
mod tree;

pub use check::{Classes, Failure, Report, check, check_classes};
pub use error::{Error, Result};
pub use failing::{Failing, Fault, Operation};
pub use images::{Image, Images, Options};
pub use log::Log;
pub use mirror::Mirror;
pub use pick::ImageId;
pub use recording::Recording;
/// The error of a failed operation.
pub use rustix::io::Errno;
pub use stores::Stores;
pub use tree::Tree;
