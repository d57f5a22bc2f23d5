//! The settings of a tape.

use std::{path::PathBuf, time::Duration};

use outcrop_layers::{DeviceKind, DirOptions, Method};
use outcrop_plan::{Order, Preference, Touching};
use toml::Value;

use crate::{
    Setting, Settings, Size,
    table::rows,
    value::{Bytes, Count, Readable, Threads, table},
};

/// The default limit of a directory: this share of its free space.
const FREE: &str = "90%";

/// The settings of a tape: its layers, fastest first, and how it works.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TapeSettings {
    /// The layers, fastest first.
    pub layers: Vec<TapeLayer>,
    /// The order in which snapshots will be read.
    pub order: Order,
    /// The number of helper threads. Default: chosen by the number of layers.
    pub helpers: Option<usize>,
    /// The cores that helper threads are pinned to, in turn.
    pub helper_cores: Vec<usize>,
    /// The number of threads that a large copy may use. Default: all cores.
    pub copy_threads: Option<usize>,
    /// How long a call waits for slots that only the program can give back.
    pub patience: Duration,
    /// When host memory is touched (pre-faulted) ahead of its use.
    pub touching: Touching,
    /// Whether host memory is pinned once all of it is touched.
    pub is_pinned: bool,
    /// How to choose between layers that have room.
    pub preference: Preference,
    /// A survey's profile of this machine.
    pub profile: Option<PathBuf>,
    /// Whether to record a timeline.
    pub is_traced: bool,
    /// A file for every event and decision.
    pub log_file: Option<PathBuf>,
}

/// One layer of a tape.
#[derive(Debug, Clone, PartialEq)]
pub enum TapeLayer {
    /// Memory of a device.
    Device(DeviceSettings),
    /// Host memory.
    Host(Size),
    /// Host memory that several processes share.
    SharedHost(SharedHostSettings),
    /// A directory.
    Dir(TapeDir),
    /// An object that the program has passed to the builder: the first, the second, and so on.
    Given(usize),
}

/// Memory of a device that is opened with the tape.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeviceSettings {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its index among the devices of its kind, counted from 0.
    pub index: usize,
    /// How much of its memory to use.
    pub size: Option<Size>,
}

/// Up to `mine` of `total` bytes of host memory that several processes share.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SharedHostSettings {
    /// The name that the processes use for it.
    pub name: String,
    /// The total for all processes.
    pub total: Option<Size>,
    /// How much this process may use.
    pub mine: Option<Size>,
}

/// A directory of a tape.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TapeDir {
    /// Its path.
    pub path: PathBuf,
    /// How much the tape may keep there.
    pub limit: Size,
    /// How it is used.
    pub options: DirOptions,
}

impl Default for TapeSettings {
    fn default() -> Self {
        Self {
            layers: Vec::new(),
            order: Order::Reverse,
            helpers: None,
            helper_cores: Vec::new(),
            copy_threads: None,
            patience: Duration::from_secs(30),
            touching: Touching::Chosen,
            is_pinned: true,
            preference: Preference::Measured,
            profile: None,
            is_traced: false,
            log_file: None,
        }
    }
}

impl Settings for TapeSettings {
    const OF: &'static str = "a tape";

