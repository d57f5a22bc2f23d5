//! Files in an object store. docs/object.md says which objects there are, and what each operation
//! does to them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use object_store::path::Path;
use outcrop_layers::files::{File, FileLock, Files, Holder};

use crate::{
    draft::{Draft, PART_BYTES, Parts},
    failure::{Cause, Failure, Words},
    names::{Contents, Sealed, Tag, is_reserved},
    owner::{self, Attempt, Owned},
    probe,
    remote::{Core, Remote, Store, Uploads},
};

/// An object that is not longer is read whole when it is opened: one request instead of two.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// How often the newest object of a file is looked for, while somebody replaces it.
const LOOKS_MAX: usize = 10;

/// What a client of an object store is told beside the address.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long a request is repeated while the server does not carry it out.
    pub patience: Duration,
    /// After so long without a sign of life, the owner of a directory on another machine counts as
    /// dead.
    pub lease: Duration,
    /// How many parts of 8 MiB are under way at a time, at least 4.
    pub at_once: usize,
    /// Variables of the environment, such as `AWS_ENDPOINT_URL`, with values that come before those
    /// that it has.
    pub variables: BTreeMap<String, String>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { patience, lease, at_once, variables } = self;
        let mut shown = f.debug_struct("Options");
        // Their values may be credentials.
        shown.field("patience", patience).field("lease", lease).field("at_once", at_once);
        shown.field("variables", &variables.keys()).finish()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(120),
            lease: Duration::from_secs(60),
            at_once: 8,
            variables: BTreeMap::new(),
        }
    }
}

/// The files below a prefix of a bucket. A clone is the same files.
#[derive(Clone)]
pub struct ObjectFiles {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) remote: Remote,
    pub(crate) parts: Arc<Parts>,
    prefix: Path,
    location: String,
    options: Options,
    /// Whether the server keeps conditions, once that is known.
    is_conditional: OnceLock<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    owned: HashMap<String, OwnedDir>,
    /// Directories of others, as they were when they were listed last.
    seen: HashMap<String, Seen>,
    /// Objects that are being written, by file.
    drafts: HashMap<String, Weak<Draft>>,
}

/// A directory that this process owns.
struct OwnedDir {
    owner: Arc<Owned>,
    files: BTreeMap<String, BTreeMap<Tag, u64>>,
    /// Objects of which it is not known whether they are there, or will be.
    doubtful: BTreeMap<String, BTreeSet<Tag>>,
    /// Why it is not known what the server has, since the last sync.
    doubt: Option<String>,
}

/// A directory of somebody else.
struct Seen {
    files: BTreeMap<String, BTreeMap<Tag, u64>>,
    sealed: Option<Sealed>,
}

impl ObjectFiles {
    /// The files below an address, such as `s3://bucket/prefix`. The bucket must exist.
    ///
    /// # Errors
    /// If there is no such bucket, or no access to it, or no answer.
    pub fn open(address: &str, options: Options) -> io::Result<Self> {
        let opened = crate::address::open(address, &options)?;
        let files = Self::over(&opened.location, opened.store, opened.uploads, &opened.prefix, options)?;
        files.list("")?;
        Ok(files)
    }

    /// The files below `prefix` of any client. `uploads` finds uploads that nobody has completed.
    ///
    /// # Errors
    /// If the system starts no threads, or the prefix is not possible.
    pub fn over(
        location: &str,
        store: Arc<dyn Store>,
        uploads: Option<Arc<dyn Uploads>>,
        prefix: &str,
        options: Options,
    ) -> io::Result<Self> {
        let prefix = Path::parse(prefix).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let bucket = location.split_once("://").map_or(location, |(_, rest)| rest);
        let bucket = bucket.split('/').next().unwrap_or_default();
        let core = Core { store, uploads, words: Words::new(bucket, &options.variables), patience: options.patience };
        let inner = Inner {
            remote: Remote::new(core)?,
            parts: Parts::new(options.at_once),
            prefix,
            location: location.to_owned(),
            options,
            is_conditional: OnceLock::new(),
            state: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The prefix of the objects of a file or directory. Names come from this program or from a
    /// listing, and must not lead elsewhere.
    fn path(&self, name: &str) -> io::Result<Path> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} leads elsewhere"));
        if name.is_empty() {
            return Ok(self.prefix.clone());
        }
        let is_inside = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let name = Path::parse(name).ok().filter(|_| is_inside && !name.contains('\0')).ok_or_else(wrong)?;
        Ok(self.prefix.parts().chain(name.parts()).collect())
    }

