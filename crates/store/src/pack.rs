//! The packer: makes packs of the blocks of a version, between the save and the engine.
//!
//! It takes slots of host memory that the save has filled, or fills them from a frozen image of the
//! program's memory. It hashes blocks that are not hashed yet, leaves out those that exist already,
//! compresses the rest if that pays, and turns each slot into a pack, in place.

mod layout;
mod share;
mod trial;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, Sender},
    },
};

use layout::Layout;
use outcrop_commit::{Draft, SaveId};
use outcrop_engine::{Handle, Lent};
use outcrop_format::{
    Blocks, Hash, IndexSize, Manifest, ManifestPack, ManifestRegion, PAGE_BYTES, PackHeader, PackOrigin,
};
use outcrop_region::Element;
use outcrop_track::{ChosenHasher, Frozen, Hasher};
use share::{Location, Shares};

use super::{
    Compression, Dedup, Shared,
    chain::{Link, RegionContent},
    commit::{Note, failed},
    host::path,
    merge,
    state::{Image, SessionCore},
};
use crate::{Result, error::no_room};

/// The default rate of a directory in bytes per second, used until it is measured.
const MEDIUM_RATE: f64 = 1e9;

/// A message to the packer.
pub(crate) enum Job {
    Version(Box<VersionJob>),
    Merge(Arc<SessionCore>),
    /// The sender is dropped when all jobs before this are done.
    Flush(Sender<()>),
    Close,
}

/// A version that has been saved and is not packed.
pub(crate) struct VersionJob {
    pub(crate) session: Arc<SessionCore>,
    pub(crate) save: SaveId,
    pub(crate) saved_at_unix_ns: u64,
    pub(crate) regions: Vec<RegionJob>,
    /// Whether it needs no packs of earlier versions.
    pub(crate) is_full: bool,
    /// The total size of its blocks, at most.
    pub(crate) bytes: u64,
    pub(crate) source: Source,
}

/// A region of that version.
pub(crate) struct RegionJob {
    pub(crate) manifest: ManifestRegion,
    pub(crate) compression: Compression,
}

impl RegionJob {
    /// How it is cut into blocks, and the length of its name.
    pub(crate) fn size(&self) -> (Blocks, usize) {
        (self.manifest.blocks, self.manifest.name.len())
    }

    /// How many blocks are not excluded entirely.
    fn saved_blocks(&self) -> u64 {
        let blocks = self.manifest.blocks.count();
        match self.manifest.excluded.is_empty() {
            true => blocks,
            false => (0..blocks).filter(|block| !self.manifest.is_excluded(*block)).count() as u64,
        }
    }
}

/// Where the blocks of a version are.
pub(crate) enum Source {
    /// In slots, which are sent one by one, followed by `None`. If that is missing, the save has
    /// failed.
    Copied(Receiver<Option<Filled>>),
    /// In a frozen image of the program's memory.
    Frozen(Image, Vec<Run>),
}

/// Consecutive blocks of a region.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) region: usize,
    pub(crate) blocks: Range<u64>,
    /// By block. Empty if they are not known yet.
    pub(crate) hashes: Vec<Hash>,
}

/// A slot with the bytes of these runs, one after the other, after room for a header.
pub(crate) struct Filled {
    pub(crate) lent: Lent,
    pub(crate) key: u64,
    pub(crate) runs: Vec<Run>,
}

/// What is being packed.
pub(crate) struct Task<'a> {
    session: &'a Arc<SessionCore>,
    version: u64,
    regions: &'a [RegionJob],
    /// By region: what its blocks are compared with. Empty if nothing is compared.
    known: Vec<Option<Arc<RegionContent>>>,
}

impl Task<'_> {
    /// Whether a block is the same as in the version before.
    fn is_unchanged(&self, region: usize, block: u64, hash: &Hash) -> bool {
        matches!(self.known.get(region), Some(Some(known)) if known.is_unchanged(block, hash))
    }
}

