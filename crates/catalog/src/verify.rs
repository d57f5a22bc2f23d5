//! Verifies every byte of a store, and reports which versions are affected by damage.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use outcrop_format::{MARK_NAME, Manifest, ManifestPack, PackId, Place, RunId, rank_name};

use crate::{
    Catalog, Error, Reader, Result,
    catalog::{Sessions, grouped},
    fetch::{self, Fetcher, Problem, WINDOW_BYTES, Wanted},
    listing::{Listed, Listing, Now, read_again},
    open::OpenFiles,
    pack::{KnownPacks, Pack, file_name},
    shards::verify_shards,
};

/// The result of a verification.
#[derive(Debug, Default)]
pub struct Verified {
    /// The number of manifests.
    pub manifests: u64,
    /// The number of packs.
    pub packs: u64,
    /// The number of shards that are kept for other nodes.
    pub shards: u64,
    /// The total length of these packs and shards.
    pub bytes: u64,
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
}

impl Verified {
    /// Whether anything is damaged.
    pub fn has_damage(&self) -> bool {
        self.has(FindingKind::Damage)
    }

    /// Whether there is anything of this kind.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    /// Whether everything could be read, damaged or not.
    pub fn is_whole(&self) -> bool {
        !self.has(FindingKind::Unread) && !self.has(FindingKind::Changing)
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of finding it is.
    pub kind: FindingKind,
    /// The name of the file.
    pub file: String,
    /// The affected bytes of the file; all if `None`.
    pub bytes: Option<Range<u64>>,
    /// What is wrong.
    pub problem: String,
    /// The parts of versions that cannot be restored because of it.
    pub harms: Vec<Harm>,
}

/// The kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// Bytes are not what was written.
    Damage,
    /// Something could not be read, or was written by a newer version of Outcrop. It may be damaged
    /// or not.
    Unread,
    /// A version that not all ranks have: its program crashed, or is still writing it.
    Incomplete,
    /// A file that a crashed program has left behind, or that a running one has not finished. No
    /// version needs it.
    Garbage,
    /// A running program has replaced a manifest after it was read, so its version was not
    /// verified.
    Changing,
    /// A file that does not belong to a store.
    Foreign,
}

/// A part of a version that cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Harm {
    /// The version.
    pub version: u64,
    /// The run that saved it, if known.
    pub run: Option<RunId>,
    /// The rank.
    pub rank: u32,
    /// The region, and the range of its bytes; everything of that rank if `None`.
    pub region: Option<(String, Range<u64>)>,
}

/// A block that is damaged, or could not be read.
struct BadBlock {
    /// The pack in whose index it was found.
    through: PackId,
    region: String,
    block: u64,
    place: Place,
    problem: Problem,
}

/// Verifies every byte of the manifests and packs of all sessions, of one session, or of one
/// version. Changes nothing.
///
/// Several threads call `progress` with the number of bytes that they have read, and the total.
pub fn verify(
    catalog: &Catalog,
    session: Option<&str>,
    version: Option<u64>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Verified> {
    let sessions = match session {
        None => catalog.look()?,
        Some(session) => Sessions { names: vec![session.to_owned()], unread: Vec::new() },
    };
    let mut verified = Verified::default();
    // Directories that cannot be listed do not prevent the verification of the others.
    for error in sessions.unread {
        verified.findings.push(plain(FindingKind::Unread, String::new(), &error.to_string()));
    }
    let mut checks = Vec::new();
    for name in sessions.names {
        match SessionCheck::new(catalog, name.clone(), version) {
            Err(error) if session.is_none() => {
                verified.findings.push(plain(FindingKind::Unread, name, &error.to_string()));
            }
            check => checks.push(check?),
        }
    }
    let total = checks.iter().map(SessionCheck::bytes).fold(0, u64::saturating_add);
    for check in checks {
        check.run(&|done| progress(done, total), &mut verified);
    }
    if version.is_none() {
        verify_shards(catalog.files(), session, &mut verified);
    }
    Ok(verified)
}

/// The verification of one session.
struct SessionCheck<'a> {
    catalog: &'a Catalog,
    packs: Arc<OpenFiles>,
    session: String,
    listing: Listing,
    /// The only version to verify, if given.
    version: Option<u64>,
    /// The packs that manifests list, with their lengths and those manifests.
    needed: BTreeMap<PackId, (u64, Vec<Arc<Manifest>>)>,
}

