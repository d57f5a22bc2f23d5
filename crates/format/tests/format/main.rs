//! What is promised of every byte: it can be read again, it stays what it is, and a changed one is
//! noticed.

mod corpus;
mod damage;
mod decoders;
mod golden;
mod mailbox;
mod messages;
mod round_trips;
mod samples;
