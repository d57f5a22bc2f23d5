//! What a model is told about the structures that a call would persist.

/// The kind of a structure, and what only that kind has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An array.
    Array {
        /// How many dimensions it has.
        dimensions: u32,
    },
    /// A quadtree or octree.
    Tree {
        /// Its levels.
        depth: u32,
        /// The children of a node.
        fanout: u32,
    },
    /// A graph.
    Graph {
        /// The mean number of edges of a node.
        degree: f64,
    },
}

/// What is known of a structure before it is persisted, and, [together](Features::together), of all
/// structures of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Features {
    /// Which kind of structure it is; of several, that of which most has changed.
    pub kind: Kind,
    /// How many structures there are.
    pub structures: u64,
    /// Bytes of all elements.
    pub bytes: u64,
    /// Bytes of one element.
    pub element_bytes: u64,
    /// Blocks that they have.
    pub blocks: u64,
    /// Blocks that were written since the last version.
    pub changed_blocks: u64,
    /// Their bytes.
    pub changed_bytes: u64,
    /// Blocks of these that were in the file, and not in memory, when they were written.
    pub changed_from_file: u64,
    /// Blocks that are in memory (DRAM), and not only in the file.
    pub memory_blocks: u64,
    /// Levels of entries above the blocks.
    pub levels: u32,
}

/// The names of the attributes of a model, in the order of [`Features::values`].
pub(crate) const ATTRIBUTES: [&str; 14] = [
    "structures",
    "bytes",
    "element_bytes",
    "blocks",
    "changed_blocks",
    "changed_bytes",
    "changed_from_file",
    "memory_share",
    "levels",
    "kind",
    "dimensions",
    "depth",
    "fanout",
    "degree",
];

impl Features {
    /// No structure.
    const NONE: Self = Self {
        kind: Kind::Array { dimensions: 1 },
        structures: 0,
        bytes: 0,
        element_bytes: 0,
        blocks: 0,
        changed_blocks: 0,
        changed_bytes: 0,
        changed_from_file: 0,
        memory_blocks: 0,
        levels: 0,
    };

    /// The structures of one call as one.
    pub fn together(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::NONE, |one, other| {
            let largest = if other.changed_bytes >= one.changed_bytes { other } else { one };
            Self {
                kind: largest.kind,
                structures: one.structures.saturating_add(other.structures),
                bytes: one.bytes.saturating_add(other.bytes),
                element_bytes: largest.element_bytes,
                blocks: one.blocks.saturating_add(other.blocks),
                changed_blocks: one.changed_blocks.saturating_add(other.changed_blocks),
                changed_bytes: one.changed_bytes.saturating_add(other.changed_bytes),
                changed_from_file: one.changed_from_file.saturating_add(other.changed_from_file),
                memory_blocks: one.memory_blocks.saturating_add(other.memory_blocks),
                levels: one.levels.max(other.levels),
            }
        })
    }

    /// The attributes of a model. Sizes are logarithms: what counts is how many times larger
    /// something is, from one page to a whole memory.
    pub(crate) fn values(&self) -> [f64; ATTRIBUTES.len()] {
        let size = |count: u64| (count as f64).ln_1p();
        let (kind, dimensions, depth, fanout, degree) = match self.kind {
            Kind::Array { dimensions } => (0.0, f64::from(dimensions), 0.0, 0.0, 0.0),
            Kind::Tree { depth, fanout } => (1.0, 0.0, f64::from(depth), f64::from(fanout), 0.0),
            // Also if it is no number.
            Kind::Graph { degree } if degree > 0.0 => (2.0, 0.0, 0.0, 0.0, degree.min(1e18).ln_1p()),
            Kind::Graph { .. } => (2.0, 0.0, 0.0, 0.0, 0.0),
        };
        [
            size(self.structures),
            size(self.bytes),
            size(self.element_bytes),
            size(self.blocks),
            size(self.changed_blocks),
            size(self.changed_bytes),
            size(self.changed_from_file),
            self.memory_blocks as f64 / self.blocks.max(1) as f64,
            f64::from(self.levels),
            kind,
            dimensions,
            depth,
            fanout,
            degree,
        ]
    }
}

impl Kind {
    /// Where corrections of this kind are.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Array { .. } => 0,
            Self::Tree { .. } => 1,
            Self::Graph { .. } => 2,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn array(changed_blocks: u64) -> Features {
        Features {
            kind: Kind::Array { dimensions: 1 },
            structures: 1,
            bytes: 64 << 20,
            element_bytes: 8,
            blocks: 2048,
            changed_blocks,
            changed_bytes: changed_blocks * (32 << 10),
            changed_from_file: 0,
            memory_blocks: 2048,
            levels: 2,
        }
    }

    #[test]
    fn structures_of_a_call_are_one_of_the_kind_that_has_changed_most() {
        let tree = Features { kind: Kind::Tree { depth: 9, fanout: 8 }, levels: 3, ..array(100) };
        let both = Features::together([array(7), tree, array(0)]);
        assert_eq!(both.kind, tree.kind);
        assert_eq!((both.structures, both.blocks, both.changed_blocks, both.levels), (3, 3 * 2048, 107, 3));
        assert_eq!(both.memory_blocks, 3 * 2048);
        assert_eq!(Features::together([]).structures, 0);
        assert_eq!(Features::together([tree]), tree);
    }

    #[test]
    fn every_attribute_is_a_number_however_odd_the_structure() {
        let odd = Features {
            kind: Kind::Graph { degree: f64::INFINITY },
            bytes: u64::MAX,
            blocks: 0,
            structures: u64::MAX,
            ..array(u64::MAX >> 20)
        };
        for degree in [f64::INFINITY, f64::NAN, -5.0] {
            let odd = Features { kind: Kind::Graph { degree }, ..odd };
            assert!(odd.values().iter().all(|value| value.is_finite()), "{degree}");
        }
        let twice = Features::together([odd, odd]);
        assert_eq!(twice.structures, u64::MAX);
    }
}
