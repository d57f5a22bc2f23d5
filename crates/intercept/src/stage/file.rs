//! One staged file: the real file, and the file in memory that programs have open in its place.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::fs::{
    Stat, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fdatasync, fremovexattr, fsetxattr, fstat, futimens,
};

use super::{
    copy::{Buffer, Compare, make_equal},
    memory::Memory,
    system::{FileId, is_lease_breaking, path_of, release_lease},
};

/// The extended attribute of a real file whose newest bytes are only in memory.
pub(crate) const UNDRAINED: &str = "user.outcrop.undrained";

/// Up to this length, a file that is synced again is compared with the real one.
const COMPARE_AT_MOST: u64 = 64 << 20;

/// How durable a drained file shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// The bytes are in the file.
    No,
    /// They also survive the node.
    Yes,
}

/// A staged file. Programs have its memory open, and the real file follows.
pub(crate) struct Staged {
    /// The real file.
    pub(crate) id: FileId,
    /// The file in memory.
    pub(crate) memory_id: FileId,
    /// How much memory it is known to take.
    pub(crate) counted: AtomicU64,
    /// Somebody outside waits for the real file.
    pub(crate) is_wanted: AtomicBool,
    is_sealed: AtomicBool,
    syncs: AtomicU32,
    memory: Memory,
    state: Mutex<State>,
    drained: Condvar,
}

struct State {
    /// The real file, until this file is staged no more.
    real: Option<Arc<File>>,
    is_readable: bool,
    /// How often the memory was opened for writing.
    opens: u64,
    /// How many of these are drained: they wrote, were closed, and their bytes are in the file.
    drained_opens: u64,
    /// The times of the memory when it was equal to the file.
    base: Times,
    is_draining: bool,
    is_leased: bool,
    is_marked: bool,
    /// Why it could not be drained, until somebody was told.
    untold: Option<i32>,
    /// The last drain failed. What the system shows of the file then need not be on the disk.
    has_failed: bool,
}

