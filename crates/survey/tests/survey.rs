//! What a survey measures, what it refuses, and what it leaves; what a profile says, and which ones
//! are not believed.

use std::{
    ffi::CStr,
    fs, io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::Command,
    slice, thread,
    time::Duration,
};

use outcrop_survey::{DirectoryRates, Error, FileRates, Options, Profile, Rates, Survey};
use outcrop_testing::{
    Companion, Group, child, child_directory, expect_success, listen, mount_memory, names, of_process, skip,
    with_own_mounts,
};
use rustix::{
    mount::{MountFlags, mount_remount},
    process::{Resource, Rlimit, Signal, setrlimit},
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// As little effort as gives numbers.
fn quick() -> Options {
    Options { bytes_max: 8 << 20, time_max: Duration::from_millis(50), rounds: 1, has_devices: true }
}

fn survey(directories: &[&Path]) -> outcrop_survey::Result<Profile> {
    let directories: Vec<PathBuf> = directories.iter().map(|path| path.to_path_buf()).collect();
    Survey::run(&directories, &quick(), &mut |_| {})
}

fn is_empty(directory: &Path) -> bool {
    names(directory).is_empty()
}

#[test]
fn a_survey_measures_everything_and_leaves_nothing() {
    let given = tempdir().unwrap();
    let mut told = Vec::new();
    let profile = Survey::run(&[given.path().into()], &quick(), &mut |what| told.push(what.to_owned())).unwrap();
    assert!(is_empty(given.path()));
    assert!(told.len() >= 4 && told[0] == "memory", "{told:?}");
    assert_eq!(profile.directories.len(), 1);
    assert_eq!(profile.directories[0].device, fs::metadata(given.path()).unwrap().dev());
    assert!(profile.directories[0].path.is_absolute());
    assert_eq!(profile.cores as usize, thread::available_parallelism().unwrap().get());
    assert!(!profile.machine.is_empty() && profile.kernel.starts_with("Linux") && profile.date.ends_with('Z'));

    let locations = profile.locations();
    assert!(locations.iter().any(|location| location.name.contains("page cache")));
    for (index, location) in locations.iter().enumerate() {
        assert_eq!(location.write_preference, Some(index + 1), "all can be written to, and the fastest comes first");
        assert_eq!(location.read.is_some(), location.read_preference.is_some());
    }
    assert!(locations.windows(2).all(|pair| pair[0].write >= pair[1].write));
    let mut reads: Vec<_> =
        locations.iter().filter_map(|location| location.read_preference.zip(location.read)).collect();
    reads.sort_unstable();
    assert!(reads.iter().zip(1..).all(|((nth, _), wanted)| *nth == wanted), "{reads:?}");
    assert!(reads.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{reads:?}");
}

#[test]
fn a_profile_comes_back_from_its_file() {
    let given = tempdir().unwrap();
    let profile = survey(&[given.path()]).unwrap();
    let path = given.path().join("profile.toml");
    profile.store(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile);
    profile.store(&path).expect("over an older one");
    assert_eq!(names(given.path()), ["profile.toml"]);
    let nowhere = profile.store(&given.path().join("missing/profile.toml")).unwrap_err();
    assert!(matches!(nowhere, Error::File { .. }), "{nowhere}");
    Profile::check_file(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile, "a look changes nothing");
    for wrong in [given.path().to_owned(), given.path().join("missing/profile.toml")] {
        assert!(matches!(Profile::check_file(&wrong), Err(Error::File { .. })), "{}", wrong.display());
    }
    assert_eq!(fs::read_dir(given.path()).unwrap().count(), 1);
    let missing = Profile::load(&given.path().join("missing.toml")).unwrap_err();
    assert!(missing.to_string().contains("missing.toml"), "{missing}");
}

#[test]
fn what_cannot_be_a_profile_is_refused_with_the_reason() {
    let given = tempdir().unwrap();
    let path = given.path().join("profile.toml");
    let good = {
        survey(&[given.path()]).unwrap().store(&path).unwrap();
        fs::read_to_string(&path).unwrap()
    };
    let replaced = |key: &str, value: &str| {
        let line = good.lines().find(|line| line.starts_with(key)).unwrap();
        good.replacen(line, &format!("{key} = {value}"), 1)
    };
    let cases = [
        ("nonsense".to_owned(), "profile.toml"),
        (String::new(), "missing field"),
        (replaced("version", "2"), "its version is 2 and not 1"),
        (replaced("touch_one_core", "0"), "memory.touch_one_core is 0"),
        (replaced("touch_one_core", "-5"), "touch_one_core"),
        (replaced("overwrite", "9000000000000000000"), "overwrite is 9000000000000000000"),
        (replaced("path", "\"somewhere\""), "not an absolute path"),
        (format!("colour = 'red'\n{good}"), "colour"),
    ];
    for (text, words) in cases {
        fs::write(&path, text).unwrap();
        let error = Profile::load(&path).unwrap_err();
        assert!(matches!(error, Error::Nonsense { .. }), "{error}");
        assert!(error.to_string().contains(words) && error.to_string().contains("outcrop survey"), "{error}");
    }
}

#[test]
fn a_profile_of_another_machine_is_told_from_one_of_this_kind() {
    let mut profile = survey(&[]).unwrap();
    assert_eq!(profile.stranger(), None);
    profile.machine = "node-17".to_owned();
    profile.memory_bytes += profile.memory_bytes / 100;
    assert_eq!(profile.stranger(), None, "another one of the same kind");
    profile.cores += 1;
    let reason = profile.stranger().unwrap();
    assert!(reason.contains("node-17") && reason.contains(&format!("{} cores", profile.cores)), "{reason}");
    profile.cores -= 1;
    profile.memory_bytes *= 2;
    assert!(profile.stranger().unwrap().contains(&profile.memory_bytes.to_string()));
}

#[test]
fn surveys_at_the_same_time_are_not_in_each_others_way() {
    let given = tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| survey(&[given.path(), given.path()]).unwrap());
        }
    });
    assert!(is_empty(given.path()));
}

