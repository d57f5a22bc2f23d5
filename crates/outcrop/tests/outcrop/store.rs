//! Versions of a store: saved, restored, kept and dropped.

use std::path::Path;

use outcrop::{
    ErrorKind, HashKind, Part, PartMut, Reached, Retention, Rule, Session, Store, StoreBuilder, Way,
    catalog::Catalog,
    store::{Compression, Dedup, RegionOptions},
};

const MIB: u64 = 1 << 20;

fn builder(dir: &Path) -> StoreBuilder {
    Store::builder().host(8 * MIB).dir(dir.join("near"), None).dir(dir.join("far"), None).pin(false)
}

fn session(builder: StoreBuilder) -> Session {
    builder.open().unwrap().session("heat").unwrap()
}

fn field(step: u64) -> Vec<f64> {
    let mut field: Vec<f64> = (0..50_000).map(f64::from).collect();
    (0..=step).for_each(|step| field[(step * 977 % 50_000) as usize] = -(step as f64) - 1.0);
    field
}

fn save(session: &mut Session, version: u64) {
    session.save(version, &[Part::new("field", &field(version)), Part::one("step", &version)]).unwrap();
}

fn restore(session: &mut Session, version: Option<u64>) -> Option<u64> {
    let mut found = vec![0f64; 50_000];
    let mut step = u64::MAX;
    let mut parts = [PartMut::new("field", &mut found), PartMut::one("step", &mut step)];
    let restored = match version {
        Some(version) => Some(session.restore(version, &mut parts).unwrap()),
        None => session.restore_latest(&mut parts).unwrap(),
    }?;
    assert!(restored.skipped.is_empty(), "{restored:?}");
    assert_eq!(step, restored.version);
    assert_eq!(found, field(step));
    Some(step)
}

#[test]
fn the_newest_version_comes_back_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(builder(dir.path()));
    assert_eq!(restore(&mut one, None), None);
    (0..20).for_each(|version| save(&mut one, version));
    one.wait(19, Reached::All).unwrap();
    assert_eq!(restore(&mut one, None), Some(19), "from host memory");
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    assert_eq!(restore(&mut two, None), Some(19));
    for version in [0, 3, 12, 18] {
        assert_eq!(restore(&mut two, Some(version)), Some(version));
    }
    assert_eq!(restore(&mut two, None), Some(19));
    (20..25).for_each(|version| save(&mut two, version));
    two.finish().unwrap();
    let mut three = session(builder(dir.path()));
    assert_eq!(restore(&mut three, None), Some(24));
    assert_eq!(three.versions(), (0..25).collect::<Vec<_>>());
}

#[test]
fn only_changed_blocks_are_written() {
    let dir = tempfile::tempdir().unwrap();
    for way in [Way::Chosen, Way::Pages, Way::Everything] {
        let store = builder(&dir.path().join(way.to_string())).tracking(way).open().unwrap();
        let mut session = store.session("heat").unwrap();
        let mut values = field(0);
        session.save(0, &[Part::new("field", &values)]).unwrap();
        session.wait(0, Reached::All).unwrap();
        let full = store.stats().layers[1].written_bytes;
        assert!(full > 400_000, "{full}");
        values[777] += 1.0;
        values[40_000] += 1.0;
        session.save(1, &[Part::new("field", &values)]).unwrap();
        session.wait(1, Reached::All).unwrap();
        let added = store.stats().layers[1].written_bytes - full;
        assert!(added <= 4 * 4096, "{way}: {added} bytes for two changed blocks, a header and an index");
        session.save(2, &[Part::new("field", &values)]).unwrap();
        session.wait(2, Reached::All).unwrap();
        assert_eq!(store.stats().layers[1].written_bytes - full, added, "nothing has changed");
        let mut found = vec![0f64; values.len()];
        session.restore(2, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert_eq!(found, values);
    }
}

fn files(dir: &Path, start: &str) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(start)).collect();
    names.sort();
    names
}

