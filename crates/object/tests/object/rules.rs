//! What each operation promises, whatever the server and other processes do.

use std::{io, sync::Arc, time::Duration};

use outcrop_layers::files::{Files, Holder, read_whole, write_whole};
use outcrop_object::ObjectFiles;
use outcrop_testing::{pattern, until};

use crate::server::{Fate, Server};

const DIR: &str = "heat/rank-00000";
const LOCK: &str = "heat/rank-00000/lock";
const MIB: u64 = 1 << 20;

fn make_pack(files: &ObjectFiles, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = files.create_new(&format!("{DIR}/{name}"), bytes.len() as u64)?;
    for (at, piece) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
        file.write_at(at, piece)?;
    }
    file.sync()
}

fn read(files: &ObjectFiles, name: &str) -> io::Result<Vec<u8>> {
    read_whole(files, &format!("{DIR}/{name}"), 100 * MIB)
}

fn sorted(files: &ObjectFiles, dir: &str) -> Vec<String> {
    let mut names = files.list(dir).unwrap();
    names.sort();
    names
}

#[test]
fn what_one_client_writes_another_one_reads() {
    let server = Server::default();
    let (writer, reader) = (server.files(), server.files());
    let _lock = writer.lock(LOCK).unwrap().unwrap();
    for bytes in [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB, 20 * MIB + 7] {
        let (name, wanted) = (format!("pack-{bytes}"), pattern(bytes, bytes));
        make_pack(&writer, &name, &wanted).unwrap();
        for files in [&writer, &reader] {
            assert!(read(files, &name).unwrap() == wanted, "{bytes}");
            assert_eq!(files.bytes_of(&format!("{DIR}/{name}")).unwrap(), bytes);
        }
    }
    write_whole(&writer, DIR, "version-1", b"one").unwrap();
    write_whole(&writer, DIR, "version-1", b"two").unwrap();
    assert_eq!(read(&reader, "version-1").unwrap(), b"two");
    assert_eq!(reader.list("").unwrap(), ["heat"]);
    assert_eq!(reader.list("heat").unwrap(), ["rank-00000"]);
    assert_eq!(sorted(&reader, DIR), sorted(&writer, DIR));
    assert_eq!(sorted(&reader, DIR).len(), 8, "nothing of the owner is in the list");
    assert_eq!(server.uploads(), 0);
    // Removed is removed, for both.
    writer.remove(&format!("{DIR}/version-1")).unwrap();
    assert_eq!(read(&reader, "version-1").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(writer.remove(&format!("{DIR}/version-1")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn pieces_may_come_in_any_order_as_long_as_few_parts_are_open() {
    let server = Server::default();
    let files = server.files();
    let _lock = files.lock(LOCK).unwrap().unwrap();
    let wanted = pattern(3, 17 * MIB);
    let file = files.create_new(&format!("{DIR}/pack"), 17 * MIB).unwrap();
    for part in [0, 1] {
        for piece in [3, 1, 0, 2] {
            let at = part * 8 * MIB + piece * 2 * MIB;
            file.write_at(at, &wanted[at as usize..][..2 << 20]).unwrap();
        }
    }
    file.write_at(16 * MIB, &wanted[16 << 20..]).unwrap();
    file.sync().unwrap();
    assert!(read(&files, "pack").unwrap() == wanted);
    // What would need all of it in memory is refused, and leaves nothing.
    let file = files.create_new(&format!("{DIR}/sparse"), 80 * MIB).unwrap();
    let outcome = (0..10).try_for_each(|part| file.write_at(part * 8 * MIB, b"x"));
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert!(file.sync().is_err(), "not all of it was written");
    files.remove(&format!("{DIR}/sparse")).unwrap();
    assert_eq!((server.uploads(), read(&files, "sparse").unwrap_err().kind()), (0, io::ErrorKind::NotFound));
}

#[test]
fn a_file_is_made_once_and_not_seen_before_it_is_complete() {
    let server = Server::default();
    let (files, reader) = (server.files(), server.files());
    let _lock = files.lock(LOCK).unwrap().unwrap();
    let name = format!("{DIR}/pack");
    let file = files.create_new(&name, 20 * MIB).unwrap();
    file.write_at(0, &pattern(1, 20 * MIB)).unwrap();
    assert_eq!(reader.open(&name).err().unwrap().kind(), io::ErrorKind::NotFound);
    assert_eq!(files.create_new(&name, 1).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    file.sync().unwrap();
    assert_eq!(files.create_new(&name, 1).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    assert!(file.write_at(0, b"x").is_err(), "complete objects do not change");
    assert_eq!(reader.open(&name).unwrap().bytes().unwrap(), 20 * MIB);
}

#[test]
fn one_process_at_a_time_owns_a_directory() {
    let server = Server::default();
    let (first, second) = (server.files(), server.files());
    let lock = first.lock(LOCK).unwrap().unwrap();
    assert!(first.lock(LOCK).unwrap().is_none());
    assert!(second.lock(LOCK).unwrap().is_none());
    assert_eq!(second.holder(LOCK), Some(Holder::Here));
    assert!(second.lock("heat/rank-00001/lock").unwrap().is_some());
    // It says who has it, and what to do after a crash.
    server.move_owners();
    assert!(second.lock(LOCK).unwrap().is_none());
    let Some(Holder::Other(who)) = second.holder(LOCK) else { panic!("nobody") };
    assert!(who.contains(&format!("process {}", std::process::id())) && who.contains("63 s"), "{who}");
    assert!(second.create_new(&format!("{DIR}/pack"), 1).is_err(), "without the lock");
    assert!(second.replace(DIR, "version", b"").is_err(), "without the lock");
    drop(lock);
    assert!(second.lock(LOCK).unwrap().is_some(), "given up, it is free at once");
}

#[test]
fn whoever_has_crashed_is_taken_over_from_and_its_uploads_are_removed() {
    let server = Server::default();
    let dead = server.files();
    let lock = dead.lock(LOCK).unwrap().unwrap();
    write_whole(&dead, DIR, "version-1", b"one").unwrap();
    let file = dead.create_new(&format!("{DIR}/pack"), 20 * MIB).unwrap();
    file.write_at(0, &pattern(1, 18 * MIB)).unwrap();
    until("two parts are sent", || server.calls().iter().filter(|call| call.starts_with("part")).count() == 2);
    assert_eq!(server.uploads(), 1);
    std::mem::forget((file, lock));
    server.end_owners();
    let next = server.files();
    let _lock = next.lock(LOCK).unwrap().unwrap();
    assert_eq!((server.uploads(), sorted(&next, DIR)), (0, vec!["version-1".to_owned()]));
    let left: Vec<_> = server.names().into_iter().filter(|name| name.contains("/00000001")).collect();
    assert_eq!(left.len(), 1, "only the version is left of the first: {left:?}");
}

#[test]
fn an_owner_on_another_machine_is_dead_after_its_lease() {
    let server = Server::default();
    let dead = server.files_with(|options| options.lease = Duration::from_millis(900));
    let lock = dead.lock(LOCK).unwrap().unwrap();
    server.move_owners();
    // As long as it gives signs of life it has the directory.
    let next = server.files();
    std::thread::sleep(Duration::from_millis(4500));
    assert!(next.lock(LOCK).unwrap().is_none());
    // No more signs reach the server.
    server.rule(|kind, name| if kind == "put" && name.contains("/alive/00000001") { Fate::Busy } else { Fate::Pass });
    until("the lease ends", || next.lock(LOCK).unwrap().is_some());
    drop(lock);
}

#[test]
fn what_is_written_after_a_takeover_is_seen_by_nobody() {
    let server = Server::default();
    let (late, next, reader) = (server.files(), server.files(), server.files());
    let lock = late.lock(LOCK).unwrap().unwrap();
    write_whole(&late, DIR, "version-1", b"one").unwrap();
    make_pack(&late, "pack-1", b"pack").unwrap();
    server.end_owners();
    let _lock = next.lock(LOCK).unwrap().unwrap();
    // The other one goes on, and cannot know better until it asks.
    make_pack(&late, "pack-2", b"late").unwrap();
    late.replace(DIR, "version-2", b"late").unwrap();
    // What it replaces stays: the new owner may rely on it.
    late.replace(DIR, "version-1", b"late").unwrap();
    let error = late.sync_dir(DIR).unwrap_err().to_string();
    assert!(error.contains("another process has taken"), "{error}");
    assert!(late.replace(DIR, "version-3", b"late").is_err(), "now it knows");
    assert!(make_pack(&late, "pack-3", b"late").is_err(), "now it knows");
    assert_eq!(sorted(&reader, DIR), ["pack-1", "version-1"]);
    assert_eq!(read(&reader, "version-1").unwrap(), b"one");
    assert_eq!(reader.open(&format!("{DIR}/version-2")).err().unwrap().kind(), io::ErrorKind::NotFound);
    // The names are free for the new owner, and the next one cleans up.
    make_pack(&next, "pack-2", b"new").unwrap();
    write_whole(&next, DIR, "version-2", b"new").unwrap();
    assert_eq!(
        (read(&reader, "pack-2").unwrap(), read(&reader, "version-2").unwrap()),
        (b"new".to_vec(), b"new".to_vec())
    );
    drop((lock, _lock));
    let last = server.files();
    let _lock = last.lock(LOCK).unwrap().unwrap();
    assert_eq!(sorted(&last, DIR), ["pack-1", "pack-2", "version-1", "version-2"]);
    assert!(!server.names().iter().any(|name| name.contains("pack-2/00000001")), "{:?}", server.names());
}

#[test]
fn what_is_new_after_a_takeover_is_not_durable() {
    let server = Server::default();
    let (late, next) = (server.files(), server.files());
    let _late = late.lock(LOCK).unwrap().unwrap();
    server.end_owners();
    let _next = next.lock(LOCK).unwrap().unwrap();
    // Nothing is removed for it, so nothing else asks.
    late.replace(DIR, "version-1", b"late").unwrap();
    let error = late.sync_dir(DIR).unwrap_err().to_string();
    assert!(error.contains("another process has taken"), "{error}");
}

#[test]
fn a_server_that_ignores_conditions_is_found_out() {
    let server = Server::ignoring_conditions();
    let (first, second) = (server.files(), server.files());
    let lock = first.lock(LOCK).unwrap().unwrap();
    assert!(!server.names().iter().any(|name| name.contains("probe")), "{:?}", server.names());
    assert!(second.lock(LOCK).unwrap().is_none());
    assert_eq!(second.remarks(DIR).len(), 1);
    write_whole(&first, DIR, "version-1", b"one").unwrap();
    drop(lock);
    assert!(second.lock(LOCK).unwrap().is_some());
    assert_eq!(read(&server.files(), "version-1").unwrap(), b"one");
    let careful = Server::default();
    drop(careful.files().lock(LOCK).unwrap().unwrap());
    assert!(careful.files().remarks(DIR).is_empty());
    assert!(!careful.names().iter().any(|name| name.contains("probe")), "{:?}", careful.names());
}

#[test]
fn of_many_that_want_a_directory_at_most_one_gets_it() {
    for server in [Server::default(), Server::ignoring_conditions()] {
        let wanting: Vec<_> = (0..6).map(|_| server.files()).collect();
        let got = std::thread::scope(|scope| {
            let tries = wanting.iter().map(|files| scope.spawn(|| files.lock(LOCK).unwrap()));
            let tries: Vec<_> = tries.collect();
            tries.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(got.len() <= 1, "{} have it", got.len());
    }
}

#[test]
fn an_answer_that_is_lost_is_found_out() {
    let server = Server::default();
    let files = server.files();
    let _lock = files.lock(LOCK).unwrap().unwrap();
    for kind in ["put", "complete"] {
        let mut lost = false;
        server.rule(move |call, name| {
            match call == kind && !name.contains("alive") && !std::mem::replace(&mut lost, true) {
                true => Fate::Lost,
                false => Fate::Pass,
            }
        });
        match kind {
            "put" => write_whole(&files, DIR, "version", b"bytes").unwrap(),
            _ => make_pack(&files, "pack", &pattern(1, 20 * MIB)).unwrap(),
        }
        server.heal();
    }
    assert_eq!(read(&server.files(), "version").unwrap(), b"bytes");
    assert!(read(&server.files(), "pack").unwrap() == pattern(1, 20 * MIB));
}

#[test]
fn what_the_server_has_not_said_is_not_durable() {
    for fate in [Fate::Busy, Fate::Silent] {
        let server = Server::default();
        let files = server.files();
        let _lock = files.lock(LOCK).unwrap().unwrap();
        write_whole(&files, DIR, "version", b"old").unwrap();
        server.rule(move |kind, name| if kind == "put" && name.contains("version") { fate } else { Fate::Pass });
        let outcome = write_whole(&files, DIR, "version", b"new");
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut, "{fate:?}");
        server.heal();
        files.sync_dir(DIR).unwrap();
        assert_eq!(read(&server.files(), "version").unwrap(), b"old", "what it replaces stays");
        write_whole(&files, DIR, "version", b"newer").unwrap();
        assert_eq!(read(&server.files(), "version").unwrap(), b"newer");
        // A pack fails when it is completed, and leaves nothing.
        server.rule(move |kind, _| if kind == "part" { fate } else { Fate::Pass });
        assert!(make_pack(&files, "pack", &pattern(1, 20 * MIB)).is_err());
        server.heal();
        until("nothing is left", || server.uploads() == 0);
        assert_eq!(read(&server.files(), "pack").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

#[test]
fn what_was_replaced_and_cannot_be_removed_is_no_success() {
    let server = Server::default();
    let (files, reader) = (server.files(), server.files());
    let _lock = files.lock(LOCK).unwrap().unwrap();
    write_whole(&files, DIR, "version", b"old").unwrap();
    server.rule(|kind, name| if kind == "delete" && name.contains("version") { Fate::Busy } else { Fate::Pass });
    assert!(write_whole(&files, DIR, "version", b"new").is_err());
    assert_eq!(read(&reader, "version").unwrap(), b"new", "the newest counts");
    assert!(files.sync_dir(DIR).is_err(), "the old one is still there");
    server.heal();
    files.sync_dir(DIR).unwrap();
    assert_eq!(server.names().iter().filter(|name| name.contains("version")).count(), 1);
}

#[test]
fn a_reader_sees_the_old_or_the_new_at_every_moment() {
    for n in 0.. {
        let server = Server::default();
        let writer = server.files();
        let lock = writer.lock(LOCK).unwrap().unwrap();
        write_whole(&writer, DIR, "version", b"old").unwrap();
        let reader = server.files();
        reader.list(DIR).unwrap();
        // The writer dies before its nth change.
        let mut left = n;
        server.rule(move |kind, _| match kind {
            "put" | "delete" if left == 0 => Fate::Busy,
            "put" | "delete" => {
                left -= 1;
                Fate::Pass
            }
            _ => Fate::Pass,
        });
        let outcome = write_whole(&writer, DIR, "version", b"new");
        server.heal();
        for files in [&reader, &server.files()] {
            let found = read(files, "version").unwrap();
            assert!(if outcome.is_ok() { found == b"new" } else { found == b"old" || found == b"new" }, "{n}");
        }
        std::mem::forget(lock);
        server.end_owners();
        let next = server.files();
        let _lock = next.lock(LOCK).unwrap().unwrap();
        assert_eq!(read(&next, "version").unwrap(), read(&reader, "version").unwrap(), "{n}");
        if outcome.is_ok() {
            break;
        }
    }
}

#[test]
fn an_object_that_is_shorter_than_it_was_is_noticed() {
    let server = Server::default();
    let files = server.files();
    let _lock = files.lock(LOCK).unwrap().unwrap();
    make_pack(&files, "pack", &pattern(1, 20 * MIB)).unwrap();
    let name = server.names().into_iter().find(|name| name.contains("pack")).unwrap();
    let reader = server.files();
    let open = reader.open(&format!("{DIR}/pack")).unwrap();
    server.write(&name, pattern(1, 2 * MIB));
    let mut bytes = vec![0; 4 << 20];
    assert_eq!(open.read_at(MIB, &mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(files.bytes_of(&format!("{DIR}/pack")).unwrap(), 2 * MIB, "the server is asked");
    server.remove(&name);
    assert_eq!(open.read_at(0, &mut bytes).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn names_lead_nowhere_else() {
    let server = Server::default();
    let files = server.files();
    for name in ["..", "../other", "heat/../../other", "/etc", "heat//rank", ".", "a/\0"] {
        assert_eq!(files.open(name).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(files.list(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
        assert_eq!(files.lock(&format!("{name}/lock")).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
    }
    assert_eq!(files.rename("a", "b").unwrap_err().kind(), io::ErrorKind::Unsupported);
}

#[test]
fn damaged_claims_and_seals_are_an_error_and_nothing_is_changed() {
    let server = Server::default();
    drop(server.files().lock(LOCK).unwrap().unwrap());
    for kind in ["owner", "seal"] {
        let name = server.names().into_iter().find(|name| name.contains(kind)).unwrap();
        let good = server.read(&name);
        for bad in [&b""[..], b"{", b"{\"format\": 2}", &[0xFF; 100]] {
            server.write(&name, bad);
            let before = server.names();
            let error = server.files().lock(LOCK).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            // A seal is read only after the claim, which stays: epochs only grow.
            if kind == "owner" {
                assert_eq!(server.names(), before);
            }
            server.names().iter().filter(|name| !before.contains(name)).for_each(|name| server.remove(name));
        }
        server.write(&name, good);
    }
    assert!(server.files().lock(LOCK).unwrap().is_some());
}

#[test]
fn a_client_can_be_used_and_dropped_on_a_thread_of_another_runtime() {
    let server = Server::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let files = Arc::new(server.files());
    let used = runtime.block_on(async move {
        let task = tokio::spawn(async move {
            let _lock = files.lock(LOCK).unwrap().unwrap();
            write_whole(&*files, DIR, "version", b"bytes").unwrap();
        });
        task.await
    });
    used.unwrap();
}
