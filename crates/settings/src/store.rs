//! The settings of a store.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use outcrop_format::HashKind;
use outcrop_layers::DeviceKind;
use outcrop_plan::{Retention, Rule};
use outcrop_track::Way;
use toml::Value;

use crate::{
    ParitySettings, Setting, Settings, Size,
    parity::AnyCode,
    table::rows,
    value::{Count, Readable, Threads, table, wrong},
};

/// How to compress blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// With LZ4, if that makes the transfer to the first directory faster.
    Lz4,
    /// With Zstandard at this level (1 to 22), if that makes the transfer to the first directory
    /// faster.
    Zstd(i32),
}

/// Which equal blocks to store only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Dedup {
    /// Blocks that have not changed since the previous version.
    #[default]
    Versions,
    /// Also equal blocks within one version.
    Inside,
    /// Also equal blocks of several ranks in one version. The ranks must see each other's files in
    /// every directory.
    Ranks,
}

/// The settings of a store: host memory, directories, fastest first, and how it works.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoreSettings {
    /// The host memory that versions pass through.
    pub host: Size,
    /// The directories, fastest first.
    pub dirs: Vec<StoreDir>,
    /// The processes that save together.
    pub ranks: RanksSettings,
    /// How nodes may be lost.
    pub parity: ParitySettings,
    /// Which versions to keep in each directory.
    pub keep: Retention,
    /// Which versions to keep in single directories (0 is the first), if different from the others.
    pub keep_on: BTreeMap<usize, Retention>,
    /// When to save.
    pub interval: Option<Rule>,
    /// The mean time between failures that make each directory's last version necessary. The last
    /// value holds for all further directories.
    pub failures: Vec<Duration>,
    /// How to compress blocks.
    pub compression: Compression,
    /// Which equal blocks to store only once.
    pub dedup: Dedup,
    /// The extra memory for copying in the background. Without it, a save copies at once.
    pub live: Option<Size>,
    /// Whether only changed blocks are written.
    pub is_incremental: bool,
    /// How to find changes.
    pub tracking: Way,
    /// Whether the program reports what hardware writes to pinned memory.
    pub marks_pinned: bool,
    /// The size of blocks.
    pub block: Size,
    /// The hash with which blocks are compared and verified.
    pub hash: HashKind,
    /// Devices that hash if they are faster than the processor.
    pub hash_devices: Vec<HashDevice>,
    /// Whether blocks with equal hashes are also compared byte by byte.
    pub is_certain: bool,
    /// How many versions may be in flight at once.
    pub in_flight: usize,
    /// How many packs a version may consist of.
    pub chain_max: usize,
    /// Whether host memory is pinned once all of it is touched.
    pub is_pinned: bool,
    /// The number of threads that hash and copy. Default: all cores.
    pub threads: Option<usize>,
}

/// A device that hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashDevice {
    /// Its driver.
    pub kind: DeviceKind,
    /// Its index among the devices of its kind, counted from 0.
    pub index: usize,
}

/// A directory of a store.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoreDir {
    /// Its files.
    pub files: StoreFiles,
    /// How much this rank may keep there.
    pub limit: Option<Size>,
    /// Which versions to keep there, if different from the other directories.
    pub keep: Retention,
}

/// Where the files of a store's directory are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreFiles {
    /// In a directory of the file system.
    Path(PathBuf),
    /// In an object store.
    Object(StoreObject),
    /// In an object that the program has passed to the builder: the first, the second, and so on.
    Given(usize),
}

/// A place in an object store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StoreObject {
    /// Its address, such as `s3://bucket/prefix`.
    pub url: String,
    /// How long a request is repeated while the server does not carry it out.
    pub patience: Option<Duration>,
}

impl StoreObject {
    /// The place with this address.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), patience: None }
    }
}

