//! Puts what a rank asks for together from the parts that all ranks have saved: for another number
//! of ranks, and for other boxes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use outcrop_catalog::{Catalog, Reader, Scattered};
use outcrop_commit::Event;
use outcrop_format::ManifestRegion;
use outcrop_region::{GlobalBox, LIST, Moves, PartMut, Shape, Uncovered, place, whole};

use super::{
    Session,
    commit::Note,
    restore::{Copy, SavedRegion, Skipped, Task},
};
use crate::{Error, Result, error::Problem};

/// The part of one rank that saved a version: its copies, fastest layer first. There is at least
/// one.
pub(super) struct Source {
    rank: u32,
    copies: Vec<Copy>,
    /// The number of each region in the manifest, by name.
    numbers: HashMap<String, usize>,
}

impl Source {
    fn regions(&self) -> &[ManifestRegion] {
        self.copies.first().map_or(&[], |(_, manifest, _)| &manifest.regions)
    }

    fn region(&self, name: &str) -> Option<&ManifestRegion> {
        self.numbers.get(name).map(|number| &self.regions()[*number])
    }
}

/// How the parts that are asked for are put together.
pub(super) struct Gathered {
    sources: Vec<Source>,
    /// By source: the numbers of the parts that are asked for, and what is taken for them.
    pieces: Vec<Vec<(usize, Moves)>>,
    /// By two sources: the numbers of the parts that both have saved, and that must be the same.
    twice: BTreeMap<[usize; 2], Vec<usize>>,
}

impl Session {
    /// The parts of all ranks that saved a version. `None`, with the reason, if one is not in
    /// sight.
    fn sources(&self, version: u64, skipped: &mut Vec<Skipped>) -> Result<Option<Vec<Source>>> {
        self.core.wait_there(version)?;
        let Some(progress) = self.core.state().versions.get(&version).cloned() else { return Ok(None) };
        let is_complete = |layer: &usize| matches!(progress.layers.get(*layer), Some(Some(Ok(()))));
        let shelves = &self.store.shared.shelves;
        let (complete, partial): (Vec<_>, Vec<_>) = (0..shelves.len()).partition(is_complete);
        let layers = || complete.iter().chain(&partial).map(|layer| &shelves[*layer]);
        let mut sources = Vec::new();
        for rank in 0..progress.ranks {
            let mut source = Source { rank, copies: Vec::new(), numbers: HashMap::new() };
            for shelf in layers() {
                let catalog = Catalog::new(Arc::clone(shelf.files()));
                match catalog.manifest(&self.core.name, rank, version) {
                    Ok(Some(manifest)) if manifest.run == progress.run => {
                        source.copies.push((catalog.files().location(), manifest, catalog));
                    }
                    Ok(_) => {}
                    Err(error) if error.is_shortage() => return Err(error.into()),
                    Err(error) => skipped.push(Skipped { version, reason: error.to_string() }),
                }
            }
            if source.copies.is_empty() {
                let names = self.core.layers.join(", ");
                let reason = format!(
                    "the part of rank {rank} is in none of {names} as rank {} sees them; another number of ranks, or other \
                     boxes, need directories that all ranks see",
                    self.core.rank
                );
                skipped.push(Skipped { version, reason });
                return Ok(None);
            }
            let names = source.regions().iter().enumerate().map(|(number, region)| (region.name.clone(), number));
            source.numbers = names.collect();
            sources.push(source);
        }
        Ok(Some(sources))
    }

