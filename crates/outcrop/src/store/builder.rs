//! How a store is put together.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::AtomicU64,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outcrop_engine::{Arrival, Arrivals, Engine, Options};
use outcrop_format::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Coding, CodingKind, Encoder, HashKind};
use outcrop_layers::{
    Host, Layer, Shelf,
    files::{DiskFiles, Files},
};
use outcrop_plan::{Interval, Order, Ranking, Retention, Rule, Timestamp};
use outcrop_track::{CpuHasher, Way};

use super::{Alone, Ranks, Shared, Store, StoreCore, commit, pack};
use crate::{Error, Result, Size};

/// The blocks of a region where nothing else is said: a page, which is what the system can tell to be changed.
const BLOCK_BYTES: u32 = 4096;

/// A version is put together from so many packs at most, where nothing else is said.
const CHAIN_MAX: usize = 8;

/// The largest pack: large enough for the full speed of any medium, small enough that the first one is on its way while the next
/// one is filled.
const PACK_BYTES_MAX: u64 = 64 << 20;

/// How blocks are made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With LZ4, where that shortens the way to the first directory.
    Lz4,
    /// With Zstandard at this level (1 to 22), where that shortens the way to the first directory.
    Zstd(i32),
}

/// Which blocks of equal bytes are kept once only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Dedup {
    /// Those that have not changed since the version before.
    #[default]
    Versions,
    /// And those that are there several times in one version.
    Inside,
    /// And those that several ranks save in one version. The ranks must see each other's files on every directory.
    Ranks,
}

/// What was chosen for a store.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) block_bytes: u32,
    pub(crate) hash: HashKind,
    pub(crate) is_certain: bool,
    pub(crate) is_incremental: bool,
    pub(crate) tracking: Way,
    pub(crate) compression: Compression,
    pub(crate) dedup: Dedup,
    pub(crate) in_flight_max: usize,
    keep: Retention,
    /// Where it is another one on some layer.
    keep_on: BTreeMap<usize, Retention>,
    pub(crate) chain_max: usize,
    pub(crate) live_bytes_max: Option<u64>,
    pub(crate) threads: usize,
}

impl Settings {
    pub(crate) fn hasher(&self) -> CpuHasher {
        CpuHasher::new(self.hash, self.threads)
    }

    /// Which versions stay on a layer.
    pub(crate) fn keep(&self, layer: usize) -> Retention {
        self.keep_on.get(&layer).copied().unwrap_or(self.keep)
    }
}

/// The layers of a store, and how it is to work. Made by [`Store::builder`].
pub struct StoreBuilder {
    host: Option<Size>,
    shelves: Vec<(Place, Option<Size>)>,
    ranks: Arc<dyn Ranks>,
    block: Option<Size>,
    live: Option<Size>,
    interval: Option<(Rule, Vec<Duration>)>,
    is_pinned: bool,
    settings: Settings,
}

enum Place {
    Path(PathBuf),
    Files(Arc<dyn Files>),
}

impl Default for StoreBuilder {
    fn default() -> Self {
        let settings = Settings {
            block_bytes: BLOCK_BYTES,
            hash: HashKind::Xxh3,
            is_certain: false,
            is_incremental: true,
            tracking: Way::Chosen,
            compression: Compression::None,
            dedup: Dedup::Versions,
            in_flight_max: 2,
            keep: Retention::default(),
            keep_on: BTreeMap::new(),
            chain_max: CHAIN_MAX,
            live_bytes_max: None,
            threads: thread::available_parallelism().map_or(1, usize::from),
        };
        Self {
            host: None,
            shelves: Vec::new(),
            ranks: Arc::new(Alone),
            block: None,
            live: None,
            interval: None,
            is_pinned: true,
            settings,
        }
    }
}

impl StoreBuilder {
    /// The host memory that versions pass through. What fits into it is saved at the speed of a copy.
    pub fn host(mut self, size: impl Into<Size>) -> Self {
        self.host = Some(size.into());
        self
    }

