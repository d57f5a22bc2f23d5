//! Child processes of a test: the same test program, running one test as a child.
//!
//! The tests of a crate are modules of one program and run in parallel threads. What concerns a
//! whole process (limits, signal handlers, environment variables, peak memory, the loaded driver)
//! is tested in a child.

use std::{
    env, fs, io,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Set in a child that [`child`] started: its working directory.
const DIRECTORY: &str = "OUTCROP_TEST_DIRECTORY";

/// Set in a child that [`alone`] started: the test that it runs.
const ALONE: &str = "OUTCROP_TEST_ALONE";

/// The timeout of [`until`]. It is long, because test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the test `name` (`module::function`) in a process of its own. Returns true in the calling
/// process, where the work is done already, and false in the child, which has to do it:
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

/// A command that runs the test `name` of this program as a child that works in `directory`.
pub fn child(name: &str, directory: &Path) -> Command {
    let mut command = this_program();
    carry_out(&mut command, name).env(DIRECTORY, directory);
    command
}

/// The working directory of this process, if [`child`] started it.
pub fn child_directory() -> Option<PathBuf> {
    env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Makes `command`, which starts this program in some way, run only the test `name`.
pub fn carry_out<'a>(command: &'a mut Command, name: &str) -> &'a mut Command {
    command.args(["--exact", name, "--nocapture", "--test-threads=1"])
}

/// Makes a program of this name in a directory, which is this one as it carries out the test
/// `test`. Returns the value of `PATH` by which it is found first.
pub fn program_in(directory: &Path, name: &str, test: &str) -> String {
    fs::create_dir_all(directory).unwrap();
    let mut command = this_program();
    carry_out(&mut command, test);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = directory.join(name);
    fs::write(&script, format!("#!/bin/sh\nexec {}\n", words.join(" "))).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", directory.display(), env::var("PATH").unwrap_or_default())
}

fn this_program() -> Command {
    Command::new(env::current_exe().unwrap())
}

/// Waits for a child to end successfully. Its standard error, including skip messages, goes to that
/// of this process.
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

/// Runs `work` in a forked process, and returns its exit status. The test must run [`alone`],
/// because a fork copies the state of other threads in the middle of their work.
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

/// The number after `name` in a file of /proc/self. In `status` and `smaps_rollup` it is in
/// kibibytes.
pub fn of_process(file: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(Path::new("/proc/self").join(file))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = value.unwrap_or_else(|| panic!("no {name} in {file}:\n{text}"));
    Ok(value.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold after a long time.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