#[test]
fn old_versions_go_and_chains_stay_short() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Retention { keep_last: Some(3), keep_every: Some(10), ..Retention::default() };
    let mut one = session(builder(dir.path()).keep(keep).chain_max(4));
    for version in 0..40 {
        save(&mut one, version);
        if version % 7 == 0 {
            one.wait(version, Reached::All).unwrap();
        }
    }
    one.finish().unwrap();
    let kept = [0, 10, 20, 30, 37, 38, 39];
    for layer in ["near", "far"] {
        let rank = dir.path().join(layer).join("heat/rank-00000");
        assert_eq!(files(&rank, "version").len(), kept.len(), "{:?}", files(&rank, "version"));
        assert!(files(&rank, "pack").len() < 25, "{:?}", files(&rank, "pack"));
        assert!(files(&rank, "").iter().all(|name| !name.ends_with(".draft")));
    }
    let mut two = session(builder(dir.path()).keep(keep));
    assert_eq!(two.versions(), kept);
    for version in kept {
        assert_eq!(restore(&mut two, Some(version)), Some(version));
    }
    let catalog = outcrop::catalog::Catalog::open(&dir.path().join("near")).unwrap();
    let newest = catalog.versions("heat").unwrap().into_iter().next_back().unwrap();
    let manifest = &newest.manifests[&0];
    assert!(manifest.packs.len() <= 6, "{} packs make up the newest version", manifest.packs.len());
}

#[test]
fn every_way_to_store_blocks_gives_them_back() {
    let dir = tempfile::tempdir().unwrap();
    type Way = fn(StoreBuilder) -> StoreBuilder;
    let ways: [(&str, Way); 10] = [
        ("lz4", |builder| builder.compression(Compression::Lz4)),
        ("zstd", |builder| builder.compression(Compression::Zstd(3)).block("64 KiB")),
        ("small", |builder| builder.block(256)),
        ("large", |builder| builder.block("16 MiB").host("64 MiB")),
        ("blake3", |builder| builder.hash(HashKind::Blake3)),
        ("md5", |builder| builder.hash(HashKind::Md5)),
        ("inside", |builder| builder.dedup(Dedup::Inside)),
        ("certain", |builder| builder.certain(true).dedup(Dedup::Inside)),
        ("live", |builder| builder.live("4 MiB").chain_max(3)),
        ("full", |builder| builder.incremental(false)),
    ];
    for (name, way) in ways {
        let here = dir.path().join(name);
        let mut one = session(way(builder(&here)).chain_max(3));
        (0..12).for_each(|version| save(&mut one, version));
        one.finish().unwrap();
        let mut two = session(way(builder(&here)));
        for version in [11, 0, 5] {
            assert_eq!(restore(&mut two, Some(version)), Some(version), "{name}");
        }
        let verified = outcrop::catalog::Catalog::open(&here.join("far")).unwrap();
        let findings = outcrop::catalog::verify(&verified, None, None, &|_, _| {}).unwrap();
        assert!(!findings.has_damage(), "{name}: {:?}", findings.findings);
    }
}

#[test]
fn equal_blocks_are_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let stored = |name: &str, dedup| {
        let store = builder(&dir.path().join(name)).dedup(dedup).open().unwrap();
        let mut session = store.session("heat").unwrap();
        let same: Vec<u64> = (0..100 * 512).map(|index| index % 512).collect();
        session.save(1, &[Part::new("same", &same), Part::new("again", &same)]).unwrap();
        session.wait(1, Reached::All).unwrap();
        let mut found = vec![0u64; same.len()];
        session.flush().unwrap();
        session.restore(1, &mut [PartMut::new("again", &mut found)]).unwrap();
        assert_eq!(found, same, "a region by itself");
        store.stats().layers[1].written_bytes
    };
    assert!(stored("no", Dedup::Versions) > 800_000);
    assert!(stored("yes", Dedup::Inside) < 40_000);
}

#[test]
fn what_is_excluded_is_neither_saved_nor_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = session(builder(dir.path()));
    session.region("field", RegionOptions { excluded: vec![8192..16_384, 16_384..24_576], ..RegionOptions::default() });
    let values = field(1);
    session.save(1, &[Part::new("field", &values)]).unwrap();
    session.wait(1, Reached::All).unwrap();
    let mut found = vec![7f64; values.len()];
    session.restore(1, &mut [PartMut::new("field", &mut found)]).unwrap();
    assert_eq!(found[..1024], values[..1024]);
    assert!(found[1024..3072].iter().all(|value| *value == 7.0), "left alone");
    assert_eq!(found[3072..], values[3072..]);
}