    const TABLE: &'static [Setting<Self>] = rows! {
        layers: Vec<AnyLayer> = "the four below, in this order",
            "The whole stack, fastest first, for an order that `device`, `host`, `shared_host` and `dir` cannot give; each of those then replaces all layers of its kind.",
            |tape, layers| tape.restack(layers.into_iter().flat_map(|layer| layer.0).collect());
        device: Vec<DeviceSettings> = "none",
            "Memory of a device, in which saves then begin.",
            |tape, devices| tape.replace(0, devices.into_iter().map(TapeLayer::Device).collect());
        host: Size = "required, unless shared_host or device is given",
            "Host memory for snapshots.",
            |tape, size| tape.replace(1, vec![TapeLayer::Host(size)]);
        shared_host: SharedHostSettings = "none",
            "Host memory that several processes of this machine share.",
            |tape, shared| tape.replace(2, vec![TapeLayer::SharedHost(shared)]);
        dir: Vec<TapeDir> = "none",
            "Directories for what does not fit into memory, fastest first; nothing is left in them.",
            |tape, dirs| tape.replace(3, dirs.into_iter().map(TapeLayer::Dir).collect());
        order: Order = "\"reverse\"",
            "The order in which snapshots will be read; a list of keys is a schedule, and a key may repeat.",
            |tape, order| tape.order = order;
        helpers: Threads = "one for each layer, at most 4",
            "Helper threads that move snapshots in the background.",
            |tape, count| tape.helpers = Some(count.0);
        helper_cores: Vec<usize> = "[]",
            "Cores that helper threads are pinned to, in turn, so that compute threads keep theirs.",
            |tape, cores| tape.helper_cores = cores;
        copy_threads: Threads = "all cores",
            "Threads that a large copy may use.",
            |tape, count| tape.copy_threads = Some(count.0);
        patience_seconds: Duration = "30",
            "How long a call waits for slots that only this program can give back, before it fails.",
            |tape, patience| tape.patience = patience;
        touching: Touching = "\"chosen\"",
            "When host memory is touched (pre-faulted) ahead of its use: by measurements, always, while nothing is written to it, or never.",
            |tape, touching| tape.touching = touching;
        pin: bool = "true",
            "Whether host memory is pinned (locked) once all of it has been touched.",
            |tape, is_pinned| tape.is_pinned = is_pinned;
        preference: Preference = "\"measured\"",
            "How to choose between layers that would all do: by measured speed, or by their order.",
            |tape, preference| tape.preference = preference;
        profile: PathBuf = "none",
            "A profile of this machine, made by `outcrop survey`, with speeds to begin with.",
            |tape, path| tape.profile = Some(path);
        trace: bool = "false",
            "Whether to keep a timeline for Perfetto and chrome://tracing.",
            |tape, is_traced| tape.is_traced = is_traced;
        log_file: PathBuf = "none",
            "A file for every event and decision, from which the run can be replayed.",
            |tape, path| tape.log_file = Some(path);
    };

    fn check(&self) -> Result<(), String> {
        if self.layers.is_empty() || self.layers.iter().all(|layer| matches!(layer, TapeLayer::Dir(_))) {
            return Err("host is missing; a tape needs host memory, such as host = \"2 GiB\"".to_owned());
        }
        Ok(())
    }
}

impl TapeLayer {
    /// The place of layers of this kind in a stack that is described by names.
    fn position(&self) -> Option<usize> {
        match self {
            Self::Device(_) => Some(0),
            Self::Host(_) => Some(1),
            Self::SharedHost(_) => Some(2),
            Self::Dir(_) => Some(3),
            Self::Given(_) => None,
        }
    }
}

impl TapeSettings {
    /// Replaces all layers with this position: puts the new ones where the first of those was, or
    /// before the first layer with a later position. Objects of the program stay.
    fn replace(&mut self, position: usize, layers: Vec<TapeLayer>) {
        let is_same = |layer: &TapeLayer| layer.position() == Some(position);
        let is_later = |layer: &TapeLayer| layer.position().is_some_and(|other| other > position);
        let place = self.layers.iter().position(is_same).or_else(|| self.layers.iter().position(is_later));
        let place = place.unwrap_or(self.layers.len());
        self.layers.retain(|layer| !is_same(layer));
        self.layers.splice(place..place, layers);
    }

    /// Replaces all layers. Objects of the program stay, above or below the new layers as they
    /// were.
    fn restack(&mut self, layers: Vec<TapeLayer>) {
        let is_given = |layer: &TapeLayer| layer.position().is_none();
        let place = self.layers.iter().position(|layer| !is_given(layer)).unwrap_or(self.layers.len());
        self.layers.retain(is_given);
        self.layers.splice(place..place, layers);
    }
}

/// One layer of the setting `layers`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct AnyLayer(Vec<TapeLayer>);

impl Settings for AnyLayer {
    const OF: &'static str = "a layer";

    const TABLE: &'static [Setting<Self>] = rows! {
        device: DeviceSettings = "none", "Memory of a device.", |layer, device| layer.0.push(TapeLayer::Device(device));
        host: Size = "none", "Host memory.", |layer, size| layer.0.push(TapeLayer::Host(size));
        shared_host: SharedHostSettings = "none",
            "Host memory that several processes of this machine share.",
            |layer, shared| layer.0.push(TapeLayer::SharedHost(shared));
        dir: TapeDir = "none", "A directory.", |layer, dir| layer.0.push(TapeLayer::Dir(dir));
    };

    fn check(&self) -> Result<(), String> {
        match self.0.len() {
            1 => Ok(()),
            _ => Err(
                "a layer is one of device, host, shared_host and dir; write each in a table (dictionary) of its own"
                    .to_owned(),
            ),
        }
    }
}

impl Readable for AnyLayer {
    fn kind() -> String {
        "[table](#layers-in-any-order)".to_owned()
    }

    fn python() -> String {
        "Layer".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        table(value)
    }
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self { kind: DeviceKind::OpenCl, index: 0, size: None }
    }
}

