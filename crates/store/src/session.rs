//! A session: one series of versions, as the program sees it.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{self, Sender},
    },
    time::Instant,
};

use outcrop_commit::SaveId;
use outcrop_engine::{Handle, Layout};
use outcrop_format::{Answer, Blocks, ManifestRegion, PAGE_BYTES, REGIONS_MAX, check_region_name};
use outcrop_layers::{Buffer, Device, files::FileLock};
use outcrop_region::{Element, Part, PartMut};
use outcrop_settings::{RegionSettings, Settings};
use outcrop_track::{
    ChosenHasher, FreezeOptions, Frozen, HashRate, Hasher, TrackOptions, TrackStats, Tracker, freeze, image_bytes,
};

use super::{
    Compression, Skipped, StoreCore,
    builder::block_bytes_of,
    chain::RegionContent,
    commit::{Forgotten, Note, failed, now_unix_ns},
    exchange::all_well,
    pack::{Filled, Job, RegionJob, Run, Source, VersionJob, slot_bytes, split},
    recover,
    state::{Image, Reached, SessionCore},
};
use crate::{
    Error, Result,
    error::{Problem, no_room},
};

/// Settings of one region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionOptions {
    /// How it is compressed. Default: as set for the store.
    pub compression: Option<Compression>,
    /// The size of its blocks. Default: as set for the store.
    pub block_bytes: Option<u32>,
    /// Bytes that are not saved, and that a restore leaves as they are.
    pub excluded: Vec<Range<u64>>,
}

impl RegionOptions {
    /// Reads them from TOML, one on each line: `compression = "lz4"`.
    pub fn from_toml(text: &str) -> Result<Self> {
        let RegionSettings { compression, block, excluded, .. } = RegionSettings::from_toml(text)?;
        let block_bytes = block.as_ref().map(block_bytes_of).transpose()?;
        Ok(Self { compression, block_bytes, excluded })
    }
}

/// One series of versions. Dropping it waits for all versions in flight;
/// [`finish`](Self::finish) does so too, and reports errors.
pub struct Session {
    pub(super) store: Arc<StoreCore>,
    pub(super) core: Arc<SessionCore>,
    pub(super) handle: Handle,
    pub(super) tracker: Tracker,
    hasher: ChosenHasher,
    options: BTreeMap<String, RegionOptions>,
    on_device: BTreeMap<String, OnDevice>,
    /// Copies of all regions as they were last saved, if bytes are compared and not only hashes.
    shadows: BTreeMap<String, Vec<u8>>,
    /// Whether the last attempt of a live save to freeze memory failed.
    was_refused: bool,
    /// From the version that was restored to the newest version of that time. If the number of the
    /// next save is not above the latter, the save first removes all versions above the former.
    pub(super) left_behind: Option<Range<u64>>,
    /// Whether a version is verified before any of it is restored.
    pub(super) verifies_first: bool,
    /// Versions whose manifests could not be read on some rank when it was opened, the newest
    /// first.
    pub(super) unreadable: Vec<Skipped>,
    /// Versions of this rank that were made again when it was opened, because its node was lost.
    pub(super) rebuilt: Vec<u64>,
    locks: Vec<FileLock>,
}

/// Where a region is that is not in host memory.
struct OnDevice {
    device: Arc<dyn Device>,
    buffer: Arc<Buffer>,
    /// The first byte of the region.
    offset: u64,
}

/// Waits for versions of a session on any thread, while another thread uses the session.
#[derive(Clone)]
pub struct Watch(Arc<SessionCore>);

impl Watch {
    /// As [`Session::wait`].
    pub fn wait(&self, version: u64, reached: Reached) -> Result<()> {
        self.0.wait(version, reached)
    }

    /// As [`Session::has_reached`].
    pub fn has_reached(&self, version: u64, reached: Reached) -> Result<bool> {
        self.0.has_reached(version, reached)
    }
}