/// Splits runs into lists that fit into one pack each.
pub(crate) fn split(runs: Vec<Run>, blocks: impl Fn(usize) -> Blocks, bytes_max: u64) -> Vec<Vec<Run>> {
    let mut packs = Vec::new();
    let mut pack: Vec<Run> = Vec::new();
    let mut room = bytes_max;
    for mut run in runs {
        let shape = blocks(run.region);
        let block_bytes = u64::from(shape.block_bytes());
        while !run.blocks.is_empty() {
            let fitting = match room / block_bytes {
                0 if pack.is_empty() => 1,
                fitting => fitting,
            };
            if fitting == 0 {
                packs.push(std::mem::take(&mut pack));
                room = bytes_max;
                continue;
            }
            let count = fitting.min(run.blocks.end - run.blocks.start).min(u32::MAX.into());
            let hashes = run.hashes.split_off(run.hashes.len().min(count as usize));
            let rest = run.blocks.start + count..run.blocks.end;
            let part = Run { region: run.region, blocks: run.blocks.start..rest.start, hashes: run.hashes };
            room = room.saturating_sub(count * block_bytes);
            pack.push(part);
            run = Run { region: run.region, blocks: rest, hashes };
        }
    }
    packs.extend(Some(pack).filter(|pack| !pack.is_empty()));
    packs
}

/// The size of a slot for a pack of these runs, in the worst case. `region` returns how a region is
/// cut into blocks, and the length of its name.
pub(crate) fn slot_bytes(runs: &[Run], region: impl Fn(usize) -> (Blocks, usize)) -> usize {
    let mut size = IndexSize::default();
    let mut bytes = 0;
    for of_region in runs.chunk_by(|run, next| run.region == next.region) {
        let (blocks, name_bytes) = region(of_region[0].region);
        size.regions += 1;
        size.name_bytes += name_bytes as u64;
        for run in of_region {
            size.blocks += run.blocks.end - run.blocks.start;
            let range = blocks.range_of(run.blocks.clone());
            bytes += range.end - range.start;
        }
    }
    (size.extents, size.coded_blocks) = (size.blocks, size.blocks);
    size.file_bytes(bytes) as usize
}

/// The thread that packs.
pub(crate) struct Packer {
    shared: Arc<Shared>,
    handle: Handle,
    notes: Sender<Note>,
    hasher: ChosenHasher,
}

