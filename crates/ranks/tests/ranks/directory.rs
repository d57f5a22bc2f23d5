//! Ranks that communicate through a directory: what they gather, including when a rank times out,
//! dies, forks, or finds damaged files.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::Duration,
};

use outcrop_ranks::{Ranks, Result, SharedDirectory};
use outcrop_testing::{Companion, answer, child_directory, listen};
use tempfile::tempdir;

const LONG: Duration = Duration::from_secs(60);
/// Long enough to join on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

fn open(dir: &Path, rank: u32, count: u32, patience: Duration) -> SharedDirectory {
    SharedDirectory::open_with(dir, rank, count, patience).unwrap()
}

fn mailbox_of(dir: &Path, rank: u32) -> PathBuf {
    dir.join(format!("rank-0000{rank}.mailbox"))
}

fn text(gathered: Result<Vec<Vec<u8>>>) -> Vec<String> {
    gathered.unwrap().into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect()
}

#[test]
fn a_rank_that_gives_up_and_tries_again_is_in_step_with_the_others() {
    let dir = tempdir().unwrap();
    let gave_up = Barrier::new(2);
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let ranks = open(dir.path(), 0, 2, LONG);
            // Only after the other one has timed out.
            gave_up.wait();
            (0..4).map(|round| text(ranks.gather("a", format!("zero {round}").as_bytes()))).collect::<Vec<_>>()
        });
        let impatient = scope.spawn(|| {
            let ranks = open(dir.path(), 1, 2, SHORT);
            let error = ranks.gather("a", b"one 0").unwrap_err();
            assert!(error.to_string().contains("not all 2 ranks reached the call \"a\""), "{error}");
            gave_up.wait();
            let again = |round: u32| loop {
                if let Ok(gathered) = ranks.gather("a", format!("one {round}").as_bytes()) {
                    return text(Ok(gathered));
                }
            };
            (0..4).map(again).collect::<Vec<_>>()
        });
        let (late, impatient) = (late.join().unwrap(), impatient.join().unwrap());
        assert_eq!(late, impatient);
        let expected: Vec<_> = (0..4).map(|round| vec![format!("zero {round}"), format!("one {round}")]).collect();
        assert_eq!(late, expected);
    });
}

#[test]
fn what_was_contributed_first_stands() {
    let dir = tempdir().unwrap();
    let gave_up = Barrier::new(2);
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let ranks = open(dir.path(), 0, 2, LONG);
            gave_up.wait();
            [text(ranks.gather("a", b"zero")), text(ranks.gather("b", b"zero"))]
        });
        let ranks = open(dir.path(), 1, 2, SHORT);
        ranks.gather("a", b"first").unwrap_err();
        gave_up.wait();
        let again = |topic: &str| loop {
            if let Ok(gathered) = ranks.gather(topic, b"second") {
                return text(Ok(gathered));
            }
        };
        let mine = [again("a"), again("b")];
        assert_eq!(mine, [["zero", "first"], ["zero", "second"]]);
        assert_eq!(late.join().unwrap(), mine);
    });
}

/// In a child process: rank 1 of 2, which follows commands.
#[test]
fn child_takes_part() {
    let Some(dir) = child_directory() else { return };
    let ranks = open(&dir, 1, 2, LONG);
    answer("ready");
    while let Some(line) = listen() {
        match &*line {
            "gather" => answer(text(ranks.gather("a", b"one")).join(" ")),
            "say" => answer(ranks.announce(b"words").is_ok()),
            "fork" => {
                // SAFETY: the new process only sleeps until it is killed.
                match unsafe { libc::fork() } {
                    0 => loop {
                        // SAFETY: waits for a signal.
                        unsafe { libc::pause() };
                    },
                    child => answer(child),
                }
            }
            _ => panic!("{line}"),
        }
    }
}

/// This process as rank 0, and a child as rank 1.
fn pair(dir: &Path) -> (SharedDirectory, Companion) {
    let mut other = Companion::start("directory::child_takes_part", dir);
    let ranks = open(dir, 0, 2, LONG);
    other.expect("ready");
    (ranks, other)
}

#[test]
fn a_rank_that_is_killed_is_gone_after_its_last_words() {
    let dir = tempdir().unwrap();
    let (ranks, mut other) = pair(dir.path());
    other.say("gather");
    assert_eq!(text(ranks.gather("a", b"zero")), ["zero", "one"]);
    other.expect("zero one");
    assert!(ranks.heard().unwrap().is_empty());
    assert_eq!(other.ask("say"), "true");
    other.kill();
    let error = ranks.gather("a", b"zero").unwrap_err();
    assert!(error.to_string().contains("rank 1 is gone"), "{error}");
    assert_eq!(ranks.heard().unwrap(), [(1, b"words".to_vec())]);
    assert!(ranks.heard().unwrap_err().to_string().contains("rank 1 is gone"));
    assert!(!SharedDirectory::is_deserted(dir.path()).unwrap(), "this one takes part");
    drop(ranks);
    assert!(SharedDirectory::is_deserted(dir.path()).unwrap());
}

