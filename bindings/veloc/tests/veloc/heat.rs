//! Heat on several ranks: killed in the middle and started again, it ends with the same plate, bit
//! by bit.

use std::{fs, path::Path};

use crate::common::{config, has_mpi, program, ranks, run, told, turn};

const RANKS: u32 = 4;
const STEPS: &str = "60";
const EVERY: &str = "5";

fn plates(out: &Path) -> Vec<Vec<u8>> {
    (0..RANKS).map(|rank| fs::read(format!("{}-{rank}", out.display())).unwrap()).collect()
}

/// Where a run began.
fn begin(said: &str) -> u32 {
    let line = said.lines().find_map(|line| line.strip_prefix("begins at ")).unwrap_or_else(|| panic!("{said}"));
    line.parse().unwrap()
}

/// Runs to the end undisturbed, and with the deaths of two ranks: then from the scratch and the
/// persistent directory alone.
fn survives(interface: &str, mode: &str) {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let heat = program("heat.c");
    let dir = tempfile::tempdir().unwrap();
    let command = |folder: &str, out: &str| {
        let place = dir.path().join(folder);
        fs::create_dir_all(&place).unwrap();
        let config = config(&place, &format!("mode = {mode}\nmax_versions = 3\nscratch_versions = 2"));
        let mut command = ranks(RANKS, &heat);
        command.arg(config).args([interface, STEPS, EVERY]).arg(dir.path().join(out));
        command
    };
    assert_eq!(begin(&told(&run(&mut command("undisturbed", "expected")))), 0);
    let expected = plates(&dir.path().join("expected"));
    assert!(expected.iter().any(|plate| plate.iter().any(|byte| *byte != 0)));

    // When a rank is killed, one that is three away has made at most three steps fewer: all have
    // made the last checkpoint, and that has waited for the one before.
    let killed = command("disturbed", "never").args(["2", "23"]).output().unwrap();
    assert!(!killed.status.success(), "{}", told(&killed));
    fs::remove_dir_all(dir.path().join("disturbed/persistent")).unwrap();
    let killed = command("disturbed", "never").args(["0", "44"]).output().unwrap();
    assert!(!killed.status.success(), "{}", told(&killed));
    let first = begin(&told(&killed));
    assert!([15, 20].contains(&first), "from scratch it begins with what was complete: {first}");

    fs::remove_dir_all(dir.path().join("disturbed/scratch")).unwrap();
    let output = run(&mut command("disturbed", "found"));
    let second = begin(&told(&output));
    assert!([35, 40].contains(&second), "from the persistent directory: {second}");
    assert!(plates(&dir.path().join("found")) == expected, "the plates differ");

    for place in ["disturbed/persistent", "disturbed/scratch"] {
        let left = fs::read_dir(dir.path().join(place)).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let is_known = |name: &String| ["outcrop", "outcrop-files"].contains(&name.as_str()) || is_young_talk(name);
        assert!(left.iter().all(is_known), "{left:?}");
    }
    if let Ok(files) = fs::read_dir(dir.path().join("disturbed/scratch/outcrop-files")) {
        assert_eq!(files.count(), 0, "routed files are gone");
    }
}

/// What a killed run has talked through stays for a minute.
fn is_young_talk(name: &str) -> bool {
    name.starts_with(".outcrop-ranks-")
}

#[test]
fn memory_in_the_background() {
    survives("memory", "async");
}

#[test]
fn memory_at_once() {
    survives("memory", "sync");
}

#[test]
fn files_in_the_background() {
    survives("file", "async");
}

#[test]
fn files_at_once() {
    survives("file", "sync");
}

/// A run that VELOC has begun.
#[test]
fn what_veloc_has_left_is_gone_on_from() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let heat = program("heat.c");
    let dir = tempfile::tempdir().unwrap();
    let command = |folder: &str, interface: &str, steps: &str| {
        let place = dir.path().join(folder);
        fs::create_dir_all(place.join("persistent")).unwrap();
        let config = config(&place, "mode = sync");
        let mut command = ranks(RANKS, &heat);
        command.arg(config).args([interface, steps, EVERY]).arg(place.join("out"));
        run(&mut command)
    };
    command("whole", "memory", STEPS);
    command("half", "memory", "20");
    let (whole, half) = (plates(&dir.path().join("whole/out")), plates(&dir.path().join("half/out")));
    for interface in ["memory", "file"] {
        let persistent = dir.path().join(interface).join("persistent");
        fs::create_dir_all(&persistent).unwrap();
        for (rank, plate) in half.iter().enumerate() {
            let step = 20i32.to_ne_bytes();
            let head = [2u64.to_ne_bytes().as_slice(), &[0; 4], &4u64.to_ne_bytes(), &1i32.to_ne_bytes()].concat();
            let head = [head, (plate.len() as u64).to_ne_bytes().to_vec()].concat();
            let head = if interface == "memory" { head } else { Vec::new() };
            // A file of the program's own lies where it wanted it, and VELOC has left a link.
            let original = dir.path().join(interface).join(format!("original-{rank}"));
            fs::write(&original, [head.as_slice(), &step, plate].concat()).unwrap();
            std::os::unix::fs::symlink(original, persistent.join(format!("heat-{rank}-20.dat"))).unwrap();
        }
        assert_eq!(begin(&told(&command(interface, interface, STEPS))), 20, "{interface}");
        assert!(plates(&dir.path().join(interface).join("out")) == whole, "{interface}: the plates differ");
    }
}
