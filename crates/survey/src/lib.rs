//! Measures the locations where a machine can keep snapshots: memory in each of its states,
//! directories, devices.
//!
//! A survey takes a few seconds, moves a bounded number of bytes, and leaves nothing behind: its
//! files have no name. Its result is a [`Profile`]. It can be stored, and tapes start with its
//! rates before they have measured any.
//!
//! ```no_run
//! use outcrop_survey::{Options, Survey};
//!
//! let profile = Survey::run(&["scratch".into()], &Options::default(), &mut |what| eprintln!("measuring: {what}"))?;
//! profile.store("outcrop-profile.toml".as_ref())?;
//! # Ok::<(), outcrop_survey::Error>(())
//! ```

#![forbid(unsafe_code)]

mod device;
mod directory;
mod error;
mod memory;
mod preference;
mod profile;
mod rate;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

pub use error::{Error, Result};
pub use preference::Location;
pub use profile::{
    DeviceRates, DirectoryRates, FILE, FileRates, MemoryProfile, PinnedRates, Profile, Rates, SharedMemoryRates,
    TouchedRates, UntouchedRates, VERSION,
};

/// The least bytes of a measurement: fewer would fit into caches.
const BYTES_MIN: u64 = 8 << 20;
/// A survey uses this fraction of what is free: one in ten.
const FREE_SHARE: u64 = 10;

/// How much effort a survey takes.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most bytes to move at a time; fewer if a tenth of what is free is less.
    pub bytes_max: u64,
    /// The most time for a measurement; slow locations move fewer bytes.
    pub time_max: Duration,
    /// Rounds of each measurement, of which the median counts; fewer for slow locations.
    pub rounds: usize,
    /// Whether to measure devices as well.
    pub has_devices: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes_max: 128 << 20, time_max: Duration::from_millis(250), rounds: 3, has_devices: true }
    }
}

/// The survey of a machine.
#[derive(Debug)]
pub struct Survey;

impl Survey {
    /// Measures memory, these directories, and devices. Tells `progress` what comes next.
    ///
    /// Fails before it measures anything if one of the directories cannot be measured.
    pub fn run(directories: &[PathBuf], options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Profile> {
        let measurable = directories
            .iter()
            .map(|path| directory::Directory::check(path, options))
            .collect::<Result<Vec<directory::Directory>>>()?;
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let memory = memory::measure(options, progress)?;
        let mut directories = Vec::new();
        for directory in &measurable {
            directories.push(directory.measure(options, progress)?);
        }
        let devices = if options.has_devices { device::measure_all(options, progress) } else { Vec::new() };
        Ok(Profile {
            version: VERSION,
            machine: text(system.nodename()),
            kernel: format!("{} {}", text(system.sysname()), text(system.release())),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            cores: cores() as u64,
            memory_bytes: memory_bytes(),
            memory,
            directories,
            devices,
        })
    }

    /// Whether a directory can be measured; an error that says why not, if not.
    pub fn check(directory: &Path, options: &Options) -> Result<()> {
        directory::Directory::check(directory, options).map(drop)
    }

    /// The default: the current directory and the temporary one, if they can be measured and are on
    /// different file systems.
    pub fn usual_directories(options: &Options) -> Vec<PathBuf> {
        let mut usual: Vec<directory::Directory> = Vec::new();
        for path in [PathBuf::from("."), std::env::temp_dir()] {
            match directory::Directory::check(&path, options) {
                Ok(other) if usual.iter().all(|known| known.device() != other.device()) => usual.push(other),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "this directory is left out"),
            }
        }
        usual.iter().map(|directory| directory.path().to_owned()).collect()
    }
}

/// How much to move at a time if this many bytes are free; none if that is too little.
fn bytes_of(free_bytes: u64, options: &Options) -> Option<u64> {
    let bytes = (free_bytes / FREE_SHARE).min(options.bytes_max) / rate::BLOCK_BYTES * rate::BLOCK_BYTES;
    (bytes >= BYTES_MIN).then_some(bytes)
}

/// The memory that this process could take now, if the system says so.
fn memory_left() -> u64 {
    outcrop_memory::memory_left().unwrap_or(u64::MAX)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(u64::from(system.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_moves_whole_blocks_and_no_more_than_a_tenth_of_what_is_free() {
        const MIB: u64 = 1 << 20;
        let options = Options::default();
        let cases = [(0, None), (79, None), (80, Some(8)), (119, Some(8)), (120, Some(12)), (1024, Some(100))];
        for (free, wanted) in cases {
            assert_eq!(bytes_of(free * MIB, &options), wanted.map(|wanted| wanted * MIB), "{free} MiB are free");
        }
        for free_bytes in [1280 * MIB, u64::MAX] {
            assert_eq!(bytes_of(free_bytes, &options), Some(options.bytes_max));
        }
        // It needs twice as much memory, so each part has half.
        assert!(
            matches!(memory::bytes(159 * MIB, &options), Err(Error::LittleMemory { needed_bytes, .. }) if needed_bytes == 160 * MIB)
        );
        assert_eq!(memory::bytes(160 * MIB, &options).unwrap(), 8 * MIB);
        assert_eq!(memory::bytes(u64::MAX, &options).unwrap(), options.bytes_max);
    }
}