#[test]
fn a_version_that_does_not_fit_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = session(builder(dir.path()));
    save(&mut session, 5);
    session.wait(5, Reached::Layer(1)).unwrap();
    let mut short = vec![7f64; 10];
    let error = session.restore_latest(&mut [PartMut::new("field", &mut short)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("400000 bytes and not 80"), "{error}");
    assert_eq!(short, [7f64; 10]);
    let mut wrong = vec![7u64; 50_000];
    let error = session.restore_latest(&mut [PartMut::new("field", &mut wrong)]).unwrap_err();
    assert!(error.to_string().contains("holds f64 and not u64"), "{error}");
    let error = session.restore_latest(&mut [PartMut::new("velocity", &mut wrong)]).unwrap_err();
    assert!(error.to_string().contains("no region velocity, only field, step"), "{error}");
    let error = session.restore(4, &mut []).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    let error = session.save(5, &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    let error = session.save(6, &[Part::one("a", &1u8), Part::one("a", &2u8)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let error = session.wait(5, Reached::Layer(3)).unwrap_err();
    assert!(error.to_string().contains("no layer 3"), "{error}");
}

#[test]
fn bad_settings_are_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |builder: StoreBuilder| builder.open().map(drop).unwrap_err().to_string();
    assert!(refused(Store::builder().host("0").dir(dir.path(), None)).contains("the host memory of a store"));
    assert!(refused(Store::builder().host("1 MiB")).contains("directory"));
    assert!(refused(builder(dir.path()).block(1000)).contains("power of two"));
    assert!(refused(builder(dir.path()).compression(Compression::Zstd(99))).contains("level"));
    let store = builder(dir.path()).open().unwrap();
    for name in ["", "a/b", "..", ".hidden", "lock"] {
        assert_eq!(store.session(name).map(drop).unwrap_err().kind(), ErrorKind::Usage, "{name:?}");
    }
}

#[test]
fn a_session_is_one_process_s_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let one = session(builder(dir.path()));
    let error = builder(dir.path()).open().unwrap().session("heat").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(one);
    builder(dir.path()).open().unwrap().session("heat").unwrap();
}

#[test]
fn a_series_can_go_back_and_on_in_another_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(builder(dir.path()));
    (0..10).for_each(|version| save(&mut one, version));
    one.flush().unwrap();
    assert_eq!(restore(&mut one, Some(4)), Some(4));
    assert_eq!(one.versions().len(), 10, "to restore removes nothing");
    save(&mut one, 5);
    assert_eq!(one.versions(), [0, 1, 2, 3, 4, 5]);
    let error = one.save(5, &[Part::one("step", &5u64)]).unwrap_err();
    assert!(error.to_string().contains("rewind"), "{error}");
    one.rewind(Some(4)).unwrap();
    assert_eq!(one.versions(), [0, 1, 2, 3, 4]);
    save(&mut one, 5);
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    assert_eq!(two.versions(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(restore(&mut two, None), Some(5));
}

#[test]
fn a_state_larger_than_host_memory_passes_through_it() {
    let dir = tempfile::tempdir().unwrap();
    let values: Vec<u64> = (0..4_000_000).collect();
    let mut one = session(builder(dir.path()));
    one.save(1, &[Part::new("large", &values)]).unwrap();
    one.save(2, &[Part::new("large", &values)]).unwrap();
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    let mut found = vec![0u64; values.len()];
    assert_eq!(two.restore_latest(&mut [PartMut::new("large", &mut found)]).unwrap().unwrap().version, 2);
    assert_eq!(found, values);
}

#[test]
fn damage_is_passed_over_for_another_layer_and_then_for_an_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(builder(dir.path()).incremental(false));
    (1..=3).for_each(|version| save(&mut one, version));
    one.finish().unwrap();
    let damage = |layer: &str, nth: usize| {
        let rank = dir.path().join(layer).join("heat/rank-00000");
        let path = rank.join(&files(&rank, "pack")[nth]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let latest = || {
        let mut session = session(builder(dir.path()).incremental(false));
        let mut found = vec![0f64; 50_000];
        let restored = session.restore_latest(&mut [PartMut::new("field", &mut found)]);
        restored.map(|restored| {
            let restored = restored.unwrap();
            assert_eq!(found, field(restored.version));
            (restored.version, restored.layer.ends_with("near"), restored.skipped.len())
        })
    };
    assert_eq!(latest().unwrap(), (3, true, 0));
    damage("near", 2);
    assert_eq!(latest().unwrap(), (3, false, 1));
    damage("far", 2);
    assert_eq!(latest().unwrap(), (2, true, 2));
    (0..2).for_each(|nth| damage("near", nth));
    (0..2).for_each(|nth| damage("far", nth));
    let error = latest().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("version 1"), "{error}");
}

#[test]
fn a_live_save_keeps_what_was_there_when_it_was_called() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = session(builder(dir.path()).live("64 MiB").in_flight(3));
    let mut values = vec![0u64; 500_000];
    for version in 1..=6u64 {
        values.iter_mut().for_each(|value| *value = version);
        session.save(version, &[Part::new("values", &values)]).unwrap();
        // The program continues at once, and what it writes now must not be in any version.
        values.iter_mut().rev().for_each(|value| *value = u64::MAX);
    }
    // Memory that is freed right after a save.
    let gone = vec![7u64; 500_000];
    session.save(7, &[Part::new("values", &gone)]).unwrap();
    drop(gone);
    session.flush().unwrap();
    for version in 1..=7u64 {
        session.restore(version, &mut [PartMut::new("values", &mut values)]).unwrap();
        assert!(values.iter().all(|value| *value == version), "version {version}");
    }
}

#[test]
fn regions_may_come_go_and_change_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(builder(dir.path()).chain_max(2));
    let lengths = [1000usize, 5000, 5000, 700, 0, 9000, 9000, 8999, 300];
    let values = |version: u64| -> Vec<u32> {
        (0..lengths[version as usize] as u32).map(|index| index + 10 * version as u32).collect()
    };
    let extra = |version: u64| vec![version as u8; 600];
    for version in 0..lengths.len() as u64 {
        let values = values(version);
        let extra = extra(version);
        let mut parts = vec![Part::new("values", &values)];
        if version % 3 == 0 {
            parts.push(Part::new("extra", &extra));
        }
        one.save(version, &parts).unwrap();
    }
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    for version in 0..lengths.len() as u64 {
        let mut found = vec![0; lengths[version as usize]];
        two.restore(version, &mut [PartMut::new("values", &mut found)]).unwrap();
        assert_eq!(found, values(version), "version {version}");
        let mut found = vec![0; 600];
        let restored = two.restore(version, &mut [PartMut::new("extra", &mut found)]);
        assert_eq!(restored.is_ok(), version % 3 == 0);
        assert!(restored.is_err() || found == extra(version));
    }
}

