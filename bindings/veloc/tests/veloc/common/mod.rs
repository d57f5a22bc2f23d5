//! The library as programs link with it, and programs that do.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use outcrop_testing::skip;

/// A folder for what this test program builds.
pub(crate) fn build_dir() -> PathBuf {
    let program = env::current_exe().unwrap();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program.file_name().unwrap());
    fs::create_dir_all(&dir).unwrap();
    dir
}

pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What cargo has built of this package last. It lies beside this program, under a name that says
/// how it was built.
pub(crate) fn archive() -> PathBuf {
    let program = env::current_exe().unwrap();
    let files = fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let is_archive = |name: &str| name.starts_with("libveloc_client") && name.ends_with(".a");
    let archives = files.filter(|file| file.file_name().to_str().is_some_and(is_archive));
    archives.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).unwrap().path()
}

/// Makes the library.
pub(crate) fn link(out: &Path) -> Command {
    let mut link = Command::new(source("link.sh"));
    link.arg(archive()).arg(out);
    link
}

/// The folder of libveloc-client.so, which is linked once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let dir = build_dir();
        run(&mut link(&dir.join("libveloc-client.so")));
        dir
    })
}

/// Whether cmake is there; if not, a test is skipped.
pub(crate) fn has_cmake() -> bool {
    let is_there = Command::new("cmake").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip("there is no cmake");
    }
    is_there
}

/// Whether MPI is there. Without it a test is skipped, unless all have to run.
pub(crate) fn has_mpi() -> bool {
    let is_there = Command::new("mpicxx").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip("there is no MPI: install libopenmpi-dev and openmpi-bin");
    }
    is_there
}

/// One test at a time: there are more ranks than cores as it is.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that is linked with the library. It is compiled when it is first asked for.
pub(crate) fn program(name: &'static str) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let out = build_dir().join(name.split('.').next().unwrap());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains(name) {
        compile(name, &out);
        compiled.insert(name);
    }
    out
}

fn compile(name: &str, out: &Path) {
    let (library, path) = (library(), source("tests/programs").join(name));
    let mut compile = Command::new(if name.ends_with(".cpp") { "mpicxx" } else { "mpicc" });
    compile.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DOMPI_SKIP_MPICXX"]).arg("-I").arg(source("include"));
    compile.arg(path).arg("-o").arg(out).arg("-L").arg(library).arg("-lveloc-client");
    run(compile.arg(format!("-Wl,-rpath,{}", library.display())));
}

/// Runs something that must go well.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", told(&output));
    output
}

/// All that a program has said.
pub(crate) fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A program on several ranks.
pub(crate) fn ranks(count: u32, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    // A run that hangs is a failure, and not the end of all tests.
    command.args(["--kill-after=5", "120", "mpirun", "--allow-run-as-root", "--oversubscribe"]);
    command.args(["--mca", "mpi_yield_when_idle", "1", "-n"]);
    command.arg(count.to_string()).arg(program);
    command
}

/// A configuration, with scratch and persistent directories in `dir`.
pub(crate) fn config(dir: &Path, more: &str) -> PathBuf {
    let path = dir.join("veloc.cfg");
    let (scratch, persistent) = (dir.join("scratch"), dir.join("persistent"));
    let text = format!("scratch = {}\npersistent = {}\n{more}\n", scratch.display(), persistent.display());
    fs::write(&path, text).unwrap();
    path
}
