//! Deduplication: finds blocks that exist already, in this version or on another rank.
//!
//! Ranks tell each other the hashes of the blocks that they are going to write. If several ranks
//! have a block, the lowest of them writes it, and the others refer to its pack. This happens
//! within one version, so there is no index to keep. A rank that refers to a pack of another rank
//! lists it in its manifest, and packs are removed only if no manifest lists them.

use std::collections::{BTreeMap, HashMap, HashSet};

use outcrop_format::{
    Coding, Hash, ManifestPack, PackId, SharedBlocks, SharedLocation, SharedLocations, SharedPack, SharedPacks,
    Sharing, Stored,
};

use super::{Dedup, Filled, SessionCore, Shared, Task};
use crate::{Result, chain::Link, error::apart, exchange::decode_all};

/// The exchanges for each version, in order.
const EXCHANGES: [&str; 4] = ["sharing", "hashes", "locations", "packs"];
const SHARING: usize = 0;
const HASHES: usize = 1;
const LOCATIONS: usize = 2;
const PACKS: usize = 3;

/// Where the bytes of a block lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) pack: PackId,
    pub(crate) at: u64,
    pub(crate) stored: Stored,
    pub(crate) coding: Coding,
}

/// The blocks of one version, while it is packed.
pub(crate) struct Shares<'a> {
    shared: &'a Shared,
    session: &'a SessionCore,
    version: u64,
    dedup: Dedup,
    /// How many of the exchanges are done.
    exchanged: usize,
    /// The places of blocks of this version.
    placed: HashMap<(Hash, u32), Location>,
    /// Blocks that a lower rank writes, and the rank.
    theirs: HashMap<(Hash, u32), u32>,
    /// Blocks that a higher rank has too.
    wanted: HashSet<(Hash, u32)>,
    /// The places of blocks that lower ranks write.
    locations: HashMap<(Hash, u32), Location>,
    /// Packs of other ranks to which this version may refer.
    packs: BTreeMap<PackId, ManifestPack>,
    /// By region: the hashes of all blocks that this version has compared.
    hashes: Vec<Vec<(u64, Hash)>>,
    placed_blocks: u64,
}

impl<'a> Shares<'a> {
    /// Ranks share blocks if the settings say so, and if the new blocks of the version fit into
    /// host memory on every rank.
    pub(crate) fn new(
        shared: &'a Shared,
        session: &'a SessionCore,
        version: u64,
        regions: usize,
        (bytes, is_full): (u64, bool),
    ) -> Result<Self> {
        // If bytes are to be compared, the hash of another rank's block proves nothing, and its
        // bytes are not available here.
        let is_certain = shared.settings.is_certain;
        let dedup = if is_certain { shared.settings.dedup.min(Dedup::Inside) } else { shared.settings.dedup };
        let mut shares = Self {
            shared,
            session,
            version,
            dedup,
            exchanged: 0,
            placed: HashMap::new(),
            theirs: HashMap::new(),
            wanted: HashSet::new(),
            locations: HashMap::new(),
            packs: BTreeMap::new(),
            hashes: vec![Vec::new(); regions],
            placed_blocks: 0,
        };
        if shares.is_between_ranks() {
            let fits = bytes <= shared.pack_bytes_max * 2;
            let mine = Sharing { fits, losses: session.content().losses };
            let everybody = decode_all(&shares.gather(SHARING, &mine.encode())?, Sharing::decode)?;
            if everybody.iter().any(|other| !other.fits) {
                shares.dedup = Dedup::Inside;
            }
            let losses: Vec<u64> = everybody.iter().map(|other| other.losses).collect();
            let mut content = session.content();
            if is_full || content.losses_before.is_empty() {
                content.losses_before = losses;
            } else if content.losses_before != losses {
                content.is_broken = true;
                let detail = "another rank has lost blocks that this version needs; the next one is saved in full";
                return Err(apart(detail));
            }
        }
        Ok(shares)
    }

    pub(crate) fn is_between_ranks(&self) -> bool {
        self.dedup == Dedup::Ranks && self.session.ranks > 1
    }

    /// Records all blocks of this version, and learns which of them lower ranks have too.
    pub(crate) fn meet(&mut self, filled: &[Filled], task: &Task<'_>) -> Result<()> {
        let mut mine = Vec::new();
        for run in filled.iter().flat_map(|slot| &slot.runs) {
            let manifest = &task.regions[run.region].manifest;
            for (block, &hash) in run.blocks.clone().zip(&run.hashes) {
                self.hashes[run.region].push((block, hash));
                if self.is_between_ranks() && !task.is_unchanged(run.region, block, &hash) {
                    mine.push((hash, manifest.blocks.len(block)));
                }
            }
        }
        if !self.is_between_ranks() {
            return Ok(());
        }
        let own: HashSet<_> = mine.iter().copied().collect();
        let messages = self.gather(HASHES, &SharedBlocks(mine).encode())?;
        for (rank, SharedBlocks(theirs)) in (0..).zip(decode_all(&messages, SharedBlocks::decode)?) {
            for block in theirs.into_iter().filter(|block| own.contains(block)) {
                if rank < self.session.rank {
                    self.theirs.entry(block).or_insert(rank);
                } else if rank > self.session.rank {
                    self.wanted.insert(block);
                }
            }
        }
        Ok(())
    }

