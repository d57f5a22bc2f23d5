//! A pool: opening it, making versions durable, and going back to one.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{SystemTime, UNIX_EPOCH},
};

use outcrop_format::{PAGE_BYTES, POOL_SLOTS, PoolContents, PoolRoot, PoolStructure, check_region_name};
use outcrop_local::Alive;

use crate::{
    Array, Error, Medium, Part, Result, Shape, Versioned, View,
    file::PoolFile,
    medium::Mapped,
    open::{self, Found},
    part::Change,
    table::{Draft, release},
};

/// How a pool is opened.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    versions: u64,
    creates: bool,
}

impl Options {
    /// Keeps so many versions, at least 1 and at most 31.
    pub fn versions(count: u64) -> Self {
        Self { versions: count, creates: true }
    }

    /// Opens only a pool that is there.
    pub fn existing(self) -> Self {
        Self { creates: false, ..self }
    }
}

impl Default for Options {
    /// Keeps two versions.
    fn default() -> Self {
        Self::versions(2)
    }
}

/// How many elements are written when one of them has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    elements: Option<usize>,
}

/// Blocks have about so many bytes by default: as many as a page fault and an entry are cheap for.
const BLOCK_BYTES: usize = 32 << 10;

impl Block {
    /// At least so many elements: rounded up to a power of two, and to whole pages.
    pub fn elements(count: usize) -> Self {
        Self { elements: Some(count) }
    }

    /// The number of bytes of a block.
    fn bytes(self, element_bytes: usize) -> Result<u64> {
        let elements = self.elements.unwrap_or((BLOCK_BYTES / element_bytes).max(1));
        // So many fill whole pages.
        let least = PAGE_BYTES >> element_bytes.trailing_zeros().min(PAGE_BYTES.trailing_zeros());
        let elements = elements.max(least).checked_next_power_of_two();
        let bytes = elements.and_then(|elements| elements.checked_mul(element_bytes));
        let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as usize);
        bytes.map(|bytes| bytes as u64).ok_or_else(|| Error::Misfit(format!("{self:?} is too large")))
    }
}

impl Default for Block {
    /// About 32 KiB.
    fn default() -> Self {
        Self { elements: None }
    }
}

/// A structure of a pool.
pub trait Structure {
    /// Its arrays.
    fn parts(&mut self) -> Vec<&mut Part>;
}

/// What became of a call that persists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persisted {
    /// The number of the version.
    pub version: u64,
    /// How many bytes were written, without the root.
    pub bytes: u64,
}

/// How much room a pool takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The length of the file.
    pub file_bytes: u64,
    /// What versions refer to, and what describes them.
    pub used_bytes: u64,
}

/// Structures whose versions are durable, all at once. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Shared>);

/// What the clones of a pool, its structures and its views share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    versions_max: u64,
    /// Held until the last of them is dropped.
    _lock: Option<Alive>,
}

/// A structure that is open.
pub(crate) struct Opened {
    shared: Arc<Shared>,
}

pub(crate) struct State {
    pub(crate) file: PoolFile,
    nonce: [u8; 16],
    /// Those that exist, oldest first.
    pub(crate) versions: Vec<Held>,
    /// Those that no longer exist in the file, and that views read.
    lingering: Vec<Held>,
    /// What the working version was when it was last durable.
    base: Arc<PoolContents>,
    /// The highest number that a version has had, and the `oldest` that it named.
    newest: u64,
    oldest: u64,
    opened: BTreeMap<String, Weak<Opened>>,
    skipped: Vec<(u64, String)>,
}

/// A version that exists.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) root: PoolRoot,
    pub(crate) contents: Arc<PoolContents>,
    /// Views have clones of it.
    pub(crate) pin: Arc<()>,
}

