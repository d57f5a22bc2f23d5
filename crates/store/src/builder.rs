//! The builder: describes a store, and opens it.

use std::{
    fmt,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::AtomicU64,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outcrop_engine::{Arrival, Arrivals, Checksums, Engine, Options};
use outcrop_format::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Coding, CodingKind, Encoder, HashKind};
use outcrop_layers::{
    Device, DeviceHasher, DeviceKind, Host, Layer, Shelf,
    files::{DiskFiles, Files},
    open_device,
};
use outcrop_parity::Code;
use outcrop_plan::{Interval, Order, Preference, Retention, Rule, Timestamp};
use outcrop_ranks::{Alone, Ranks, SharedDirectory};
use outcrop_settings::{
    Communicator, Compression, Dedup, HashDevice, RanksSettings, Settings as _, SharedDirectorySettings, Size,
    StoreDir, StoreFiles, StoreObject, StoreSettings,
};
use outcrop_track::{ChosenHasher, CpuHasher, Way, hasher_on};

use crate::{
    Error, ErrorKind, Result, Shared, Store, StoreCore, commit,
    error::Problem,
    pack,
    parity::Parity,
    places::{location_of, object_files},
};

/// The largest pack. Large enough for the full speed of any medium, small enough that the first
/// pack is in flight while the next one is filled.
const PACK_BYTES_MAX: u64 = 64 << 20;

/// The settings of an open store.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) block_bytes: u32,
    pub(crate) hash: HashKind,
    pub(crate) is_certain: bool,
    pub(crate) is_incremental: bool,
    pub(crate) tracking: Way,
    pub(crate) marks_pinned: bool,
    pub(crate) compression: Compression,
    pub(crate) dedup: Dedup,
    pub(crate) in_flight_max: usize,
    /// By layer: which versions are kept.
    keep: Vec<Retention>,
    pub(crate) chain_max: usize,
    pub(crate) live_bytes_max: Option<u64>,
    pub(crate) threads: usize,
    hash_devices: Vec<Arc<DeviceHasher>>,
}

impl Settings {
    pub(crate) fn hasher(&self) -> ChosenHasher {
        ChosenHasher::new(CpuHasher::new(self.hash, self.threads), self.hash_devices.clone())
    }

    /// Which versions are kept on a layer.
    pub(crate) fn keep(&self, layer: usize) -> Retention {
        self.keep.get(layer).copied().unwrap_or_default()
    }
}

/// The layers of a store, and its settings. Made by [`Store::builder`].
///
/// A builder has no effects. [`open`](Self::open) creates, measures and opens what it needs.
#[derive(Default)]
#[must_use = "a builder does nothing until it is opened"]
pub struct StoreBuilder {
    settings: StoreSettings,
    files: Vec<Arc<dyn Files>>,
    ranks: Option<Arc<dyn Ranks>>,
    hash_devices: Vec<Arc<dyn Device>>,
}

impl fmt::Debug for StoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreBuilder").field(&self.settings).finish()
    }
}

impl From<StoreSettings> for StoreBuilder {
    fn from(settings: StoreSettings) -> Self {
        Self { settings, ..Self::default() }
    }
}

impl StoreBuilder {
    /// A store from a TOML text, such as `dir = "checkpoints"` and `keep_last = 3`, each on a line.
    pub fn from_toml(text: &str) -> Result<Self> {
        StoreSettings::from_toml(text).map(Self::from)
    }

    /// A store from a JSON object.
    pub fn from_json(text: &str) -> Result<Self> {
        StoreSettings::from_json(text).map(Self::from)
    }

    /// The settings so far.
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// The host memory that versions pass through. A save that fits into it runs at the speed of a
    /// copy. Default: 256 MiB.
    pub fn host(mut self, size: impl Into<Size>) -> Self {
        self.settings.host = size.into();
        self
    }

    /// Adds a directory. It is created if it does not exist. The limit, such as `Some("200 GiB")`,
    /// is for the files of this rank. Every version goes to every directory.
    pub fn dir(mut self, path: impl AsRef<Path>, limit: Option<&str>) -> Self {
        let files = StoreFiles::Path(path.as_ref().to_owned());
        self.settings.dirs.push(StoreDir::new(files, limit.map(Size::from)));
        self
    }

    /// Adds a place in an object store, such as `s3://bucket/prefix`. The bucket must exist;
    /// credentials come from the environment (docs/object.md). The limit is for the objects of this
    /// rank. Needs the feature `object`.
    pub fn object(mut self, url: &str, limit: Option<&str>) -> Self {
        let files = StoreFiles::Object(StoreObject::new(url));
        self.settings.dirs.push(StoreDir::new(files, limit.map(Size::from)));
        self
    }