impl Packer {
    pub(crate) fn new(shared: Arc<Shared>, handle: Handle, notes: Sender<Note>) -> Self {
        let hasher = shared.settings.hasher();
        Self { shared, handle, notes, hasher }
    }

    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Version(job) => {
                    let (session, save) = (Arc::clone(&job.session), job.save);
                    let alarm = Alarm(&session);
                    if let Err(error) = self.version(*job) {
                        // It reaches no layer, and the next version must not build upon it.
                        session.content().is_broken = true;
                        let _ = self.notes.send(failed(&session, save, &error));
                    }
                    drop(alarm);
                }
                Job::Merge(session) => {
                    if let Err(error) = merge::merge(&self.shared, &mut self.handle, &self.notes, &session) {
                        // Packs that are not merged can still be read.
                        tracing::warn!(session = session.name, %error, "packs are not merged");
                    }
                }
                Job::Flush(end) => drop(end),
                Job::Close => return,
            }
        }
    }

    fn version(&mut self, job: VersionJob) -> Result<()> {
        let VersionJob { session, save, saved_at_unix_ns, regions, is_full, bytes, source } = job;
        let version = save.version;
        let shared = Arc::clone(&self.shared);
        let losses = session.content().losses;
        let mut shares = Shares::new(&shared, &session, version, regions.len(), (bytes, is_full))?;
        // If bytes are compared instead of hashes, the save has done so, and all its blocks have
        // changed.
        let is_compared = !is_full && !shared.settings.is_certain;
        let known = is_compared.then(|| {
            // A region that does not fit is saved in full: a merge would drop its older blocks.
            let content = session.content();
            let known = |region: &RegionJob| {
                content.regions.get(&region.manifest.name).filter(|known| known.fits(&region.manifest)).cloned()
            };
            regions.iter().map(known).collect()
        });
        let task = Task { session: &session, version, regions: &regions, known: known.unwrap_or_default() };
        let mut links = Vec::new();
        match source {
            Source::Copied(slots) => {
                let mut batch = Vec::new();
                loop {
                    match slots.recv() {
                        Ok(Some(slot)) => batch.push(slot),
                        Ok(None) => break,
                        // The save has failed, and the program got the error.
                        Err(_) => return Ok(()),
                    }
                    if !shares.is_between_ranks() {
                        links.extend(self.pack(&task, std::mem::take(&mut batch), &mut shares)?);
                    }
                }
                links.extend(self.pack(&task, batch, &mut shares)?);
            }
            Source::Frozen(mut image, runs) => {
                let mut batch = Vec::new();
                for runs in split(runs, |region| regions[region].manifest.blocks, shared.pack_bytes_max) {
                    batch.push(self.thaw(&mut image.frozen, runs, &regions)?);
                    if !shares.is_between_ranks() {
                        links.extend(self.pack(&task, std::mem::take(&mut batch), &mut shares)?);
                    }
                }
                // Before other ranks are waited for.
                drop(image);
                links.extend(self.pack(&task, batch, &mut shares)?);
            }
        }
        // Hashes that are not shared any more are changed in place.
        drop(task.known);
        self.draft(&session, save, saved_at_unix_ns, regions, (is_full, losses), links, &shares);
        Ok(())
    }

    /// Turns slots into packs: one by one, or all slots of a version at once if ranks share blocks.
    fn pack(&self, task: &Task<'_>, mut filled: Vec<Filled>, shares: &mut Shares<'_>) -> Result<Vec<Link>> {
        for slot in &mut filled {
            self.hash(slot, task.regions);
        }
        shares.meet(&filled, task)?;
        let (medium_rate, is_certain) = (self.medium_rate(), self.shared.settings.is_certain);
        let mut laid = Vec::new();
        for slot in filled {
            let id = task.session.next_pack()?;
            laid.push(Layout { id, task, shares: &mut *shares, is_certain, medium_rate }.place(slot)?);
        }
        shares.exchange_locations()?;
        let mut links = Vec::new();
        for laid in laid.into_iter().filter(|laid| !laid.is_empty()) {
            let key = laid.key();
            let (pack, borrows) = self.seal(laid, task, shares)?;
            links.push(Link { pack, key: Some(key), generation: task.version, borrows });
        }
        shares.exchange_packs(&links)?;
        links.iter_mut().try_for_each(|link| shares.complete(&mut link.borrows))?;
        Ok(links)
    }

    /// Fills a slot from a frozen image.
    fn thaw(&mut self, frozen: &mut Frozen, runs: Vec<Run>, regions: &[RegionJob]) -> Result<Filled> {
        let key = self.shared.next_key.fetch_add(1, Relaxed);
        let bytes = slot_bytes(&runs, |region| regions[region].size());
        let layout = outcrop_engine::Layout::single(Element::BYTE, bytes);
        let mut lent = self.handle.lend(key, layout).map_err(no_room)?;
        let mut at = PAGE_BYTES;
        for run in &runs {
            let range = regions[run.region].manifest.blocks.range_of(run.blocks.clone());
            let bytes = (range.end - range.start) as usize;
            frozen.read(run.region, range.start as usize, &mut lent[at..at + bytes])?;
            // If the extra memory is used up, writes of the program wait for this.
            frozen.release(run.region, 0..range.end as usize);
            at += bytes;
        }
        Ok(Filled { lent, key, runs })
    }

    /// The rate of the first directory so far, in bytes per second, or the default.
    fn medium_rate(&self) -> f64 {
        let stats = self.handle.stats();
        let layer = &stats.layers[1];
        if layer.write_seconds > 0.0 { layer.written_bytes as f64 / layer.write_seconds } else { MEDIUM_RATE }
    }

    /// Completes the hashes of a slot.
    fn hash(&self, filled: &mut Filled, regions: &[RegionJob]) {
        let mut at = PAGE_BYTES;
        for run in &mut filled.runs {
            let blocks = regions[run.region].manifest.blocks;
            let range = blocks.range_of(run.blocks.clone());
            let bytes = (range.end - range.start) as usize;
            if run.hashes.is_empty() {
                run.hashes.resize((run.blocks.end - run.blocks.start) as usize, Hash::default());
                self.hasher.hash(&[&filled.lent[at..at + bytes]], blocks.block_bytes() as usize, &mut run.hashes);
            }
            at += bytes;
        }
    }

    /// Turns a slot into a pack and gives it to the engine.
    fn seal(
        &self,
        laid: layout::Laid,
        task: &Task<'_>,
        shares: &Shares<'_>,
    ) -> Result<(ManifestPack, Vec<ManifestPack>)> {
        let Task { session, version, regions, .. } = *task;
        let (key, id) = (laid.key(), laid.id());
        let origin = PackOrigin { run: session.run, id, version, hash_kind: self.shared.settings.hash };
        let (mut lent, payload_bytes, index, borrowed) = laid.index(regions, shares)?;
        let header = PackHeader::seal(origin, payload_bytes, &index, &mut lent)?;
        let pack = hand_over(&self.shared, &self.notes, session, (key, &header), lent);
        let borrow = |id| ManifestPack { id, file_bytes: 0, index_check: 0, is_borrowed: true };
        Ok((pack, borrowed.into_iter().map(borrow).collect()))
    }

    /// Tells the committer that the version is packed. It is complete when its packs have arrived.
    #[expect(clippy::too_many_arguments, reason = "the parts of one version, taken apart above")]
    fn draft(
        &self,
        session: &Arc<SessionCore>,
        save: SaveId,
        saved_at_unix_ns: u64,
        regions: Vec<RegionJob>,
        (is_full, losses): (bool, u64),
        links: Vec<Link>,
        shares: &Shares<'_>,
    ) {
        let stored_bytes = links.iter().map(|link| link.pack.file_bytes).sum();
        let saved_blocks: u64 = regions.iter().map(|region| region.saved_blocks()).sum();
        let mut content = session.content();
        // A version that has all blocks needs no packs of earlier versions.
        if is_full || shares.placed_blocks() == saved_blocks {
            content.begin(losses);
        }
        // The last pack of a version is the newest.
        content.chain.splice(0..0, links.into_iter().rev());
        for (index, region) in regions.iter().enumerate() {
            let fresh = || Arc::new(RegionContent::new(&region.manifest));
            let known = content.regions.entry(region.manifest.name.clone()).or_insert_with(fresh);
            if !known.fits(&region.manifest) {
                *known = fresh();
            }
            let known = Arc::make_mut(known);
            shares.for_each_hash(index, |block, hash| known.set(block, hash));
        }
        let (packs, next_number) = (content.packs(), content.next_number);
        let is_long = content.generations() > self.shared.settings.chain_max;
        drop(content);
        let regions = regions.into_iter().map(|region| region.manifest).collect();
        let manifest = Arc::new(Manifest {
            run: session.run,
            session: session.name.clone(),
            version: save.version,
            rank: session.rank,
            ranks: session.ranks,
            saved_at_unix_ns,
            stored_bytes,
            regions,
            packs,
        });
        let draft = Box::new(Draft { save, manifest: Arc::clone(&manifest), next_number, losses });
        // Before the program learns that the version is packed: what it then goes back to must not
        // reach the committer first, which would take this version for the later one. If the
        // committer has ended, the session knows it already.
        let _ = self.notes.send(Note::Drafted(Arc::clone(session), draft, is_long));
        session.packed(save.version, manifest);
    }
}