impl Pool {
    /// Opens a pool, or creates it if there is no such file.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let location = path.display().to_string();
        let failed = |attempt| {
            let location = location.clone();
            move |source| Error::File { attempt, location, source }
        };
        if !options.creates && std::fs::metadata(path).map_err(failed("open"))?.len() == 0 {
            return Err(Error::Wrong { location, problem: "it is empty".to_owned() });
        }
        let lock = Alive::hold(path).map_err(failed("open"))?;
        let lock = lock.ok_or_else(|| Error::InUse { location: location.clone() })?;
        let file = File::options().read(true).write(true).open(path).map_err(failed("open"))?;
        let medium = Mapped::open(&file, true).map_err(failed("map"))?;
        Self::open_with(Box::new(medium), location, options, Some(lock))
    }

    /// Opens a pool on another medium. Nobody else may use it.
    pub fn on(medium: impl Medium + 'static, options: Options) -> Result<Self> {
        Self::open_with(Box::new(medium), "on a medium".to_owned(), options, None)
    }

    fn open_with(medium: Box<dyn Medium>, location: String, options: Options, lock: Option<Alive>) -> Result<Self> {
        if !(1..POOL_SLOTS).contains(&options.versions) {
            let problem = format!("a pool keeps 1 to {} versions, not {}", POOL_SLOTS - 1, options.versions);
            return Err(Error::Misfit(problem));
        }
        let Found { file, nonce, versions, newest, oldest, skipped } = open::open(medium, location)?;
        let base = versions.last().map_or_else(Arc::default, |held| Arc::clone(&held.contents));
        let (lingering, opened) = (Vec::new(), BTreeMap::new());
        let state = State { file, nonce, versions, lingering, base, newest, oldest, opened, skipped };
        Ok(Self(Arc::new(Shared { state: Mutex::new(state), versions_max: options.versions, _lock: lock })))
    }

    /// Opens an array, with its elements as they are in the newest version, or in the one that was
    /// restored. One that is not there is made, and has zeros.
    pub fn array<T: Versioned>(&self, name: &str, shape: impl Into<Shape>, block: Block) -> Result<Array<T>> {
        let shape = shape.into();
        Ok(Array::new(self.part(name, T::LAYOUT, size_of::<T>(), shape.0, block)?))
    }

    pub(crate) fn part(
        &self,
        name: &str,
        layout: u64,
        element_bytes: usize,
        shape: [u64; 3],
        block: Block,
    ) -> Result<Part> {
        check_region_name(name).map_err(|error| Error::Misfit(error.to_string()))?;
        let too_large = || Error::Misfit(format!("\"{name}\" is too large"));
        let elements = shape.iter().try_fold(1u64, |all, count| all.checked_mul(*count)).ok_or_else(too_large)?;
        let bytes = elements.checked_mul(element_bytes as u64).filter(|bytes| *bytes <= isize::MAX as u64 / 2);
        bytes.ok_or_else(too_large)?;
        let mut state = self.0.state();
        if state.opened.get(name).is_some_and(|opened| opened.strong_count() > 0) {
            return Err(Error::Misfit(format!("\"{name}\" is open already; drop it first")));
        }
        let opened = Arc::new(Opened { shared: Arc::clone(&self.0) });
        let base = Arc::clone(&state.base);
        let known = base.find(name);
        let described = PoolStructure {
            name: name.to_owned(),
            layout,
            element_bytes: u32::try_from(element_bytes).map_err(|_| too_large())?,
            shape,
            block_bytes: known.map_or_else(|| block.bytes(element_bytes), |known| Ok(known.block_bytes))?,
            state: Vec::new(),
            levels: 0,
            top: outcrop_format::PoolEntry::ZEROS,
        };
        if let Some(known) = known {
            check_same(&described, known)?;
        }
        let mut part = Part::new(described, Arc::clone(&opened))?;
        if let Some(known) = known {
            let loaded = part.load(&state.file, known)?;
            part.become_loaded(loaded);
        }
        state.opened.insert(name.to_owned(), Arc::downgrade(&opened));
        Ok(part)
    }

    /// Makes a version of all structures durable, and gives its number. All structures that are
    /// open are to be named; those that are not open stay as they were.
    ///
    /// If it fails, the newest version is the one that was, and the structures are as they are.
    pub fn persist(&self, structures: &mut [&mut dyn Structure]) -> Result<u64> {
        self.persist_counted(structures).map(|persisted| persisted.version)
    }

    /// As [`persist`](Self::persist), and says how much was written.
    pub fn persist_counted(&self, structures: &mut [&mut dyn Structure]) -> Result<Persisted> {
        let mut parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts()).collect();
        let mut state = self.0.state();
        self.check_all(&state, &parts)?;
        state.persist(&mut parts, self.0.versions_max)
    }

    /// Has all structures be as in a version. What was not persisted is lost. All structures that
    /// are open are to be named.
    ///
    /// Later versions stay readable until they are too many; the next version follows the newest.
    pub fn restore(&self, version: u64, structures: &mut [&mut dyn Structure]) -> Result<()> {
        let mut parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts()).collect();
        let mut state = self.0.state();
        self.check_all(&state, &parts)?;
        let contents = Arc::clone(&state.held(version)?.contents);
        let load = |part: &&mut Part| {
            let name = &part.described.name;
            let known = contents.find(name);
            let known = known.ok_or_else(|| Error::Misfit(format!("version {version} has no \"{name}\"")))?;
            part.load(&state.file, known)
        };
        let loaded = parts.iter().map(load).collect::<Result<Vec<_>>>()?;
        parts.iter_mut().zip(loaded).for_each(|(part, loaded)| part.become_loaded(loaded));
        state.base = contents;
        Ok(())
    }

    /// A version, to be read while the program goes on. Its pages stay until the view is dropped.
    pub fn view(&self, version: u64) -> Result<View> {
        let held = self.0.state().held(version)?.clone();
        Ok(View { shared: Arc::clone(&self.0), held })
    }

    /// The versions that exist, oldest first.
    pub fn versions(&self) -> Vec<u64> {
        self.0.state().versions.iter().map(|held| held.root.version).collect()
    }

    /// Versions that were found damaged when the pool was opened, and why. They no longer exist.
    pub fn skipped(&self) -> Vec<(u64, String)> {
        self.0.state().skipped.clone()
    }

    /// How much room the pool takes.
    pub fn usage(&self) -> Usage {
        let state = self.0.state();
        let page = PAGE_BYTES as u64;
        Usage { file_bytes: state.file.medium.bytes(), used_bytes: state.file.space.used_pages() * page }
    }

    /// That these are the structures that are open, each once.
    fn check_all(&self, state: &State, parts: &[&mut Part]) -> Result<()> {
        if std::thread::panicking() {
            return Err(Error::Misfit(
                "a program that panics may be in the middle of an update; nothing is persisted".to_owned(),
            ));
        }
        let mut names = Vec::new();
        for part in parts {
            let name = part.described.name.as_str();
            if !Arc::ptr_eq(&part.opened.shared, &self.0) {
                return Err(Error::Misfit(format!("\"{name}\" belongs to another pool")));
            }
            names.push(name);
        }
        let open = state.opened.iter().filter(|(_, opened)| opened.strong_count() > 0);
        let missing = open.map(|(name, _)| name.as_str()).find(|name| !names.contains(name));
        match missing {
            Some(name) => {
                Err(Error::Misfit(format!("\"{name}\" is open and was not named: a version has all structures")))
            }
            None => Ok(()),
        }
    }
}

