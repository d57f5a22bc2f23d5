//! A pool: opening it, making versions durable, and going back to one.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use outcrop_cost::Kind;
use outcrop_format::{
    PAGE_BYTES, POOL_ROOT_BYTES, POOL_SLOTS, PoolContents, PoolRoot, PoolStructure, check_region_name,
};
use outcrop_local::Alive;
use outcrop_plan::Rule;

use crate::{
    Array, Emulator, Error, Medium, Nvm, Part, Parts, Result, Shape, Spill, Versioned, View,
    file::PoolFile,
    medium::Mapped,
    nvm::Emulated,
    open::{self, Found},
    part::{BYTES_MAX, Change},
    place,
    table::{Draft, release},
    whole,
    worth::{self, Judge},
};

/// How a pool is opened.
#[derive(Debug, Clone)]
pub struct Options {
    versions: u64,
    creates: bool,
    nvm: Option<Nvm>,
    dram_bytes: Option<u64>,
    bytes_max: Option<u64>,
    pub(crate) rule: Rule,
    pub(crate) mtbf: Duration,
    pub(crate) model: Option<PathBuf>,
}

impl Options {
    /// Keeps so many versions, at least 1 and at most 31.
    pub fn versions(count: u64) -> Self {
        Self {
            versions: count,
            creates: true,
            nvm: None,
            dram_bytes: None,
            bytes_max: None,
            rule: Rule::Exact,
            mtbf: worth::MTBF,
            model: None,
        }
    }

    /// Opens only a pool that is there.
    pub fn existing(self) -> Self {
        Self { creates: false, ..self }
    }

    /// Keeps at most so many bytes of copies in DRAM after each version. The others are read from
    /// the medium, and what has not changed for longest goes first: see
    /// [`Array::place`](crate::Array::place). Default: no limit.
    pub fn dram(self, bytes: u64) -> Self {
        Self { dram_bytes: Some(bytes), ..self }
    }

    /// The pool takes at most so many bytes of the medium. If that is not enough, old versions are
    /// spilled, if [`Pool::spill_to`] says where to; otherwise `persist` fails. Default: no limit.
    pub fn limit(self, bytes: u64) -> Self {
        Self { bytes_max: Some(bytes), ..self }
    }

    /// Has the file behave as non-volatile memory, for experiments: what the pool reads, writes and
    /// flushes takes at least as long as there. See [`Pool::emulator`].
    pub fn emulate(self, nvm: Nvm) -> Self {
        Self { nvm: Some(nvm), ..self }
    }

    /// Before there is a file.
    fn check(&self) -> Result<()> {
        match (1..POOL_SLOTS).contains(&self.versions) {
            true => Ok(()),
            false => {
                let most = POOL_SLOTS - 1;
                Err(Error::Misfit(format!("a pool keeps 1 to {most} versions, not {}", self.versions)))
            }
        }
    }

    /// When [`Pool::persist_if_worth_it`] persists. Default: [`Rule::Exact`], the optimum for
    /// failures that come at random.
    pub fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// The mean time between the failures that the rule reckons with. Default: 24 hours.
    pub fn mtbf(self, mtbf: Duration) -> Self {
        Self { mtbf, ..self }
    }

    /// A model of what persisting takes, as `outcrop model train` writes it. Default: one that was
    /// trained elsewhere. Both are corrected by what calls really take.
    pub fn model(self, path: impl Into<PathBuf>) -> Self {
        Self { model: Some(path.into()), ..self }
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
        if element_bytes == 0 {
            return Err(Error::Misfit("elements of a pool have at least one byte".to_owned()));
        }
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
    /// Its arrays. A structure of the program that has several gives them one
    /// [after the other](Parts::and).
    fn parts(&mut self) -> Parts<'_>;

    /// What the cost model is told of it, besides its arrays.
    fn kind(&self) -> Kind {
        Kind::Array { dimensions: 1 }
    }

    /// Itself, however a program holds it: `#[persistent]` calls this.
    #[doc(hidden)]
    fn as_structure(&mut self) -> &mut dyn Structure
    where
        Self: Sized,
    {
        self
    }
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
    /// What was written to the medium since the pool was opened, roots left out.
    pub written_bytes: u64,
    /// Blocks of which DRAM has copies, as of the last version.
    pub dram_bytes: u64,
    /// Blocks that were written while the medium alone had them, since the pool was opened: each
    /// was copied.
    pub copied_bytes: u64,
    /// How writes are flushed: `msync`, or the instruction that writes cache lines back.
    pub flush: &'static str,
}

/// Structures whose versions are durable, all at once. Clones are the same pool.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Shared>);

/// What the clones of a pool, its structures and its views share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    options: Options,
    nvm: Option<Emulator>,
    /// Held until the last of them is dropped.
    lock: Option<Alive>,
}

