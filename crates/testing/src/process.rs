//! Processes of a test's own: this very test program, carrying out one test as a child.
//!
//! Tests of a crate are modules of one program and run in parallel threads. What belongs to a whole
//! process (limits, signal handlers, environment variables, peak memory, which driver is loaded) is
//! tested in a child.

use std::{
    env, fs, io,
    os::unix::process::ExitStatusExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Set in a child that [`child`] started: where it is to work.
const DIRECTORY: &str = "OUTCROP_TEST_DIRECTORY";

/// Set in a child that [`alone`] started: the test that it carries out.
const ALONE: &str = "OUTCROP_TEST_ALONE";

/// How long [`until`] waits. Long, because test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Carries out the test `name` (`module::function`) in a process of its own. Returns true in the
/// process that asked, where the work is done already, and false in the child, which is to do it:
///
/// ```no_run
/// fn a_limit_is_respected() {
///     if outcrop_testing::alone("limits::a_limit_is_respected") {
///         return;
///     }
///     // What belongs to the whole process.
/// }
/// ```
///
/// # Panics
/// If the test fails in the child, or if there is no test of that name.
#[track_caller]
pub fn alone(name: &str) -> bool {
    if env::var(ALONE).is_ok_and(|own| own == name) {
        return false;
    }
    let mut command = this_program();
    carry_out(&mut command, name).env(ALONE, name);
    expect_success(command);
    true
}

/// This very program again, to carry out the test `name` as a child that works in `directory`.
pub fn child(name: &str, directory: &Path) -> Command {
    let mut command = this_program();
    carry_out(&mut command, name).env(DIRECTORY, directory);
    command
}

/// Where this process is to work, if it is a child that [`child`] started.
pub fn child_directory() -> Option<PathBuf> {
    env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Lets `command`, which starts this very program in whatever way, carry out the test `name` only.
pub fn carry_out<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    command.args(["--exact", name, "--nocapture", "--test-threads=1"])
}

fn this_program() -> Command {
    Command::new(env::current_exe().unwrap())
}

/// Waits for a child to end well. What it writes to its standard error, skipping included, goes to
/// that of this process.
///
/// # Panics
/// If it fails, or if it found no test of that name.
#[track_caller]
pub fn expect_success(mut command: Command) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?} ended with {}\n{text}", output.status);
    assert!(text.contains("1 passed"), "the child found no test of that name: {command:?}\n{text}");
}

/// Runs `work` in a forked process, and returns how that ended. The test must run [`alone`]: a fork
/// copies whatever other threads are in the middle of.
pub fn in_fork(work: impl FnOnce() -> bool) -> ExitStatus {
    // SAFETY: the child uses nothing but its own memory and leaves without running anything of the
    // test program.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: ends the process.
            unsafe { libc::_exit(if outcome.is_ok_and(|is_right| is_right) { 0 } else { 1 }) }
        }
        pid => {
            assert!(pid > 0, "{}", io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            ExitStatus::from_raw(status)
        }
    }
}

/// The number behind `name` in a file of /proc about this process: kibibytes in `status` and
/// `smaps_rollup`.
pub fn of_process(file: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(Path::new("/proc/self").join(file))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = value.unwrap_or_else(|| panic!("no {name} in {file}:\n{text}"));
    Ok(value.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Waits until something is so.
///
/// # Panics
/// If it is not so after a long time.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