    /// Tells the other ranks the places of blocks that they have too, and learns the places of
    /// theirs.
    pub(crate) fn exchange_locations(&mut self) -> Result<()> {
        if !self.is_between_ranks() {
            return Ok(());
        }
        let mut mine = Vec::new();
        for block in &self.wanted {
            // A block that another rank writes is not passed on.
            if let Some(location) = self.placed.get(block).filter(|_| !self.theirs.contains_key(block)) {
                let Location { pack, at, stored, coding } = *location;
                let (hash, bytes) = *block;
                mine.push(SharedLocation { hash, bytes, number: pack.number, at, stored, coding });
            }
        }
        let messages = self.gather(LOCATIONS, &SharedLocations(mine).encode())?;
        for (rank, SharedLocations(theirs)) in (0..).zip(decode_all(&messages, SharedLocations::decode)?) {
            for SharedLocation { hash, bytes, number, at, stored, coding } in theirs {
                if self.theirs.get(&(hash, bytes)) == Some(&rank) {
                    let location = Location { pack: PackId { rank, number }, at, stored, coding };
                    self.locations.insert((hash, bytes), location);
                }
            }
        }
        match self.theirs.keys().find(|block| !self.locations.contains_key(*block)) {
            None => Ok(()),
            Some(_) => Err(apart("a rank did not say where its blocks are")),
        }
    }

    /// Tells the other ranks the packs of this version, and learns theirs.
    pub(crate) fn exchange_packs(&mut self, links: &[Link]) -> Result<()> {
        self.packs.extend(links.iter().map(|link| (link.pack.id, ManifestPack { is_borrowed: true, ..link.pack })));
        if !self.is_between_ranks() {
            return Ok(());
        }
        let of_link = |link: &Link| SharedPack {
            number: link.pack.id.number.into(),
            file_bytes: link.pack.file_bytes.into(),
            index_check: link.pack.index_check.into(),
        };
        let messages = self.gather(PACKS, &SharedPacks(links.iter().map(of_link).collect()).encode())?;
        for (rank, SharedPacks(theirs)) in (0..).zip(decode_all(&messages, SharedPacks::decode)?) {
            for pack in theirs {
                let id = PackId { rank, number: pack.number.get() };
                let (file_bytes, index_check) = (pack.file_bytes.get(), pack.index_check.get());
                self.packs.insert(id, ManifestPack { id, file_bytes, index_check, is_borrowed: true });
            }
        }
        Ok(())
    }

    /// Fills in the details of borrowed packs, which are known only now.
    pub(crate) fn complete(&self, borrows: &mut [ManifestPack]) -> Result<()> {
        for borrow in borrows {
            *borrow =
                *self.packs.get(&borrow.id).ok_or_else(|| apart("a rank did not make a pack that it promised"))?;
        }
        Ok(())
    }

    /// Where a block lies already, if it need not be written again: at a place in this version, or
    /// on a lower rank that will write it.
    pub(crate) fn find(&self, block: (Hash, u32)) -> Option<Source> {
        if self.dedup == Dedup::Versions {
            return None;
        }
        if self.theirs.contains_key(&block) {
            return Some(Source::Theirs);
        }
        self.placed.get(&block).map(|location| Source::Placed(*location))
    }

    /// Counts blocks that packs of this version have, references included.
    pub(crate) fn add_placed(&mut self, blocks: u64) {
        self.placed_blocks += blocks;
    }

    /// How many blocks the packs of this version have.
    pub(crate) fn placed_blocks(&self) -> u64 {
        self.placed_blocks
    }

    /// Whether every block is written, even if it exists already.
    pub(crate) fn keeps_all(&self) -> bool {
        self.dedup == Dedup::Versions
    }

    /// Records the place of a block.
    pub(crate) fn place(&mut self, block: (Hash, u32), location: Location) {
        if self.dedup > Dedup::Versions {
            self.placed.entry(block).or_insert(location);
        }
    }

    /// The place of a block that a lower rank has written.
    pub(crate) fn location(&self, block: (Hash, u32)) -> Option<Location> {
        self.locations.get(&block).copied()
    }

    /// Visits all blocks of a region that this version has compared.
    pub(crate) fn for_each_hash(&self, region: usize, mut visit: impl FnMut(u64, Hash)) {
        self.hashes[region].iter().for_each(|&(block, hash)| visit(block, hash));
    }

    /// Takes part in an exchange.
    fn gather(&mut self, what: usize, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchanged = what + 1;
        // The topic contains the version. So a rank that is too late for one version is in step
        // again with the next.
        let Self { session, version, .. } = self;
        let topic = format!("{} {} {} {version}", EXCHANGES[what], session.name, session.run);
        let gathered = self.shared.ranks.gather(&topic, mine);
        if gathered.is_err() {
            // There is nobody to exchange anything with.
            self.exchanged = EXCHANGES.len();
        }
        Ok(gathered?)
    }
}

/// If a version fails on this rank, it shares nothing. It still takes part in the remaining
/// exchanges, because the other ranks wait for it.
impl Drop for Shares<'_> {
    fn drop(&mut self) {
        while self.is_between_ranks() && self.exchanged < EXCHANGES.len() {
            // The reason of the failure is known already.
            let _ = self.gather(self.exchanged, &[]);
        }
    }
}

/// Where the bytes of a block are that is not written again.
pub(crate) enum Source {
    Placed(Location),
    Theirs,
}
