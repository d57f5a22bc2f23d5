//! The four programs: killed at any moment and run again, they end with the same result to the last
//! bit as if nobody had killed them, and as if nobody had annotated them.

use std::{
    fs,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use outcrop_testing::{amount, covered};

use crate::compiled::{Program, example, has, run, text};

/// Compiles an example as any compiler does, which does not know the directives.
fn plain(source: &Path) -> Option<Program> {
    Program::plain(source, &["-Wno-unknown-pragmas"])
}

fn goes_on_after_kills(name: &str, arguments: &[&str]) {
    let source = example(name);
    // Failures come often here, so that a program that decides by itself persists often.
    let often = |text: String| text.replace("mtbf(21600)", "mtbf(0.01)");
    let (Some(program), Some(plain)) = (Program::translated_with(&source, &[], often), plain(&source)) else { return };
    let result = |program: &Program, place: &Path| {
        let said = run(program.command(place).args(arguments).arg("result"));
        (said, fs::read(place.join("result")).unwrap())
    };
    let (_, expected) = result(&plain, &plain.place("plain"));
    assert!(expected.len() > 1000, "{name} has no result");
    let start = Instant::now();
    let whole = program.place("whole");
    assert!(result(&program, &whole).1 == expected, "{name} has another result when it is annotated");
    let took = start.elapsed();
    let (again, second) = result(&program, &whole);
    assert!(second == expected && again.contains("goes on"), "{name} does not go on from its end: {again}");

    let kills = amount(6, 200);
    let seed = std::env::var("OUTCROP_KILL_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut rng = Rng::with_seed(seed);
    let (mut killed, mut resumed) = (0, 0);
    for round in 0.. {
        let place = program.place(&format!("round{round}"));
        for _ in 0..3 {
            let mut child = program.command(&place);
            let child = child.args(arguments).arg("result").stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = child.spawn().unwrap();
            thread::sleep(took.mul_f64(rng.f64()) + Duration::from_millis(1));
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.code().is_none_or(|code| code == 0), "{name}, seed {seed}: {}", text(&output));
            killed += u64::from(output.status.code().is_none());
        }
        let (said, found) = result(&program, &place);
        resumed += u64::from(said.contains("goes on"));
        assert!(found == expected, "{name}, seed {seed}: another result after {killed} kills");
        fs::remove_dir_all(place).unwrap();
        if killed >= kills || round > 3 * kills {
            break;
        }
    }
    assert!(killed > 0 && resumed > 0, "{name} was killed {killed} times, and went on {resumed} times");
    covered(&format!("kills of {name}, annotated"), killed);
    if has("valgrind") {
        let place = program.place("checked");
        run(program.checked(&place).args(arguments).arg("result"));
        run(program.checked(&place).args(arguments).arg("result"));
    }
}

#[test]
fn lu_goes_on() {
    goes_on_after_kills("lu.c", &["160"]);
}

#[test]
fn an_octree_with_links_to_parents_goes_on() {
    goes_on_after_kills("amr.c", &["40"]);
}

#[test]
fn pagerank_goes_on() {
    goes_on_after_kills("pagerank.c", &["3000"]);
}

#[test]
fn a_crack_goes_on() {
    goes_on_after_kills("crack.c", &["800"]);
}
