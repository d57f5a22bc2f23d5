//! The preload library: functions of the C library that name paths, in a form that asks the process
//! of `outcrop run` first.
//!
//! A program loads it by `LD_PRELOAD`. It keeps no state, allocates nothing, and has no threads:
//! each question is a connection of its own, so that forks, threads, signal handlers and `vfork`
//! need no care. If nobody answers, a call does what it does without this library.
//!
//! What it does not see: programs that are linked statically, system calls that are not made
//! through these functions (other functions of the C library make some by themselves), and programs
//! that start others without the environment. They use the real files; a lease makes them wait
//! until a staged file is drained.

mod ask;
mod hooks;
#[path = "../../../crates/intercept/src/preload/protocol.rs"]
mod protocol;
mod streams;
