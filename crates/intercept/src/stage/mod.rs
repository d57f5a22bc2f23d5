//! Staged files: a program that opens a file for writing gets a descriptor on a file in memory, and
//! the bytes are drained to the real file behind its back.
//!
//! - The real file is opened, created or truncated at once, so names are real at once.
//! - A staged file is known by device and inode of the real one, never by a path. Whoever opens it
//!   again, for whatever, gets a descriptor on the same memory.
//! - It is drained when nobody has it open for writing any more. The system tells about closes
//!   (inotify), and whether there are writers left, mappings included (a lease).
//! - A lease on the real file keeps strangers out until it is drained: an open by a process that is
//!   not intercepted waits for as long as that takes. A file that somebody has open already is not
//!   staged.

mod bound;
mod copy;
mod file;
mod keeper;
mod memory;
mod system;
mod watch;

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outcrop_error::{Error, ErrorKind, Result};
use rustix::{fs::fstat, thread::gettid};

pub(crate) use self::{
    copy::Buffer,
    file::{Durable, Staged, UNDRAINED},
    memory::NAME as MEMORY_NAME,
    system::{FileId, checked, path_of, reopen},
};
use self::{
    copy::{Compare, make_equal},
    keeper::Keeper,
    memory::Memory,
    system::{Lease, signal_thread, take_lease},
    watch::{Look, Signals, Told, Watch},
};
use crate::{Fsync, Paths, Undrained};

/// An existing file that is larger than this is not staged unless it is truncated: reading it into
/// memory costs more than it gains.
const COPY_UP_AT_MOST: u64 = 16 << 20;

/// For how long a file may be staged without a mark. The system itself keeps written bytes in
/// memory for longer, without one.
const MARK_AFTER: Duration = Duration::from_secs(1);

/// When to try again to drain a file that could not be drained.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The system says that a file was closed before it counts it as closed. So look again after
/// 1, 2, 4 ... milliseconds, this many times.
const LOOKS: u32 = 10;

/// How often the memory of open files is counted at most.
const COUNT_EVERY: Duration = Duration::from_millis(50);

/// Descriptors that are left for other things than staged files, of those that a process may have.
const SPARE_DESCRIPTORS: u64 = 128;

/// How files are staged.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which files.
    pub paths: Paths,
    /// How many bytes may be in memory.
    pub memory: u64,
    /// What `fsync` means.
    pub fsync: Fsync,
    /// How many files are drained at the same time.
    pub drains: usize,
}

/// Files of programs that are in memory, until they are drained.
pub struct Stage {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What is staged now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// How many files.
    pub files: usize,
    /// How much memory they take.
    pub bytes: u64,
    /// How many of them could not be drained so far.
    pub failed: usize,
}

impl Stage {
    /// Nothing is staged yet.
    pub fn start(settings: Settings) -> Result<Self> {
        let failed = |error| Error::caused(ErrorKind::Storage, "cannot prepare to stage files", error);
        system::survive_leases().map_err(failed)?;
        let keeper = Keeper::start().map_err(failed)?;
        let watch = Watch::new().map_err(failed)?;
        let drains = settings.drains.max(1);
        let shared = Arc::new(Shared {
            settings,
            watch,
            keeper,
            watcher: AtomicUsize::new(0),
            files: Mutex::default(),
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            last_counted: Mutex::new(Instant::now()),
            most_files: most_files(),
            is_short: AtomicBool::new(false),
            move_out: OnceLock::new(),
            staged: Condvar::new(),
            queue: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let mut stage = Self { shared, threads: Vec::new() };
        let (ready, is_ready) = mpsc::channel();
        let shared = Arc::clone(&stage.shared);
        stage.spawn("watch", move || shared.watch(&ready)).map_err(failed)?;
        is_ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into())).map_err(failed)?;
        let shared = Arc::clone(&stage.shared);
        stage.spawn("bound", move || shared.keep_memory_free()).map_err(failed)?;
        for _ in 0..drains {
            let shared = Arc::clone(&stage.shared);
            stage.spawn("drain", move || shared.drain_queued()).map_err(failed)?;
        }
        Ok(stage)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(format!("outcrop {name}")).spawn(work)?);
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What is staged now.
    pub fn amount(&self) -> Amount {
        let files = self.shared.all();
        files.iter().for_each(|file| file.count(&self.shared.bytes));
        let failed = files.iter().filter(|file| file.has_failed()).count();
        Amount { files: files.len(), bytes: self.shared.bytes.load(Ordering::SeqCst), failed }
    }