impl<'a> SessionCheck<'a> {
    fn new(catalog: &'a Catalog, session: String, version: Option<u64>) -> Result<Self> {
        let listing = catalog.listing(&session)?;
        let mut check = Self { catalog, packs: catalog.packs(), session, listing, version, needed: BTreeMap::new() };
        if version.is_some() && check.selected().next().is_none() {
            // This fails, and its error lists the versions that exist.
            catalog.version(&check.session, version)?;
        }
        let mut needed = BTreeMap::new();
        for manifest in check.selected().filter_map(|listed| listed.manifest.as_ref().ok()) {
            for pack in &manifest.packs {
                let (_, users) = needed.entry(pack.id).or_insert((pack.file_bytes, Vec::new()));
                users.push(Arc::clone(manifest));
            }
        }
        check.needed = needed;
        Ok(check)
    }

    fn selected(&self) -> impl Iterator<Item = &Listed> {
        self.listing.manifests.iter().filter(|listed| self.version.is_none_or(|version| version == listed.version))
    }

    fn bytes(&self) -> u64 {
        self.needed.values().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add)
    }

    fn run(self, progress: &(dyn Fn(u64) + Sync), verified: &mut Verified) {
        let mut findings = Vec::new();
        let mut bad_blocks = Vec::new();
        let mut bad_packs = BTreeMap::new();
        for (&id, (bytes, users)) in &self.needed {
            match self.open(id, true) {
                Ok(pack) => self.check_pack(&pack, users, progress, &mut findings, &mut bad_blocks),
                Err(error) => {
                    // A version that only borrows its blocks does not need its index.
                    let can_lend = self.open(id, false).is_ok();
                    bad_packs.insert(id, (unusable(file_name(&self.session, id), &error, Vec::new()), can_lend));
                    progress(*bytes);
                }
            }
            verified.packs += 1;
            verified.bytes = verified.bytes.saturating_add(*bytes);
        }
        let mut bad_blocks = BadBlocks::new(&self.session, bad_blocks);
        let mut known = KnownPacks::default();
        for listed in self.selected() {
            verified.manifests += 1;
            let manifest = match &listed.manifest {
                Ok(manifest) => manifest,
                Err(error) => {
                    let harm = Harm { version: listed.version, run: None, rank: listed.rank, region: None };
                    findings.push(unusable(listed.name.clone(), error, vec![harm]));
                    continue;
                }
            };
            let error = match Reader::open(&self.packs, Arc::clone(manifest), &mut known) {
                Ok(reader) => {
                    bad_blocks.add_harms(&reader);
                    continue;
                }
                Err(error) => error,
            };
            match read_again(self.catalog.files(), manifest) {
                // The version was removed, so there is nothing to verify.
                Ok(Now::Gone) => {}
                Ok(Now::Replaced(_)) => {
                    let problem = "a running program has replaced it since it was read; verify again";
                    findings.push(plain(FindingKind::Changing, listed.name.clone(), problem));
                }
                Err(error) => findings.push(unusable(listed.name.clone(), &error, vec![whole(manifest)])),
                Ok(Now::Same) => {
                    let is_bad = |named: &&ManifestPack| {
                        bad_packs.get(&named.id).is_some_and(|(_, can_lend)| !(named.is_borrowed && *can_lend))
                    };
                    let bad: Vec<_> = manifest.packs.iter().filter(is_bad).map(|named| named.id).collect();
                    if bad.is_empty() {
                        findings.push(unreadable(listed, manifest, &error));
                    }
                    for id in bad {
                        bad_packs.entry(id).and_modify(|(finding, _)| finding.harms.push(whole(manifest)));
                    }
                }
            }
        }
        // A missing pack that affects no version was removed with the manifests that named it.
        let is_gone = |id: &PackId| {
            let opened = self.catalog.files().open(&file_name(&self.session, *id));
            opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let bad_packs = bad_packs.into_iter().filter(|(id, (finding, _))| !finding.harms.is_empty() || !is_gone(id));
        findings.extend(bad_packs.map(|(_, (finding, _))| finding));
        findings.append(&mut bad_blocks.into_findings());
        findings.append(&mut self.other_findings());
        findings.sort_by_cached_key(|finding| (finding.file.clone(), finding.bytes.as_ref().map(|bytes| bytes.start)));
        verified.findings.append(&mut findings);
    }

    fn open(&self, id: PackId, with_index: bool) -> Result<Pack> {
        Pack::open(&self.packs, &self.session, id, with_index)
    }

    /// Verifies all blocks of a pack, and the bytes between them.
    fn check_pack(
        &self,
        pack: &Pack,
        users: &[Arc<Manifest>],
        progress: &(dyn Fn(u64) + Sync),
        findings: &mut Vec<Finding>,
        bad: &mut Vec<BadBlock>,
    ) {
        let Some(index) = pack.index() else { return };
        // Blocks in packs that no manifest lists are not needed.
        let is_named = |id: &PackId| users.iter().any(|user| user.packs.iter().any(|named| named.id == *id));
        let extents = index.regions().iter().flat_map(|region| region.extents());
        let elsewhere: BTreeSet<_> = extents.map(|extent| extent.pack).filter(|id| *id != pack.id).collect();
        let mut borrowed = BTreeMap::new();
        for id in elsewhere.into_iter().filter(is_named) {
            match self.open(id, false) {
                Ok(pack) => drop(borrowed.insert(id, pack)),
                Err(error @ Error::Storage { .. }) => {
                    findings.push(unusable(file_name(&self.session, id), &error, Vec::new()));
                }
                // This is reported for that pack itself.
                Err(_) => {}
            }
        }
        let places = index
            .regions()
            .iter()
            .flat_map(|region| region.places().map(move |(block, place)| (region.name(), block, place)));
        let mut wanted = places.filter_map(|(region, block, place)| {
            let holder = if place.pack == pack.id { pack } else { borrowed.get(&place.pack)? };
            (place.range().end <= holder.header.payload_range().end).then_some((region, block, place, holder))
        });
        let mut windows = std::iter::from_fn(|| {
            let mut window = Vec::new();
            let mut bytes = 0;
            while bytes < WINDOW_BYTES {
                let Some(block) = wanted.next() else { break };
                bytes += u64::from(block.2.stored.bytes);
                window.push(block);
            }
            (!window.is_empty()).then_some(window)
        });
        let found = Mutex::new(Vec::new());
        let payload = pack.header.payload_range();
        fetch::share(&mut windows, (payload.end - payload.start).div_ceil(WINDOW_BYTES), |fetcher, window| {
            let mut blocks: Vec<_> = window
                .iter()
                .enumerate()
                .map(|(tag, &(_, _, place, holder))| Wanted { tag, pack: holder, place, hash_kind: pack.hash_kind() })
                .collect();
            let mut done = 0;
            fetcher.fetch(&mut blocks, |tag, outcome| {
                let (region, block, place, _) = window[tag];
                done += u64::from(place.stored.bytes);
                if let Err(problem) = outcome {
                    let bad = BadBlock { through: pack.id, region: region.to_owned(), block, place, problem };
                    found.lock().unwrap_or_else(PoisonError::into_inner).push(bad);
                }
            });
            progress(done);
        });
        bad.append(&mut found.into_inner().unwrap_or_else(PoisonError::into_inner));
        let mut fetcher = Fetcher::default();
        for range in pack.header.zero_ranges(index) {
            let problem = match fetcher.first_not_zero(pack, range.clone()) {
                Ok(None) => continue,
                Ok(Some(at)) => {
                    Problem::Changed(format!("byte {at} belongs to no block, and is not zero; no version needs it"))
                }
                Err(problem) => problem,
            };
            findings.push(bad_bytes(file_name(&self.session, pack.id), range, &problem));
        }
    }

    /// Files that no version needs, and other irregularities. Only when a whole session is
    /// verified.
    fn other_findings(self) -> Vec<Finding> {
        if self.version.is_some() {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for &rank in &self.listing.ranks {
            if let Err(error) = self.catalog.mark(&self.session, rank) {
                let file = format!("{}/{}/{MARK_NAME}", self.session, rank_name(rank));
                findings.push(unusable(file, &error, Vec::new()));
            }
        }
        for id in self.listing.packs.iter().filter(|id| !self.needed.contains_key(id)) {
            let file = file_name(&self.session, *id);
            findings.push(plain(FindingKind::Garbage, file, "no manifest that can be read names this pack"));
        }
        for file in self.listing.drafts {
            findings.push(plain(FindingKind::Garbage, file, "a file that was not finished"));
        }
        for file in self.listing.foreign {
            findings.push(plain(FindingKind::Foreign, file, "this file does not belong to a store"));
        }
        for group in grouped(self.listing.manifests) {
            if group.run.is_some() && !group.is_complete() {
                let count = group.manifests.len();
                let problem =
                    format!("version {} is not complete: {count} of {} ranks have it", group.version, group.ranks);
                findings.push(plain(FindingKind::Incomplete, self.session.clone(), &problem));
            }
        }
        findings
    }
}

/// The finding for a file that is damaged or could not be read.
fn unusable(file: String, error: &Error, harms: Vec<Harm>) -> Finding {
    let kind = if error.is_damage() { FindingKind::Damage } else { FindingKind::Unread };
    Finding { kind, file, bytes: None, problem: error.to_string(), harms }
}

/// The finding for bytes of a file that are damaged or could not be read.
fn bad_bytes(file: String, bytes: Range<u64>, problem: &Problem) -> Finding {
    let kind = match problem {
        Problem::Changed(_) => FindingKind::Damage,
        Problem::Unread(_) => FindingKind::Unread,
    };
    Finding { kind, file, bytes: Some(bytes), problem: problem.to_string(), harms: Vec::new() }
}

pub(crate) fn plain(kind: FindingKind, file: String, problem: &str) -> Finding {
    Finding { kind, file, bytes: None, problem: problem.to_owned(), harms: Vec::new() }
}

/// The harm if nothing of one rank's part of a version can be restored.
fn whole(manifest: &Manifest) -> Harm {
    Harm { version: manifest.version, run: Some(manifest.run), rank: manifest.rank, region: None }
}

/// The finding for a version that cannot be read although all its packs are there.
fn unreadable(listed: &Listed, manifest: &Manifest, error: &Error) -> Finding {
    let region = match error {
        Error::Lost { region, bytes, .. } => Some((region.clone(), bytes.clone())),
        _ => None,
    };
    unusable(listed.name.clone(), error, vec![Harm { region, ..whole(manifest) }])
}

/// All bad blocks: their findings, and where they are looked up.
struct BadBlocks {
    findings: Vec<Finding>,
    /// By pack and region in which they are looked up, and by block: the number of the finding.
    places: BTreeMap<(PackId, String), BTreeMap<u64, usize>>,
}

impl BadBlocks {
    /// Blocks that are adjacent in their region and in their file become one finding.
    fn new(session: &str, mut blocks: Vec<BadBlock>) -> Self {
        blocks.sort_by(|a, b| (a.through, &a.region, a.block).cmp(&(b.through, &b.region, b.block)));
        let mut bad = Self { findings: Vec::new(), places: BTreeMap::new() };
        let mut last: Option<(PackId, String, u64)> = None;
        for BadBlock { through, region, block, place, problem } in blocks {
            let file = file_name(session, place.pack);
            let stored = place.range();
            let is_next = last
                .take()
                .is_some_and(|(pack, name, before)| pack == through && name == region && before + 1 == block);
            let finding = bad_bytes(file, stored.clone(), &problem);
            let is_same = |before: &&mut Finding| is_next && before.file == finding.file && before.kind == finding.kind;
            let before = bad.findings.last_mut().filter(is_same);
            match before.and_then(|before| before.bytes.as_mut()).filter(|bytes| bytes.end == stored.start) {
                Some(bytes) => bytes.end = stored.end,
                None => bad.findings.push(finding),
            }
            last = Some((through, region.clone(), block));
            bad.places.entry((through, region)).or_default().insert(block, bad.findings.len() - 1);
        }
        bad
    }

    /// Records which parts of this version cannot be read because of them.
    fn add_harms(&mut self, reader: &Reader) {
        let manifest = reader.manifest();
        for mapped in reader.mapped() {
            for segment in mapped.segments {
                let key = (reader.chain(segment.pack).id, mapped.region.name.clone());
                let Some(blocks) = self.places.get(&key) else { continue };
                for (&block, &finding) in blocks.range(segment.blocks.clone()) {
                    let bytes = mapped.region.blocks.range(block);
                    let harms = &mut self.findings[finding].harms;
                    let is_same = |harm: &&mut Harm| (harm.version, harm.rank) == (manifest.version, manifest.rank);
                    match harms.last_mut().filter(is_same).and_then(|harm| harm.region.as_mut()) {
                        Some((name, before)) if *name == key.1 && before.end == bytes.start => before.end = bytes.end,
                        _ => harms.push(Harm { region: Some((key.1.clone(), bytes)), ..whole(manifest) }),
                    }
                }
            }
        }
    }

    /// The findings. Those about the same bytes are merged, because blocks of several packs may
    /// share them.
    fn into_findings(self) -> Vec<Finding> {
        let mut together: BTreeMap<(String, u64, u64), Finding> = BTreeMap::new();
        for mut finding in self.findings {
            let bytes = finding.bytes.clone().unwrap_or_default();
            match together.get_mut(&(finding.file.clone(), bytes.start, bytes.end)) {
                Some(same) => same.harms.append(&mut finding.harms),
                None => {
                    together.insert((finding.file.clone(), bytes.start, bytes.end), finding);
                }
            }
        }
        together.into_values().collect()
    }
}
