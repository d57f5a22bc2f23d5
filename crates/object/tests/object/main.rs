//! All integration tests of this crate, in one program: files in an object store, over a server in
//! memory that fails as told, and over a real one that is reached through a faulty proxy.

mod crash;
mod http;
mod proxy;
mod rules;
mod server;
