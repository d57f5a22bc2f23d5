//! Annotated programs with MPI ranks: one rank is killed at any moment, which ends all, and the
//! next run goes on from the newest version that all of them have, to the same result.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use outcrop_testing::{amount, covered};

use crate::compiled::{Program, example, has, run, text};

const RANKS: usize = 3;

/// The program with so many ranks, each of which writes the number of its process to a file first.
fn command(program: &Program, place: &Path, ranks: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
    command.args(["sh", "-c", "echo $$ > process.$OMPI_COMM_WORLD_RANK; exec \"$@\"", "rank"]);
    command.arg(&program.path).args(arguments).arg("result").current_dir(place);
    command.env_remove("OUTCROP_LOG").env_remove("RUST_BACKTRACE");
    command
}

/// Kills a rank, which ends the others, and waits for all.
fn kill_one(program: &Program, place: &Path, arguments: &[&str], rank: usize, after: Duration) -> bool {
    let files: Vec<_> = (0..RANKS).map(|rank| place.join(format!("process.{rank}"))).collect();
    files.iter().for_each(|file| drop(fs::remove_file(file)));
    let child = command(program, place, RANKS, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap();
    // All of them have begun.
    let processes: Vec<String> = loop {
        let read = |file: &PathBuf| fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'));
        if let Some(found) = files.iter().map(read).collect::<Option<Vec<_>>>() {
            break found.iter().map(|text| text.trim().to_owned()).collect();
        }
        assert!(child.try_wait().unwrap().is_none(), "not all ranks have begun");
        thread::sleep(Duration::from_millis(1));
    };
    thread::sleep(after);
    let killed = Command::new("kill").args(["-9", &processes[rank]]).output().unwrap().status.success();
    let is_there = |process: &String| Path::new("/proc").join(process).exists();
    let mut gone = None;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        // Open MPI waits for ever at times, if a rank was killed while it began.
        if processes.iter().any(is_there) {
            gone = None;
        } else if gone.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(5) {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success() || killed, "{status}");
    !status.success()
}

fn goes_on_with_ranks(name: &str, arguments: &[&str]) {
    if !has("mpicc") || !has("mpirun") {
        return;
    }
    let source = example("mpi").join(name);
    let often = |text: String| text.replace("mtbf(21600)", "mtbf(0.000001)");
    let Some(program) = Program::translated_by("mpicc", &source, &[], often) else { return };
    let Some(plain) = Program::translated_by("mpicc", &source, &[], |text| text.replace("#pragma nvcp", "//")) else {
        return;
    };
    let result = |program: &Program, place: &Path| {
        let said = run(&mut command(program, place, RANKS, arguments));
        (said, fs::read(place.join("result")).unwrap())
    };
    let (_, expected) = result(&plain, &plain.place("plain"));
    let start = Instant::now();
    let whole = program.place("whole");
    assert!(result(&program, &whole).1 == expected, "{name}: another result than without directives");
    let took = start.elapsed();
    let (said, again) = result(&program, &whole);
    assert!(again == expected && said.contains("goes on"), "{name} does not go on from its end: {said}");
    // Pools belong to so many ranks.
    let output = command(&program, &whole, RANKS - 1, arguments).output().unwrap();
    let said = text(&output);
    assert!(!output.status.success() && said.contains("the pool was made by 3 ranks, not 2"), "{said}");
    let seed = std::env::var("OUTCROP_KILL_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut rng = Rng::with_seed(seed);
    let (mut killed, mut resumed, kills) = (0, 0, amount(4, 200));
    for round in 0.. {
        let place = program.place(&format!("round{round}"));
        for _ in 0..3 {
            let after = took.mul_f64(rng.f64());
            killed += u64::from(kill_one(&program, &place, arguments, rng.usize(..RANKS), after));
        }
        let (said, found) = result(&program, &place);
        resumed += u64::from(said.contains("goes on"));
        assert!(found == expected, "{name}, seed {seed}: another result after {killed} kills");
        fs::remove_dir_all(place).unwrap();
        if killed >= kills && resumed > 0 {
            break;
        }
        assert!(round <= 10 * kills, "{name} was killed {killed} times, and went on {resumed} times");
    }
    covered(&format!("kills of a rank of {name}, annotated"), killed);
}

#[test]
fn lu_goes_on_with_ranks() {
    goes_on_with_ranks("lu.c", &["400"]);
}

#[test]
fn pagerank_goes_on_with_ranks() {
    goes_on_with_ranks("pagerank.c", &["20000"]);
}

/// One rank has a version more than the others, or several that nobody else has.
#[test]
fn ranks_go_on_from_the_newest_version_that_all_have() {
    if !has("mpicc") || !has("mpirun") {
        return;
    }
    let source = example("mpi").join("lu.c");
    let Some(program) = Program::translated_by("mpicc", &source, &[], |text| text) else { return };
    let stopping = |text: String| {
        text.replace("step++;", "if (++step == stop) break;")
            .replace("int step = 0;", "int step = 0; const int stop = atoi(argv[3]);")
    };
    let Some(stopped) = Program::translated_by("mpicc", &source, &[], stopping) else { return };
    let place = program.place("ranks");
    let stop_before = |step: &str| run(command(&stopped, &place, RANKS, &["200"]).arg(step));
    let copy = |from: &str, to: &str| assert!(fs::copy(place.join(from), place.join(to)).unwrap() > 0);
    run(&mut command(&program, &place, RANKS, &["200"]));
    let expected = fs::read(place.join("result")).unwrap();
    (0..RANKS).for_each(|rank| fs::remove_file(place.join(format!("lu.pool.{rank}"))).unwrap());
    for ahead in [0, 2] {
        let others = (0..RANKS).filter(|rank| *rank != ahead);
        // One rank makes a version that the others do not, again and again.
        for round in 0..4 {
            // The version of the second step is there, or made anew by all.
            let said = stop_before("3");
            assert_eq!(said.contains("goes on after step 2"), round > 0, "{said}");
            others.clone().for_each(|rank| copy(&format!("lu.pool.{rank}"), &format!("before.{rank}")));
            stop_before("4");
            others.clone().for_each(|rank| copy(&format!("before.{rank}"), &format!("lu.pool.{rank}")));
        }
        let said = run(&mut command(&program, &place, RANKS, &["200"]));
        assert!(said.contains("goes on after step 2"), "{said}");
        assert!(fs::read(place.join("result")).unwrap() == expected, "another result");
        (0..RANKS).for_each(|rank| fs::remove_file(place.join(format!("lu.pool.{rank}"))).unwrap());
    }
}
