//! Host memory of a tape: touched when it pays, pinned when all of it is touched, and what happens where that is refused.

#[path = "../../layers/tests/common/group.rs"]
mod group;

use std::{
    io::Write,
    ops::Range,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use outcrop::{
    Pinning, SpanKind, Strategy, Tape, Touching,
    layers::{Host, Layer, Turn},
};
use rustix::fs::{FlockOperation, flock};

const MIB: u64 = 1 << 20;

/// Waits, up to half a minute, until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pinning(tape: &Tape) -> Pinning {
    tape.stats().layers[0].memory.unwrap().pinning
}

/// Kibibytes that this process has locked.
fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn fill(tape: &mut Tape, steps: u64) {
    (0..steps).for_each(|step| tape.save(step, &vec![step; MIB as usize / 8]).unwrap());
}

#[test]
fn all_memory_is_pinned_in_one_piece_once_it_has_been_touched() {
    let mut tape = Tape::builder().host(16 * MIB).open().unwrap();
    fill(&mut tape, 1);
    // What is used, and as much again as the first stretch: that is all of it here.
    until("pinned", || matches!(pinning(&tape), Pinning::Done | Pinning::Refused));
    if pinning(&tape) == Pinning::Done {
        assert!(locked_kib() >= 16 * 1024, "{} KiB are locked", locked_kib());
    } else {
        let refusal = tape.stats().layers[0].pin_refusal.clone().unwrap();
        println!("not checked: this process may not pin 16 MiB: {refusal}");
    }
    assert_eq!(tape.stats().layers[0].memory.unwrap().touched_bytes, 16 * MIB);
    assert_eq!(*tape.take::<u64>(0).unwrap(), vec![0; MIB as usize / 8]);
}

#[test]
fn a_tape_that_is_not_to_be_pinned_is_not() {
    let mut tape = Tape::builder().host(8 * MIB).pin(false).open().unwrap();
    fill(&mut tape, 8);
    assert_eq!(pinning(&tape), Pinning::Not);
}

/// Set in a child that may lock next to nothing.
const CHILD: &str = "OUTCROP_TEST_NO_MEMLOCK";

#[test]
fn a_limit_that_forbids_pinning_is_a_sentence_with_the_remedy_and_no_failure() {
    if std::env::var_os(CHILD).is_none() {
        let name = "a_limit_that_forbids_pinning_is_a_sentence_with_the_remedy_and_no_failure";
        let program = std::env::current_exe().unwrap();
        let limited = |arguments: &[&str]| {
            let mut command = Command::new(arguments[0]);
            command.args(&arguments[1..]).arg(&program).args(["--exact", name, "--nocapture"]).env(CHILD, "1");
            command.output()
        };
        let is_root = rustix::process::geteuid().is_root();
        let limit = ["prlimit", "--memlock=65536:65536"];
        let output = match is_root {
            true => limited(&["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", limit[0], limit[1]]),
            false => limited(&limit),
        };
        let output = output.expect("setpriv and prlimit are in util-linux");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let mut tape = Tape::builder().host(8 * MIB).open().unwrap();
    fill(&mut tape, 8);
    until("refused", || pinning(&tape) == Pinning::Refused);
    let refusal = tape.stats().layers[0].pin_refusal.clone().unwrap();
    assert!(refusal.contains("ulimit -l"), "{refusal}");
    for step in (0..8).rev() {
        assert_eq!(*tape.take::<u64>(step).unwrap(), vec![step; MIB as usize / 8]);
    }
}

/// Set in a child that has a directory of its own to wait for turns in.
const TURNS: &str = "OUTCROP_NODE_DIR";

#[test]
fn pinning_waits_for_its_turn_while_saves_go_on() {
    if std::env::var_os(TURNS).is_none() {
        let turns = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "pinning_waits_for_its_turn_while_saves_go_on", "--nocapture"]).env(TURNS, turns.path());
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let turn = Turn::wait("pin").unwrap();
    let mut tape = Tape::builder().host(8 * MIB).open().unwrap();
    fill(&mut tape, 8);
    until("under way", || pinning(&tape) == Pinning::UnderWay);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(pinning(&tape), Pinning::UnderWay, "it is not its turn");
    assert_eq!(*tape.take::<u64>(7).unwrap(), vec![7; MIB as usize / 8]);
    // A tape that is closed while it waits does not wait any longer.
    let mut other = Tape::builder().host(8 * MIB).open().unwrap();
    fill(&mut other, 8);
    until("under way", || pinning(&other) == Pinning::UnderWay);
    drop(other);
    drop(turn);
    until("its turn", || pinning(&tape) != Pinning::UnderWay);
}

