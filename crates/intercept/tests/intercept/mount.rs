//! What a program sees through a mount, and what the real files have meanwhile.

use std::{
    fs,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outcrop_intercept::{
    Fsync, Paths,
    fuse::{Mount, Mounting},
};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{memory::Memory, scene::scene};

/// A mount over `data` whose cache drains only when it has to, and a path to the real directory.
fn mounted(root: &Path, exclude: &[&str]) -> (Mount, Arc<Memory>, PathBuf, PathBuf) {
    mounted_with(root, exclude, Fsync::Disk)
}

fn mounted_with(root: &Path, exclude: &[&str], fsync: Fsync) -> (Mount, Arc<Memory>, PathBuf, PathBuf) {
    let data = root.join("data");
    fs::create_dir_all(&data).unwrap();
    let below = openat(CWD, &data, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let real = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::IntoRawFd::into_raw_fd(below)));
    let exclude = exclude.iter().map(|pattern| pattern.parse().unwrap()).collect();
    let paths = Paths::new(std::slice::from_ref(&data), vec![], exclude).unwrap();
    let cache = Memory::new(Duration::from_secs(3600));
    let mount = Mount::new(&data, &Mounting { paths, cache: cache.clone(), fsync }).unwrap().unwrap();
    (mount, cache, data, real)
}

#[track_caller]
fn end(mut mount: Mount) {
    unmount(&mut mount);
    let left = mount.drain(|_, _| true);
    assert!(left.is_empty(), "{left:?}");
}

#[track_caller]
fn unmount(mount: &mut Mount) {
    // A process that another test starts has all our files for a moment.
    let is_busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    let mut outcome = Ok(());
    outcrop_testing::until("nobody uses the mount", || {
        outcome = mount.unmount();
        !outcome.as_ref().is_err_and(is_busy)
    });
    outcome.unwrap();
}

#[test]
fn bytes_stay_in_memory_and_everybody_sees_them() {
    scene(|root| {
        let (mount, cache, data, real) = mounted(root, &[]);
        fs::write(data.join("a"), "newest").unwrap();
        assert_eq!(fs::read(real.join("a")).unwrap(), b"", "the file is there at once, its bytes are not");
        assert_eq!(fs::read(data.join("a")).unwrap(), b"newest");
        let shown = fs::metadata(data.join("a")).unwrap();
        assert_eq!((shown.len(), cache.undrained().len()), (6, 1));
        end(mount);
        assert_eq!(fs::read(data.join("a")).unwrap(), b"newest");
        assert_eq!(fs::metadata(data.join("a")).unwrap().modified().unwrap(), shown.modified().unwrap());
    });
}

#[test]
fn the_mark_of_a_file_is_not_for_programs() {
    scene(|root| {
        let (mount, _, data, real) = mounted(root, &[]);
        fs::write(data.join("a"), "x").unwrap();
        let marked = |path: PathBuf| {
            let mut names = Vec::with_capacity(1000);
            rustix::fs::listxattr(path, rustix::buffer::spare_capacity(&mut names)).unwrap();
            String::from_utf8(names).unwrap().contains("undrained")
        };
        assert!(marked(real.join("a")));
        assert!(!marked(data.join("a")));
        end(mount);
        assert!(!marked(data.join("a")));
    });
}

#[test]
fn a_reader_that_was_there_first_sees_every_write() {
    scene(|root| {
        fs::create_dir(root.join("data")).unwrap();
        fs::write(root.join("data/a"), "old").unwrap();
        let (mount, cache, data, _) = mounted(root, &[]);
        let mut reader = fs::File::open(data.join("a")).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old");
        let mut writer = fs::File::options().write(true).open(data.join("a")).unwrap();
        writer.write_all(b"newer").unwrap();
        reader.rewind().unwrap();
        text.clear();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "newer");
        assert!(cache.undrained().is_empty(), "what the kernel reads by itself cannot be cached");
        drop((reader, writer));
        // The next one that writes finds nobody, and is cached.
        outcrop_testing::until("the file is cached", || {
            fs::write(data.join("a"), "cached").unwrap();
            !cache.undrained().is_empty()
        });
        assert_eq!(fs::read(data.join("a")).unwrap(), b"cached");
        end(mount);
    });
}

#[test]
fn excluded_files_are_written_at_once() {
    scene(|root| {
        let (mount, cache, data, real) = mounted(root, &["*.log"]);
        fs::write(data.join("a.log"), "log").unwrap();
        assert_eq!(fs::read(real.join("a.log")).unwrap(), b"log");
        assert!(cache.undrained().is_empty());
        let mut log = fs::File::options().append(true).open(data.join("a.log")).unwrap();
        log.write_all(b" more").unwrap();
        log.sync_all().unwrap();
        assert_eq!(fs::read(real.join("a.log")).unwrap(), b"log more");
        drop(log);
        end(mount);
    });
}

#[test]
fn a_name_never_shows_before_its_bytes() {
    scene(|root| {
        let (mount, cache, data, real) = mounted(root, &[]);
        fs::write(data.join("state"), "one").unwrap();
        fs::write(data.join("other"), "stays in memory").unwrap();
        fs::write(data.join("new"), "two").unwrap();
        fs::rename(data.join("new"), data.join("state")).unwrap();
        assert_eq!(fs::read(real.join("state")).unwrap(), b"two");
        assert_eq!(fs::read(data.join("state")).unwrap(), b"two");
        assert_eq!(fs::read(real.join("other")).unwrap(), b"");
        assert!(cache.undrained().contains(&data.join("other")));
        end(mount);
    });
}

