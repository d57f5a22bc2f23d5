//! How much memory this process may use: what the machine has, and what its control groups allow.
//!
//! A system hands out more address space than it has memory, and kills a program that then uses it.
//! So everything that takes memory checks here first. Reading and parsing are separate, so that
//! both versions of control groups can be tested on any machine.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{Error, Result};

/// The fraction of the smallest limit that is not used. It is for page tables (1/512 with small
/// pages), stacks, the kernel's I/O buffers, counters that lag by some pages per core, and inexact
/// estimates.
const MARGIN_SHARE: u64 = 16;
const MARGIN_BYTES_MAX: u64 = 1 << 30;

/// Limits are read again after this many bytes have been taken. Reading took 0.15 ms when measured,
/// nearly as long as touching a huge page.
pub(crate) const LOOK_EVERY_BYTES: u64 = 64 << 20;
/// Or after this fraction of what was left, because others take memory too.
const LOOK_EVERY_SHARE: u64 = 16;

/// An amount of memory, and what limits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The amount.
    pub bytes: u64,
    /// What limits it, as the end of a sentence that begins with the number.
    pub from: String,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes {}", self.bytes, self.from)
    }
}

/// How much memory this process may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most that it can ever have.
    pub most: Limit,
    /// What is left now, after the margin.
    pub left: Limit,
}

impl Limits {
    /// The present limits.
    pub fn read() -> io::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let machine =
            machine(&meminfo).ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal or MemAvailable"))?;
        // Without visible control groups, there is no limit from them.
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let groups = groups(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        let levels = groups.iter().flat_map(Group::levels).filter_map(|level| level.read());
        Ok(levels.fold(machine, Self::and))
    }

    /// The stricter of these limits and others.
    fn and(self, other: Self) -> Self {
        let smaller = |one: Limit, other: Limit| if other.bytes < one.bytes { other } else { one };
        Self { most: smaller(self.most, other.most), left: smaller(self.left, other.left) }
    }

    /// The limits of a place that can hold `most` in total, and `wanted` without penalty, of which
    /// `used` bytes cannot be reclaimed.
    fn new(most: u64, wanted: u64, used: u64, place: &str) -> Self {
        let left = wanted.saturating_sub(used).saturating_sub(margin(wanted));
        Self {
            most: Limit { bytes: most, from: format!("are all that {place} has") },
            left: Limit { bytes: left, from: format!("are left now of what {place} has, after a margin") },
        }
    }
}

/// How many bytes this process could take now without being killed for it: what the machine and its
/// control groups have left, minus a margin.
pub fn memory_left() -> io::Result<u64> {
    Ok(Limits::read()?.left.bytes)
}

/// How much of `bytes` this process can have. Less than `bytes`, with a warning, if the rest is in
/// use; an error if the machine never has that much. A multiple of `unit`, if `bytes` is one.
pub fn granted(bytes: u64, unit: u64) -> Result<u64> {
    let Ok(Limits { most, left }) = Limits::read() else { return Ok(bytes) };
    let refusal =
        |limit: Limit| Error::NoMemory { bytes, source: io::Error::new(io::ErrorKind::OutOfMemory, limit.to_string()) };
    if bytes > most.bytes {
        return Err(refusal(most));
    }
    if bytes <= left.bytes {
        return Ok(bytes);
    }
    let granted = left.bytes / unit * unit;
    if granted == 0 {
        return Err(refusal(left));
    }
    tracing::warn!(asked_bytes = bytes, granted_bytes = granted, "less host memory than asked for: {left}");
    Ok(granted)
}

/// Permission to take memory, obtained in advance, so that limits are not read for every page.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// How much may be taken before limits are read again.
    bytes: Mutex<u64>,
}

impl Allowance {
    /// Returns an error if the system could kill this program for taking `bytes` more. `missing`
    /// counts how many of them are not provided yet, and is called only if limits have to be read.
    pub(crate) fn take(&self, bytes: u64, missing: impl FnOnce() -> u64) -> Result<()> {
        let mut allowed = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if *allowed >= bytes {
            *allowed -= bytes;
            return Ok(());
        }
        let missing_bytes = missing();
        // If the limits cannot be read, they cannot be respected.
        let Ok(Limits { left, .. }) = Limits::read() else { return Ok(()) };
        if missing_bytes > left.bytes {
            return Err(Error::Exhausted { bytes: missing_bytes, limit: left.to_string() });
        }
        *allowed = ((left.bytes - missing_bytes) / LOOK_EVERY_SHARE).min(LOOK_EVERY_BYTES);
        Ok(())
    }
}

fn margin(bytes: u64) -> u64 {
    (bytes / MARGIN_SHARE).min(MARGIN_BYTES_MAX)
}