#[test]
fn a_forked_child_does_not_take_part() {
    let dir = tempdir().unwrap();
    let (ranks, mut other) = pair(dir.path());
    let forked: i32 = other.ask("fork").parse().unwrap();
    other.kill();
    let gathered = ranks.gather("a", b"zero");
    // SAFETY: this process was made for this test alone, and sleeps.
    unsafe { libc::kill(forked, libc::SIGKILL) };
    assert!(gathered.unwrap_err().to_string().contains("rank 1 is gone"), "the child does not stand in for it");
}

#[test]
fn a_rank_that_was_started_again_is_not_the_one_that_was_met() {
    let dir = tempdir().unwrap();
    let (ranks, other) = pair(dir.path());
    // At once, so that the lock of the rank is held again.
    other.kill();
    let mut again = Companion::start("directory::child_takes_part", dir.path());
    let error = ranks.gather("a", b"zero").unwrap_err();
    assert!(error.to_string().contains("rank 1 is gone"), "{error}");
    drop(ranks);
    let ranks = open(dir.path(), 0, 2, LONG);
    again.expect("ready");
    again.say("gather");
    assert_eq!(text(ranks.gather("a", b"zero")), ["zero", "one"]);
}

#[test]
fn last_words_are_heard_also_when_their_rank_has_begun_again() {
    for (rank, size) in [(0, 10), (1, 10), (0, 3 << 20), (1, 3 << 20)] {
        let dir = tempdir().unwrap();
        let other = thread::scope(|scope| {
            let other = scope.spawn(|| open(dir.path(), 1 - rank, 2, LONG));
            let ranks = open(dir.path(), rank, 2, LONG);
            let other = other.join().unwrap();
            // If they are long, the second message is in another part.
            (0..2u8).for_each(|number| ranks.announce(&vec![number; size]).unwrap());
            other
        });
        let begun = fs::metadata(mailbox_of(dir.path(), rank)).unwrap().ino();
        thread::scope(|scope| {
            let again = scope.spawn(|| open(dir.path(), rank, 2, LONG));
            while fs::metadata(mailbox_of(dir.path(), rank)).map_or(begun, |now| now.ino()) == begun {
                thread::yield_now();
            }
            let mut heard = Vec::new();
            let error = loop {
                match other.heard() {
                    Ok(more) => heard.extend(more),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains(&format!("rank {rank} is gone")), "{error}");
            assert_eq!(heard, [(rank, vec![0; size]), (rank, vec![1; size])]);
            drop(other);
            let other = open(dir.path(), 1 - rank, 2, LONG);
            let again = again.join().unwrap();
            drop((again, other));
        });
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().contains("former")), "{names:?}");
    }
}

#[test]
fn one_process_is_one_rank() {
    let dir = tempdir().unwrap();
    let held = open(dir.path(), 0, 1, SHORT);
    let error = SharedDirectory::open_with(dir.path(), 0, 1, SHORT).map(drop).unwrap_err();
    assert!(error.to_string().contains("this process takes part already as rank 0"), "{error}");
    drop(held);
    drop(open(dir.path(), 0, 1, SHORT));
    let error = SharedDirectory::open_with(dir.path(), 3, 3, SHORT).map(drop).unwrap_err();
    assert!(error.to_string().contains("rank 3 is not below 3"), "{error}");
}

#[test]
fn another_number_of_ranks_is_said_when_patience_ends() {
    let dir = tempdir().unwrap();
    let errors = [(0, 2), (1, 3)].map(|(rank, count)| {
        let dir = dir.path().to_owned();
        thread::spawn(move || SharedDirectory::open_with(dir, rank, count, SHORT).map(drop).unwrap_err().to_string())
    });
    let [one, other] = errors.map(|thread| thread.join().unwrap());
    assert!(
        one.contains("give all ranks the same number of ranks") || other.contains("give all ranks"),
        "{one} {other}"
    );
    assert!(one.contains("of rank 1 of 2 is that of rank 1 of 3") || other.contains("rank 0 of 2"), "{one} {other}");
}

/// The mailbox of rank 1.
fn mailbox(dir: &Path) -> File {
    File::options().read(true).write(true).open(mailbox_of(dir, 1)).unwrap()
}

