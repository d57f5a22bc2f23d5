//! A simulated client: what it does, and what it knows.

use std::{collections::BTreeSet, ops::Range};

use outcrop_format::{NodeFill, NodePart};
use outcrop_grants::{ClientId, Request};

/// The contents of a byte: the number of the write that wrote it, or 0.
pub(super) type Stamp = u32;

/// What a client has asked for.
#[derive(Debug, Clone)]
pub(super) enum Doing {
    Ask,
    Fill {
        fill: NodeFill,
    },
    Read {
        file: usize,
        range: Range<u64>,
    },
    /// `before` is what the file was, and `applied` how many fills there were, when it was asked
    /// for.
    Drain {
        file: Option<usize>,
        before: Vec<Vec<Stamp>>,
        applied: usize,
        cuts: u64,
    },
    Other,
}

/// A write that is not complete.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) id: ClientId,
    pub(super) is_joined: bool,
    /// Files that it has told the present daemon of.
    pub(super) opened: BTreeSet<usize>,
    pub(super) spare: Vec<Range<u64>>,
    pub(super) write: Option<Write>,
    pub(super) pending: Option<(Request, Doing)>,
    /// What it copies from: parts, and what was in them.
    pub(super) reading: Option<(Vec<NodePart>, Vec<Stamp>)>,
}

impl Actor {
    pub(super) fn new(id: ClientId) -> Self {
        Self {
            id,
            is_joined: false,
            opened: BTreeSet::new(),
            spare: Vec::new(),
            write: None,
            pending: None,
            reading: None,
        }
    }

    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.spare.iter().any(|spare| spare.start <= range.start && range.end <= spare.end)
    }

    /// The daemon knows that this part of its memory is filled: what lies before it is gone too.
    pub(super) fn filled(&mut self, range: &Range<u64>) {
        if let Some(position) = self.spare.iter().position(|it| it.start <= range.start && range.end <= it.end) {
            let spare = self.spare.remove(position);
            if range.end < spare.end {
                self.spare.push(range.end..spare.end);
            }
        }
    }
}
