//! Whether what is in a file is a graph.

use super::{Bound, Row, bounds};
use crate::error::Checked;

/// That segments are in order, and are there.
pub(crate) fn lengths(state: &[u8], edges: usize, rows: usize, offsets: usize) -> Checked {
    let Some(bounds) = bounds(state) else { return Err("it does not say where its segments begin".to_owned()) };
    let (first, last) = (bounds[0], bounds[bounds.len() - 1]);
    let is_sorted = bounds.is_sorted_by(|a, b| a.row() <= b.row() && a.edge() <= b.edge());
    let is_there = last.row() <= rows && last.edge() <= edges && first.row() == 0;
    let has_base = offsets > 0 || first.edge() == 0;
    match is_sorted && is_there && has_base {
        true => Ok(()),
        false => Err(format!("its segments {bounds:?} are not in its {edges} edges and {rows} rows")),
    }
}

/// Looks at everything that leads to something else.
pub(crate) fn check(
    state: &[u8],
    nodes: usize,
    offsets: &[u64],
    targets: &[u32],
    values: usize,
    rows: &[Row],
) -> Checked {
    lengths(state, targets.len().min(values), rows.len(), offsets.len())?;
    let bounds = bounds(state).unwrap_or_default();
    let base = bounds[0].edge() as u64;
    let ends = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
    if !offsets.is_sorted() || ends != (0, base) || offsets.len() > nodes + 1 {
        return Err(format!("where its {base} edges begin is not in order"));
    }
    for segment in bounds.windows(2) {
        let of = &rows[segment[0].row()..segment[1].row()];
        let (from, to) = (segment[0].edge.get(), segment[1].edge.get());
        let is_sorted = of.is_sorted_by(|a, b| a[0] < b[0] && a[1] < b[1]);
        let is_inside = of.iter().all(|row| row[0] < nodes as u64 && (from..to).contains(&row[1]));
        if !is_sorted || !is_inside || of.first().is_some_and(|row| row[1] != from) || of.is_empty() != (from == to) {
            return Err(format!("the rows of the segment of edges {from} to {to} are not in order"));
        }
    }
    let count = bounds.last().map_or(0, Bound::edge);
    match targets[..count].iter().position(|target| *target as usize >= nodes) {
        Some(at) => Err(format!("edge {at} leads to node {}, of {nodes}", targets[at])),
        None => Ok(()),
    }
}
