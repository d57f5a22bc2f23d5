//! A cache that keeps everything in memory of this process for as long as it can: whoever forgets
//! to drain, or asks the real file, sees old bytes.

use std::{
    collections::HashMap,
    fs::{File, FileTimes},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, SystemTime},
};

use outcrop_node::{Cache, Cached};

/// The mark of files that are not drained.
const MARK: &str = "user.outcrop.undrained";

/// Keeps bytes in memory, and drains them late.
pub(crate) struct Memory {
    files: Mutex<HashMap<(u64, u64), Arc<InMemory>>>,
    queue: mpsc::Sender<Arc<InMemory>>,
    /// Drains fail with this error while it is not 0.
    failure: Arc<AtomicI32>,
}

struct InMemory {
    file: File,
    path: PathBuf,
    state: Mutex<State>,
    queue: mpsc::Sender<Arc<InMemory>>,
    failure: Arc<AtomicI32>,
}

#[derive(Default)]
struct State {
    pending: Vec<Operation>,
    bytes: u64,
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
    /// Reported by the next write.
    failed: Option<i32>,
}

enum Operation {
    Write(u64, Vec<u8>),
    SetBytes(u64),
}

impl Memory {
    /// Each file is drained by itself not before `late` has passed since it became dirty.
    pub(crate) fn new(late: Duration) -> Arc<Self> {
        let (queue, waiting) = mpsc::channel::<Arc<InMemory>>();
        thread::spawn(move || {
            for file in waiting {
                thread::sleep(late);
                // The next write says what went wrong.
                let _ = file.drain_now();
            }
        });
        Arc::new(Self { files: Mutex::default(), queue, failure: Arc::default() })
    }

    /// Makes drains fail with this error, or succeed again.
    pub(crate) fn fail_with(&self, errno: i32) {
        self.failure.store(errno, Ordering::SeqCst);
    }

    /// The files that are not drained.
    pub(crate) fn undrained(&self) -> Vec<PathBuf> {
        let files = self.files.lock().unwrap();
        files.values().filter(|file| !file.is_empty()).map(|file| file.path.clone()).collect()
    }
}

impl Cache for Memory {
    fn open(&self, file: File, path: &Path) -> io::Result<Arc<dyn Cached>> {
        let metadata = file.metadata()?;
        let mut files = self.files.lock().unwrap();
        files.retain(|_, file| Arc::strong_count(file) > 1 || !file.is_empty());
        let key = (metadata.dev(), metadata.ino());
        if let Some(known) = files.get(&key) {
            return Ok(Arc::new(Handle(known.clone())));
        }
        let state = State { bytes: metadata.len(), ..State::default() };
        let (queue, failure) = (self.queue.clone(), self.failure.clone());
        let new = InMemory { file, path: path.to_owned(), state: Mutex::new(state), queue, failure };
        let new = Arc::new(new);
        files.insert(key, new.clone());
        Ok(Arc::new(Handle(new)))
    }
}

struct Handle(Arc<InMemory>);

impl InMemory {
    fn is_empty(&self) -> bool {
        self.state.lock().unwrap().pending.is_empty()
    }

    fn push(self: &Arc<Self>, state: &mut State, operation: Operation) -> io::Result<()> {
        if state.pending.is_empty() {
            // A file system without extended attributes goes without.
            let _ = rustix::fs::fsetxattr(&self.file, MARK, b"", rustix::fs::XattrFlags::empty());
            let _ = self.queue.send(self.clone());
        }
        state.pending.push(operation);
        Ok(())
    }

    fn drain_now(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.pending.is_empty() {
            return Ok(());
        }
        let errno = self.failure.load(Ordering::SeqCst);
        if errno != 0 {
            state.failed = Some(errno);
            return Err(io::Error::from_raw_os_error(errno));
        }
        for operation in &state.pending {
            match operation {
                Operation::Write(offset, bytes) => self.file.write_all_at(bytes, *offset)?,
                Operation::SetBytes(bytes) => self.file.set_len(*bytes)?,
            }
        }
        let _ = rustix::fs::fremovexattr(&self.file, MARK);
        let times = state.accessed.take().into_iter().fold(FileTimes::new(), FileTimes::set_accessed);
        self.file.set_times(state.modified.take().into_iter().fold(times, FileTimes::set_modified))?;
        state.pending.clear();
        Ok(())
    }
}

impl Cached for Handle {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.state.lock().unwrap();
        if let Some(errno) = state.failed.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        state.bytes = state.bytes.max(offset + bytes.len() as u64);
        state.modified = None;
        self.0.push(&mut state, Operation::Write(offset, bytes.to_vec()))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.0.state.lock().unwrap();
        let wanted = into.len().min(state.bytes.saturating_sub(offset) as usize);
        let into = &mut into[..wanted];
        into.fill(0);
        let mut done = 0;
        while done < wanted {
            match self.0.file.read_at(&mut into[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        for operation in &state.pending {
            match operation {
                Operation::Write(at, bytes) => {
                    let start = (*at).max(offset);
                    let end = (at + bytes.len() as u64).min(offset + wanted as u64);
                    if start < end {
                        let from = &bytes[(start - at) as usize..(end - at) as usize];
                        into[(start - offset) as usize..(end - offset) as usize].copy_from_slice(from);
                    }
                }
                Operation::SetBytes(bytes) => {
                    let kept = (bytes.saturating_sub(offset) as usize).min(wanted);
                    into[kept..].fill(0);
                }
            }
        }
        Ok(wanted)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.state.lock().unwrap().bytes)
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.0.state.lock().unwrap();
        state.bytes = bytes;
        state.modified = None;
        self.0.push(&mut state, Operation::SetBytes(bytes))
    }

    fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> io::Result<()> {
        let mut state = self.0.state.lock().unwrap();
        if state.pending.is_empty() {
            let times = accessed.into_iter().fold(FileTimes::new(), FileTimes::set_accessed);
            return self.0.file.set_times(modified.into_iter().fold(times, FileTimes::set_modified));
        }
        state.accessed = accessed.or(state.accessed);
        state.modified = modified.or(state.modified);
        Ok(())
    }

    fn drain(&self) -> io::Result<()> {
        self.0.drain_now()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.drain_now()?;
        self.0.file.sync_all()
    }

    fn is_clean(&self) -> bool {
        self.0.is_empty()
    }
}