impl State {
    pub(crate) fn held(&self, version: u64) -> Result<&Held> {
        let found = self.versions.iter().find(|held| held.root.version == version);
        found.ok_or_else(|| Error::NoVersion {
            location: self.file.location.clone(),
            version,
            versions: self.versions.iter().map(|held| held.root.version).collect(),
        })
    }

    fn persist(&mut self, parts: &mut [&mut Part], versions_max: u64) -> Result<Persisted> {
        if self.file.is_poisoned {
            return Err(Error::Poisoned { location: self.file.location.clone() });
        }
        self.free_unread();
        let version = self.newest + 1;
        let (nonce, oldest) = (self.nonce, self.oldest.max((version + 1).saturating_sub(versions_max)).max(1));
        let mut draft = Draft::new(&mut self.file);
        let changes = parts.iter_mut().map(|part| part.draft(&mut draft)).collect::<Result<Vec<Change>>>()?;
        let mut contents = PoolContents::default();
        contents.structures.extend(changes.iter().map(|change| change.entry().clone()));
        for carried in
            self.base.structures.iter().filter(|it| changes.iter().all(|change| change.entry().name != it.name))
        {
            draft.share(carried.top);
            contents.structures.push(carried.clone());
        }
        contents.structures.sort_by(|a, b| a.name.cmp(&b.name));
        let bytes = contents.encode().map_err(|error| Error::Misfit(error.to_string()))?;
        let at = draft.write(&bytes)?;
        let root = PoolRoot {
            nonce,
            version,
            oldest,
            saved_at_unix_ns: now_unix_ns(),
            contents_page: at.page(),
            contents_bytes: bytes.len() as u64,
            contents_check: at.check(),
        };
        draft.flush()?;
        draft.write_root(open::slot(version), &root.encode())?;
        let bytes = draft.bytes();
        draft.keep();
        parts.iter_mut().zip(changes).for_each(|(part, change)| part.keep(change));
        (self.newest, self.oldest) = (version, oldest);
        self.base = Arc::new(contents);
        self.versions.push(Held { root, contents: Arc::clone(&self.base), pin: Arc::default() });
        let kept = self.versions.partition_point(|held| held.root.version < oldest);
        self.lingering.extend(self.versions.drain(..kept));
        self.free_unread();
        Ok(Persisted { version, bytes })
    }

    /// Frees the pages of versions that no longer exist and that nobody reads.
    fn free_unread(&mut self) {
        let is_read = |held: &Held| Arc::strong_count(&held.pin) > 1;
        let (stay, free): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.lingering).into_iter().partition(is_read);
        self.lingering = stay;
        for held in free {
            for structure in &held.contents.structures {
                // What cannot be read now stays in use until the pool is opened again.
                let _ = release(&mut self.file, structure.top, structure.levels);
            }
            self.file.space.release(held.root.contents_page);
        }
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("location", &self.0.state().file.location).finish_non_exhaustive()
    }
}

/// That a structure of the pool is what the program takes it for.
pub(crate) fn check_same(expected: &PoolStructure, found: &PoolStructure) -> Result<()> {
    let name = &found.name;
    if (expected.layout, expected.element_bytes) != (found.layout, found.element_bytes) {
        let problem = format!(
            "the elements of \"{name}\" have another layout ({} bytes each) than this program's ({} bytes each): use the type \
             that it was made with, or another name",
            found.element_bytes, expected.element_bytes
        );
        return Err(Error::Misfit(problem));
    }
    if expected.shape != found.shape {
        let problem = format!("\"{name}\" has the shape {:?} in the pool, not {:?}", found.shape, expected.shape);
        return Err(Error::Misfit(problem));
    }
    Ok(())
}

fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
