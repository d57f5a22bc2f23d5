//! What a crash can leave and what it cannot, for logs that are short enough to list it.

use std::collections::{BTreeMap, BTreeSet};

use outcrop_crash::{Classes, Error, Image, ImageId, Options, Recording, Tree, check, check_classes};
use outcrop_layers::files::Files;

use crate::common::pattern;

/// Every subset, and no torn writes.
const WHOLE: Options = Options { subset_operations_max: 20, samples: 0, seed: 0 };

/// The files of a tree, with their bytes as text.
fn texts(tree: &Tree) -> BTreeMap<String, String> {
    tree.files().map(|(name, bytes)| (name.to_owned(), String::from_utf8_lossy(bytes).into_owned())).collect()
}

/// Everything that a crash at the end of a recording can leave.
fn left(recording: &Recording, options: &Options) -> BTreeSet<Vec<String>> {
    let end = format!("end after {} steps", recording.log().steps());
    recording.mark(&*end);
    let log = recording.log();
    let is_at_end = |image: &Image<'_>| image.marks().last() == Some(&end);
    let describe = |image: Image<'_>| texts(image.tree()).iter().map(|(name, text)| format!("{name}={text}")).collect();
    log.images(options).filter(is_at_end).map(describe).collect()
}

fn set(images: &[&[&str]]) -> BTreeSet<Vec<String>> {
    images.iter().map(|image| image.iter().map(|file| (*file).to_owned()).collect()).collect()
}

fn write(files: &dyn Files, name: &str, text: &str) {
    files.create(name, 0).unwrap().write_at(0, text.as_bytes()).unwrap();
}

fn write_synced(files: &dyn Files, name: &str, text: &str) {
    write(files, name, text);
    files.open(name).unwrap().sync().unwrap();
}

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (name, text) in files {
        tree.put(name, *text);
    }
    tree
}

#[test]
fn what_was_not_synced_is_there_in_part_or_not_at_all() {
    let recording = Recording::new();
    let file = recording.create("a", 0).unwrap();
    file.write_at(0, b"12").unwrap();
    file.write_at(2, b"34").unwrap();
    let any = set(&[&[], &["a="], &["a=12"], &["a=\0\x0034"], &["a=1234"]]);
    assert_eq!(left(&recording, &WHOLE), any);
    recording.sync_dir("").unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["a="], &["a=12"], &["a=\0\x0034"], &["a=1234"]]));
    file.sync().unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["a=1234"]]));
}

#[test]
fn a_file_without_its_directory_is_absent_or_whole() {
    let recording = Recording::new();
    write_synced(&recording, "a", "1234");
    assert_eq!(left(&recording, &WHOLE), set(&[&[], &["a=1234"]]));
    let recording = Recording::new();
    recording.make_dir("dir").unwrap();
    write_synced(&recording, "dir/a", "1234");
    recording.sync_dir("dir").unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&[], &["dir/a=1234"]]), "the directory itself is not durable");
    recording.sync_dir("").unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["dir/a=1234"]]));
}

#[test]
fn a_sync_is_for_one_file_and_for_what_came_before() {
    let recording = Recording::from_tree(tree(&[("a", "a"), ("b", "b")]));
    let (a, b) = (recording.create("a", 0).unwrap(), recording.create("b", 0).unwrap());
    a.write_at(0, b"A").unwrap();
    b.write_at(0, b"B").unwrap();
    a.sync().unwrap();
    a.write_at(1, b"!").unwrap();
    let found = left(&recording, &WHOLE);
    assert_eq!(
        found,
        set(&[&["a=A", "b=b"], &["a=A", "b="], &["a=A", "b=B"], &["a=A!", "b=b"], &["a=A!", "b="], &["a=A!", "b=B"]])
    );
}

#[test]
fn a_rename_happens_wholly_or_not_at_all() {
    let recording = Recording::from_tree(tree(&[("draft", "new"), ("name", "old")]));
    recording.rename("draft", "name").unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["draft=new", "name=old"], &["name=new"]]));
    recording.sync_dir("").unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["name=new"]]));
}

#[test]
fn a_rename_between_directories_needs_both_to_be_synced() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let recording = Recording::from_tree(tree(&[("a/file", "x"), ("b/other", "y")]));
        recording.rename("a/file", "b/file").unwrap();
        let either = set(&[&["a/file=x", "b/other=y"], &["b/file=x", "b/other=y"]]);
        assert_eq!(left(&recording, &WHOLE), either);
        recording.sync_dir(first).unwrap();
        assert_eq!(left(&recording, &WHOLE), either);
        recording.sync_dir(second).unwrap();
        assert_eq!(left(&recording, &WHOLE), set(&[&["b/file=x", "b/other=y"]]));
    }
}

