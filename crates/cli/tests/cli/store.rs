//! The commands on stores from a user's view: what they print and write, what they do not change,
//! and their exit codes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use outcrop::{Element, MemoryOrder, Part, Session, Store, store::SharedDirectory};
use serde_json::{Value, json};

use crate::common::{entries, outcrop, text};

/// The contents of version `version` of a rank.
fn field(version: u64, rank: u32) -> Vec<f32> {
    let mut field: Vec<f32> = (0..20_000).map(|nth| nth as f32 + rank as f32).collect();
    (0..version).for_each(|version| field[version as usize * 1500] = -1.0);
    field
}

fn save(session: &mut Session, versions: std::ops::Range<u64>, rank: u32) {
    for version in versions {
        let field = field(version, rank);
        let parts = [
            Part::new("field", &field),
            Part::one("step", &version),
            Part::new("flags", &[[1u8, 2, 3]; 5]),
            Part::new("mask", &[7i8; 300]),
        ];
        session.save(version, &parts).unwrap();
    }
    session.flush().unwrap();
}

/// Versions 1 to 4 of two ranks, in the directories `near` and `far`. In `near`, only one rank has
/// version 4.
fn two_layers() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let ranks = SharedDirectory::open_with(path.join("meeting"), rank, 2, Duration::from_secs(60)).unwrap();
                let store = Store::builder()
                    .host("8 MiB")
                    .dir(path.join("near"), None)
                    .dir(path.join("far"), None)
                    .ranks(ranks)
                    .block("4 KiB")
                    .pin(false)
                    .open()
                    .unwrap();
                let mut session = store.session("heat").unwrap();
                save(&mut session, 1..5, rank);
                session.finish().unwrap();
            });
        }
    });
    fs::remove_file(path.join("near/heat/rank-00001/version-00000000000000000004")).unwrap();
    directory
}

/// Versions 1 to `count` - 1 of one rank, in the directory `store`.
fn one_layer(count: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder().host("8 MiB").dir(directory.path().join("store"), None).block("4 KiB").pin(false);
    let mut session = store.open().unwrap().session("heat").unwrap();
    save(&mut session, 1..count, 0);
    session.finish().unwrap();
    directory
}

/// All files below a directory, with their contents.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else {
            files.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    files
}

fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    let output = outcrop(directory, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json_of(directory: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(directory, arguments)).unwrap()
}

