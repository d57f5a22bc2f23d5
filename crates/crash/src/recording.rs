//! Files in memory that record all operations.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::files::{File, FileLock, Files};
use rustix::io::Errno;

use crate::{
    Log, Tree,
    log::{Change, Node, Slot, Step, What},
    medium::Medium,
    pick::Fate,
    tree::BYTES_MAX,
};

/// Files in memory, with a log of every operation that changed or synced something, in order.
///
/// A clone shares the tree and the log.
#[derive(Clone, Default)]
pub struct Recording {
    state: Arc<Mutex<State>>,
}

struct State {
    start: Tree,
    medium: Medium,
    nodes: usize,
    steps: Vec<Step>,
    /// Files that somebody has locked.
    locked: BTreeSet<Node>,
}

impl Recording {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tree with these files, which are durable.
    pub fn from_tree(tree: Tree) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(tree))) }
    }

    /// All files as they are now: what the next process finds after this one was killed.
    pub fn tree(&self) -> Tree {
        self.state().medium.tree()
    }

    /// The log so far.
    pub fn log(&self) -> Log {
        let state = self.state();
        Log::new(state.start.clone(), state.steps.clone())
    }

    /// Puts a mark into the log, such as "version 7 is durable".
    pub fn mark(&self, text: impl Into<String>) {
        self.state().step(What::Mark, text.into());
    }

    pub(crate) fn create_file(&self, name: &str) -> io::Result<RecordedFile> {
        let mut state = self.state();
        let slot = state.medium.slot(name)?;
        let node = match state.medium.at(&slot) {
            None => state.link(slot, false, format!("create {name}")),
            Some(file) => {
                if !state.medium.content(file)?.bytes().is_empty() {
                    state.change(Change::Empty { file }, format!("empty {name}"));
                }
                file
            }
        };
        Ok(self.file(node, name, true))
    }

    pub(crate) fn open_file(&self, name: &str) -> io::Result<RecordedFile> {
        let state = self.state();
        let node = state.medium.find(name)?;
        state.medium.content(node)?;
        Ok(self.file(node, name, false))
    }

    /// A failed sync of a directory: the changes since its last sync may be lost, even if a later
    /// sync succeeds.
    pub(crate) fn fail_sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        let node = state.medium.find(dir)?;
        state.step(What::SyncFailed(node), format!("failed sync of the directory {dir:?}"));
        Ok(())
    }

    fn file(&self, node: Node, name: &str, is_writable: bool) -> RecordedFile {
        RecordedFile { recording: self.clone(), node, name: name.to_owned(), is_writable }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is fine: nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files for Recording {
    fn location(&self) -> String {
        "a recording in memory".to_owned()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let node = state.medium.find(dir)?;
        state.medium.expect_dir(node)?;
        Ok(state.medium.entries(node).map(|(name, _)| name.to_owned()).collect())
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        let slot = state.medium.slot(dir)?;
        match state.medium.at(&slot) {
            Some(node) => state.medium.expect_dir(node).map_err(|_| Errno::EXIST.into()),
            None => {
                state.link(slot, true, format!("make the directory {dir}"));
                Ok(())
            }
        }
    }

    fn create(&self, name: &str, _bytes: u64) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(self.create_file(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let words = format!("rename {from} to {to}");
        let (from, to) = (state.medium.slot(from)?, state.medium.slot(to)?);
        let node = state.medium.at(&from).ok_or(Errno::NOENT)?;
        for file in [Some(node), state.medium.at(&to)].into_iter().flatten() {
            state.medium.content(file)?;
        }
        if from != to {
            state.change(Change::Rename { from, to, node }, words);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        let slot = state.medium.slot(name)?;
        state.medium.content(state.medium.find(name)?)?;
        state.change(Change::Unlink { slot }, format!("remove {name}"));
        Ok(())
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        let (slot, node) = (state.medium.slot(dir)?, state.medium.find(dir)?);
        state.medium.expect_dir(node)?;
        if state.medium.entries(node).next().is_some() {
            return Err(Errno::NOTEMPTY.into());
        }
        state.change(Change::Unlink { slot }, format!("remove the directory {dir}"));
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        let node = state.medium.find(dir)?;
        state.medium.expect_dir(node)?;
        state.step(What::Sync(node), format!("sync the directory {dir:?}"));
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        let mut state = self.state();
        let slot = state.medium.slot(name)?;
        let node = match state.medium.at(&slot) {
            Some(node) => node,
            None => state.link(slot, false, format!("create {name}")),
        };
        state.medium.content(node)?;
        let is_free = state.locked.insert(node);
        Ok(is_free.then(|| FileLock::new(Held { recording: self.clone(), node })))
    }
}

impl State {
    fn new(start: Tree) -> Self {
        let (medium, nodes) = (Medium::new(&start), start.nodes.len() + 1);
        Self { start, medium, nodes, steps: Vec::new(), locked: BTreeSet::new() }
    }

    fn step(&mut self, what: What, words: String) {
        self.steps.push(Step { what, words: words.into() });
    }

    fn change(&mut self, change: Change, words: String) {
        self.medium.prepare(&change);
        self.medium.apply(&change, Fate::Whole);
        self.step(What::Change(change), words);
    }

    /// Creates a file or directory with a name.
    fn link(&mut self, slot: Slot, is_dir: bool, words: String) -> Node {
        let node = self.nodes;
        self.nodes += 1;
        self.change(Change::Link { slot, node, is_dir }, words);
        node
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new(Tree::default())
    }
}

/// One file of a recording.
#[derive(Clone)]
pub(crate) struct RecordedFile {
    recording: Recording,
    node: Node,
    /// Its name when it was opened.
    name: String,
    is_writable: bool,
}

impl RecordedFile {
    /// A failed sync: writes since the last sync may be lost, even if a later sync succeeds.
    pub(crate) fn fail_sync(&self) {
        self.recording.state().step(What::SyncFailed(self.node), format!("failed sync of {}", self.name));
    }
}

impl File for RecordedFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.recording.state().medium.content(self.node)?.bytes().len() as u64)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.is_writable {
            return Err(Errno::BADF.into());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > BYTES_MAX) {
            return Err(Errno::FBIG.into());
        }
        let at = at as usize;
        let words = format!("write {} bytes to {} at {at}", bytes.len(), self.name);
        self.recording.state().change(Change::Write { file: self.node, at, bytes: bytes.into() }, words);
        Ok(())
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let content = self.recording.state().medium.content(self.node)?.clone();
        let found = usize::try_from(at)
            .ok()
            .and_then(|at| Some(at..at.checked_add(bytes.len())?))
            .and_then(|range| content.bytes().get(range))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.recording.state().step(What::Sync(self.node), format!("sync {}", self.name));
        Ok(())
    }
}

/// A held lock.
struct Held {
    recording: Recording,
    node: Node,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.recording.state().locked.remove(&self.node);
    }
}