/// A structure that is open.
pub(crate) struct Opened {
    shared: Arc<Shared>,
}

impl Opened {
    /// A structure of a pool.
    pub(crate) fn of(pool: &Pool) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(&pool.0) })
    }
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
    pub(crate) spill: Option<Arc<dyn Spill>>,
    /// The last version that was spilled.
    pub(crate) spilled: u64,
    /// See [`Usage`].
    written_bytes: u64,
    dram_bytes: u64,
    copied_bytes: u64,
    pub(crate) judge: Judge,
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
        options.check()?;
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
        options.check()?;
        let nvm = options.nvm.map(Emulator::new);
        let medium: Box<dyn Medium> = match &nvm {
            Some(nvm) => Box::new(Emulated { medium, nvm: nvm.clone() }),
            None => medium,
        };
        let judge = Judge::new(&options)?;
        let Found { file, nonce, versions, newest, oldest, skipped } = open::open(medium, location, options.bytes_max)?;
        let base = versions.last().map_or_else(Arc::default, |held| Arc::clone(&held.contents));
        let (lingering, opened) = (Vec::new(), BTreeMap::new());
        let (spill, spilled, written_bytes, dram_bytes, copied_bytes) = (None, 0, 0, 0, 0);
        let state = State {
            file,
            nonce,
            versions,
            lingering,
            base,
            newest,
            oldest,
            opened,
            skipped,
            spill,
            spilled,
            written_bytes,
            dram_bytes,
            copied_bytes,
            judge,
        };
        Ok(Self(Arc::new(Shared { state: Mutex::new(state), options, nvm, lock })))
    }

    /// Opens an array, with its elements as they are in the newest version, or in the one that was
    /// restored. One that is not there is made, and has zeros.
    pub fn array<T: Versioned>(&self, name: &str, shape: impl Into<Shape>, block: Block) -> Result<Array<T>> {
        let shape = shape.into();
        Ok(Array::new(self.part::<T>(name, Some(shape.0), block, &[])?))
    }

    /// A part of a structure; without a shape, it has as many elements as it has. Its state, if
    /// any, begins with its kind, and is that of the version if there is one.
    pub(crate) fn part<T: Versioned>(
        &self,
        name: &str,
        shape: Option<[u64; 3]>,
        block: Block,
        kind: &[u8],
    ) -> Result<Part> {
        self.part_of(name, (T::LAYOUT, size_of::<T>()), shape, block, kind)
    }

    /// The same for elements with a layout and a length.
    pub(crate) fn part_of(
        &self,
        name: &str,
        (layout, element_bytes): (u64, usize),
        shape: Option<[u64; 3]>,
        block: Block,
        kind: &[u8],
    ) -> Result<Part> {
        check_region_name(name).map_err(|error| Error::Misfit(error.to_string()))?;
        let too_large = || Error::Misfit(format!("\"{name}\" is too large"));
        let mut state = self.0.owned_state()?;
        if state.opened.get(name).is_some_and(|opened| opened.strong_count() > 0) {
            return Err(Error::Misfit(format!("\"{name}\" is open already; drop it first")));
        }
        let opened = Opened::of(self);
        let base = Arc::clone(&state.base);
        let known = base.find(name);
        let shape = shape.or(known.map(|known| known.shape)).unwrap_or([0, 1, 1]);
        let elements = shape.iter().try_fold(1u64, |all, count| all.checked_mul(*count)).ok_or_else(too_large)?;
        let bytes = elements.checked_mul(element_bytes as u64).filter(|bytes| *bytes <= BYTES_MAX as u64);
        bytes.ok_or_else(too_large)?;
        let described = PoolStructure {
            name: name.to_owned(),
            layout,
            element_bytes: u32::try_from(element_bytes).map_err(|_| too_large())?,
            shape,
            block_bytes: known.map_or_else(|| block.bytes(element_bytes), |known| Ok(known.block_bytes))?,
            state: kind.to_vec(),
            levels: 0,
            top: outcrop_format::PoolEntry::ZEROS,
        };
        if let Some(known) = known {
            check_same(&described, known)?;
        }
        // Elements are marked without a comparison, by a shift.
        if !(described.block_bytes / u64::from(described.element_bytes).max(1)).is_power_of_two() {
            let problem = format!("the blocks of \"{name}\" have a number of elements that is no power of two");
            return Err(Error::Misfit(problem));
        }
        let mut part = Part::new(described, Arc::clone(&opened))?;
        if let Some(known) = known {
            let loaded = part.load(&state.file, known)?;
            part.become_loaded(loaded, &state.file);
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
        self.persist_after(structures, Duration::ZERO)
    }

    /// The same after so much time that finding out what has changed took: a version costs that,
    /// too.
    #[doc(hidden)]
    pub fn persist_after(&self, structures: &mut [&mut dyn Structure], before: Duration) -> Result<Persisted> {
        let features = worth::features(structures);
        let mut parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts().0).collect();
        loop {
            let mut state = self.0.owned_state()?;
            self.check_all(&state, &parts)?;
            self.check_named(&state)?;
            let start = state.judge.now();
            let persisted = state.persist(&mut parts, &self.0.options);
            if persisted.is_ok() {
                state.judge.persisted(start, before, &features);
            }
            drop(state);
            match persisted {
                Err(full @ Error::Full { .. }) => self.make_room(full)?,
                persisted => return persisted,
            }
        }
    }

    /// Has all structures be as in a version. What was not persisted is lost. All structures that
    /// are open are to be named.
    ///
    /// Later versions stay readable until they are too many; the next version follows the newest.
    pub fn restore(&self, version: u64, structures: &mut [&mut dyn Structure]) -> Result<()> {
        let mut parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts().0).collect();
        let mut state = self.0.owned_state()?;
        self.check_all(&state, &parts)?;
        let contents = Arc::clone(&state.held(version)?.contents);
        let load = |part: &&mut Part| {
            let name = &part.described.name;
            let known = contents.find(name);
            let known = known.ok_or_else(|| Error::Misfit(format!("version {version} has no \"{name}\"")))?;
            let problem = whole::check(&contents, known).err();
            if let Some(problem) = problem {
                return Err(Error::Misfit(format!("\"{name}\" is damaged in version {version}: {problem}")));
            }
            part.load(&state.file, known)
        };
        let loaded = parts.iter().map(load).collect::<Result<Vec<_>>>()?;
        parts.iter_mut().zip(loaded).for_each(|(part, loaded)| part.become_loaded(loaded, &state.file));
        state.base = contents;
        state.judge.restored();
        Ok(())
    }

    /// A version, to be read while the program goes on. Its pages stay until the view is dropped.
    pub fn view(&self, version: u64) -> Result<View> {
        let held = self.0.owned_state()?.held(version)?.clone();
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

    /// The emulated memory, if the pool was opened with [`Options::emulate`]. Blocks that are
    /// mapped are read without a call, and cost nothing there: a program that wants them to
    /// charges for what it reads.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.0.nvm.as_ref()
    }

    /// How much room the pool takes.
    pub fn usage(&self) -> Usage {
        let state = self.0.state();
        let page = PAGE_BYTES as u64;
        Usage {
            file_bytes: state.file.medium.bytes(),
            used_bytes: state.file.space.used_pages() * page,
            written_bytes: state.written_bytes,
            dram_bytes: state.dram_bytes,
            copied_bytes: state.copied_bytes,
            flush: state.file.medium.flush_way(),
        }
    }

    /// That the file still has a name, if it was opened by one: otherwise it ends with the process.
    fn check_named(&self, state: &State) -> Result<()> {
        let Some(file) = state.file.descriptor().filter(|_| self.0.lock.is_some()) else { return Ok(()) };
        let stat = rustix::fs::fstat(file).map_err(|errno| state.file.failed("look at", errno.into()))?;
        match stat.st_nlink {
            0 => {
                let lost = "its file was removed or replaced while it was open, so a version would be lost with this \
                            process; copy what is needed from here to a new pool";
                Err(state.file.failed("persist to", std::io::Error::new(std::io::ErrorKind::NotFound, lost)))
            }
            _ => Ok(()),
        }
    }

    /// That these are the structures that are open, each once.
    pub(crate) fn check_all(&self, state: &State, parts: &[&mut Part]) -> Result<()> {
        if std::thread::panicking() {
            return Err(Error::Misfit(
                "a program that panics may be in the middle of an update; nothing is persisted".to_owned(),
            ));
        }
        let mut names = HashSet::new();
        for part in parts {
            let name = part.described.name.as_str();
            if !Arc::ptr_eq(&part.opened.shared, &self.0) {
                return Err(Error::Misfit(format!("\"{name}\" belongs to another pool")));
            }
            names.insert(name);
        }
        let open = state.opened.iter().filter(|(_, opened)| opened.strong_count() > 0);
        let missing = open.map(|(name, _)| name.as_str()).find(|name| !names.contains(*name));
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

    fn persist(&mut self, parts: &mut [&mut Part], options: &Options) -> Result<Persisted> {
        if self.file.is_poisoned {
            return Err(Error::Poisoned { location: self.file.location.clone() });
        }
        self.free_unread();
        let next = self.newest.checked_add(1).filter(|version| *version < u64::MAX);
        let version = next.ok_or_else(|| {
            let location = &self.file.location;
            Error::Misfit(format!("the pool {location} has had the last number of a version; export it to a new one"))
        })?;
        let (nonce, oldest) = (self.nonce, self.oldest.max((version + 1).saturating_sub(options.versions)).max(1));
        self.file.expected_pages = parts.iter().map(|part| part.marked_pages()).sum();
        let mut draft = Draft::new(&mut self.file);
        let changes = parts.iter_mut().map(|part| part.draft(&mut draft)).collect::<Result<Vec<Change>>>()?;
        let mut contents = PoolContents::default();
        contents.structures.extend(changes.iter().map(|change| change.entry().clone()));
        let names: HashSet<&str> = changes.iter().map(|change| change.entry().name.as_str()).collect();
        for carried in self.base.structures.iter().filter(|it| !names.contains(it.name.as_str())) {
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
        for (part, change) in parts.iter_mut().zip(changes) {
            part.keep(change, &self.file, version);
            self.copied_bytes += std::mem::take(&mut part.placement.copied_bytes);
        }
        self.dram_bytes = place::limit(parts, &self.file, options.dram_bytes);
        self.written_bytes += bytes;
        (self.newest, self.oldest) = (version, oldest);
        self.base = Arc::new(contents);
        self.versions.push(Held { root, contents: Arc::clone(&self.base), pin: Arc::default() });
        let kept = self.versions.partition_point(|held| held.root.version < oldest);
        self.lingering.extend(self.versions.drain(..kept));
        self.free_unread();
        Ok(Persisted { version, bytes })
    }

    /// Makes a version that was copied elsewhere the only one, with its number and its time.
    pub(crate) fn rebuild(&mut self, parts: &mut [&mut Part], root: PoolRoot) -> Result<Held> {
        self.newest = root.version - 1;
        self.persist(parts, &Options::versions(1))?;
        let mut held = self.held(root.version)?.clone();
        held.root.saved_at_unix_ns = root.saved_at_unix_ns;
        Ok(held)
    }

    /// The oldest version that may leave: neither the newest, nor what the structures show, nor one
    /// that somebody reads, which would free nothing.
    pub(crate) fn spillable(&self) -> Option<u64> {
        let (_, older) = self.versions.split_last()?;
        let may_leave = |held: &&Held| Arc::strong_count(&held.pin) == 1 && !Arc::ptr_eq(&held.contents, &self.base);
        older.iter().find(may_leave).map(|held| held.root.version)
    }

    /// Has a version no longer exist, and frees its pages once that is durable.
    pub(crate) fn remove(&mut self, version: u64) -> Result<()> {
        if self.file.is_poisoned {
            return Err(Error::Poisoned { location: self.file.location.clone() });
        }
        let Some(at) = self.versions.iter().position(|held| held.root.version == version) else { return Ok(()) };
        let slot = open::slot(version);
        self.file.write(slot, &[0; POOL_ROOT_BYTES])?;
        self.file.flush(std::slice::from_ref(&(slot..slot + POOL_ROOT_BYTES as u64)))?;
        let held = self.versions.remove(at);
        self.lingering.push(held);
        self.free_unread();
        Ok(())
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
    /// For calls that write, or that rely on what is not written. A forked child has a copy of the
    /// state, which its parent does not know of: both would use the same free pages.
    pub(crate) fn owned_state(&self) -> Result<MutexGuard<'_, State>> {
        match self.lock.as_ref().is_none_or(Alive::is_ours) {
            true => Ok(self.state()),
            false => Err(Error::Misfit(
                "this process was forked by the one that has opened the pool; only that one can use it".to_owned(),
            )),
        }
    }

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
    if expected.kind() != found.kind() {
        let kind = |it: &PoolStructure| match it.kind() {
            Some((kind, 0)) => kind.name().to_owned(),
            Some((kind, _)) => format!("part of a structure ({})", kind.name()),
            None => "structure of another program".to_owned(),
        };
        let problem =
            format!("\"{name}\" in the pool is another kind of structure ({}, not {})", kind(found), kind(expected));
        return Err(Error::Misfit(problem));
    }
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
