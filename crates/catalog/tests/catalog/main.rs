//! All tests of this crate from outside: one program, so that there is one to link.

mod changes;
mod damage;
mod fixture;
mod golden;
mod listing;
mod read;
mod unread;
