//! The host memory of a tape: it is touched when that pays, and pinned when all of it is touched.
//! And what happens if that is refused.

use std::{
    ops::Range,
    path::PathBuf,
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use outcrop::{
    Pinning, SpanKind, Strategy, Tape, TapeBuilder, Touching,
    layers::{Abilities, Front, Host, Layer},
};
use outcrop_local::{Turn, is_alive};
use outcrop_testing::{
    Companion, Group, carry_out, child, child_directory, expect_success, listen, of_process, skip, until,
};

const MIB: u64 = 1 << 20;

fn pinning(tape: &Tape) -> Pinning {
    tape.stats().layers[0].memory.unwrap().pinning
}

fn fill(tape: &mut Tape, steps: u64) {
    (0..steps).for_each(|step| tape.save(step, &vec![step; MIB as usize / 8]).unwrap());
}

#[test]
fn all_memory_is_pinned_in_one_piece_once_it_has_been_touched() {
    let mut tape = Tape::builder().host(16 * MIB).open().unwrap();
    fill(&mut tape, 1);
    // Touching covers what is used and a first stretch. Here that is all of it.
    until("pinned", || matches!(pinning(&tape), Pinning::Done | Pinning::Refused));
    if pinning(&tape) == Pinning::Done {
        let locked_kib = of_process("status", "VmLck").unwrap();
        assert!(locked_kib >= 16 * 1024, "{locked_kib} KiB are locked");
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

/// Set in a child that may lock almost no memory.
const CHILD: &str = "OUTCROP_TEST_NO_MEMLOCK";

#[test]
fn a_limit_that_forbids_pinning_is_a_sentence_with_the_remedy_and_no_failure() {
    if std::env::var_os(CHILD).is_none() {
        let name = "memory::a_limit_that_forbids_pinning_is_a_sentence_with_the_remedy_and_no_failure";
        // Both programs are in util-linux. Only root has the capability that the first one drops.
        let mut command = Command::new(if rustix::process::geteuid().is_root() { "setpriv" } else { "prlimit" });
        if rustix::process::geteuid().is_root() {
            command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit"]);
        }
        command.arg("--memlock=65536:65536").arg(std::env::current_exe().unwrap());
        carry_out(&mut command, name).env(CHILD, "1");
        return expect_success(command);
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

/// Set in a child that has a meeting place of its own for turns.
const TURNS: &str = "OUTCROP_MEETING_DIR";

#[test]
fn pinning_waits_for_its_turn_while_saves_go_on() {
    if std::env::var_os(TURNS).is_none() {
        let turns = tempfile::tempdir().unwrap();
        let mut command = child("memory::pinning_waits_for_its_turn_while_saves_go_on", turns.path());
        command.env(TURNS, turns.path());
        return expect_success(command);
    }
    let turn = Turn::wait("pin").unwrap();
    let mut tape = Tape::builder().host(8 * MIB).open().unwrap();
    fill(&mut tape, 8);
    until("under way", || pinning(&tape) == Pinning::UnderWay);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(pinning(&tape), Pinning::UnderWay, "it is not its turn");
    assert_eq!(*tape.take::<u64>(7).unwrap(), vec![7; MIB as usize / 8]);
    // A tape that is closed while it waits stops waiting.
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
    let memory = |tape: &Tape| tape.stats().layers[0].memory.unwrap();
    // All of it may be touched and pinned before the second save.
    let is_measured = |tape: &Tape| {
        let memory = memory(tape);
        memory.touch_rate.is_some() && memory.touched_rate.or(memory.pinned_rate).is_some()
    };
    // On a busy machine some more saves pass until a helper has touched memory ahead of one.
    for step in 0..30u64 {
        tape.save(step, &vec![step; MIB as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        if step >= 11 && is_measured(&tape) {
            break;
        }
    }
    assert!(is_measured(&tape), "{:?}", memory(&tape));
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

/// Host memory that checks, while it is pinned, whether somebody has the turn.
struct Watched {
    host: Host,
    meeting: PathBuf,
    /// Whether there was a locked ticket when it was pinned.
    was_in_turn: OnceLock<bool>,
}

impl Layer for Watched {
    fn name(&self) -> &str {
        self.host.name()
    }

    fn capacity(&self) -> Option<u64> {
        Layer::capacity(&self.host)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> outcrop::layers::Result<()> {
        self.host.write(at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> outcrop::layers::Result<()> {
        Layer::read(&self.host, at, bytes)
    }

    fn front(&self) -> Option<&dyn Front> {
        Some(self)
    }
}

impl Front for Watched {
    fn abilities(&self) -> Abilities {
        self.host.abilities()
    }

    fn host(&self) -> Option<&Host> {
        Some(&self.host)
    }

    fn touch(&self, range: Range<u64>, promised_bytes: u64) -> outcrop::layers::Result<()> {
        self.host.touch_beside(range, promised_bytes)
    }

    fn pin(&self) -> outcrop::layers::Result<()> {
        let mut tickets = std::fs::read_dir(&self.meeting).unwrap().map(|entry| entry.unwrap().path());
        let _ = self.was_in_turn.set(tickets.any(|ticket| is_alive(&ticket).unwrap()));
        self.host.pin()
    }
}

#[test]
fn memory_is_pinned_in_the_turn_and_not_beside_it() {
    let Some(meeting) = std::env::var_os(TURNS).map(PathBuf::from) else {
        let turns = tempfile::tempdir().unwrap();
        let mut command = child("memory::memory_is_pinned_in_the_turn_and_not_beside_it", turns.path());
        command.env(TURNS, turns.path());
        expect_success(command);
        assert!(std::fs::read_dir(turns.path()).unwrap().next().is_none(), "nothing is left");
        return;
    };
    let watched =
        Arc::new(Watched { host: Host::new(8 * MIB).unwrap(), meeting: meeting.clone(), was_in_turn: OnceLock::new() });
    let mut tape = Tape::builder().layer(Arc::clone(&watched) as Arc<dyn Layer>).open().unwrap();
    fill(&mut tape, 8);
    until("pinned", || matches!(pinning(&tape), Pinning::Done | Pinning::Refused));
    assert_eq!(watched.was_in_turn.get(), Some(&true));
    until("the turn is over", || std::fs::read_dir(&meeting).unwrap().next().is_none());
}

/// In a child, in a control group of 256 MiB: fills tapes that were opened when more memory was
/// free than now. A tape that pre-faults could take that memory just when the program does, so
/// there the program takes its own first.
#[test]
fn child_in_a_small_group() {
    let Some(directory) = child_directory() else { return };
    assert_eq!(listen().as_deref(), Some("go on"));
    for (touching, mib) in [(Touching::Never, 1), (Touching::Never, 20), (Touching::Chosen, 20), (Touching::Chosen, 60)]
    {
        let host = || Tape::builder().host(200 * MIB).touching(touching).patience(Duration::from_millis(50));
        let values = vec![7_u64; mib << 17];
        let ballast = || vec![1_u8; (110 - mib) << 20];
        let open = |builder: TapeBuilder| match touching {
            Touching::Never => (builder.open().unwrap(), ballast()),
            _ => {
                let own = ballast();
                (builder.open().unwrap(), own)
            }
        };

        let (mut tape, own) = open(host().dir(&directory, "1 GiB"));
        (0..300 / mib as u64).for_each(|step| tape.save(step, &values).unwrap());
        assert!(tape.stats().layers[1].written_bytes > 0, "what there is no memory for has sunk");
        (0..300 / mib as u64).rev().for_each(|step| assert_eq!(*tape.take::<u64>(step).unwrap(), values));
        drop((tape, own));

        let (mut tape, own) = open(host());
        let error = (0..200 / mib as u64).find_map(|step| tape.save(step, &values).err()).unwrap().to_string();
        let is_smaller = tape.stats().layers[0].capacity_bytes < Some(200 * MIB);
        assert!(is_smaller || error.contains("the control group"), "{error}");
        drop((tape, own));

        let (mut tape, own) = open(host());
        let mut lent: Vec<_> = (0..200 / mib as u64).map_while(|step| tape.lend::<u64>(step, mib << 17).ok()).collect();
        assert!(!lent.is_empty() && lent.len() < 200 / mib, "{}", lent.len());
        lent.iter_mut().for_each(|room| room.fill(7));
        assert_eq!(own[3], 1);
    }

    // A host layer below another one asks too.
    let mut tape = Tape::builder().host(8 * MIB).host(200 * MIB).pin(false).open().unwrap();
    let own = vec![1_u8; 110 << 20];
    let save = |step| tape.save(step, &vec![7_u64; 1 << 17]).err().map(|error| (step, error.to_string()));
    let (saved, error) = (0..208).find_map(save).unwrap();
    assert!(error.contains("the control group"), "{error}");
    (0..saved).rev().for_each(|step| assert_eq!(tape.take::<u64>(step).unwrap()[3], 7));
    assert_eq!(own[3], 1);
    drop((tape, own));

    // Granted memory is available when it is filled, whatever was touched ahead in the meantime.
    let mut tape = Tape::builder().host(200 * MIB).pin(false).open().unwrap();
    let own = vec![1_u8; 70 << 20];
    let mut lent = tape.lend::<u8>(0, 100 << 20).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    lent.fill(7);
    assert_eq!((own[3], lent[3]), (1, 7));
}

#[test]
fn a_tape_takes_no_memory_that_the_system_would_end_the_program_for() {
    let group = match Group::new(256 * MIB) {
        Ok(group) => group,
        Err(reason) => return skip(format_args!("no control group can be made here: {reason}")),
    };
    let directory = tempfile::tempdir().unwrap();
    let mut companion = Companion::start("memory::child_in_a_small_group", directory.path());
    group.add(companion.id());
    companion.say("go on");
    companion.end();
}
