//! A random scenario: the settings of a store, what is done with it, and what fails before the
//! crash.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use outcrop::{
    Retention, Store, StoreBuilder, Way,
    layers::files::Files,
    store::{Compression, Dedup},
};
use outcrop_crash::{Errno, Failing, Fault, Operation, Recording};

use crate::common::{
    observed::Place,
    talk::Meeting,
    trees::{below, tree_of},
};

pub(crate) const LAYERS: [&str; 3] = ["near", "far", "deep"];
pub(crate) const SESSIONS: [&str; 2] = ["heat", "flow"];

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) sessions: usize,
    pub(crate) ranks: u32,
    pub(crate) steps: u64,
    pub(crate) field_bytes: usize,
    block_bytes: u64,
    /// By layer.
    pub(crate) keep: Vec<Retention>,
    limits: Vec<Option<&'static str>>,
    chain_max: usize,
    in_flight: usize,
    compression: Compression,
    dedup: Dedup,
    tracking: Way,
    is_live: bool,
    is_certain: bool,
    pub(crate) excludes: bool,
    /// Whether every rank has a medium of its own on the first layer, like the local disk of a
    /// node.
    has_own_media: bool,
    /// A slow layer, so that the others are ahead of it.
    slow: Option<usize>,
    pub(crate) trouble: Trouble,
}

/// What fails before the crash.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    None,
    /// An operation on a medium fails, or all operations from then on. The program continues with
    /// the other media.
    Medium {
        nth: usize,
        fault: Fault,
    },
    /// A rank is killed before an operation on the medium of its first layer.
    Rank {
        rank: u32,
        after: u64,
    },
    /// A message is lost.
    Message {
        nth: usize,
    },
}