#[test]
fn it_is_due_when_the_rule_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let never = builder(dir.path()).open().unwrap();
    assert!(!never.due().unwrap(), "without an interval");
    let hour = std::time::Duration::from_secs(3600);
    let store = builder(&dir.path().join("due")).interval(Rule::Young, &[hour]).open().unwrap();
    let mut session = store.session("heat").unwrap();
    assert!(store.due().unwrap(), "what it costs is not known yet");
    save(&mut session, 1);
    assert!(!store.due().unwrap());
    let seconds = store.interval_seconds()[0].unwrap();
    assert!(seconds > 0.01 && seconds < 3600.0, "{seconds} s");
    // With an interval of one nanosecond, it is always time to save.
    let hasty = builder(&dir.path().join("hasty")).interval(Rule::Fixed(1), &[hour]).open().unwrap();
    save(&mut hasty.session("heat").unwrap(), 1);
    assert!(hasty.due().unwrap());
}

#[test]
fn what_hardware_writes_can_be_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(400_000).unwrap();
    // Two mappings of one file. A write to the second changes the first without a page fault there,
    // as hardware does. SAFETY: nobody else has the file, and while one of the mappings is written
    // to, the other one is not borrowed.
    let (memory, mut hardware) =
        unsafe { (memmap2::MmapOptions::new().map_mut(&file).unwrap(), memmap2::MmapMut::map_mut(&file).unwrap()) };
    let mut session = session(builder(dir.path()).tracking(Way::Pages));
    session.save(1, &[Part::new("memory", &memory)]).unwrap();
    session.save(2, &[Part::new("memory", &memory)]).unwrap();
    let way = session.tracking("memory").unwrap().way;
    hardware[70_000] = 7;
    session.mark_dirty("memory", 70_000..70_001);
    session.save(3, &[Part::new("memory", &memory)]).unwrap();
    session.flush().unwrap();
    let mut found = vec![0u8; memory.len()];
    session.restore(3, &mut [PartMut::new("memory", &mut found)]).unwrap();
    assert_eq!(found[70_000], 7, "watched by {way}");
    assert_eq!(found[..], memory[..]);
}