    fn object(&self, name: &str, tag: Tag) -> io::Result<Path> {
        Ok(self.path(name)?.join(tag.to_string()))
    }

    /// The owner of a directory, which must be this process.
    fn owner(&self, dir: &str) -> io::Result<Arc<Owned>> {
        let found = self.state().owned.get(dir).map(|dir| Arc::clone(&dir.owner));
        let owner = found.ok_or_else(|| {
            let reason = format!("{dir:?} is changed without its lock");
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        owner.check()?;
        Ok(owner)
    }

    /// Records that an object is complete.
    pub(crate) fn made(&self, name: &str, tag: Tag, bytes: u64) {
        let (dir, file) = split(name);
        let mut state = self.state();
        state.drafts.remove(name);
        if let Some(dir) = state.owned.get_mut(dir) {
            dir.files.entry(file.to_owned()).or_default().insert(tag, bytes);
        }
    }

    /// The object that counts for a file, and its length, as it is known here.
    fn known(&self, name: &str) -> Option<(Tag, u64)> {
        let (dir, file) = split(name);
        let state = self.state();
        let files = match state.owned.get(dir) {
            Some(dir) => &dir.files,
            None => &state.seen.get(dir)?.files,
        };
        files.get(file)?.last_key_value().map(|(tag, bytes)| (*tag, *bytes))
    }

    /// The object that counts for a file of somebody else, as the server has it now.
    fn find(&self, name: &str) -> io::Result<Option<(Tag, u64)>> {
        let (dir, file) = split(name);
        if !self.state().seen.contains_key(dir) {
            self.see(dir)?;
            return Ok(self.known(name));
        }
        let path = self.path(name)?;
        let listed = self.remote.run(|core| async move { core.all(&path).await })?;
        let mut contents = Contents::default();
        for object in listed {
            let tag = object.location.filename().unwrap_or_default();
            contents.add(&format!("{file}/{tag}"), object.size);
        }
        let mut state = self.state();
        let Some(seen) = state.seen.get_mut(dir) else { return Ok(None) };
        let tags = contents.settled(seen.sealed.as_ref()).files.remove(file).unwrap_or_default();
        let newest = tags.last_key_value().map(|(tag, bytes)| (*tag, *bytes));
        seen.files.insert(file.to_owned(), tags);
        Ok(newest)
    }

    /// Lists a directory of somebody else.
    fn see(&self, dir: &str) -> io::Result<()> {
        let path = self.path(dir)?;
        let (contents, sealed) = self.remote.run(|core| async move { owner::look(&core, &path).await })?;
        let files = contents.settled(sealed.as_ref()).files;
        self.state().seen.insert(dir.to_owned(), Seen { files, sealed });
        Ok(())
    }

    /// Whether the server keeps conditions: a probe, once.
    fn is_conditional(&self) -> io::Result<bool> {
        if let Some(known) = self.is_conditional.get() {
            return Ok(*known);
        }
        let prefix = self.prefix.clone();
        let found = self.remote.run(|core| async move { probe::keeps_conditions(&core, &prefix).await })?;
        if !found && self.is_conditional.set(found).is_ok() {
            tracing::warn!(
                location = self.location,
                "this server ignores the condition If-None-Match; Outcrop uses unique names instead, which is safe as long \
                 as what was written is listed at once"
            );
        }
        Ok(*self.is_conditional.get_or_init(|| found))
    }

    /// Removes objects of a file, the oldest first: what was replaced must not come back. Asks
    /// first whether this process is still the owner: another one may rely on them by now.
    fn remove_objects(&self, name: &str, tags: &[Tag]) -> io::Result<()> {
        let (dir, file) = split(name);
        if tags.is_empty() {
            return Ok(());
        }
        let owner = self.owner(dir)?;
        self.remote.run(|core| async move { owner.confirm(&core).await })?;
        for tag in tags {
            let path = self.object(name, *tag)?;
            self.remote.run(|core| async move { core.remove(&path).await })?;
            if let Some(dir) = self.state().owned.get_mut(dir) {
                dir.files.entry(file.to_owned()).or_default().remove(tag);
                dir.files.retain(|_, tags| !tags.is_empty());
                dir.doubtful.entry(file.to_owned()).or_default().remove(tag);
                dir.doubtful.retain(|_, tags| !tags.is_empty());
            }
        }
        Ok(())
    }

    /// All objects of a file, ascending, also those that may be there.
    fn tags(&self, name: &str) -> Vec<Tag> {
        let (dir, file) = split(name);
        let state = self.state();
        let Some(dir) = state.owned.get(dir) else { return Vec::new() };
        let known = dir.files.get(file).into_iter().flat_map(|tags| tags.keys().copied());
        let tags: BTreeSet<_> = known.chain(dir.doubtful.get(file).into_iter().flatten().copied()).collect();
        tags.into_iter().collect()
    }

    /// Records why it is not known whether the server has done something in a directory.
    fn doubt(&self, dir: &str, reason: String) {
        if let Some(dir) = self.state().owned.get_mut(dir) {
            dir.doubt.get_or_insert(reason);
        }
    }

    /// Objects of a directory that were replaced, and are still there.
    fn replaced(&self, dir: &str) -> Vec<(String, Vec<Tag>)> {
        let state = self.state();
        let Some(owned) = state.owned.get(dir) else { return Vec::new() };
        let several = owned.files.iter().filter(|(_, tags)| tags.len() > 1);
        several
            .map(|(file, tags)| (format!("{dir}/{file}"), tags.keys().rev().skip(1).rev().copied().collect()))
            .collect()
    }

    fn draft(&self, name: &str) -> Option<Arc<Draft>> {
        self.state().drafts.get(name)?.upgrade()
    }
}

impl Files for ObjectFiles {
    fn location(&self) -> String {
        self.inner.location.clone()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let path = self.inner.path(dir)?;
        if let Some(owned) = self.inner.state().owned.get(dir) {
            return Ok(owned.files.keys().cloned().collect());
        }
        let names = self.inner.remote.run(|core| async move { core.names(&path).await })?;
        if !names.iter().any(|name| is_reserved(name)) {
            return Ok(names);
        }
        self.inner.see(dir)?;
        let state = self.inner.state();
        Ok(state.seen.get(dir).map(|seen| seen.files.keys().cloned().collect()).unwrap_or_default())
    }

    /// An object store has no directories: there is one as soon as an object is in it.
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.path(dir).map(drop)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        if self.inner.known(name).is_some() {
            let reason = "an object is not written again";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        let (dir, _) = split(name);
        let owner = self.inner.owner(dir)?;
        let tag = owner.next_tag();
        let draft = Arc::new(Draft::new(&self.inner, &owner, name, tag, self.inner.object(name, tag)?, bytes));
        let mut state = self.inner.state();
        if state.drafts.get(name).is_some_and(|draft| draft.strong_count() > 0) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.drafts.insert(name.to_owned(), Arc::downgrade(&draft));
        Ok(draft)
    }

    fn create_new(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.create(name, bytes)
    }

    fn writes_behind(&self) -> bool {
        true
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.inner.path(name)?;
        let is_owned = self.inner.state().owned.contains_key(split(name).0);
        let mut found = match self.inner.known(name) {
            None if !is_owned => self.inner.find(name)?,
            known => known,
        };
        for _ in 0..LOOKS_MAX {
            let Some((tag, bytes)) = found else { return Err(io::ErrorKind::NotFound.into()) };
            let path = self.inner.object(name, tag)?;
            if bytes > WHOLE_BYTES_MAX {
                return Ok(Arc::new(Object { inner: Arc::clone(&self.inner), path, bytes, whole: None }));
            }
            let from = path.clone();
            match self.inner.remote.run(|core| async move { core.whole(&from, WHOLE_BYTES_MAX).await }) {
                Ok(whole) => {
                    let (inner, bytes) = (Arc::clone(&self.inner), whole.len() as u64);
                    return Ok(Arc::new(Object { inner, path, bytes, whole: Some(whole) }));
                }
                // Somebody has replaced or removed it since it was listed.
                Err(failure) if failure.is_missing() && !is_owned => found = self.inner.find(name)?,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{name} is replaced all the time")))
    }

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        let is_owned = self.inner.state().owned.contains_key(split(name).0);
        let known = if is_owned { self.inner.known(name) } else { self.inner.find(name)? };
        let Some((tag, _)) = known else { return Err(io::ErrorKind::NotFound.into()) };
        let path = self.inner.object(name, tag)?;
        Ok(self.inner.remote.run(|core| async move { core.length(&path).await })?)
    }

    /// Nothing of Outcrop's renames an object: see [`replace`](Self::replace).
    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "objects cannot be renamed"))
    }