#[test]
fn a_rename_takes_its_own_file_and_no_other() {
    let recording = Recording::from_tree(tree(&[("draft", "1")]));
    recording.rename("draft", "a").unwrap();
    write_synced(&recording, "draft", "2");
    recording.rename("draft", "b").unwrap();
    let first_is_lost = set(&[&["b=2", "draft=1"]]);
    assert!(left(&recording, &WHOLE).is_superset(&first_is_lost), "the first file keeps its name");
}

#[test]
fn names_are_lost_apart_from_each_other() {
    let recording = Recording::from_tree(tree(&[("a", "1"), ("b", "2"), ("dir/c", "3")]));
    recording.remove("a").unwrap();
    recording.rename("b", "d").unwrap();
    recording.remove("dir/c").unwrap();
    recording.remove_dir("dir").unwrap();
    let found = left(&recording, &WHOLE);
    for image in [&["a=1", "d=2", "dir/c=3"][..], &["b=2"], &["d=2"], &["a=1", "b=2"], &["a=1", "b=2", "dir/c=3"]] {
        assert!(found.contains(&image.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>()), "{image:?}");
    }
    assert_eq!(found.len(), 8);
}

#[test]
fn emptying_a_file_can_be_lost_while_later_writes_are_not() {
    let recording = Recording::from_tree(tree(&[("a", "long ago")]));
    write(&recording, "a", "now");
    assert_eq!(left(&recording, &WHOLE), set(&[&["a=long ago"], &["a="], &["a=now"], &["a=nowg ago"]]));
}

#[test]
fn what_a_failed_sync_forgot_stays_in_doubt_and_keeps_its_place() {
    use outcrop_crash::{Errno, Failing, Fault, Operation};
    let recording = Recording::from_tree(tree(&[("a", "....")]));
    let failing = Failing::over(recording.clone());
    let file = failing.create("a", 0).unwrap();
    file.write_at(0, b"....").unwrap();
    file.sync().unwrap();
    failing.inject(Fault { of: Some(Operation::Sync), ..Fault::new(Errno::IO) });
    file.write_at(0, b"ab").unwrap();
    file.sync().unwrap_err();
    file.write_at(1, b"XY").unwrap();
    file.sync().unwrap();
    assert_eq!(left(&recording, &WHOLE), set(&[&["a=.XY."], &["a=aXY."]]), "later bytes lie over forgotten ones");
    failing.inject(Fault { of: Some(Operation::SyncDir), ..Fault::new(Errno::IO) });
    failing.rename("a", "b").unwrap();
    failing.sync_dir("").unwrap_err();
    failing.sync_dir("").unwrap();
    write_synced(&failing, "c", "");
    failing.sync_dir("").unwrap();
    let names: BTreeSet<_> = left(&recording, &WHOLE).into_iter().map(|image| image[0][..2].to_owned()).collect();
    assert_eq!(names, ["a=".to_owned(), "b=".to_owned()].into());
}

#[test]
fn writes_are_torn_at_sectors() {
    let recording = Recording::new();
    let file = recording.create("file", 0).unwrap();
    let (before, after) = (vec![b'-'; 1700], vec![b'+'; 2400]);
    file.write_at(0, &before).unwrap();
    file.sync().unwrap();
    recording.sync_dir("").unwrap();
    file.write_at(300, &after).unwrap();
    recording.mark("end");
    let (mut shapes, mut has_zeros, mut has_garbage) = (BTreeSet::new(), false, false);
    let log = recording.log();
    for image in log.images(&Options { samples: 2000, ..WHOLE }).filter(|image| !image.marks().is_empty()) {
        let bytes = image.tree().bytes("file").unwrap();
        assert!((1700..=2700).contains(&bytes.len()), "{}: {} bytes", image.id(), bytes.len());
        assert_eq!(&bytes[..300], &before[..300], "what is before the write stays");
        let mut shape = String::new();
        // The sectors of the file. The first one begins inside the write, and one is partly in what
        // was there before.
        for range in [300..512, 512..1024, 1024..1536, 1536..1700, 1700..2048, 2048..2560, 2560..2700] {
            let piece = &bytes[range.start.min(bytes.len())..range.end.min(bytes.len())];
            let kind = match piece.first() {
                None => ' ',
                Some(_) if piece.len() < range.len() => panic!("{}: ends inside a sector", image.id()),
                Some(first @ (b'-' | b'+' | 0)) if piece.iter().all(|byte| byte == first) => char::from(*first),
                Some(_) => '?',
            };
            assert!(
                kind != '?' || range.start >= 1700,
                "{}: a sector that was there is neither old nor new",
                image.id()
            );
            has_zeros |= kind == '\0';
            has_garbage |= kind == '?';
            shape.push(kind);
        }
        assert_eq!(&shape[3..4] == "+", &shape[4..5] == "+", "one sector is one sector");
        shapes.insert(shape);
    }
    assert!(has_zeros && has_garbage);
    for wanted in ["----   ", "+++++++", "++--   ", "+--++  ", "----\0\0\0"] {
        assert!(shapes.contains(wanted), "{wanted:?} is missing in {shapes:?}");
    }
}