#[test]
fn a_state_that_changes_altogether_needs_no_older_packs_and_merges_find_room() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    // Host memory for two and a half states.
    let mut one = session(builder(dir.path()).host("10 MiB").keep(keep).chain_max(2));
    let values = |version: u64, changed: usize| -> Vec<u64> {
        (0..500_000).map(|index| if index < changed { version } else { 0 }).collect()
    };
    for version in 1..=6 {
        one.save(version, &[Part::new("values", &values(version, 500_000))]).unwrap();
    }
    one.finish().unwrap();
    let rank = dir.path().join("near/heat/rank-00000");
    assert!(files(&rank, "pack").len() <= 4, "{:?}", files(&rank, "pack"));
    let mut one = session(builder(dir.path()).host("10 MiB").keep(keep).chain_max(2));
    // Nine tenths change, so every version needs the ones before.
    for version in 7..=14 {
        one.save(version, &[Part::new("values", &values(version, 450_000))]).unwrap();
    }
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    let mut found = vec![0; 500_000];
    two.restore(14, &mut [PartMut::new("values", &mut found)]).unwrap();
    assert_eq!(found, values(14, 450_000));
}

#[test]
fn each_directory_may_keep_other_versions() {
    let dir = tempfile::tempdir().unwrap();
    let last = |count| Retention { keep_last: Some(count), ..Retention::default() };
    let mut session = session(builder(dir.path()).keep(last(4)).keep_on(1, last(2)));
    (0..6).for_each(|version| save(&mut session, version));
    session.finish().unwrap();
    let on = |layer: &str| Catalog::open(&dir.path().join(layer)).unwrap().versions("heat").unwrap();
    let numbers = |layer| on(layer).iter().map(|version| version.version).collect::<Vec<_>>();
    assert_eq!((numbers("near"), numbers("far")), (vec![4, 5], vec![2, 3, 4, 5]));
}

#[test]
fn a_program_can_ask_before_it_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = session(builder(dir.path()));
    assert_eq!(session.latest().unwrap(), None);
    save(&mut session, 7);
    for reached in [Reached::Host, Reached::Here(1), Reached::Here(2), Reached::All] {
        session.wait(7, reached).unwrap();
        assert!(session.has_reached(7, reached).unwrap());
    }
    assert_eq!(session.has_reached(8, Reached::All).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(session.has_reached(7, Reached::Here(3)).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!((session.latest().unwrap(), session.restorable().unwrap()), (Some(7), vec![7]));
    save(&mut session, 8);
    let watch = session.watch();
    std::thread::spawn(move || watch.wait(8, Reached::All)).join().unwrap().unwrap();
    let mut step = 0u64;
    session.read(7, &mut [PartMut::one("step", &mut step)]).unwrap();
    assert_eq!(step, 7);
    assert_eq!(session.read(9, &mut []).unwrap_err().kind(), ErrorKind::Missing);
    let regions = session.regions(7).unwrap();
    let told: Vec<_> = regions.iter().map(|region| (&*region.name, &*region.element, region.bytes)).collect();
    assert_eq!(told, [("field", "f64", 400_000), ("step", "u64", 8)]);
    assert_eq!(session.regions(9).unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn what_is_on_its_way_can_be_restored_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let written = [true, false].map(|is_incremental| {
        let path = dir.path().join(is_incremental.to_string());
        let store = builder(&path).incremental(is_incremental).open().unwrap();
        let mut session = store.session("heat").unwrap();
        for version in 0..20 {
            save(&mut session, version);
            for _ in 0..3 {
                assert_eq!(restore(&mut session, None), Some(version));
            }
        }
        session.finish().unwrap();
        store.stats().layers[1].written_bytes
    });
    assert!(written[0] < written[1] / 2, "it goes on from what it has restored: {written:?}");
}
