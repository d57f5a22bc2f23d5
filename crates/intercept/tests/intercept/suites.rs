//! Suites that others use to test file systems, natively and in each way.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use outcrop_intercept::Via;
use outcrop_node::Cache;
use outcrop_testing::{amount, covered, skip};

use crate::scene::{Way, has, run_script_via, scene, shell, ways};

/// Programs of crates are installed here: `cargo install --root target/suites pjdfstest fsx`.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/suites/bin");

/// The path of a suite; skips the test without it.
fn suite(name: &str) -> Option<String> {
    let path = format!("{INSTALLED}/{name}");
    let found = Path::new(&path).exists();
    if !found {
        skip(format_args!("{name} is not there: cargo install --root target/suites {name}"));
    }
    found.then_some(path)
}

#[test]
fn pjdfstest_passes_what_passes_natively() {
    let Some(suite) = suite("pjdfstest") else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("pjdfstest needs root");
    }
    scene(|root| {
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(root, rights).unwrap();
        let config = root.join("pjdfstest.toml");
        let text = "[features]\nposix_fallocate = {}\nutime_now = {}\nutimensat = {}\n\
            [settings]\nnaptime = 0.02\nallow_remount = false\n\
            [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
        fs::write(&config, text).unwrap();
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        let suite = Pjdfstest { program: format!("{suite} -c {} -p .", config.display()), data };
        let native = suite.natively("");
        assert!(native.len() > 300, "{native:?}");
        for (name, via, cache) in some(ways(root), 1) {
            let (_, output) = run_script_via(via, &suite.script(""), &suite.data, cache.clone());
            let here = passed(&output);
            let lost: Vec<_> = native.iter().filter(|test| !here.contains(test) && !may_differ(via, test)).collect();
            let lost: Vec<_> = lost.into_iter().filter(|test| suite.is_lost(test, name, via, &cache)).collect();
            let said: Vec<_> = lost.iter().map(|test| said_of(test, &output)).collect();
            assert!(lost.is_empty(), "{name}: {said:#?}");
            covered("pjdfstest", here.len());
        }
    });
}

/// The C library does not know the limit of FUSE, so the test of that limit is skipped. Natively it
/// is only run on file systems with a limit that the C library knows.
fn may_differ(via: Via, test: &str) -> bool {
    via == Via::Fuse && test == "link::link_count_max"
}

/// How often a case is repeated, natively and in a way, that has passed natively and failed there.
const REPEATED: usize = 3;

struct Pjdfstest {
    program: String,
    data: PathBuf,
}

impl Pjdfstest {
    /// Runs all cases, or one.
    fn script(&self, test: &str) -> String {
        let one = if test.is_empty() { String::new() } else { format!("-e pjdfstest::tests::{test}") };
        format!("{} {one} || true", self.program)
    }

    /// What passes natively.
    fn natively(&self, test: &str) -> Vec<String> {
        let output = shell(&self.script(test), &self.data).output().unwrap();
        passed(&String::from_utf8_lossy(&output.stdout))
    }

    /// Whether a case that has failed once in this way fails because of it. Many cases compare
    /// times that the system counts in steps, on a machine that is busy with other tests. So one
    /// that passes when it is repeated does not count, and neither does one that also fails
    /// natively.
    fn is_lost(&self, test: &str, name: &str, via: Via, cache: &Arc<dyn Cache>) -> bool {
        let native = (0..REPEATED).filter(|_| !self.natively(test).is_empty()).count();
        let here = (0..REPEATED).filter(|_| {
            let (_, output) = run_script_via(via, &self.script(test), &self.data, cache.clone());
            !passed(&output).is_empty()
        });
        let here = here.count();
        println!("{name}: {test} failed; repeated, it passes {here} of {REPEATED} times, natively {native}");
        here < REPEATED && native == REPEATED
    }
}

