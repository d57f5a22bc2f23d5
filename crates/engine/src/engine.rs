//! Opening and closing: the stack, the planner and the helpers.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outcrop_layers::{Copier, Host, Layer};
use outcrop_plan::{
    Busy, Event, LAYERS_MAX, LayerSettings, MemoryRates, MemorySettings, Order, Planner, Ranking, Settings, Timestamp,
    Touching,
};

use crate::{
    Error, Handle, Result, Stats, Trace,
    core::{CallCount, Core, LayerCount, Shared},
    helper,
    log::Recorder,
    stats::LayerStats,
};

/// How an engine is to work.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The order in which snapshots will be read.
    pub order: Order,
    /// How many helper threads; one per layer and at most four where it is not said.
    pub helpers: Option<usize>,
    /// The cores that helpers are pinned to, in turn; none to let the system choose.
    pub helper_cores: Vec<usize>,
    /// How many threads a large copy may use; all cores where it is not said.
    pub copy_threads: Option<usize>,
    /// Whether to keep a timeline.
    pub is_traced: bool,
    /// Where to write a log of all events and actions.
    pub log: Option<PathBuf>,
    /// How long a call waits for slots that only the program itself can give back; half a minute where it is not said.
    pub patience: Option<Duration>,
    /// When host memory is touched.
    pub touching: Touching,
    /// Whether host memory is not pinned once all of it has been touched.
    pub is_unpinned: bool,
    /// Whether layers are ranked by measured speed.
    pub ranking: Ranking,
    /// What is known of the speed of the layers, in their order; measured as it goes where nothing is.
    pub rates: Vec<Rates>,
    /// What is known of the speed of host memory.
    pub memory_rates: MemoryRates,
    /// Who is told that a snapshot has come to a layer below the front, or could not. Then every snapshot goes to every
    /// layer, the oldest first.
    pub arrivals: Option<Arrivals>,
}

/// Who is told of arrivals: called by helper threads, and must not wait for anything that they do.
#[derive(Clone)]
pub struct Arrivals(pub Arc<dyn Fn(Arrival) + Send + Sync>);

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Arrivals")
    }
}

/// How the way of a snapshot to a layer below the front has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The snapshot.
    pub key: u64,
    /// The layer: 1 is the first one below the front.
    pub layer: usize,
    /// Why it is not there, if so.
    pub failure: Option<String>,
}

/// Bytes per second of writing to a layer and reading from it, as far as is known beforehand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of writing.
    pub write: Option<u64>,
    /// Of reading.
    pub read: Option<u64>,
}

/// A stack at work. It ends when its last handle is dropped: helpers stop, and layers remove what they made.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine over these layers, ranked fastest first, and gives the first handle to it.
    ///
    /// The first layer that is device or host memory becomes the front; the others keep their order below it.
    pub fn open(mut layers: Vec<Arc<dyn Layer>>, options: &Options) -> Result<Handle> {
        let is_memory = |layer: &Arc<dyn Layer>| layer.host().is_some() || layer.device().is_some();
        let front = layers.iter().position(is_memory).ok_or_else(|| {
            Error::Stack(
                "a tape needs host memory or a device to save into; add a host layer, such as host(\"1 GiB\")".into(),
            )
        })?;
        let mut rates = options.rates.clone();
        rates.resize(layers.len(), Rates::default());
        layers[..=front].rotate_right(1);
        rates[..=front].rotate_right(1);
        if layers.len() > LAYERS_MAX {
            return Err(Error::Stack(format!(
                "{} layers are more than the {LAYERS_MAX} that are possible",
                layers.len()
            )));
        }
        let host = layers.iter().enumerate().find_map(|(index, layer)| Some((index, layer.host()?.clone())));
        let settings = settings(&layers, &rates, options);
        let recorder = options.log.as_deref().map(|path| Recorder::create(path, &settings)).transpose()?;
        let core = Core {
            planner: Planner::new(settings),
            recorder,
            snapshots: HashMap::new(),
            answers: Vec::new(),
            lanes: BTreeMap::new(),
            lane_served_last: None,
            chores: VecDeque::new(),
            undisturbed: 0,
            strategy: None,
            next_id: 0,
            handles: 1,
            waiting: 0,
            is_answered: false,
            wakes: 0,
            idle_helpers: 0,
            is_closing: false,
            has_stopped: false,
            displaced: None,
            layers: layers.iter().map(|layer| LayerCount::new(&**layer)).collect(),
            moving: Busy::default(),
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            returns: Mutex::default(),
            work: Condvar::new(),
            answered: Condvar::new(),
            layers,
            host,
            copier: options.copy_threads.map_or_else(Copier::default, Copier::new),
            trace: Trace::new(options.is_traced),
            arrivals: options.arrivals.clone(),
            calls: CallCount::default(),
            start: Instant::now(),
        });
        let mut engine = Self { shared, helpers: Vec::new() };
        engine.start_helpers(options)?;
        engine.shared.tell(&mut engine.shared.lock(), Event::Handles(1));
        Ok(Handle::first(engine))
    }

    fn start_helpers(&mut self, options: &Options) -> Result<()> {
        let count = options.helpers.unwrap_or(self.shared.layers.len().min(4)).max(1);
        for number in 0..count {
            let shared = Arc::clone(&self.shared);
            let core = options.helper_cores.get(number % options.helper_cores.len().max(1)).copied();
            let helper = std::thread::Builder::new().name(format!("outcrop-{number}")).spawn(move || {
                if let Some(core) = core {
                    pin_to(core);
                }
                helper::run(&shared);
            });
            let helper = helper.map_err(|source| Error::File {
                attempt: "start",
                path: "a helper thread".to_owned(),
                source,
            })?;
            self.helpers.push(helper);
        }
        Ok(())
    }

    /// One handle more or less. Gives how many there were.
    pub(crate) fn change_handles(&self, by: i32) -> u32 {
        let mut core = self.shared.lock();
        let before = core.handles;
        core.handles = before.saturating_add_signed(by);
        let handles = core.handles;
        self.shared.tell(&mut core, Event::Handles(handles));
        before
    }

    pub(crate) fn stats(&self) -> Stats {
        let now_ns = self.shared.now_ns();
        let core = self.shared.lock();
        let calls = &self.shared.calls;
        let seconds = |ns: &AtomicU64| ns.load(Relaxed) as f64 / 1e9;
        let counters = core.planner.counters();
        Stats {
            layers: core.layers.iter().enumerate().map(|(index, count)| count.stats(&core, index, now_ns)).collect(),
            saves: calls.saves.load(Relaxed),
            saved_bytes: calls.saved_bytes.load(Relaxed),
            reads: calls.reads.load(Relaxed),
            save_seconds: seconds(&calls.save_ns),
            wait_seconds: seconds(&calls.wait_ns),
            read_seconds: seconds(&calls.read_ns),
            hits: counters.hits,
            late: counters.late,
            misses: counters.misses,
            move_seconds: seconds_of(&core.moving, now_ns),
            copy_threads: self.shared.copier.threads_used(),
        }
    }
}