    /// Drains everything. The programs have ended. `tell` hears how many of how many files are
    /// drained, and returns false to leave the rest.
    pub fn finish(self, mut tell: impl FnMut(usize, usize) -> bool) -> Finished {
        let files = self.shared.all();
        let mut undrained = Vec::new();
        let mut goes_on = true;
        for (done, staged) in files.iter().enumerate() {
            goes_on = goes_on && tell(done, files.len());
            let outcome = match goes_on {
                true => self.shared.settle(staged, Durable::No),
                false => Err(io::Error::other("nobody waited for it")),
            };
            let left = || io::Error::other("a process that still runs has it open for writing");
            let problem = outcome.map_or_else(Some, |_| staged.has_writers().then(left));
            if let Some(error) = problem {
                undrained.push(Undrained { path: staged.path(), error });
            }
        }
        if undrained.is_empty() {
            return Finished { undrained, keeper: None };
        }
        // The keeper goes on when this process ends. Until then, every file has to stay open.
        let keeper = Some(self.shared.keeper.process());
        std::mem::forget(self);
        Finished { undrained, keeper }
    }
}

/// How staging has ended.
#[derive(Debug)]
pub struct Finished {
    /// What could not be drained.
    pub undrained: Vec<Undrained>,
    /// The process that goes on trying, if there is anything to try.
    pub keeper: Option<u32>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.watch.wake();
        drop((self.shared.queue(), self.shared.files()));
        self.shared.staged.notify_all();
        self.shared.work.notify_all();
        self.shared.progress.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// How many files can be staged at once: each takes two descriptors.
fn most_files() -> usize {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    (descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2).min(keeper::SLOTS as u64) as usize
}

/// Has the users of files make a call in which they get the real files instead, where that is
/// possible.
type MoveOut = fn(&Shared, &[Arc<Staged>]) -> io::Result<()>;

/// What the threads share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    watch: Watch,
    keeper: Keeper,
    /// The thread that the system tells when a lease is wanted.
    watcher: AtomicUsize,
    files: Mutex<Files>,
    /// How many files there are, without a lock.
    count: AtomicUsize,
    bytes: AtomicU64,
    last_counted: Mutex<Instant>,
    most_files: usize,
    /// The machine has no memory left.
    is_short: AtomicBool,
    move_out: OnceLock<MoveOut>,
    /// Something is staged.
    staged: Condvar,
    queue: Mutex<Queue>,
    work: Condvar,
    progress: Condvar,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Files {
    /// By the real file, and by the file in memory.
    by_id: HashMap<FileId, Arc<Staged>>,
    by_watch: HashMap<i32, Weak<Staged>>,
    by_descriptor: HashMap<RawFd, Weak<Staged>>,
    /// What has to be taken back of each, by the real file.
    places: HashMap<FileId, Place>,
}

struct Place {
    watch: i32,
    descriptor: RawFd,
    slot: Option<keeper::Slot>,
}

/// What a file to stage needs.
struct Prepared {
    id: FileId,
    memory: Memory,
    stat: rustix::fs::Stat,
    watch: i32,
    is_leased: bool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Arc<Staged>, u32)>,
    active: usize,
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, files that outgrow the memory are moved out of it in this way.
    pub(crate) fn can_move_out(&self, how: MoveOut) {
        let _ = self.move_out.set(how);
    }