    /// Adds a layer of any [`Files`] instead of a directory.
    pub fn files(mut self, files: Arc<dyn Files>, limit: Option<&str>) -> Self {
        let given = StoreFiles::Given(self.files.len());
        self.files.push(files);
        self.settings.dirs.push(StoreDir::new(given, limit.map(Size::from)));
        self
    }

    /// The processes that save together. Default: this one alone.
    pub fn ranks(mut self, ranks: impl Ranks + 'static) -> Self {
        self.settings.ranks = RanksSettings::Given;
        self.ranks = Some(Arc::new(ranks));
        self
    }

    /// The processes that save together meet in a directory that all of them see. This one is rank
    /// `rank`, counted from 0, of `count`. They meet when the store is opened.
    pub fn ranks_in(mut self, dir: impl AsRef<Path>, rank: u32, count: u32) -> Self {
        self.settings.ranks = RanksSettings::Directory(SharedDirectorySettings::new(dir.as_ref(), rank, count));
        self
    }

    /// The processes of an MPI communicator save together. They meet when the store is opened, on
    /// threads that may call MPI; no other thread calls MPI, and no other call does (docs/mpi.md).
    pub fn mpi(mut self, communicator: Communicator) -> Self {
        self.settings.ranks = RanksSettings::Mpi { communicator, dir: None };
        self
    }

    /// Keeps versions on other nodes, too, below their first directories, so that any `m` nodes of
    /// a group may lose everything. With the code `k+m` a group has at least k + m nodes, each of
    /// which takes 1 / k of what a rank saves. With 1+1 that is a copy on a partner. It is a layer,
    /// numbered after the directories: [`Reached::Parity`](crate::Reached::Parity). Default: none.
    pub fn parity(mut self, code: Code) -> Self {
        self.settings.parity.code = Some(code);
        self
    }

    /// The failure domain of this rank: ranks that are lost together have the same. Default: the
    /// host name.
    pub fn parity_domain(mut self, name: impl Into<String>) -> Self {
        self.settings.parity.domain = Some(name.into());
        self
    }

    /// An address in the network over which nodes send each other what they keep. Default: the way
    /// to any other machine.
    pub fn parity_network(mut self, address: IpAddr) -> Self {
        self.settings.parity.network = Some(address);
        self
    }

    /// The size of blocks, which are compared, and written if they have changed. A power of two
    /// from 256 bytes to 16 MiB. Default: 4 KiB.
    pub fn block(mut self, size: impl Into<Size>) -> Self {
        self.settings.block = size.into();
        self
    }

    /// The hash by which blocks are compared and verified (checksum). Default: XXH3.
    pub fn hash(mut self, kind: HashKind) -> Self {
        self.settings.hash = kind;
        self
    }

    /// Adds a device that hashes whenever it is faster than the processor, as measured while the
    /// store is used, copies to the device included. `index` is counted from 0. A device that fails
    /// is not used again. Not for BLAKE3. Default: none.
    pub fn hash_device(mut self, kind: DeviceKind, index: usize) -> Self {
        self.settings.hash_devices.push(HashDevice { kind, index });
        self
    }

    /// As [`hash_device`](Self::hash_device), with a device that is open already.
    pub fn hash_on(mut self, device: Arc<dyn Device>) -> Self {
        self.hash_devices.push(device);
        self
    }

    /// Whether a block whose hash has not changed is also compared byte by byte, before it counts
    /// as unchanged. This needs a second copy of all regions in memory. Default: no.
    pub fn certain(mut self, is_certain: bool) -> Self {
        self.settings.is_certain = is_certain;
        self
    }

    /// Whether only changed blocks are written. Default: yes.
    pub fn incremental(mut self, is_incremental: bool) -> Self {
        self.settings.is_incremental = is_incremental;
        self
    }

    /// How changes are found: by watching pages, or by hashing everything. Default: whichever is
    /// cheaper.
    pub fn tracking(mut self, way: Way) -> Self {
        self.settings.tracking = way;
        self
    }

    /// Whether the program calls [`Session::mark_dirty`](crate::Session::mark_dirty) for everything
    /// that io_uring or RDMA writes to pinned memory. If not, everything is hashed while the
    /// process has pinned memory that Outcrop has not pinned itself. Default: no.
    pub fn marks_pinned(mut self, marks_pinned: bool) -> Self {
        self.settings.marks_pinned = marks_pinned;
        self
    }

    /// How blocks are compressed, if that saves time. Default: not at all.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// Which equal blocks are stored only once. Default: those of consecutive versions.
    pub fn dedup(mut self, dedup: Dedup) -> Self {
        self.settings.dedup = dedup;
        self
    }

