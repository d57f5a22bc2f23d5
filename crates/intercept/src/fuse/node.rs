//! The files and directories that the kernel knows about, each held by a descriptor.
//!
//! A descriptor keeps the real inode from being removed, so an inode number belongs to one node for
//! as long as the node is there. The kernel is told the real number, so that `stat` shows it.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::fs::{FileType, Stat};

use super::content::Content;

/// What the kernel calls the root of a mount.
pub(super) const ROOT: u64 = 1;

/// Numbers from here on are made up: for inodes whose own number is taken.
const MADE_UP: u64 = 1 << 62;

/// Which inode it is: its device and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64, u64);

impl Key {
    pub(super) fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// A file or directory that the kernel knows about.
pub(super) struct Node {
    pub(super) id: u64,
    pub(super) is_regular: bool,
    key: Key,
    descriptor: OwnedFd,
    /// How many times the kernel was told of it. Changes only while the table is locked.
    lookups: AtomicU64,
    content: Mutex<Content>,
    /// A directory that it is in, and its name there.
    place: Mutex<(u64, OsString)>,
    /// It may be setuid, setgid or have capabilities, which a write takes away.
    pub(super) may_be_privileged: AtomicBool,
}

impl Node {
    /// Opened with `O_PATH`.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// A path that leads to the file itself, whatever it is called now.
    pub(super) fn magic_path(&self) -> String {
        format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())
    }

    /// What it is called now, below the mount.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(self.magic_path())
    }

    /// A directory that it is in, and its name there, unless that has changed.
    pub(super) fn place(&self) -> (u64, OsString) {
        self.place.lock().unwrap().clone()
    }

    pub(super) fn set_place(&self, (parent, name): (u64, &OsStr)) {
        *self.place.lock().unwrap() = (parent, name.to_owned());
    }

    pub(super) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// All nodes of a mount.
pub(super) struct Nodes {
    table: RwLock<Table>,
}

struct Table {
    by_id: HashMap<u64, Arc<Node>>,
    /// Those whose id is not their inode number.
    made_up: HashMap<Key, u64>,
    next: u64,
}

impl Nodes {
    pub(super) fn new(root: OwnedFd, stat: &Stat) -> Self {
        let node = new_node(ROOT, root, stat);
        let table =
            Table { made_up: HashMap::from([(node.key, ROOT)]), by_id: HashMap::from([(ROOT, node)]), next: MADE_UP };
        Self { table: RwLock::new(table) }
    }

    /// The node that the kernel calls `id`.
    pub(super) fn get(&self, id: u64) -> io::Result<Arc<Node>> {
        let table = self.table.read().unwrap();
        table.by_id.get(&id).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// The node of this inode, if there is one.
    pub(super) fn find(&self, stat: &Stat) -> Option<Arc<Node>> {
        self.table.read().unwrap().find(Key::of(stat)).cloned()
    }

    /// The node of this inode, if there is one, which the kernel is told of once more.
    pub(super) fn find_again(&self, stat: &Stat) -> Option<Arc<Node>> {
        let table = self.table.read().unwrap();
        let node = table.find(Key::of(stat))?;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Some(node.clone())
    }

    /// The node of the inode that `descriptor` holds, which the kernel is told of once more.
    pub(super) fn add(&self, descriptor: OwnedFd, stat: &Stat, place: (u64, &OsStr)) -> Arc<Node> {
        let mut table = self.table.write().unwrap();
        let key = Key::of(stat);
        let node = match table.find(key) {
            Some(node) => node.clone(),
            None => table.insert(key, descriptor, stat),
        };
        node.set_place(place);
        node.lookups.fetch_add(1, Ordering::Relaxed);
        node
    }

    /// The kernel has forgotten `count` times that it was told of `id`. A file with bytes in memory
    /// stays, because whoever looks it up next has to see them.
    pub(super) fn forget(&self, id: u64, count: u64) {
        let mut table = self.table.write().unwrap();
        let Some(node) = table.by_id.get(&id) else { return };
        let before = node.lookups.fetch_sub(count, Ordering::Relaxed);
        if before == count && id != ROOT {
            table.remove_unused(id);
        }
    }

    /// Removes the node if neither the kernel nor the cache needs it.
    pub(super) fn remove_unused(&self, id: u64) {
        self.table.write().unwrap().remove_unused(id);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.table.read().unwrap().by_id.len()
    }

    /// All nodes of regular files.
    pub(super) fn files(&self) -> Vec<Arc<Node>> {
        self.table.read().unwrap().by_id.values().filter(|node| node.is_regular).cloned().collect()
    }
}

impl Table {
    fn find(&self, key: Key) -> Option<&Arc<Node>> {
        // Almost all have their own number.
        match self.by_id.get(&key.1) {
            Some(node) if node.key == key => Some(node),
            _ => self.made_up.get(&key).map(|id| &self.by_id[id]),
        }
    }

    fn insert(&mut self, key: Key, descriptor: OwnedFd, stat: &Stat) -> Arc<Node> {
        let is_free = key.1 > ROOT && key.1 < MADE_UP && !self.by_id.contains_key(&key.1);
        let id = if is_free { key.1 } else { self.next };
        if !is_free {
            self.next += 1;
            self.made_up.insert(key, id);
        }
        let node = new_node(id, descriptor, stat);
        self.by_id.insert(id, node.clone());
        node
    }

    fn remove_unused(&mut self, id: u64) {
        let Some(node) = self.by_id.get(&id) else { return };
        let is_used = node.lookups.load(Ordering::Relaxed) > 0 || !node.content().settle();
        if !is_used && id != ROOT {
            self.made_up.remove(&node.key);
            self.by_id.remove(&id);
        }
    }
}

fn new_node(id: u64, descriptor: OwnedFd, stat: &Stat) -> Arc<Node> {
    Arc::new(Node {
        id,
        is_regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        key: Key::of(stat),
        descriptor,
        lookups: AtomicU64::new(0),
        content: Mutex::new(Content::default()),
        place: Mutex::default(),
        may_be_privileged: AtomicBool::new(true),
    })
}
