//! Tests of the node daemon and its client, with real daemons, which are this program too.

mod basics;
mod daemon;
mod failing;
mod hostile;
mod killed;
mod memory;
mod pending;
mod starting;
mod timeline;
