//! Random calls on 1, 2, 4 and 7 ranks, beside a model of what they must do. In some lives one rank
//! is killed; between them, files of one directory are damaged.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use outcrop_testing::{amount, covered};

use crate::common::{config, has_mpi, program, ranks, told, turn};

/// All packs and manifests below.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let is_saved = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("pack-") || name.starts_with("version-")
    };
    paths.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).filter(is_saved).collect()
}

/// Changes a byte of a file, or cuts it off there.
fn damage(dir: &Path, random: &mut fastrand::Rng) {
    let files = files(dir);
    let Some(path) = random.choice(&files) else { return };
    let mut bytes = fs::read(path).unwrap();
    let at = random.usize(..bytes.len().max(1));
    match random.bool() {
        true => bytes.truncate(at),
        false => bytes[at] ^= 0x40,
    }
    fs::write(path, bytes).unwrap();
}

/// The lives of a program with this seed; each goes on where the one before has ended.
fn live(seed: u64, count: u32, lives: u32) {
    let mut random = fastrand::Rng::with_seed(seed * 100 + u64::from(count));
    let dir = tempfile::tempdir().unwrap();
    let mode = if random.bool() { "async" } else { "sync" };
    let keep = if random.bool() { "max_versions = 2\nscratch_versions = 1" } else { "" };
    let config = config(dir.path(), &format!("mode = {mode}\n{keep}"));
    let mut sure = 0;
    for life in 0..lives {
        let dies_at = if life + 1 < lives && random.u32(..3) > 0 { random.i32(0..12) } else { -1 };
        let mut command = match count {
            1 => Command::new(program("model.c")),
            _ => ranks(count, &program("model.c")),
        };
        command.arg(if count == 1 { "0" } else { "mpi" }).arg(&config);
        command.args([seed.to_string(), life.to_string(), i64::to_string(&sure), dies_at.to_string()]);
        let output = command.output().unwrap();
        let said = told(&output);
        let is_well = if dies_at < 0 { output.status.success() } else { !output.status.success() };
        assert!(
            is_well && !said.contains("a promise is broken"),
            "seed {seed}, {count} ranks, life {life}: {}\n{said}",
            output.status
        );
        let told = said.lines().filter_map(|line| line.strip_prefix("sure ")?.parse().ok());
        sure = told.max().unwrap_or(sure);
        if random.u32(..3) == 0 {
            // The persistent directory still has what is sure.
            damage(&dir.path().join("scratch"), &mut random);
        }
    }
    assert!(sure > 0, "seed {seed}: nothing was ever sure");
}

#[test]
fn random_calls_do_what_a_model_says() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let (seeds, lives) = (amount(1, 60), amount(3, 8));
    let first: u64 = std::env::var("OUTCROP_MODEL_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        [1, 2, 4, 7].into_iter().for_each(|count| live(seed, count, lives));
    }
    covered("random programs with VELOC on 1 to 7 ranks", seeds * 4);
}