#[test]
fn a_directory_is_known_by_what_was_measured_nearest_to_it() {
    let given = tempdir().unwrap();
    let root = given.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/b")).unwrap();
    let device = fs::metadata(&root).unwrap().dev();
    let mut profile = survey(&[]).unwrap();
    assert_eq!(profile.directory(&root), None, "nothing was measured there");
    let rates = |write_new| FileRates { write_new, overwrite: 2, read: 3 };
    let measured = |path: PathBuf, device, write_new| DirectoryRates {
        path,
        device,
        direct: Some(rates(write_new)),
        buffered: rates(99),
    };
    profile.directories = vec![
        measured(root.join("elsewhere"), device, 10),
        measured(root.clone(), device, 20),
        measured(root.join("a"), device, 30),
        measured(root.join("a/b"), device + 1, 40),
    ];
    let write_of = |profile: &Profile, path: PathBuf| profile.directory(&path).map(|found| found.rates().write);
    assert_eq!(write_of(&profile, root.clone()), Some(20));
    assert_eq!(write_of(&profile, root.join("a")), Some(30));
    assert_eq!(write_of(&profile, root.join("a/b/missing/as/yet")), Some(30), "another file system was there then");
    assert_eq!(write_of(&profile, root.join("c")), Some(20));
    assert_eq!(write_of(&profile, PathBuf::from("/proc")), None, "another file system");
    profile.directories.truncate(1);
    assert_eq!(write_of(&profile, root.join("a")), Some(10), "the same file system at least");
}

#[test]
fn a_tape_gets_what_bypasses_the_page_cache_where_that_is_possible() {
    let rates = |write_new| FileRates { write_new, overwrite: 2, read: write_new + 1 };
    let mut directory =
        DirectoryRates { path: "/somewhere".into(), device: 1, direct: Some(rates(5)), buffered: rates(7) };
    assert_eq!(directory.rates(), Rates { write: 5, read: 6 });
    directory.direct = None;
    assert_eq!(directory.rates(), Rates { write: 7, read: 8 });
}

