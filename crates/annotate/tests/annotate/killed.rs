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

fn goes_on_after_kills(name: &str, arguments: &[&str]) {
    let source = example(name);
    // A compiler that does not know the directives makes the plain program.
    let ignoring = ["-Wno-unknown-pragmas"];
    // Failures come all the time here, so that a program that decides by itself always persists.
    let often = |text: String| text.replace("mtbf(21600)", "mtbf(0.000001)");
    let Some(annotated) = Program::translated_with(&source, &[], often) else { return };
    let Some(by_hand) = Program::plain(&example("by_hand").join(name), &ignoring) else { return };
    let Some(plain) = Program::plain(&source, &ignoring) else { return };
    let (_, expected) = result(&plain, &plain.place("plain"), arguments);
    assert!(expected.len() > 1000, "{name} has no result");
    let killed = kill_often(&format!("{name}, annotated"), &annotated, arguments, &expected, amount(6, 200));
    covered(&format!("kills of {name}, annotated"), killed);
    kill_often(&format!("{name}, by hand"), &by_hand, arguments, &expected, amount(2, 20));
    if has("valgrind") {
        let place = annotated.place("checked");
        run(annotated.checked(&place).args(arguments).arg("result"));
        run(annotated.checked(&place).args(arguments).arg("result"));
    }
}

/// What the program says, and its result.
fn result(program: &Program, place: &Path, arguments: &[&str]) -> (String, Vec<u8>) {
    let said = run(program.command(place).args(arguments).arg("result"));
    (said, fs::read(place.join("result")).unwrap())
}

/// Kills a program at least so often, and says how often.
fn kill_often(name: &str, program: &Program, arguments: &[&str], expected: &[u8], kills: u64) -> u64 {
    let start = Instant::now();
    let whole = program.place("whole");
    assert!(result(program, &whole, arguments).1 == expected, "{name}: another result than the plain program");
    let took = start.elapsed();
    let (again, second) = result(program, &whole, arguments);
    assert!(second == expected && again.contains("goes on"), "{name} does not go on from its end: {again}");
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
        let (said, found) = result(program, &place, arguments);
        resumed += u64::from(said.contains("goes on"));
        assert!(found == expected, "{name}, seed {seed}: another result after {killed} kills");
        fs::remove_dir_all(place).unwrap();
        if killed >= kills && resumed > 0 {
            break;
        }
        assert!(round <= 10 * kills, "{name} was killed {killed} times, and went on {resumed} times");
    }
    killed
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
