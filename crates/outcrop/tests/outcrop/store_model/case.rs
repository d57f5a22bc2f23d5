//! The operations on a store and the settings of a session, and how both are generated from a seed.

use std::fmt;

use fastrand::Rng;
use outcrop::{
    HashKind, Retention, Way,
    store::{Compression, Dedup},
};
use outcrop_crash::{Errno, Fault, Operation as Call};

/// The largest number of ranks of a case.
pub(super) const RANKS_MAX: u32 = 4;
pub(super) const LAYERS_MAX: usize = 3;

/// An hour: longer than any case takes.
const LONG_NS: u64 = 3_600_000_000_000;

/// Everything that is done to one store, by ranks that all do the same at the same time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) ranks: u32,
    pub(super) layers: usize,
    /// Whether each rank has directories of its own, like the local disks of nodes.
    pub(super) is_local: bool,
    pub(super) operations: Vec<Operation>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, layers, is_local, operations } = self;
        writeln!(f, "ranks: {ranks}, layers: {layers}, is_local: {is_local}")?;
        for (nth, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Open(settings) if *settings == Settings::plain(*layers) => {
                    writeln!(f, "{nth}: Open(plain)")?
                }
                operation => writeln!(f, "{nth}: {operation:?}")?,
            }
        }
        Ok(())
    }
}

/// An operation. Operations that are not possible in the current state are skipped, so any subset
/// of a list of operations is valid. Numbers that choose something are taken modulo the number of
/// choices.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operation {
    /// Opens the session.
    Open(Settings),
    /// Finishes the session, or drops it.
    Close { is_dropped: bool },
    /// From some file operation on, nothing reaches the directories of any rank. Meanwhile a
    /// version is saved, and the session is dropped, as if the processes had been killed.
    Kill { after: u64, leaves_half: bool },
    /// Saves a version, with a number `gap` above the newest, or a failed one again.
    Save { gap: u64, is_again: bool, scribbles: bool, wait: Wait },
    /// Changes the memory of all ranks.
    Change { kind: Change, seed: u64 },
    /// Excludes bytes of a region.
    Exclude { seed: u64, is_none: bool },
    /// Marks bytes of a region as changed.
    MarkDirty { seed: u64 },
    /// Waits for one of the versions of this session.
    Wait { nth: usize, wait: Wait },
    /// Restores the newest version: all its regions at once, or first one region to find out the
    /// version.
    RestoreLatest { is_at_once: bool },
    /// Restores one of the versions.
    Restore { nth: usize },
    /// Reads one of the versions without continuing from it.
    Read { nth: usize },
    /// Lets the next version build upon one of the versions.
    GoOnAfter { nth: usize },
    /// Removes what comes after one of the versions, or everything.
    Rewind { nth: Option<usize> },
    /// A directory of a rank fails.
    Fail { layer: usize, rank: u32, fault: FaultPlan },
    /// No directory fails any more.
    Heal,
    /// A file is damaged.
    Damage { layer: usize, rank: u32, nth: usize, damage: Damage },
    /// The directories of a rank, or of all ranks, are missing when the session is opened next.
    Away { layer: usize, rank: Option<u32> },
    /// A missing directory is back, and replaces the one that was made meanwhile.
    Back { nth: usize },
    /// The directories of two ranks are swapped.
    Swap { layer: usize, rank: u32 },
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    Host,
    Here(usize),
    Layer(usize),
    All,
}

/// How memory changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    FewBytes,
    Stretch,
    Everything,
    Nothing,
    Add,
    Remove,
    Resize,
    /// The same bytes at another address.
    Move,
    /// Two regions exchange their memory.
    Exchange,
    /// The memory becomes what it was some versions ago.
    Revert,
}

/// The damage to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    Flip { at: u64, bit: u8 },
    Cut { at: u64 },
    Longer { by: u64 },
    Remove,
}

/// Which calls of a directory fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FaultPlan {
    pub(super) of: Option<Call>,
    pub(super) after: u64,
    pub(super) is_full: bool,
    pub(super) is_lasting: bool,
    pub(super) leaves_half: bool,
}

impl FaultPlan {
    pub(super) fn fault(self) -> Fault {
        let Self { of, after, is_full, is_lasting, leaves_half } = self;
        let errno = if is_full { Errno::NOSPC } else { Errno::IO };
        Fault { of, after, is_lasting, leaves_half, ..Fault::new(errno) }
    }
}

