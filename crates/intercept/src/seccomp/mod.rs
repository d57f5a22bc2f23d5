//! Interception by the kernel's filter for system calls (seccomp, with user notification): without
//! privileges, and for every program, also one that is linked statically.
//!
//! The program installs a filter on itself before it starts. The kernel then stops at each call of
//! the [list](filter), and asks this process what to do. Most calls go on as they are. A call that
//! opens a file to be staged is answered with a descriptor that this process puts into the program.
//!
//! What decides is never the memory of the program alone: a call that was looked at and may go on
//! is read again by the kernel, and a program can change it in between. It then gets the file that
//! it named, and not a staged one; if that one is staged, the lease makes it wait until it is
//! drained.

mod filter;
pub(crate) mod listener;
#[cfg(target_arch = "x86_64")]
mod nudge;

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command},
    sync::Arc,
};

use self::listener::{Listener, receive_descriptor};
use crate::{
    calls::Calls,
    crew::{Crew, Supervisor},
    stage::Stage,
};

/// Whether this kernel can intercept in this way.
pub fn is_supported() -> bool {
    listener::is_supported()
}

/// Starts a program. Its files are staged as `stage` says. `tell_end` is called when the program
/// and all that it has started have ended.
pub(crate) fn spawn(
    command: &mut Command,
    stage: Stage,
    tell_end: impl FnOnce() + Send + 'static,
) -> io::Result<(Child, Supervisor)> {
    let (ours, theirs) = UnixStream::pair()?;
    let calls = Calls::new(Arc::clone(stage.shared()));
    #[cfg(target_arch = "x86_64")]
    stage.shared().can_move_out(have_moved_out);
    let supervisor = Supervisor::start(stage, move |over| {
        let outcome = answer_all(&ours, calls, over);
        tell_end();
        outcome
    })?;
    let program = filter::program();
    let socket = theirs.as_raw_fd();
    // SAFETY: between fork and exec it only calls the system.
    unsafe { command.pre_exec(move || listener::install(&program, socket)) };
    let spawned = command.spawn();
    // The program has its own by now. Without this one, the other side learns if it failed.
    drop(theirs);
    match spawned {
        Ok(child) => Ok((child, supervisor)),
        Err(error) => {
            supervisor.end()?;
            Err(error)
        }
    }
}

/// Receives the listener from the program, and answers calls until no process is left that makes
/// any.
fn answer_all(socket: &UnixStream, calls: Calls, over: Arc<OwnedFd>) -> io::Result<()> {
    let Some(descriptor) = receive_descriptor(socket.as_fd())? else { return Ok(()) };
    Crew::answer_all(Listener::new(descriptor), calls, over)
}

/// Has the only users of staged files make a call that is looked at, so that the files leave the
/// memory.
#[cfg(target_arch = "x86_64")]
fn have_moved_out(stage: &crate::stage::Shared, files: &[Arc<crate::stage::Staged>]) -> io::Result<()> {
    nudge::nudge(files.iter().filter_map(|staged| crate::calls::sole_user(stage, staged.memory_id).ok()?))
}
