//! What keeps files of a node when the node is lost. Pure: no files, no threads, no clock.
//!
//! A file of a rank is cut into [shards](outcrop_format::ShardedFile), each of which another node
//! keeps, and the rank's own node one. [`holders`] decides which ranks keep the shards of which
//! rank: they are all of different failure domains (nodes), and of one **group** of these.
//! [`Coder`] computes the chunks of a stripe, and gets the bytes back from those that are left.
//! [`Kept`] decides what of a file is there, and which shards have to be made again, and where.
//!
//! With [`Code`] `k + m` a group has at least k + m nodes, and so many keep a shard each, of which
//! any k give a file back. So any m nodes of a group may lose everything. That the rank has its
//! files in a directory of its own does not count: it may have dropped or merged them already.

#![forbid(unsafe_code)]

mod code;
mod kept;
mod layout;

pub use code::{Code, CodeError, Coder};
pub use kept::{Kept, Part, Seen};
pub use layout::{TooFew, holders};