/// The settings of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// Uses real directories without wrappers, so that transfers bypass the page cache. Such
    /// directories cannot be made to fail.
    pub(super) is_direct: bool,
    pub(super) host_kib: u64,
    pub(super) block: u64,
    pub(super) hash: HashKind,
    pub(super) is_certain: bool,
    pub(super) is_incremental: bool,
    pub(super) is_live: bool,
    pub(super) tracking: Way,
    pub(super) compression: Compression,
    pub(super) dedup: Dedup,
    pub(super) in_flight: usize,
    pub(super) chain_max: usize,
    /// By layer.
    pub(super) keep: Vec<Retention>,
    pub(super) limit_kib: Vec<Option<u64>>,
    /// A directory that fails already when the session is opened.
    pub(super) fault: Option<(usize, u32, FaultPlan)>,
}

impl Settings {
    /// The settings that most programs use.
    pub(super) fn plain(layers: usize) -> Self {
        Self {
            is_direct: false,
            host_kib: 1024,
            block: 512,
            hash: HashKind::Xxh3,
            is_certain: false,
            is_incremental: true,
            is_live: false,
            tracking: Way::Chosen,
            compression: Compression::None,
            dedup: Dedup::Versions,
            in_flight: 2,
            chain_max: 8,
            keep: vec![Retention::default(); layers],
            limit_kib: vec![None; layers],
            fault: None,
        }
    }

    fn random(random: &mut Rng, case: &Case) -> Self {
        let layers = case.layers;
        let plain = Self::plain(layers);
        if random.u8(..6) == 0 {
            return plain;
        }
        let mut one_of = |chance: u8| random.u8(..chance) == 0;
        let (is_direct, is_certain, is_incremental, is_live) = (one_of(4), one_of(6), !one_of(8), one_of(6));
        let (is_limited, has_fault) = (one_of(8), one_of(12));
        let dedup = match random.u8(..4) {
            0 => Dedup::Inside,
            1 if !case.is_local => Dedup::Ranks,
            _ => Dedup::Versions,
        };
        let limit = |random: &mut Rng| (is_limited && random.bool()).then(|| random.u64(150..900));
        Self {
            is_direct,
            host_kib: if random.u8(..5) == 0 { 256 } else { 1024 },
            block: [256, 512, 4096][random.usize(..3)],
            hash: [HashKind::Xxh3, HashKind::Xxh3, HashKind::Blake3, HashKind::Md5][random.usize(..4)],
            is_certain,
            is_incremental,
            is_live,
            tracking: [Way::Chosen, Way::Pages, Way::Everything][random.usize(..3)],
            compression: [Compression::None, Compression::Lz4, Compression::Zstd(1)][random.usize(..3)],
            dedup,
            in_flight: random.usize(1..4),
            chain_max: random.usize(1..5),
            keep: (0..layers).map(|_| retention(random)).collect(),
            limit_kib: (0..layers).map(|_| limit(random)).collect(),
            fault: has_fault.then(|| (random.usize(..layers), random.u32(..case.ranks), fault(random))),
        }
    }
}

fn retention(random: &mut Rng) -> Retention {
    let none = Retention::default();
    match random.u8(..7) {
        0..3 => none,
        3 => Retention { keep_last: Some(random.u32(1..4)), ..none },
        4 => Retention { keep_every: Some(random.u64(2..4)), ..none },
        5 => Retention { keep_for_ns: Some(if random.bool() { LONG_NS } else { 1 }), ..none },
        _ => Retention { keep_last: Some(2), keep_every: Some(3), keep_for_ns: None },
    }
}

fn fault(random: &mut Rng) -> FaultPlan {
    use Call::{Bytes, Create, List, MakeDir, Open, Read, Remove, Rename, Sync, SyncDir, Write};
    let calls = [Create, Write, Sync, Rename, Remove, SyncDir, Open, Read, Bytes, List, MakeDir];
    let of = (random.u8(..4) > 0).then(|| calls[random.usize(..calls.len())]);
    let after = if random.bool() { random.u64(..4) } else { random.u64(..30) };
    let is_lasting = random.u8(..3) == 0;
    FaultPlan { of, after, is_full: random.bool(), is_lasting, leaves_half: random.bool() }
}

