//! Opens and closes an engine: the layers, the planner and the helper threads.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outcrop_layers::{Abilities, Front, Layer};
use outcrop_memory::Copier;
use outcrop_plan::{
    Busy, Event, LAYERS_MAX, LayerIndex, LayerSettings, MemoryRates, MemorySettings, Order, Packed, Planner,
    Preference, Settings, Timestamp, Touching,
};

use crate::{
    Error, Handle, Result, Stats, Trace,
    core::{Answers, CallCount, Core, LayerCount, Shared},
    helper,
    layout::Layouts,
    link::Exits,
    log::Recorder,
    stats::LayerStats,
};

/// The options of an engine.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The order in which snapshots will be read.
    pub order: Order,
    /// The number of helper threads. Default: one per layer, at most four.
    pub helpers: Option<usize>,
    /// The cores that helpers are pinned to, one after the other. Default: the system chooses.
    pub helper_cores: Vec<usize>,
    /// The number of threads that a large copy may use. Default: all cores.
    pub copy_threads: Option<usize>,
    /// Whether to record a timeline.
    pub is_traced: bool,
    /// Where to write a log of all events and actions.
    pub log: Option<PathBuf>,
    /// How long a call waits for slots that the program itself holds. Default: 30 seconds.
    pub patience: Option<Duration>,
    /// When to touch host memory.
    pub touching: Touching,
    /// Whether to leave host memory unpinned. Default: no, it is pinned once all of it is touched.
    pub is_unpinned: bool,
    /// How to choose between layers: by measured speed, or by their order.
    pub preference: Preference,
    /// Known rates of the layers, in their order. Unknown rates are measured.
    pub rates: Vec<Rates>,
    /// Known rates of host memory.
    pub memory_rates: MemoryRates,
    /// Whether every snapshot must reach every layer, oldest first. Default: no, snapshots sink
    /// when room is needed.
    pub persists: bool,
    /// Who detects corrupt bytes on a layer.
    pub checksums: Checksums,
    /// Called when a snapshot has arrived on a layer below the front, or could not.
    pub arrivals: Option<Arrivals>,
}

/// Who detects corrupt bytes on a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Checksums {
    /// The engine: it computes a checksum when a snapshot leaves memory, and verifies it when the
    /// snapshot comes back.
    #[default]
    Engine,
    /// The program: its snapshots contain checksums, and the engine computes none.
    Program,
}

/// The callback for arrivals. Helper threads call it, so it must not wait for anything that they
/// do.
#[derive(Clone)]
pub struct Arrivals(pub Arc<dyn Fn(Arrival) + Send + Sync>);

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Arrivals")
    }
}

/// The result of moving a snapshot to a layer below the front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The snapshot.
    pub key: u64,
    /// The layer: 1 is the first one below the front.
    pub layer: usize,
    /// Why the move failed, if it did.
    pub failure: Option<String>,
}

/// Bytes per second of writing to a layer and reading from it, if known in advance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of writing.
    pub write: Option<u64>,
    /// Of reading.
    pub read: Option<u64>,
}

/// An open stack. It closes when its last handle is dropped: helpers stop, and layers remove their
/// files.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Opens an engine over these layers, fastest first, and returns its first handle.
    ///
    /// The first layer that is device or host memory becomes the front. The others keep their order
    /// below it.
    pub fn open(mut layers: Vec<Arc<dyn Layer>>, options: &Options) -> Result<Handle> {
        let front = layers.iter().position(|layer| layer.front().is_some()).ok_or_else(|| {
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
        let host = layers.iter().enumerate().find_map(|(index, layer)| Some((index, layer.front()?.host()?.clone())));
        check_hosts(&layers, host.as_ref().map(|(index, _)| *index))?;
        let settings = settings(&layers, host.as_ref().map(|(index, _)| *index), &rates, options);
        let recorder = options.log.as_deref().map(|path| Recorder::create(path, &settings)).transpose()?;
        let core = Core {
            planner: Planner::new(settings),
            recorder,
            snapshots: Packed::new(),
            layouts: Layouts::default(),
            further: BTreeMap::new(),
            answers: Answers::default(),
            lanes: BTreeMap::new(),
            lane_served_last: None,
            lane_that_gave_way: None,
            next_job: 0,
            reports: VecDeque::new(),
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
            exits: Arc::default(),
            checksums: options.checksums,
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
        let (pinned, refusals) = mpsc::channel();
        for number in 0..count {
            let pinned = pinned.clone();
            let shared = Arc::clone(&self.shared);
            let core = options.helper_cores.get(number % options.helper_cores.len().max(1)).copied();
            let helper = std::thread::Builder::new().name(format!("outcrop-{number}")).spawn(move || {
                let outcome = core.map_or(Ok(()), |core| pin_to(core).map_err(|errno| (core, errno)));
                // Who opens the engine waits for all of them.
                let _ = pinned.send(outcome);
                drop(pinned);
                helper::run(&shared);
            });
            let helper = helper.map_err(|source| Error::File {
                attempt: "start",
                path: "a helper thread".to_owned(),
                source,
            })?;
            self.helpers.push(helper);
        }
        drop(pinned);
        match refusals.iter().find_map(std::result::Result::err) {
            None => Ok(()),
            Some((core, errno)) => {
                let problem =
                    format!("core {core} cannot be used ({errno}); choose some that `nproc` and `taskset` know");
                Err(Error::Stack(format!("helper_cores: {problem}")))
            }
        }
    }

    /// Adds `by` to the number of handles. Returns the number before.
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
            waiting: core.waiting,
            move_seconds: seconds_of(&core.moving, now_ns),
            helper_seconds: seconds(&calls.helper_ns),
            bookkeeping_bytes: core.bookkeeping_bytes()
                + self.shared.host.as_ref().map_or(0, |(_, host)| host.bookkeeping_bytes()),
            copy_threads: self.shared.copier.threads_used(),
        }
    }
}

