//! What VELOC promises, and what it does not keep: each test is a program of a few steps.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use sha2::{Digest, Sha256};

use crate::common::{config, has_mpi, program, ranks, run, told, turn};

/// A program that does these steps by itself.
fn single(config: &Path, steps: &str) -> Output {
    let mut command = Command::new("timeout");
    run(command.arg("120").arg(program("steps.c")).arg("7").arg(config).args(steps.split(' ')))
}

/// Ranks that do these steps together.
fn together(count: u32, config: &Path, steps: &str) -> Command {
    let mut command = ranks(count, &program("steps.c"));
    command.arg("mpi").arg(config).args(steps.split(' '));
    command
}

/// A place, and what is configured for it.
fn place(mode: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &format!("mode = {mode}"));
    (dir, config)
}

/// All files below.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// All folders of this name below.
fn folders(dir: &Path, name: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    paths.flat_map(|path| if path.ends_with(name) { vec![path] } else { folders(&path, name) }).collect()
}

/// Changes a byte in the middle of the newest pack of a session's rank.
fn damage(dir: &Path) {
    let is_pack = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("pack-");
    let newest = files(dir).into_iter().filter(is_pack).max().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(newest, bytes).unwrap();
}

#[test]
fn a_restart_goes_on_with_an_increment() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("sync");
    let stored =
        || files(&dir.path().join("scratch")).iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    single(&config, "protect:1:100000 protect:2:10 fill:1 save:x:1");
    let before = stored();
    assert!(before > 400_000, "{before}");
    // Two are restored; one of them is not as it was when the next version is saved.
    single(&config, "protect:1:100000 protect:2:10 restart:x:1 expect:1:1:100000 protect:2:20 fill:1 save:x:2");
    let after = stored();
    assert!(after > before && after - before < 50_000, "{before} bytes became {after}: not an increment");
    single(&config, "protect:1:100000 protect:2:20 restart:x:2 expect:1:1:100000 expect:2:1:20");
}

#[test]
fn signals_disturb_nothing() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let saves: Vec<_> = (1..30).map(|version| format!("fill:{version} save:x:{version}")).collect();
    single(&config, &format!("interrupt protect:1:100000 {} wait", saves.join(" ")));
    single(&config, "interrupt protect:1:100000 test:x:0:29 restart:x:29 expect:1:29:100000");
}

#[test]
fn selective_checkpoints_have_what_was_selected() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("sync");
    let save = "protect:1:1000 protect:2:50 protect:3:7 fill:1 some:x:1:1:1,3 fill:2 some:x:2:2:1 fill:9";
    single(
        &config,
        &format!("{save} restart:x:1 expect:1:1:1000 expect:2:9:50 expect:3:1:7 size:x:1:2:0 size:x:1:3:28"),
    );
    let restore = "protect:1:1000 protect:2:50 protect:3:7 fill:9";
    single(&config, &format!("{restore} restart:x:2 expect:1:9:1000 expect:2:2:50 expect:3:2:7"));
    single(&config, &format!("{restore} recover:x:2:1:3 expect:1:9:1000 expect:2:9:50 expect:3:2:7"));
    single(&config, &format!("{restore} recover:x:2:2:3 expect:2:2:50 expect:3:9:7"));
}

#[test]
fn what_is_protected_later_counts() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let steps = "protect:1:100 fill:1 save:x:1 protect:1:200 protect:2:10 fill:2 save:x:2 unprotect:2 fill:3 save:x:3";
    single(&config, steps);
    let restore = "protect:1:200 protect:2:10 fill:9";
    single(&config, &format!("{restore} restart:x:2 expect:1:2:200 expect:2:2:10 size:x:3:2:0"));
    single(&config, &format!("{restore} restart:x:1 expect:1:1:100 restart:x:3 expect:1:3:200 expect:2:9:10"));
}

#[test]
fn checkpoints_of_a_name_have_regions_of_their_own() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    single(
        &config,
        "protect:1:100 protect:2:20:own fill:4 save:x:1 save:own:1 wait size:x:1:2:0 size:own:1:1:0 size:own:1:2:80",
    );
    single(&config, "protect:2:20:own fill:9 restart:own:1 expect:2:4:20");
}