#[test]
fn the_strategy_and_its_reason_are_in_the_statistics_and_in_the_timeline() {
    let mut tape = Tape::builder().host(64 * MIB).touching(Touching::Concurrent).trace(true).open().unwrap();
    fill(&mut tape, 4);
    let memory = tape.stats().layers[0].memory.unwrap();
    assert_eq!((memory.strategy, memory.reason.to_string().as_str()), (Strategy::Concurrent, "as set"));
    let mut tape = Tape::builder().host(256 * MIB).trace(true).open().unwrap();
    for step in 0..12u64 {
        tape.save(step, &vec![step; MIB as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let memory = tape.stats().layers[0].memory.unwrap();
    assert!(memory.touch_rate.is_some() && memory.touched_rate.is_some(), "{memory:?}");
    let spans = tape.trace().spans();
    let notes: Vec<_> = spans.iter().filter(|span| span.kind == SpanKind::Strategy).map(|span| &span.note).collect();
    assert!(!notes.is_empty() && notes.iter().all(|note| note.as_ref().is_some_and(|note| note.contains(": "))));
    assert!(spans.iter().any(|span| span.kind == SpanKind::Touch));
}

#[test]
fn a_tape_that_touches_nothing_ahead_takes_only_what_is_used() {
    let mut tape = Tape::builder().host(64 * MIB).touching(Touching::Never).trace(true).open().unwrap();
    fill(&mut tape, 4);
    assert_eq!(tape.stats().layers[0].memory.unwrap().touched_bytes, 4 * MIB);
    assert!(tape.trace().spans().iter().all(|span| span.kind != SpanKind::Touch));
}

#[test]
fn layers_count_what_was_found_on_them() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host(4 * MIB).dir(scratch.path(), "64 MiB").open().unwrap();
    fill(&mut tape, 16);
    assert_eq!(*tape.take::<u64>(0).unwrap(), vec![0; MIB as usize / 8]);
    assert_eq!(*tape.take::<u64>(15).unwrap(), vec![15; MIB as usize / 8]);
    let layers = tape.stats().layers;
    assert_eq!((layers[0].hits, layers[0].misses, layers[1].hits, layers[1].misses), (1, 1, 1, 0));
}

/// Host memory that looks, while it is pinned, whether somebody has the turn.
struct Watched {
    host: Host,
    node: PathBuf,
    /// Whether a ticket was there and locked, once it was pinned.
    was_in_turn: OnceLock<bool>,
}

impl Layer for Watched {
    fn name(&self) -> &str {
        self.host.name()
    }

    fn capacity(&self) -> u64 {
        self.host.capacity()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> outcrop::layers::Result<()> {
        self.host.write(at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> outcrop::layers::Result<()> {
        Layer::read(&self.host, at, bytes)
    }

    fn touch(&self, range: Range<u64>) -> outcrop::layers::Result<()> {
        self.host.touch(range)
    }

    fn pin(&self) -> outcrop::layers::Result<()> {
        let tickets = std::fs::read_dir(&self.node).unwrap().map(|entry| std::fs::File::open(entry.unwrap().path()));
        let is_locked = |file: std::fs::File| flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let _ = self.was_in_turn.set(tickets.into_iter().any(|file| is_locked(file.unwrap())));
        self.host.pin()
    }

    fn host(&self) -> Option<&Host> {
        Some(&self.host)
    }
}

#[test]
fn memory_is_pinned_in_the_turn_and_not_beside_it() {
    let Some(node) = std::env::var_os(TURNS).map(PathBuf::from) else {
        let turns = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "memory_is_pinned_in_the_turn_and_not_beside_it", "--nocapture"]);
        let output = child.env(TURNS, turns.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        assert!(std::fs::read_dir(turns.path()).unwrap().next().is_none(), "nothing is left");
        return;
    };
    let watched =
        Arc::new(Watched { host: Host::new(8 * MIB).unwrap(), node: node.clone(), was_in_turn: OnceLock::new() });
    let mut tape = Tape::builder().layer(Arc::clone(&watched) as Arc<dyn Layer>).open().unwrap();
    fill(&mut tape, 8);
    until("pinned", || matches!(pinning(&tape), Pinning::Done | Pinning::Refused));
    assert_eq!(watched.was_in_turn.get(), Some(&true));
    until("the turn is over", || std::fs::read_dir(&node).unwrap().next().is_none());
}

/// Set in a child that lives in a control group of 256 MiB; a directory for its tapes.
const GROUP: &str = "OUTCROP_TEST_GROUP";

/// Fills tapes that were opened when there was more memory than there is now.
#[test]
fn child_in_a_small_group() {
    let Some(directory) = std::env::var_os(GROUP) else { return };
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for (touching, mib) in [(Touching::Never, 1), (Touching::Never, 20), (Touching::Chosen, 20), (Touching::Chosen, 60)]
    {
        let host = || Tape::builder().host(200 * MIB).touching(touching).patience(Duration::from_millis(50));
        let values = vec![7_u64; mib << 17];
        let ballast = || vec![1_u8; (110 - mib) << 20];

        let mut tape = host().dir(&directory, "1 GiB").open().unwrap();
        let own = ballast();
        (0..300 / mib as u64).for_each(|step| tape.save(step, &values).unwrap());
        assert!(tape.stats().layers[1].written_bytes > 0, "what there is no memory for has sunk");
        (0..300 / mib as u64).rev().for_each(|step| assert_eq!(*tape.take::<u64>(step).unwrap(), values));
        drop((tape, own));

        let mut tape = host().open().unwrap();
        let own = ballast();
        let error = (0..200 / mib as u64).find_map(|step| tape.save(step, &values).err()).unwrap().to_string();
        assert!(error.contains("the control group"), "{error}");
        drop((tape, own));

        let mut tape = host().open().unwrap();
        let own = ballast();
        let mut lent: Vec<_> = (0..200 / mib as u64).map_while(|step| tape.lend::<u64>(step, mib << 17).ok()).collect();
        assert!(!lent.is_empty() && lent.len() < 200 / mib, "{}", lent.len());
        lent.iter_mut().for_each(|room| room.fill(7));
        assert_eq!(own[3], 1);
    }

    // What was granted is there when it is filled, whatever has been touched ahead meanwhile.
    let mut tape = Tape::builder().host(200 * MIB).pin(false).open().unwrap();
    let own = vec![1_u8; 70 << 20];
    let mut lent = tape.lend::<u8>(0, 100 << 20).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    lent.fill(7);
    assert_eq!((own[3], lent[3]), (1, 7));
}

#[test]
fn a_tape_takes_no_memory_that_the_system_would_end_the_program_for() {
    let group = match group::Group::new(256 * MIB) {
        Ok(group) => group,
        Err(reason) => return println!("SKIPPED: no control group can be made here: {reason}"),
    };
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_in_a_small_group", "--nocapture"]).env(GROUP, directory.path());
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    group.add(child.id());
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}
