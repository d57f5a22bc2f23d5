//! What is mounted over a path, as the kernel lists it for this thread.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Where it is.
    pub point: PathBuf,
    /// What it shows there, in its own words.
    pub source: PathBuf,
}

/// The mounts of file systems of this type that cover `path`, in the order in which they were made.
pub fn mounts_over(path: &Path, kind: &str) -> Vec<Mounted> {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    of_kind(&text, kind).filter(|mounted| path.starts_with(&mounted.point)).collect()
}

fn of_kind(text: &str, kind: &str) -> impl Iterator<Item = Mounted> {
    text.lines().filter_map(move |line| {
        let (first, last) = line.split_once(" - ")?;
        let mut last = last.split(' ');
        let is_of_kind = last.next()? == kind;
        let mounted = Mounted { point: unescape(first.split(' ').nth(4)?), source: unescape(last.next()?) };
        is_of_kind.then_some(mounted)
    })
}

/// The kernel writes blanks and backslashes of a path in octal.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let text = "84 64 0:40 / /tmp/a\\040b\\134c rw,relatime shared:1 - fuse.outcrop outcrop:/proc/1/fd/2 rw,user_id=0\n\
            22 1 8:1 / / rw - ext4 /dev/sda rw\nnonsense\n85 64 0:41 / /plain\\9 rw - fuse.outcrop x rw\n";
        let found: Vec<_> = of_kind(text, "fuse.outcrop").collect();
        let mounted = |point: &str, source: &str| Mounted { point: point.into(), source: source.into() };
        assert_eq!(found, [mounted("/tmp/a b\\c", "outcrop:/proc/1/fd/2"), mounted("/plain\\9", "x")]);
        assert_eq!(of_kind(text, "ext4").collect::<Vec<_>>(), [mounted("/", "/dev/sda")]);
    }

    #[test]
    fn the_root_covers_every_path() {
        assert!(mounts_over(Path::new("/proc/self"), "proc").iter().any(|mounted| mounted.point == Path::new("/proc")));
        assert!(mounts_over(Path::new("/proc/self"), "no-such-type").is_empty());
    }
}
