//! The result of a survey, as a readable file that tapes can use. All rates are bytes per second.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, directory::nameless};

/// The default file of a profile.
pub const FILE: &str = "outcrop-profile.toml";
/// The version of the file. Other versions are refused.
pub const VERSION: u32 = 1;
/// Faster than any location, in bytes per second.
const RATE_MAX: u64 = 1_000_000_000_000_000;
/// Longer than any profile, in bytes.
const ROOM_BYTES: usize = 64 << 10;

/// The speeds of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The version of the file: [`VERSION`].
    pub version: u32,
    /// The name of the machine.
    pub machine: String,
    /// Its system.
    pub kernel: String,
    /// When it was measured.
    pub date: String,
    /// The cores that could be used.
    pub cores: u64,
    /// The memory of the machine.
    pub memory_bytes: u64,
    /// The speed of its memory.
    pub memory: MemoryProfile,
    /// The speed of directories.
    #[serde(default)]
    pub directories: Vec<DirectoryRates>,
    /// The speed of devices.
    #[serde(default)]
    pub devices: Vec<DeviceRates>,
}

/// The speed of host memory in each of its states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryProfile {
    /// Of touching new memory.
    pub touch_one_core: u64,
    /// Of touching new memory with all cores.
    pub touch_all_cores: u64,
    /// Why memory could not be pinned, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin_refusal: Option<String>,
    /// Untouched memory.
    pub untouched: UntouchedRates,
    /// Touched memory.
    pub touched: TouchedRates,
    /// Pinned memory, if this user may pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<PinnedRates>,
    /// Memory that processes can share (memfd).
    pub shared: SharedMemoryRates,
}

/// The speed of untouched memory. Reading it is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UntouchedRates {
    /// Of copying into it.
    pub write_one_core: u64,
    /// Of copying into it with all cores.
    pub write_all_cores: u64,
}

/// The speed of touched memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TouchedRates {
    /// Of copying into it.
    pub write_one_core: u64,
    /// Of copying into it with all cores.
    pub write_all_cores: u64,
    /// Of reading it.
    pub read_one_core: u64,
    /// Of reading it with all cores.
    pub read_all_cores: u64,
}

/// The speed of pinned memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinnedRates {
    /// Of pinning memory that was touched before.
    pub pin_touched: u64,
    /// Of pinning memory that was not.
    pub pin_untouched: u64,
    /// Of using it.
    pub rates: TouchedRates,
}

/// The speed of memory that processes can share, one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedMemoryRates {
    /// Of the first write.
    pub write_untouched: u64,
    /// Of writing again.
    pub write_touched: u64,
    /// Of reading.
    pub read: u64,
}

/// The speed of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryRates {
    /// The directory.
    pub path: PathBuf,
    /// The number of the file system that it was on.
    pub device: u64,
    /// With `O_DIRECT`, if its file system supports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<FileRates>,
    /// Through the page cache, until the bytes are on the medium.
    pub buffered: FileRates,
}

/// The speed of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRates {
    /// Of the first write.
    pub write_new: u64,
    /// Of overwriting.
    pub overwrite: u64,
    /// Of reading.
    pub read: u64,
}

/// The speed of a device's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRates {
    /// Its kind and number, such as `CUDA 0`.
    pub name: String,
    /// What its maker calls it.
    pub model: String,
    /// The memory that it has.
    pub total_bytes: u64,
    /// Of providing its memory.
    pub map: u64,
    /// Of copying from the host to it.
    pub write: u64,
    /// Of copying from it to the host.
    pub read: u64,
}

/// How fast a location is for a tape, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// Of writing.
    pub write: u64,
    /// Of reading.
    pub read: u64,
}

impl DirectoryRates {
    /// The rates for a tape. It uses `O_DIRECT` if possible, and writes each block for the first
    /// time before it overwrites it.
    pub fn rates(&self) -> Rates {
        let rates = self.direct.unwrap_or(self.buffered);
        Rates { write: rates.write_new, read: rates.read }
    }
}

