//! A simulated shared file system that guarantees no more than `Medium` says, and sometimes less.
//! Every process sees names, lengths and bytes late, and in an order of its own.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    io,
    rc::Rc,
    time::Duration,
};

use fastrand::Rng;

use crate::medium::Medium;

/// The behaviour of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whoever opens a file or the directory sees what was synced before. The default of NFS.
    CloseToOpen,
    /// Old names, lengths and bytes may be visible for some seconds longer.
    Late,
    /// Like `CloseToOpen`, but some writes and syncs fail, and may have had an effect or not.
    Failing,
}

/// How long a client caches files, and names, at most.
const REMEMBERED: Duration = Duration::from_secs(3);
const NAMES_REMEMBERED: Duration = Duration::from_secs(60);
/// Data that is not synced reaches the server within this time, piece by piece in any order.
const WRITTEN_BACK: Duration = Duration::from_secs(30);
/// How long the lock of a killed process lasts at most.
const LEASE: Duration = Duration::from_secs(2);

pub(super) struct World {
    pub(super) kind: Kind,
    pub(super) now: Duration,
    pub(super) rng: Rng,
    names: BTreeMap<String, usize>,
    files: Vec<Inode>,
    clients: HashMap<u32, Client>,
}

/// A file on the server.
#[derive(Default)]
struct Inode {
    /// What was written: the time at which it is visible, the offset, and the bytes.
    pieces: Vec<(Duration, u64, Vec<u8>)>,
    /// The end of the time for which its lock is held.
    held_until: Option<Duration>,
}

/// The cache of one machine.
#[derive(Default)]
struct Client {
    names: HashMap<String, (Duration, Option<usize>)>,
    /// By file: when the server was last asked for it.
    asked: HashMap<usize, Duration>,
}

impl World {
    pub(super) fn new(kind: Kind, seed: u64) -> Rc<RefCell<Self>> {
        let rng = Rng::with_seed(seed);
        let (names, files, clients) = (BTreeMap::new(), Vec::new(), HashMap::new());
        Rc::new(RefCell::new(Self { kind, now: Duration::ZERO, rng, names, files, clients }))
    }

    /// The size of all files in the directory.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |file: &usize| self.files[*file].pieces.iter().map(|(_, _, bytes)| bytes.len()).sum::<usize>();
        self.names.values().map(bytes).sum()
    }

    fn within(&mut self, limit: Duration) -> Duration {
        limit.mul_f64(self.rng.f64())
    }

    /// Whether a client asks the server again, although it may still use its cache.
    fn asks_again(&mut self, until: Duration) -> bool {
        self.kind != Kind::Late || self.now >= until || self.rng.u8(..3) == 0
    }

    /// The file that a name leads to, as a machine sees it.
    fn find(&mut self, client: u32, name: &str) -> Option<usize> {
        let now = self.now;
        if let Some(&(at, file)) = self.clients.entry(client).or_default().names.get(name)
            && now < at + NAMES_REMEMBERED
        {
            return file;
        }
        let file = self.names.get(name).copied();
        self.clients.entry(client).or_default().names.insert(name.to_owned(), (now, file));
        file
    }

    fn add(&mut self, name: &str) -> usize {
        self.files.push(Inode::default());
        self.names.insert(name.to_owned(), self.files.len() - 1);
        self.files.len() - 1
    }

    fn fails(&mut self) -> bool {
        self.kind == Kind::Failing && self.rng.u8(..12) == 0
    }

    fn forget(&mut self, client: u32, name: &str) {
        self.clients.entry(client).or_default().names.remove(name);
    }
}

/// The directory as one process sees it.
#[derive(Clone)]
pub(super) struct Sim {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) client: u32,
}

/// An open file, with the content of the moment at which it was opened.
pub(super) struct SimFile {
    inode: usize,
    seen_at: Duration,
    /// Bytes that still read as zeros.
    blank: std::ops::Range<u64>,
}

/// A held lock.
pub(super) struct SimAlive {
    world: Rc<RefCell<World>>,
    inode: usize,
}

impl Drop for SimAlive {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        let lease = if world.rng.bool() { Duration::ZERO } else { world.within(LEASE) };
        let until = world.now + lease;
        world.files[self.inode].held_until = Some(until);
    }
}

fn failed<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::StorageFull, "it did not work"))
}

impl Medium for Sim {
    type File = SimFile;
    type Alive = SimAlive;
    type Watch = usize;

