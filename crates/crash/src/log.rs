//! The log of all operations on a tree of files, in order.

use std::{fmt, sync::Arc};

use twox_hash::XxHash3_64;

use crate::{
    Tree,
    error::{Error, Result},
    images::{Image, Images, Options},
    pick::ImageId,
    replay::Replay,
};

/// A file or directory, independent of its name: its number in the order of creation. Those of the
/// initial tree come first, the root before all others.
pub(crate) type Node = usize;

/// The root of a tree.
pub(crate) const ROOT: Node = 0;

/// A name in a directory.
pub(crate) type Slot = (Node, Arc<str>);

/// A change that a crash can undo as long as it is not durable.
#[derive(Clone)]
pub(crate) enum Change {
    /// A file is truncated to no bytes.
    Empty { file: Node },
    /// Bytes are written to a file.
    Write { file: Node, at: usize, bytes: Arc<[u8]> },
    /// A new file or directory gets its name.
    Link { slot: Slot, node: Node, is_dir: bool },
    /// A file is renamed, and replaces the file that had the name.
    Rename { from: Slot, to: Slot, node: Node },
    /// A name is removed.
    Unlink { slot: Slot },
}

/// What a change affects. Changes of the same thing keep their order.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
pub(crate) enum Place<'a> {
    Bytes(Node),
    Slot(&'a Slot),
}

impl Change {
    /// What must be synced to make it durable: a file, or one or two directories.
    pub(crate) fn synced_by(&self) -> Vec<Node> {
        match self {
            Self::Empty { file } | Self::Write { file, .. } => vec![*file],
            Self::Link { slot, .. } | Self::Unlink { slot } => vec![slot.0],
            Self::Rename { from, to, .. } if from.0 == to.0 => vec![from.0],
            Self::Rename { from, to, .. } => vec![from.0, to.0],
        }
    }

    /// What it affects.
    pub(crate) fn places(&self) -> [Place<'_>; 2] {
        match self {
            Self::Empty { file } | Self::Write { file, .. } => [Place::Bytes(*file); 2],
            Self::Link { slot, .. } | Self::Unlink { slot } => [Place::Slot(slot); 2],
            Self::Rename { from, to, .. } => [Place::Slot(from), Place::Slot(to)],
        }
    }

    /// The file whose bytes it changes.
    pub(crate) fn file(&self) -> Option<Node> {
        match self {
            Self::Empty { file } | Self::Write { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// The node that gets a name by it.
    pub(crate) fn named(&self) -> Option<Node> {
        match self {
            Self::Link { node, .. } | Self::Rename { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// Whether it can happen in part.
    pub(crate) fn can_be_torn(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

/// One step of a log, with a description.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) what: What,
    pub(crate) words: Arc<str>,
}

/// The kinds of steps.
#[derive(Clone)]
pub(crate) enum What {
    /// A change.
    Change(Change),
    /// The changes of a file or directory so far are durable now.
    Sync(Node),
    /// A sync failed. The changes will never be durable, because the system has dropped them.
    SyncFailed(Node),
    /// A mark of the program.
    Mark,
}

/// All operations on a tree of files, and the marks between them.
#[derive(Clone)]
pub struct Log {
    pub(crate) start: Tree,
    pub(crate) steps: Vec<Step>,
    pub(crate) marks: Vec<String>,
    digest: u32,
}

impl Log {
    pub(crate) fn new(start: Tree, steps: Vec<Step>) -> Self {
        let mut bytes = start.digest().to_le_bytes().to_vec();
        let mut marks = Vec::new();
        for step in &steps {
            bytes.extend_from_slice(step.words.as_bytes());
            match &step.what {
                What::Change(Change::Write { bytes: written, .. }) => {
                    bytes.extend(XxHash3_64::oneshot(written).to_le_bytes());
                }
                What::Mark => marks.push(step.words.to_string()),
                _ => {}
            }
        }
        Self { start, steps, marks, digest: XxHash3_64::oneshot(&bytes) as u32 }
    }

    /// The number of steps, including marks. A crash can come before the first step and after each.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The marks of the program, in order.
    pub fn marks(&self) -> &[String] {
        &self.marks
    }

    /// A digest that distinguishes this log from others, in the names of images.
    pub(crate) fn digest(&self) -> u32 {
        self.digest
    }

    /// The images that a crash could leave. The same log and options give the same images in the
    /// same order.
    pub fn images(&self, options: &Options) -> Images<'_> {
        Images::new(self, options)
    }

    /// Builds one image again.
    pub fn image(&self, id: ImageId) -> Result<Image<'_>> {
        Ok(Image::new(&self.replay(id)?, id))
    }

    /// Describes an image: where the crash came, and what happened to every operation that was not
    /// durable.
    pub fn story(&self, id: ImageId) -> Result<String> {
        Ok(self.replay(id)?.story(id.pick))
    }

    fn replay(&self, id: ImageId) -> Result<Replay<'_>> {
        if id.log != self.digest {
            return Err(Error::OtherLog(id.to_string()));
        }
        let mut replay = Replay::new(self);
        while replay.position() < id.position && replay.advance() {}
        match replay.position() == id.position && id.pick.fits(replay.undecided()) {
            true => Ok(replay),
            false => Err(Error::NoSuchImage(id.to_string())),
        }
    }
}

impl fmt::Debug for Log {
    /// One line for each step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>5}  {}", index + 1, step.words)?;
        }
        Ok(())
    }
}
