//! What a version costs many ranks, without processes and files: the protocol on files in memory,
//! which count what is done with them, and a clock that this module moves on.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    io,
    rc::Rc,
    time::Duration,
};

use crate::{Error, Result, medium::Medium, pace::Pace, talk::Talk};

/// Many ranks that save versions together.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// The number of ranks.
    pub count: u32,
    /// The number of versions.
    pub versions: u32,
    /// The time that one operation on a file takes: opening, reading, writing, asking for a lock.
    pub operation: Duration,
    /// Each rank has written its part of a version within this time.
    pub spread: Duration,
    /// The shortest and the longest pause of a rank that waits for the messages of others. It
    /// doubles.
    pub listens: (Duration, Duration),
}

/// What one version costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rehearsed {
    /// From when the last rank has its part until all ranks know that all have it.
    pub commit: Duration,
    /// For all ranks together, divided by their number.
    pub mean: Cost,
    /// For the rank for which it is most.
    pub worst: Cost,
}

/// What was done, for one version.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Files that were opened, made, renamed or removed, and locks that were asked for.
    pub metadata: f64,
    /// Files that were read and written.
    pub transfers: f64,
    /// Bytes that were read.
    pub bytes: f64,
}

/// A rank.
struct Member {
    talk: Talk<Counted>,
    pace: Pace,
    pause: Duration,
    heard: u64,
    /// Whether it has said that it has its part of this version.
    has_said: bool,
}

impl Rehearsal {
    /// Carries it out. Always with the same outcome.
    pub fn run(&self) -> Result<Rehearsed> {
        let failure = |source| Error::Files { path: "memory".to_owned(), source };
        let files = Rc::new(RefCell::new(Files::new(self.count)));
        let begin = |rank: u32| {
            let medium = Counted { files: Rc::clone(&files), rank };
            let talk = Talk::begin(medium, rank, self.count, u128::from(rank + 1).to_le_bytes())?;
            let talk = talk.ok_or_else(|| io::Error::other("somebody else is this rank"))?;
            let (pace, pause) = (Pace::default(), self.listens.0);
            Ok(Member { talk, pace, pause, heard: 0, has_said: false })
        };
        let mut members = (0..self.count).map(begin).collect::<io::Result<Vec<_>>>().map_err(failure)?;
        let mut now = Duration::ZERO;
        while !members.iter().all(|member| member.talk.has_met()) {
            now += self.listens.1;
            members.iter_mut().try_for_each(|member| member.talk.look(now).map(drop)).map_err(failure)?;
        }
        // The first version is not counted: all read what was said at the beginning.
        let mut commit = Duration::ZERO;
        for version in 0..=self.versions {
            if version == 1 {
                files.borrow_mut().costs.fill(Cost::default());
                commit = Duration::ZERO;
            }
            let (took, end) = self.version(&mut members, &files, version, now).map_err(failure)?;
            (commit, now) = (commit + took, end);
        }
        let per_version = |cost: &Cost| cost.times(1.0 / f64::from(self.versions.max(1)));
        let costs: Vec<Cost> = files.borrow().costs.iter().map(per_version).collect();
        let sum = costs.iter().fold(Cost::default(), |sum, cost| sum.plus(cost));
        let worst = costs.iter().fold(Cost::default(), |worst, cost| worst.most(cost));
        Ok(Rehearsed { commit: commit / self.versions.max(1), mean: sum.times(1.0 / f64::from(self.count)), worst })
    }