    /// Adds a directory, which is made if it is missing, with a limit such as `Some("200 GiB")` for what this rank may keep there.
    /// Every version goes to every directory.
    pub fn dir(self, path: impl AsRef<Path>, limit: Option<&str>) -> Self {
        self.dir_sized(path, limit.map(Size::from))
    }

    pub(crate) fn dir_sized(mut self, path: impl AsRef<Path>, limit: Option<Size>) -> Self {
        self.shelves.push((Place::Path(path.as_ref().to_owned()), limit));
        self
    }

    /// Adds files of another kind.
    pub fn files(mut self, files: Arc<dyn Files>, limit: Option<&str>) -> Self {
        self.shelves.push((Place::Files(files), limit.map(Size::from)));
        self
    }

    /// The processes that save together; this one alone where it is not said.
    pub fn ranks(mut self, ranks: impl Ranks + 'static) -> Self {
        self.ranks = Arc::new(ranks);
        self
    }

    /// The length of blocks, a power of two from 256 bytes to 16 MiB: what is compared, and written if it has changed.
    pub fn block(mut self, size: impl Into<Size>) -> Self {
        self.block = Some(size.into());
        self
    }

    /// How blocks are compared and checked.
    pub fn hash(mut self, kind: HashKind) -> Self {
        self.settings.hash = kind;
        self
    }

    /// Whether a block that has the hash which it had before is also compared byte by byte before it is not written again. That
    /// takes a second copy of all regions in memory.
    pub fn certain(mut self, is_certain: bool) -> Self {
        self.settings.is_certain = is_certain;
        self
    }

    /// Whether only changed blocks are written; yes where it is not said.
    pub fn incremental(mut self, is_incremental: bool) -> Self {
        self.settings.is_incremental = is_incremental;
        self
    }

    /// How changes are found: by watching pages, or by hashing everything; what is cheaper where it is not said.
    pub fn tracking(mut self, way: Way) -> Self {
        self.settings.tracking = way;
        self
    }

    /// How blocks are made smaller, where that pays.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// Which equal blocks are kept once only.
    pub fn dedup(mut self, dedup: Dedup) -> Self {
        self.settings.dedup = dedup;
        self
    }

    /// How many versions may be on their way at once; a save waits for the oldest. Two where it is not said.
    pub fn in_flight(mut self, versions: usize) -> Self {
        self.settings.in_flight_max = versions.max(1);
        self
    }

    /// Which versions are kept on each directory; all where it is not said. The newest complete one always is.
    pub fn keep(mut self, retention: Retention) -> Self {
        self.settings.keep = retention;
        self
    }

    /// Which versions are kept on this directory, 1 being the first, if not as on the others.
    pub fn keep_on(mut self, layer: usize, retention: Retention) -> Self {
        self.settings.keep_on.insert(layer.saturating_sub(1), retention);
        self
    }

    /// From how many packs a version may have to be put together before some of them are merged in the background.
    pub fn chain_max(mut self, packs: usize) -> Self {
        self.settings.chain_max = packs.max(1);
        self
    }

    /// Lets the program go on at once, while its memory is copied in the background as it was at the time of the save, with at
    /// most so much extra memory for what the program changes meanwhile.
    pub fn live(mut self, extra: impl Into<Size>) -> Self {
        self.live = Some(extra.into());
        self
    }

    /// When [`Store::due`] says that it is time: by this rule, with the mean time between failures that make each directory's last
    /// version necessary (the last one given holds for all that follow).
    pub fn interval(mut self, rule: Rule, failures: &[Duration]) -> Self {
        self.interval = Some((rule, failures.to_vec()));
        self
    }

    /// Whether host memory is pinned once all of it has been touched; yes where it is not said.
    pub fn pin(mut self, is_pinned: bool) -> Self {
        self.is_pinned = is_pinned;
        self
    }

