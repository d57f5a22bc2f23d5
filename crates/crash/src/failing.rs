//! Files that fail on demand.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::files::{File, FileLock, Files};
use rustix::io::Errno;

use crate::{Recording, recording::RecordedFile};

/// What can be done to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Operation {
    /// [`Files::list`].
    List,
    /// [`Files::make_dir`].
    MakeDir,
    /// [`Files::create`].
    Create,
    /// [`Files::open`].
    Open,
    /// [`File::bytes`].
    Bytes,
    /// [`File::read_at`].
    Read,
    /// [`File::write_at`].
    Write,
    /// [`File::sync`].
    Sync,
    /// [`Files::rename`].
    Rename,
    /// [`Files::remove`].
    Remove,
    /// [`Files::remove_dir`].
    RemoveDir,
    /// [`Files::sync_dir`].
    SyncDir,
    /// [`Files::lock`].
    Lock,
}

/// A failure to come.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Which operations it is for; nothing: all.
    pub of: Option<Operation>,
    /// How many of them to let pass first.
    pub after: u64,
    /// What the operation fails with.
    pub errno: Errno,
    /// Whether all that follow fail as well.
    pub is_lasting: bool,
    /// Whether a failing write leaves the first half of its bytes.
    pub leaves_half: bool,
}

impl Fault {
    /// The next operation of any kind fails, and no other; its fields say more.
    pub fn new(errno: Errno) -> Self {
        Self { of: None, after: 0, errno, is_lasting: false, leaves_half: false }
    }
}

/// Files that do what those behind them do, except for the faults that were injected.
///
/// An operation that fails does nothing, except that a write may leave half of its bytes, and that
/// a sync forgets what it was to make durable, as systems do: it can be read until a crash, and may
/// be lost in the crash although later syncs have succeeded. This holds over a [`Recording`];
/// elsewhere it is as if there had been no sync.
///
/// There is no way past it: the files have no descriptor for direct transfers. A clone has the same
/// faults and counts.
#[derive(Clone)]
pub struct Failing {
    inner: Arc<dyn Files>,
    /// If that is what `inner` is.
    recording: Option<Recording>,
    watcher: Option<Arc<Watcher>>,
    state: Arc<Mutex<State>>,
}

type Watcher = dyn Fn(Operation, &str) + Send + Sync;

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    counts: BTreeMap<Operation, u64>,
    failed: u64,
}

impl Failing {
    /// Files without a fault yet.
    pub fn new(inner: Arc<dyn Files>) -> Self {
        Self { inner, recording: None, watcher: None, state: Arc::default() }
    }

    /// The same over a recording, where failed syncs lose what they were to make durable.
    pub fn over(recording: Recording) -> Self {
        Self { recording: Some(recording.clone()), ..Self::new(Arc::new(recording)) }
    }

    /// Calls `watcher` before each operation, with the name that it is for; a test can make it
    /// wait.
    pub fn watched(self, watcher: impl Fn(Operation, &str) + Send + Sync + 'static) -> Self {
        Self { watcher: Some(Arc::new(watcher)), ..self }
    }

    /// Injects a fault. It counts the operations that follow; those before are past.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// How often an operation, or any, was called so far, failed calls included.
    pub fn calls(&self, of: Option<Operation>) -> u64 {
        let counts = &self.state().counts;
        of.map_or_else(|| counts.values().sum(), |of| counts.get(&of).copied().unwrap_or(0))
    }

    /// How many calls were made to fail.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees an operation pass, and tells which fault strikes it.
    fn pass(&self, operation: Operation, name: &str) -> Result<(), Fault> {
        if let Some(watcher) = &self.watcher {
            watcher(operation, name);
        }
        let mut state = self.state();
        *state.counts.entry(operation).or_default() += 1;
        let mut struck = None;
        state.faults.retain_mut(|fault| {
            if fault.of.is_some_and(|of| of != operation) {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            struck = Some(*fault);
            fault.is_lasting
        });
        state.failed += u64::from(struck.is_some());
        struck.map_or(Ok(()), Err)
    }

    /// A file of a recording, or of what is behind this otherwise.
    fn file(
        &self,
        name: &str,
        recorded: impl FnOnce(&Recording) -> io::Result<RecordedFile>,
        other: impl FnOnce(&dyn Files) -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        let (inner, recorded): (Arc<dyn File>, _) = match self.recording.as_ref().map(recorded).transpose()? {
            Some(recorded) => (Arc::new(recorded.clone()), Some(recorded)),
            None => (other(&*self.inner)?, None),
        };
        Ok(Arc::new(FailingFile { failing: self.clone(), name: name.to_owned(), inner, recorded }))
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        fault.errno.into()
    }
}

impl Files for Failing {
    fn location(&self) -> String {
        self.inner.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.pass(Operation::List, dir)?;
        self.inner.list(dir)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.pass(Operation::MakeDir, dir)?;
        self.inner.make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.pass(Operation::Create, name)?;
        self.file(name, |recording| recording.create_file(name), |inner| inner.create(name, bytes))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.pass(Operation::Open, name)?;
        self.file(name, |recording| recording.open_file(name), |inner| inner.open(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.pass(Operation::Rename, to)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.pass(Operation::Remove, name)?;
        self.inner.remove(name)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.pass(Operation::RemoveDir, dir)?;
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        if let Err(fault) = self.pass(Operation::SyncDir, dir) {
            if let Some(recording) = &self.recording {
                recording.fail_sync_dir(dir)?;
            }
            return Err(fault.into());
        }
        self.inner.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.pass(Operation::Lock, name)?;
        self.inner.lock(name)
    }
}

struct FailingFile {
    failing: Failing,
    name: String,
    inner: Arc<dyn File>,
    /// If that is what `inner` is.
    recorded: Option<RecordedFile>,
}

impl FailingFile {
    fn pass(&self, operation: Operation) -> Result<(), Fault> {
        self.failing.pass(operation, &self.name)
    }
}

impl File for FailingFile {
    fn bytes(&self) -> io::Result<u64> {
        self.pass(Operation::Bytes)?;
        self.inner.bytes()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Err(fault) = self.pass(Operation::Write) {
            if fault.leaves_half {
                self.inner.write_at(at, &bytes[..bytes.len() / 2])?;
            }
            return Err(fault.into());
        }
        self.inner.write_at(at, bytes)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.pass(Operation::Read)?;
        self.inner.read_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        if let Err(fault) = self.pass(Operation::Sync) {
            if let Some(recorded) = &self.recorded {
                recorded.fail_sync();
            }
            return Err(fault.into());
        }
        self.inner.sync()
    }
}