    fn replace(&self, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let owner = self.inner.owner(dir)?;
        let name = format!("{dir}/{name}");
        let old = self.inner.tags(&name);
        let tag = owner.next_tag();
        let path = self.inner.object(&name, tag)?;
        let (whole, is_conditional) = (Bytes::copy_from_slice(bytes), owner.is_conditional);
        let made = self.inner.remote.run(|core| async move { core.make(&path, whole, is_conditional).await });
        match made {
            Ok(()) => {}
            Err(Failure { cause: Cause::Unknown, message }) => {
                // It may be there, or come, so it is not relied on, and what it replaces stays.
                self.inner.doubt(dir, message);
                if let Some(owned) = self.inner.state().owned.get_mut(dir) {
                    owned.doubtful.entry(split(&name).1.to_owned()).or_default().insert(tag);
                }
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        }
        self.inner.made(&name, tag, bytes.len() as u64);
        if let Err(error) = self.inner.remove_objects(&name, &old) {
            self.inner.doubt(dir, format!("what {name} was before cannot be removed: {error}"));
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (dir, _) = split(name);
        if let Some(draft) = self.inner.draft(name) {
            draft.abort()?;
            self.inner.state().drafts.remove(name);
            return Ok(());
        }
        self.inner.owner(dir)?;
        match &*self.inner.tags(name) {
            [] => Err(io::ErrorKind::NotFound.into()),
            tags => self.inner.remove_objects(name, tags),
        }
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.path(dir).map(drop)
    }

    /// What a server has said it has done survives. It fails if the server has not said so of
    /// something in the directory, or if this process does not own the directory any more.
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let (owner, doubt) = {
            let mut state = self.inner.state();
            let Some(owned) = state.owned.get_mut(dir) else { return Ok(()) };
            (Arc::clone(&owned.owner), owned.doubt.take())
        };
        if let Some(reason) = doubt {
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        owner.check()?;
        for (name, tags) in self.inner.replaced(dir) {
            self.inner.remove_objects(&name, &tags)?;
        }
        Ok(self.inner.remote.run(|core| async move { owner.confirm(&core).await })?)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        let (dir, _) = split(name);
        let path = self.inner.path(dir)?;
        if self.inner.state().owned.contains_key(dir) {
            return Ok(None);
        }
        let (lease, is_conditional) = (self.inner.options.lease, self.inner.is_conditional()?);
        let attempt =
            self.inner.remote.run(|core| async move { owner::acquire(&core, &path, lease, is_conditional).await })?;
        let (owner, contents) = match attempt {
            Attempt::Owned(owner, contents) => (owner, contents),
            Attempt::Held(holder) => {
                tracing::warn!(location = self.inner.location, dir, holder, "a directory has an owner");
                return Ok(None);
            }
        };
        let life = self.inner.remote.spawn(Arc::clone(&owner).live(Arc::clone(self.inner.remote.core())));
        let owned =
            OwnedDir { owner: Arc::clone(&owner), files: contents.files, doubtful: BTreeMap::new(), doubt: None };
        let mut state = self.inner.state();
        state.seen.remove(dir);
        state.owned.insert(dir.to_owned(), owned);
        drop(state);
        Ok(Some(FileLock::new(Held { inner: Arc::clone(&self.inner), dir: dir.to_owned(), owner, life })))
    }

    fn holder(&self, name: &str) -> Option<Holder> {
        let (dir, _) = split(name);
        if self.inner.state().owned.contains_key(dir) {
            return Some(Holder::Here);
        }
        let path = self.inner.path(dir).ok()?;
        let claim = self.inner.remote.run(|core| async move {
            let contents = owner::contents(&core, &path).await?;
            owner::newest_claim(&core, &path, &contents).await
        });
        claim.ok().flatten().map(|claim| claim.holder())
    }

    fn remarks(&self, dir: &str) -> Vec<String> {
        let Ok(path) = self.inner.path(dir) else { return Vec::new() };
        let claim = self.inner.remote.run(|core| async move {
            let contents = owner::contents(&core, &path).await?;
            owner::newest_claim(&core, &path, &contents).await
        });
        let ignores = claim.is_ok_and(|claim| claim.is_some_and(|claim| !claim.is_conditional));
        let remark = "the server ignores conditions (If-None-Match), so writers rely on unique names: docs/object.md";
        ignores.then(|| remark.to_owned()).into_iter().collect()
    }
}

/// The directory of a file, and its name there.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// The right to write to a directory.
struct Held {
    inner: Arc<Inner>,
    dir: String,
    owner: Arc<Owned>,
    life: tokio::task::AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.life.abort();
        self.inner.state().owned.remove(&self.dir);
        let owner = Arc::clone(&self.owner);
        let released = self.inner.remote.run(|core| async move {
            owner.release(&core).await;
            Ok(())
        });
        if let Err(failure) = released {
            tracing::warn!(dir = self.dir, reason = failure.message, "a directory was not given up");
        }
    }
}

/// An object that is complete.
struct Object {
    inner: Arc<Inner>,
    path: Path,
    bytes: u64,
    /// Its bytes, if it is short.
    whole: Option<Bytes>,
}

impl Object {
    fn inside(&self, at: u64, bytes: usize) -> io::Result<Range<u64>> {
        let end = at.checked_add(bytes as u64).filter(|end| *end <= self.bytes);
        end.map(|end| at..end).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl File for Object {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn write_at(&self, _at: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a complete object cannot be changed"))
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let range = self.inside(at, bytes.len())?;
        if range.is_empty() {
            return Ok(());
        }
        if let Some(whole) = &self.whole {
            bytes.copy_from_slice(&whole[range.start as usize..range.end as usize]);
            return Ok(());
        }
        let path = self.path.clone();
        let (pieces, arriving) = std::sync::mpsc::channel::<Bytes>();
        let ended = self.inner.remote.begin(|core| async move {
            let take = |piece| drop(pieces.send(piece));
            core.range(&path, range, take).await
        });
        let mut rest = &mut *bytes;
        // Copied here, while the next ones arrive.
        for piece in arriving {
            let part = rest.split_off_mut(..piece.len()).expect("no more than was asked for");
            part.copy_from_slice(&piece);
        }
        Ok(ended()?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn read_bytes(&self) -> u64 {
        PART_BYTES
    }
}
