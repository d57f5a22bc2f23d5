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
//! A crash comes between two steps of a log. What was synced before it is there. Of all other
//! operations each may have happened or not, in any order and independent of the others:
//!
//! - A write of which nothing happened leaves the bytes from before. It can also be torn: some of
//!   its sectors of 512 bytes arrive, the first ones or any. Where it made the file longer, the
//!   length may be there without the bytes; these are zero then, or anything. A sector itself is
//!   old or new.
//! - That a file was emptied by creating it again can be lost, also when later writes to it were
//!   not.
//! - Names are in a directory, not in a file: a file that was synced is absent if its directory was
//!   not, and a directory that was synced is absent, with all in it, if the one above it was not.
//! - A new name, a rename or a removal happens wholly or not at all. A rename from one directory to
//!   another is durable when both were synced.
//! - After a sync that failed, what it was to make durable may be lost for ever, though it can be
//!   read until the crash.
//!
//! Local file systems promise more than that. Not covered: bytes that change on the medium after
//! they were synced (change them with [`Tree::put`]), and media that lie about a sync.

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
mod tree;

pub use check::{Classes, Failure, Report, check, check_classes};
pub use error::{Error, Result};
pub use failing::{Failing, Fault, Operation};
pub use images::{Image, Images, Options};
pub use log::Log;
pub use mirror::Mirror;
pub use pick::ImageId;
pub use recording::Recording;
/// What an operation can fail with.
pub use rustix::io::Errno;
pub use tree::Tree;