impl Session {
    pub(super) fn open(store: &Arc<StoreCore>, name: &str) -> Result<Self> {
        let settings = &store.shared.settings;
        let block_bytes = settings.block_bytes as usize;
        let track = TrackOptions {
            way: settings.tracking,
            block_bytes,
            marks_pinned: settings.marks_pinned,
            ..TrackOptions::default()
        };
        let opened = recover::open(&store.shared, name)?;
        // If the committer has ended, the session knows it already.
        let _ = store.committer.send(Note::Opened(Arc::clone(&opened.session), Box::new(opened.ledger)));
        Ok(Self {
            core: opened.session,
            handle: store.handle().clone(),
            tracker: Tracker::new(track),
            hasher: settings.hasher(),
            options: BTreeMap::new(),
            on_device: BTreeMap::new(),
            shadows: BTreeMap::new(),
            was_refused: false,
            left_behind: None,
            verifies_first: false,
            unreadable: opened.unreadable,
            rebuilt: opened.rebuilt,
            locks: opened.locks,
            store: Arc::clone(store),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Sets the options of one region, from the next save on.
    pub fn region(&mut self, name: &str, options: RegionOptions) {
        self.options.insert(name.to_owned(), options);
    }

    /// Reports that a device or a network card has written these bytes of a region.
    pub fn mark_dirty(&mut self, region: &str, bytes: Range<usize>) {
        self.tracker.mark_dirty(region, bytes);
    }

    /// Says that the bytes of a region are in a buffer of a device, from `offset` on, and not in
    /// host memory. From the next save on, the buffer is hashed where it is, and only what has
    /// changed is copied to the host. The part that [`save`](Self::save) is given says name,
    /// element, shape and length; its memory is not read, and may be untouched.
    ///
    /// The program must have waited for everything that changes the buffer before it saves. Such a
    /// save copies before it returns, also with [`live`](super::StoreBuilder::live). A restore
    /// fills the memory of the part, from which the program fills the buffer. With
    /// [`certain`](super::StoreBuilder::certain) this is an error, because there are no bytes to
    /// compare.
    pub fn mark_device(
        &mut self,
        region: &str,
        device: Arc<dyn Device>,
        buffer: Arc<Buffer>,
        offset: u64,
    ) -> Result<()> {
        if self.store.shared.settings.is_certain {
            let problem = format!("{region} is on a device, and certain compares bytes in host memory; turn it off");
            return Err(Problem::Session { session: self.core.name.clone(), problem }.into());
        }
        buffer.check_on(&*device, offset, 0)?;
        self.on_device.insert(region.to_owned(), OnDevice { device, buffer, offset });
        Ok(())
    }

    /// Says that the bytes of a region are in host memory again.
    pub fn mark_host(&mut self, region: &str) {
        self.on_device.remove(region);
    }

    /// The rates at which the processor and the devices hash for saves, as far as they are known.
    pub fn hash_rates(&self) -> Vec<HashRate> {
        self.hasher.rates()
    }

    /// Saves these regions as `version`, which must be higher than all versions before. Returns
    /// when the program may change the regions again. With several ranks, all of them save the same
    /// versions.
    ///
    /// A version that has reached no layer may be saved again once its failure was reported. With
    /// several ranks, all of them [`rewind`](Self::rewind) before.
    ///
    /// After a [restore](Self::restore) of a version that was not the newest, a save whose number
    /// is not above the newest one first removes all versions above the restored one.
    ///
    /// If an earlier version did not reach a layer and the program has not been told, this call
    /// returns that error, once, and saves nothing.
    pub fn save(&mut self, version: u64, parts: &[Part<'_>]) -> Result<()> {
        let regions = self.jobs(parts)?;
        if let Some(Range { start: restored, end: newest }) = self.left_behind.clone()
            && (restored + 1..=newest).contains(&version)
        {
            self.rewind(Some(restored))?;
        }
        let start = Instant::now();
        let save = self.core.begin(version, self.store.shared.settings.in_flight_max)?;
        self.left_behind = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.save_begun(save, regions, parts)));
        let reason = match &outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the call that saves it has panicked".to_owned()),
        };
        if let Some(reason) = reason {
            // The tracker reports each change once, so the next save must be a full one.
            self.core.content().is_broken = true;
            self.core.abandon(version);
            // The program gets the error. The other ranks must not wait for this one.
            let _ = self.store.committer.send(failed(&self.core, save, &reason));
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
        // What could not be read is replaced.
        self.unreadable.retain(|skipped| skipped.version != version);
        let now = self.store.shared.now();
        if let Some(interval) = self.store.shared.interval().as_mut() {
            // The time that the program was blocked. Writing in the background does not count.
            let cost_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            for layer in 0..self.core.layers.len() {
                interval.measured(layer, cost_ns);
                interval.saved(layer, now);
            }
        }
        Ok(())
    }

    /// Waits until a version has reached a layer. Fails if it never will.
    pub fn wait(&self, version: u64, reached: Reached) -> Result<()> {
        self.core.wait(version, reached)
    }

    /// Waits until [live](super::StoreBuilder::live) saves have read the memory that they were
    /// given, which may be freed then. Without `live` that is at once.
    pub fn thaw(&self) -> Result<()> {
        self.core.wait_thawed()
    }

    /// A handle for other threads, to wait for versions.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.core))
    }

    /// Whether a version has reached a layer. Fails if it never will.
    pub fn has_reached(&self, version: u64, reached: Reached) -> Result<bool> {
        self.core.has_reached(version, reached)
    }

    /// The versions that can be restored or are in flight, in ascending order.
    pub fn versions(&self) -> Vec<u64> {
        self.core.state().known().collect()
    }

    /// The highest number that `save` refuses: that of the newest version, or of a version that not
    /// all ranks have and that may become complete again. All higher numbers can be used.
    pub fn newest_number(&self) -> Option<u64> {
        let state = self.core.state();
        let returning = state.returning.iter().filter_map(|returning| returning.last());
        state.newest(self.core.ranks).into_iter().chain(returning.copied()).max()
    }

    /// Whether a restore verifies the hashes of the whole version on all ranks, including regions
    /// that are not named, so that a restore that fails has changed nothing. Memory that the
    /// program has not touched yet is filled meanwhile, and made zero again if the restore fails.
    /// Other memory is not written to before, except for a few MiB that are copied, and needs a
    /// second read. All ranks must use the same value. Default: no.
    pub fn verify_before_restore(&mut self, is_wanted: bool) {
        self.verifies_first = is_wanted;
    }

    /// Removes all versions above `version`, or all versions if `None`, so that the series can
    /// continue from there. With several ranks, all of them call it.
    pub fn rewind(&mut self, version: Option<u64>) -> Result<()> {
        self.flush()?;
        self.forget("rewind", Forgotten::Above(version))?;
        self.unreadable.retain(|skipped| version.is_some_and(|version| skipped.version <= version));
        self.left_behind = None;
        Ok(())
    }

    /// Removes versions that were found when the session was opened and that not all ranks have. It
    /// also removes those that would become complete again if a missing directory came back. With
    /// several ranks, all of them call it.
    ///
    /// Without this call, they stay until a later version is complete in the same directory. If all
    /// ranks have one and some cannot read it, it stays for as long as a complete version would.
    /// Until then no pack is removed from that directory.
    pub fn forget_incomplete(&mut self) -> Result<()> {
        self.forget("forget incomplete", Forgotten::Incomplete)?;
        let state = self.core.state();
        self.unreadable.retain(|skipped| state.versions.contains_key(&skipped.version));
        Ok(())
    }

    fn forget(&mut self, topic: &str, what: Forgotten) -> Result<()> {
        let (answer, result) = mpsc::channel();
        let _ = self.store.committer.send(Note::Forget(Arc::clone(&self.core), what, answer));
        let over = || Problem::Session { session: self.core.name.clone(), problem: "the store has been closed".into() };
        let result = result.recv().map_err(|_| over())?;
        let answer = Answer(result.as_ref().copied().map_err(ToString::to_string));
        let answers = self.gather(topic, &answer.encode())?;
        result?;
        all_well(&answers, |rank| format!("rank {rank} cannot forget versions"))
    }

    /// How changes of a region are found at present, why, and at what cost. `None` for a region
    /// that has not been saved yet.
    pub fn tracking(&self, region: &str) -> Option<TrackStats> {
        self.tracker.stats(region)
    }

    /// Waits for all versions in flight. Fails if versions did not reach a layer and the program
    /// has not been told. The error names all of them.
    pub fn flush(&mut self) -> Result<()> {
        self.core.settle_all()
    }

    /// Like [`flush`](Self::flush), and ends the session.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    /// Exchanges a message about this session with all ranks. Returns the messages of all, by rank.
    pub(super) fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let topic = format!("{topic} {} {}", self.core.name, self.core.run);
        Ok(self.store.shared.ranks.gather(&topic, mine)?)
    }

