//! Files that fail on demand.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::files::{File, FileLock, Files};
use rustix::io::Errno;

use crate::{Recording, recording::RecordedFile};

/// The operations on files.
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

/// A failure to inject.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The kind of operation that fails; any if `None`.
    pub of: Option<Operation>,
    /// How many of them succeed first.
    pub after: u64,
    /// The error of the operation.
    pub errno: Errno,
    /// Whether all later operations fail too.
    pub is_lasting: bool,
    /// Whether a failing write leaves the first half of its bytes.
    pub leaves_half: bool,
}

impl Fault {
    /// The next operation of any kind fails, and no other. Change the fields for more.
    pub fn new(errno: Errno) -> Self {
        Self { of: None, after: 0, errno, is_lasting: false, leaves_half: false }
    }
}

/// Files that pass everything on to `inner`, except for injected faults.
///
/// An operation that fails has no effect, with two exceptions. A write may leave half of its bytes.
/// And a failed sync drops what it should have made durable, as systems do: it can be read until a
/// crash, and the crash may lose it even if later syncs have succeeded. This holds over a
/// [`Recording`]; otherwise a failed sync has no effect.
///
/// Nothing bypasses it: the files have no descriptor for direct transfers. A clone shares faults
/// and counts.
#[derive(Clone)]
pub struct Failing {
    inner: Arc<dyn Files>,
    /// Set if `inner` is a recording.
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
    /// Files without faults.
    pub fn new(inner: Arc<dyn Files>) -> Self {
        Self { inner, recording: None, watcher: None, state: Arc::default() }
    }

    /// Files over a recording, in which failed syncs lose what they should have made durable.
    pub fn over(recording: Recording) -> Self {
        Self { recording: Some(recording.clone()), ..Self::new(Arc::new(recording)) }
    }

    /// Calls `watcher` before each operation, with the name of the file. A test can make it wait.
    pub fn watched(self, watcher: impl Fn(Operation, &str) + Send + Sync + 'static) -> Self {
        Self { watcher: Some(Arc::new(watcher)), ..self }
    }

    /// Injects a fault. Only operations from now on count.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// How often an operation, or any operation, was called, including failed calls.
    pub fn calls(&self, of: Option<Operation>) -> u64 {
        let counts = &self.state().counts;
        of.map_or_else(|| counts.values().sum(), |of| counts.get(&of).copied().unwrap_or(0))
    }

    /// How many calls failed because of a fault.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation, and returns the fault that applies to it.
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

    /// A file of the recording, or of `inner` otherwise.
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
    /// Set if `inner` is a recording.
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
