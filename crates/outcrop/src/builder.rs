//! The builder: describes a tape, and opens it.

use std::{fmt, io, path::Path, sync::Arc, time::Duration};

use outcrop_engine::{Engine, Options, Rates};
use outcrop_layers::{Device, DeviceKind, DeviceLayer, Dir, DirOptions, Host, Layer, open_device};
use outcrop_plan::MemoryRates;
use outcrop_settings::{DeviceSettings, Settings as _, SharedHostSettings, TapeDir, TapeLayer, TapeSettings};
use outcrop_survey::{DirectoryRates, Profile};

use crate::{Error, ErrorKind, Order, Preference, Result, Size, Tape, Touching};

/// The layers of a tape, fastest first, and its settings. Made by [`Tape::builder`].
///
/// A builder has no effects. [`open`](Self::open) creates, measures and opens what it needs.
#[derive(Default)]
#[must_use = "a builder does nothing until it is opened"]
pub struct TapeBuilder {
    settings: TapeSettings,
    given: Vec<Given>,
}

/// An object that the program has passed to the builder.
enum Given {
    Device(Arc<dyn Device>, Size),
    Layer(Arc<dyn Layer>),
}

impl fmt::Debug for TapeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TapeBuilder").field(&self.settings).finish()
    }
}

impl From<TapeSettings> for TapeBuilder {
    fn from(settings: TapeSettings) -> Self {
        Self { settings, given: Vec::new() }
    }
}

impl TapeBuilder {
    /// A tape from a TOML text, such as `host = "2 GiB"`, `dir = "scratch"` and
    /// `order = "reverse"`, each on a line.
    pub fn from_toml(text: &str) -> Result<Self> {
        TapeSettings::from_toml(text).map(Self::from)
    }

    /// A tape from a JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        TapeSettings::from_json(text).map(Self::from)
    }

    /// The settings so far.
    pub fn settings(&self) -> &TapeSettings {
        &self.settings
    }

    fn add(mut self, layer: TapeLayer) -> Self {
        self.settings.layers.push(layer);
        self
    }

    fn give(mut self, given: Given) -> Self {
        self.given.push(given);
        let index = self.given.len() - 1;
        self.add(TapeLayer::Given(index))
    }

    /// Adds host memory. Saves enter the first host layer, and reads are handed over from it.
    pub fn host(self, size: impl Into<Size>) -> Self {
        self.add(TapeLayer::Host(size.into()))
    }

    /// Adds up to `mine` bytes of a host memory of `total` bytes that several processes share: all
    /// processes of this machine and user with the same name and total. Each process can use what
    /// the others do not use. A process that finds none left waits, and drains to the layers below.
    /// Memory moves between processes in whole chunks. A chunk is a 64th of the total, at most 16
    /// MiB, so shares should be multiples of it.
    pub fn shared_host(self, name: &str, total: impl Into<Size>, mine: impl Into<Size>) -> Self {
        self.add(TapeLayer::SharedHost(SharedHostSettings::new(name, total, mine)))
    }

    /// Adds a directory. The limit is a size, or a share of the free space such as `"90%"`. The
    /// directory is created if it does not exist. When the tape is dropped, all its files are
    /// removed.
    pub fn dir(self, path: impl AsRef<Path>, limit: impl Into<Size>) -> Self {
        self.dir_with(path, limit, DirOptions::default())
    }

    /// Adds a directory with options.
    pub fn dir_with(self, path: impl AsRef<Path>, limit: impl Into<Size>, options: DirOptions) -> Self {
        self.add(TapeLayer::Dir(TapeDir::new(path.as_ref(), limit, options)))
    }

    /// Adds memory of a device. If it is the first layer, saves enter there, and reads are handed
    /// over from there. Host memory below it is registered with the device once all of it has been
    /// touched.
    pub fn device(self, device: Arc<dyn Device>, size: impl Into<Size>) -> Self {
        self.give(Given::Device(device, size.into()))
    }

    /// Like [`device`](Self::device), for device number `index` of this kind, counted from 0. It is
    /// opened with the tape.
    pub fn device_at(self, kind: DeviceKind, index: usize, size: impl Into<Size>) -> Self {
        self.add(TapeLayer::Device(DeviceSettings::new(kind, index, size)))
    }

    /// Adds any other layer.
    pub fn layer(self, layer: Arc<dyn Layer>) -> Self {
        self.give(Given::Layer(layer))
    }

    /// Announces the order in which snapshots will be read. Default: reverse.
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// Sets the number of helper threads. Default: one for each layer, and at most four.
    pub fn helpers(mut self, count: usize) -> Self {
        self.settings.helpers = Some(count);
        self
    }

    /// Pins helper threads to these cores, in turn, to keep them off the cores of compute threads.
    pub fn helper_cores(mut self, cores: &[usize]) -> Self {
        self.settings.helper_cores = cores.to_vec();
        self
    }

    /// Sets how many threads a large copy may use. Default: all cores.
    pub fn copy_threads(mut self, count: usize) -> Self {
        self.settings.copy_threads = Some(count);
        self
    }

    /// Records a timeline of the run, for [`Tape::write_trace`].
    pub fn trace(mut self, is_traced: bool) -> Self {
        self.settings.is_traced = is_traced;
        self
    }

    /// Logs every event and decision to a file, from which the run can be replayed.
    pub fn log_file(mut self, path: impl AsRef<Path>) -> Self {
        self.settings.log_file = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the timeout of a call that waits for slots which only the program can give back.
    /// Default: 30 seconds.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Sets when host memory is touched (pre-faulted) before it is used. Default: as measurements
    /// suggest.
    pub fn touching(mut self, touching: Touching) -> Self {
        self.settings.touching = touching;
        self
    }

    /// Sets whether host memory is pinned once all of it has been touched. Programs of one machine
    /// take turns with that. If the system does not allow it, a warning is logged. Default: yes.
    pub fn pin(mut self, is_pinned: bool) -> Self {
        self.settings.is_pinned = is_pinned;
        self
    }

    /// Sets how to choose between several possible layers: by measured speed, or by their order.
    /// Default: by speed.
    pub fn preference(mut self, preference: Preference) -> Self {
        self.settings.preference = preference;
        self
    }

    /// Starts with the results of a survey of this machine's memory and directories
    /// (`outcrop survey` writes such a file), instead of measuring them first. Measurements during
    /// the run replace them.
    pub fn profile(mut self, path: impl AsRef<Path>) -> Self {
        self.settings.profile = Some(path.as_ref().to_owned());
        self
    }

    /// Opens the tape. Environment variables override its settings (`OUTCROP_HOST="8 GiB"`).
    pub fn open(self) -> Result<Tape> {
        let told = self.settings.in_force()?;
        let mut options = Options {
            order: told.order,
            helpers: told.helpers,
            helper_cores: told.helper_cores,
            copy_threads: told.copy_threads,
            is_traced: told.is_traced,
            log: told.log_file,
            patience: Some(told.patience),
            touching: told.touching,
            is_unpinned: !told.is_pinned,
            preference: told.preference,
            ..Options::default()
        };
        if let Some(path) = &told.profile {
            let profile = Profile::load(path)?;
            if let Some(reason) = profile.stranger() {
                tracing::warn!(profile = %path.display(), "the profile is not of this machine: {reason}");
            }
            options.rates = told.layers.iter().map(|layer| rates(layer, &profile)).collect();
            options.memory_rates = MemoryRates {
                pinned: profile.memory.pinned.as_ref().map(|pinned| pinned.rates.write_all_cores),
                touched: Some(profile.memory.touched.write_all_cores),
                untouched: Some(profile.memory.untouched.write_all_cores),
                touch: Some(profile.memory.touch_one_core),
            };
        }
        let layers = told.layers.iter().map(|layer| make(layer, &self.given)).collect::<Result<Vec<_>>>()?;
        Ok(Tape::new(Engine::open(layers, &options)?))
    }
}