    /// Describes these parts as regions, with their options.
    fn jobs(&self, parts: &[Part<'_>]) -> Result<Vec<RegionJob>> {
        let settings = &self.store.shared.settings;
        if parts.len() > REGIONS_MAX {
            let problem = format!("{} regions; at most {REGIONS_MAX} are possible", parts.len());
            return Err(Problem::Session { session: self.core.name.clone(), problem }.into());
        }
        let mut regions: Vec<RegionJob> = Vec::with_capacity(parts.len());
        let mut names = HashSet::new();
        for part in parts {
            check_region_name(part.name)?;
            if !names.insert(part.name) {
                let problem = format!("there are two regions {}; give each a name of its own", part.name);
                return Err(Problem::Session { session: self.core.name.clone(), problem }.into());
            }
            let options = self.options.get(part.name).cloned().unwrap_or_default();
            let block_bytes = options.block_bytes.unwrap_or(settings.block_bytes);
            let blocks = Blocks::new(part.bytes.len() as u64, block_bytes)?;
            if let Some(on) = self.on_device.get(part.name) {
                on.buffer.check_on(&*on.device, on.offset, blocks.bytes())?;
            }
            let manifest = ManifestRegion {
                name: part.name.to_owned(),
                element: part.element.name().to_owned(),
                shape: part.shape().map_err(Problem::Shape)?,
                element_bytes: u32::try_from(part.element.bytes()).unwrap_or(1).max(1),
                blocks,
                hash_kind: settings.hash,
                excluded: tidy(options.excluded, blocks.bytes()),
            };
            regions.push(RegionJob { manifest, compression: options.compression.unwrap_or(settings.compression) });
        }
        Ok(regions)
    }

    fn save_begun(&mut self, save: SaveId, regions: Vec<RegionJob>, parts: &[Part<'_>]) -> Result<()> {
        if self.store.shared.settings.is_incremental {
            self.core.wait_packed(save.version)?;
        }
        let changes = self.changes(parts);
        let frozen = self.freeze(parts);
        let (runs, is_full) = self.runs(&regions, parts, changes, frozen.is_none())?;
        let bytes =
            runs.iter().map(|run| (run.blocks.end - run.blocks.start) * block_bytes(&regions[run.region])).sum();
        let (session, saved_at_unix_ns) = (Arc::clone(&self.core), now_unix_ns());
        let job = |regions, source| {
            Job::Version(Box::new(VersionJob { session, save, saved_at_unix_ns, regions, is_full, bytes, source }))
        };
        let name = &self.core.name;
        let over = |_| -> Error {
            Problem::Session { session: name.clone(), problem: "the packer has ended".to_owned() }.into()
        };
        if let Some(frozen) = frozen {
            let image = Image::new(frozen, &self.core);
            return self.store.packer.send(job(regions, Source::Frozen(image, runs))).map_err(over);
        }
        // Slots go to the packer one by one, so that a state can be larger than host memory.
        let (slots, receiver) = mpsc::channel();
        let sizes: Vec<_> = regions.iter().map(RegionJob::size).collect();
        self.store.packer.send(job(regions, Source::Copied(receiver))).map_err(over)?;
        for runs in split(runs, |region| sizes[region].0, self.store.shared.pack_bytes_max) {
            let slot = self.copy(runs, &sizes, parts)?;
            // A packer that has failed has reported it.
            let _ = slots.send(Some(slot));
        }
        let _ = slots.send(None);
        Ok(())
    }

    /// The ranges of each part that may have changed since the last save; `None` if everything may
    /// have.
    fn changes(&mut self, parts: &[Part<'_>]) -> Option<Vec<Vec<Range<usize>>>> {
        let settings = &self.store.shared.settings;
        if !settings.is_incremental {
            return None;
        }
        let on_device = &self.on_device;
        let in_memory = parts.iter().filter(|part| !on_device.contains_key(part.name));
        let bytes = image_bytes(in_memory.clone().map(|part| part.bytes));
        if let Some(bytes_max) = settings.live_bytes_max.filter(|bytes_max| bytes > *bytes_max) {
            // A fork could copy everything, and write protection needs memory that is not tracked.
            // Hashing everything costs the program no time, because the packer does it.
            let reason = format!(
                "a live image of {bytes} bytes with {bytes_max} of extra memory needs write protection, which excludes tracking"
            );
            in_memory.for_each(|part| self.tracker.unwatch(part.name, part.bytes, &reason));
            return None;
        }
        let tracker = &mut self.tracker;
        let changed = |part: &Part<'_>| match on_device.contains_key(part.name) {
            true => std::iter::once(0..part.bytes.len()).collect(),
            false => tracker.changed(part.name, part.bytes).ranges,
        };
        Some(self.handle.undisturbed(|| parts.iter().map(changed).collect()))
    }

    /// An image of these parts that can be copied in the background; `None` if they have to be
    /// copied at once.
    fn freeze(&mut self, parts: &[Part<'_>]) -> Option<Frozen> {
        let extra_bytes_max = self.store.shared.settings.live_bytes_max?;
        if parts.iter().any(|part| self.on_device.contains_key(part.name)) {
            return None;
        }
        let memory: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
        let freeze = || freeze(&memory, FreezeOptions { extra_bytes_max, ..FreezeOptions::default() });
        // A forked child would get copies of all slots that are registered for transfers. It needs
        // none.
        let frozen = match self.handle.host() {
            Some(host) => host.apart_from_children(freeze),
            None => freeze(),
        };
        let was_refused = std::mem::replace(&mut self.was_refused, frozen.is_err());
        let refused = |error: &outcrop_track::Error| {
            if !was_refused {
                tracing::warn!(session = self.core.name, %error, "a live save is not possible: it copies before it returns");
            }
        };
        frozen.inspect_err(refused).ok()
    }

    /// Finds the blocks to save among those that may have changed: all of them, or those that
    /// differ if they are compared. Also returns whether this is a full save.
    fn runs(
        &mut self,
        regions: &[RegionJob],
        parts: &[Part<'_>],
        changes: Option<Vec<Vec<Range<usize>>>>,
        is_compared: bool,
    ) -> Result<(Vec<Run>, bool)> {
        // Locked during the whole search: the packer is idle until it gets this version.
        let core = Arc::clone(&self.core);
        let content = core.content();
        let is_incremental = self.store.shared.settings.is_incremental;
        let is_full = !is_incremental || content.is_broken || content.chain.is_empty();
        let mut changes = changes.map(Vec::into_iter);
        let mut runs = Vec::new();
        for (index, (region, part)) in regions.iter().zip(parts).enumerate() {
            let manifest = &region.manifest;
            let first_run = runs.len();
            let changed = changes.as_mut().and_then(Iterator::next);
            let known = content.regions.get(part.name).filter(|known| !is_full && known.fits(manifest));
            let candidates = match changed.filter(|_| known.is_some()) {
                Some(changed) => candidates(manifest, changed),
                None => candidates(manifest, std::iter::once(0..part.bytes.len())),
            };
            match known.filter(|_| is_compared) {
                Some(known) => self.changed(index, manifest, part, known, candidates, &mut runs)?,
                None => {
                    let run = |blocks| Run { region: index, blocks, hashes: Vec::new() };
                    runs.extend(candidates.into_iter().map(run));
                }
            }
            self.shadow(part, manifest, &runs[first_run..]);
        }
        Ok((runs, is_full))
    }

    /// Adds the candidate blocks of a region that have changed.
    fn changed(
        &mut self,
        index: usize,
        manifest: &ManifestRegion,
        part: &Part<'_>,
        known: &RegionContent,
        candidates: Vec<Range<u64>>,
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        let block_bytes = manifest.blocks.block_bytes() as usize;
        let is_certain = self.store.shared.settings.is_certain;
        let shadow = self.shadows.get(part.name).filter(|_| is_certain);
        let start = Instant::now();
        let bytes_of = |blocks: &Range<u64>| usize_range(&manifest.blocks.range_of(blocks.clone()));
        let stretches: Vec<&[u8]> = candidates.iter().map(|blocks| &part.bytes[bytes_of(blocks)]).collect();
        let blocks = candidates.iter().cloned().flatten();
        let mut hashes = vec![[0; 16]; blocks.clone().count()];
        match self.on_device.get(part.name) {
            None => self.hasher.hash(&stretches, block_bytes, &mut hashes),
            Some(OnDevice { device, buffer, offset }) => {
                let mut rest = &mut *hashes;
                for blocks in &candidates {
                    let (these, others) = rest.split_at_mut((blocks.end - blocks.start) as usize);
                    rest = others;
                    let Range { start, end } = manifest.blocks.range_of(blocks.clone());
                    self.hasher.hash_buffer(device, buffer, offset + start, end - start, block_bytes, these)?;
                }
            }
        }
        for (block, hash) in blocks.zip(hashes) {
            let range = usize_range(&manifest.blocks.range(block));
            let is_same = match shadow {
                Some(shadow) => shadow.get(range.clone()) == Some(&part.bytes[range.clone()]),
                None => known.is_unchanged(block, &hash),
            };
            if is_same {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.region == index && run.blocks.end == block && !run.hashes.is_empty() => {
                    run.blocks.end += 1;
                    run.hashes.push(hash);
                }
                _ => runs.push(Run { region: index, blocks: block..block + 1, hashes: vec![hash] }),
            }
        }
        let hashed_bytes = stretches.iter().map(|stretch| stretch.len()).sum();
        self.tracker.hashed(part.name, hashed_bytes, start.elapsed());
        Ok(())
    }

    /// Keeps a copy of what is saved, if bytes are compared and not only hashes.
    fn shadow(&mut self, part: &Part<'_>, manifest: &ManifestRegion, runs: &[Run]) {
        if !self.store.shared.settings.is_certain {
            return;
        }
        match self.shadows.get_mut(part.name).filter(|shadow| shadow.len() == part.bytes.len()) {
            None => drop(self.shadows.insert(part.name.to_owned(), part.bytes.to_vec())),
            Some(shadow) => {
                for run in runs {
                    let range = usize_range(&manifest.blocks.range_of(run.blocks.clone()));
                    shadow[range.clone()].copy_from_slice(&part.bytes[range]);
                }
            }
        }
    }

    /// Like [`shadow`](Self::shadow), for a restored version.
    pub(super) fn shadows_from(&mut self, parts: &[PartMut<'_>]) {
        if self.store.shared.settings.is_certain {
            self.shadows = parts.iter().map(|part| (part.name.to_owned(), part.bytes.to_vec())).collect();
        }
    }

    /// Copies the blocks of one pack into a slot.
    fn copy(&mut self, runs: Vec<Run>, sizes: &[(Blocks, usize)], parts: &[Part<'_>]) -> Result<Filled> {
        let key = self.store.shared.next_key.fetch_add(1, Relaxed);
        let layout = Layout::single(Element::BYTE, slot_bytes(&runs, |region| sizes[region]));
        let mut lent = self.handle.lend(key, layout).map_err(no_room)?;
        let mut at = PAGE_BYTES;
        for run in &runs {
            let range = usize_range(&sizes[run.region].0.range_of(run.blocks.clone()));
            match self.on_device.get(parts[run.region].name) {
                None => lent.fill(at, &parts[run.region].bytes[range.clone()]),
                Some(OnDevice { device, buffer, offset }) => {
                    buffer.read(&**device, offset + range.start as u64, &mut lent[at..at + range.len()])?;
                }
            }
            at += range.len();
        }
        Ok(Filled { lent, key, runs })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.core.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("session", &self.0.name).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!(session = self.core.name, %error, "a session has ended with an error");
        }
        // Both threads finish their work for this session before its locks are released.
        let wait = |send: &dyn Fn(Sender<()>)| {
            let (end, has_ended) = mpsc::channel();
            send(end);
            let _ = has_ended.recv();
        };
        // The packer's notes may make the committer ask for a merge, so the packer is flushed
        // twice. Nothing may be written once another process can have the session.
        wait(&|end| drop(self.store.packer.send(Job::Flush(end))));
        wait(&|end| drop(self.store.committer.send(Note::Flush(end))));
        wait(&|end| drop(self.store.packer.send(Job::Flush(end))));
        let locks = std::sync::Mutex::new(std::mem::take(&mut self.locks));
        wait(&|end| {
            let locks = std::mem::take(&mut *locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
            drop(self.store.committer.send(Note::Closed(Arc::clone(&self.core), locks, end)));
        });
    }
}

fn block_bytes(region: &RegionJob) -> u64 {
    u64::from(region.manifest.blocks.block_bytes())
}

fn usize_range(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

/// The blocks that contain any of these bytes, except those that are excluded entirely, as
/// ascending runs.
fn candidates(manifest: &ManifestRegion, changes: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for change in changes {
        let blocks = manifest.blocks.touching(change.start as u64..change.end as u64);
        let start = runs.last().map_or(blocks.start, |last| blocks.start.max(last.end));
        let blocks = start..blocks.end.max(start);
        if manifest.excluded.is_empty() {
            push(&mut runs, blocks);
        } else {
            blocks.filter(|block| !manifest.is_excluded(*block)).for_each(|block| push(&mut runs, block..block + 1));
        }
    }
    runs
}

fn push(runs: &mut Vec<Range<u64>>, blocks: Range<u64>) {
    match runs.last_mut() {
        _ if blocks.is_empty() => {}
        Some(last) if last.end == blocks.start => last.end = blocks.end,
        _ => runs.push(blocks),
    }
}

/// Sorts the ranges, cuts them to the region, and joins those that touch.
fn tidy(mut ranges: Vec<Range<u64>>, bytes: u64) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut tidy: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start..range.end.min(bytes);
        match tidy.last_mut() {
            _ if range.start >= range.end => {}
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => tidy.push(range),
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use outcrop_format::HashKind;
    use outcrop_region::Shape;

    use super::*;

    fn region(bytes: u64, excluded: Vec<Range<u64>>) -> ManifestRegion {
        let blocks = Blocks::new(bytes, 256).unwrap();
        let (name, element, shape) = ("field".to_owned(), "u8".to_owned(), Shape::flat(bytes as usize));
        ManifestRegion { name, element, element_bytes: 1, shape, blocks, hash_kind: HashKind::Xxh3, excluded }
    }

    #[test]
    fn changed_bytes_become_runs_of_blocks() {
        let plain = region(2000, Vec::new());
        assert_eq!(candidates(&plain, [0..1, 255..257, 700..701, 1999..2000]), [0..3, 7..8]);
        let all = || std::iter::once(0..2000);
        assert_eq!(candidates(&plain, all()), all().map(|_| 0..8).collect::<Vec<_>>());
        let excluded = region(2000, tidy(vec![512..600, 256..512, 600..800], 2000));
        assert_eq!(candidates(&excluded, all()), [0..1, 3..8], "blocks 1 and 2 are wholly excluded");
    }

    #[test]
    fn excluded_ranges_are_put_in_order() {
        assert_eq!(tidy(vec![10..20, 0..5, 15..30, 5..6, 90..200, 40..40], 100), [0..6, 10..30, 90..100]);
    }
}