#[test]
fn fsync_reaches_the_file_and_only_that_file() {
    scene(|root| {
        let (mount, cache, data, real) = mounted(root, &[]);
        let mut file = fs::File::create(data.join("a")).unwrap();
        fs::write(data.join("b"), "stays").unwrap();
        file.write_all(b"durable").unwrap();
        file.sync_data().unwrap();
        assert_eq!(fs::read(real.join("a")).unwrap(), b"durable");
        assert_eq!(cache.undrained(), [data.join("b")]);
        drop(file);
        end(mount);
    });
}

#[test]
fn fsync_to_memory_stays_in_memory() {
    scene(|root| {
        let (mount, cache, data, real) = mounted_with(root, &[], Fsync::Memory);
        let mut file = fs::File::create(data.join("a")).unwrap();
        file.write_all(b"bytes").unwrap();
        file.sync_all().unwrap();
        assert_eq!((fs::read(real.join("a")).unwrap(), cache.undrained()), (vec![], vec![data.join("a")]));
        fs::write(data.join("state"), "old").unwrap();
        fs::rename(data.join("a"), data.join("state")).unwrap();
        assert_eq!(fs::read(real.join("state")).unwrap(), b"bytes", "a rename that replaces comes after the bytes");
        drop(file);
        end(mount);
    });
}

#[test]
fn the_length_of_a_file_is_that_of_the_cache() {
    scene(|root| {
        let (mount, _, data, real) = mounted(root, &[]);
        let file = fs::File::create(data.join("a")).unwrap();
        file.set_len(1 << 20).unwrap();
        (&file).write_all(b"start").unwrap();
        file.set_len(3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        assert_eq!(fs::read(data.join("a")).unwrap(), b"sta");
        assert_eq!(fs::metadata(real.join("a")).unwrap().len(), 0);
        drop(file);
        end(mount);
        assert_eq!(fs::read(data.join("a")).unwrap(), b"sta");
    });
}

#[test]
fn a_mount_in_use_is_not_taken_away_unless_by_force() {
    scene(|root| {
        let (mut mount, _, data, _) = mounted(root, &[]);
        let mut file = fs::File::create(data.join("a")).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(mount.unmount().unwrap_err().raw_os_error(), Some(16));
        assert_eq!(fs::read(data.join("a")).unwrap(), b"x");
        mount.abandon().unwrap();
        assert!(file.write_all(b"y").is_err());
        assert!(mount.drain(|_, _| true).is_empty());
        assert_eq!(fs::read(data.join("a")).unwrap(), b"x");
    });
}

#[test]
fn what_was_not_drained_is_named() {
    scene(|root| {
        let (mut mount, cache, data, _) = mounted(root, &[]);
        fs::write(data.join("a"), "x").unwrap();
        fs::write(data.join("b"), "y").unwrap();
        unmount(&mut mount);
        cache.fail_with(libc::ENOSPC);
        let mut left = mount.drain(|_, _| true);
        left.sort_by(|a, b| a.path.cmp(&b.path));
        let named: Vec<_> = left.iter().map(|file| (file.path.clone(), file.error.raw_os_error())).collect();
        assert_eq!(named, [(data.join("a"), Some(libc::ENOSPC)), (data.join("b"), Some(libc::ENOSPC))]);
        cache.fail_with(0);
        assert_eq!(mount.drain(|_, _| false).len(), 2, "nothing is drained without waiting");
        assert!(mount.drain(|_, _| true).is_empty());
        assert_eq!(fs::read(data.join("b")).unwrap(), b"y");
    });
}

#[test]
fn what_fuse_lacks_is_refused_as_other_file_systems_do() {
    scene(|root| {
        let (mount, _, data, _) = mounted(root, &[]);
        let unnamed = openat(CWD, &data, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
        assert_eq!(unnamed.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
        fs::write(root.join("outside"), "x").unwrap();
        let moved = fs::rename(root.join("outside"), data.join("inside")).unwrap_err();
        assert_eq!(moved.raw_os_error(), Some(libc::EXDEV));
        end(mount);
    });
}

#[test]
fn more_files_than_descriptors_can_be_made_and_read() {
    if outcrop_testing::alone("mount::more_files_than_descriptors_can_be_made_and_read") {
        return;
    }
    scene(|root| {
        let few = rustix::process::Rlimit { current: Some(400), maximum: Some(400) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
        // The cache of these tests holds descriptors itself.
        let (mount, _, data, _) = mounted(root, &["*"]);
        for index in 0..2000 {
            // What the kernel is to forget it forgets in its own time.
            outcrop_testing::until("a file is made", || fs::write(data.join(format!("{index}")), "x").is_ok());
        }
        assert_eq!(fs::read_dir(&data).unwrap().count(), 2000);
        for index in 0..2000 {
            outcrop_testing::until("a file is read", || {
                fs::read(data.join(format!("{index}"))).is_ok_and(|it| it == b"x")
            });
        }
        end(mount);
    });
}

#[test]
fn many_small_files_do_not_keep_their_descriptors() {
    scene(|root| {
        let (mount, _, data, _) = mounted(root, &["*"]);
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        for index in 0..50 {
            fs::write(data.join(format!("{index}")), "x").unwrap();
            fs::remove_file(data.join(format!("{index}"))).unwrap();
        }
        let before = open();
        for index in 0..500 {
            fs::write(data.join(format!("{index}")), "x").unwrap();
            fs::remove_file(data.join(format!("{index}"))).unwrap();
        }
        outcrop_testing::until("descriptors are closed", || open() < before + 200);
        end(mount);
    });
}
