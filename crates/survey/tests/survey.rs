//! What a survey measures, what it refuses, and what it leaves; what a profile says, and which ones are not believed.

use std::{
    ffi::CStr,
    fs, io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use outcrop_survey::{DirectoryRates, Error, FileRates, Options, Profile, Rates, Survey};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_remount},
    process::{Resource, Rlimit, setrlimit},
};
use tempfile::tempdir;

/// As little effort as gives numbers.
fn quick() -> Options {
    Options { bytes_max: 8 << 20, time_max: Duration::from_millis(50), rounds: 1, has_devices: true }
}

fn survey(directories: &[&Path]) -> outcrop_survey::Result<Profile> {
    let directories: Vec<PathBuf> = directories.iter().map(|path| path.to_path_buf()).collect();
    Survey::run(&directories, &quick(), &mut |_| {})
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
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

    let ranking = profile.ranking();
    assert!(ranking.iter().any(|place| place.place.contains("page cache")));
    for (index, place) in ranking.iter().enumerate() {
        assert_eq!(place.write_rank, Some(index + 1), "all can be written to, and the fastest comes first");
        assert_eq!(place.read.is_some(), place.read_rank.is_some());
    }
    assert!(ranking.windows(2).all(|pair| pair[0].write >= pair[1].write));
    let mut reads: Vec<_> = ranking.iter().filter_map(|place| place.read_rank.zip(place.read)).collect();
    reads.sort_unstable();
    assert!(reads.iter().zip(1..).all(|((rank, _), wanted)| *rank == wanted), "{reads:?}");
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
    let names: Vec<_> = fs::read_dir(given.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["profile.toml"]);
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

/// Set in a child: where it is to work.
const CHILD: &str = "OUTCROP_TEST_DIRECTORY";

/// One that nobody else is.
const USER: u32 = 1_000_006;

fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Carries out the test `name` as a child that works in `directory`, started by `command`.
fn expect_success(mut command: Command, name: &str, directory: &Path) {
    let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, directory).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// In a child with mounts of its own: a file system that is a little too small.
#[test]
fn child_with_little_room() {
    let Some(given) = child_directory() else { return };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    mount("tmpfs", &given, "tmpfs", MountFlags::empty(), c"size=79m").unwrap();
    let error = survey(&[&given]).unwrap_err();
    let Error::LittleSpace { free_bytes, needed_bytes, .. } = error else { panic!("{error}") };
    assert_eq!((free_bytes, needed_bytes), (79 << 20, 80 << 20));
    assert!(error.to_string().contains("no more than a tenth"), "{error}");
    assert!(is_empty(&given));
    // The same place with just enough, and without the right to write.
    let remount = |options: &CStr| mount_remount(&given, MountFlags::empty(), options);
    remount(c"size=81m").unwrap();
    assert_eq!(survey(&[&given]).unwrap().directories.len(), 1);
    assert!(is_empty(&given));
    mount_remount(&given, MountFlags::RDONLY, c"").unwrap();
    let error = survey(&[&given]).unwrap_err();
    assert!(matches!(&error, Error::Directory { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem));
    assert!(error.to_string().contains("in which this user may make files"), "{error}");
}

#[test]
fn a_directory_with_too_little_room_is_refused() {
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: this user cannot mount file systems here");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(std::env::current_exe().unwrap());
    expect_success(command, "child_with_little_room", tempdir().unwrap().path());
}

/// In a child: an ordinary user, who may make files in `open` only, and pin nothing.
#[test]
fn child_without_privilege() {
    let Some(given) = child_directory() else { return };
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let error = survey(&[&given.join("closed")]).unwrap_err();
    assert!(error.to_string().contains("in which this user may make files"), "{error}");
    let profile = survey(&[&given.join("open")]).unwrap();
    assert_eq!(profile.memory.pinned, None);
    let refusal = profile.memory.pin_refusal.as_deref().unwrap();
    assert!(refusal.contains("ulimit -l"), "{refusal}");
    assert!(profile.ranking().iter().all(|place| !place.place.contains("pinned")));
    let path = given.join("open/profile.toml");
    profile.store(&path).unwrap();
    assert_eq!(Profile::load(&path).unwrap(), profile);
    fs::remove_file(path).unwrap();
}

#[test]
fn a_user_without_privilege_surveys_what_there_is() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let is_reachable = Command::new(std::env::current_exe().unwrap()).arg("--list").uid(USER).output().is_ok();
    if !is_reachable {
        println!("SKIPPED: another user may not run this program where it lies");
        return;
    }
    let given = tempdir().unwrap();
    for (name, mode) in [("", 0o755), ("open", 0o777), ("closed", 0o755)] {
        fs::create_dir_all(given.path().join(name)).unwrap();
        fs::set_permissions(given.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.uid(USER);
    expect_success(command, "child_without_privilege", given.path());
    assert!(is_empty(&given.path().join("open")) && is_empty(&given.path().join("closed")));
}