impl DeviceSettings {
    /// This much memory of device `index`, counted from 0, of a kind.
    pub fn new(kind: DeviceKind, index: usize, size: impl Into<Size>) -> Self {
        Self { kind, index, size: Some(size.into()) }
    }
}

impl Settings for DeviceSettings {
    const OF: &'static str = "a device";

    const TABLE: &'static [Setting<Self>] = rows! {
        kind: DeviceKind = "\"opencl\"", "Its driver.", |device, kind| device.kind = kind;
        index: usize = "0", "Its number among those of its kind, from 0.", |device, index| device.index = index;
        size: Size = "required", "How much of its memory.", |device, size| device.size = Some(size);
    };

    fn check(&self) -> Result<(), String> {
        needs(self.size.is_some(), "size")
    }
}

impl SharedHostSettings {
    /// Up to `mine` of the `total` of all processes that use this name.
    pub fn new(name: &str, total: impl Into<Size>, mine: impl Into<Size>) -> Self {
        Self { name: name.to_owned(), total: Some(total.into()), mine: Some(mine.into()) }
    }
}

impl Settings for SharedHostSettings {
    const OF: &'static str = "shared host memory";

    const TABLE: &'static [Setting<Self>] = rows! {
        name: String = "required", "What all processes that share it call it.", |shared, name| shared.name = name;
        total: Size = "required", "How much all of them have together.", |shared, size| shared.total = Some(size);
        mine: Size = "required", "How much this process may use.", |shared, size| shared.mine = Some(size);
    };

    fn check(&self) -> Result<(), String> {
        needs(!self.name.is_empty(), "name")?;
        needs(self.total.is_some(), "total")?;
        needs(self.mine.is_some(), "mine")
    }
}

impl Default for TapeDir {
    fn default() -> Self {
        Self { path: PathBuf::new(), limit: FREE.into(), options: DirOptions::default() }
    }
}

impl TapeDir {
    /// A directory with a limit and options.
    pub fn new(path: impl Into<PathBuf>, limit: impl Into<Size>, options: DirOptions) -> Self {
        Self { path: path.into(), limit: limit.into(), options }
    }
}

impl Settings for TapeDir {
    const OF: &'static str = "a directory of a tape";

    const TABLE: &'static [Setting<Self>] = rows! {
        path: PathBuf = "required", "Where it is; it is created if it is missing.", |dir, path| dir.path = path;
        limit: Size = "\"90%\"",
            "How much the tape may keep there; a percentage is of what is free when the tape is opened.",
            |dir, size| dir.limit = size;
        direct: bool = "true",
            "Whether to bypass the page cache (O_DIRECT) where the file system can.",
            |dir, is_direct| dir.options.direct = is_direct;
        method: Method = "`OUTCROP_IO`, else `\"uring\"` where the system allows it",
            "How bytes are moved: many requests at a time by io_uring, or one at a time.",
            |dir, method| dir.options.method = Some(method);
        depth: Count = "32",
            "Requests that are under way at a time.",
            |dir, depth| dir.options.depth = depth.0.try_into().unwrap_or(u32::MAX);
        request: Bytes = "what was measured to be best for the method",
            "The most that one request moves.",
            |dir, bytes| dir.options.request_bytes = Some(bytes.0);
        segment: Bytes = "\"256 MiB\"",
            "The length of the files in the directory.",
            |dir, bytes| dir.options.segment_bytes = bytes.0;
        register: bool = "true",
            "Whether to register host memory with the kernel, which spares work at each request.",
            |dir, is_registered| dir.options.register = is_registered;
    };

    fn check(&self) -> Result<(), String> {
        needs(!self.path.as_os_str().is_empty(), "path")
    }
}

fn needs(is_there: bool, name: &str) -> Result<(), String> {
    if is_there { Ok(()) } else { Err(format!("{name} is missing")) }
}

impl Readable for TapeDir {
    fn kind() -> String {
        "path or [table](#directories-of-a-tape)".to_owned()
    }

    fn python() -> String {
        "Path | TapeDir".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Table(_) => table(value),
            path => Ok(Self { path: PathBuf::read(path)?, ..Self::default() }),
        }
    }
}

impl Readable for DeviceSettings {
    fn kind() -> String {
        "[table](#devices)".to_owned()
    }

    fn python() -> String {
        "Device".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        table(value)
    }
}

impl Readable for SharedHostSettings {
    fn kind() -> String {
        "[table](#shared-host-memory)".to_owned()
    }

    fn python() -> String {
        "SharedHost".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        table(value)
    }
}