/// The limits of the machine, from the text of /proc/meminfo.
fn machine(meminfo: &str) -> Option<Limits> {
    let (total, available) = (field(meminfo, "MemTotal")?, field(meminfo, "MemAvailable")?);
    Some(Limits::new(total, total, total.saturating_sub(available), "this machine"))
}

/// The bytes that are locked in memory, from the text of /proc/self/status.
pub(crate) fn locked_bytes() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| field(&status, "VmLck")).unwrap_or(0)
}

/// The bytes in a line `name: NUMBER kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The two versions of control groups in Linux. A machine may have both; one of them controls
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The control group of this process, and where it is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    mount: PathBuf,
    directory: PathBuf,
}

impl Group {
    /// The group and all groups that contain it: the limits of all of them apply.
    fn levels(&self) -> impl Iterator<Item = Level<'_>> {
        let inside = self.directory.ancestors().take_while(|path| path.starts_with(&self.mount));
        inside.map(|directory| Level { version: self.version, directory })
    }
}

/// One control group of these.
struct Level<'a> {
    version: Version,
    directory: &'a Path,
}

impl Level<'_> {
    fn read(&self) -> Option<Limits> {
        let text = |name| fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        let place = format!("the control group {}", self.directory.display());
        match self.version {
            Version::One => {
                let texts = [text("memory.limit_in_bytes"), text("memory.usage_in_bytes"), text("memory.stat")];
                version_one(&texts[0], &texts[1], &texts[2], &place)
            }
            Version::Two => {
                let texts = [text("memory.max"), text("memory.high"), text("memory.current"), text("memory.stat")];
                version_two(&texts[0], &texts[1], &texts[2], &texts[3], &place)
            }
        }
    }
}

/// The limits of a group from its files; `None` if it has none.
fn version_one(limit: &str, usage: &str, stat: &str, place: &str) -> Option<Limits> {
    let limit = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    Some(Limits::new(limit, limit, usage.saturating_sub(file_cache(stat, "total_inactive_file")), place))
}

/// As above. Beyond `high` the system slows a group down instead of killing it, which is no better
/// for a cache.
fn version_two(max: &str, high: &str, current: &str, stat: &str, place: &str) -> Option<Limits> {
    // If a limit is not set, the file contains the word "max".
    let (max, high) = (max.trim().parse::<u64>().ok(), high.trim().parse::<u64>().ok());
    let current: u64 = current.trim().parse().ok()?;
    let wanted = max.into_iter().chain(high).min()?;
    Some(Limits::new(max.unwrap_or(u64::MAX), wanted, current.saturating_sub(file_cache(stat, "inactive_file")), place))
}

/// What the system reclaims first when memory is short: cached files that were not used recently.
fn file_cache(stat: &str, name: &str) -> u64 {
    let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// The groups of this process, from the contents of /proc/self/cgroup and /proc/self/mountinfo.
fn groups(cgroup: &str, mountinfo: &str) -> Vec<Group> {
    cgroup.lines().filter_map(|line| group(line, mountinfo)).collect()
}

/// Parses one line, such as `4:memory:/a/b` in version one and `0::/a/b` in version two.
fn group(line: &str, mountinfo: &str) -> Option<Group> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let version = match controllers {
        "" => Version::Two,
        _ if controllers.split(',').any(|controller| controller == "memory") => Version::One,
        _ => return None,
    };
    let (root, mount) = mountinfo.lines().find_map(|line| mounted(line, version))?;
    // In a container the path may lie outside of what is mounted. Then the root of the mount is the
    // closest visible group.
    let below = Path::new(path).strip_prefix(&root).ok().filter(|path| path.components().all(is_plain));
    let directory = below.map_or_else(|| mount.clone(), |below| mount.join(below));
    Some(Group { version, mount, directory })
}

fn is_plain(component: std::path::Component<'_>) -> bool {
    matches!(component, std::path::Component::Normal(_))
}

/// For a line of mountinfo: which part of the group hierarchy it mounts, and where, if it is of
/// this version.
fn mounted(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, mount) = (place.next()?, place.next()?);
    let mut what = what.split(' ');
    let (kind, options) = (what.next()?, what.nth(1)?);
    let is_wanted = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::Two => kind == "cgroup2",
    };
    is_wanted.then(|| (unescaped(root).into(), unescaped(mount).into()))
}