    /// Lets all ranks save one version. Returns how long they wait for each other, and the time of
    /// the end.
    fn version(
        &self,
        members: &mut [Member],
        files: &RefCell<Files>,
        version: u32,
        start: Duration,
    ) -> io::Result<(Duration, Duration)> {
        let others = u64::from(self.count - 1);
        // Numbers that look random, and are the same each time.
        let late = |rank: u32| {
            let number = (u64::from(rank) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ u64::from(version)) >> 40;
            self.spread.mul_f64(number as f64 / f64::from(1 << 24))
        };
        let mut wakes: BinaryHeap<_> = (0..self.count).map(|rank| Reverse((start + late(rank), rank))).collect();
        let last = (0..self.count).map(late).max().unwrap_or_default() + start;
        let mut end = last;
        while let Some(Reverse((now, rank))) = wakes.pop() {
            let member = &mut members[rank as usize];
            let before = files.borrow().costs[rank as usize].operations();
            if !member.has_said {
                member.talk.announce(format!("version {version}").as_bytes())?;
                (member.has_said, member.pause) = (true, self.listens.0);
                member.pace.hurry(now);
            }
            let has_news = member.talk.look(now)?;
            member.heard += member.talk.heard().len() as u64;
            let done = files.borrow().costs[rank as usize].operations() - before;
            let ended = now + self.operation.mul_f64(done);
            member.pace.looked(now, ended, has_news);
            if member.heard == others && member.talk.has_said_all() {
                (member.heard, member.has_said) = (0, false);
                end = end.max(ended);
                continue;
            }
            // The store listens after a pause, and looks if the protocol finds it is time.
            let listens = ended + member.pause;
            member.pause = (member.pause * 2).min(self.listens.1);
            wakes.push(Reverse((member.pace.next().max(listens), rank)));
        }
        Ok((end.saturating_sub(last), end))
    }
}

impl Cost {
    fn operations(&self) -> f64 {
        self.metadata + self.transfers
    }

    fn times(&self, by: f64) -> Self {
        Self { metadata: self.metadata * by, transfers: self.transfers * by, bytes: self.bytes * by }
    }

    fn plus(&self, other: &Self) -> Self {
        let Self { metadata, transfers, bytes } = other;
        Self { metadata: self.metadata + metadata, transfers: self.transfers + transfers, bytes: self.bytes + bytes }
    }

    fn most(&self, other: &Self) -> Self {
        Self {
            metadata: self.metadata.max(other.metadata),
            transfers: self.transfers.max(other.transfers),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// The files of all ranks.
struct Files {
    names: HashMap<String, Rc<RefCell<Vec<u8>>>>,
    /// By rank.
    costs: Vec<Cost>,
}

impl Files {
    fn new(count: u32) -> Self {
        Self { names: HashMap::new(), costs: vec![Cost::default(); count as usize] }
    }
}

/// The directory, as one rank uses it.
struct Counted {
    files: Rc<RefCell<Files>>,
    rank: u32,
}

impl Counted {
    /// Counts an operation.
    fn count(&self, cost: Cost) {
        let costs = &mut self.files.borrow_mut().costs[self.rank as usize];
        *costs = costs.plus(&cost);
    }

    fn metadata(&self) {
        self.count(Cost { metadata: 1.0, ..Cost::default() });
    }

    fn transfer(&self, bytes: usize) {
        self.count(Cost { transfers: 1.0, bytes: bytes as f64, ..Cost::default() });
    }
}

impl Medium for Counted {
    type File = Rc<RefCell<Vec<u8>>>;
    type Alive = ();
    type Watch = ();

    fn refresh(&self) -> io::Result<()> {
        self.metadata();
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.metadata();
        // No rank has left anything, and each asks for its own.
        Ok(Vec::new())
    }

    fn create(&self, name: &str) -> io::Result<Self::File> {
        self.metadata();
        let file = Self::File::default();
        self.files.borrow_mut().names.insert(name.to_owned(), Rc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Option<Self::File>> {
        self.metadata();
        Ok(self.files.borrow().names.get(name).cloned())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.metadata();
        let names = &mut self.files.borrow_mut().names;
        let file = names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.metadata();
        self.files.borrow_mut().names.remove(name);
        Ok(())
    }

    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.transfer(0);
        let (mut file, at) = (file.borrow_mut(), at as usize);
        let end = file.len().max(at + bytes.len());
        file.resize(end, 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self, _file: &Self::File) -> io::Result<()> {
        self.transfer(0);
        Ok(())
    }

    fn read_at(&self, file: &Self::File, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let file = file.borrow();
        let rest = file.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        self.transfer(count);
        Ok(count)
    }

    fn hold(&self, _name: &str) -> io::Result<Option<()>> {
        self.metadata();
        Ok(Some(()))
    }

    fn watch(&self, _name: &str) -> io::Result<Option<()>> {
        self.metadata();
        Ok(Some(()))
    }

    fn is_alive(&self, _watch: &()) -> io::Result<bool> {
        self.metadata();
        Ok(true)
    }
}