#[test]
fn a_version_may_be_saved_again_and_shorter() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    single(&config, "protect:1:5000 fill:1 save:x:5 protect:1:10 fill:2 save:x:5");
    single(&config, "protect:1:10 test:x:0:5 size:x:5:1:40 restart:x:5 expect:1:2:10");
    // What was saved last is the newest, also if the program has gone back.
    single(&config, "protect:1:10 fill:3 save:x:6 save:x:7 fill:4 save:x:6 test:x:0:6 restart:x:6 expect:1:4:10");
    single(&config, "protect:1:10 test:x:0:6 test:x:5:5 test:x:4:-1 restart:x:7 expect:1:3:10 test:nothing:0:-1");
}

#[test]
fn several_are_under_way_at_once() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let save: Vec<_> = (0..12).map(|version| format!("fill:{version} some:x:{version}:0:0")).collect();
    single(&config, &format!("protect:0:300000 {} poll wait", save.join(" ")));
    let restore: Vec<_> = (0..12).map(|version| format!("restart:x:{version} expect:0:{version}:300000")).collect();
    single(&config, &format!("protect:0:300000 test:x:0:11 {}", restore.join(" ")));
}

#[test]
fn who_exits_without_finalize_keeps_what_was_saved() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    single(&config, "protect:1:2000000 fill:1 some:x:1:0:1 exit");
    single(&config, "protect:1:2000000 test:x:0:1 restart:x:1 expect:1:1:2000000");
}

#[test]
fn a_directory_that_fails_is_said_by_wait_and_heals() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("async");
    // The directory of the rank is somewhere else for a while, so that nothing can be written
    // there.
    let there = dir.path().join("persistent/outcrop-7/x/rank-00000").display().to_string();
    let (away, back) = (format!("move:{there}:{there}.away"), format!("move:{there}.away:{there}"));
    let fails = format!(
        "{away} fill:2 some:x:2:0:1 wait_fails test:x:0:2 fill:3 some:x:3:0:1 save_fails:x:4 wait_fails {back}"
    );
    let output = single(&config, &format!("protect:1:1000 fill:1 save:x:1 wait {fails} fill:5 save:x:5 wait"));
    assert!(told(&output).contains("has not reached"), "{}", told(&output));
    let steps = format!("protect:1:1000 test:x:0:5 {away} fill:6 some:x:6:0:1 cleanup_fails:x {back} test:x:0:6");
    single(&config, &format!("{steps} restart:x:6 expect:1:6:1000 test:x:5:5"));
    single(&config, "protect:1:1000 test:x:5:5 restart:x:4 expect:1:3:1000 restart:x:5 expect:1:5:1000");
    fs::remove_dir_all(dir.path().join("scratch")).unwrap();
    single(&config, "protect:1:1000 test:x:0:5 restart:x:5 expect:1:5:1000 test:x:4:1 restart:x:1 expect:1:1:1000");
}

#[test]
fn old_versions_go_as_configured() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "mode = sync\nscratch_versions = 1\nmax_versions = 3");
    let save: Vec<_> = (1..8).map(|version| format!("fill:{version} save:x:{version}")).collect();
    single(&config, &format!("protect:1:1000 {}", save.join(" ")));
    single(&config, "protect:1:1000 test:x:0:7 test:x:6:6 test:x:5:5 test:x:4:-1 restart:x:5 expect:1:5:1000");
    let versions = |place: &str| {
        let is_version = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("version-");
        files(&dir.path().join(place)).into_iter().filter(is_version).count()
    };
    assert_eq!((versions("scratch"), versions("persistent")), (1, 3));
}

#[test]
fn cleanup_empties_scratch_only() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("async");
    run(&mut together(
        2,
        &config,
        "protect:1:1000 fill:1 save:x:1 cleanup:x fill:2 test:x:0:1 restart:x:1 expect:1:1:1000",
    ));
    assert!(!dir.path().join("scratch/outcrop/x/rank-00000/version-00000000000000000001").exists());
    run(&mut together(2, &config, "protect:1:1000 test:x:0:1 restart:x:1 expect:1:1:1000 fill:3 save:x:2 test:x:0:2"));
}