#[test]
fn a_long_write_can_end_early() {
    let recording = Recording::from_tree(tree(&[("file", "")]));
    recording.create("file", 0).unwrap().write_at(0, &[b'+'; 64 * 512]).unwrap();
    let log = recording.log();
    let is_prefix = |bytes: &[u8]| bytes.iter().all(|byte| *byte == b'+') && (5000..25_000).contains(&bytes.len());
    assert!(log.images(&Options { samples: 200, ..WHOLE }).any(|image| is_prefix(image.tree().bytes("file").unwrap())));
}

#[test]
fn images_come_with_the_marks_before_the_crash() {
    let recording = Recording::from_tree(tree(&[("a", "0")]));
    recording.mark("first");
    recording.rename("a", "b").unwrap();
    recording.mark("second");
    let log = recording.log();
    assert_eq!(log.marks(), ["first", "second"]);
    let found: Vec<_> = log
        .images(&WHOLE)
        .map(|image| (texts(image.tree()).into_keys().collect::<String>(), image.marks().len()))
        .collect();
    let wanted = [("a", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)];
    assert_eq!(found, wanted.map(|(name, marks)| (name.to_owned(), marks)));
    let report = check(&log, &WHOLE, |_, _| Ok(()));
    assert_eq!((report.images, report.opened), (5, 5), "other marks make other images");
}

#[test]
fn equal_images_are_tried_once() {
    let recording = Recording::new();
    let file = recording.create("a", 0).unwrap();
    for _ in 0..3 {
        file.write_at(0, b"same").unwrap();
    }
    let mut tried = 0;
    let report = check(&recording.log(), &WHOLE, |_, _| {
        tried += 1;
        Ok(())
    });
    assert_eq!((report.images, report.opened, tried), (3, 3, 3));
}

#[test]
fn of_images_that_a_reader_cannot_tell_apart_one_is_opened() {
    let recording = Recording::new();
    for name in ["a", "b", "c"] {
        recording.create(name, 0).unwrap();
        recording.sync_dir("").unwrap();
    }
    let classes = Classes::default();
    let mut opened = Vec::new();
    let mut check = |names_min: usize| {
        // Only the number of files is observable.
        let look = |image: &Image<'_>| match image.tree().files().count() {
            count if count >= names_min => Ok(count as u64),
            count => Err(format!("{count} files")),
        };
        let open = |image: &Image<'_>| {
            opened.push(image.tree().files().count());
            Ok(())
        };
        check_classes(&recording.log(), &WHOLE, &classes, look, open)
    };
    let report = check(0);
    assert_eq!(report.to_string(), "crash images: 4, observable: 4, opened: 4, lost: 0");
    let again = check(0);
    assert_eq!(again.to_string(), "crash images: 4, observable: 0, opened: 0, lost: 0", "in another log neither");
    let failed = check(1);
    assert_eq!(failed.failure.as_ref().map(|failure| failure.reason.as_str()), Some("0 files"), "all are looked at");
    assert_eq!((opened, classes.count()), (vec![0, 1, 2, 3], 4));
    let mut both = report;
    both.add(failed);
    assert_eq!(both.to_string(), "crash images: 5, observable: 4, opened: 4, lost: 1");
}

#[test]
fn short_windows_have_every_subset_and_long_ones_a_sample() {
    let recording = Recording::new();
    for index in 0..6 {
        recording.make_dir(&format!("dir-{index}")).unwrap();
    }
    let log = recording.log();
    assert_eq!(log.images(&WHOLE).count(), 64);
    assert_eq!(log.images(&Options { samples: 100, ..WHOLE }).count(), 64, "no sample of what is complete");
    let options = Options { subset_operations_max: 4, samples: 10, seed: 3 };
    assert_eq!(log.images(&options).count(), 16 + (2 + 2 * 5 + 10) + (2 + 2 * 6 + 10));
}

#[test]
fn an_image_can_be_had_again_by_its_name() {
    let recording = Recording::from_tree(tree(&[("dir/a", "0")]));
    let file = recording.create("dir/a", 0).unwrap();
    for index in 0..8_u8 {
        file.write_at(u64::from(index) * 400, &pattern(index, 1200)).unwrap();
    }
    recording.rename("dir/a", "dir/b").unwrap();
    let log = recording.log();
    let again = recording.log();
    for options in [Options::default(), Options { subset_operations_max: 3, samples: 8, seed: 9 }] {
        let mut kinds = BTreeSet::new();
        for image in log.images(&options) {
            let name = image.id().to_string();
            let id: ImageId = name.parse().unwrap();
            assert_eq!(id, image.id(), "{name}");
            let same = again.image(id).unwrap();
            assert!(same.tree() == image.tree() && same.marks() == image.marks(), "{name}");
            kinds.insert(name.split(['/', '-']).nth(1).unwrap().to_owned());
        }
        assert!(kinds.len() >= 3, "{kinds:?}");
    }
    let ids = |seed| log.images(&Options { seed, ..Options::default() }).map(|image| image.id()).collect::<Vec<_>>();
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(1), ids(2));
}