/// Whether a text is the address of an object store, and not the path of a directory.
pub fn is_address(text: &str) -> bool {
    let is_scheme = |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

/// The processes that save together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RanksSettings {
    /// This process alone.
    #[default]
    Alone,
    /// Processes that meet in a directory.
    Directory(SharedDirectorySettings),
    /// Processes of an MPI communicator.
    Mpi {
        /// Which communicator.
        communicator: Communicator,
        /// A directory for messages that all of them see. Default: one that is chosen when they
        /// meet.
        dir: Option<PathBuf>,
    },
    /// An object that the program has passed to the builder.
    Given,
}

/// A communicator of MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Communicator {
    /// All processes of the job (`MPI_COMM_WORLD`).
    World,
    /// The number that Fortran uses for a communicator: `MPI_Comm_c2f(communicator)` in C, and
    /// `communicator.py2f()` with mpi4py.
    Number(i32),
}

/// Processes that meet in a directory that all of them can access.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SharedDirectorySettings {
    /// The directory.
    pub dir: PathBuf,
    /// The rank of this process, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub count: u32,
    /// The communicator that says which rank of how many this is.
    mpi: Option<Communicator>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            host: "256 MiB".into(),
            dirs: Vec::new(),
            ranks: RanksSettings::Alone,
            parity: ParitySettings::default(),
            keep: Retention::default(),
            keep_on: BTreeMap::new(),
            interval: None,
            failures: Vec::new(),
            compression: Compression::None,
            dedup: Dedup::Versions,
            live: None,
            is_incremental: true,
            tracking: Way::Chosen,
            marks_pinned: false,
            block: "4 KiB".into(),
            hash: HashKind::Xxh3,
            hash_devices: Vec::new(),
            is_certain: false,
            in_flight: 2,
            chain_max: 8,
            is_pinned: true,
            threads: None,
        }
    }
}

impl Settings for StoreSettings {
    const OF: &'static str = "a store";

