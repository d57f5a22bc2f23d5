//! Old versions of a pool in a store.

use std::{
    error::Error as StdError,
    sync::{Mutex, MutexGuard, PoisonError},
};

use outcrop_error::{Error, ErrorKind, Result};
use outcrop_pool::{Described, Spill, Versioned, View, layout};
use outcrop_region::{Element, Part, PartMut};
use outcrop_store::{Reached, Session};

/// A session of a store to which a pool spills its old versions: under the same numbers, with one
/// region for each array, and one that describes all. `outcrop ls`, `show` and `restore` read them,
/// and [`view`](Self::view) gives lists, trees and graphs back.
///
/// The session should have no other versions, and its store should keep all of them.
///
/// ```
/// use outcrop::{Retention, Store, pool::{Block, Options, Pool, SpillStore}};
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// let store = Store::builder().host("16 MiB").dir(directory.join("old"), None).keep(Retention::default()).open()?;
/// let old = std::sync::Arc::new(SpillStore::new(store.session("sim")?));
/// let pool = Pool::open(directory.join("sim.pool"), Options::versions(30).limit(1 << 20))?;
/// pool.spill_to(std::sync::Arc::clone(&old));
/// let mut grid = pool.array::<f64>("grid", 30_000, Block::default())?;
/// for step in 1..=10 {
///     grid[..].fill(f64::from(step));
///     pool.persist(&mut [&mut grid])?;
/// }
/// assert_eq!(*pool.versions().last().unwrap(), 10);
/// assert!(!pool.versions().contains(&2));
/// assert_eq!(old.array::<f64>(2, "grid")?, vec![2.0; 30_000]);
/// # Ok::<(), outcrop::Error>(())
/// ```
pub struct SpillStore(Mutex<Session>);

impl SpillStore {
    /// Spills to a session.
    pub fn new(session: Session) -> Self {
        Self(Mutex::new(session))
    }

    /// The versions that were spilled, oldest first.
    pub fn versions(&self) -> Vec<u64> {
        self.session().versions()
    }

    /// A version that was spilled, with all its structures, in memory. A program can go on from it
    /// with [`Pool::restore_from`](outcrop_pool::Pool::restore_from).
    pub fn view(&self, version: u64) -> Result<View> {
        let mut session = self.session();
        let regions = session.regions(version)?;
        let Some(contents) = regions.iter().find(|region| region.name == CONTENTS) else {
            let message = format!("no pool has spilled version {version}: it has no region \"{CONTENTS}\"");
            return Err(Error::new(ErrorKind::Missing, message));
        };
        let mut described = vec![0; contents.bytes as usize];
        session.read(version, &mut [PartMut::of(CONTENTS, Element::BYTE, &mut described)])?;
        let view = View::rebuilt(&described, |name, bytes| {
            let region = regions.iter().find(|region| region.name == name).ok_or("there is no such region")?;
            let known = Element::named(&region.element);
            let element = known.unwrap_or_else(|| Element::other(region.element.clone(), region.element_bytes));
            Ok(session.read(version, &mut [PartMut::of(name, element, bytes).like(&region.shape)])?)
        })?;
        match view.version() == version {
            true => Ok(view),
            false => {
                let message = format!("version {version} has the contents of version {} of a pool", view.version());
                Err(Error::new(ErrorKind::Damaged, message))
            }
        }
    }

    /// An array of a version that was spilled.
    pub fn array<T: Versioned>(&self, version: u64, name: &str) -> Result<Vec<T>> {
        let mut session = self.session();
        let regions = session.regions(version)?;
        let Some(region) = regions.iter().find(|region| region.name == name) else {
            let message = format!("version {version} that was spilled has no \"{name}\"");
            return Err(Error::new(ErrorKind::Missing, message));
        };
        let number = layout::numbers(T::LAYOUT, size_of::<T>() as u32);
        let bytes = number.map_or(size_of::<T>(), |(_, bytes, _)| bytes as usize);
        let element = element(number.map(|(name, ..)| name), T::LAYOUT, bytes);
        let len = region.bytes as usize / size_of::<T>().max(1);
        if element.name() != region.element || (len * size_of::<T>()) as u64 != region.bytes {
            let message = format!("the elements of \"{name}\" are {}, not {}", region.element, element.name());
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let mut elements = layout::zeros::<T>(len);
        let shape = region.shape.clone();
        session.read(version, &mut [PartMut::of(name, element, layout::bytes_mut(&mut elements)).like(&shape)])?;
        Ok(elements)
    }

    fn save(&self, view: &View) -> Result<()> {
        let mut session = self.session();
        let structures: Vec<Described> = view.structures().collect();
        if structures.iter().any(|it| it.name == CONTENTS) {
            let message = format!("a structure with the name \"{CONTENTS}\" cannot be spilled: give it another one");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let described = view.described()?;
        let contents = structures.iter().map(|it| view.bytes(&it.name)).collect::<outcrop_pool::Result<Vec<_>>>()?;
        let version = view.version();
        if session.versions().contains(&version) {
            // It was spilled before a crash.
            return check_same(&mut session, version, structures.iter().zip(contents.iter().map(|it| &**it)));
        }
        session.mark_dirty(CONTENTS, 0..described.len());
        let mut parts = vec![Part::of(CONTENTS, Element::BYTE, &described)];
        for (it, content) in structures.iter().zip(&contents) {
            // Its memory is new, also where an earlier version had the same address.
            session.mark_dirty(&it.name, 0..content.len());
            let element = element(it.element, it.layout, it.element_bytes as usize);
            parts.push(Part::of(&it.name, element, content).shaped(&dimensions(it)));
        }
        // What was read from the pool is what was written there.
        view.verify()?;
        session.save(version, &parts)?;
        session.wait(version, Reached::All)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spill for SpillStore {
    fn spill(&self, version: &View) -> std::result::Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(self.save(version)?)
    }
}

/// The region that says what the others are.
const CONTENTS: &str = "pool.contents";

/// That a version of the store has these arrays.
fn check_same<'a>(
    session: &mut Session,
    version: u64,
    structures: impl Iterator<Item = (&'a Described, &'a [u8])>,
) -> Result<()> {
    for (it, content) in structures {
        let mut saved = vec![0; content.len()];
        let element = element(it.element, it.layout, it.element_bytes as usize);
        session.read(version, &mut [PartMut::of(&it.name, element, &mut saved).shaped(&dimensions(it))])?;
        if saved != content {
            let message = format!("session {} has another version {version} already; use a new one", session.name());
            return Err(Error::new(ErrorKind::Exists, message));
        }
    }
    Ok(())
}

/// A number that every language knows, or the layout by its hash.
fn element(name: Option<&str>, layout: u64, bytes: usize) -> Element {
    let known = name.and_then(Element::named);
    known.unwrap_or_else(|| Element::other(format!("layout-{layout:016x}"), bytes))
}

/// The dimensions of an array: those of length 1 at the end are left out.
fn dimensions(it: &Described) -> Vec<usize> {
    let count = it.shape.iter().rposition(|count| *count != 1).map_or(1, |last| last + 1);
    it.shape[..count].iter().map(|count| *count as usize).collect()
}

impl std::fmt::Debug for SpillStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpillStore").field("session", &self.session().name()).finish()
    }
}