fn fails(directory: &Path, arguments: &[&str], code: i32, words: &str) {
    let output = outcrop(directory, arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    assert!(message.contains(words), "{arguments:?}: {message}");
}

fn bytes_of<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

#[test]
fn listings_say_what_is_there_and_where_and_change_nothing() {
    let directory = two_layers();
    let path = directory.path();
    let before = tree(path);
    let listed = json_of(path, &["ls", "near", "far", "--json"]);
    let versions: Vec<_> = listed["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version| (version["version"].as_u64().unwrap(), version["states"].clone()))
        .collect();
    let complete = json!(["complete", "complete"]);
    let expected =
        [(1, complete.clone()), (2, complete.clone()), (3, complete), (4, json!(["1 of 2 ranks", "complete"]))];
    assert_eq!(versions, expected);
    let full_bytes = 2 * (80_000 + 8 + 15 + 300);
    for version in 0..4 {
        assert_eq!(listed["versions"][version]["full_bytes"], full_bytes, "also where one directory has only a part");
    }
    let table = succeeds(path, &["ls", "near", "far"]);
    for words in ["heat", "near", "far", "1 of 2 ranks", "complete", "156.9 KiB"] {
        assert!(table.contains(words), "{words} is not in {table}");
    }

    let shown = json_of(path, &["show", "far", "heat", "--json"]);
    assert_eq!(shown.as_array().unwrap().len(), 4);
    let version = &json_of(path, &["show", "far", "heat", "latest", "--json"])[0];
    assert_eq!(version["version"], 4);
    let regions = &version["manifests"][1]["regions"];
    assert_eq!(regions[0]["region"], "field");
    assert_eq!((&regions[0]["element"], &regions[0]["block_bytes"]), (&json!("f32"), &json!(4096)));
    assert!(!version["manifests"][1]["packs"].as_array().unwrap().is_empty());
    let table = succeeds(path, &["show", "near", "heat", "4"]);
    for words in ["1 of 2 ranks", "field", "20000", "xxh3", "own"] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    succeeds(path, &["show", "near", "heat"]);

    let used = json_of(path, &["du", "near", "far", "--json"]);
    assert_eq!(used[1]["full_bytes"], 4 * full_bytes);
    let stored = used[1]["stored_bytes"].as_u64().unwrap();
    assert!(stored > full_bytes / 2 && stored < 2 * full_bytes, "{stored}");
    assert!(succeeds(path, &["du", "far"]).contains("factor"));
    assert_eq!(tree(path), before);
}

#[test]
fn verify_finds_a_changed_bit_and_says_what_it_harms() {
    let directory = two_layers();
    let path = directory.path();
    let sound = json_of(path, &["verify", "far", "--json"]);
    assert_eq!((&sound["is_damaged"], &sound["manifests"]), (&json!(false), &json!(8)));
    assert!(succeeds(path, &["verify", "far", "heat", "3"]).contains("no damage"));
    let pack = path.join("far/heat/rank-00001/pack-00000000000000000000");
    let pack = if pack.exists() { pack } else { path.join("far/heat/rank-00001/pack-00000000000000000001") };
    let mut bytes = fs::read(&pack).unwrap();
    bytes[4096 + 50] ^= 0x10;
    fs::write(&pack, bytes).unwrap();
    let before = tree(path);
    fails(path, &["verify", "far"], 16, "is damaged");
    let output = outcrop(path, &["verify", "far", "heat", "--json"]);
    assert_eq!(output.status.code(), Some(16));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "damaged");
    assert!(finding["file"].as_str().unwrap().starts_with("heat/rank-00001/pack-"), "{report}");
    let bytes = [finding["bytes"][0].as_u64().unwrap(), finding["bytes"][1].as_u64().unwrap()];
    assert!(bytes[0] <= 4146 && 4146 < bytes[1], "{report}");
    assert!(finding["harms"].as_array().unwrap().iter().all(|harm| harm["rank"] == 1 && harm["region"] == "field"));
    let lines = text(&outcrop(path, &["verify", "far"]).stdout);
    assert!(lines.contains("affects version") && lines.contains("region field"), "{lines}");
    // Damaged regions are not written, and undamaged ones are.
    fails(path, &["restore", "far", "heat", "1", "--to", "out"], 16, "rank 1, region \"field\"");
    assert!(!path.join("out/rank-00001").exists() || entries(&path.join("out/rank-00001")).is_empty());
    fs::remove_dir_all(path.join("out")).unwrap();
    succeeds(path, &["restore", "far", "heat", "1", "--to", "out", "--rank", "0"]);
    fs::remove_dir_all(path.join("out")).unwrap();
    assert_eq!(tree(path), before);
}

#[test]
fn differences_are_those_that_were_made() {
    let directory = two_layers();
    let path = directory.path();
    for extra in [&["--json"][..], &["--json", "--certain"]] {
        let compared = json_of(path, &[&["diff", "far", "heat", "2", "latest"], extra].concat());
        assert_eq!((&compared["before"], &compared["after"]), (&json!(2), &json!(4)));
        let regions = compared["regions"].as_array().unwrap();
        assert_eq!(regions.len(), 8);
        for region in regions {
            let (change, blocks) = match region["region"].as_str().unwrap() {
                "field" => ("changed", 2),
                "step" => ("changed", 1),
                _ => ("same", 0),
            };
            assert_eq!((&region["change"], &region["blocks_changed"]), (&json!(change), &json!(blocks)), "{region}");
        }
    }
    assert!(succeeds(path, &["diff", "far", "heat", "1", "3"]).contains("2 of 20"));
}

#[test]
fn restored_files_have_the_bytes_that_were_saved() {
    let directory = two_layers();
    let path = directory.path();
    succeeds(path, &["restore", "far", "heat", "--to", "out"]);
    for rank in 0..2 {
        let out = path.join(format!("out/rank-{rank:05}"));
        assert_eq!(entries(&out), ["field.bin", "flags.bin", "mask.bin", "step.bin"]);
        assert!(
            fs::read(out.join("field.bin")).unwrap()
                == bytes_of(field(4, rank).iter().map(|value| value.to_le_bytes()))
        );
        assert_eq!(fs::read(out.join("step.bin")).unwrap(), 4u64.to_le_bytes());
    }
    // The newest complete version of the other directory is an older one.
    let written =
        json_of(path, &["restore", "near", "heat", "--to", "one", "--rank", "1", "--region", "step", "--json"]);
    assert_eq!(written["version"], 3);
    assert_eq!(entries(&path.join("one")), ["rank-00001"]);
    assert_eq!(entries(&path.join("one/rank-00001")), ["step.bin"]);
    assert_eq!(fs::read(path.join("one/rank-00001/step.bin")).unwrap(), 3u64.to_le_bytes());
    // Nothing is replaced without --force.
    fs::write(path.join("out/rank-00001/step.bin"), "mine").unwrap();
    fails(path, &["restore", "far", "heat", "1", "--to", "out"], 11, "--force");
    assert_eq!(fs::read(path.join("out/rank-00000/step.bin")).unwrap(), 4u64.to_le_bytes());
    assert_eq!(fs::read(path.join("out/rank-00001/step.bin")).unwrap(), b"mine");
    succeeds(path, &["restore", "far", "heat", "1", "--to", "out", "--force"]);
    assert_eq!(fs::read(path.join("out/rank-00001/step.bin")).unwrap(), 1u64.to_le_bytes());
}

#[test]
fn exported_files_are_npy_where_there_are_numbers() {
    let directory = one_layer(3);
    let path = directory.path();
    let written = json_of(path, &["export", "store", "heat", "2", "--to", "out", "--json"]);
    let out = path.join("out/rank-00000");
    assert_eq!(entries(&out), ["field.npy", "flags.bin", "mask.npy", "step.npy"]);
    for (name, kind, shape) in [("field", "'<f4'", "(20000,)"), ("mask", "'|i1'", "(300,)"), ("step", "'<u8'", "()")] {
        let bytes = fs::read(out.join(format!("{name}.npy"))).unwrap();
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
        let head_end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!(head_end.is_multiple_of(64) && bytes[head_end - 1] == b'\n');
        let head = text(&bytes[10..head_end]);
        assert!(head.contains(kind) && head.contains(shape) && head.contains("'fortran_order': False"), "{head}");
        if name == "field" {
            assert!(bytes[head_end..] == bytes_of(field(2, 0).iter().map(|value| value.to_le_bytes())));
        }
    }
    assert_eq!(fs::read(out.join("flags.bin")).unwrap(), [1, 2, 3].repeat(5));
    let flags = written["files"].as_array().unwrap().iter().find(|file| file["region"] == "flags").unwrap();
    assert!(flags["note"].as_str().unwrap().contains("elements of 3 bytes"), "{flags}");
}

#[test]
fn shapes_are_shown_and_exported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = Store::builder().host(4u64 << 20).pin(false).dir(path.join("store"), None).open().unwrap();
    let mut session = store.session("heat").unwrap();
    let field: Vec<f64> = (0..512 * 512).map(f64::from).collect();
    let turned = Part::new("turned", &field).shaped(&[256, 1024]).in_order(MemoryOrder::ColumnMajor);
    let times = Part::of("times", Element::other("numpy:'<M8[s]'", 8), &[1; 24]);
    let title = Part::of("title", Element::named("text").unwrap(), "Wärme".as_bytes());
    let half = Part::boxed("half", &field, &[1024, 512], &[512, 0]);
    session.save(1, &[Part::new("field", &field).shaped(&[512, 512]), turned, times, title, half]).unwrap();
    session.finish().unwrap();
    let shown = json_of(path, &["show", "store", "heat", "latest", "--json"]);
    let regions = &shown[0]["manifests"][0]["regions"];
    assert_eq!((&regions[0]["shape"], &regions[0]["order"]), (&json!([512, 512]), &json!("C")));
    assert_eq!((&regions[1]["shape"], &regions[1]["order"]), (&json!([256, 1024]), &json!("F")));
    assert_eq!(regions[4]["global"], json!({ "shape": [1024, 512], "offset": [512, 0] }));
    let table = succeeds(path, &["show", "store", "heat", "1"]);
    assert!(
        table.contains("256 x 1024, column-major") && table.contains("512 x 512 at (512, 0) of 1024 x 512"),
        "{table}"
    );
    // The other half was not saved.
    succeeds(path, &["export", "store", "heat", "--to", "out", "--allow-holes"]);
    let half = fs::read(path.join("out/half.npy")).unwrap();
    assert!(half[10..].starts_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1024, 512), }"));
    let out = path.join("out/rank-00000");
    let heads = [
        ("field", "{'descr': '<f8', 'fortran_order': False, 'shape': (512, 512), }"),
        ("turned", "{'descr': '<f8', 'fortran_order': True, 'shape': (256, 1024), }"),
        ("times", "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (3,), }"),
    ];
    for (name, head) in heads {
        let bytes = fs::read(out.join(format!("{name}.npy"))).unwrap();
        assert!(bytes[10..].starts_with(head.as_bytes()), "{}", text(&bytes[10..138]));
    }
    assert_eq!(fs::read_to_string(out.join("title.txt")).unwrap(), "Wärme");
}