    /// How many versions may be in flight at once. A further save waits for the oldest. Default: 2.
    pub fn in_flight(mut self, versions: usize) -> Self {
        self.settings.in_flight = versions.max(1);
        self
    }

    /// Which versions are kept in each directory. Default: all. The newest complete version is
    /// always kept.
    pub fn keep(mut self, retention: Retention) -> Self {
        self.settings.keep = retention;
        self
    }

    /// Which versions are kept in one directory, counted from 1, if they differ from the others.
    pub fn keep_on(mut self, layer: usize, retention: Retention) -> Self {
        self.settings.keep_on.insert(layer.saturating_sub(1), retention);
        self
    }

    /// How many increments a version may consist of before some of them are merged in the
    /// background. Default: 8.
    pub fn chain_max(mut self, packs: usize) -> Self {
        self.settings.chain_max = packs.max(1);
        self
    }

    /// Makes saves return at once. Memory is copied in the background, as it was when `save` was
    /// called (copy-on-write). `extra` limits the memory for what the program changes meanwhile.
    /// Memory may be freed after [`Session::thaw`](super::Session::thaw).
    pub fn live(mut self, extra: impl Into<Size>) -> Self {
        self.settings.live = Some(extra.into());
        self
    }

    /// The rule by which [`Store::due`] decides, and the mean time between failures. There is one
    /// time per directory: the mean time between failures that need the last version of that
    /// directory. The last one given holds for all directories that follow.
    pub fn interval(mut self, rule: Rule, failures: &[Duration]) -> Self {
        self.settings.interval = Some(rule);
        self.settings.failures = failures.to_vec();
        self
    }

    /// Whether host memory is pinned once all of it has been touched. Default: yes.
    pub fn pin(mut self, is_pinned: bool) -> Self {
        self.settings.is_pinned = is_pinned;
        self
    }

    /// How many threads hash and copy. Default: as many as there are cores.
    pub fn threads(mut self, count: usize) -> Self {
        self.settings.threads = Some(count.max(1));
        self
    }

    /// Opens the store. Environment variables override its settings (`OUTCROP_HOST="8 GiB"`).
    /// Sessions are opened one by one afterwards.
    pub fn open(self) -> Result<Store> {
        let told = self.settings.in_force()?;
        let settings = Settings::of(&told, self.hash_devices)?;
        let host_bytes = told.host.bytes().map_err(|error| error.within("the host memory of a store"))?;
        let ranks = ranks(&told.ranks, &told.dirs, self.ranks)?;
        let mut shelves = told.dirs.iter().map(|dir| shelf(dir, &self.files)).collect::<Result<Vec<_>>>()?;
        let parity = match (told.parity.code, shelves.first()) {
            (Some(code), Some(near)) => Some(Parity::join(code, &told.parity, &*ranks, near.files())?),
            _ => None,
        };
        if let Some(parity) = &parity {
            shelves.push(Arc::new(Shelf::new("parity", parity.files(), None)?));
        }
        let (notes, heard) = mpsc::channel();
        let options = Options {
            order: Order::Unknown,
            preference: Preference::Fixed,
            is_unpinned: !told.is_pinned,
            copy_threads: Some(settings.threads),
            persists: true,
            checksums: Checksums::Program,
            arrivals: Some(arrivals(notes.clone())),
            ..Options::default()
        };
        let host: Arc<dyn Layer> = Arc::new(Host::new(host_bytes)?);
        let below = shelves.iter().map(|shelf| Arc::clone(shelf) as Arc<dyn Layer>);
        let handle = Engine::open(std::iter::once(host).chain(below).collect(), &options)?;
        let shared = Arc::new(Shared {
            // At least two packs must fit, so one can be filled while the other is in flight. And a
            // pack needs room for its index.
            pack_bytes_max: PACK_BYTES_MAX.min(host_bytes / 4).max(host_bytes.min(64 << 10)),
            settings,
            interval: Mutex::new(interval(&told, shelves.len())),
            shelves,
            ranks,
            parity,
            next_key: AtomicU64::new(0),
            start: Instant::now(),
        });
        let (jobs, queue) = mpsc::channel();
        let packer = pack::Packer::new(Arc::clone(&shared), handle.clone(), notes.clone());
        let committer = commit::Committer::new(Arc::clone(&shared), handle.clone(), jobs.clone());
        let threads = vec![
            start("outcrop-pack", move || packer.run(&queue))?,
            start("outcrop-commit", move || committer.run(&heard))?,
        ];
        let (handle, threads) = (Mutex::new(handle), Mutex::new(threads));
        Ok(Store { core: Arc::new(StoreCore { shared, handle, packer: jobs, committer: notes, threads }) })
    }
}

