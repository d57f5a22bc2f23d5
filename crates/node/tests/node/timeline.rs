//! The timeline of a daemon.

use std::{collections::BTreeMap, fs};

use outcrop_node::{Cached, Client, Connect, ServeOptions};
use outcrop_testing::{mount_memory, pattern, until, with_own_mounts};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::daemon::{connect, new_file};

const MIB: u64 = 1 << 20;

/// The names of the events of each track. None if the daemon is writing just now.
fn tracks(path: &std::path::Path) -> BTreeMap<String, Vec<String>> {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(&fs::read(path).unwrap()) else {
        return BTreeMap::new();
    };
    let events = value["traceEvents"].as_array().unwrap();
    let is_name = |event: &&serde_json::Value| event["name"] == "thread_name";
    let name = |event: &serde_json::Value| event["args"]["name"].as_str().unwrap().to_owned();
    let names: BTreeMap<u64, String> =
        events.iter().filter(is_name).map(|it| (it["tid"].as_u64().unwrap(), name(it))).collect();
    let mut tracks = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let note = event["args"]["note"].as_str().unwrap_or_default();
        let what = format!("{}: {note}", event["name"].as_str().unwrap());
        tracks.entry(names[&event["tid"].as_u64().unwrap()].clone()).or_default().push(what);
    }
    tracks
}

#[test]
fn clients_and_threads_have_a_track_each_with_waits_and_errors() {
    with_own_mounts(|directory| {
        let target = directory.join("target");
        fs::create_dir(&target).unwrap();
        mount_memory(&target, c"size=1m");
        let trace = directory.join("trace.json");
        let plain = connect(directory, 4 * MIB);
        let serve = ServeOptions { trace: Some(trace.clone()), ..plain.serve.clone() };
        let client = Client::connect(&Connect { serve, name: "simulate".to_owned(), ..plain }).unwrap();
        let path = directory.join("good");
        let file = client.open(new_file(&path), &path).unwrap();
        let client_track = format!("simulate {}, line ", std::process::id());
        let has = |track: &str, what: &str, word: &str| {
            let tracks = tracks(&trace);
            let events = tracks.iter().filter(|(name, _)| name.starts_with(track)).flat_map(|(_, events)| events);
            events.into_iter().any(|event| event.starts_with(what) && event.contains(word))
        };
        // More than the memory: it waits, unless drains keep up this time.
        until("a write waits for memory", || {
            file.write(0, &pattern(1, 20 * MIB)).unwrap();
            file.sync().unwrap();
            has(&client_track, "wait: ", "bytes")
        });
        let path = target.join("full");
        let full = client.open(new_file(&path), &path).unwrap();
        let _ = full.write(0, &pattern(1, 3 * MIB));
        assert!(full.drain().is_err());
        for (track, what, word) in [
            (client_track.as_str(), "granted: ", " bytes"),
            (&client_track, "filled: ", "good: "),
            (&client_track, "wait: ", "sync "),
            (&client_track, "failed: ", "No space left"),
            ("drain-", "drained: ", "good: "),
            ("drain-", "synced: ", "good"),
            ("drain-", "failed: ", "full: "),
        ] {
            until(&format!("{track} has {what}{word}"), || has(track, what, word));
        }
        full.set_bytes(0).unwrap();
        client.drain_all().unwrap();
    });
}

#[test]
fn a_daemon_that_takes_over_leaves_the_timeline_as_it_is() {
    let directory = tempdir().unwrap();
    let trace = directory.path().join("trace.json");
    let plain = connect(directory.path(), 4 * MIB);
    let serve = ServeOptions { trace: Some(trace.clone()), ..plain.serve.clone() };
    let client = Client::connect(&Connect { serve, ..plain }).unwrap();
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &pattern(1, MIB)).unwrap();
    until("it is written", || tracks(&trace).values().flatten().any(|event| event.starts_with("filled")));
    let process = client.status().unwrap().process;
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    file.write(MIB, &pattern(2, MIB)).unwrap();
    file.drain().unwrap();
    assert_ne!(client.status().unwrap().process, process);
    until("it is kept", || tracks(&trace).values().flatten().any(|event| event.starts_with("filled")));
}

#[test]
fn a_timeline_that_cannot_be_written_is_refused() {
    let directory = tempdir().unwrap();
    let plain = connect(directory.path(), 4 * MIB);
    let serve = ServeOptions { trace: Some("/no/such/directory/trace.json".into()), ..plain.serve.clone() };
    let error = Client::connect(&Connect { serve, ..plain }).err().unwrap().to_string();
    assert!(error.contains("write the timeline /no/such/directory/trace.json"), "{error}");
}