    fn refresh(&self) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        let names: Vec<(String, Duration)> = {
            let client = world.clients.entry(self.client).or_default();
            client.names.iter().map(|(name, (at, _))| (name.clone(), *at)).collect()
        };
        for (name, at) in names {
            if world.asks_again(at + NAMES_REMEMBERED) {
                world.forget(self.client, &name);
            }
        }
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.world.borrow().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<SimFile> {
        let mut world = self.world.borrow_mut();
        let inode = world.add(name);
        world.forget(self.client, name);
        Ok(SimFile { inode, seen_at: world.now, blank: 0..0 })
    }

    fn open(&self, name: &str) -> io::Result<Option<SimFile>> {
        let mut world = self.world.borrow_mut();
        let Some(inode) = world.find(self.client, name) else { return Ok(None) };
        if !world.names.values().any(|&other| other == inode) && world.rng.bool() {
            // The file was removed or replaced, and the server reports that.
            world.forget(self.client, name);
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        let asked = world.clients.entry(self.client).or_default().asked.get(&inode).copied();
        let seen_at = match asked {
            Some(asked) if !world.asks_again(asked + REMEMBERED) => asked,
            _ => world.now,
        };
        world.clients.entry(self.client).or_default().asked.insert(inode, seen_at);
        let blank = if world.kind == Kind::Late && world.rng.u8(..4) == 0 {
            let from = world.rng.u64(..4000);
            from..from + world.rng.u64(1..4000)
        } else {
            0..0
        };
        Ok(Some(SimFile { inode, seen_at, blank }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        let inode = world.names.remove(from).unwrap();
        world.names.insert(to.to_owned(), inode);
        world.forget(self.client, from);
        world.forget(self.client, to);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        world.names.remove(name);
        world.forget(self.client, name);
        Ok(())
    }

    fn write_at(&self, file: &SimFile, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        let fails = world.fails();
        // Pieces reach the server in any order.
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(world.rng.usize(1..=rest.len()));
            let arrives = world.now + world.within(WRITTEN_BACK);
            if !fails || world.rng.bool() {
                world.files[file.inode].pieces.push((arrives, at, piece.to_vec()));
            }
            (at, rest) = (at + piece.len() as u64, others);
        }
        if fails { failed() } else { Ok(()) }
    }

    fn sync(&self, file: &SimFile) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        let (now, fails) = (world.now, world.fails());
        let mut rng = world.rng.fork();
        for (arrives, _, _) in &mut world.files[file.inode].pieces {
            if !fails || rng.bool() {
                *arrives = (*arrives).min(now);
            }
        }
        if fails { failed() } else { Ok(()) }
    }

    fn read_at(&self, file: &SimFile, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let world = self.world.borrow();
        let there = world.files[file.inode].pieces.iter().filter(|(arrives, _, _)| *arrives <= file.seen_at);
        let end = there.clone().map(|(_, at, bytes)| at + bytes.len() as u64).max().unwrap_or(0);
        let count = end.saturating_sub(at).min(bytes.len() as u64) as usize;
        bytes[..count].fill(0);
        for (_, piece_at, piece) in there {
            let from = at.max(*piece_at);
            let to = (at + count as u64).min(piece_at + piece.len() as u64);
            if from < to {
                let piece = &piece[(from - piece_at) as usize..(to - piece_at) as usize];
                bytes[(from - at) as usize..(to - at) as usize].copy_from_slice(piece);
            }
        }
        for byte in file.blank.clone().filter(|byte| (at..at + count as u64).contains(byte)) {
            bytes[(byte - at) as usize] = 0;
        }
        Ok(count)
    }

    fn hold(&self, name: &str) -> io::Result<Option<SimAlive>> {
        let mut world = self.world.borrow_mut();
        let inode = world.names.get(name).copied();
        let inode = inode.unwrap_or_else(|| world.add(name));
        if world.files[inode].held_until.is_some_and(|until| until > world.now) {
            return Ok(None);
        }
        world.files[inode].held_until = Some(Duration::MAX);
        Ok(Some(SimAlive { world: Rc::clone(&self.world), inode }))
    }

    fn watch(&self, name: &str) -> io::Result<Option<usize>> {
        Ok(self.world.borrow().names.get(name).copied())
    }

    fn is_alive(&self, watch: &usize) -> io::Result<bool> {
        let world = self.world.borrow();
        Ok(world.files[*watch].held_until.is_some_and(|until| until > world.now))
    }
}