impl Scenario {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let ranks = [1, 2, 1, 3][seed as usize % 4];
        let layers = 1 + (seed / 4) as usize % 3;
        let dedup = match ranks {
            1 => [Dedup::Versions, Dedup::Inside][random.usize(..2)],
            _ => [Dedup::Versions, Dedup::Ranks][random.usize(..2)],
        };
        let same = retention(&mut random);
        let is_same = random.bool();
        let keep = (0..layers).map(|_| if is_same { same } else { retention(&mut random) }).collect();
        let is_limited = random.u8(..6) == 0;
        let limits = (0..layers).map(|_| (is_limited && random.bool()).then_some("160 KiB")).collect();
        let has_own_media = ranks > 1 && dedup != Dedup::Ranks && random.bool();
        let mut scenario = Self {
            seed,
            sessions: if ranks == 1 { random.usize(1..=2) } else { 1 },
            ranks,
            steps: random.u64(6..14),
            field_bytes: [1500, 3000, 9000, 20_000][random.usize(..4)],
            block_bytes: [256, 512, 1024][random.usize(..3)],
            keep,
            limits,
            chain_max: random.usize(1..=4),
            in_flight: random.usize(1..=3),
            compression: [Compression::None, Compression::Lz4, Compression::Zstd(3)][random.usize(..3)],
            dedup,
            tracking: [Way::Everything, Way::Chosen][random.usize(..2)],
            is_live: random.u8(..10) == 0,
            is_certain: random.u8(..6) == 0,
            excludes: random.u8(..4) == 0,
            has_own_media,
            slow: (layers > 1 && random.bool()).then(|| random.usize(..layers)),
            trouble: Trouble::None,
        };
        scenario.trouble = scenario.draw_trouble(&mut random);
        scenario
    }

    fn draw_trouble(&self, random: &mut Rng) -> Trouble {
        let after = random.u64(..100);
        match random.u8(..8) {
            0 => Trouble::Medium {
                nth: random.usize(..self.media().len()),
                fault: Fault { after, is_lasting: true, ..Fault::new(Errno::IO) },
            },
            1 => {
                let of = [Operation::Write, Operation::Sync, Operation::SyncDir, Operation::Rename, Operation::Remove];
                let of = Some(of[random.usize(..5)]);
                let errno = [Errno::IO, Errno::NOSPC][random.usize(..2)];
                let fault = Fault { of, after: after / 5, leaves_half: random.bool(), ..Fault::new(errno) };
                Trouble::Medium { nth: random.usize(..self.media().len()), fault }
            }
            2 if self.ranks > 1 => Trouble::Rank { rank: random.u32(..self.ranks), after },
            3 if self.ranks > 1 => Trouble::Message { nth: random.usize(..30) },
            _ => Trouble::None,
        }
    }

    /// The same scenario without failures and at full speed, for opening it after a crash.
    pub(crate) fn healed(&self) -> Self {
        Self { trouble: Trouble::None, slow: None, ..self.clone() }
    }

    pub(crate) fn layers(&self) -> usize {
        self.keep.len()
    }

    /// Whether a program must expect errors.
    pub(crate) fn is_troubled(&self) -> bool {
        !matches!(self.trouble, Trouble::None) || self.limits.iter().any(Option::is_some)
    }

    fn medium(&self, layer: usize, rank: u32) -> String {
        match layer {
            0 if self.has_own_media => format!("{}-{rank}", LAYERS[0]),
            _ => LAYERS[layer].to_owned(),
        }
    }

    /// The directory of each rank on each layer.
    pub(crate) fn places(&self) -> Vec<Place> {
        let place = |layer, rank| Place { layer, rank, medium: self.medium(layer, rank) };
        (0..self.layers()).flat_map(|layer| (0..self.ranks).map(move |rank| place(layer, rank))).collect()
    }

    /// The names of all media.
    fn media(&self) -> Vec<String> {
        let mut media: Vec<_> = self.places().into_iter().map(|place| place.medium).collect();
        media.sort();
        media.dedup();
        media
    }

    pub(crate) fn recording(&self) -> Recording {
        Recording::from_tree(tree_of(&self.media()))
    }

    pub(crate) fn meeting(&self) -> Arc<Meeting> {
        let lost = match self.trouble {
            Trouble::Message { nth } => Some(nth),
            _ => None,
        };
        Meeting::new(self.ranks, lost)
    }

    /// The files of each rank, by layer, with their faults.
    pub(crate) fn files(&self, recording: &Recording, meeting: &Arc<Meeting>) -> Vec<Vec<Arc<dyn Files>>> {
        let plain: Arc<dyn Files> = Arc::new(recording.clone());
        let failing = Failing::over(recording.clone());
        let (cut, killed) = match self.trouble {
            Trouble::Medium { nth, fault } => {
                failing.inject(fault);
                (Some(self.media().swap_remove(nth)), None)
            }
            Trouble::Rank { rank, after } => {
                failing.inject(Fault { after, is_lasting: true, ..Fault::new(Errno::IO) });
                (None, Some((rank, after)))
            }
            Trouble::None | Trouble::Message { .. } => (None, None),
        };
        let (ends, seen) = (Arc::clone(meeting), AtomicU64::new(0));
        let failing: Arc<dyn Files> = Arc::new(failing.watched(move |_, _| {
            let nth = seen.fetch_add(1, Relaxed);
            if let Some((rank, _)) = killed.filter(|(_, after)| *after == nth) {
                ends.end(rank);
            }
        }));
        let of_layer = |layer: usize, rank: u32| {
            let medium = self.medium(layer, rank);
            let is_failing = cut.as_ref() == Some(&medium) || killed.is_some_and(|(killed, _)| killed == rank);
            let files = below(if is_failing { &failing } else { &plain }, &medium);
            if self.slow == Some(layer) { slowed(files) } else { files }
        };
        (0..self.ranks).map(|rank| (0..self.layers()).map(|layer| of_layer(layer, rank)).collect()).collect()
    }

    pub(crate) fn builder(&self, files: &[Arc<dyn Files>]) -> StoreBuilder {
        let mut builder = Store::builder()
            .host("512 KiB")
            .block(self.block_bytes)
            .chain_max(self.chain_max)
            .in_flight(self.in_flight)
            .compression(self.compression)
            .dedup(self.dedup)
            .tracking(self.tracking)
            .certain(self.is_certain)
            .threads(1)
            .pin(false);
        if self.is_live {
            builder = builder.live("1 MiB");
        }
        for (layer, files) in files.iter().enumerate() {
            builder = builder.files(Arc::clone(files), self.limits[layer]).keep_on(layer + 1, self.keep[layer]);
        }
        builder
    }
}

/// The same files, with some operations that take longer than everything on another layer.
fn slowed(files: Arc<dyn Files>) -> Arc<dyn Files> {
    Arc::new(Failing::new(files).watched(|operation, _| {
        if matches!(operation, Operation::Create | Operation::Sync) {
            thread::sleep(Duration::from_millis(3));
        }
    }))
}

/// All versions, the last few, every k-th, the young ones, or a combination.
fn retention(random: &mut Rng) -> Retention {
    let (keep_last, keep_every) = (Some(random.u32(1..=3)), Some(random.u64(2..=4)));
    let none = Retention::default();
    match random.u8(..8) {
        0 | 1 => none,
        2 | 3 => Retention { keep_last, ..none },
        4 => Retention { keep_every, ..none },
        5 => Retention { keep_last, keep_every, ..none },
        6 => Retention { keep_for_ns: Some(3_600_000_000_000), keep_last, ..none },
        _ => Retention { keep_for_ns: Some(1), ..none },
    }
}
