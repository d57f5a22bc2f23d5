//! Merges several increments into one, so that no version consists of too many packs.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::Sender},
};

use outcrop_catalog::Copies;
use outcrop_commit::{Event, Merge};
use outcrop_engine::{Handle, Layout};
use outcrop_format::{
    Blocks, Extent, Hash, Index, IndexRegion, IndexSize, PAGE_BYTES, PackHeader, PackId, PackOrigin, Place, Stored,
};
use outcrop_layers::files::Files;
use outcrop_plan::merge as merge_range;
use outcrop_region::Element;

use super::{Shared, chain::Link, commit::Note, host::HostFiles, pack::hand_over, state::SessionCore};
use crate::{Result, error::no_room};

/// A block that goes into the merged packs.
struct Moved {
    region: usize,
    block: u64,
    place: Place,
}

/// Merges increments of a session, if it has more than `chain_max`.
pub(crate) fn merge(
    shared: &Arc<Shared>,
    handle: &mut Handle,
    notes: &Sender<Note>,
    session: &Arc<SessionCore>,
) -> Result<()> {
    let chain = session.content().chain.clone();
    let Some(range) = choose(&chain, shared.settings.chain_max) else { return Ok(()) };
    let old = &chain[range];
    // Packs that are read in host memory are held there, so this thread must wait for nothing
    // meanwhile.
    let copies = |handle: &mut Handle| {
        let mut places: Vec<Arc<dyn Files>> = vec![Arc::new(HostFiles::new(handle, session, &chain))];
        places.extend(shared.shelves.iter().map(|shelf| Arc::clone(shelf.files())));
        Copies::new(&session.name, places)
    };
    // If no copy of a block is undamaged, the next version must not build upon it: it is saved in
    // full.
    let lost = |error: outcrop_catalog::Error| {
        if error.is_damage() {
            session.content().is_broken = true;
        }
        error
    };
    let held = copies(handle);
    let packs =
        old.iter().map(|link| held.index(&link.pack).map_err(lost)).collect::<outcrop_catalog::Result<Vec<_>>>()?;
    drop(held);
    let (names, moved) = newest(&packs);
    // All blocks of a merged pack have one kind of hash. If the packs differ, nothing is merged.
    let kind = packs[0].0.origin().hash_kind;
    if packs.iter().any(|(header, _)| header.origin().hash_kind != kind) {
        return Ok(());
    }
    let mut links = Vec::new();
    for part in parts(&moved, shared.pack_bytes_max) {
        let key = shared.next_key.fetch_add(1, Relaxed);
        let id = session.next_pack()?;
        let (bytes, payload_bytes) = sizes(&names, part);
        // This must not wait for room: a save that waits for room may itself wait for this thread,
        // which packs its blocks.
        let mut lent = match handle.lend_yielding(key, Layout::single(Element::BYTE, bytes)) {
            Err(outcrop_engine::Error::GaveWay { .. }) => {
                tracing::debug!(session = session.name, "packs are merged later: others wait for host memory");
                return Ok(());
            }
            lent => lent.map_err(no_room)?,
        };
        let places: Vec<Place> = part.iter().map(|moved| moved.place).collect();
        let payload = &mut lent[PAGE_BYTES..PAGE_BYTES + payload_bytes as usize];
        copies(handle).read(&places, kind, payload).map_err(lost)?;
        let index = index(id, &names, part)?;
        let version = old[0].generation;
        let origin = PackOrigin { run: session.run, id, version, hash_kind: kind };
        let header = PackHeader::seal(origin, payload_bytes, &index, &mut lent)?;
        let pack = hand_over(shared, notes, session, (key, &header), lent);
        links.push(Link { pack, key: Some(key), generation: version, borrows: Vec::new() });
    }
    replace(session, notes, old, links);
    Ok(())
}

/// The packs to merge: whole generations.
fn choose(chain: &[Link], chain_max: usize) -> Option<Range<usize>> {
    let generations: Vec<&[Link]> = chain.chunk_by(|newer, older| newer.generation == older.generation).collect();
    let bytes: Vec<u64> = generations.iter().map(|links| links.iter().map(|link| link.pack.file_bytes).sum()).collect();
    let range = merge_range(&bytes, chain_max)?;
    let start = generations[..range.start].iter().map(|links| links.len()).sum();
    let count: usize = generations[range].iter().map(|links| links.len()).sum();
    Some(start..start + count)
}