/// The rates of a layer in a profile.
fn rates(layer: &TapeLayer, profile: &Profile) -> Rates {
    let known = match layer {
        TapeLayer::Dir(dir) => {
            let known = profile.directory(&dir.path).map(DirectoryRates::rates);
            if known.is_none() {
                tracing::warn!(directory = %dir.path.display(), "the profile knows nothing of this directory");
            }
            known
        }
        _ => None,
    };
    Rates { write: known.map(|rates| rates.write), read: known.map(|rates| rates.read) }
}

/// Makes a layer from its settings, or returns the one that the program has passed.
fn make(layer: &TapeLayer, given: &[Given]) -> Result<Arc<dyn Layer>> {
    let bytes = |size: &Option<Size>, what: &str| {
        let size = size.as_ref().ok_or_else(|| Error::new(ErrorKind::Usage, format!("{what} is missing")))?;
        size.bytes().map_err(|error| error.within(what))
    };
    Ok(match layer {
        TapeLayer::Host(size) => {
            Arc::new(Host::new(size.bytes().map_err(|error| error.within("the host memory of a tape"))?)?)
        }
        TapeLayer::SharedHost(shared) => {
            let total = bytes(&shared.total, "the total of shared host memory")?;
            Arc::new(Host::shared(&shared.name, total, bytes(&shared.mine, "this process's share of host memory")?)?)
        }
        TapeLayer::Device(device) => {
            let bytes = bytes(&device.size, "the memory of a device")?;
            Arc::new(DeviceLayer::new(open_device(device.kind, device.index)?, bytes, None)?)
        }
        TapeLayer::Dir(dir) => {
            let limit = dir.limit.bytes_of(|| free_bytes(&dir.path));
            let limit = limit.map_err(|error| error.within(format_args!("the limit of {}", dir.path.display())))?;
            Arc::new(Dir::open(&dir.path, limit, dir.options.clone())?)
        }
        TapeLayer::Given(index) => match given.get(*index) {
            Some(Given::Layer(layer)) => Arc::clone(layer),
            Some(Given::Device(device, size)) => {
                let bytes = size.bytes().map_err(|error| error.within("the memory of a device"))?;
                Arc::new(DeviceLayer::new(Arc::clone(device), bytes, None)?)
            }
            None => {
                let problem = "these settings are of a builder that was given a layer, and this one was not";
                return Err(Error::new(ErrorKind::Usage, problem));
            }
        },
    })
}

/// The free space of the file system of a directory, which may not exist yet.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = std::path::absolute(path)?;
    let there = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&path);
    let space = rustix::fs::statvfs(there)?;
    Ok(space.f_bavail * space.f_frsize)
}