#[test]
fn a_name_that_is_none_is_refused() {
    let recording = Recording::new();
    recording.make_dir("dir").unwrap();
    let log = recording.log();
    let name = log.images(&WHOLE).last().unwrap().id().to_string();
    let digest = name.rsplit('/').next().unwrap().to_owned();
    for wrong in
        ["", "1", "1/all", "x/all/0", "1/some/0", "1/all-3/0", "1/subset-/0", "1/only-x/0", "1/all/0/0", "-1/all/0"]
    {
        assert_eq!(wrong.parse::<ImageId>(), Err(Error::NotAnId(wrong.to_owned())));
    }
    let beyond = ["2/all", "1/subset-2", "1/only-1", "1/except-7", "0/only-0", "1/subset-ffffffff"];
    for wrong in beyond.map(|wrong| format!("{wrong}/{digest}")) {
        assert_eq!(log.image(wrong.parse().unwrap()).err(), Some(Error::NoSuchImage(wrong.clone())), "{wrong}");
        assert!(log.story(wrong.parse().unwrap()).is_err());
    }
    recording.mark("one step more");
    let other = recording.log();
    assert_eq!(other.image(name.parse().unwrap()).err(), Some(Error::OtherLog(name)));
}

#[test]
fn a_story_tells_what_became_of_every_operation() {
    let recording = Recording::new();
    write_synced(&recording, "sure", "!");
    recording.sync_dir("").unwrap();
    write(&recording, "a", "bytes");
    recording.remove("sure").unwrap();
    let log = recording.log();
    let last = log.images(&WHOLE).find(|image| image.id().to_string().contains("subset-5")).unwrap();
    let story = log.story(last.id()).unwrap();
    let wanted = "crash after step 7: remove sure\n  happened  create a\n  lost      write 5 bytes to a at 0\n  happened  remove sure";
    assert_eq!(story, wanted);
    assert!(format!("{log:?}").contains("4  sync the directory \"\"\n    5  create a\n"), "{log:?}");
}

/// Random operations: what was synced is in every image, and when everything is synced there is
/// only one.
#[test]
fn what_was_synced_is_never_lost() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let recording = Recording::new();
        for dir in ["kept", "changed"] {
            recording.make_dir(dir).unwrap();
            recording.sync_dir("").unwrap();
        }
        for _ in 0..20 {
            change(&recording, "kept", &mut random);
        }
        sync_all(&recording, "kept");
        recording.mark("kept is synced");
        let wanted = texts(&recording.tree());
        for _ in 0..12 {
            change(&recording, "changed", &mut random);
        }
        let log = recording.log();
        let options = Options { subset_operations_max: 5, samples: 20, seed };
        check(&log, &options, |image, marks| {
            let mut found = texts(image.tree());
            found.retain(|name, _| name.starts_with("kept"));
            if marks.is_empty() || found == wanted { Ok(()) } else { Err(format!("{found:?} instead of {wanted:?}")) }
        })
        .expect_none_lost();
        sync_all(&recording, "changed");
        recording.mark("all is synced");
        let log = recording.log();
        let last: Vec<_> = log.images(&options).filter(|image| image.marks().len() == 2).collect();
        assert_eq!(last.len(), 1);
        assert!(*last[0].tree() == recording.tree(), "seed {seed}: {:?}", log);
    }
}

/// A random operation in a directory.
fn change(files: &dyn Files, dir: &str, random: &mut fastrand::Rng) {
    let mut name = || format!("{dir}/{}", random.u8(0..4));
    let (name, other) = (name(), name());
    match random.u8(0..8) {
        0..=4 => {
            let bytes = vec![random.u8(b'a'..=b'z'); random.usize(1..1500)];
            let file = files.create(&name, 0).unwrap();
            file.write_at(random.u64(0..800), &bytes).unwrap();
            if random.bool() {
                file.sync().unwrap();
            }
        }
        5 => drop(files.rename(&name, &other)),
        6 => drop(files.remove(&name)),
        _ => files.sync_dir(dir).unwrap(),
    }
}

fn sync_all(files: &dyn Files, dir: &str) {
    for name in files.list(dir).unwrap() {
        files.open(&format!("{dir}/{name}")).unwrap().sync().unwrap();
    }
    files.sync_dir(dir).unwrap();
}
