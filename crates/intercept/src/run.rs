//! What `outcrop run` does: starts a program whose files are cached, waits for it, and sees to it
//! that everything is on the file system in the end.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
    thread,
    time::Duration,
};

use outcrop_error::{Error, ErrorKind, Result};
use outcrop_node::Cache;
use rustix::process::{Pid, Resource, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};

use crate::{
    Via,
    fuse::{Mount, Mounting, clear_stale, possible},
    paths::{Paths, Pattern},
    preload, seccomp,
    signals::{News, Signals, is_to_end, pass_on},
    stage::{Amount, Finished, Settings, Stage},
};

/// How often a mount that is in use is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long processes that end with the program may take for it, before the user hears of them.
const A_MOMENT: Duration = Duration::from_millis(300);

/// How long to wait while the program is stopped.
const A_STOP: Duration = Duration::from_millis(5);

/// How many staged files are drained at the same time.
const DRAINS: usize = 2;

/// What `fsync` of a program means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// The bytes are on the file system, durably.
    #[default]
    Disk,
    /// The bytes are in memory of the node.
    Memory,
}

/// How a program is run.
pub struct RunOptions {
    /// The directories below which files are cached.
    pub under: Vec<PathBuf>,
    /// Only these files, if any are named.
    pub include: Vec<Pattern>,
    /// Not these files.
    pub exclude: Vec<Pattern>,
    /// The way to intercept; `None`: the best that works.
    pub via: Option<Via>,
    /// What `fsync` of the program means.
    pub fsync: Fsync,
    /// How many bytes may be in memory, for ways that stage files.
    pub memory: u64,
    /// How often to tell what is staged, for ways that stage files.
    pub report_every: Option<Duration>,
    /// What holds the bytes.
    pub cache: Arc<dyn Cache>,
}

/// What a user wants to know while it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// The program has ended, but these processes still use files below the directory.
    InUse {
        /// The directory.
        directory: &'a Path,
        /// Their numbers and names.
        processes: Vec<String>,
    },
    /// The program runs, and this is in memory.
    Staged(Amount),
    /// Files are being written to the file system.
    Draining {
        /// How many are there already.
        done: usize,
        /// How many there are.
        files: usize,
    },
}

/// A file that is not on the file system as the program wrote it, and why.
#[derive(Debug)]
pub struct Undrained {
    /// Its path.
    pub path: PathBuf,
    /// What went wrong.
    pub error: io::Error,
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    /// How the program ended.
    pub status: ExitStatus,
    /// What is not on the file system. Empty if all is well.
    pub undrained: Vec<Undrained>,
    /// The process that still has these files, for ways that stage them. It goes on trying.
    pub keeper: Option<u32>,
    /// Whether the mount of another run was used. What is cached there is not in `undrained`.
    pub is_joined: bool,
}

