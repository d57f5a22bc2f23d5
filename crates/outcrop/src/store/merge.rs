//! Makes one increment out of several, so that no version has to be put together from many.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::Sender},
};

use outcrop_engine::{Handle, Layout, Lent};
use outcrop_format::{
    Blocks, Extent, Hash, Index, IndexRegion, IndexSize, PAGE_BYTES, PackHeader, PackId, PackOrigin, Place, Stored,
};
use outcrop_layers::files::{File, Files};
use outcrop_plan::merge as merge_range;

use super::{
    Shared,
    chain::Link,
    commit::{Note, failure},
    host::{HostFiles, path},
    pack::hand_over,
    state::SessionCore,
};
use crate::Result;

/// A block that goes into the merged packs.
struct Moved {
    region: usize,
    block: u64,
    place: Place,
}

/// A pack that is read: its file and index.
struct Opened {
    header: PackHeader,
    index: Index,
}

/// Merges increments of a session, if there are more than there should be.
pub(crate) fn merge(
    shared: &Arc<Shared>,
    handle: &mut Handle,
    notes: &Sender<Note>,
    session: &Arc<SessionCore>,
) -> Result<()> {
    let chain = session.content().chain.clone();
    let Some(range) = choose(&chain, shared.settings.chain_max) else { return Ok(()) };
    let old = &chain[range];
    // What is read in host memory is held there, so that nothing may be waited for meanwhile.
    let files = |handle: &mut Handle| {
        let below = shared.shelves.iter().map(|shelf| Arc::clone(shelf.files())).collect();
        HostFiles::new(handle, session, &chain, below)
    };
    let held = files(handle);
    let packs = old.iter().map(|link| open(&held, session, link.pack.id)).collect::<Result<Vec<_>>>()?;
    drop(held);
    let (names, moved) = newest(&packs);
    // All blocks of a merge have one kind of hash: the newest pack's, and with another kind nothing is merged.
    let kind = packs[0].header.origin().hash_kind;
    if packs.iter().any(|pack| pack.header.origin().hash_kind != kind) {
        return Ok(());
    }
    let mut links = Vec::new();
    for part in parts(&moved, shared.pack_bytes_max) {
        let key = shared.next_key.fetch_add(1, Relaxed);
        let id = session.content().next_id(session.rank);
        let (bytes, payload_bytes) = sizes(&names, part);
        let mut lent = handle.lend(key, Layout::single("u8", bytes))?;
        let index = fill(&files(handle), session, id, &names, part, &mut lent)?;
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

fn open(files: &dyn Files, session: &SessionCore, id: PackId) -> Result<Opened> {
    let failed = |source| failure(files, "read a pack", source);
    let file = files.open(&path(session, id)).map_err(failed)?;
    let mut page = vec![0; PAGE_BYTES];
    file.read_at(0, &mut page).map_err(failed)?;
    let header = PackHeader::decode(&page)?;
    let range = header.index_range();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_at(range.start, &mut bytes).map_err(failed)?;
    let index = header.decode_index(&bytes)?;
    Ok(Opened { header, index })
}

/// For every region the blocks of the packs, the newest of each. A region that has changed its length was saved in full then, so
/// that what is older means nothing.
fn newest(packs: &[Opened]) -> (Vec<(String, Blocks)>, Vec<Moved>) {
    let mut regions = BTreeMap::<&str, (Blocks, BTreeMap<u64, Place>)>::new();
    for pack in packs {
        for region in pack.index.regions() {
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

/// Copies the stored bytes of blocks into a slot, as they are, and lists them.
fn fill(
    files: &dyn Files,
    session: &SessionCore,
    id: PackId,
    names: &[(String, Blocks)],
    part: &[Moved],
    lent: &mut Lent,
) -> Result<Index> {
    let mut sources: BTreeMap<PackId, Arc<dyn File>> = BTreeMap::new();
    let failed = |source| failure(files, "read a pack", source);
    let mut at = PAGE_BYTES;
    let mut listed: BTreeMap<usize, IndexRegion> = BTreeMap::new();
    let mut rest = part;
    while let Some(first) = rest.first() {
        let run = rest.iter().zip(rest.iter().skip(1)).take_while(|(one, next)| is_neighbour(one, next)).count() + 1;
        let (run, after) = rest.split_at(run);
        let place = first.place;
        let bytes = (run[run.len() - 1].place.range().end - place.at) as usize;
        let file = match sources.get(&place.pack) {
            Some(file) => Arc::clone(file),
            None => {
                let file = files.open(&path(session, place.pack)).map_err(failed)?;
                sources.insert(place.pack, Arc::clone(&file));
                file
            }
        };
        file.read_at(place.at, &mut lent[at..at + bytes]).map_err(failed)?;
        let (name, blocks) = &names[first.region];
        let region = match listed.entry(first.region) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(IndexRegion::new(name, *blocks)?),
        };
        let hashes: Vec<Hash> = run.iter().map(|moved| moved.place.hash).collect();
        let stored: Vec<Stored> = match place.coding.is_raw() {
            true => Vec::new(),
            false => run.iter().map(|moved| moved.place.stored).collect(),
        };
        let (first_block, count) = (first.block, run.len() as u32);
        region.push(Extent { first_block, count, pack: id, at: at as u64, coding: place.coding }, &hashes, &stored)?;
        at += bytes;
        rest = after;
    }
    Ok(Index::new(listed.into_values().collect())?)
}

/// Whether two blocks follow each other in the region and in the file.
fn is_neighbour(one: &Moved, next: &Moved) -> bool {
    one.region == next.region
        && one.block + 1 == next.block
        && one.place.pack == next.place.pack
        && one.place.coding == next.place.coding
        && one.place.range().end == next.place.at
}

/// Puts the merged packs in the place of the old ones, if those are still there.
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
    // Without a committer nothing is rewritten, and the old packs stay.
    let _ = notes.send(Note::Merged(Arc::clone(session), numbers, new));
}
