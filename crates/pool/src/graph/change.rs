//! Adding nodes and batches of edges, and merging batches.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::{Bound, Graph, Row};
use crate::Versioned;

/// Segments have at most the base's edges divided by this.
const BASE_OVER_SEGMENTS: usize = 4;

/// Where an edge begins, where it leads, and its value.
type Edge<E> = (u32, u32, E);

impl<N: Versioned, E: Versioned> Graph<N, E> {
    /// Adds a node, and gives its number.
    pub fn add_node(&mut self, state: N) -> u32 {
        self.add_nodes([state]).start
    }

    /// Adds nodes, and gives their numbers.
    pub fn add_nodes(&mut self, states: impl IntoIterator<Item = N>) -> Range<u32> {
        let first = self.node_count();
        let states: Vec<N> = states.into_iter().collect();
        let end = u32::try_from(first + states.len());
        let end = end.unwrap_or_else(|_| panic!("the graph \"{}\" has too many nodes", self.read.name));
        self.read.nodes.list().extend_from_slice(&states);
        first as u32..end
    }

    /// The states of all nodes, to be changed: all blocks of them count as changed; what turns out
    /// to be the same is not written.
    pub fn nodes_mut(&mut self) -> &mut [N] {
        &mut self.read.nodes.list()[..]
    }

    /// Changes the values of the edges that begin at a node; `update` gets where each leads, too.
    pub fn update_edges(&mut self, node: u32, mut update: impl FnMut(u32, &mut E)) {
        let ranges: Vec<Range<usize>> = self.ranges(node).collect();
        for range in ranges {
            let targets = &self.read.targets[range.clone()];
            let values = &mut self.read.values.list()[range];
            targets.iter().zip(values).for_each(|(to, value)| update(*to, value));
        }
    }

    /// Adds edges: from where, to where, and a value. Those that begin and end at the same nodes
    /// are all kept, in their order.
    ///
    /// # Panics
    ///
    /// If an edge begins or ends at a node that is not there. Nothing has changed then.
    pub fn add_edges(&mut self, edges: &[(u32, u32, E)]) {
        let nodes = self.node_count();
        if let Some((from, to, _)) = edges.iter().find(|(from, to, _)| (*from).max(*to) as usize >= nodes) {
            panic!("an edge from {from} to {to} in \"{}\", which has {nodes} nodes", self.read.name);
        }
        if edges.is_empty() {
            return;
        }
        let bounds = self.bounds();
        let (base, all) = (bounds[0].edge(), self.edge_count() + edges.len());
        if (all - base).saturating_mul(BASE_OVER_SEGMENTS) > base {
            return self.rebuild(edges);
        }
        // Segments that are less than twice as large as what follows them.
        let mut kept = bounds.len() - 1;
        while kept > 0 && bounds[kept].edge() - bounds[kept - 1].edge() < 2 * (all - bounds[kept].edge()) {
            kept -= 1;
        }
        self.append(kept, edges);
    }

    /// Merges all segments into the base: the edges of each node are in one slice then.
    pub fn merge(&mut self) {
        if self.bounds().len() > 1 {
            self.rebuild(&[]);
        }
    }

    /// Makes a new base of all edges and some more.
    fn rebuild(&mut self, more: &[Edge<E>]) {
        let mut edges: Vec<Edge<E>> = self.all_edges().map(|(from, to, value)| (from, to, *value)).collect();
        edges.extend_from_slice(more);
        sort(&mut edges);
        let nodes = self.node_count();
        self.set_lengths(nodes + 1, edges.len(), 0);
        let offsets = &mut self.read.offsets.list()[..];
        let mut next = 0;
        for (node, offset) in offsets.iter_mut().enumerate() {
            next += edges[next..].iter().take_while(|(from, ..)| (*from as usize) < node).count();
            *offset = next as u64;
        }
        self.write_edges(0, &edges);
        self.set_bounds(&[Bound::new(0, edges.len())]);
    }

    /// Replaces all segments but the first few by one, with their edges and some more.
    fn append(&mut self, kept: usize, more: &[Edge<E>]) {
        let mut bounds = self.bounds()[..=kept].to_vec();
        let (first_row, first_edge) = (bounds[kept].row(), bounds[kept].edge());
        let mut edges: Vec<Edge<E>> = self.segments_from(kept);
        edges.extend_from_slice(more);
        sort(&mut edges);
        let begins = |at: &usize| *at == 0 || edges[*at - 1].0 != edges[*at].0;
        let row = |at: usize| [u64::from(edges[at].0), (first_edge + at) as u64];
        let rows: Vec<Row> = (0..edges.len()).filter(begins).map(row).collect();
        bounds.push(Bound::new(first_row + rows.len(), first_edge + edges.len()));
        self.set_lengths(self.read.offsets.len(), first_edge + edges.len(), first_row + rows.len());
        self.read.rows.list()[first_row..].copy_from_slice(&rows);
        self.write_edges(first_edge, &edges);
        self.set_bounds(&bounds);
    }

    /// The edges of all segments from one on.
    fn segments_from(&self, kept: usize) -> Vec<Edge<E>> {
        let mut edges = Vec::new();
        for bounds in self.bounds()[kept..].windows(2) {
            let rows = self.read.rows.get(bounds[0].row()..bounds[1].row());
            for row in rows.unwrap_or_else(|| self.damaged("its segments")) {
                let from = row[0] as u32;
                let range = self.segment_range(bounds, from).unwrap_or_else(|| self.damaged("its segments"));
                let pairs = self.read.targets[range.clone()].iter().zip(&self.read.values[range]);
                edges.extend(pairs.map(|(to, value)| (from, *to, *value)));
            }
        }
        edges
    }

    /// Has room for so many offsets, edges and rows. If it panics, what is longer does no harm.
    fn set_lengths(&mut self, offsets: usize, edges: usize, rows: usize) {
        self.read.offsets.list().set_len(offsets);
        self.read.targets.list().set_len(edges);
        self.read.values.list().set_len(edges);
        self.read.rows.list().set_len(rows);
    }

    fn write_edges(&mut self, at: usize, edges: &[Edge<E>]) {
        let targets = &mut self.read.targets.list()[at..];
        targets.iter_mut().zip(edges).for_each(|(target, edge)| *target = edge.1);
        let values = &mut self.read.values.list()[at..];
        values.iter_mut().zip(edges).for_each(|(value, edge)| *value = edge.2);
    }

    fn set_bounds(&mut self, bounds: &[Bound]) {
        self.read.nodes.list().part_mut().set_state(bounds.as_bytes());
    }
}

/// By where they begin and lead. Those that are alike keep their order. What was sorted before is
/// only merged.
fn sort<E>(edges: &mut [Edge<E>]) {
    edges.sort_by_key(|(from, to, _)| (*from, *to));
}
