//! Programs with MPI: the MPI of the system, and those that `OUTCROP_TEST_MPICC` names, a list of
//! compilers like the value of `PATH`.

#[path = "mpi/ulfm.rs"]
mod ulfm;

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use outcrop_testing::{amount, does_not_apply, skip};
use tempfile::TempDir;

/// What is found with every compiler's help.
/// (MPICH's `MPI_STATUSES_IGNORE` looks like an array of nothing.)
const WARNINGS: [&str; 7] =
    ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow", "-O2", "-DOMPI_SKIP_MPICXX"];

/// An MPI that is installed.
struct Mpi {
    mpicc: PathBuf,
    mpirun: PathBuf,
    is_open_mpi: bool,
}

impl Mpi {
    /// Those that are there; a test is skipped if there is none.
    fn all() -> Vec<Self> {
        let named = env::var_os("OUTCROP_TEST_MPICC").unwrap_or_default();
        let mpis: Vec<_> =
            env::split_paths(&named).chain(["mpicc".into()]).filter_map(|path| Self::at(&path)).collect();
        if mpis.is_empty() {
            skip("there is no MPI: install libopenmpi-dev and openmpi-bin");
        }
        mpis
    }

    fn at(mpicc: &Path) -> Option<Self> {
        let mpirun = mpicc.with_file_name("mpirun");
        let version = Command::new(&mpirun).arg("--version").output().ok().filter(|output| output.status.success())?;
        Command::new(mpicc).arg("--version").output().ok().filter(|output| output.status.success())?;
        let said = text(&version);
        let is_open_mpi = said.contains("Open MPI") || said.contains("OpenRTE");
        Some(Self { mpicc: mpicc.to_owned(), mpirun, is_open_mpi })
    }

    /// Compiles a program that uses the library.
    fn compile(&self, source: &str, place: &Path) -> PathBuf {
        self.compile_with(source, place, &[])
    }

    /// The same, with other libraries.
    fn compile_with(&self, source: &str, place: &Path, libraries: &[&Path]) -> PathBuf {
        let program = place.join(Path::new(source).file_stem().unwrap());
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(&self.mpicc);
        command.args(WARNINGS).arg(here.join("tests").join(source)).arg("-I").arg(here.join("include"));
        command.args(libraries).arg("-o").arg(&program).arg("-L").arg(library()).arg("-loutcrop");
        run(command.arg(format!("-Wl,-rpath,{}", library().display())).arg("-pthread"));
        program
    }

    /// A program on several ranks.
    fn ranks(&self, count: u32, program: &Path) -> Command {
        self.ranks_with(count, program, "")
    }

    /// The same, with a library that is preloaded.
    fn ranks_with(&self, count: u32, program: &Path, preload: &str) -> Command {
        let mut command = Command::new("timeout");
        // A run that hangs is a failure, and not the end of all tests.
        command.args(["--kill-after=5", "240"]).arg(&self.mpirun);
        if self.is_open_mpi {
            command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        }
        command
            .env("OUTCROP_MPI_DIR", libraries())
            .env("OUTCROP_MEETING_DIR", meeting())
            .env_remove("OUTCROP_MPICC")
            .env_remove("OUTCROP_LOG");
        command.arg("-n").arg(count.to_string());
        if !preload.is_empty() {
            command.arg("env").arg(format!("LD_PRELOAD={preload}"));
        }
        command.arg(program);
        command
    }
}

/// One test at a time: there are more ranks than cores as it is.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with liboutcrop.
fn library() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("with-mpi");
        fs::create_dir_all(&directory).unwrap();
        let built = env::current_exe().unwrap().with_file_name("liboutcrop_c.so");
        let major = env!("CARGO_PKG_VERSION").split('.').next().unwrap();
        for name in ["liboutcrop.so".to_owned(), format!("liboutcrop.so.{major}")] {
            let _ = fs::remove_file(directory.join(&name));
            symlink(&built, directory.join(&name)).unwrap();
        }
        directory
    })
}

