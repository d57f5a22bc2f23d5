//! Whether the parts of a structure belong together, by what a version says of them.

use outcrop_format::{PoolContents, PoolKind, PoolStructure};

use crate::{
    error::Checked,
    graph,
    part::{is_line, state},
    tree,
};

/// That a part of a structure is what it should be. If it is the first, that a version has all
/// others, too, and that their lengths fit together: then no index of one leads out of another.
pub(crate) fn check(contents: &PoolContents, first: &PoolStructure) -> Checked {
    let len = |ending: &str, part: u8| {
        let kind = first.kind().map(|(kind, _)| (kind, part));
        let name = format!("{}{ending}", first.name);
        let found = contents.find(&name).filter(|it| it.kind() == kind && is_line(it));
        found.map(|it| it.elements() as usize).ok_or_else(|| format!("it has no list \"{name}\""))
    };
    let tree = |lengths: fn(usize, usize, &[u8]) -> Checked| lengths(len(tree::LINKS, 1)?, len("", 0)?, state(first));
    let graph = || {
        let [_, offsets, targets, values, rows] = graph::PARTS;
        let edges = len(targets, 2)?.min(len(values, 3)?);
        graph::lengths(state(first), edges, len(rows, 4)?, len(offsets, 1)?)
    };
    match first.kind() {
        Some((PoolKind::Quadtree, 0)) => tree(tree::lengths::<2>),
        Some((PoolKind::Octree, 0)) => tree(tree::lengths::<3>),
        Some((PoolKind::Graph, 0)) => graph(),
        Some((PoolKind::Array, _)) => Ok(()),
        Some(_) if is_line(first) => Ok(()),
        Some(_) => Err(format!("it has the shape {:?}, and should have one dimension", first.shape)),
        None => Err("no program writes such a state".to_owned()),
    }
}