impl Profile {
    /// Reads a profile from a file, and refuses impossible values.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| file_error(path, "read", source))?;
        let nonsense = |reason: String| Error::Nonsense { path: path.to_owned(), reason };
        let profile: Self = toml::from_str(&text).map_err(|error| nonsense(error.to_string().trim_end().to_owned()))?;
        profile.check().map_err(nonsense)?;
        Ok(profile)
    }

    /// Checks that a profile can be stored there, before it is measured.
    pub fn check_file(path: &Path) -> Result<()> {
        let fail = |source| file_error(path, "write", source);
        if path.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = nameless(directory, OFlags::empty()).map_err(|errno| fail(errno.into()))?;
        fs::File::from(file).write_all(&[0; ROOM_BYTES]).map_err(fail)
    }

    /// Writes it to a file, atomically.
    pub fn store(&self, path: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|error| file_error(path, "write", io::Error::other(error)))?;
        let partial = partial(path);
        let write = || {
            let mut file = fs::File::create(&partial)?;
            file.write_all(text.as_bytes())?;
            // Otherwise a crash could leave the name without the text.
            file.sync_all()?;
            fs::rename(&partial, path)
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&partial);
            file_error(path, "write", source)
        })
    }

    /// Why it is of another machine, if it is: cores or memory differ. Machines of one kind may
    /// share a profile, so the name does not count.
    pub fn stranger(&self) -> Option<String> {
        let (cores, bytes) = (crate::cores() as u64, crate::memory_bytes());
        // The system's own share differs a little between kernel versions.
        let is_other_memory = self.memory_bytes.abs_diff(bytes) > bytes / 10;
        (self.cores != cores || is_other_memory).then(|| {
            format!(
                "it is of {}, with {} cores and {} bytes of memory; here are {cores} cores and {bytes} bytes",
                self.machine, self.cores, self.memory_bytes
            )
        })
    }

    /// The rates of the directory `path`, which need not exist yet: measured there, or above it, or
    /// else elsewhere on the same file system.
    pub fn directory(&self, path: &Path) -> Option<&DirectoryRates> {
        let absolute = std::path::absolute(path).ok()?;
        let there_is = absolute.ancestors().find_map(|ancestor| ancestor.canonicalize().ok())?;
        let device = fs::metadata(&there_is).ok()?.dev();
        let on_same = self.directories.iter().filter(|measured| measured.device == device);
        // A path that does not lie above has length 0 here.
        let shared = |measured: &&DirectoryRates| {
            if there_is.starts_with(&measured.path) { measured.path.components().count() } else { 0 }
        };
        on_same.max_by_key(shared)
    }

    /// Why it is impossible, if it is.
    fn check(&self) -> std::result::Result<(), String> {
        if self.version != VERSION {
            return Err(format!("its version is {} and not {VERSION}", self.version));
        }
        if let Some(relative) = self.directories.iter().find(|measured| !measured.path.is_absolute()) {
            return Err(format!("the directory {} is not an absolute path", relative.path.display()));
        }
        match self.rates().into_iter().find(|(_, rate)| *rate == 0 || *rate > RATE_MAX) {
            Some((name, rate)) => Err(format!("{name} is {rate} bytes per second")),
            None => Ok(()),
        }
    }

    /// Every rate with a name.
    fn rates(&self) -> Vec<(String, u64)> {
        let memory = &self.memory;
        let mut rates = vec![
            ("memory.touch_one_core".to_owned(), memory.touch_one_core),
            ("memory.touch_all_cores".to_owned(), memory.touch_all_cores),
            ("memory.untouched.write_one_core".to_owned(), memory.untouched.write_one_core),
            ("memory.untouched.write_all_cores".to_owned(), memory.untouched.write_all_cores),
            ("memory.shared.write_untouched".to_owned(), memory.shared.write_untouched),
            ("memory.shared.write_touched".to_owned(), memory.shared.write_touched),
            ("memory.shared.read".to_owned(), memory.shared.read),
        ];
        let mut add_touched = |name: &str, touched: &TouchedRates| {
            let named = [
                ("write_one_core", touched.write_one_core),
                ("write_all_cores", touched.write_all_cores),
                ("read_one_core", touched.read_one_core),
                ("read_all_cores", touched.read_all_cores),
            ];
            rates.extend(named.map(|(rate, value)| (format!("memory.{name}.{rate}"), value)));
        };
        add_touched("touched", &memory.touched);
        if let Some(pinned) = &memory.pinned {
            add_touched("pinned.rates", &pinned.rates);
            rates.push(("memory.pinned.pin_touched".to_owned(), pinned.pin_touched));
            rates.push(("memory.pinned.pin_untouched".to_owned(), pinned.pin_untouched));
        }
        for directory in &self.directories {
            let files = [("direct", directory.direct), ("buffered", Some(directory.buffered))];
            for (way, file) in files.into_iter().filter_map(|(way, file)| Some((way, file?))) {
                let named = [("write_new", file.write_new), ("overwrite", file.overwrite), ("read", file.read)];
                rates.extend(named.map(|(rate, value)| (format!("{}: {way}.{rate}", directory.path.display()), value)));
            }
        }
        for device in &self.devices {
            let named = [("map", device.map), ("write", device.write), ("read", device.read)];
            rates.extend(named.map(|(rate, value)| (format!("{}: {rate}", device.name), value)));
        }
        rates
    }
}

/// Where a profile is until it is complete.
fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}", std::process::id()));
    partial.into()
}

fn file_error(path: &Path, attempt: &'static str, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), attempt, source }
}
