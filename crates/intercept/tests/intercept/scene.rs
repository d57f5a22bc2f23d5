//! The same commands with and without Outcrop, and a comparison of what they leave.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use outcrop_intercept::{Fsync, Outcome, RunOptions, Via, WriteThrough, run};
use outcrop_node::Cache;
use outcrop_testing::{amount, skip, with_own_mounts};

use crate::{
    command::{daemon, outcrop_run_via},
    memory::Memory,
};

/// Which caches every program is run with.
pub(crate) fn caches(root: &Path) -> Vec<(&'static str, Arc<dyn Cache>)> {
    vec![
        ("daemon", Arc::new(daemon(&root.join("daemon"), 64 << 20))),
        ("daemon with little memory", Arc::new(daemon(&root.join("small"), 2 << 20))),
        ("write through", Arc::new(WriteThrough)),
        ("drained late", Memory::new(Duration::from_secs(3600))),
        ("drained soon", Memory::new(Duration::from_millis(1))),
    ]
}

/// What it is called, the way, and the cache of a mount.
pub(crate) type Way = (&'static str, Via, Arc<dyn Cache>);

/// Which ways and caches every program is run with.
pub(crate) fn ways(root: &Path) -> Vec<Way> {
    let can_mount = outcrop_intercept::fuse::possible().is_ok();
    // Without privileges, only who mounts is different.
    let few = if rustix::process::geteuid().is_root() { usize::MAX } else { amount(1, usize::MAX) };
    let mounted = if can_mount { caches(root) } else { vec![] };
    let mut ways: Vec<_> = mounted.into_iter().take(few).map(|(name, cache)| (name, Via::Fuse, cache)).collect();
    for via in staging() {
        ways.push((if via == Via::Seccomp { "seccomp" } else { "preload" }, via, Arc::new(WriteThrough)));
    }
    ways
}

/// The ways that stage files, as far as they are possible here.
pub(crate) fn staging() -> Vec<Via> {
    let is_there = |via: &Via| match via {
        Via::Preload => outcrop_intercept::preload::library().is_some(),
        _ => outcrop_intercept::seccomp::is_supported(),
    };
    let (there, missing): (Vec<_>, Vec<_>) = [Via::Seccomp, Via::Preload].into_iter().partition(is_there);
    for via in missing {
        skip(format_args!("{via} is not possible here; build outcrop-preload"));
    }
    there
}

/// Options to cache everything below a directory.
pub(crate) fn options(directory: &Path, cache: Arc<dyn Cache>) -> RunOptions {
    options_via(Via::Fuse, directory, cache)
}

/// The same in another way.
pub(crate) fn options_via(via: Via, directory: &Path, cache: Arc<dyn Cache>) -> RunOptions {
    RunOptions {
        under: vec![directory.to_owned()],
        include: vec![],
        exclude: vec![],
        via: Some(via),
        fsync: Fsync::Disk,
        memory: 1 << 30,
        report_every: None,
        cache,
    }
}

/// Calls `test` with a directory of its own, in which file systems can be mounted.
pub(crate) fn scene(test: impl FnOnce(&Path) + Send) {
    if !rustix::process::geteuid().is_root() {
        let directory = tempfile::tempdir().unwrap();
        return test(&directory.path().canonicalize().unwrap());
    }
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    with_own_mounts(test);
}

/// A shell that works in `directory` and ends with the first command that fails.
pub(crate) fn shell(script: &str, directory: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(directory).stdin(Stdio::null());
    for variable in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        command.env(variable, "2026-01-01T00:00:00Z");
    }
    for (variable, value) in [("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@b"), ("GIT_COMMITTER_NAME", "a")] {
        command.env(variable, value);
    }
    command.env("GIT_COMMITTER_EMAIL", "a@b").env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    command.env("TMPDIR", directory).env_remove("RUST_LOG");
    command
}

/// Runs a script below a mount. Its output goes to a file beside the directory.
pub(crate) fn run_script(script: &str, directory: &Path, cache: Arc<dyn Cache>) -> (Outcome, String) {
    run_script_via(Via::Fuse, script, directory, cache)
}

/// The same in another way.
pub(crate) fn run_script_via(via: Via, script: &str, directory: &Path, cache: Arc<dyn Cache>) -> (Outcome, String) {
    let output = directory.with_extension("output");
    let file = fs::File::create(&output).unwrap();
    let mut command = shell(script, directory);
    if via != Via::Fuse {
        return (run_alone(via, &command, script, &output), fs::read_to_string(output).unwrap());
    }
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let outcome = run(options_via(via, directory, cache), command, |_| {}).unwrap();
    (outcome, fs::read_to_string(output).unwrap())
}

/// Runs a script in a process of its own. Here, other tests start programs all the time; each has a
/// copy of every file that this process has open, until it is executed, and a file that is open for
/// writing cannot be executed.
fn run_alone(via: Via, like: &Command, script: &str, output: &Path) -> Outcome {
    let name = output.with_extension("script");
    fs::write(&name, script).unwrap();
    // What the process itself prints is not meant.
    let words = format!("exec > {} 2>&1; eval \"$(cat {})\"", output.display(), name.display());
    let directory = like.get_current_dir().unwrap();
    let mut command = outcrop_run_via(via, directory, "through", &["sh", "-euc", &words]);
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    Outcome { status, undrained: vec![], keeper: None, is_joined: false }
}