#[test]
fn bytes_that_are_late_are_waited_for_and_damage_is_said() {
    let dir = tempdir().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| open(dir.path(), 1, 2, LONG));
        let ranks = open(dir.path(), 0, 2, SHORT);
        let other = other.join().unwrap();
        let file = mailbox(dir.path());
        let before = file.metadata().unwrap().len();
        let gathering = scope.spawn(move || (text(other.gather("a", b"one")), other));
        outcrop_testing::until("said", || file.metadata().unwrap().len() > before);
        let whole = fs::read(dir.path().join("rank-00001.mailbox")).unwrap();
        // First the length is there and the bytes are not; then the head is there; then one bit of
        // the body is wrong.
        let said = &whole[before as usize..];
        let mut flipped = said.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        let late = [vec![0; said.len()], [&said[..30], &vec![0; said.len() - 30]].concat(), flipped];
        for bytes in late {
            file.write_all_at(&bytes, before).unwrap();
            let error = ranks.gather("a", b"zero").unwrap_err().to_string();
            assert!(error.contains("the record in a mailbox was changed"), "{error}");
        }
        // An incomplete record is not damage.
        file.set_len(before + 20).unwrap();
        let error = ranks.gather("a", b"zero").unwrap_err().to_string();
        assert!(!error.contains("changed"), "{error}");
        file.write_all_at(said, before).unwrap();
        let mine = text(ranks.gather("a", b"zero"));
        assert_eq!(mine, ["zero", "one"]);
        assert_eq!(gathering.join().unwrap().0, mine);
    });
}

#[test]
fn a_mailbox_that_stays_damaged_is_not_waited_for_for_ever() {
    let dir = tempdir().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| open(dir.path(), 1, 2, LONG));
        let ranks = open(dir.path(), 0, 2, SHORT);
        let other = other.join().unwrap();
        let file = mailbox(dir.path());
        let before = file.metadata().unwrap().len();
        other.announce(b"words").unwrap();
        file.write_all_at(&[0; 30], before).unwrap();
        let mut error = String::new();
        outcrop_testing::until("said", || {
            error = ranks.heard().err().map(|error| error.to_string()).unwrap_or_default();
            !error.is_empty()
        });
        assert!(error.contains("could not be read") && error.contains("was changed"), "{error}");
    });
}

#[test]
fn long_and_many_messages_arrive_whole_and_in_order() {
    let dir = tempdir().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let ranks = open(dir.path(), 1, 2, LONG);
            for length in (0..500).chain([65_000, 65_536, 300_000, 5]) {
                ranks.announce(&vec![length as u8; length]).unwrap();
            }
            ranks.gather("end", &vec![7; 1 << 20]).unwrap();
        });
        let ranks = open(dir.path(), 0, 2, LONG);
        assert_eq!(ranks.gather("end", &[]).unwrap()[1], vec![7; 1 << 20]);
        let heard: Vec<_> = ranks.heard().unwrap().into_iter().map(|(_, message)| message).collect();
        let expected = (0..500).chain([65_000, 65_536, 300_000, 5]).map(|length| vec![length as u8; length]);
        assert_eq!(heard, expected.collect::<Vec<_>>());
        other.join().unwrap();
    });
}

#[test]
fn a_mailbox_that_was_read_takes_no_more_room() {
    const MIB: usize = 1 << 20;
    let dir = tempdir().unwrap();
    let rounds = 40;
    thread::scope(|scope| {
        for rank in 0..3 {
            let dir = dir.path();
            scope.spawn(move || {
                let ranks = open(dir, rank, 3, LONG);
                for round in 0..rounds {
                    ranks.announce(&vec![round; MIB]).unwrap();
                    let gathered = ranks.gather("a", &vec![round; MIB]).unwrap();
                    assert!(gathered.iter().all(|contribution| *contribution == vec![round; MIB]));
                    let heard = ranks.heard().unwrap();
                    assert!(heard.iter().all(|(_, message)| message.len() == MIB));
                }
                let mine = format!("rank-{rank:05}.mailbox");
                let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
                let files = files.filter(|file| file.file_name().to_string_lossy().starts_with(&mine));
                let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
                ranks.gather("end", b"").unwrap();
                // Each rank writes two MiB in each round. Others may be some rounds late in
                // reporting what they have read.
                let said = if rank == 0 { 6 } else { 2 } * MIB as u64;
                assert!(bytes < 6 * said, "{bytes} bytes are left of {}", u64::from(rounds) * said);
            });
        }
    });
    let error = SharedDirectory::open_with(dir.path(), 0, 3, SHORT).map(drop).unwrap_err();
    assert!(error.to_string().contains("not all 3 ranks"), "{error}");
}

#[test]
fn what_cannot_be_said_is_an_error_and_the_next_words_are_heard() {
    let dir = tempdir().unwrap();
    let ranks = open(dir.path(), 0, 1, LONG);
    let error = ranks.gather(&"x".repeat(5000), b"").unwrap_err();
    assert!(error.to_string().contains("a topic of 5000 bytes"), "{error}");
    assert_eq!(ranks.gather("a", b"zero").unwrap(), [b"zero"]);
}