/// For every region, the newest copy of each block in these packs. If the length of a region or the
/// size of its blocks has changed, it was saved in full then, and older packs do not count.
fn newest(packs: &[(PackHeader, Index)]) -> (Vec<(String, Blocks)>, Vec<Moved>) {
    let mut regions = BTreeMap::<&str, (Blocks, BTreeMap<u64, Place>)>::new();
    for (_, index) in packs {
        for region in index.regions() {
            let (blocks, places) = regions.entry(region.name()).or_insert_with(|| (region.blocks(), BTreeMap::new()));
            if *blocks == region.blocks() {
                for (block, place) in region.places() {
                    places.entry(block).or_insert(place);
                }
            }
        }
    }
    let mut names = Vec::new();
    let mut moved = Vec::new();
    for (region, (name, (blocks, places))) in regions.into_iter().enumerate() {
        names.push((name.to_owned(), blocks));
        moved.extend(places.into_iter().map(|(block, place)| Moved { region, block, place }));
    }
    (names, moved)
}

/// Cuts the blocks into lists that fit into one pack each.
fn parts(moved: &[Moved], bytes_max: u64) -> Vec<&[Moved]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, moved_block) in moved.iter().enumerate() {
        let next = u64::from(moved_block.place.stored.bytes);
        if bytes + next > bytes_max && index > start {
            parts.push(&moved[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += next;
    }
    parts.extend(Some(&moved[start..]).filter(|part| !part.is_empty()));
    parts
}

/// The bytes of a slot for a pack of these blocks, and those of the blocks.
fn sizes(names: &[(String, Blocks)], part: &[Moved]) -> (usize, u64) {
    let payload_bytes: u64 = part.iter().map(|moved| u64::from(moved.place.stored.bytes)).sum();
    let count = part.len() as u64;
    let name_bytes = names.iter().map(|(name, _)| name.len() as u64).sum();
    let size =
        IndexSize { regions: names.len() as u64, name_bytes, extents: count, blocks: count, coded_blocks: count };
    (size.file_bytes(payload_bytes) as usize, payload_bytes)
}

/// Lists blocks whose stored bytes lie one after the other in a new pack.
fn index(id: PackId, names: &[(String, Blocks)], part: &[Moved]) -> Result<Index> {
    let mut at = PAGE_BYTES as u64;
    let mut listed: BTreeMap<usize, IndexRegion> = BTreeMap::new();
    for run in part.chunk_by(is_next) {
        let (name, blocks) = &names[run[0].region];
        let region = match listed.entry(run[0].region) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(IndexRegion::new(name, *blocks)?),
        };
        let hashes: Vec<Hash> = run.iter().map(|moved| moved.place.hash).collect();
        let coding = run[0].place.coding;
        let stored: Vec<Stored> = match coding.is_raw() {
            true => Vec::new(),
            false => run.iter().map(|moved| moved.place.stored).collect(),
        };
        let (first_block, count) = (run[0].block, run.len() as u32);
        region.push(Extent { first_block, count, pack: id, at, coding }, &hashes, &stored)?;
        at += run.iter().map(|moved| u64::from(moved.place.stored.bytes)).sum::<u64>();
    }
    Ok(Index::new(listed.into_values().collect())?)
}

/// Whether two blocks can be in one extent.
fn is_next(one: &Moved, next: &Moved) -> bool {
    one.region == next.region && one.block + 1 == next.block && one.place.coding == next.place.coding
}

/// Replaces the old packs by the merged ones in the chain, if they are still in it.
fn replace(session: &Arc<SessionCore>, notes: &Sender<Note>, old: &[Link], mut links: Vec<Link>) {
    links.reverse();
    let numbers: Vec<u64> = old.iter().map(|link| link.pack.id.number).collect();
    let mut content = session.content();
    let is_here = |window: &[Link]| window.iter().zip(&numbers).all(|(link, number)| link.pack.id.number == *number);
    if let Some(start) = content.chain.windows(numbers.len()).position(is_here) {
        content.chain.splice(start..start + numbers.len(), links.iter().cloned());
    }
    drop(content);
    let new = links.iter().map(|link| link.pack).collect();
    // If the committer has ended, no manifest is rewritten, and the old packs stay.
    let merged = Event::Merged(Merge { old: numbers, new });
    let _ = notes.send(Note::Event(Arc::clone(session), merged));
}
