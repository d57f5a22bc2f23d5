//! A simulated medium: files and directories, independent of the names that lead to them.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Component, Path},
    sync::Arc,
};

use fastrand::Rng;
use rustix::io::Errno;

use crate::{
    Tree,
    log::{Change, Node, ROOT, Slot},
    pick::Fate,
    tree::Content,
};

/// The unit that a medium writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// Files, directories and names.
#[derive(Clone)]
pub(crate) struct Medium {
    names: BTreeMap<Slot, Node>,
    /// The files, including those without a name. All other nodes are directories.
    files: BTreeMap<Node, Arc<Content>>,
}

impl Medium {
    /// The files of a tree, numbered in the order of their names.
    pub(crate) fn new(tree: &Tree) -> Self {
        let mut medium = Self { names: BTreeMap::new(), files: BTreeMap::new() };
        let mut dirs = BTreeMap::from([("", ROOT)]);
        // A directory comes before its content.
        for (node, (name, content)) in (ROOT + 1..).zip(&tree.nodes) {
            let (dir, base) = name.rsplit_once('/').unwrap_or(("", name));
            medium.names.insert((dirs[dir], base.into()), node);
            match content {
                Some(content) => drop(medium.files.insert(node, content.clone())),
                None => drop(dirs.insert(name, node)),
            }
        }
        medium
    }

    /// Everything that can be reached by a name.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        self.collect(ROOT, "", &mut tree);
        tree
    }

    fn collect(&self, dir: Node, prefix: &str, tree: &mut Tree) {
        for (base, node) in self.entries(dir) {
            let name = format!("{prefix}{base}");
            let content = self.files.get(&node).cloned();
            if content.is_none() {
                self.collect(node, &format!("{name}/"), tree);
            }
            tree.nodes.insert(name, content);
        }
    }

    /// The names in a directory.
    pub(crate) fn entries(&self, dir: Node) -> impl Iterator<Item = (&str, Node)> {
        let first: Slot = (dir, "".into());
        let from_here = self.names.range(first..);
        from_here.take_while(move |((parent, _), _)| *parent == dir).map(|((_, base), node)| (&**base, *node))
    }

    /// The file or directory of a name.
    pub(crate) fn find(&self, name: &str) -> io::Result<Node> {
        self.walk(&parts(name)?)
    }

    /// The directory of a name, which must exist, and the last part of the name, which need not
    /// exist.
    pub(crate) fn slot(&self, name: &str) -> io::Result<Slot> {
        let parts = parts(name)?;
        // The root has no name.
        let (base, above) = parts.split_last().ok_or(Errno::ISDIR)?;
        let dir = self.walk(above)?;
        self.expect_dir(dir)?;
        Ok((dir, (*base).into()))
    }

    fn walk(&self, parts: &[&str]) -> io::Result<Node> {
        parts.iter().try_fold(ROOT, |dir, part| {
            self.expect_dir(dir)?;
            self.at(&(dir, (*part).into())).ok_or(Errno::NOENT.into())
        })
    }

    /// The node that has this name.
    pub(crate) fn at(&self, slot: &Slot) -> Option<Node> {
        self.names.get(slot).copied()
    }

    /// Fails if it is a file.
    pub(crate) fn expect_dir(&self, node: Node) -> io::Result<()> {
        match self.files.contains_key(&node) {
            true => Err(Errno::NOTDIR.into()),
            false => Ok(()),
        }
    }

    /// The bytes of a file; fails if it is a directory.
    pub(crate) fn content(&self, file: Node) -> io::Result<&Arc<Content>> {
        self.files.get(&file).ok_or(Errno::ISDIR.into())
    }

    /// Every node that has a name.
    pub(crate) fn named(&self) -> impl Iterator<Item = Node> {
        self.names.values().copied()
    }

    /// Drops the bytes of all other files.
    pub(crate) fn keep(&mut self, files: &HashSet<Node>) {
        self.files.retain(|file, _| files.contains(file));
    }

    /// Creates the file of a change that names a new one, whether or not it gets its name.
    pub(crate) fn prepare(&mut self, change: &Change) {
        if let Change::Link { node, is_dir: false, .. } = change {
            self.files.insert(*node, Arc::default());
        }
    }

    /// Applies a change, or a part of it.
    pub(crate) fn apply(&mut self, change: &Change, fate: Fate) {
        match change {
            _ if fate == Fate::Lost => {}
            Change::Empty { file } => drop(self.files.insert(*file, Arc::default())),
            Change::Write { file, at, bytes } => {
                let content = Arc::make_mut(self.files.entry(*file).or_default());
                match fate {
                    Fate::Torn(seed) => tear(content, *at, bytes, seed),
                    _ => content.write(*at, bytes),
                }
            }
            Change::Link { slot, node, .. } => drop(self.names.insert(slot.clone(), *node)),
            Change::Unlink { slot } => drop(self.names.remove(slot)),
            Change::Rename { from, to, node } => {
                // If an earlier change of the old name was lost, another file may still have it.
                if self.at(from) == Some(*node) {
                    self.names.remove(from);
                }
                self.names.insert(to.clone(), *node);
            }
        }
    }
}

/// The parts of a name. Fails if it leads out of the tree.
fn parts(name: &str) -> io::Result<Vec<&str>> {
    let part = |component| match component {
        Component::Normal(part) => part.to_str().filter(|part| !part.contains('\0')),
        _ => None,
    };
    let parts: Option<_> = Path::new(name).components().map(part).collect();
    parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{name} leads elsewhere")))
}

/// A torn write: some of its sectors arrive, the first ones or any. The file may have grown for the
/// other sectors too, which are then zero or old bytes of the medium.
fn tear(content: &mut Content, at: usize, bytes: &[u8], seed: u64) {
    let mut random = Rng::with_seed(seed);
    let (end, end_before) = (at + bytes.len(), content.bytes().len());
    let cuts = (at / SECTOR_BYTES + 1..end.div_ceil(SECTOR_BYTES)).map(|sector| sector * SECTOR_BYTES);
    let starts = std::iter::once(at).chain(cuts.clone());
    let mut pieces: Vec<_> = starts.zip(cuts.chain([end])).collect();
    if random.bool() {
        pieces.truncate(random.usize(..pieces.len()));
    } else {
        pieces.retain(|_| random.bool());
    }
    if random.bool() && end > end_before {
        let whole = content.bytes_mut();
        whole.resize(end, 0);
        if random.bool() {
            random.fill(&mut whole[at.max(end_before)..]);
        }
    }
    for (from, to) in pieces {
        content.write(from, &bytes[from - at..to - at]);
    }
}