/// The times of a file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    accessed: (i64, i64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Stat> for Times {
    fn from(stat: &Stat) -> Self {
        let of = |seconds: i64, nanoseconds: u64| (seconds, nanoseconds as i64);
        Self {
            accessed: of(stat.st_atime, stat.st_atime_nsec),
            modified: of(stat.st_mtime, stat.st_mtime_nsec),
            changed: of(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl Staged {
    /// Stages `real`, whose bytes are in `memory` already.
    pub(crate) fn new(real: File, id: FileId, (memory, stat): (Memory, Stat), is_leased: bool) -> Self {
        let flags = rustix::fs::fcntl_getfl(&real);
        let state = State {
            real: Some(Arc::new(real)),
            is_readable: flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR)),
            opens: 0,
            drained_opens: 0,
            base: Times::from(&stat),
            is_draining: false,
            is_leased,
            is_marked: false,
            untold: None,
            has_failed: false,
        };
        Self {
            id,
            memory_id: FileId::from(&stat),
            counted: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            is_sealed: AtomicBool::new(false),
            syncs: AtomicU32::new(0),
            memory,
            state: Mutex::new(state),
            drained: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor on the memory, as `open` with these flags would return. `None` if this file is
    /// staged no more.
    pub(crate) fn open(&self, flags: libc::c_int) -> Option<io::Result<OwnedFd>> {
        let mut state = self.lock();
        state.real.as_ref()?;
        if let Some(errno) = state.untold.take() {
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        let opened = self.memory.open(flags);
        let is_writable = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        if is_writable && opened.is_ok() {
            state.opens += 1;
        }
        Some(opened)
    }

    /// The real file. `None` if this file is staged no more.
    pub(crate) fn real(&self) -> Option<Arc<File>> {
        self.lock().real.clone()
    }

    /// What `stat` of the real file would say if everything were drained.
    pub(crate) fn stat(&self) -> Option<io::Result<Stat>> {
        let state = self.lock();
        let real = state.real.as_ref()?;
        let both = || -> io::Result<(Stat, Stat)> { Ok((fstat(real)?, self.memory.stat()?)) };
        Some(both().map(|(mut stat, memory)| {
            stat.st_size = memory.st_size;
            stat.st_blocks = memory.st_blocks;
            if Times::from(&memory).modified != state.base.modified {
                (stat.st_mtime, stat.st_mtime_nsec) = (memory.st_mtime, memory.st_mtime_nsec);
                let later = (memory.st_ctime, memory.st_ctime_nsec).max((stat.st_ctime, stat.st_ctime_nsec));
                (stat.st_ctime, stat.st_ctime_nsec) = later;
            }
            stat
        }))
    }

    /// Sets the times of the memory, which the real file gets when it is drained.
    pub(crate) fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        let writable = self.memory.open(libc::O_RDONLY)?;
        Ok(futimens(&writable, times)?)
    }

    /// Keeps it from growing: what is written beyond its end fails.
    pub(crate) fn seal(&self) -> io::Result<()> {
        self.is_sealed.store(true, Ordering::Relaxed);
        self.memory.seal()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::Relaxed)
    }

    /// Whether the last attempt to drain it has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Cuts the memory off, or extends it. `None` if this file is staged no more.
    pub(crate) fn set_bytes(&self, bytes: u64) -> Option<io::Result<()>> {
        let writable = self.open(libc::O_WRONLY)?;
        Some(writable.and_then(|writable| Ok(rustix::fs::ftruncate(writable, bytes)?)))
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.memory.has_writers().unwrap_or(true)
    }

    /// How much memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.stat().map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Where the real file is now.
    pub(crate) fn path(&self) -> PathBuf {
        self.real().map_or_else(|| "(drained)".into(), path_of)
    }

    /// Makes the real file equal to what is in memory now.
    pub(crate) fn drain(&self, durable: Durable, buffer: &mut Buffer) -> io::Result<()> {
        while !self.drain_once(durable, buffer)? {}
        Ok(())
    }

    /// Returns false if somebody has set the times meanwhile, which the file has to get too.
    fn drain_once(&self, durable: Durable, buffer: &mut Buffer) -> io::Result<bool> {
        let mut state = self.lock();
        while state.is_draining {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(real) = state.real.clone() else { return Ok(true) };
        let opens = state.opens;
        let has_writers = self.memory.has_writers()?;
        let is_gone = !has_writers && fstat(&real)?.st_nlink == 0;
        let is_clean = opens == state.drained_opens || is_gone;
        let (base, can_compare) = (state.base, state.is_readable && !state.has_failed);
        state.is_draining = true;
        drop(state);

        let sync = || if durable == Durable::Yes && !is_gone { Ok(fdatasync(&real)?) } else { Ok(()) };
        let outcome = match is_clean {
            true => sync().map(|()| base),
            false => self.copy(&real, base, can_compare, buffer).and_then(|base| sync().map(|()| base)),
        };

        // Whoever stops staging the file closes it: nobody else may have it then.
        drop(real);
        let mut state = self.lock();
        state.is_draining = false;
        self.drained.notify_all();
        match outcome {
            Ok(base) => {
                state.base = base;
                state.untold = None;
                state.has_failed = false;
                // Copying itself has changed the time of access.
                let now = Times::from(&self.memory.stat()?);
                if !has_writers && !is_clean && (now.modified, now.changed) != (base.modified, base.changed) {
                    return Ok(false);
                }
                if !has_writers {
                    state.drained_opens = opens;
                }
                if state.is_marked && state.opens == state.drained_opens {
                    if let Some(real) = &state.real {
                        let _ = fremovexattr(real, UNDRAINED);
                    }
                    state.is_marked = false;
                }
                Ok(true)
            }
            Err(error) => {
                state.has_failed = true;
                state.drained_opens = 0;
                state.untold = error.raw_os_error().or(Some(libc::EIO));
                Err(error)
            }
        }
    }

    /// Copies memory to the file. Returns the times of the memory that the file has now.
    fn copy(&self, real: &File, base: Times, can_compare: bool, buffer: &mut Buffer) -> io::Result<Times> {
        let stat = self.memory.stat()?;
        // From before the copy: what changes during it is found by the next one.
        let now = Times::from(&stat);
        // A mapping does not change the times of a file in memory, so the bytes have to be
        // compared.
        let is_same = now.modified == base.modified;
        // What was drained before and is synced again has few changes.
        let is_synced = self.syncs.load(Ordering::Relaxed) > 0 && stat.st_size as u64 <= COMPARE_AT_MOST;
        let compare = if (is_same || is_synced) && can_compare { Compare::Yes } else { Compare::No };
        make_equal(self.memory.as_fd(), real.as_fd(), compare, buffer)?;
        if now != base {
            let pick = |now: (i64, i64), base: (i64, i64)| match now == base {
                true => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                false => Timespec { tv_sec: now.0, tv_nsec: now.1 },
            };
            let times = Timestamps {
                last_access: pick(now.accessed, base.accessed),
                last_modification: pick(now.modified, base.modified),
            };
            // Only the owner may set them. For others, the time of draining stays.
            let _ = futimens(real, &times);
        }
        Ok(now)
    }

    /// Gives the real file back to others, who wait for it.
    pub(crate) fn release_lease(&self) {
        let mut state = self.lock();
        if let Some(real) = state.real.as_ref().filter(|_| state.is_leased) {
            release_lease(real.as_fd());
            state.is_leased = false;
        }
    }

    /// Whether somebody waits for the real file, as far as the system says.
    pub(crate) fn is_breaking(&self) -> bool {
        let state = self.lock();
        state.real.as_ref().is_some_and(|real| state.is_leased && is_lease_breaking(real.as_fd()))
    }

    /// Stops staging it if everything is drained and nobody has it open. `close` gets the real file
    /// to close, before anybody can see that it is staged no more: who executes it must not find it
    /// open for writing. Returns whether it is staged no more.
    pub(crate) fn release(&self, close: impl FnOnce(Arc<File>)) -> bool {
        let mut state = self.lock();
        let is_over =
            !state.is_draining && state.opens == state.drained_opens && !self.memory.is_in_use().unwrap_or(true);
        if is_over && let Some(real) = state.real.take() {
            close(real);
        }
        state.real.is_none()
    }

    /// Stops staging it although a program has it open, which gets the real file in its place from
    /// `replace`. Returns false if that is not possible, because `is_possible` is false.
    pub(crate) fn move_out(
        &self,
        is_possible: impl FnOnce() -> io::Result<bool>,
        replace: impl FnOnce(File) -> io::Result<()>,
        close: impl FnOnce(Arc<File>),
    ) -> io::Result<bool> {
        let mut state = self.lock();
        while state.is_draining {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Nobody can open it as long as the state is locked.
        let Some(real) = state.real.clone() else { return Ok(false) };
        if !is_possible()? {
            return Ok(false);
        }
        let can_compare = state.is_readable && !state.has_failed;
        state.base = self.copy(&real, state.base, can_compare, &mut Buffer::new())?;
        if state.is_leased {
            release_lease(real.as_fd());
            state.is_leased = false;
        }
        replace(real.try_clone()?)?;
        if state.is_marked {
            let _ = fremovexattr(&real, UNDRAINED);
        }
        drop(real);
        if let Some(real) = state.real.take() {
            close(real);
        }
        Ok(true)
    }

    /// Marks the real file, if its bytes are not drained yet.
    pub(crate) fn mark(&self) {
        let mut state = self.lock();
        let Some(real) = state.real.as_ref().filter(|_| state.opens != state.drained_opens && !state.is_marked) else {
            return;
        };
        // Not every file system has extended attributes.
        state.is_marked = fsetxattr(real, UNDRAINED, b"1", XattrFlags::empty()).is_ok();
    }

    /// How often a program has synced it, now included.
    pub(crate) fn count_sync(&self) -> u32 {
        self.syncs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Tells once of a failure to drain.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        self.lock().untold.take().map(io::Error::from_raw_os_error)
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    pub(crate) fn count(&self, total: &AtomicU64) {
        let now = self.bytes();
        let before = self.counted.swap(now, Ordering::Relaxed);
        total.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
