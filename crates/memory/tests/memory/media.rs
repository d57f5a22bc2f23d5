//! Mapped files on media made for the test: one that is full, and one whose power is cut.

use std::{
    fs::{self, OpenOptions},
    io::ErrorKind,
    path::Path,
    process::Command,
};

use outcrop_memory::{Access, Error, Mapping};
use outcrop_testing::{alone, mount_ext4, mount_memory, skip, with_own_mounts};
use rustix::{
    ioctl::{Opcode, Setter, ioctl, opcode},
    mount::{UnmountFlags, unmount},
};

const MIB: u64 = 1 << 20;

fn map(path: &Path, bytes_max: u64) -> Mapping {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    Mapping::file(&file, Access::ReadWrite, bytes_max).unwrap()
}

fn fill(mapping: &Mapping, byte: u8) {
    // SAFETY: nobody else uses the mapping or its file.
    unsafe { mapping.slice_mut(0..mapping.bytes()) }.unwrap().fill(byte);
}

/// Grows a mapping until the medium is full. All of it must be usable, because the system has
/// allocated it.
fn fill_up(medium: &Path) {
    let mapping = map(&medium.join("file"), 1 << 30);
    let error = loop {
        match mapping.grow(mapping.bytes() + MIB) {
            Ok(()) => fill(&mapping, 1),
            Err(error) => break error,
        }
        assert!(mapping.bytes() < 64 * MIB, "the medium never fills up");
    };
    assert!(matches!(&error, Error::Failed { source, .. } if source.kind() == ErrorKind::StorageFull), "{error}");
    let bytes = mapping.bytes();
    assert!(bytes >= MIB);
    fill(&mapping, 2);
    mapping.flush(0..bytes).unwrap();
    let found = fs::read(medium.join("file")).unwrap();
    assert!(found.len() as u64 >= bytes && found[..bytes as usize].iter().all(|&byte| byte == 2));
}

#[test]
fn a_mapping_grows_no_further_than_its_medium() {
    with_own_mounts(|given| {
        fs::create_dir(given.join("memory")).unwrap();
        mount_memory(&given.join("memory"), c"size=8m");
        fill_up(&given.join("memory"));
        match mount_ext4(&given.join("image"), &given.join("medium"), 16 * MIB) {
            Ok(()) => fill_up(&given.join("medium")),
            Err(reason) => skip(reason),
        }
    });
}

/// Cuts the power of a file system: nothing more reaches the medium.
fn cut_power(medium: &Path) {
    const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);
    const WITHOUT_JOURNAL: u32 = 2;
    let root = fs::File::open(medium).unwrap();
    // SAFETY: this call takes a pointer to one number, and shuts down a file system that belongs to
    // this test.
    unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(WITHOUT_JOURNAL)) }.unwrap();
}

/// In a process of its own: a process started by another test would inherit the open files for a
/// moment.
#[test]
fn what_was_flushed_survives_a_power_cut_and_a_failed_flush_is_not_forgotten() {
    if alone("media::what_was_flushed_survives_a_power_cut_and_a_failed_flush_is_not_forgotten") {
        return;
    }
    with_own_mounts(|given| {
        let (image, medium) = (given.join("image"), given.join("medium"));
        if let Err(reason) = mount_ext4(&image, &medium, 32 * MIB) {
            return skip(reason);
        }
        let mapping = map(&medium.join("file"), 8 * MIB);
        // The name has to survive as well; whoever creates the file has to sync the directory.
        fs::File::open(&medium).unwrap().sync_all().unwrap();
        mapping.grow(2 * MIB).unwrap();
        fill(&mapping, 1);
        mapping.flush_all(&[0..10, 2 * MIB - 1..2 * MIB]).unwrap();
        fill(&mapping, 2);
        mapping.grow(3 * MIB).unwrap();
        cut_power(&medium);
        let error = mapping.flush(0..2 * MIB).unwrap_err();
        assert!(matches!(error, Error::Failed { attempt: "flush a mapped file", .. }), "{error}");
        for again in [mapping.flush(0..1), mapping.grow(4 * MIB)] {
            assert!(matches!(again, Err(Error::Distrusted)), "{again:?}");
        }
        drop(mapping);
        unmount(&medium, UnmountFlags::empty()).unwrap();
        let mounted = Command::new("mount").args(["-o", "loop"]).args([&image, &medium]).status().unwrap();
        assert!(mounted.success());
        let found = fs::read(medium.join("file")).unwrap();
        assert_eq!(found.len() as u64, 3 * MIB, "it has grown for good");
        let (flushed, new) = found.split_at(2 << 20);
        assert!(new.iter().all(|&byte| byte == 0));
        // Growing may have flushed what was written before it.
        assert!(flushed.iter().all(|&byte| byte == 1) || flushed.iter().all(|&byte| byte == 2));
    });
}