/// Mountinfo escapes spaces and some other characters as a backslash and three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => plain.push_str(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const MOUNTS: &str = "\
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24682416k
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_machine_is_a_limit() {
        let limits = machine("MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:     524288 kB\n").unwrap();
        assert_eq!(limits.most.bytes, 1024 * MIB);
        assert_eq!(limits.left.bytes, 512 * MIB - 64 * MIB, "a sixteenth of all is left alone");
        assert!(limits.most.to_string().contains("this machine"), "{limits:?}");
        for nonsense in ["", "MemTotal: 12 kB", "MemTotal: x kB\nMemAvailable: 1 kB", "MemTotal: 1\nMemAvailable: 1 kB"]
        {
            assert_eq!(machine(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(margin(1 << 45), 1 << 30, "not more than a gibibyte");
    }

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let found = groups("9:name=systemd:/\n4:memory:/jobs/17\n3:cpuset:/\n0::/init\n", MOUNTS);
        let paths: Vec<_> = found.iter().map(|group| (group.version, group.directory.to_str().unwrap())).collect();
        let wanted = [(Version::One, "/sys/fs/cgroup/memory/jobs/17"), (Version::Two, "/sys/fs/cgroup/unified/init")];
        assert_eq!(paths, wanted);
        let levels: Vec<_> = found[0].levels().map(|level| level.directory.to_str().unwrap().to_owned()).collect();
        assert_eq!(levels, ["/sys/fs/cgroup/memory/jobs/17", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory"]);
        assert_eq!(groups("0::/a\n", ""), [], "nothing is mounted");
        assert_eq!(groups("nonsense\n4:memory\n", MOUNTS), []);
    }

    #[test]
    fn a_container_sees_its_own_part() {
        let mounts = "9 8 0:2 /docker/17 /sys/fs/cgroup/memory ro - cgroup cgroup rw,cpu,memory\n\
                      9 8 0:2 / /sys/fs/c\\040group rw - cgroup2 none rw,nsdelegate\n";
        let directory = |line| groups(line, mounts)[0].directory.to_str().unwrap().to_owned();
        assert_eq!(directory("4:cpu,memory:/docker/17/x"), "/sys/fs/cgroup/memory/x");
        assert_eq!(directory("4:cpu,memory:/elsewhere"), "/sys/fs/cgroup/memory", "outside of what is mounted");
        assert_eq!(directory("0::/../other"), "/sys/fs/c group");
        assert_eq!(directory("0::/a:b"), "/sys/fs/c group/a:b");
    }

    #[test]
    fn version_one_limits_what_is_left() {
        let stat = "inactive_file 1\ntotal_inactive_file 10485760\n";
        let limits = version_one("268435456\n", "110100480\n", stat, "here").unwrap();
        assert_eq!((limits.most.bytes, limits.left.bytes), (256 * MIB, (256 - 105 + 10 - 16) * MIB));
        let unlimited = version_one("9223372036854771712\n", "110100480\n", "", "here").unwrap();
        assert!(unlimited.left.bytes > 1 << 60, "no limit");
        assert_eq!(version_one("", "1", "", "here"), None);
        assert_eq!(version_one("1", "nonsense", "", "here"), None);
    }

    #[test]
    fn version_two_limits_what_is_left() {
        let stat = "anon 1\ninactive_file 10485760\n";
        let both = version_two("268435456\n", "134217728\n", "52428800\n", stat, "here").unwrap();
        assert_eq!((both.most.bytes, both.left.bytes), (256 * MIB, (128 - 50 + 10 - 8) * MIB));
        let max = version_two("268435456\n", "max\n", "52428800\n", stat, "here").unwrap();
        assert_eq!(max.left.bytes, (256 - 50 + 10 - 16) * MIB);
        let high = version_two("max\n", "134217728\n", "52428800\n", stat, "here").unwrap();
        assert_eq!(high.most.bytes, u64::MAX);
        assert_eq!(version_two("max\n", "max\n", "52428800\n", stat, "here"), None, "no limit");
        assert_eq!(version_two("1\n", "1\n", "", stat, "here"), None);
        let over = version_two("100\n", "max", "200\n", "", "here").unwrap();
        assert_eq!(over.left.bytes, 0);
    }

    #[test]
    fn the_smallest_limit_counts() {
        let (large, small) = (Limits::new(100, 100, 0, "large"), Limits::new(50, 50, 0, "small"));
        for limits in [large.clone().and(small.clone()), small.and(large)] {
            assert_eq!((limits.most.bytes, limits.left.bytes), (50, 47));
            assert!(limits.left.from.contains("small"));
        }
    }

    #[test]
    fn this_machine_has_limits() {
        let limits = Limits::read().unwrap();
        assert!(limits.left.bytes > 0 && limits.left.bytes < limits.most.bytes, "{limits:?}");
    }

    #[test]
    fn what_nobody_can_have_is_refused() {
        let most = Limits::read().unwrap().most.bytes;
        assert!(matches!(granted(most + 1, 1), Err(Error::NoMemory { .. })));
        assert_eq!(granted(4096, 4096).unwrap(), 4096);
        let allowance = Allowance::default();
        allowance.take(4096, || 4096).unwrap();
        assert!(matches!(allowance.take(most, || most), Err(Error::Exhausted { .. })));
        allowance.take(most, || 0).expect("nothing of it is missing");
        allowance.take(4096, || unreachable!("what was allowed is not asked for again")).unwrap();
    }
}
