//! What is kept of a file: which shards there are, whether they suffice, and what is to be made
//! again.

use std::collections::BTreeMap;

use outcrop_format::{ShardHeader, ShardedFile};

/// A shard that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The rank that keeps it.
    pub holder: u32,
    /// What it says of itself.
    pub header: ShardHeader,
}

/// A shard in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Which one.
    pub index: u16,
    /// The rank that keeps it.
    pub holder: u32,
}

/// What is kept of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The file.
    pub file: ShardedFile,
    /// Who keeps which shard. Several ranks may keep the same one.
    pub parts: BTreeMap<u16, Vec<u32>>,
    /// Shards of what had this name before, which are to be removed.
    pub stale: Vec<Part>,
}

impl Kept {
    /// What counts of the shards that were found under one name. Of those that suffice, the last
    /// one written counts: a crash may have come while a file was being replaced, and a node may
    /// have been away meanwhile. If none suffices, the last one written counts as well, and cannot
    /// be read. `None` if there is no shard.
    pub fn choose(seen: &[Seen]) -> Option<Self> {
        let mut files: BTreeMap<ShardedFile, BTreeMap<u16, Vec<u32>>> = BTreeMap::new();
        for Seen { holder, header } in seen {
            let holders = files.entry(header.file).or_default().entry(header.index).or_default();
            if !holders.contains(holder) {
                holders.push(*holder);
            }
        }
        let is_whole = |(file, parts): &(&ShardedFile, &BTreeMap<_, _>)| parts.len() >= usize::from(file.data);
        let (file, _) = files.iter().rev().find(is_whole).or_else(|| files.iter().next_back())?;
        let file = *file;
        let parts = files.remove(&file)?;
        let all = |parts: BTreeMap<u16, Vec<u32>>| {
            parts.into_iter().flat_map(|(index, holders)| holders.into_iter().map(move |holder| Part { index, holder }))
        };
        let mut stale: Vec<Part> = files.into_values().flat_map(all).collect();
        stale.sort_unstable();
        stale.dedup();
        // A name leads to one file on each node: what counts has replaced the other one there.
        stale.retain(|part| parts.get(&part.index).is_none_or(|holders| !holders.contains(&part.holder)));
        Some(Self { file, parts, stale })
    }

    /// What is kept of a file that has just been written.
    pub fn written(file: ShardedFile, holders: &[u32]) -> Self {
        Self {
            file,
            parts: (0..).zip(holders).map(|(index, holder)| (index, vec![*holder])).collect(),
            stale: Vec::new(),
        }
    }

    /// Whether the file can be read.
    pub fn is_whole(&self) -> bool {
        self.parts.len() >= usize::from(self.file.data)
    }

    /// All its shards.
    pub fn all(&self) -> impl Iterator<Item = Part> {
        let of = |(index, holders): (&u16, &Vec<u32>)| {
            let index = *index;
            holders.clone().into_iter().map(move |holder| Part { index, holder })
        };
        self.parts.iter().flat_map(of)
    }

    /// Whether it is coded in another way than for these holders with `data` chunks in a stripe. It
    /// is written anew then.
    pub fn is_other(&self, data: u16, holders: &[u32]) -> bool {
        (self.file.data, usize::from(self.file.count)) != (data, holders.len())
    }

    /// The shards that these holders lack, each by its index.
    pub fn missing(&self, holders: &[u32]) -> Vec<Part> {
        let wanted = (0..).zip(holders).map(|(index, holder)| Part { index, holder: *holder });
        wanted.filter(|part| self.parts.get(&part.index).is_none_or(|there| !there.contains(&part.holder))).collect()
    }

    /// The shards that somebody else keeps than these holders. They are removed when nothing is
    /// missing any more.
    pub fn surplus(&self, holders: &[u32]) -> Vec<Part> {
        self.all().filter(|part| holders.get(usize::from(part.index)) != Some(&part.holder)).collect()
    }

    /// A shard was made.
    pub fn made(&mut self, part: Part) {
        let holders = self.parts.entry(part.index).or_default();
        if !holders.contains(&part.holder) {
            holders.push(part.holder);
        }
        self.stale.retain(|stale| *stale != part);
    }

