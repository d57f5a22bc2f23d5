//! Attributes as the kernel wants them.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{FileType, Stat, Timespec, UTIME_NOW, UTIME_OMIT, major, makedev, minor};

/// The attributes of the file that the kernel calls `id`.
pub(super) fn attributes(id: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: kernel_device(stat.st_rdev),
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// The same, changed by what is cached of the file.
pub(super) fn with_cached(
    mut attributes: FileAttr,
    bytes: u64,
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
) -> FileAttr {
    attributes.size = bytes;
    // A program that sees no blocks takes the file for one large hole.
    attributes.blocks = attributes.blocks.max(bytes.div_ceil(512));
    attributes.atime = accessed.unwrap_or(attributes.atime);
    attributes.mtime = modified.unwrap_or(attributes.mtime);
    attributes
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 { SystemTime::UNIX_EPOCH - whole } else { SystemTime::UNIX_EPOCH + whole };
    start + Duration::from_nanos(nanoseconds.into())
}

/// A device number as the kernel encodes it in 32 bits.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (major(device), minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The device number that the kernel has encoded in 32 bits.
pub(super) fn user_device(device: u32) -> u64 {
    makedev((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// A time as `utimensat` wants it; `None` keeps what the file has.
pub(super) fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() },
            // fuser takes the nanoseconds off, although they count forward from the second.
            Err(before) => {
                let before = before.duration();
                Timespec { tv_sec: -(before.as_secs() as i64), tv_nsec: before.subsec_nanos().into() }
            }
        },
    }
}

/// A time of [`timespec`] for the cache: which moment it is.
pub(super) fn moment(wanted: Option<TimeOrNow>) -> Option<SystemTime> {
    wanted.map(|wanted| match wanted {
        TimeOrNow::Now => SystemTime::now(),
        exact @ TimeOrNow::SpecificTime(_) => {
            let exact = timespec(Some(exact));
            time(exact.tv_sec, exact.tv_nsec as u32)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_keep_both_halves() {
        for device in [makedev(8, 1), makedev(259, 300), makedev(0xfff, 0xf_ffff), makedev(1, 0x1234)] {
            assert_eq!(user_device(kernel_device(device)), device);
        }
        assert_eq!(kernel_device(makedev(8, 1)), 0x801);
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // What fuser makes of -2 s + 300,000,000 ns.
        let given = SystemTime::UNIX_EPOCH - Duration::new(2, 300_000_000);
        let wanted = timespec(Some(TimeOrNow::SpecificTime(given)));
        assert_eq!((wanted.tv_sec, wanted.tv_nsec), (-2, 300_000_000));
        let exact = moment(Some(TimeOrNow::SpecificTime(given))).unwrap();
        assert_eq!(exact, SystemTime::UNIX_EPOCH - Duration::new(1, 700_000_000));
        assert_eq!(time(-2, 300_000_000), exact);
    }
}
