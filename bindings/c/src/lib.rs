//! Outcrop for programs in C, and in whatever can call C.
//!
//! `include/outcrop.h` is made from this crate by cbindgen (`cargo xtask header`), so that names
//! here are those of C, and comments are the documentation of the header. Every call comes through
//! [`border::call`], and every handle is looked up in [`handles`], where a wrong one is found out.

// Who calls from C keeps to what the header says of pointers; it is said once, there.
#![allow(clippy::missing_safety_doc, non_camel_case_types)]

mod border;
mod handles;
mod head;
mod node;
mod pool;
mod session;
mod store;
mod tape;
mod versions;

pub use border::*;
pub use head::*;
pub use node::*;
pub use pool::*;
pub use session::*;
pub use store::*;
pub use tape::*;
pub use versions::*;