#[test]
fn a_damaged_copy_is_passed_over_for_another_and_a_damaged_version_for_an_older_one() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("sync");
    let rank = |place: &str, rank: u32| dir.path().join(place).join(format!("outcrop/x/rank-{rank:05}"));
    let save = "protect:1:30000 fill:1 save:x:1 fill:2 save:x:2 fill:3 save:x:3";
    run(&mut together(3, &config, save));
    damage(&rank("scratch", 1));
    run(&mut together(3, &config, "protect:1:30000 test:x:0:3 restart:x:3 expect:1:3:30000"));
    damage(&rank("persistent", 1));
    let steps = "protect:1:30000 test:x:0:2 restart:x:2 expect:1:2:30000 restart_fails:x:3 test:x:0:2";
    let output = run(&mut together(3, &config, steps));
    assert!(told(&output).contains("version 3 of x is damaged and passed over: rank 1:"), "{}", told(&output));
    // Nothing of what is damaged was removed, and the series goes on.
    run(&mut together(
        3,
        &config,
        "protect:1:30000 fill:4 save:x:4 test:x:0:4 restart:x:4 expect:1:4:30000 test:x:3:2",
    ));
}

/// Changes a byte of a version's manifest wherever a rank has it.
fn damage_manifest(dir: &Path, rank: &str, version: u64) {
    let name = format!("version-{version:020}");
    let is_it = |path: &PathBuf| path.ends_with(&name) && path.components().any(|part| part.as_os_str() == rank);
    let found: Vec<_> = files(dir).into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 2, "one in scratch and one in persistent");
    for path in found {
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn damaged_manifests_are_said_and_are_not_taken_for_nothing() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("sync");
    run(&mut together(3, &config, "protect:1:1000 fill:1 save:x:1 fill:2 save:x:2"));
    damage_manifest(dir.path(), "rank-00001", 2);
    let output = run(&mut together(3, &config, "protect:1:1000 test:x:0:1 restart:x:1 expect:1:1:1000 test:none:0:-1"));
    let said = told(&output);
    for rank in 0..3 {
        assert!(said.contains(&format!("rank {rank}: version 2 of x cannot be restored: ")), "{said}");
    }
    damage_manifest(dir.path(), "rank-00001", 1);
    let output = run(&mut together(3, &config, "test:x:0:-2 test:x:1:-2 test:none:0:-1"));
    assert!(told(&output).contains("versions of x were found, and none can be restored"), "{}", told(&output));
    let mut strict = together(3, &config, "test:none:0:-1 test:x:0:-2 sleep:0:1");
    let output = strict.env("VELOC_STRICT", "true").output().unwrap();
    let said = told(&output);
    assert!(!output.status.success() && said.contains("strict"), "{said}");
    assert!(
        said.contains("test:x:0:-2") && !said.contains("sleep:0:1"),
        "it ends at the test that could not tell: {said}"
    );
}

#[test]
fn messages_have_the_versions_of_the_program() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("async");
    let there = dir.path().join("persistent/outcrop-7/x/rank-00000").display().to_string();
    let steps = "protect:1:1000 fill:1 save:x:5 save:x:4 wait";
    let output = single(&config, &format!("{steps} move:{there}:{there}.away save:x:4 wait_fails"));
    let said = told(&output);
    assert!(said.contains("version 4 of x has not reached") && !said.contains("version 85899"), "{said}");
}

#[test]
fn memory_that_is_not_protected_any_more_may_be_freed() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let mut command = Command::new("timeout");
    command.arg("120").arg(program("steps.c")).arg("7").arg(&config).env("OUTCROP_LIVE", "1 MiB");
    let steps = "protect:1:12000000 fill:1 some:x:1:0:1 free:1 wait protect:1:12000000 fill:2 save:x:2 wait";
    run(command.args(steps.split(' ')));
    single(&config, "protect:1:12000000 restart:x:1 expect:1:1:12000000 restart:x:2 expect:1:2:12000000");
}

#[test]
fn a_version_that_one_rank_lacks_is_not_offered() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let steps = "protect:1:1000 fill:1 save:x:1 wait barrier fill:2 die:2 some:x:2:0:1 wait";
    let output = together(3, &config, steps).output().unwrap();
    assert!(!output.status.success(), "{}", told(&output));
    run(&mut together(3, &config, "protect:1:1000 test:x:0:1 restart:x:1 expect:1:1:1000"));
    // Of a program that was killed in its first checkpoint there is none, and that is known.
    let output =
        together(3, &config, "protect:1:1000 fill:2 test:y:0:-1 die:2 some:y:1:0:1 wait sleep:0:300").output().unwrap();
    assert!(!output.status.success(), "{}", told(&output));
    run(&mut together(3, &config, "protect:1:1000 test:y:0:-1"));
}

