//! `outcrop run` as a process of its own.

use std::{
    env,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use outcrop_intercept::{Event, Fsync, RunOptions, Via, WriteThrough, run};
use outcrop_node::{Cache, Client, Connect, ServeOptions, serve};
use outcrop_testing::{carry_out, child, child_directory};

use crate::memory::Memory;

/// The cache (`through`, or after how many milliseconds it drains), and the words of a command, one
/// on each line.
const CACHE: &str = "OUTCROP_TEST_CACHE";
const WORDS: &str = "OUTCROP_TEST_WORDS";
const VIA: &str = "OUTCROP_TEST_VIA";
pub(crate) const MEMORY: &str = "OUTCROP_TEST_MEMORY";
pub(crate) const REPORT: &str = "OUTCROP_TEST_REPORT";
pub(crate) const FSYNC_MEMORY: &str = "OUTCROP_TEST_FSYNC_MEMORY";

/// A process that runs a command with the files below `directory` in this cache. It ends as the
/// command does; with 99 if something is not drained, and with 98 if it cannot be started.
pub(crate) fn outcrop_run(directory: &Path, cache: &str, words: &[&str]) -> Command {
    outcrop_run_via(Via::Fuse, directory, cache, words)
}

/// The same in another way.
pub(crate) fn outcrop_run_via(via: Via, directory: &Path, cache: &str, words: &[&str]) -> Command {
    let mut command = child("command::outcrop_run_in_a_child", directory);
    command.env(VIA, via.to_string()).env(CACHE, cache).env(WORDS, words.join("\n"));
    command
}

/// Serves if a client has started this program for that; does nothing as a test.
#[test]
fn serves() {
    if let Some(options) = ServeOptions::from_environment().unwrap() {
        serve(options).unwrap();
    }
}

/// A client of a daemon of its own, which leaves soon after its last client.
pub(crate) fn daemon(directory: &Path, memory_bytes: u64) -> Client {
    let mut command = Command::new("");
    let arguments = carry_out(&mut command, "command::serves").get_args().map(ToOwned::to_owned).collect();
    // On a busy machine, a client may take long to connect.
    let idle = Some(Duration::from_secs(10));
    let directory = Some(directory.to_owned());
    let serve = ServeOptions { directory, memory_bytes: Some(memory_bytes), idle, ..ServeOptions::default() };
    let program = Some(env::current_exe().unwrap());
    Client::connect(&Connect { serve, program, arguments, ..Connect::default() }).unwrap()
}

#[test]
fn outcrop_run_in_a_child() {
    let (Some(directory), Ok(words)) = (child_directory(), env::var(WORDS)) else { return };
    let cache: Arc<dyn Cache> = match env::var(CACHE).unwrap().as_str() {
        "through" => Arc::new(WriteThrough),
        "daemon" => Arc::new(daemon(&directory.with_extension("daemon"), 64 << 20)),
        late => Memory::new(Duration::from_millis(late.parse().unwrap())),
    };
    let mut words = words.lines();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).current_dir(&directory);
    let under = vec![PathBuf::from(&directory)];
    let via = Some(env::var(VIA).unwrap().parse().unwrap());
    let memory = env::var(MEMORY).map_or(1 << 30, |bytes| bytes.parse().unwrap());
    let fsync = if env::var_os(FSYNC_MEMORY).is_some() { Fsync::Memory } else { Fsync::Disk };
    let report_every = env::var_os(REPORT).map(|_| Duration::from_millis(50));
    let options = RunOptions { under, include: vec![], exclude: vec![], via, fsync, memory, report_every, cache };
    let code = match run(options, command, |event| {
        if !matches!(event, Event::Draining { .. }) {
            eprintln!("{event:?}")
        }
    }) {
        Err(error) => {
            eprintln!("{error}");
            98
        }
        Ok(outcome) if !outcome.undrained.is_empty() => {
            eprintln!("{:?}", outcome.undrained);
            eprintln!("keeper {}", outcome.keeper.unwrap_or_default());
            99
        }
        Ok(outcome) => outcome.status.code().unwrap_or_else(|| 128 + outcome.status.signal().unwrap()),
    };
    std::process::exit(code);
}