    /// How many threads hash and copy; as many as there are cores where it is not said.
    pub fn threads(mut self, count: usize) -> Self {
        self.settings.threads = count.max(1);
        self
    }

    /// Opens the store. Sessions are opened one by one afterwards.
    pub fn open(mut self) -> Result<Store> {
        let host_bytes = self.host.as_ref().ok_or_else(|| needs("host memory, such as host(\"1 GiB\")"))?.bytes()?;
        if self.shelves.is_empty() {
            return Err(needs("a directory, such as dir(\"checkpoints\", None)"));
        }
        if let Some(size) = &self.block {
            let bytes = u32::try_from(size.bytes()?).unwrap_or(u32::MAX);
            if !bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) {
                return Err(needs("blocks of a power of two from 256 bytes to 16 MiB"));
            }
            self.settings.block_bytes = bytes;
        }
        if let Compression::Zstd(level) = self.settings.compression {
            Encoder::new(Coding::new(CodingKind::Zstd, 0), level)?;
        }
        self.settings.live_bytes_max = self.live.as_ref().map(Size::bytes).transpose()?;
        let layer_error = |error| Error::Engine(outcrop_engine::Error::Layer(error));
        let shelves =
            self.shelves.iter().map(|(place, limit)| shelf(place, limit.as_ref())).collect::<Result<Vec<_>>>()?;
        let (notes, heard) = mpsc::channel();
        let options = Options {
            order: Order::Unknown,
            ranking: Ranking::Fixed,
            is_unpinned: !self.is_pinned,
            copy_threads: Some(self.settings.threads),
            arrivals: Some(arrivals(notes.clone())),
            ..Options::default()
        };
        let host: Arc<dyn Layer> = Arc::new(Host::new(host_bytes).map_err(layer_error)?);
        let below = shelves.iter().map(|shelf| Arc::clone(shelf) as Arc<dyn Layer>);
        let handle = Engine::open(std::iter::once(host).chain(below).collect(), &options)?;
        let interval = self.interval.as_ref().map(|(rule, failures)| {
            let of_layer = |layer: usize| failures.get(layer).or(failures.last()).map(|mean| mean.as_nanos() as u64);
            Interval::new(*rule, &(0..shelves.len()).map(of_layer).collect::<Vec<_>>(), Timestamp(0))
        });
        let shared = Arc::new(Shared {
            // Two at least, one to be filled while another one is on its way; and room for an index.
            pack_bytes_max: PACK_BYTES_MAX.min(host_bytes / 4).max(host_bytes.min(64 << 10)),
            settings: self.settings,
            shelves,
            ranks: self.ranks,
            next_key: AtomicU64::new(0),
            interval: Mutex::new(interval),
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

fn needs(what: &str) -> Error {
    Error::Engine(outcrop_engine::Error::Stack(format!("a store needs {what}")))
}

fn shelf(place: &Place, limit: Option<&Size>) -> Result<Arc<Shelf>> {
    let files: Arc<dyn Files> = match place {
        Place::Files(files) => Arc::clone(files),
        Place::Path(path) => Arc::new(DiskFiles::create(path).map_err(|source| Error::StoreFiles {
            attempt: "make a store".to_owned(),
            location: path.display().to_string(),
            source,
        })?),
    };
    let limit = limit.map(Size::bytes).transpose()?;
    let shelf = Shelf::new(&format!("dir {}", files.location()), files, limit);
    Ok(Arc::new(shelf.map_err(|error| Error::Engine(outcrop_engine::Error::Layer(error)))?))
}

/// What the engine reports goes to the committer.
fn arrivals(notes: Sender<commit::Note>) -> Arrivals {
    Arrivals(Arc::new(move |arrival: Arrival| {
        // A committer that has ended commits nothing more.
        let _ = notes.send(commit::Note::Arrived(arrival));
    }))
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|source| Error::StoreFiles {
        attempt: "start a thread".to_owned(),
        location: "this process".to_owned(),
        source,
    })
}
