//! Finds the daemon of this user, or starts it.

use std::{
    ffi::OsString,
    fs,
    hash::{BuildHasher, Hasher},
    io::{self, BufRead, BufReader},
    os::{
        fd::{OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use outcrop_local::Turn;

use crate::{
    place::{Place, said},
    serve::{BEATEN, FAILED, OPTIONS, READY, ServeOptions, WRONG},
    wire,
};

/// How often to start a daemon that ends before it is ready.
const ATTEMPTS_MAX: usize = 20;

/// How to find a daemon, and how to start one.
#[derive(Debug, Clone)]
pub struct Connect {
    /// What a daemon is told that is started for this client.
    pub serve: ServeOptions,
    /// The program that serves; `None` if no daemon shall be started.
    pub program: Option<PathBuf>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, in addition to that of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// What this client is called in `status`.
    pub name: String,
}

impl Default for Connect {
    fn default() -> Self {
        let name = std::env::args_os().next().map(PathBuf::from);
        let name = name.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default();
        Self { serve: ServeOptions::default(), program: None, arguments: Vec::new(), environment: Vec::new(), name }
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Connect {
    /// A connection to the daemon, which is started if there is none.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        let place = Place::new(self.serve.directory.as_deref())?;
        match wire::connect_to(&place.socket()) {
            Err(error) if is_missing(&error) => {}
            connected => {
                return connected.map_err(|error| said(&error, format!("connect to {}", place.socket().display())));
            }
        }
        // One client at a time starts a daemon. The others find it when it is their turn.
        let _turn = Turn::wait_in(place.path(), "start").map_err(io::Error::other)?;
        let Some(program) = &self.program else {
            let text = "no node daemon is running: start one (outcrop node start)";
            return wire::connect_to(&place.socket()).map_err(|_| io::Error::new(io::ErrorKind::NotFound, text));
        };
        // Daemons may be killed before they can be used.
        for _ in 0..ATTEMPTS_MAX {
            match wire::connect_to(&place.socket()) {
                Err(error) if is_missing(&error) => {}
                connected => return connected,
            }
            if let Begun::Beaten = self.start(program)? {
                // One that is about to end, or to be ready, has the lock.
                wait_for_other(&place)?;
            }
        }
        let program = program.display();
        Err(io::Error::other(format!("the node daemon {program} ended {ATTEMPTS_MAX} times before it was ready")))
    }

    fn start(&self, program: &Path) -> io::Result<Begun> {
        let options = serde_json::to_string(&self.serve).map_err(io::Error::other)?;
        let mut command = Command::new(program);
        command.args(&self.arguments).envs(self.environment.iter().cloned()).env(OPTIONS, options);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: between fork and exec it only makes system calls.
        unsafe { command.pre_exec(detach) };
        let what = || {
            format!("start the node daemon {} (it has to be in PATH, or named with its directory)", program.display())
        };
        let mut child = command.spawn().map_err(|error| said(&error, what()))?;
        let output = child.stdout.take().expect("it is piped");
        // It has ended: the daemon is its child.
        child.wait()?;
        for line in BufReader::new(output).lines() {
            // A test program has written the start of the line.
            let line = line?;
            if line.ends_with(READY) {
                return Ok(Begun::Ready);
            } else if line.ends_with(BEATEN) {
                return Ok(Begun::Beaten);
            } else if let Some((_, reason)) = line.split_once(FAILED) {
                // What a user can mend is told from what failed.
                let (kind, reason) = match reason.strip_prefix(WRONG) {
                    Some(reason) => (io::ErrorKind::InvalidInput, reason),
                    None => (io::ErrorKind::Other, reason),
                };
                return Err(io::Error::new(kind, format!("the node daemon does not start: {reason}")));
            }
        }
        Ok(Begun::Dead)
    }
}

enum Begun {
    Ready,
    Dead,
    Beaten,
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Waits until the daemon that has the lock listens, or has ended.
fn wait_for_other(place: &Place) -> io::Result<()> {
    // Directories of sockets can be watched, but this happens only if somebody starts a daemon by
    // hand at the same moment.
    if let Some(watch) = outcrop_local::Watch::open(&place.lock())? {
        for _ in 0..100 {
            if wire::connect_to(&place.socket()).is_ok() || !watch.is_alive()? {
                return Ok(());
            }
            rustix::event::poll(&mut [], Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))?;
        }
    }
    let path = place.path().display();
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("a daemon holds the lock in {path} and does not answer")))
}

/// Makes a daemon of a process that is about to be executed: a session of its own, a parent that
/// does not wait for it, and no open files but its standard ones.
fn detach() -> io::Result<()> {
    const FIRST: RawFd = 3;
    // SAFETY: these calls use no memory of this process, and are allowed after a fork. The parent
    // of the second fork leaves at once.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() == -1 {
            return Err(io::Error::last_os_error());
        }
        // They are closed when the program is executed, and not before: one of them tells the
        // parent whether that has worked. Kernels before 5.11 inherit what is open.
        libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}

/// Waits until no daemon serves this directory.
pub(crate) fn wait_for_end(directory: Option<&std::path::Path>) -> io::Result<()> {
    match outcrop_local::Watch::open(&Place::new(directory)?.lock())? {
        Some(watch) => watch.wait(),
        None => Ok(()),
    }
}

/// Whether a daemon serves this directory now.
pub(crate) fn is_served(directory: Option<&Path>) -> io::Result<bool> {
    let place = Place::new(directory)?;
    Ok(fs::exists(place.lock())? && outcrop_local::is_alive(&place.lock())?)
}
