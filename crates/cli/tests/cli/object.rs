//! Stores in an object store: the commands, what cannot be opened, and programs that are killed.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use outcrop::{Part, PartMut, Reached, Session, Store};
use outcrop_testing::{ObjectServer, amount, child, child_directory, covered, expect_success, skip};
use serde_json::Value;

use crate::common::{outcrop, text};

const RUN: &str = "s3://bucket/my/run";

fn server() -> Option<ObjectServer> {
    match ObjectServer::start(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(server) => {
            server.make_bucket("bucket");
            Some(server)
        }
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// Runs the test of this name again, in a child with a server. Returns where it works if this is
/// the child.
fn with_server(name: &str) -> Option<std::path::PathBuf> {
    if let Some(directory) = child_directory() {
        return Some(directory);
    }
    let server = server()?;
    let directory = tempfile::tempdir().unwrap();
    let mut command = child(name, directory.path());
    command.envs(ObjectServer::variables(server.address()));
    expect_success(command);
    None
}

fn field(version: u64) -> Vec<f64> {
    let mut field: Vec<f64> = (0..200_000).map(f64::from).collect();
    (0..=version).for_each(|step| field[(step * 7919) as usize % 200_000] = -(step as f64));
    field
}

fn open(patience: f64) -> outcrop::Result<Session> {
    let text = format!(
        "host = \"16 MiB\"\npin = false\nkeep_last = 3\nchain_max = 3\n\
         object = {{ url = \"{RUN}\", patience_seconds = {patience} }}"
    );
    outcrop::store::StoreBuilder::from_toml(&text)?.open()?.session("heat")
}

#[test]
fn every_command_takes_an_address() {
    let Some(directory) = with_server("object::every_command_takes_an_address") else { return };
    let store = Store::builder().host("16 MiB").dir(directory.join("near"), None).object(RUN, None).pin(false);
    let mut session = store.open().unwrap().session("heat").unwrap();
    for version in 1..5u64 {
        session.save(version, &[Part::new("field", &field(version)), Part::one("step", &version)]).unwrap();
        session.wait(version, Reached::Layer(2)).unwrap();
    }
    let busy = outcrop(&directory, &["prune", RUN, "heat", "--keep-last", "1"]);
    assert!(!busy.status.success() && text(&busy.stderr).contains("program"), "{}", text(&busy.stderr));
    session.finish().unwrap();
    let run = |arguments: &[&str]| {
        let output = outcrop(&directory, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let listed: Value = serde_json::from_str(&run(&["ls", "near", RUN, "--json"])).unwrap();
    assert_eq!(listed["versions"].as_array().unwrap().len(), 4);
    assert!(
        listed["versions"].as_array().unwrap().iter().all(|version| version["states"][1] == "complete"),
        "{listed}"
    );
    assert!(run(&["show", RUN, "heat"]).contains("complete"));
    assert!(run(&["show", RUN, "heat", "latest"]).contains("field"));
    run(&["du", RUN]);
    run(&["verify", RUN]);
    assert!(run(&["diff", RUN, "heat", "1", "2"]).contains("field"));
    run(&["restore", RUN, "heat", "latest", "--to", "raw"]);
    run(&["export", RUN, "heat", "3", "--to", "npy"]);
    let found = fs::read(directory.join("raw/rank-00000/field.bin"));
    let wanted: Vec<u8> = field(4).iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert!(found.unwrap() == wanted, "the bytes that were saved");
    run(&["prune", RUN, "heat", "--keep-last", "1"]);
    let listed: Value = serde_json::from_str(&run(&["ls", RUN, "--json"])).unwrap();
    assert_eq!(listed["versions"].as_array().unwrap().len(), 1);
    run(&["verify", RUN]);
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    let Some(directory) = with_server("object::what_cannot_be_opened_says_what_to_do") else { return };
    for (address, hint) in [
        ("s3://nowhere/run", "bucket \"nowhere\" does not exist; create it"),
        ("s3://bucket/nothing", "no sessions"),
        ("ftp://bucket/run", "ftp:// is no kind of object store"),
        ("s3://me:password@bucket/run", "has no credentials in it"),
    ] {
        let output = outcrop(&directory, &["ls", address]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(hint), "{address}: {said}");
        assert!(!said.contains("password"), "{said}");
    }
    let store =
        |url: &str| Store::builder().host("4 MiB").pin(false).object(url, None).open().err().unwrap().to_string();
    assert!(store("s3://nowhere/run").contains("does not exist"));
    assert!(!store("s3://me:password@bucket/run").contains("password"));
    let error = outcrop::store::StoreBuilder::from_toml("dir = \"s3://bucket/run\"").unwrap_err().to_string();
    assert!(error.contains("write object = \"s3://bucket/run\""), "{error}");
    let error = outcrop::store::StoreBuilder::from_toml("object = \"bucket/run\"").unwrap_err().to_string();
    assert!(error.contains("no address of an object store"), "{error}");
}

/// What a child does that is killed: goes on from what it finds, and records what is durable.
#[test]
fn saves() {
    let Some(directory) = child_directory() else { return };
    let mut session = open(60.0).unwrap();
    let mut found = vec![0.0; 200_000];
    let restored = session.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap();
    let last = restored.map_or(0, |restored| restored.version);
    assert!(last == 0 || found == field(last), "version {last} has other bytes");
    let durable: u64 = fs::read_to_string(directory.join("durable")).map_or(0, |text| text.parse().unwrap());
    assert!(last >= durable, "version {durable} was durable, and {last} is there");
    fs::write(directory.join("restored"), last.to_string()).unwrap();
    for version in last + 1.. {
        session.save(version, &[Part::new("field", &field(version))]).unwrap();
        session.wait(version, Reached::Layer(1)).unwrap();
        let new = directory.join("durable.new");
        fs::write(&new, version.to_string()).unwrap();
        fs::rename(new, directory.join("durable")).unwrap();
    }
}

#[test]
fn a_program_that_is_killed_at_any_moment_finds_what_was_durable() {
    let Some(server) = server() else { return };
    let directory = tempfile::tempdir().unwrap();
    let rounds = amount(6, 100);
    for round in 0..rounds {
        let mut command = child("object::saves", directory.path());
        command.envs(ObjectServer::variables(server.address())).stdout(Stdio::null());
        let mut process = command.spawn().unwrap();
        let begun = Instant::now();
        let restored = directory.path().join("restored");
        while !restored.exists() {
            assert!(process.try_wait().unwrap().is_none(), "round {round}: it has failed");
            assert!(begun.elapsed() < Duration::from_secs(120), "round {round}: it does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(round * 97 % 400));
        process.kill().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(9), "round {round}: it has failed");
        fs::remove_file(restored).unwrap();
    }
    let durable = fs::read_to_string(directory.path().join("durable")).unwrap_or_default();
    covered("kills of a program with an object store", format!("{rounds}, up to version {durable}"));
}