/// What the planner is to work with.
fn settings(layers: &[Arc<dyn Layer>], rates: &[Rates], options: &Options) -> Settings {
    let host = layers.iter().position(|layer| layer.host().is_some());
    let of_layer = |(index, layer): (usize, &Arc<dyn Layer>)| {
        let settings = LayerSettings {
            write_rate: rates[index].write,
            read_rate: rates[index].read,
            ..LayerSettings::new(layer.capacity())
        };
        let host = layer.host().filter(|_| Some(index) == host);
        match layer.device() {
            // To go on to other memory costs nothing that lasts, and leaves room here.
            Some(device) => {
                let is_transit = index == 0 && layers.len() > 1;
                let drain_above_bytes = if is_transit { 0 } else { settings.drain_above_bytes };
                LayerSettings { drain_above_bytes, ..settings }.with_memory(MemorySettings {
                    piece_bytes: device.chunk_bytes(),
                    ahead_bytes: u64::MAX,
                    touching: Touching::Concurrent,
                    needs_touch: true,
                    is_shared: false,
                    pins: false,
                    rates: MemoryRates::default(),
                })
            }
            _ => host.map_or(settings, |host| settings.with_memory(host_settings(host, index > 0, options))),
        }
    };
    let mut settings = Settings::new(layers.iter().enumerate().map(of_layer).collect(), options.order.clone());
    settings.ranking = options.ranking;
    settings.persists = options.arrivals.is_some();
    if let Some(patience) = options.patience {
        settings.patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    }
    settings
}

/// How host memory is to be made ready. Below a device it is worth having all of it ready, for only then it can be
/// registered; memory that others want as well is taken little by little and never pinned.
fn host_settings(host: &Host, is_below_device: bool, options: &Options) -> MemorySettings {
    let is_shared = host.needs_touch();
    let ahead_bytes = match (is_shared, is_below_device) {
        (true, _) => 2 * host.piece_bytes(),
        (false, true) => u64::MAX,
        (false, false) => MemorySettings::new().ahead_bytes,
    };
    MemorySettings {
        piece_bytes: host.piece_bytes(),
        ahead_bytes,
        touching: options.touching,
        needs_touch: is_shared,
        is_shared,
        pins: !options.is_unpinned && !is_shared,
        rates: options.memory_rates,
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.is_closing = true;
        // What waits to be moved gives its memory back; nobody will ask for it any more.
        core.lanes.clear();
        core.snapshots.clear();
        drop(core);
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            if helper.join().is_err() {
                tracing::error!("a helper thread has panicked");
            }
        }
        // Somebody else may have the state in hand for a moment, to give a slot back or to tell of a pinning. The layers
        // must not outlast this call because of that.
        while Arc::strong_count(&self.shared) > 1 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

impl LayerCount {
    fn new(layer: &dyn Layer) -> Self {
        let stats =
            LayerStats { name: layer.name().to_owned(), capacity_bytes: layer.capacity(), ..LayerStats::default() };
        Self { stats, ..Self::default() }
    }

    fn stats(&self, core: &Core, index: usize, now_ns: u64) -> LayerStats {
        let (used_bytes, used_bytes_max) = core.planner.used_bytes(index);
        let ranks = core.planner.ranks();
        let rank = |ranked: &[usize]| ranked.iter().position(|&layer| layer == index).map(|position| position + 1);
        let found = core.planner.counters().found;
        LayerStats {
            used_bytes,
            used_bytes_max,
            hits: found[index],
            misses: found[index + 1..].iter().sum(),
            write_rank: rank(&ranks.writing),
            read_rank: rank(&ranks.reading),
            memory: core.planner.memory(index),
            write_seconds: seconds_of(&self.writing, now_ns),
            read_seconds: seconds_of(&self.reading, now_ns),
            ..self.stats.clone()
        }
    }
}

fn seconds_of(busy: &Busy, now_ns: u64) -> f64 {
    busy.total_ns(Timestamp(now_ns)) as f64 / 1e9
}

/// Keeps this thread on one core. A core that does not exist is a warning: the run works without.
fn pin_to(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    if core < rustix::thread::CpuSet::MAX_CPU {
        cores.set(core);
    }
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &cores) {
        tracing::warn!(core, %errno, "cannot pin a helper to this core");
    }
}