#[test]
fn a_directory_that_cannot_be_measured_is_an_error_before_anything_is_measured() {
    let given = tempdir().unwrap();
    fs::write(given.path().join("file"), "").unwrap();
    for (name, kind) in [("missing", io::ErrorKind::NotFound), ("file", io::ErrorKind::NotADirectory)] {
        let path = given.path().join(name);
        let directories = [given.path().to_owned(), path.clone()];
        let outcome = Survey::run(&directories, &quick(), &mut |what| panic!("measuring {what}"));
        let Err(Error::Directory { path: of, source, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((of, source.kind()), (path.clone(), kind));
        assert!(Survey::check(&path, &quick()).is_err());
    }
    assert!(Survey::check(given.path(), &quick()).is_ok());
}

/// One that nobody else is.
const USER: u32 = 1_000_006;

/// In a child: so much and no more.
fn set_limit(resource: Resource, most: u64) {
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
}

/// In a child, so that nobody else writes: the bytes that surveys write, by the time that they
/// have.
#[test]
fn child_that_counts() {
    let Some(given) = child_directory() else { return };
    let written = |time_max| {
        let options = Options { time_max, rounds: 2, has_devices: false, ..quick() };
        let before = of_process("io", "wchar").unwrap();
        Survey::run(slice::from_ref(&given), &options, &mut |_| {}).unwrap();
        (of_process("io", "wchar").unwrap() - before) / MIB
    };
    // Shared memory and the directory, past the page cache and through it: two times 8 MiB in each
    // of two rounds.
    let all = written(Duration::from_secs(3600));
    assert!(all <= 3 * 2 * 2 * 8, "{all} MiB");
    // One round, and of the directory one block of 4 MiB each.
    assert_eq!(written(Duration::ZERO), 2 * 8 + 2 * 2 * 4);
}

#[test]
fn a_survey_writes_a_bounded_number_of_bytes_and_few_where_that_is_slow() {
    if let Err(error) = of_process("io", "wchar") {
        skip(format_args!("this system does not count what is written: {error}"));
        return;
    }
    let given = tempdir().unwrap();
    expect_success(child("child_that_counts", given.path()));
}

/// In a child with little memory, as soon as it is told how much.
#[test]
fn child_with_little_memory() {
    let Some(given) = child_directory() else { return };
    let limit: u64 = listen().unwrap().parse().unwrap();
    let peak = || of_process("status", "VmHWM").unwrap() << 10;
    let before = peak();
    // It would be ended for a longer file, which may lie in memory.
    set_limit(Resource::Fsize, limit / 10);
    // The drivers of devices take what they take.
    let options = Options { time_max: Duration::from_secs(10), rounds: 1, has_devices: false, ..Options::default() };
    let outcome = Survey::run(&[given], &options, &mut |_| {});
    if limit < 160 * MIB {
        let Err(Error::LittleMemory { free_bytes, needed_bytes }) = outcome else { panic!("{outcome:?}") };
        assert!(free_bytes < limit && needed_bytes == 160 * MIB);
        assert!(outcome.unwrap_err().to_string().contains("free at least"));
        return;
    }
    outcome.unwrap();
    // One block of a directory, a little for each core, and what any program needs, come on top.
    let others = 12 * MIB + MIB / 4 * thread::available_parallelism().unwrap().get() as u64;
    let taken = peak() - before;
    assert!(taken <= limit / 10 + others, "{} of {} MiB", taken / MIB, limit / MIB);
}

#[test]
fn a_survey_takes_a_tenth_of_a_small_memory_and_refuses_a_smaller_one() {
    for limit in [512 * MIB, 144 * MIB] {
        let group = match Group::new(limit) {
            Ok(group) => group,
            Err(reason) => return skip(format_args!("no control group can be made here: {reason}")),
        };
        let given = tempdir().unwrap();
        let mut companion = Companion::start("child_with_little_memory", given.path());
        group.add(companion.id());
        companion.say(&limit.to_string());
        companion.end();
    }
}

/// In a child: a survey that the system ends while it writes, past the page cache or through it.
#[test]
fn child_that_is_ended() {
    let Some(given) = child_directory() else { return };
    let last = format!("{} the page cache", given.file_name().unwrap().to_str().unwrap());
    Profile::check_file(&given.join("profile.toml")).unwrap();
    let profile = Survey::run(slice::from_ref(&given), &quick(), &mut |what| {
        if what.ends_with(&last) {
            set_limit(Resource::Core, 0);
            // In the middle of the second block.
            set_limit(Resource::Fsize, 6 * MIB);
        }
    });
    profile.unwrap().store(&given.join("profile.toml")).unwrap();
}

#[test]
fn a_survey_that_is_ended_while_it_writes_leaves_nothing_and_an_older_profile() {
    let given = tempdir().unwrap();
    for moment in ["past", "through"] {
        let directory = given.path().join(moment);
        let path = directory.join("profile.toml");
        fs::create_dir(&directory).unwrap();
        fs::write(&path, "the older one").unwrap();
        let output = child("child_that_is_ended", &directory).output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{output:?}");
        assert_eq!(names(&directory), ["profile.toml"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "the older one");
        survey(&[&directory]).unwrap().store(&path).unwrap();
        assert_eq!(names(&directory), ["profile.toml"]);
    }
}

/// Calls `test` with a file system of its own in memory.
fn with_disk(options: &CStr, test: impl FnOnce(&Path) + Send) {
    with_own_mounts(|given| {
        mount_memory(given, options);
        test(given);
    });
}

#[test]
fn a_directory_with_too_little_room_is_refused() {
    with_disk(c"size=79m", |given| {
        let error = survey(&[given]).unwrap_err();
        let Error::LittleSpace { free_bytes, needed_bytes, .. } = error else { panic!("{error}") };
        assert_eq!((free_bytes, needed_bytes), (79 * MIB, 80 * MIB));
        assert!(error.to_string().contains("at most a tenth"), "{error}");
        assert!(is_empty(given));
        // The same directory with just enough, and without the right to write.
        mount_remount(given, MountFlags::empty(), c"size=81m").unwrap();
        assert_eq!(survey(&[given]).unwrap().directories.len(), 1);
        assert!(is_empty(given));
        mount_remount(given, MountFlags::RDONLY, c"").unwrap();
        let error = survey(&[given]).unwrap_err();
        assert!(
            matches!(&error, Error::Directory { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem)
        );
        assert!(error.to_string().contains("in which this user may create files"), "{error}");
    });
}

/// Leaves no byte free.
fn fill(directory: &Path) {
    let mut ballast = fs::File::create(directory.join("ballast")).unwrap();
    let error = io::copy(&mut io::repeat(1), &mut ballast).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_disk_that_others_fill_meanwhile_ends_a_survey_with_advice_and_changes_nothing() {
    with_disk(c"size=90m", |given| {
        let path = given.join("profile.toml");
        let profile = survey(&[given]).unwrap();
        profile.store(&path).unwrap();
        for moment in ["past", "through"] {
            let outcome = Survey::run(&[given.to_owned()], &quick(), &mut |what| {
                if what.contains(moment) {
                    fill(given);
                }
            });
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("free some space there, or choose another directory"), "{error}");
            for outcome in [profile.store(&path), Profile::check_file(&path)] {
                let error = outcome.unwrap_err();
                assert!(matches!(&error, Error::File { source, .. } if source.kind() == io::ErrorKind::StorageFull));
            }
            assert_eq!(names(given), ["ballast", "profile.toml"]);
            assert_eq!(Profile::load(&path).unwrap(), profile);
            fs::remove_file(given.join("ballast")).unwrap();
        }
    });
}

/// In a child: an ordinary user, who may make files in `open` only, and pin nothing.
#[test]
fn child_without_privilege() {
    let Some(given) = child_directory() else { return };
    set_limit(Resource::Memlock, 0);
    let error = survey(&[&given.join("closed")]).unwrap_err();
    assert!(error.to_string().contains("in which this user may create files"), "{error}");
    let profile = survey(&[&given.join("open")]).unwrap();
    assert_eq!(profile.memory.pinned, None);
    let refusal = profile.memory.pin_refusal.as_deref().unwrap();
    assert!(refusal.contains("ulimit -l"), "{refusal}");
    assert!(profile.locations().iter().all(|location| !location.name.contains("pinned")));
    let path = given.join("open/profile.toml");
    profile.store(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile);
    fs::remove_file(path).unwrap();
}

#[test]
fn a_user_without_privilege_surveys_what_there_is() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let program = std::env::current_exe().unwrap();
    if Command::new(program).arg("--list").uid(USER).output().is_err() {
        skip("another user may not run this program where it lies");
        return;
    }
    let given = tempdir().unwrap();
    for (name, mode) in [("", 0o755), ("open", 0o777), ("closed", 0o755)] {
        fs::create_dir_all(given.path().join(name)).unwrap();
        fs::set_permissions(given.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut command = child("child_without_privilege", given.path());
    command.uid(USER);
    expect_success(command);
    assert!(is_empty(&given.path().join("open")) && is_empty(&given.path().join("closed")));
}