#[test]
fn a_folder_that_is_missing_costs_no_version_and_no_number() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("async");
    run(&mut together(3, &config, "protect:1:1000 fill:1 save:x:1 wait fill:2 save:x:2 wait"));
    let away = dir.path().join("away");
    let folders = folders(dir.path(), "rank-00001");
    assert!(!folders.is_empty());
    let is_there = |is_there: bool| {
        for (index, folder) in folders.iter().enumerate() {
            let away = away.join(index.to_string());
            let (from, to) = if is_there { (&away, folder) } else { (folder, &away) };
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let _ = fs::remove_dir_all(to);
            fs::rename(from, to).unwrap();
        }
    };
    // To ask changes nothing.
    is_there(false);
    let output = run(&mut together(3, &config, "test:x:0:-2"));
    assert!(told(&output).contains("version 2 of x cannot be restored: "), "{}", told(&output));
    is_there(true);
    run(&mut together(3, &config, "protect:1:1000 test:x:0:2 restart:x:2 expect:1:2:1000"));
    // A program that begins anew saves the same versions again.
    is_there(false);
    run(&mut together(3, &config, "protect:1:1000 test:x:0:-2 fill:7 save:x:1 wait"));
    run(&mut together(3, &config, "protect:1:1000 test:x:0:1 restart:x:1 expect:1:7:1000"));
}

#[test]
fn what_killed_runs_have_left_is_removed() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (dir, config) = place("async");
    let output = together(2, &config, "protect:1:1000 fill:1 save:x:1 wait barrier die:0 die:1").output().unwrap();
    assert!(!output.status.success(), "{}", told(&output));
    let left = || {
        let names = fs::read_dir(dir.path().join("persistent")).unwrap().map(|entry| entry.unwrap());
        names.filter(|entry| entry.file_name().to_str().unwrap().starts_with(".outcrop-ranks-")).collect::<Vec<_>>()
    };
    assert_eq!(left().len(), 1, "a killed run leaves its directory");
    // It is too young when the next run begins, and old when that ends.
    let (there, away) = (left()[0].path(), dir.path().join("away"));
    fs::rename(&there, &away).unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::open(&away).unwrap().set_modified(old).unwrap();
    let step = format!("move_once:{}:{}", away.display(), there.display());
    run(&mut together(2, &config, &format!("protect:1:1000 test:x:0:1 barrier {step} barrier")));
    assert!(left().is_empty(), "{:?}", left());
}

#[test]
fn a_rank_that_fails_keeps_nobody_waiting() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let twice = "save_without:x:2:1 save_without:x:2:1";
    let steps = format!("protect:1:1000 fill:1 save:x:1 {twice} protect:1:1000 fill:3 save:x:2 fill:4 save:x:3");
    run(&mut together(3, &config, &steps));
    let steps = "protect:1:1000 test:x:0:3 test:x:2:2 restart:x:2 expect:1:3:1000 restart:x:1 expect:1:1:1000";
    run(&mut together(3, &config, steps));
    // Also if nothing comes after it.
    run(&mut together(3, &config, "protect:1:1000 save_without:x:4:0"));
    run(&mut together(3, &config, "protect:1:1000 test:x:0:3 restart:x:3 expect:1:4:1000"));
}

#[test]
fn a_rank_may_be_late() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    // Rank 1 comes late to a checkpoint and to the end; the others wait for their own part only.
    let steps = "protect:1:1000 fill:1 sleep:1:700 some:x:1:0:1 wait fill:2 sleep:1:700 some:x:2:0:1 wait sleep:1:700";
    run(&mut together(3, &config, steps));
    run(&mut together(3, &config, "protect:1:1000 test:x:0:2 restart:x:2 expect:1:2:1000"));
}

#[test]
fn processes_by_themselves_do_not_disturb_each_other() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    let steps = steps_of("protect:1:1000 fill:1 save:x:1 sleep:8:1000 fill:2 save:x:2");
    let start = |id: &str| Command::new(program("steps.c")).arg(id).arg(&config).args(&steps).spawn().unwrap();
    let mut both = [start("8"), start("9")];
    assert!(both.iter_mut().all(|child| child.wait().unwrap().success()));
    for id in ["8", "9"] {
        let steps = steps_of("protect:1:1000 test:x:0:2 restart:x:2 expect:1:2:1000");
        run(Command::new(program("steps.c")).arg(id).arg(&config).args(steps));
    }
}

