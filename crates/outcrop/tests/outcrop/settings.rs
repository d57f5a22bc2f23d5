//! Settings: builders, texts and the environment are equivalent, and nothing happens before `open`.

use std::{fs, path::Path, time::Duration};

use outcrop::{
    DeviceKind, Order, Retention, Rule, Store, StoreBuilder, Tape, TapeBuilder,
    store::{Compression, Dedup},
};
use outcrop_testing::{child, child_directory, expect_success};

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn a_text_is_what_the_builder_calls_are() {
    let text = "device = { kind = 'opencl', index = 1, size = '1 GiB' }
        host = '2 GiB'
        shared_host = { name = 'job', total = '8 GiB', mine = '1 GiB' }
        dir = [{ path = '/a', limit = '50%' }, { path = '/b', limit = 5 }]
        order = 'forward'
        patience_seconds = 2
        pin = false
        profile = 'p'
        log_file = 'l'";
    let calls = Tape::builder()
        .device_at(DeviceKind::OpenCl, 1, "1 GiB")
        .host("2 GiB")
        .shared_host("job", "8 GiB", 1 << 30)
        .dir("/a", "50%")
        .dir("/b", 5)
        .order(Order::Forward)
        .patience(Duration::from_secs(2))
        .pin(false)
        .profile("p")
        .log_file("l");
    assert_eq!(TapeBuilder::from_toml(text).unwrap().settings(), calls.settings());
    let text = "dir = ['/a', { path = '/b', limit = '5 MiB' }]
        ranks = { dir = '/talk', rank = 1, count = 3 }
        keep_every = 7
        interval = 60
        compression = 'lz4'
        dedup = 'inside'
        live = '1 MiB'";
    let calls = Store::builder()
        .dir("/a", None)
        .dir("/b", Some("5 MiB"))
        .ranks_in("/talk", 1, 3)
        .keep(Retention { keep_every: Some(7), ..Retention::default() })
        .interval(Rule::Fixed(60_000_000_000), &[])
        .compression(Compression::Lz4)
        .dedup(Dedup::Inside)
        .live("1 MiB");
    assert_eq!(StoreBuilder::from_toml(text).unwrap().settings(), calls.settings());
}

#[test]
fn to_describe_has_no_effects() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let (dir, talk) = (path("dir"), path("talk"));
    let tape = TapeBuilder::from_toml(&format!(
        "host = '1 MiB'\ndir = {dir:?}\nlog_file = {:?}\nshared_host = {{ name = 'x', total = '1 MiB', mine = '1 MiB' }}",
        path("log")
    ));
    let store = StoreBuilder::from_toml(&format!("dir = {dir:?}\nranks = {{ dir = {talk:?}, rank = 1, count = 2 }}"));
    drop((tape.unwrap(), store.unwrap()));
    drop(Tape::builder().host("1 MiB").dir(&dir, "90%").profile(path("profile")));
    drop(Store::builder().dir(&dir, None).ranks_in(&talk, 0, 2));
    assert!(is_empty(scratch.path()), "nothing was created, waited for or read");
    // A limit that is a share is measured when the tape is opened.
    let tape = Tape::builder().host("1 MiB").dir(&dir, "50%").pin(false).open().unwrap();
    assert!(tape.stats().layers[1].capacity_bytes > Some(1 << 20));
}

#[test]
fn what_fails_names_what_it_is_about() {
    let tape = Tape::builder().host("2 gigs").open().unwrap_err().to_string();
    assert!(tape.starts_with("the host memory of a tape: \"2 gigs\" is not a size"), "{tape}");
    let store = Store::builder().host("2 gigs").dir("/nowhere", None).open().unwrap_err().to_string();
    assert!(store.starts_with("the host memory of a store: \"2 gigs\" is not a size"), "{store}");
    let store = Store::builder().open().unwrap_err().to_string();
    assert!(store.contains("a store needs a directory"), "{store}");
    let share = Tape::builder().host("90%").open().unwrap_err().to_string();
    assert!(share.contains("\"90%\" is not a size"), "{share}");
}

#[test]
fn the_environment_overrides_builders() {
    let name = "settings::the_environment_overrides_builders";
    let Some(directory) = child_directory() else {
        let directory = tempfile::tempdir().unwrap();
        let mut command = child(name, directory.path());
        command
            .env("OUTCROP_HOST", "3 MiB")
            .env("OUTCROP_DIR", directory.path().join("theirs"))
            .env("OUTCROP_PIN", "false");
        expect_success(command);
        let mut command = child(name, directory.path());
        command.env("OUTCROP_HOST", "lots");
        return expect_success(command);
    };
    let ours = directory.join("ours");
    let tape = Tape::builder().host("1 MiB").dir(&ours, "1 MiB").open();
    let store = Store::builder().host("1 MiB").dir(&ours, None).open();
    if std::env::var("OUTCROP_HOST").unwrap() == "lots" {
        for error in [tape.unwrap_err(), store.unwrap_err()] {
            assert!(error.to_string().starts_with("the variable OUTCROP_HOST: it is \"lots\""), "{error}");
        }
        return;
    }
    let (tape, store) = (tape.unwrap(), store.unwrap());
    for layers in [tape.stats().layers, store.stats().layers] {
        assert_eq!(layers[0].capacity_bytes, Some(3 << 20));
        assert!(layers[1].name.ends_with("theirs"), "{}", layers[1].name);
    }
    assert!(!ours.exists());
}
