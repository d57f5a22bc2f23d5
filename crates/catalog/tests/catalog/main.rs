//! All integration tests of this crate, in one program, so that only one has to be linked.

mod changes;
mod damage;
mod fixture;
mod golden;
mod listing;
mod read;
mod unread;