    /// A shard was removed, or proved to be damaged.
    pub fn lost(&mut self, part: Part) {
        if let Some(holders) = self.parts.get_mut(&part.index) {
            holders.retain(|holder| *holder != part.holder);
            if holders.is_empty() {
                self.parts.remove(&part.index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(generation: u64, data: u16, count: u16, index: u16, holder: u32) -> Seen {
        let file = ShardedFile { generation, id: generation.into(), owner: 0, bytes: 9, check: 0, data, count };
        Seen { holder, header: ShardHeader { file, index } }
    }

    #[test]
    fn the_last_file_that_can_be_read_counts() {
        // A crash came while the file was replaced: one node has the new one.
        let found = [seen(1, 2, 3, 0, 10), seen(2, 2, 3, 1, 11), seen(1, 2, 3, 2, 12)];
        let kept = Kept::choose(&found).unwrap();
        assert_eq!((kept.file.generation, kept.is_whole()), (1, true));
        assert_eq!(kept.stale, [Part { index: 1, holder: 11 }]);
        assert_eq!(kept.missing(&[10, 11, 12]), [Part { index: 1, holder: 11 }]);
        // Two nodes have it: both can be read.
        let found = [seen(1, 1, 3, 0, 10), seen(2, 1, 3, 1, 11), seen(2, 1, 3, 2, 12)];
        let kept = Kept::choose(&found).unwrap();
        assert_eq!(kept.file.generation, 2);
        assert_eq!(kept.missing(&[10, 11, 12]), [Part { index: 0, holder: 10 }]);
        assert_eq!(Kept::choose(&[]), None);
    }

    #[test]
    fn what_cannot_be_read_is_known_to_be_there() {
        let kept = Kept::choose(&[seen(5, 2, 3, 1, 4), seen(5, 2, 3, 1, 6)]).unwrap();
        assert!(!kept.is_whole());
        assert_eq!(kept.all().count(), 2);
    }

    #[test]
    fn shards_that_somebody_else_keeps_now_are_made_again_and_then_removed() {
        let mut kept = Kept::choose(&[seen(1, 2, 3, 0, 1), seen(1, 2, 3, 1, 2), seen(1, 2, 3, 2, 3)]).unwrap();
        let now = [1, 7, 3];
        assert_eq!(kept.missing(&now), [Part { index: 1, holder: 7 }]);
        kept.made(Part { index: 1, holder: 7 });
        assert!(kept.missing(&now).is_empty());
        assert_eq!(kept.surplus(&now), [Part { index: 1, holder: 2 }]);
        kept.lost(Part { index: 1, holder: 2 });
        assert!(kept.surplus(&now).is_empty() && kept.is_whole());
        assert!(kept.is_other(1, &now) && kept.is_other(2, &[1, 7]) && !kept.is_other(2, &now));
    }

    /// What each node has: files by their shards' indexes.
    type Nodes = Vec<BTreeMap<u16, ShardHeader>>;

    fn found(nodes: &Nodes) -> Option<Kept> {
        let on = |(holder, shards): (u32, &BTreeMap<u16, ShardHeader>)| {
            shards.values().map(move |header| Seen { holder, header: *header }).collect::<Vec<_>>()
        };
        Kept::choose(&(0..).zip(nodes).flat_map(on).collect::<Vec<_>>())
    }

    proptest! {
        /// Files are written, replaced and made again, each interrupted after any shard, and nodes
        /// are lost, as many as are allowed until everything was made again.
        #[test]
        fn what_was_written_is_there_whatever_was_interrupted(
            data in 1u16..4, lost in 1u16..4, steps in prop::collection::vec((0u8..3, any::<u64>()), 1..40),
        ) {
            // Files that are replaced are whole copies, and those that are coded never are.
            let is_coded = data > 1;
            let count = data + lost;
            let mut nodes: Nodes = vec![BTreeMap::new(); usize::from(count) + 3];
            let mut holders: Vec<u32> = (0..u32::from(count)).collect();
            let (mut complete, mut newest, mut gone) = (0, 0, 0);
            let file = |generation: u64| ShardedFile {
                generation, id: generation.into(), owner: 0, bytes: generation, check: 0, data, count,
            };
            for (step, random) in steps {
                let mut rng = fastrand::Rng::with_seed(random);
                let stops_after = rng.usize(..2 * usize::from(count));
                match step {
                    0 if !is_coded || newest == 0 => {
                        newest += 1;
                        for (index, holder) in (0..).zip(&holders).take(stops_after) {
                            nodes[*holder as usize].insert(index, ShardHeader { file: file(newest), index });
                        }
                        if stops_after >= holders.len() {
                            complete = newest;
                        }
                    }
                    1 => {
                        if complete > 0 && gone < lost {
                            let holder = holders[rng.usize(..holders.len())];
                            gone += u16::from(!nodes[holder as usize].is_empty());
                            nodes[holder as usize].clear();
                        }
                    }
                    _ => {
                        // Everything is made again, for other holders.
                        rng.shuffle(&mut holders);
                        let Some(mut kept) = found(&nodes).filter(Kept::is_whole) else { continue };
                        let missing = kept.missing(&holders);
                        for part in missing.iter().take(stops_after) {
                            let header = ShardHeader { file: kept.file, index: part.index };
                            nodes[part.holder as usize].insert(part.index, header);
                            kept.made(*part);
                        }
                        if stops_after >= missing.len() {
                            gone = 0;
                            for part in kept.surplus(&holders).iter().chain(&kept.stale) {
                                nodes[part.holder as usize].remove(&part.index);
                            }
                            complete = complete.max(kept.file.generation);
                            prop_assert!(found(&nodes).unwrap().missing(&holders).is_empty());
                        }
                    }
                }
                if complete > 0 {
                    let kept = found(&nodes).unwrap();
                    prop_assert!(kept.is_whole() && kept.file.generation >= complete, "{complete}: {kept:?}");
                }
            }
        }
    }
}
