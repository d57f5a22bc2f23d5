//! The names of images: which of the operations that were not durable happened nevertheless.

use std::{fmt, str::FromStr};

use fastrand::Rng;

use crate::error::Error;

/// The name of an image: the log, the position of the crash, and what happened to the operations
/// that were not durable.
///
/// It can be parsed from its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId {
    /// The number of steps before the crash.
    pub(crate) position: usize,
    pub(crate) pick: Pick,
    /// The digest of the log.
    pub(crate) log: u32,
}

/// A choice among the operations that were not durable, in the order of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pick {
    /// None of them happened.
    None,
    /// All of them happened.
    All,
    /// Those happened whose bits are set.
    Subset(u32),
    /// Only this one happened.
    Only(usize),
    /// All but this one happened.
    Except(usize),
    /// Random, including torn writes.
    Chance(u64),
}

/// What happened to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It did not happen.
    Lost,
    /// It happened completely.
    Whole,
    /// Some of its sectors arrived. The seed determines which.
    Torn(u64),
}

impl Pick {
    /// The largest number of operations of a subset.
    pub(crate) const SUBSET_MAX: usize = 20;

    /// Whether all operations that it refers to exist.
    pub(crate) fn fits(self, operations: usize) -> bool {
        match self {
            Self::None | Self::All | Self::Chance(_) => true,
            Self::Subset(mask) => operations <= Self::SUBSET_MAX && mask >> operations == 0,
            Self::Only(index) | Self::Except(index) => index < operations,
        }
    }

    /// The fates of the operations, given whether each can be torn.
    pub(crate) fn fates(self, can_be_torn: impl Iterator<Item = bool>) -> Vec<Fate> {
        match self {
            Self::None => choose(can_be_torn, |_| false),
            Self::All => choose(can_be_torn, |_| true),
            Self::Subset(mask) => choose(can_be_torn, |index| mask >> index & 1 == 1),
            Self::Only(alone) => choose(can_be_torn, |index| index == alone),
            Self::Except(missing) => choose(can_be_torn, |index| index != missing),
            Self::Chance(seed) => by_chance(can_be_torn, seed),
        }
    }
}

fn choose(operations: impl Iterator, happened: impl Fn(usize) -> bool) -> Vec<Fate> {
    let fate = |(index, _)| if happened(index) { Fate::Whole } else { Fate::Lost };
    operations.enumerate().map(fate).collect()
}

fn by_chance(can_be_torn: impl Iterator<Item = bool>, seed: u64) -> Vec<Fate> {
    let mut random = Rng::with_seed(seed);
    // Crashes that lose almost nothing or almost everything find other bugs than those that lose
    // half.
    let happens_eighths = [1, 4, 7, 8][random.usize(..4)];
    let torn_eighths = [1, 4, 8][random.usize(..3)];
    // The bytes of a file that has lost its name cannot be seen.
    let keeps_names = random.bool();
    let fate = |can_be_torn| {
        if random.u32(..8) >= happens_eighths && (can_be_torn || !keeps_names) {
            Fate::Lost
        } else if can_be_torn && random.u32(..8) < torn_eighths {
            Fate::Torn(random.u64(..))
        } else {
            Fate::Whole
        }
    };
    can_be_torn.map(fate).collect()
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.position)?;
        match self.pick {
            Pick::None => write!(f, "none")?,
            Pick::All => write!(f, "all")?,
            Pick::Subset(mask) => write!(f, "subset-{mask:x}")?,
            Pick::Only(index) => write!(f, "only-{index}")?,
            Pick::Except(index) => write!(f, "except-{index}")?,
            Pick::Chance(seed) => write!(f, "chance-{seed:x}")?,
        }
        write!(f, "/{:08x}", self.log)
    }
}

impl FromStr for ImageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let mut parts = text.trim().split('/');
            let position = parts.next()?.parse().ok()?;
            let pick = parts.next()?;
            let pick = match pick.split_once('-').unwrap_or((pick, "")) {
                ("none", "") => Pick::None,
                ("all", "") => Pick::All,
                ("subset", mask) => Pick::Subset(u32::from_str_radix(mask, 16).ok()?),
                ("only", index) => Pick::Only(index.parse().ok()?),
                ("except", index) => Pick::Except(index.parse().ok()?),
                ("chance", seed) => Pick::Chance(u64::from_str_radix(seed, 16).ok()?),
                _ => return None,
            };
            let log = u32::from_str_radix(parts.next()?, 16).ok()?;
            parts.next().is_none().then_some(Self { position, pick, log })
        };
        parse().ok_or_else(|| Error::NotAnId(text.to_owned()))
    }
}
