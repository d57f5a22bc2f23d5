//! Which regions have addresses in common, found without comparing all of them.

use std::{collections::BTreeMap, ops::Range};

/// Regions by address. Those that overlap, directly or through others, are in one cluster.
#[derive(Debug, Default)]
pub(crate) struct Overlaps {
    /// By the first address. Clusters do not overlap.
    clusters: BTreeMap<usize, Cluster>,
}

#[derive(Debug)]
struct Cluster {
    end: usize,
    names: Vec<String>,
}

impl Overlaps {
    /// Adds a region. An empty region overlaps nothing.
    pub(crate) fn insert(&mut self, name: &str, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let mut names = vec![name.to_owned()];
        while let Some((&start, cluster)) = self.clusters.range(..range.end).next_back() {
            if cluster.end <= range.start {
                break;
            }
            range = range.start.min(start)..range.end.max(cluster.end);
            names.extend(self.clusters.remove(&start).into_iter().flat_map(|cluster| cluster.names));
        }
        self.clusters.insert(range.start, Cluster { end: range.end, names });
    }

    /// Removes a region that was added with this range. Those that overlapped only through it stay
    /// in one cluster, which costs time but is not wrong.
    pub(crate) fn remove(&mut self, name: &str, range: &Range<usize>) {
        let Some((&start, cluster)) = self.clusters.range_mut(..=range.start).next_back() else { return };
        cluster.names.retain(|known| known != name);
        if cluster.names.is_empty() {
            self.clusters.remove(&start);
        }
    }

    /// The regions that may overlap the one of this name and range.
    pub(crate) fn others(&self, name: &str, range: &Range<usize>) -> impl Iterator<Item = &str> {
        let cluster = self.clusters.range(..=range.start).next_back().map(|(_, cluster)| cluster);
        let names = cluster.map_or(&[][..], |cluster| &cluster.names);
        names.iter().map(String::as_str).filter(move |other| *other != name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(overlaps: &Overlaps, name: &str, range: Range<usize>) -> Vec<String> {
        let mut found: Vec<_> = overlaps.others(name, &range).map(str::to_owned).collect();
        found.sort();
        found
    }

    #[test]
    fn overlapping_regions_find_each_other() {
        let mut overlaps = Overlaps::default();
        for (name, range) in [("a", 0..10), ("b", 10..20), ("c", 40..50), ("empty", 5..5)] {
            overlaps.insert(name, range);
        }
        assert!(others(&overlaps, "a", 0..10).is_empty());
        overlaps.insert("d", 15..45);
        assert_eq!(others(&overlaps, "d", 15..45), ["b", "c"]);
        assert_eq!(others(&overlaps, "b", 10..20), ["c", "d"]);
        assert!(others(&overlaps, "a", 0..10).is_empty());
        overlaps.remove("d", &(15..45));
        overlaps.remove("b", &(10..20));
        overlaps.remove("empty", &(5..5));
        assert!(others(&overlaps, "c", 40..50).is_empty());
        overlaps.remove("c", &(40..50));
        overlaps.insert("e", 0..99);
        assert_eq!(others(&overlaps, "e", 0..99), ["a"]);
    }

    #[test]
    fn any_history_finds_all_that_overlap() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let mut overlaps = Overlaps::default();
            let mut regions: Vec<(String, Range<usize>)> = Vec::new();
            for nth in 0..60 {
                if random.u32(..3) == 0 && !regions.is_empty() {
                    let (name, range) = regions.swap_remove(random.usize(..regions.len()));
                    overlaps.remove(&name, &range);
                } else {
                    let start = random.usize(..200);
                    let (name, range) = (nth.to_string(), start..start + random.usize(..20));
                    overlaps.insert(&name, range.clone());
                    regions.push((name, range));
                }
                for (name, range) in &regions {
                    let found = others(&overlaps, name, range.clone());
                    let is_shared = |other: &Range<usize>| other.start.max(range.start) < other.end.min(range.end);
                    let expected = regions.iter().filter(|(other, range)| other != name && is_shared(range));
                    assert!(expected.into_iter().all(|(other, _)| found.contains(other)), "{regions:?}");
                }
            }
        }
    }
}