/// Gives a finished pack to the engine, and tells every shelf the name of its file.
pub(crate) fn hand_over(
    shared: &Shared,
    notes: &Sender<Note>,
    session: &Arc<SessionCore>,
    (key, header): (u64, &PackHeader),
    mut lent: Lent,
) -> ManifestPack {
    let (id, file_bytes) = (header.origin().id, header.file_bytes());
    let pack = ManifestPack { id, file_bytes, index_check: header.index_check(), is_borrowed: false };
    for shelf in &shared.shelves {
        shelf.name_file(key, path(session, id));
    }
    // Before the engine gets the pack, so that the committer knows it when it arrives. If the
    // committer has ended, the session knows it already.
    let _ = notes.send(Note::Pack(Arc::clone(session), key, pack));
    lent.shorten(file_bytes as usize);
    lent.seal();
    pack
}

/// Ends the session if the packer panics. Otherwise the program would wait for ever.
struct Alarm<'a>(&'a SessionCore);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end("the packer has panicked, which is a bug; close the store and open it again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_into_packs_without_losing_a_block() {
        let blocks = Blocks::new(10_000, 256).unwrap();
        let hashes: Vec<Hash> = (0..40u8).map(|number| [number; 16]).collect();
        let runs = vec![Run { region: 0, blocks: 0..40, hashes }, Run { region: 0, blocks: 39..40, hashes: vec![] }];
        let packs = split(runs, |_| blocks, 1024);
        assert!(packs.iter().all(|pack| pack.iter().map(|run| run.blocks.end - run.blocks.start).sum::<u64>() <= 4));
        let of_first: Vec<_> = packs.iter().flatten().filter(|run| !run.hashes.is_empty()).collect();
        let covered: Vec<u64> = of_first.iter().flat_map(|run| run.blocks.clone()).collect();
        assert_eq!(covered, (0..40).collect::<Vec<_>>());
        assert!(of_first.iter().all(|run| run.hashes[0] == [run.blocks.start as u8; 16]));
        // A block that is larger than a pack gets a pack of its own.
        let large = Blocks::new(4096, 4096).unwrap();
        assert_eq!(split(vec![Run { region: 0, blocks: 0..1, hashes: vec![] }], |_| large, 1024).len(), 1);
    }
}
