//! Tests of the formats: what is written can be read, formats do not change by accident, and every
//! changed byte is detected.

mod corpus;
mod damage;
mod decoders;
mod golden;
mod mailbox;
mod messages;
mod node;
mod peer;
mod pool;
mod round_trips;
mod samples;