/// What the suite says of one case.
fn said_of(test: &str, output: &str) -> String {
    let of_it = output.lines().skip_while(|line| line.split_whitespace().next() != Some(test));
    let rest = of_it.enumerate().take_while(|(nth, line)| *nth == 0 || line.starts_with(char::is_whitespace));
    let said: Vec<_> = rest.map(|(_, line)| line.trim()).collect();
    if said.is_empty() { format!("{test} was not run") } else { said.join(" ") }
}

/// The ways that stage files, and a mount with a few caches; with all of them in a soak.
fn some(ways: Vec<Way>, few: usize) -> Vec<Way> {
    let (mounted, staged): (Vec<_>, Vec<_>) = ways.into_iter().partition(|(_, via, _)| *via == Via::Fuse);
    mounted.into_iter().take(amount(few, usize::MAX)).chain(staged).collect()
}

fn passed(output: &str) -> Vec<String> {
    let ok = output.lines().filter_map(|line| line.trim_end().strip_suffix(" ok"));
    let mut passed: Vec<_> = ok.filter_map(|line| line.split_whitespace().last()).map(ToOwned::to_owned).collect();
    passed.sort();
    passed
}

/// All operations that fsx knows, with mappings that are not synced after each write.
const FSX: &str = "flen = 1048576\nnomsyncafterwrite = true\n[opsize]\nmax = 200000\n[weights]\n\
    close_open = 1.0\ninvalidate = 0.5\nmapread = 3.0\nmapwrite = 3.0\nread = 5.0\nwrite = 5.0\ntruncate = 2.0\n\
    fsync = 0.3\nfdatasync = 0.3\nposix_fallocate = 1.0\npunch_hole = 1.0\nsendfile = 2.0\nposix_fadvise = 0.5\n\
    copy_file_range = 2.0\n";

#[test]
fn fsx_finds_no_wrong_byte() {
    let Some(suite) = suite("fsx") else { return };
    scene(|root| {
        fs::write(root.join("fsx.toml"), FSX).unwrap();
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        let (operations, seeds) = amount((2000, 2), (100_000, 20));
        for (name, via, cache) in ways(root) {
            for seed in 1..=seeds {
                let script = format!("{suite} -q -f ../fsx.toml -N {operations} -S {seed} -P .. file 2>&1");
                let (outcome, output) = run_script_via(via, &script, &data, cache.clone());
                assert!(outcome.status.success() && outcome.undrained.is_empty(), "{name}, seed {seed}: {output}");
            }
        }
        covered("fsx operations", operations * seeds);
    });
}

#[test]
fn fio_dbench_and_fs_mark_are_content() {
    if !has(&["fio", "dbench", "fs_mark"]) {
        return;
    }
    scene(|root| {
        let (bytes, seconds, files) = amount(("8m", 1, 300), ("256m", 20, 5000));
        let fio = "fio --minimal --output=../fio.output --directory=. --verify_fatal=1 --verify=crc32c --do_verify=1";
        let script = format!(
            "{fio} --name=a --rw=randrw --bsrange=512-128k --size={bytes} --numjobs=2 --ioengine=psync
             {fio} --name=b --rw=write --bs=1m --size={bytes} --ioengine=mmap
             {fio} --name=c --rw=randwrite --bs=4k --size={bytes} --direct=1 --ioengine=libaio --iodepth=8
             dbench -t {seconds} -D . 2 > ../dbench.output; grep -q Throughput ../dbench.output
             fs_mark -d marks -n {files} -s 10240 -t 2 -S 1 > ../fs_mark.output"
        );
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        let native = Command::new("sh").args(["-euc", &script]).current_dir(&data).output().unwrap();
        assert!(native.status.success(), "natively: {native:?}");
        for (name, via, cache) in some(ways(root), 2) {
            fs::remove_dir_all(&data).unwrap();
            fs::create_dir(&data).unwrap();
            let (outcome, output) = run_script_via(via, &script, &data, cache);
            assert!(outcome.status.success() && outcome.undrained.is_empty(), "{name}: {output}");
        }
    });
}