#[test]
fn prune_removes_what_is_not_kept_and_nothing_that_is_needed() {
    let directory = one_layer(13);
    let path = directory.path();
    let before = tree(path);
    let prune = ["prune", "store", "heat", "--keep-last", "2", "--keep-every", "5"];
    let planned = json_of(path, &[&prune[..], &["--dry-run", "--json"]].concat());
    assert_eq!(planned["versions"], json!([1, 2, 3, 4, 6, 7, 8, 9]));
    assert_eq!(tree(path), before, "that was only a question");
    // Files that crashed programs have left.
    let rank = path.join("store/heat/rank-00000");
    fs::write(rank.join("pack-00000000000000099999"), [1; 5000]).unwrap();
    fs::write(rank.join("version-00000000000000000099.draft"), "half").unwrap();
    assert!(succeeds(path, &["verify", "store"]).contains("garbage"));
    let printed = succeeds(path, &prune);
    assert!(printed.contains("version 9") && printed.contains("8 versions"), "{printed}");
    let listed = json_of(path, &["ls", "store", "--json"]);
    let left: Vec<_> =
        listed["versions"].as_array().unwrap().iter().map(|version| version["version"].as_u64()).collect();
    assert_eq!(left, [Some(5), Some(10), Some(11), Some(12)]);
    assert_eq!(json_of(path, &["verify", "store", "--json"])["findings"], json!([]));
    for version in ["5", "12"] {
        succeeds(path, &["restore", "store", "heat", version, "--to", version]);
        let bytes = fs::read(path.join(version).join("rank-00000/field.bin")).unwrap();
        let expected = field(version.parse().unwrap(), 0);
        assert!(bytes == bytes_of(expected.iter().map(|value| value.to_le_bytes())), "version {version}");
    }
    assert!(succeeds(path, &prune).contains("nothing to remove"));
    assert!(succeeds(path, &["prune", "store", "heat", "--keep-for", "7d"]).contains("nothing to remove"));
    // The store can continue from there.
    let store = Store::builder().host("8 MiB").dir(path.join("store"), None).block("4 KiB").pin(false);
    let mut session = store.open().unwrap().session("heat").unwrap();
    save(&mut session, 13..14, 0);
    fails_while_in_use(path, &prune);
    session.finish().unwrap();
    assert!(!succeeds(path, &["verify", "store"]).contains("garbage"));
}