fn damage(random: &mut Rng) -> Damage {
    match random.u8(..8) {
        0..4 => Damage::Flip { at: random.u64(..), bit: random.u8(..8) },
        4..6 => Damage::Cut { at: random.u64(..) },
        6 => Damage::Longer { by: random.u64(1..5000) },
        _ => Damage::Remove,
    }
}

fn wait(random: &mut Rng) -> Wait {
    match random.u8(..8) {
        0..3 => Wait::Nothing,
        3 => Wait::Host,
        4 => Wait::Here(random.usize(..LAYERS_MAX)),
        5..7 => Wait::Layer(random.usize(..LAYERS_MAX)),
        _ => Wait::All,
    }
}

fn change(random: &mut Rng) -> Change {
    use Change::{Add, Everything, Exchange, FewBytes, Move, Nothing, Remove, Resize, Revert, Stretch};
    let kinds = [FewBytes, FewBytes, FewBytes, Stretch, Stretch, Everything, Nothing, Add, Remove, Resize];
    let rare = [Move, Exchange, Revert];
    if random.u8(..4) == 0 { rare[random.usize(..rare.len())] } else { kinds[random.usize(..kinds.len())] }
}

impl Case {
    /// The case of a seed.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let ranks = [1, 1, 1, 2, 2, 3, 4][random.usize(..7)];
        let layers = [1, 2, 2, 3][random.usize(..4)];
        let is_local = ranks > 1 && random.bool();
        let mut case = Self { ranks, layers, is_local, operations: Vec::new() };
        // Some cases are without faults, so that no failure is excused.
        let is_calm = random.u8(..3) == 0;
        for _ in 0..random.usize(1..5) {
            let settings = Settings::random(&mut random, &case);
            let settings = if is_calm { Settings { fault: None, ..settings } } else { settings };
            case.operations.push(Operation::Open(settings));
            for _ in 0..random.usize(2..12) {
                let operation = case.while_open(&mut random, is_calm);
                case.operations.push(operation);
            }
            let end = match random.u8(..6) {
                0 | 1 if !is_calm => Operation::Kill { after: random.u64(..60), leaves_half: random.bool() },
                2 => Operation::Close { is_dropped: true },
                _ => Operation::Close { is_dropped: false },
            };
            case.operations.push(end);
            while !is_calm && random.u8(..2) == 0 {
                let operation = case.while_closed(&mut random);
                case.operations.push(operation);
            }
        }
        case
    }

    fn while_open(&self, random: &mut Rng, is_calm: bool) -> Operation {
        let seed = random.u64(..);
        let nth = random.usize(..16);
        match random.u8(..32) {
            0..8 => Operation::Change { kind: change(random), seed },
            8..19 => Operation::Save {
                gap: [0, 0, 0, 1, 5][random.usize(..5)],
                is_again: random.u8(..4) == 0,
                scribbles: random.bool(),
                wait: wait(random),
            },
            19 => Operation::Exclude { seed, is_none: random.u8(..3) == 0 },
            20 => Operation::MarkDirty { seed },
            21 => Operation::Wait { nth, wait: wait(random) },
            22 | 23 => Operation::RestoreLatest { is_at_once: random.bool() },
            24 => Operation::Restore { nth },
            25 => Operation::Read { nth },
            26 => Operation::GoOnAfter { nth },
            27 => Operation::Rewind { nth: (random.u8(..6) > 0).then_some(nth) },
            28 | 29 if !is_calm => {
                let (layer, rank) = (random.usize(..self.layers), random.u32(..self.ranks));
                Operation::Fail { layer, rank, fault: fault(random) }
            }
            30 if !is_calm => Operation::Heal,
            31 if !is_calm => self.damage(random),
            _ => Operation::RestoreLatest { is_at_once: true },
        }
    }

    fn while_closed(&self, random: &mut Rng) -> Operation {
        let (layer, rank) = (random.usize(..self.layers), random.u32(..self.ranks));
        match random.u8(..8) {
            0..4 => self.damage(random),
            4 | 5 => Operation::Away { layer, rank: random.bool().then_some(rank) },
            6 => Operation::Back { nth: random.usize(..8) },
            _ => Operation::Swap { layer, rank },
        }
    }

    fn damage(&self, random: &mut Rng) -> Operation {
        let (layer, rank) = (random.usize(..self.layers), random.u32(..self.ranks));
        Operation::Damage { layer, rank, nth: random.usize(..64), damage: damage(random) }
    }
}
