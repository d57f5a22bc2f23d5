//! Replays a log step by step: what is durable, what is not, and the trees that a crash at this
//! point could leave.

use std::{collections::HashSet, fmt::Write};

use crate::{
    Log, Tree,
    log::{Change, Node, Place, What},
    medium::Medium,
    pick::{Fate, Pick},
};

/// The state after some steps of a log.
pub(crate) struct Replay<'log> {
    log: &'log Log,
    position: usize,
    marks: usize,
    /// What has certainly happened.
    medium: Medium,
    /// The changes after that, in order.
    window: Vec<Pending<'log>>,
}

/// A change that may not have happened, or that comes after such a change of the same thing.
struct Pending<'log> {
    change: &'log Change,
    words: &'log str,
    /// The nodes that are not synced yet. Empty if the change has certainly happened.
    unsynced: Vec<Node>,
}

/// Added to the nodes that are not synced when a sync has failed: no later sync can make up for it.
const NEVER: Node = Node::MAX;

impl<'log> Replay<'log> {
    /// The state before the first step.
    pub(crate) fn new(log: &'log Log) -> Self {
        Self { log, position: 0, marks: 0, medium: Medium::new(&log.start), window: Vec::new() }
    }

    pub(crate) fn log(&self) -> &'log Log {
        self.log
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// The marks of the program so far.
    pub(crate) fn marks(&self) -> &'log [String] {
        &self.log.marks[..self.marks]
    }

    /// How many operations may or may not have happened.
    pub(crate) fn undecided(&self) -> usize {
        self.undecided_changes().count()
    }

    /// Whether one of them may have happened in part.
    pub(crate) fn can_be_torn(&self) -> bool {
        self.undecided_changes().any(|pending| pending.change.can_be_torn())
    }

    fn undecided_changes(&self) -> impl Iterator<Item = &Pending<'log>> {
        self.window.iter().filter(|pending| !pending.unsynced.is_empty())
    }

    /// Whether the last step was an operation that may not have happened. It is then the last of
    /// those.
    pub(crate) fn has_new_operation(&self) -> bool {
        self.position > 0 && matches!(self.log.steps[self.position - 1].what, What::Change(_))
    }

    /// Takes the next step, if there is one.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(step) = self.log.steps.get(self.position) else { return false };
        self.position += 1;
        match &step.what {
            What::Mark => self.marks += 1,
            What::Change(change) => {
                self.medium.prepare(change);
                self.window.push(Pending { change, words: &step.words, unsynced: change.synced_by() });
            }
            What::SyncFailed(node) => {
                for pending in self.window.iter_mut().filter(|pending| pending.unsynced.contains(node)) {
                    pending.unsynced.push(NEVER);
                }
            }
            What::Sync(node) => {
                for pending in &mut self.window {
                    pending.unsynced.retain(|unsynced| unsynced != node);
                }
                self.settle();
            }
        }
        true
    }

    /// Applies changes that have certainly happened, unless an earlier change of the same thing is
    /// undecided.
    fn settle(&mut self) {
        let mut open: HashSet<Place<'log>> = HashSet::new();
        for pending in std::mem::take(&mut self.window) {
            let places = pending.change.places();
            if pending.unsynced.is_empty() && !places.iter().any(|place| open.contains(place)) {
                self.medium.apply(pending.change, Fate::Whole);
            } else {
                open.extend(places);
                self.window.push(pending);
            }
        }
        // Files that no name can lead to any more need not be kept.
        let mut named: HashSet<Node> = self.window.iter().filter_map(|pending| pending.change.named()).collect();
        named.extend(self.medium.named());
        self.window.retain(|pending| pending.change.file().is_none_or(|file| named.contains(&file)));
        self.medium.keep(&named);
    }

    /// Every change of the window, with its fate.
    fn fates(&self, pick: Pick) -> impl Iterator<Item = (&Pending<'log>, Fate)> {
        let mut fates = pick.fates(self.undecided_changes().map(|pending| pending.change.can_be_torn())).into_iter();
        self.window.iter().map(move |pending| {
            let is_certain = pending.unsynced.is_empty();
            (pending, if is_certain { Fate::Whole } else { fates.next().expect("a fate for each undecided change") })
        })
    }

    /// The tree that a crash leaves with this choice.
    pub(crate) fn tree(&self, pick: Pick) -> Tree {
        let mut medium = self.medium.clone();
        let (bytes, names): (Vec<_>, Vec<_>) =
            self.fates(pick).partition(|(pending, _)| pending.change.file().is_some());
        for (pending, fate) in names {
            medium.apply(pending.change, fate);
        }
        for (pending, fate) in bytes {
            // A file without a name needs no bytes.
            if pending.change.file().is_some_and(|file| medium.named().any(|node| node == file)) {
                medium.apply(pending.change, fate);
            }
        }
        medium.tree()
    }

    /// The choice, described in words.
    pub(crate) fn story(&self, pick: Pick) -> String {
        let mut story = match self.position.checked_sub(1) {
            None => "crash before the first step".to_owned(),
            Some(last) => format!("crash after step {}: {}", self.position, self.log.steps[last].words),
        };
        for (pending, fate) in self.fates(pick).filter(|(pending, _)| !pending.unsynced.is_empty()) {
            let became = match fate {
                Fate::Lost => "lost",
                Fate::Whole => "happened",
                Fate::Torn(_) => "torn",
            };
            // Writing to a string does not fail.
            let _ = write!(story, "\n  {became:<8}  {}", pending.words);
        }
        story
    }
}