/// Where programs find what was compiled for their MPI.
fn libraries() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi")
}

/// Where ranks meet, instead of where other processes of this machine do.
fn meeting() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("meeting");
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a command says. It must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, text(&output));
    text(&output)
}

#[test]
fn ranks_of_a_communicator_save_together_and_go_on_after_one_was_killed() {
    let _turn = turn();
    for mpi in Mpi::all() {
        let place = TempDir::new().unwrap();
        let program = mpi.compile("mpi_ranks.c", place.path());
        let live = |saves: &str, killed: &str| {
            mpi.ranks(3, &program).arg(place.path()).args([saves, killed]).output().unwrap()
        };
        let first = live("3", "0");
        assert!(first.status.success(), "{}", text(&first));
        let killed = live("9", "6");
        assert!(!killed.status.success() && text(&killed).contains("of 3 goes on from 3"), "{}", text(&killed));
        let last = live("1", "0");
        let said = text(&last);
        assert!(last.status.success(), "{said}");
        // Version 6 was saved everywhere, but whether it became complete depends on who was faster.
        for rank in 0..3 {
            let line = |version| said.contains(&format!("rank {rank} of 3 goes on from {version}\n"));
            assert!(line(5) || line(6), "{said}");
        }
    }
}

#[test]
fn what_must_not_be_done_with_mpi_is_told_with_the_remedy() {
    let _turn = turn();
    for mpi in Mpi::all() {
        let place = TempDir::new().unwrap();
        let program = mpi.compile("mpi_ranks.c", place.path());
        // Rank 0 finds a file where a directory should be.
        fs::write(place.path().join("file0"), "").unwrap();
        let said = run(mpi.ranks(2, &program).arg(place.path()).arg("wrong"));
        for hint in [
            "before: ranks over MPI: MPI is not initialised; call MPI_Init before",
            "elsewhere: ranks over MPI: MPI was initialised for its main thread only; open the store on that thread",
            "number: ranks over MPI: this is no communicator; give what MPI_Comm_c2f returns",
            "between: ranks over MPI: this is an inter-communicator; merge it first",
            "apart 0: cannot talk to other ranks through",
            "apart 1: ranks over MPI: on rank 0: cannot talk to other ranks through",
            "after: ranks over MPI: MPI has ended; open the store before MPI_Finalize",
        ] {
            let is_there = said.contains(hint) || hint.starts_with("elsewhere") && said.contains("elsewhere: open");
            assert!(is_there, "{hint:?} is not in {said}");
        }
        assert!(
            !place.path().join("file1/talk").exists()
                || fs::read_dir(place.path().join("file1/talk")).unwrap().count() == 0
        );
    }
}

/// The library for an MPI.
fn layer(mpi: &Mpi) -> PathBuf {
    outcrop_mpi::build(Some(&mpi.mpicc), Some(&libraries())).unwrap().path
}

#[test]
fn all_that_mpi_writes_is_reported_to_the_byte() {
    let _turn = turn();
    for mpi in Mpi::all() {
        let (place, layer) = (TempDir::new().unwrap(), layer(&mpi));
        let program = mpi.compile_with("mpi_traffic.c", place.path(), &[&layer]);
        for seed in ["1", "2", "3"] {
            run(mpi.ranks(3, &program).arg(place.path()).args([seed, &amount(40, 2000).to_string()]));
        }
    }
}

#[test]
fn what_mpi_writes_for_fortran_is_reported() {
    let _turn = turn();
    for mpi in Mpi::all() {
        let mpifort = mpi.mpicc.with_file_name("mpifort");
        if Command::new(&mpifort).arg("--version").output().is_err() {
            // The one of the system has it; those of Python packages have not.
            continue;
        }
        let (place, layer) = (TempDir::new().unwrap(), layer(&mpi));
        for module in ["-DMPI", "-DF08"] {
            let program = place.path().join(module);
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi_received.f90");
            let mut command = Command::new(&mpifort);
            command.current_dir(place.path()).args(["-cpp", module]).args([&source, &layer]).arg("-o").arg(&program);
            run(command.arg(format!("-Wl,-rpath,{}", layer.parent().unwrap().display())));
            let said = run(&mut mpi.ranks(2, &program));
            let mut lines: Vec<_> = said.lines().filter(|line| line.starts_with("rank ")).collect();
            lines.sort_unstable();
            assert_eq!(lines, ["rank 0: 40 to 60", "rank 1: 120 to 128", "rank 1: 40 to 60"], "{said}");
        }
    }
}