#[test]
fn a_script_is_told_whether_it_is_time_to_save() {
    let directory = one_layer(4);
    let path = directory.path();
    let before = tree(path);
    let code = |session: &str, rest: &[&str]| {
        let output = outcrop(path, &[&["due", "store", session][..], rest].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (not_yet, said) = code("heat", &["--every", "1h"]);
    assert!(not_yet == Some(3) && said.starts_with("not due: version 3 is "), "{said}");
    let (now, said) = code("heat", &["--every", "0s"]);
    assert!(now == Some(0) && said.starts_with("due: version 3 is "), "{said}");
    let (never, said) = code("other", &["--every", "1h"]);
    assert!(never == Some(0) && said.contains("other has no complete version in store"), "{said}");
    // The square root of 2 * 2 s * 10,000 s.
    let young = ["due", "store", "heat", "--failures", "10000s", "--cost", "2s", "--rule", "young", "--json"];
    let output = outcrop(path, &young);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &told["is_due"], &told["version"]), (Some(3), &json!(false), &json!(3)));
    assert!((told["interval_seconds"].as_f64().unwrap() - 200.0).abs() < 1e-6, "{told}");
    fails(path, &["due", "store", "heat"], 2, "required");
    fails(path, &["due", "store", "heat", "--failures", "1h"], 2, "--cost");
    fails(path, &["due", "nowhere", "heat", "--every", "1h"], 17, "nowhere");
    assert_eq!(tree(path), before);
}