/// Whether all of these programs are installed; skips the test if not.
pub(crate) fn has(programs: &[&str]) -> bool {
    let is_there = |program: &&str| {
        let found = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", program]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        skip(format_args!("not installed: {missing:?}"));
    }
    missing.is_empty()
}

/// Runs a script natively and through a mount with each cache, and compares output and trees. The
/// script finds the same empty directory each time; what is in `before` is made natively first.
#[track_caller]
pub(crate) fn compare(before: &str, script: &str) {
    compare_where(before, script, usize::MAX, |_| true);
}

/// The same in some ways only.
#[track_caller]
pub(crate) fn compare_in(before: &str, script: &str, is_meant: fn(Via) -> bool) {
    compare_where(before, script, usize::MAX, is_meant);
}

/// The same with the first few caches only.
#[track_caller]
pub(crate) fn compare_with(count: usize, before: &str, script: &str) {
    compare_where(before, script, count, |_| true);
}

#[track_caller]
fn compare_where(before: &str, script: &str, count: usize, is_meant: fn(Via) -> bool) {
    scene(|root| {
        let native = root.join("native");
        fs::create_dir(&native).unwrap();
        expect(shell(before, &native).status(), "before");
        let expected = shell(script, &native).output().unwrap();
        assert!(expected.status.success(), "natively: {}", String::from_utf8_lossy(&expected.stderr));
        let mut expected_output = String::from_utf8(expected.stdout).unwrap();
        expected_output += &String::from_utf8(expected.stderr).unwrap();
        let expected_tree = tree(&native);

        for (name, via, cache) in ways(root).into_iter().filter(|(_, via, _)| is_meant(*via)).take(count) {
            // The name of the directory has to be the same, for programs that print it.
            let kept = root.join("kept");
            fs::rename(&native, &kept).unwrap();
            fs::create_dir(&native).unwrap();
            expect(shell(before, &native).status(), "before");
            let (outcome, output) = run_script_via(via, script, &native, cache);
            assert!(outcome.status.success(), "{name}: {} {output}", outcome.status);
            assert!(outcome.undrained.is_empty(), "{name}: {:?}", outcome.undrained);
            assert_eq!(output, expected_output, "{name}: another output");
            let differences = differences(&expected_tree, &tree(&native));
            assert!(differences.is_empty(), "{name}: {differences:#?}");
            fs::remove_dir_all(&native).unwrap();
            fs::rename(&kept, &native).unwrap();
        }
    });
}

#[track_caller]
fn expect(status: io::Result<ExitStatus>, what: &str) {
    assert!(status.unwrap().success(), "{what}");
}

/// What can be told apart about a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    bytes: u64,
    /// Only if a program has set it: another year than that of the test.
    modified: Option<(i64, i64)>,
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything below a directory.
pub(crate) fn tree(directory: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let content = match () {
            () if kind.is_file() => fs::read(&path).unwrap(),
            () if kind.is_symlink() => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
            () => Vec::new(),
        };
        if kind.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let is_set = metadata.mtime() < now - 24 * 3600;
        let value = Seen {
            mode: metadata.mode(),
            links: metadata.nlink(),
            owner: (metadata.uid(), metadata.gid()),
            bytes: if kind.is_dir() { 0 } else { metadata.len() },
            modified: is_set.then(|| (metadata.mtime(), metadata.mtime_nsec())),
            content,
            attributes: attributes(&path, kind.is_symlink()),
        };
        seen.insert(path.strip_prefix(directory).unwrap().to_owned(), value);
    }
    seen
}

fn attributes(path: &Path, is_link: bool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = Vec::with_capacity(4096);
    if is_link || rustix::fs::listxattr(path, rustix::buffer::spare_capacity(&mut names)).is_err() {
        return BTreeMap::new();
    }
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = Vec::with_capacity(4096);
        rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value)).unwrap();
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// What differs, in words.
pub(crate) fn differences(expected: &BTreeMap<PathBuf, Seen>, found: &BTreeMap<PathBuf, Seen>) -> Vec<String> {
    let mut differences = Vec::new();
    for (path, wanted) in expected {
        match found.get(path) {
            None => differences.push(format!("{} is missing", path.display())),
            Some(seen) if seen != wanted => {
                differences.push(format!("{}: {}", path.display(), difference(wanted, seen)))
            }
            Some(_) => {}
        }
    }
    let more = found.keys().filter(|path| !expected.contains_key(*path));
    differences.extend(more.map(|path| format!("{} should not be there", path.display())));
    differences
}

fn difference(wanted: &Seen, seen: &Seen) -> String {
    let brief = |seen: &Seen| {
        let Seen { mode, links, owner, bytes, modified, attributes, .. } = seen;
        format!("mode {mode:o} links {links} owner {owner:?} bytes {bytes} modified {modified:?} {attributes:?}")
    };
    let at = wanted.content.iter().zip(&seen.content).position(|(a, b)| a != b);
    format!("[{}] instead of [{}], first other byte {at:?}", brief(seen), brief(wanted))
}