#[test]
fn what_only_mpi_knows_to_have_changed_is_saved() {
    let _turn = turn();
    for mpi in Mpi::all() {
        let layer = layer(&mpi);
        for (preload, outcome) in [("", "missed"), (layer.to_str().unwrap(), "saved")] {
            let place = TempDir::new().unwrap();
            let program = mpi.compile("mpi_saved.c", place.path());
            let said = run(mpi.ranks_with(2, &program, preload).arg(place.path()));
            if said.contains("not forgotten") {
                does_not_apply("this kernel cannot watch pages");
                assert!(!said.contains("missed"), "{said}");
            } else {
                assert_eq!(said.matches(&format!("forgotten: {outcome}")).count(), 2, "{said}");
            }
        }
    }
}

#[test]
fn a_library_for_another_mpi_and_two_mpis_are_refused() {
    let _turn = turn();
    let mpis = Mpi::all();
    let Some(mpi) = mpis.last() else { return };
    let place = TempDir::new().unwrap();
    let program = mpi.compile("mpi_ranks.c", place.path());
    let refused = |command: &mut Command, hint: &str| {
        let output = command.arg(place.path()).args(["1", "0"]).output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains(hint), "{hint:?} is not in {said}");
    };
    let without_libraries = |name: &str| {
        let mut command = mpi.ranks(1, &program);
        command.env("OUTCROP_MPI_DIR", place.path().join(name));
        command
    };
    refused(without_libraries("a").env("OUTCROP_MPICC", "no-such-mpicc"), "cannot run no-such-mpicc");
    refused(without_libraries("b").env("OUTCROP_MPICC", "false"), "set OUTCROP_MPICC to its mpicc, or run");
    refused(without_libraries("c").env("OUTCROP_MPI_LIBRARY", "/dev/null"), "cannot load it");
    // A library that claims to be an MPI, and one that was built for another one.
    let other = place.path().join("libmpi_other.so");
    let source = place.path().join("other.c");
    fs::write(
        &source,
        "int PMPI_Get_library_version(char *to, int *length) { *to = 'x'; to[1] = 0; *length = 1; return 0; }",
    )
    .unwrap();
    run(Command::new("gcc").args(["-shared", "-fPIC"]).arg(&source).arg("-o").arg(&other));
    let mut command = Command::new("env");
    command.arg(format!("LD_PRELOAD={}", other.display())).arg(&program).env("OUTCROP_MPI_DIR", libraries());
    refused(&mut command, "has loaded more than one MPI");
    let layer = layer(mpi);
    let forged = place.path().join("liboutcrop-mpi.so");
    let mut bytes = fs::read(&layer).unwrap();
    // The name of the MPI that it was built for is a line; elsewhere it is the name that the loader
    // looks for.
    let is_line = |&at: &usize| {
        let end = bytes[at..].iter().position(|byte| b"\n\0".contains(byte));
        bytes[at..].starts_with(b"libmpi.so.") && end.is_some_and(|end| bytes[at + end] == b'\n')
    };
    let built_for = (0..bytes.len()).find(is_line).unwrap();
    bytes[built_for] = b'L';
    fs::write(&forged, bytes).unwrap();
    refused(without_libraries("d").env("OUTCROP_MPI_LIBRARY", &forged), "liboutcrop-mpi.so: it was built for");
    if let [first, .., last] = &*mpis {
        let wrong = self::layer(first);
        refused(last.ranks(1, &program).env("OUTCROP_MPI_LIBRARY", wrong), "build it with the mpicc of that one");
    }
}
