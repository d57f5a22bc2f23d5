//! Control groups with a limit on memory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use crate::say;

/// A control group with a limit on memory, removed when it is dropped.
pub struct Group(PathBuf);

impl Group {
    /// A group below the group of this process, or below the nearest group above it in which that
    /// is possible.
    pub fn new(limit: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let mount = |kind: &str, option: &str| {
            let line = mounts.lines().find(|line| {
                let (_, what) = line.split_once(" - ").unwrap();
                what.split(' ').next() == Some(kind) && what.split([' ', ',']).any(|part| part == option)
            });
            line.map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()))
        };
        let own = |marker: &str| groups.lines().find_map(|line| Some(line.split_once(marker)?.1.to_owned()));
        let version_one = mount("cgroup", "memory").zip(own(":memory:/")).map(|place| (place, "memory.limit_in_bytes"));
        let version_two = mount("cgroup2", "rw").zip(own("0::/")).map(|place| (place, "memory.max"));
        let mut reason = "no memory controller is mounted".to_owned();
        for ((mount, path), file) in version_one.into_iter().chain(version_two) {
            for parent in mount.join(path).ancestors().take_while(|path| path.starts_with(&mount)) {
                match Self::make(parent, file, limit) {
                    Ok(group) => return Ok(group),
                    Err(error) => reason = format!("{}: {error}", parent.display()),
                }
            }
        }
        Err(reason)
    }

    fn make(parent: &Path, file: &str, limit: u64) -> io::Result<Self> {
        // Tests of one process create groups at the same time.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let group = Self(parent.join(format!("outcrop-test-{}-{number}", std::process::id())));
        fs::create_dir(&group.0)?;
        // The file does not exist if the controller is not enabled.
        let mut limit_file = fs::OpenOptions::new().write(true).open(group.0.join(file))?;
        io::Write::write_all(&mut limit_file, limit.to_string().as_bytes())?;
        Ok(group)
    }

    /// How much memory its processes have taken, with what the system may reclaim.
    pub fn used_bytes(&self) -> u64 {
        let files = ["memory.usage_in_bytes", "memory.current"].map(|name| fs::read_to_string(self.0.join(name)));
        files.into_iter().find_map(Result::ok).unwrap().trim().parse().unwrap()
    }

    /// Moves a process into it.
    pub fn add(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group stays in use for a moment after its last process has ended.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        say(format_args!("{} stays", self.0.display()));
    }
}
