//! How a tape is put together.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outcrop_engine::{Engine, Options, Rates};
use outcrop_layers::{Device, DeviceLayer, Dir, DirOptions, Host, Layer};
use outcrop_plan::MemoryRates;
use outcrop_survey::{DirectoryRates, Profile};

use crate::{Error, Order, Ranking, Result, Tape, Touching};

/// A number of bytes, or a text such as `"2 GiB"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// To be understood when the tape is opened.
    Text(String),
}

impl Size {
    /// The number of bytes.
    pub fn bytes(&self) -> Result<u64> {
        let bytes = match self {
            Self::Bytes(bytes) => *bytes,
            Self::Text(text) => text.parse::<bytesize::ByteSize>().map_err(|_| Error::Size(text.clone()))?.as_u64(),
        };
        match (bytes, self) {
            (0, Self::Text(text)) => Err(Error::Size(text.clone())),
            (0, Self::Bytes(_)) => Err(Error::Size("0".to_owned())),
            _ => Ok(bytes),
        }
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Size {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The layers of a tape, fastest first, and how it is to work. Made by [`Tape::builder`].
#[derive(Default)]
pub struct TapeBuilder {
    layers: Vec<Wish>,
    options: Options,
    profile: Option<PathBuf>,
}

/// A layer that is made when the tape is opened.
enum Wish {
    Host(Size),
    SharedHost(String, Size, Size),
    Device(Arc<dyn Device>, Size),
    Dir(PathBuf, Size, DirOptions),
    Made(Arc<dyn Layer>),
}

impl TapeBuilder {
    /// Adds host memory. The first host layer is where saves enter and reads are handed over.
    pub fn host(mut self, size: impl Into<Size>) -> Self {
        self.layers.push(Wish::Host(size.into()));
        self
    }

    /// Adds up to `mine` of a host memory of `total` that several processes share: all of this machine and user that give the
    /// same name and total. What one of them does not use is there for the others; who finds none left waits, and drains to
    /// the layers below. Memory goes from one to another in whole pieces, a 64th of the total but no more than 16 MiB: shares should be
    /// multiples of that.
    pub fn shared_host(mut self, name: &str, total: impl Into<Size>, mine: impl Into<Size>) -> Self {
        self.layers.push(Wish::SharedHost(name.to_owned(), total.into(), mine.into()));
        self
    }

    /// Adds a directory. It is made if it is missing, and nothing is left in it when the tape is dropped.
    pub fn dir(self, path: impl AsRef<Path>, size: impl Into<Size>) -> Self {
        self.dir_with(path, size, DirOptions::default())
    }

    /// Adds a directory that is used in a certain way.
    pub fn dir_with(mut self, path: impl AsRef<Path>, size: impl Into<Size>, options: DirOptions) -> Self {
        self.layers.push(Wish::Dir(path.as_ref().to_owned(), size.into(), options));
        self
    }

    /// Adds memory of a device. If it comes first, saves enter there and reads are handed over from there, and host memory
    /// below it is registered with the device once all of it has been touched.
    pub fn device(mut self, device: Arc<dyn Device>, size: impl Into<Size>) -> Self {
        self.layers.push(Wish::Device(device, size.into()));
        self
    }

    /// Adds any other layer.
    pub fn layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layers.push(Wish::Made(layer));
        self
    }

    /// Announces the order in which snapshots will be read; reverse where it is not said.
    pub fn order(mut self, order: Order) -> Self {
        self.options.order = order;
        self
    }

    /// Sets the number of helper threads.
    pub fn helpers(mut self, count: usize) -> Self {
        self.options.helpers = Some(count);
        self
    }

    /// Pins helper threads to these cores, in turn, so that compute threads keep theirs.
    pub fn helper_cores(mut self, cores: &[usize]) -> Self {
        self.options.helper_cores = cores.to_vec();
        self
    }

    /// Sets how many threads a large copy may use.
    pub fn copy_threads(mut self, count: usize) -> Self {
        self.options.copy_threads = Some(count);
        self
    }

    /// Keeps a timeline of the run, for [`Tape::write_trace`].
    pub fn trace(mut self, is_traced: bool) -> Self {
        self.options.is_traced = is_traced;
        self
    }

    /// Writes every event and decision to a file, from which the run can be decided again.
    pub fn log(mut self, path: impl AsRef<Path>) -> Self {
        self.options.log = Some(path.as_ref().to_owned());
        self
    }

    /// Sets how long a call waits for slots that only this program can give back, before it fails.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
        self
    }

    /// Sets when host memory is touched ahead of its use; as measurements advise where it is not said.
    pub fn touching(mut self, touching: Touching) -> Self {
        self.options.touching = touching;
        self
    }

    /// Sets whether host memory is pinned once all of it has been touched, in turn with other programs of this machine; yes
    /// where it is not said. A system that does not allow it is a warning.
    pub fn pin(mut self, is_pinned: bool) -> Self {
        self.options.is_unpinned = !is_pinned;
        self
    }

    /// Sets how to choose between layers that would all do: by measured speed, or by their order.
    pub fn ranking(mut self, ranking: Ranking) -> Self {
        self.options.ranking = ranking;
        self
    }

    /// Begins with what a survey has found out about this machine's memory and directories (`outcrop survey` writes such a
    /// file), instead of finding it out. What is measured while the tape is used takes over.
    pub fn profile(mut self, path: impl AsRef<Path>) -> Self {
        self.profile = Some(path.as_ref().to_owned());
        self
    }

    /// Opens the tape.
    pub fn open(mut self) -> Result<Tape> {
        if let Some(path) = &self.profile {
            let profile = Profile::load(path)?;
            if let Some(reason) = profile.stranger() {
                tracing::warn!(profile = %path.display(), "the profile is not of this machine: {reason}");
            }
            self.options.rates = self.layers.iter().map(|wish| wish.rates(&profile)).collect();
            self.options.memory_rates = MemoryRates {
                pinned: profile.memory.pinned.as_ref().map(|pinned| pinned.rates.write_all_cores),
                touched: Some(profile.memory.touched.write_all_cores),
                untouched: Some(profile.memory.untouched.write_all_cores),
                touch: Some(profile.memory.touch_one_core),
            };
        }
        let layers = self.layers.into_iter().map(Wish::make).collect::<Result<Vec<_>>>()?;
        Ok(Tape::new(Engine::open(layers, &self.options)?))
    }
}

impl Wish {
    /// What a survey has found out about it.
    fn rates(&self, profile: &Profile) -> Rates {
        let known = match self {
            Self::Dir(path, ..) => {
                let known = profile.directory(path).map(DirectoryRates::rates);
                if known.is_none() {
                    tracing::warn!(directory = %path.display(), "the profile knows nothing of this directory");
                }
                known
            }
            _ => None,
        };
        Rates { write: known.map(|rates| rates.write), read: known.map(|rates| rates.read) }
    }

    fn make(self) -> Result<Arc<dyn Layer>> {
        let layer_error = |error| Error::Engine(outcrop_engine::Error::Layer(error));
        Ok(match self {
            Self::Host(size) => Arc::new(Host::new(size.bytes()?).map_err(layer_error)?),
            Self::SharedHost(name, total, mine) => {
                Arc::new(Host::shared(&name, total.bytes()?, mine.bytes()?).map_err(layer_error)?)
            }
            Self::Device(device, size) => Arc::new(DeviceLayer::new(device, size.bytes()?, None).map_err(layer_error)?),
            Self::Dir(path, size, options) => Arc::new(Dir::open(&path, size.bytes()?, options).map_err(layer_error)?),
            Self::Made(layer) => layer,
        })
    }
}