    const TABLE: &'static [Setting<Self>] = rows! {
        dir: Vec<StoreDir> = "required without object",
            "Directories for checkpoints, fastest first; every version goes to each of them.",
            |store, dirs| store.replace_dirs(dirs, |files| matches!(files, StoreFiles::Path(_)));
        object: Vec<ObjectDir> = "none",
            "Object stores for checkpoints, such as `\"s3://bucket/prefix\"`, below the directories; every version goes to each of them.",
            |store, objects| {
                let dirs = objects.into_iter().map(|ObjectDir(dir)| dir).collect();
                store.replace_dirs(dirs, |files| matches!(files, StoreFiles::Object(_)));
            };
        host: Size = "\"256 MiB\"",
            "Host memory that versions pass through; what fits is saved at the speed of a copy.",
            |store, size| store.host = size;
        ranks: SharedDirectorySettings = "this process alone",
            "The processes that save together, which then make the same calls.",
            |store, ranks| store.meet(ranks);
        parity: AnyCode = "\"none\"",
            "Which nodes may be lost with all they have: with \"4+1\" any one of a group of 5 or more; \"partner\" is \"1+1\", a copy on another node. Versions are kept on other nodes, too, as a layer after the directories.",
            |store, code| store.parity.code = code.0;
        parity_domain: String = "the host name",
            "The failure domain of this rank: ranks that are lost together have the same.",
            |store, domain| store.parity.domain = Some(domain);
        parity_network: IpAddr = "the way to any other machine",
            "An address in the network over which nodes send each other what they keep, such as that of one of them.",
            |store, address| store.parity.network = Some(address);
        keep_last: Count = "all",
            "Keeps so many of the newest versions.",
            |store, count| store.keep.keep_last = Some(count.0.try_into().unwrap_or(u32::MAX));
        keep_every: Count = "all",
            "Keeps versions whose number is a multiple of this.",
            |store, every| store.keep.keep_every = Some(every.0 as u64);
        keep_seconds: Duration = "all",
            "Keeps versions that are not older.",
            |store, age| store.keep.keep_for_ns = Some(nanoseconds(age));
        interval: Rule = "never",
            "When it is time to save: by a rule that knows what a save costs and how often things fail, or every so many seconds.",
            |store, rule| store.interval = Some(rule);
        failures_seconds: Vec<Duration> = "[]",
            "The mean time between failures that make a directory's last version necessary, for each directory; the last holds for the rest.",
            |store, failures| store.failures = failures;
        compression: Compression = "\"none\"",
            "How blocks are compressed, where that shortens the way to the first directory.",
            |store, compression| store.compression = compression;
        dedup: Dedup = "\"versions\"",
            "Which equal blocks are kept once: between versions, also inside a version, also between ranks.",
            |store, dedup| store.dedup = dedup;
        live: Size = "none",
            "Extra memory with which a save returns at once, and the program's memory is copied in the background (copy-on-write).",
            |store, size| store.live = Some(size);
        incremental: bool = "true",
            "Whether only changed blocks are written; turn it off if everything changes between two versions.",
            |store, is_incremental| store.is_incremental = is_incremental;
        tracking: Way = "\"chosen\"",
            "How changes are found: by what is cheapest, by dirty pages, by write protection, or by hashing everything.",
            |store, way| store.tracking = way;
        marks_pinned: bool = "false",
            "Whether the program calls `mark_dirty` for what io_uring or RDMA writes to pinned memory; if not, everything is hashed while it has such memory.",
            |store, marks_pinned| store.marks_pinned = marks_pinned;
        block: Size = "\"4 KiB\"",
            "The length of blocks, a power of two from 256 bytes to 16 MiB: what is compared, and written if it has changed.",
            |store, size| store.block = size;
        hash: HashKind = "\"xxh3\"",
            "How blocks are compared and checked (checksum).",
            |store, hash| store.hash = hash;
        hash_device: Vec<HashDevice> = "[]",
            "Devices that hash whenever they are faster than the processor, copies included; `outcrop survey` lists devices.",
            |store, devices| store.hash_devices = devices;
        certain: bool = "false",
            "Whether blocks with equal hashes are also compared byte by byte, which takes a second copy of all regions in memory.",
            |store, is_certain| store.is_certain = is_certain;
        in_flight: Count = "2",
            "Versions that may be in flight at a time; a save waits for the oldest.",
            |store, count| store.in_flight = count.0;
        chain_max: Count = "8",
            "From how many packs a version may be put together, before packs are merged in the background.",
            |store, count| store.chain_max = count.0;
        pin: bool = "true",
            "Whether host memory is pinned (locked) once all of it has been touched.",
            |store, is_pinned| store.is_pinned = is_pinned;
        threads: Threads = "all cores",
            "Threads that hash and copy.",
            |store, count| store.threads = Some(count.0);
    };

    fn check(&self) -> Result<(), String> {
        if self.dirs.is_empty() {
            return Err("dir is missing; a store needs a directory, such as dir = \"checkpoints\", or an object store"
                .to_owned());
        }
        if self.parity.code.is_some() && self.dedup == Dedup::Ranks {
            return Err("parity is for directories that other ranks do not see, and dedup = \"ranks\" for those that they see; leave out \
                        one of them"
                .to_owned());
        }
        if self.failures.is_empty()
            && self.interval.is_some_and(|rule| !matches!(rule, Rule::Fixed(_) | Rule::Recompute))
        {
            return Err("interval is a rule that needs failures_seconds, the mean time between failures".to_owned());
        }
        if self.failures.contains(&Duration::ZERO) {
            return Err("failures_seconds: it is 0; write a number of seconds above 0".to_owned());
        }
        Ok(())
    }
}

impl StoreSettings {
    /// Replaces all directories of one kind. New directories come before object stores.
    fn replace_dirs(&mut self, dirs: Vec<StoreDir>, is_such: impl Fn(&StoreFiles) -> bool) {
        let is_object = |dir: &StoreDir| matches!(dir.files, StoreFiles::Object(_));
        let place = self.dirs.iter().position(|dir| is_such(&dir.files));
        let place = place.or_else(|| self.dirs.iter().position(is_object)).unwrap_or(self.dirs.len());
        self.dirs.retain(|dir| !is_such(&dir.files));
        self.dirs.splice(place..place, dirs);
    }