/// Runs a program. Its standard streams, its working directory, its terminal and its signals are
/// those of this process.
pub fn run(options: RunOptions, mut command: Command, mut tell: impl FnMut(Event<'_>)) -> Result<Outcome> {
    for directory in &options.under {
        clear_stale(directory)?;
    }
    let paths = Paths::new(&options.under, options.include, options.exclude)?;
    let via = choose(options.via)?;
    if via != Via::Fuse {
        let settings = Settings { paths, memory: options.memory, fsync: options.fsync, drains: DRAINS };
        return run_staged(via, settings, options.report_every, command, tell);
    }
    let mut signals = Signals::listen().map_err(|error| failed("listen to signals", error))?;
    keep_limits(&mut command);
    let mounting = Mounting { paths, cache: options.cache, fsync: options.fsync };
    let mut mounts = Vec::new();
    for directory in mounting.paths.under() {
        mounts.extend(Mount::new(directory, &mounting)?);
    }
    let is_joined = mounts.len() < mounting.paths.under().len();
    enter(&mut command)?;
    let status = match command.spawn() {
        Ok(child) => wait(child, &mut signals, None, || {}),
        Err(error) => Err(cannot_start(&command, error)),
    };
    let undrained = finish(mounts, &mut signals, &mut tell);
    Ok(Outcome { status: status?, undrained, keeper: None, is_joined })
}

/// The wanted way, if this machine allows it, or else the best that it allows.
pub fn choose(wanted: Option<Via>) -> Result<Via> {
    let obstacle = |via| match via {
        Via::Fuse => possible().err(),
        Via::Seccomp => (!seccomp::is_supported())
            .then(|| "the kernel does not let this process filter system calls; use --via preload".to_owned()),
        Via::Preload => preload::library().is_none().then(preload::missing),
    };
    match wanted {
        None => Via::choose(obstacle),
        Some(via) => match obstacle(via) {
            None => Ok(via),
            Some(reason) => Err(Error::new(ErrorKind::Usage, reason)),
        },
    }
}

/// Runs a program with staged files.
fn run_staged(
    via: Via,
    settings: Settings,
    report_every: Option<Duration>,
    mut command: Command,
    mut tell: impl FnMut(Event<'_>),
) -> Result<Outcome> {
    if via == Via::Preload {
        preload::prepare(&mut command)?;
    }
    let mut signals = Signals::listen().map_err(|error| failed("listen to signals", error))?;
    keep_limits(&mut command);
    let directory = settings.paths.under()[0].clone();
    let stage = Stage::start(settings)?;
    let ending = signals.ending().map_err(|error| failed("wait for the program", error))?;
    let spawned = match via {
        Via::Preload => preload::spawn(&mut command, stage),
        _ => seccomp::spawn(&mut command, stage, move || ending.tell()),
    };
    let (child, supervisor) = spawned.map_err(|error| cannot_start(&command, error))?;
    let status = wait(child, &mut signals, report_every, || tell(Event::Staged(supervisor.amount())));
    // Nobody knows what else a program with the library has started.
    if via != Via::Preload {
        let tell = || tell(Event::InUse { directory: &directory, processes: processes_in(&directory) });
        wait_for_the_rest(&mut signals, tell)?;
    }
    let stage = supervisor.end().map_err(|error| failed("answer the calls of the program", error))?;
    let Finished { undrained, keeper } = stage.finish(|done, files| {
        tell(Event::Draining { done, files });
        !signals.wants_end()
    });
    Ok(Outcome { status: status?, undrained, keeper, is_joined: false })
}

/// Waits for what the program has started and left behind, until a signal to end comes.
fn wait_for_the_rest(signals: &mut Signals, tell: impl FnOnce()) -> Result<()> {
    let failed = |error| failed("wait for what the program has started", error);
    // Nearly always they have ended before the program.
    if signals.is_quiet(A_MOMENT).map_err(failed)? {
        tell();
    }
    loop {
        match signals.next().map_err(failed)? {
            News::Signal { number, .. } if !is_to_end(number) => {}
            News::Signal { .. } | News::Ended => return Ok(()),
        }
    }
}

fn cannot_start(command: &Command, error: io::Error) -> Error {
    let program = command.get_program().display();
    let message = format!("cannot start {program}; give its path, or one that is in PATH");
    Error::caused(ErrorKind::Missing, message, error)
}

fn failed(what: &str, error: io::Error) -> Error {
    Error::caused(ErrorKind::Storage, format_args!("cannot {what}"), error)
}

/// The program starts in the working directory as it is now, with the mount over it, and not in the
/// one below that this process is in.
fn enter(command: &mut Command) -> Result<()> {
    if command.get_current_dir().is_none() {
        let here = std::env::current_dir().map_err(|error| failed("find the working directory", error))?;
        // Without a name of that directory there is no mount over it either.
        if here.is_dir() {
            command.current_dir(here);
        }
    }
    Ok(())
}

/// The limits of this process are raised for itself; the program gets those of before.
fn keep_limits(command: &mut Command) {
    let limit = getrlimit(Resource::Nofile);
    let restore = move || Ok(setrlimit(Resource::Nofile, limit)?);
    // SAFETY: `setrlimit` is one system call, which may be made between fork and exec.
    unsafe { command.pre_exec(restore) };
}

/// Waits for the program, and passes signals on to it. Reports when nothing has happened for a
/// while.
fn wait(
    mut child: Child,
    signals: &mut Signals,
    report_every: Option<Duration>,
    mut report: impl FnMut(),
) -> Result<ExitStatus> {
    let id = Pid::from_child(&child);
    let ending = signals.ending().map_err(|error| failed("wait for the program", error))?;
    thread::spawn(move || {
        // It stays a zombie, so that its number is not used again before the last signal is passed.
        // It may also be stopped for a moment, by this process.
        let wait = || waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        loop {
            match wait() {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some(status)) if status.stopped() || status.trapped() => thread::sleep(A_STOP),
                _ => break,
            }
        }
        ending.tell();
    });
    loop {
        match signals.next_within(report_every).map_err(|error| failed("wait for the program", error))? {
            None => report(),
            Some(News::Signal { number, is_of_terminal }) => pass_on(id, number, is_of_terminal),
            Some(News::Ended) => return child.wait().map_err(|error| failed("wait for the program", error)),
        }
    }
}

/// Takes the mounts away and drains what is left. A signal to end makes it leave at once; the
/// daemon goes on.
fn finish(mounts: Vec<Mount>, signals: &mut Signals, tell: &mut impl FnMut(Event<'_>)) -> Vec<Undrained> {
    let mut undrained = Vec::new();
    let mut is_hurried = false;
    for mut mount in mounts {
        is_hurried |= !unmount(&mut mount, signals, tell);
        let left = mount.drain(|done, files| {
            if files > 0 {
                tell(Event::Draining { done, files });
            }
            is_hurried |= signals.wants_end();
            !is_hurried
        });
        undrained.extend(left);
    }
    undrained
}

/// Takes a mount away once nobody uses it. Returns false if a signal made it not wait for that.
fn unmount(mount: &mut Mount, signals: &mut Signals, tell: &mut impl FnMut(Event<'_>)) -> bool {
    let mut is_told = false;
    loop {
        match mount.unmount() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => {
                tracing::warn!(%error, directory = %mount.directory().display(), "cannot unmount");
                return mount.abandon().is_ok();
            }
            Ok(()) => return true,
        }
        if !std::mem::replace(&mut is_told, true) {
            let processes = processes_in(mount.directory());
            tell(Event::InUse { directory: mount.directory(), processes });
        }
        if signals.wants_end() {
            let _ = mount.abandon();
            return false;
        }
        // Nobody tells us when the last process leaves a directory.
        thread::sleep(AGAIN);
    }
}

/// Processes with a working directory or an open file below a directory.
fn processes_in(directory: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_in = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
    let uses = |id: &u32| {
        let own = PathBuf::from(format!("/proc/{id}"));
        let files = fs::read_dir(own.join("fd")).into_iter().flatten().flatten();
        *id != std::process::id() && (is_in(&own.join("cwd")) || files.into_iter().any(|file| is_in(&file.path())))
    };
    let name = |id: u32| {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        format!("{id} ({})", name.trim())
    };
    numbered.filter(uses).map(name).collect()
}
