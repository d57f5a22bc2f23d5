//! Files in an object store: S3 first, and what else the crate `object_store` has. docs/object.md
//! says which objects there are, and why a version is complete or absent.
//!
//! [`ObjectFiles`] implements [`Files`](outcrop_layers::files::Files), so shelves, sessions and the
//! catalog use it as they use a directory. The async runtime that the client needs is inside.

mod address;
mod draft;
mod failure;
mod files;
mod names;
mod owner;
mod probe;
mod process;
mod remote;

pub use files::{ObjectFiles, Options};
pub use remote::{Store, Uploads};