fn fails_while_in_use(path: &Path, prune: &[&str]) {
    let before = entries(&path.join("store/heat/rank-00000"));
    let output = outcrop(path, prune);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("in use"), "{}", text(&output.stderr));
    assert_eq!(entries(&path.join("store/heat/rank-00000")), before);
}

#[test]
fn a_damaged_manifest_stops_prune_and_nothing_else() {
    let directory = one_layer(5);
    let path = directory.path();
    let manifest = path.join("store/heat/rank-00000/version-00000000000000000002");
    fs::write(&manifest, "nonsense").unwrap();
    let before = tree(path);
    fails(path, &["prune", "store", "heat", "--keep-last", "1"], 16, "nothing was removed");
    assert_eq!(tree(path), before);
    assert!(succeeds(path, &["ls", "store"]).contains("damaged"));
    assert!(succeeds(path, &["show", "store", "heat", "2"]).contains("damaged"));
    fails(path, &["restore", "store", "heat", "2", "--to", "out"], 12, "the complete versions are: 1, 3, 4");
    succeeds(path, &["restore", "store", "heat", "3", "--to", "out"]);
    fails(path, &["verify", "store"], 16, "is damaged");
}

#[test]
fn what_is_not_there_is_explained() {
    let directory = one_layer(3);
    let path = directory.path();
    fs::create_dir(path.join("empty")).unwrap();
    fs::write(path.join("file"), "").unwrap();
    let before = entries(path);
    let cases: [(&[&str], &str); 14] = [
        (&["ls", "none"], "cannot open the store none"),
        (&["ls", "file"], "cannot open the store file"),
        (&["ls", "empty"], "empty has no sessions"),
        (&["du", "empty"], "empty has no sessions"),
        (&["verify", "empty"], "empty has no sessions"),
        (&["show", "store", "cold"], "the sessions are: heat"),
        (&["show", "store", "heat", "9"], "the complete versions are: 1, 2"),
        (&["verify", "store", "heat", "9"], "the complete versions are: 1, 2"),
        (&["diff", "store", "heat", "1", "9"], "the complete versions are: 1, 2"),
        (&["restore", "store", "heat", "9", "--to", "out"], "the complete versions are: 1, 2"),
        (&["restore", "store", "heat", "--to", "out", "--region", "x"], "the regions are: field, flags, mask, step"),
        (&["restore", "store", "heat", "--to", "out", "--rank", "7"], "no rank 7"),
        (&["restore", "store", "heat", "--to", "file/x"], "cannot write file/x"),
        (&["prune", "store", "heat"], "--keep-last"),
    ];
    for (arguments, words) in cases {
        let output = outcrop(path, arguments);
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert_eq!(entries(path), before, "{arguments:?}");
    }
    fails(path, &["show", "store", "cold"], 12, "cold");
    fails(path, &["show", "store", "heat", "nonsense"], 2, "latest");
    // One directory with a session is enough.
    assert!(succeeds(path, &["ls", "empty", "store"]).contains("heat"));
}