fn steps_of(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn more_than_two_gibibytes() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("veloc.cfg");
    fs::write(&path, format!("mode = async\nscratch = {}\n", dir.path().join("scratch").display())).unwrap();
    // Nearly all of it is zero, and equal blocks are kept once.
    let program = program("steps.c");
    let command = |steps: &str| {
        let mut command = Command::new(&program);
        command.env("OUTCROP_DEDUP", "inside").env("OUTCROP_HOST", "256 MiB");
        run(command.arg("7").arg(&path).args(steps.split(' ')))
    };
    command("protect:1:600000000 protect:2:10 save:x:1");
    let output = command("protect:1:600000000 protect:2:10 size:x:1:1:-1 size:x:1:2:40 restart:x:1");
    assert!(told(&output).contains("2400000000 bytes, which an int cannot say"), "{}", told(&output));
}

/// What VELOC would have written for some regions of numbers.
fn old_file(regions: &[(i32, Vec<i32>)]) -> Vec<u8> {
    let bytes = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
    let mut file = (regions.len() as u64).to_ne_bytes().to_vec();
    for (id, numbers) in regions {
        file.extend(id.to_ne_bytes());
        file.extend((numbers.len() as u64 * 4).to_ne_bytes());
    }
    regions.iter().for_each(|(_, numbers)| file.extend(bytes(numbers)));
    file
}

/// What the program fills its regions with.
fn filled(seed: i32, id: i32, rank: i32, count: i32) -> Vec<i32> {
    (0..count).map(|index| seed.wrapping_mul(1_000_003).wrapping_add(id * 10007 + rank * 131 + index)).collect()
}

#[test]
fn checkpoints_of_veloc_are_restored_and_continued() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let meta = dir.path().join("meta");
    let config = config(dir.path(), &format!("mode = async\nmeta = {}", meta.display()));
    let (scratch, persistent) = (dir.path().join("scratch"), dir.path().join("persistent"));
    for place in [&scratch, &persistent, &meta] {
        fs::create_dir_all(place).unwrap();
    }
    for (version, place) in [(2, &persistent), (4, &persistent), (6, &scratch), (8, &scratch)] {
        for rank in 0..3 {
            let mut file = old_file(&[(1, filled(version, 1, rank, 500)), (3, filled(version, 3, rank, 9))]);
            let name = format!("x-{rank}-{version}.dat");
            fs::write(meta.join(format!("{name}.chksum")), Sha256::digest(&file)).unwrap();
            match (version, rank) {
                // One rank's newest is missing, that before it is torn, and one byte of that before
                // it is another one.
                (8, 2) => continue,
                (6, 1) => file.truncate(1000),
                (4, 0) => file[700] ^= 4,
                _ => {}
            }
            fs::write(place.join(name), file).unwrap();
        }
    }
    let before = files(&scratch).len() + files(&persistent).len();
    let steps = "protect:1:600 protect:3:9 test:x:0:2 size:x:2:1:2000 restart:x:2 expect:1:2:500 expect:3:2:9";
    let output = run(&mut together(3, &config, steps));
    let said = told(&output);
    assert!(said.contains("version 6 of x is damaged") && said.contains("version 4 of x is damaged"), "{said}");
    let steps = "protect:1:500 protect:3:9 restart:x:2 fill:3 save:x:3 wait test:x:0:3 restart:x:3 expect:1:3:500";
    run(&mut together(3, &config, steps));
    run(&mut together(3, &config, "protect:1:500 protect:3:9 test:x:0:3 restart:x:2 expect:3:2:9"));
    let old = |place: &Path| files(place).iter().filter(|path| path.extension().is_some_and(|it| it == "dat")).count();
    assert_eq!(old(&scratch) + old(&persistent), before, "old files stay as they are");
}

#[test]
fn another_number_of_ranks_is_told_so_everywhere() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (_dir, config) = place("async");
    run(&mut together(2, &config, "protect:1:100 fill:1 save:x:1"));
    let output = run(&mut together(3, &config, "protect:1:100 test:x:0:-2"));
    let count = told(&output).matches("it was saved by 2 ranks and is opened by 3").count();
    assert_eq!(count, 3, "{}", told(&output));
    run(&mut together(2, &config, "protect:1:100 test:x:0:1 restart:x:1 expect:1:1:100"));
}