/// Refuses shared memory below other host memory: only that of the first host layer is taken from
/// the buffer when it is needed, and given back.
fn check_hosts(layers: &[Arc<dyn Layer>], host: Option<LayerIndex>) -> Result<()> {
    let is_shared = |layer: &&Arc<dyn Layer>| layer.front().is_some_and(|memory| memory.abilities().is_shared);
    match layers.iter().skip(host.map_or(0, |host| host + 1)).find(is_shared) {
        None => Ok(()),
        Some(layer) => Err(Error::Stack(format!(
            "{} is below other host memory; make it the first host layer, or use host memory that is not shared",
            layer.name()
        ))),
    }
}

/// The planner's settings for these layers.
fn settings(layers: &[Arc<dyn Layer>], host: Option<LayerIndex>, rates: &[Rates], options: &Options) -> Settings {
    let of_layer = |(index, layer): (LayerIndex, &Arc<dyn Layer>)| {
        let mut settings = LayerSettings {
            write_rate: rates[index].write,
            read_rate: rates[index].read,
            keeps: layer.kept_bytes().is_some(),
            ..layer.capacity().map_or_else(LayerSettings::unlimited, LayerSettings::new)
        };
        let Some(abilities) = layer.front().map(Front::abilities) else { return settings };
        // Draining memory that only a device can reach wears nothing out, and makes room there:
        // begin at once.
        if !abilities.is_addressable && index == 0 && layers.len() > 1 {
            settings.drain_above_bytes = 0;
        }
        match abilities.is_addressable && host != Some(index) {
            true => settings,
            false => settings.with_memory(memory_settings(abilities, index > 0, options)),
        }
    };
    let mut settings = Settings::new(layers.iter().enumerate().map(of_layer).collect(), options.order.clone());
    settings.preference = options.preference;
    settings.persists = options.persists;
    if let Some(patience) = options.patience {
        settings.patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    }
    settings
}

/// How the plan should make a layer's memory ready. Device memory is mapped as early as possible.
/// Host memory below a device is touched completely, because only then can it be registered. Shared
/// memory is taken piece by piece, and never pinned.
fn memory_settings(abilities: Abilities, is_below: bool, options: &Options) -> MemorySettings {
    let Abilities { is_addressable, needs_touch, is_shared, piece_bytes, .. } = abilities;
    let ahead_bytes = match (is_shared, is_below || !is_addressable) {
        (true, _) => 2 * piece_bytes,
        (false, true) => u64::MAX,
        (false, false) => MemorySettings::new().ahead_bytes,
    };
    MemorySettings {
        piece_bytes,
        ahead_bytes,
        touching: if is_addressable { options.touching } else { Touching::Concurrent },
        needs_touch,
        is_shared,
        pins: is_addressable && !is_shared && !options.is_unpinned,
        rates: if is_addressable { options.memory_rates } else { MemoryRates::default() },
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.is_closing = true;
        // Queued moves hold slots. Nobody will read them any more, so free them.
        core.lanes.clear();
        core.snapshots = Packed::new();
        core.further.clear();
        drop(core);
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            if helper.join().is_err() {
                tracing::error!("a helper thread has panicked");
            }
        }
        // Another thread may be giving a slot back, or reporting that memory is pinned. Wait for
        // it, so that the layers do not outlive this call.
        Exits::close(&self.shared);
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
        let preferred = core.planner.preferred();
        let number = |layers: &[usize]| layers.iter().position(|&layer| layer == index).map(|position| position + 1);
        let found = core.planner.counters().found;
        LayerStats {
            used_bytes,
            used_bytes_max,
            hits: found[index],
            misses: found[index + 1..].iter().sum(),
            write_preference: number(&preferred.writing),
            read_preference: number(&preferred.reading),
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

/// Pins this thread to one core.
fn pin_to(core: usize) -> std::result::Result<(), rustix::io::Errno> {
    let mut cores = rustix::thread::CpuSet::new();
    if core < rustix::thread::CpuSet::MAX_CPU {
        cores.set(core);
    }
    rustix::thread::sched_setaffinity(None, &cores)
}