    /// Puts the parts together, from the fastest undamaged copies, as far as the task says. `None`
    /// if one is damaged everywhere; an error if the version does not have what is asked for. That
    /// is found out before anything is written.
    pub(super) fn gather_parts(
        &self,
        version: u64,
        parts: &mut [PartMut<'_>],
        skipped: &mut Vec<Skipped>,
        task: Task,
    ) -> Result<Option<(String, Gathered)>> {
        let Some(sources) = self.sources(version, skipped)? else { return Ok(None) };
        let gathered = self.plan(version, sources, parts)?;
        if task != Task::Fill && !self.compare(version, &gathered, parts, skipped)? {
            return Ok(None);
        }
        let layer = self.take_pieces(version, &gathered, parts, skipped, task)?;
        Ok(layer.map(|layer| (layer, gathered)))
    }

    fn mismatch(&self, version: u64, problem: String) -> Error {
        Problem::Mismatch { session: self.core.name.clone(), version, problem }.into()
    }

    /// Finds out which pieces of which sources are needed.
    fn plan(&self, version: u64, sources: Vec<Source>, parts: &[PartMut<'_>]) -> Result<Gathered> {
        let pieces = vec![Vec::new(); sources.len()];
        let mut gathered = Gathered { sources, pieces, twice: BTreeMap::new() };
        for (nth, part) in parts.iter().enumerate() {
            self.plan_part(&mut gathered, nth, part).map_err(|problem| self.mismatch(version, problem))?;
        }
        Ok(gathered)
    }

    fn plan_part(&self, gathered: &mut Gathered, nth: usize, part: &PartMut<'_>) -> std::result::Result<(), String> {
        let Gathered { sources, pieces, twice } = gathered;
        let (name, count) = (part.name, self.core.ranks as usize);
        let found = sources.iter().enumerate().filter_map(|(source, it)| Some((source, it.region(name)?)));
        let mut found: Vec<(usize, &ManifestRegion)> = found.collect();
        let is_boxed = found.iter().any(|(_, region)| region.shape.global().is_some());
        if !is_boxed && sources.len() == count {
            // Each rank has its own.
            found.retain(|(source, _)| sources[*source].rank == self.core.rank);
        }
        let Some((_, first)) = found.first() else {
            let names: BTreeSet<_> = sources.iter().flat_map(Source::regions).map(|it| it.name.as_str()).collect();
            let names: Vec<_> = names.into_iter().collect();
            return Err(format!("it has no region {name}, only {}", names.join(", ")));
        };
        if let Some((_, other)) = found.iter().find(|(_, region)| region.element != part.element.name()) {
            return Err(format!("region {name} holds {} and not {}", other.element, part.element.name()));
        }
        let element_bytes = first.element_bytes as usize;
        let shapes: Vec<&Shape> = found.iter().map(|(_, region)| &region.shape).collect();
        let about = |error| format!("region {name} {error}");
        let asked = part.shape().map_err(about)?;
        let placement = place(&shapes, &asked).map_err(about)?;
        let rank_of = |it: usize| sources[found[it].0].rank;
        let groups = placement.asked.cover(&placement.saved).map_err(|uncovered| match uncovered {
            Uncovered::Overlap { saved: [a, b], at } => format!(
                "region {name}: the boxes of ranks {} and {} overlap, at {}; only one of them can own an element, so save boxes \
                 without halos",
                rank_of(a),
                rank_of(b),
                placement.index(&at)
            ),
            Uncovered::Hole { at } => format!(
                "region {name}: no rank has saved the element {}; ask for a box that the saved ones make up",
                placement.index(&at)
            ),
        })?;
        for group in groups {
            let is_mine = |it: &&usize| rank_of(**it) == self.core.rank;
            let chosen = *group.iter().find(is_mine).unwrap_or(&group[self.core.rank as usize % group.len()]);
            let moves = Moves::new(&placement.saved[chosen], &placement.asked, element_bytes);
            pieces[found[chosen].0].extend(moves.map(|moves| (nth, moves)));
            // Whole arrays are compared once, by all ranks together.
            let is_my_task = |it: &&usize| is_boxed || rank_of(**it) as usize % count == self.core.rank as usize;
            for other in group[1..].iter().filter(is_my_task) {
                twice.entry([found[group[0]].0, found[*other].0]).or_default().push(nth);
            }
        }
        Ok(())
    }

    /// Compares what several ranks have saved. Returns whether it could be read.
    fn compare(
        &self,
        version: u64,
        gathered: &Gathered,
        parts: &[PartMut<'_>],
        skipped: &mut Vec<Skipped>,
    ) -> Result<bool> {
        let mut known: Option<(usize, Reader)> = None;
        for ([one, other], same) in &gathered.twice {
            if known.as_ref().is_none_or(|(source, _)| source != one) {
                let opened = self.with_copies(version, &gathered.sources[*one], skipped, |_| Ok(()))?;
                let Some((_, reader)) = opened else { return Ok(false) };
                known = Some((*one, reader));
            }
            let Some((_, first)) = &known else { continue };
            let mut different = None;
            let source = &gathered.sources[*other];
            let compared = self.with_copies(version, source, skipped, |reader| {
                different = None;
                for region in same.iter().map(|nth| parts[*nth].name) {
                    if !first.is_same(region, reader)? {
                        different = Some(region);
                        break;
                    }
                }
                Ok(())
            })?;
            if compared.is_none() {
                return Ok(false);
            }
            if let Some(region) = different {
                let (one, other) = (gathered.sources[*one].rank, source.rank);
                let problem = format!(
                    "region {region} is not the same on ranks {one} and {other} that saved it, so it is not known which of them \
                     counts; give it a box or make it a list, or do not ask for it"
                );
                return Err(self.mismatch(version, problem));
            }
        }
        Ok(true)
    }

    /// Reads the pieces, as far as the task says. Returns the layer of the first one.
    pub(super) fn take_pieces(
        &self,
        version: u64,
        gathered: &Gathered,
        parts: &mut [PartMut<'_>],
        skipped: &mut Vec<Skipped>,
        task: Task,
    ) -> Result<Option<String>> {
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let memory: Vec<Mutex<&mut [u8]>> = parts.iter_mut().map(|part| Mutex::new(&mut *part.bytes)).collect();
        let mut layer = None;
        for (source, pieces) in gathered.sources.iter().zip(&gathered.pieces) {
            let into = |part: usize| (task == Task::Fill).then_some(&memory[part]);
            let wanted = pieces.iter().map(|(part, moves)| (*part, moves));
            let wanted = wanted.map(|(part, moves)| Scattered { region: names[part], moves, into: into(part) });
            let wanted: Vec<_> = wanted.collect();
            if wanted.is_empty() {
                continue;
            }
            let read = |reader: &Reader| match task {
                Task::Open => Ok(()),
                Task::Verify | Task::Fill => reader.read_scattered(&wanted),
            };
            match self.with_copies(version, source, skipped, read)? {
                Some((place, _)) => drop(layer.get_or_insert(place)),
                None => return Ok(None),
            }
        }
        // Whoever asks for nothing has it from anywhere.
        Ok(Some(layer.or_else(|| self.core.layers.first().cloned()).unwrap_or_default()))
    }

    /// Does something with the fastest undamaged copy of a part. `None` if there is none.
    fn with_copies(
        &self,
        version: u64,
        source: &Source,
        skipped: &mut Vec<Skipped>,
        mut read: impl FnMut(&Reader) -> outcrop_catalog::Result<()>,
    ) -> Result<Option<(String, Reader)>> {
        for (place, manifest, catalog) in &source.copies {
            match catalog.reader(manifest).and_then(|reader| read(&reader).map(|()| reader)) {
                Ok(reader) => return Ok(Some((place.clone(), reader))),
                Err(error) if error.is_shortage() => return Err(error.into()),
                Err(error) => {
                    let session = &self.core.name;
                    tracing::warn!(session, version, place, rank = source.rank, %error, "a copy of a version is damaged");
                    skipped.push(Skipped { version, reason: format!("{place}: {error}") });
                }
            }
        }
        Ok(None)
    }

    /// After a restore of parts of several ranks, the next version is a full one.
    pub(super) fn begin_anew(&mut self, version: u64, parts: &[PartMut<'_>]) {
        self.shadows_from(parts);
        self.core.content().reset();
        let based = Event::Based { version, packs: Vec::new() };
        let _ = self.store.committer.send(Note::Event(Arc::clone(&self.core), based));
        self.watch_parts(parts);
    }

    /// The regions of a version that another number of ranks has saved: whole arrays, and this
    /// rank's share of lists.
    pub(super) fn regions_of_all(&self, version: u64) -> Result<Vec<SavedRegion>> {
        let mut skipped = Vec::new();
        let Some(sources) = self.sources(version, &mut skipped)? else {
            return Err(self.unusable(version, &skipped));
        };
        let (mut regions, mut known) = (Vec::new(), HashSet::new());
        for region in sources.iter().flat_map(Source::regions) {
            if !known.insert(region.name.as_str()) {
                continue;
            }
            let shapes: Vec<&Shape> =
                sources.iter().filter_map(|it| it.region(&region.name)).map(|region| &region.shape).collect();
            let share = (self.core.rank as usize, self.core.ranks as usize);
            let mut saved = SavedRegion::of(region);
            saved.shape = whole_or_share(&shapes, share).unwrap_or_else(|| region.shape.clone());
            saved.bytes = saved.shape.count() as u64 * saved.element_bytes as u64;
            regions.push(saved);
        }
        Ok(regions)
    }

    /// Says where this rank's part of a list lies, if the parts of the other ranks are in sight.
    pub(super) fn place_lists(&self, version: u64, regions: &mut [SavedRegion]) -> Result<()> {
        let has_lists = regions.iter().any(|region| region.shape.is_list());
        // Other ranks may still save it, and do not know that somebody waits.
        if !has_lists || !self.core.state().is_there(version) {
            return Ok(());
        }
        let Some(sources) = self.sources(version, &mut Vec::new())? else { return Ok(()) };
        for region in regions.iter_mut().filter(|region| region.shape.is_list()) {
            let parts = sources.iter().filter_map(|it| Some((it.rank, &it.region(&region.name)?.shape)));
            let lengths: Vec<(u32, usize)> = parts.map(|(rank, shape)| (rank, length(shape))).collect();
            let first = lengths.iter().filter(|(rank, _)| *rank < self.core.rank).map(|(_, length)| length).sum();
            let total = lengths.iter().map(|(_, length)| length).sum();
            if let Some(shape) = part_of_list(&region.shape, total, first..first + length(&region.shape)) {
                region.shape = shape;
            }
        }
        Ok(())
    }
}

/// The number of the dimension in which a list is as long as its parts together.
fn dimension(global: &GlobalBox) -> usize {
    global.shape().iter().position(|length| *length == LIST).unwrap_or(0)
}

/// The length of a part of a list.
fn length(shape: &Shape) -> usize {
    shape.global().map_or(0, |global| shape.dimensions()[dimension(global)])
}

/// Some elements of a list of which one part has this shape.
fn part_of_list(like: &Shape, total: usize, elements: std::ops::Range<usize>) -> Option<Shape> {
    let global = like.global()?;
    let at = dimension(global);
    let (mut dimensions, mut all, mut offset) =
        (like.dimensions().to_vec(), global.shape().to_vec(), global.offset().to_vec());
    (dimensions[at], all[at], offset[at]) = (elements.len(), total, elements.start);
    Shape::new(&dimensions, like.order()).ok()?.in_box(&all, &offset).ok()
}

/// The array that parts make up, or a share of the list.
fn whole_or_share(shapes: &[&Shape], (nth, of): (usize, usize)) -> Option<Shape> {
    let first = shapes.first().filter(|first| first.is_list());
    let Some(first) = first else { return whole(shapes) };
    let total: usize = shapes.iter().map(|shape| length(shape)).sum();
    let at = |nth: usize| (total as u128 * nth as u128 / of as u128) as usize;
    part_of_list(first, total, at(nth)..at(nth + 1))
}