/// The length of blocks, if it can be one.
pub(crate) fn block_bytes_of(size: &Size) -> Result<u32> {
    let bytes = size.bytes()?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => {
            let problem = format!("block: {bytes} bytes is not possible; give a power of two from 256 bytes to 16 MiB");
            Err(Error::new(ErrorKind::Usage, problem))
        }
    }
}

impl Settings {
    /// Checks the settings, and converts them to what a store uses.
    fn of(told: &StoreSettings, given: Vec<Arc<dyn Device>>) -> Result<Self> {
        let block_bytes = block_bytes_of(&told.block)?;
        if let Compression::Zstd(level) = told.compression {
            Encoder::new(Coding::new(CodingKind::Zstd, 0), level)?;
        }
        let named = told.hash_devices.iter().map(|device| open_device(device.kind, device.index));
        let devices = named.chain(given.into_iter().map(Ok));
        let hasher = |device: Arc<dyn Device>| hasher_on(device, told.hash).map(Arc::new);
        let hash_devices = devices.map(|device| device.and_then(hasher)).collect::<std::result::Result<_, _>>()?;
        Ok(Self {
            block_bytes,
            hash: told.hash,
            is_certain: told.is_certain,
            is_incremental: told.is_incremental,
            tracking: told.tracking,
            marks_pinned: told.marks_pinned,
            compression: told.compression,
            dedup: told.dedup,
            in_flight_max: told.in_flight,
            // What other nodes keep is what is in the first directory.
            keep: (0..told.dirs.len()).chain([0]).map(|dir| told.keep(dir)).collect(),
            chain_max: told.chain_max,
            live_bytes_max: told.live.as_ref().map(Size::bytes).transpose()?,
            threads: told.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
            hash_devices,
        })
    }
}

fn interval(told: &StoreSettings, layers: usize) -> Option<Interval> {
    let failures = &told.failures;
    let of_layer = |layer: usize| failures.get(layer).or(failures.last()).map(|mean| mean.as_nanos() as u64);
    told.interval.map(|rule| Interval::new(rule, &(0..layers).map(of_layer).collect::<Vec<_>>(), Timestamp(0)))
}

/// The processes that save together. Ranks that meet in a directory do so here.
fn ranks(told: &RanksSettings, dirs: &[StoreDir], given: Option<Arc<dyn Ranks>>) -> Result<Arc<dyn Ranks>> {
    Ok(match (told, given) {
        (RanksSettings::Directory(ranks), _) => Arc::new(SharedDirectory::open(&ranks.dir, ranks.rank, ranks.count)?),
        (RanksSettings::Mpi { communicator, dir }, _) => {
            let number = match communicator {
                Communicator::World => None,
                Communicator::Number(number) => Some(*number),
            };
            // The deepest directory is the likeliest that all machines see.
            let shared = dirs.iter().rev().find_map(|dir| match &dir.files {
                StoreFiles::Path(path) => Some(&**path),
                StoreFiles::Object(_) | StoreFiles::Given(_) => None,
            });
            Arc::new(outcrop_mpi::join(number, dir.as_deref(), shared)?)
        }
        (RanksSettings::Given, Some(given)) => given,
        _ => Arc::new(Alone),
    })
}

fn shelf(dir: &StoreDir, given: &[Arc<dyn Files>]) -> Result<Arc<Shelf>> {
    let files: Arc<dyn Files> = match &dir.files {
        StoreFiles::Given(index) => Arc::clone(given.get(*index).ok_or_else(|| {
            Error::new(ErrorKind::Usage, "these settings are of a builder that was given files, and this one was not")
        })?),
        StoreFiles::Object(place) => object_files(place).map_err(|source| Problem::StoreFiles {
            attempt: "open a store".to_owned(),
            location: location_of(&place.url),
            source,
        })?,
        StoreFiles::Path(path) => Arc::new(DiskFiles::create(path).map_err(|source| Problem::StoreFiles {
            attempt: "create a store".to_owned(),
            location: path.display().to_string(),
            source,
        })?),
    };
    let limit = dir.limit.as_ref().map(Size::bytes).transpose();
    let limit = limit.map_err(|error| error.within(format_args!("the limit of {}", files.location())))?;
    let kind = if matches!(dir.files, StoreFiles::Object(_)) { "object" } else { "dir" };
    Ok(Arc::new(Shelf::new(&format!("{kind} {}", files.location()), files, limit)?))
}

/// Passes on to the committer what the engine reports.
fn arrivals(notes: Sender<commit::Note>) -> Arrivals {
    Arrivals(Arc::new(move |arrival: Arrival| {
        // If the committer has ended, nothing more is committed.
        let _ = notes.send(commit::Note::Arrived(arrival));
    }))
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|cause| Error::caused(ErrorKind::Storage, "cannot start a thread for a store", cause))
}