    /// Lets ranks meet in a directory, unless the program has passed an object for that.
    fn meet(&mut self, ranks: SharedDirectorySettings) {
        if self.ranks != RanksSettings::Given {
            self.ranks = match ranks.mpi {
                Some(communicator) => {
                    let dir = Some(ranks.dir).filter(|dir| !dir.as_os_str().is_empty());
                    RanksSettings::Mpi { communicator, dir }
                }
                None => RanksSettings::Directory(ranks),
            };
        }
    }

    /// Which versions to keep in a directory; 0 is the first.
    pub fn keep(&self, dir: usize) -> Retention {
        let own = self.dirs.get(dir).map(|dir| dir.keep).filter(|keep| *keep != Retention::default());
        own.or_else(|| self.keep_on.get(&dir).copied()).unwrap_or(self.keep)
    }
}

impl StoreDir {
    /// Files with a limit.
    pub fn new(files: StoreFiles, limit: Option<Size>) -> Self {
        Self { files, limit, keep: Retention::default() }
    }
}

impl Default for StoreDir {
    fn default() -> Self {
        Self::new(StoreFiles::Path(PathBuf::new()), None)
    }
}

impl Settings for StoreDir {
    const OF: &'static str = "a directory of a store";

    const TABLE: &'static [Setting<Self>] = rows! {
        path: PathBuf = "required",
            "Where it is; it is created if it is missing.",
            |dir, path| dir.files = StoreFiles::Path(path);
        limit: Size = "none", "How much this rank may keep there.", |dir, size| dir.limit = Some(size);
        keep_last: Count = "as the store",
            "Keeps so many of the newest versions there.",
            |dir, count| dir.keep.keep_last = Some(count.0.try_into().unwrap_or(u32::MAX));
        keep_every: Count = "as the store",
            "Keeps versions there whose number is a multiple of this.",
            |dir, every| dir.keep.keep_every = Some(every.0 as u64);
        keep_seconds: Duration = "as the store",
            "Keeps versions there that are not older.",
            |dir, age| dir.keep.keep_for_ns = Some(nanoseconds(age));
    };

    fn check(&self) -> Result<(), String> {
        match &self.files {
            StoreFiles::Path(path) if path.as_os_str().is_empty() => Err("path is missing".to_owned()),
            StoreFiles::Path(path) => match path.to_str().filter(|text| is_address(text)) {
                // Its part before the colon would be a directory.
                Some(address) => Err(format!("{address} is an object store; write object = \"{address}\"")),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// An object store as a directory of a store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectDir(StoreDir);

impl Default for ObjectDir {
    fn default() -> Self {
        Self(StoreDir::new(StoreFiles::Object(StoreObject::default()), None))
    }
}

impl ObjectDir {
    fn place(&mut self) -> Option<&mut StoreObject> {
        match &mut self.0.files {
            StoreFiles::Object(place) => Some(place),
            _ => None,
        }
    }
}

impl Settings for ObjectDir {
    const OF: &'static str = "an object store of a store";

    const TABLE: &'static [Setting<Self>] = rows! {
        url: String = "required",
            "Its address: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`; the bucket must exist.",
            |object, url| if let Some(place) = object.place() { place.url = url };
        limit: Size = "none", "How much this rank may keep there.", |object, size| object.0.limit = Some(size);
        patience_seconds: Duration = "two minutes",
            "How long a request is repeated while the server does not carry it out; then what needs it has failed.",
            |object, patience| if let Some(place) = object.place() { place.patience = Some(patience) };
        keep_last: Count = "as the store",
            "Keeps so many of the newest versions there.",
            |object, count| object.0.keep.keep_last = Some(count.0.try_into().unwrap_or(u32::MAX));
        keep_every: Count = "as the store",
            "Keeps versions there whose number is a multiple of this.",
            |object, every| object.0.keep.keep_every = Some(every.0 as u64);
        keep_seconds: Duration = "as the store",
            "Keeps versions there that are not older.",
            |object, age| object.0.keep.keep_for_ns = Some(nanoseconds(age));
    };

    fn check(&self) -> Result<(), String> {
        let StoreFiles::Object(place) = &self.0.files else { return Ok(()) };
        if place.url.is_empty() {
            return Err("url is missing".to_owned());
        }
        if !is_address(&place.url) {
            return Err(format!(
                "{} is no address of an object store; write one such as s3://bucket/prefix",
                place.url
            ));
        }
        match place.patience {
            Some(Duration::ZERO) => Err("patience_seconds is 0; write a number of seconds above 0".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Readable for ObjectDir {
    fn kind() -> String {
        "address or [table](#object-stores-of-a-store)".to_owned()
    }

    fn python() -> String {
        "str | StoreObject".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Table(_) => table(value),
            url => {
                let dir = Self(StoreDir::new(StoreFiles::Object(StoreObject::new(&String::read(url)?)), None));
                dir.check().map(|()| dir)
            }
        }
    }
}

impl SharedDirectorySettings {
    /// This process is `rank`, from 0, of `count` processes that meet in `dir`.
    pub fn new(dir: impl Into<PathBuf>, rank: u32, count: u32) -> Self {
        Self { dir: dir.into(), rank, count, mpi: None }
    }
}

impl Settings for SharedDirectorySettings {
    const OF: &'static str = "ranks";

    const TABLE: &'static [Setting<Self>] = rows! {
        dir: PathBuf = "required without mpi", "A directory that all ranks see, for messages.", |ranks, dir| ranks.dir = dir;
        rank: u32 = "0", "Which of them this one is, from 0.", |ranks, rank| ranks.rank = rank;
        count: u32 = "required without mpi", "How many there are.", |ranks, count| ranks.count = count;
        mpi: Communicator = "not used",
            "The ranks of this communicator of MPI, instead of `rank` and `count`; see docs/mpi.md.",
            |ranks, communicator| ranks.mpi = Some(communicator);
    };

    fn check(&self) -> Result<(), String> {
        match self {
            Self { mpi: Some(_), rank: 0, count: 0, .. } => Ok(()),
            Self { mpi: Some(_), .. } => Err("mpi says rank and count; leave these two out".to_owned()),
            Self { dir, .. } if dir.as_os_str().is_empty() => Err("dir is missing".to_owned()),
            Self { count: 0, .. } => Err("count is missing; how many ranks are there?".to_owned()),
            Self { rank, count, .. } if rank >= count => {
                Err(format!("rank is {rank}, but of {count} ranks the last is {}", count - 1))
            }
            _ => Ok(()),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Readable for HashDevice {
    fn kind() -> String {
        "device such as \"cuda\" or \"opencl 1\"".to_owned()
    }

    fn python() -> String {
        "str".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        let wrong = || format!("it is {value}; write a driver and a number, such as \"cuda 0\" or \"opencl 1\"");
        let mut words = value.as_str().ok_or_else(wrong)?.split_whitespace();
        let kind = words.next().map(|kind| DeviceKind::read(Value::String(kind.to_owned()))).ok_or_else(wrong)??;
        let index = words.next().map_or(Ok(0), str::parse).map_err(|_| wrong())?;
        if words.next().is_some() { Err(wrong()) } else { Ok(Self { kind, index }) }
    }
}

impl Readable for StoreDir {
    fn kind() -> String {
        "path or [table](#directories-of-a-store)".to_owned()
    }

    fn python() -> String {
        "Path | StoreDir".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Table(_) => table(value),
            path => {
                let dir = Self::new(StoreFiles::Path(PathBuf::read(path)?), None);
                dir.check().map(|()| dir)
            }
        }
    }
}

impl Readable for Communicator {
    fn kind() -> String {
        "\"world\", or a number".to_owned()
    }

    fn python() -> String {
        "Literal[\"world\"] | int".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        match &value {
            Value::String(name) if name == "world" => Ok(Self::World),
            Value::Integer(number) if i32::try_from(*number).is_ok() => Ok(Self::Number(*number as i32)),
            _ => wrong(&value, "write \"world\", or the number that MPI_Comm_c2f gives"),
        }
    }
}

impl Readable for SharedDirectorySettings {
    fn kind() -> String {
        "[table](#ranks)".to_owned()
    }

    fn python() -> String {
        "Ranks".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        table(value)
    }
}