    /// Whether nothing is staged.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The staged file of which this is the real file or the file in memory.
    pub(crate) fn find(&self, id: FileId) -> Option<Arc<Staged>> {
        if self.is_empty() {
            return None;
        }
        self.files().by_id.get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Staged>> {
        let files = self.files();
        files.places.keys().filter_map(|id| files.by_id.get(id).cloned()).collect()
    }

    /// Stages `real`, which was opened or created just now, for reading and writing if possible,
    /// and opens it with these flags. Gives it back if it cannot be staged: somebody else has it
    /// open, or memory is short.
    pub(crate) fn add(&self, real: File, is_new: bool, flags: libc::c_int) -> std::result::Result<OwnedFd, File> {
        match self.prepare(&real, is_new) {
            Ok(Some(prepared)) => {
                let staged = Staged::new(real, prepared.id, (prepared.memory, prepared.stat), prepared.is_leased);
                let opened = staged.open(flags & !libc::O_TRUNC);
                let staged = self.insert(staged, prepared.watch);
                match opened {
                    Some(Ok(opened)) => Ok(opened),
                    // It is drained and forgotten like any other one.
                    _ => {
                        let real = staged.real().and_then(|real| real.try_clone().ok());
                        self.enqueue(staged, 0);
                        real.map_or_else(|| unreachable!("a new file has its real file"), Err)
                    }
                }
            }
            Ok(None) => Err(real),
            Err(error) => {
                tracing::debug!("{} is not staged: {error}", path_of(&real).display());
                system::release_lease(real.as_fd());
                Err(real)
            }
        }
    }

    fn lease(&self, real: BorrowedFd<'_>) -> io::Result<bool> {
        signal_thread(real, self.watcher.load(Ordering::SeqCst) as libc::pid_t, Signals::number())?;
        take_lease(real, Lease::Sole)
    }

    /// Memory with the bytes of the file, that is watched. `None` if it shall not be staged.
    fn prepare(&self, real: &File, is_new: bool) -> io::Result<Option<Prepared>> {
        let real_stat = fstat(real)?;
        let id = FileId::from(&real_stat);
        if self.find(id).is_some() || !self.has_room() {
            return Ok(None);
        }
        let is_leased = match self.lease(real.as_fd()) {
            Ok(true) => true,
            Ok(false) => return Ok(None),
            // Without leases there is no telling who else has the file open, unless it is new. If
            // it was cut off just now, there is nothing in it that others could miss.
            Err(error) if is_new || (real_stat.st_size == 0 && !is_denied(&error)) => false,
            Err(error) => return Err(error),
        };
        let memory = Memory::new()?;
        if real_stat.st_size > 0 {
            let writable = memory.open(libc::O_WRONLY)?;
            make_equal(real.as_fd(), writable.as_fd(), Compare::No, &mut Buffer::new())?;
        }
        let watch = self.watch.add(&memory.path())?;
        let stat = memory.stat()?;
        Ok(Some(Prepared { id, memory, stat, watch, is_leased }))
    }

    fn insert(&self, staged: Staged, watch: i32) -> Arc<Staged> {
        let staged = Arc::new(staged);
        let descriptor = staged.real().map_or(-1, |real| real.as_raw_fd());
        let slot = self.keeper.keep(staged.memory().as_raw_fd(), descriptor);
        let mut files = self.files();
        files.by_id.insert(staged.id, Arc::clone(&staged));
        files.by_id.insert(staged.memory_id, Arc::clone(&staged));
        files.by_watch.insert(watch, Arc::downgrade(&staged));
        files.by_descriptor.insert(descriptor, Arc::downgrade(&staged));
        files.places.insert(staged.id, Place { watch, descriptor, slot: Some(slot) });
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(files);
        self.staged.notify_all();
        self.watch.later(MARK_AFTER, Arc::downgrade(&staged), Look::Mark);
        staged
    }

    /// Stops staging a file if everything is drained and nobody has it open. Returns whether it is
    /// staged no more.
    fn release(&self, staged: &Staged) -> bool {
        staged.release(|real| self.close(staged, real))
    }

    /// Closes the real file of one that is staged no more, and forgets it.
    pub(crate) fn close(&self, staged: &Staged, real: Arc<File>) {
        // The keeper may use it until it is told to forget it.
        if let Some(slot) = self.files().places.get_mut(&staged.id).and_then(|place| place.slot.take()) {
            self.keeper.forget(slot);
        }
        drop(real);
        self.remove(staged);
    }

    /// The processes that have every staged file open: this one and the keeper.
    pub(crate) fn own_processes(&self) -> [u32; 2] {
        [std::process::id(), self.keeper.process()]
    }

    /// Forgets a file that is staged no more.
    fn remove(&self, staged: &Staged) {
        let mut files = self.files();
        let Some(place) = files.places.remove(&staged.id) else { return };
        files.by_id.remove(&staged.id);
        files.by_id.remove(&staged.memory_id);
        files.by_watch.remove(&place.watch);
        files.by_descriptor.remove(&place.descriptor);
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(staged.counted.swap(0, Ordering::Relaxed), Ordering::SeqCst);
        drop(files);
        self.watch.remove(place.watch);
    }

    /// Waits, if memory is short, until closed files are drained. Returns whether there is memory
    /// then.
    fn has_room(&self) -> bool {
        self.count_sometimes();
        self.wait_for(|| {
            !self.is_short.load(Ordering::SeqCst)
                && self.bytes.load(Ordering::SeqCst) < self.settings.memory
                && self.count.load(Ordering::SeqCst) < self.most_files
        })
    }

    /// Finds out how much memory open files take. Small writes are not noticed otherwise.
    fn count_sometimes(&self) {
        let mut counted = self.last_counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.elapsed() >= COUNT_EVERY {
            self.count_all();
            *counted = Instant::now();
        }
    }

    fn count_all(&self) {
        self.all().iter().for_each(|staged| staged.count(&self.bytes));
    }

    /// Waits until it is so, for as long as anything drains. Returns whether it is so.
    fn wait_for(&self, is_so: impl Fn() -> bool) -> bool {
        if is_so() {
            return true;
        }
        let mut queue = self.queue();
        loop {
            if is_so() {
                return true;
            }
            if (queue.waiting.is_empty() && queue.active == 0) || self.is_over.load(Ordering::SeqCst) {
                return false;
            }
            queue = self.progress.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the file may grow by this many bytes. Waits for closed files to be drained.
    pub(crate) fn may_grow(&self, staged: &Staged, bytes: u64) -> bool {
        staged.count(&self.bytes);
        self.wait_for(|| {
            !self.is_short.load(Ordering::SeqCst) && self.bytes.load(Ordering::SeqCst) + bytes <= self.settings.memory
        })
    }

    /// Whether an existing file of this length may be staged.
    pub(crate) fn is_worth_it(&self, bytes: u64) -> bool {
        bytes <= COPY_UP_AT_MOST.min(self.settings.memory / 4)
    }

    /// Drains a file, and stops staging it if nobody has it open. Returns whether it is staged no
    /// more.
    pub(crate) fn settle(&self, staged: &Staged, durable: Durable) -> io::Result<bool> {
        staged.drain(durable, &mut Buffer::new())?;
        Ok(self.release(staged))
    }

    /// What `fsync` of a staged file does.
    pub(crate) fn sync(&self, staged: &Staged) -> io::Result<()> {
        if let Some(error) = staged.take_failure() {
            return Err(error);
        }
        match self.settings.fsync {
            Fsync::Disk => staged.drain(Durable::Yes, &mut Buffer::new()),
            Fsync::Memory => Ok(()),
        }
    }

    /// Drains everything. Returns what could not be drained.
    pub(crate) fn drain_all(&self, durable: Durable) -> Vec<Undrained> {
        let mut undrained = Vec::new();
        for staged in self.all() {
            if let Err(error) = self.settle(&staged, durable) {
                undrained.push(Undrained { path: staged.path(), error });
            }
        }
        undrained
    }

    fn enqueue(&self, staged: Arc<Staged>, looks: u32) {
        self.queue().waiting.push_back((staged, looks));
        self.work.notify_one();
    }

    /// The watching thread.
    fn watch(&self, ready: &mpsc::Sender<io::Result<()>>) {
        let signals = match Signals::of_this_thread() {
            Ok(signals) => signals,
            Err(error) => return drop(ready.send(Err(error))),
        };
        self.watcher.store(gettid().as_raw_nonzero().get() as usize, Ordering::SeqCst);
        let _ = ready.send(Ok(()));
        self.watch.run(&signals, |told| self.told(told), || self.is_over.load(Ordering::SeqCst));
    }

    fn told(&self, told: Told) {
        match told {
            Told::Closed(watch) => {
                let closed = self.files().by_watch.get(&watch).and_then(Weak::upgrade);
                if let Some(staged) = closed {
                    self.enqueue(staged, 0);
                }
            }
            Told::Wanted(descriptor) => {
                let wanted = self.files().by_descriptor.get(&descriptor).and_then(Weak::upgrade);
                if let Some(staged) = wanted {
                    staged.is_wanted.store(true, Ordering::SeqCst);
                    self.enqueue(staged, 0);
                }
            }
            Told::SomeWanted => {
                for staged in self.all().into_iter().filter(|staged| staged.is_breaking()) {
                    staged.is_wanted.store(true, Ordering::SeqCst);
                    self.enqueue(staged, 0);
                }
            }
            Told::Overflow => self.all().into_iter().for_each(|staged| self.enqueue(staged, 0)),
            Told::Due(staged, Look::Mark) => {
                if let Some(staged) = staged.upgrade() {
                    staged.mark();
                }
            }
            Told::Due(staged, Look::Again(looks)) => {
                if let Some(staged) = staged.upgrade() {
                    self.enqueue(staged, looks);
                }
            }
            Told::Stop => {}
        }
    }

    /// A draining thread.
    fn drain_queued(&self) {
        let mut buffer = Buffer::new();
        let mut queue = self.queue();
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((staged, looks)) = queue.waiting.pop_front() else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.active += 1;
            drop(queue);
            self.look_at(&staged, looks, &mut buffer);
            drop(staged);
            queue = self.queue();
            queue.active -= 1;
            self.progress.notify_all();
        }
    }

    /// Drains a file if nobody has it open for writing, or if somebody waits for it. Stops staging
    /// it if nobody has it open.
    fn look_at(&self, staged: &Arc<Staged>, looks: u32, buffer: &mut Buffer) {
        let is_wanted = staged.is_wanted.swap(false, Ordering::SeqCst);
        staged.count(&self.bytes);
        let again = |after, looks| self.watch.later(after, Arc::downgrade(staged), Look::Again(looks));
        if (is_wanted || !staged.has_writers())
            && let Err(error) = staged.drain(Durable::No, buffer)
        {
            tracing::warn!("cannot drain {}, it stays in memory: {error}", staged.path().display());
            again(TRY_AGAIN_AFTER, LOOKS);
        }
        if self.release(staged) {
            return;
        }
        // Not before: whoever waits may not like that the file is open for writing here.
        if is_wanted {
            staged.release_lease();
        }
        if looks < LOOKS {
            again(Duration::from_millis(1 << looks), looks + 1);
        }
    }
}

/// Whether only the owner may do it.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// A descriptor on the real file itself, if that is possible.
pub(crate) fn straight(real: File, flags: libc::c_int) -> io::Result<OwnedFd> {
    let of_name = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    match reopen(real.as_fd(), flags & !of_name) {
        Ok(opened) => Ok(opened),
        // Whoever creates a file may write to it, whatever its mode is.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            if flags & libc::O_APPEND != 0 {
                rustix::fs::fcntl_setfl(&real, rustix::fs::OFlags::APPEND)?;
            }
            Ok(real.into())
        }
        Err(error) => Err(error),
    }
}
