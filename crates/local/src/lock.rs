//! Locks. This is the only file that calls the system's lock functions.
//!
//! Files are locked with **open file description locks** (`fcntl` with `F_OFD_SETLK`), not with
//! `flock` and not with the older POSIX locks of a process:
//!
//! - They belong to an open file description. Threads exclude each other as processes do, and
//!   closing another descriptor of the same file releases nothing, as it would with the locks of a
//!   process.
//! - They can be queried (`F_OFD_GETLK`) without being taken, so a query is never mistaken for a
//!   holder. `flock` can only be tried.
//! - They cover ranges of bytes, so one file has room for the locks of a thousand processes.
//! - NFS and Lustre implement them as POSIX locks between all clients, if they are mounted with
//!   locks.
//!
//! An exclusive lock needs a file that is open for writing, which a directory never is:
//! [`Description::lock_directory`] uses `flock` instead. It is for meeting places, which are local.
//!
//! The system releases a lock when its description is closed everywhere, so also when the process
//! ends in whatever way. A forked child has a copy of every descriptor, and would keep the locks of
//! a dead parent. So a [`Description`] is closed in every child that the C library forks
//! (`pthread_atfork`); an executed program closes it by itself. This releases nothing while the
//! parent has it open. A child made by a direct system call (`clone`) keeps the copies until it
//! ends, unless it closes them.

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use rustix::{
    fs::{FlockOperation, Stat, flock, fstat},
    io::{Errno, retry_on_intr},
};

/// A range of bytes to lock. The file need not be that long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) first: u32,
    /// How many, or 0 for all that follow.
    pub(crate) count: u32,
}

impl Bytes {
    /// All possible bytes.
    pub(crate) const ALL: Self = Self { first: 0, count: 0 };

    /// A single one.
    pub(crate) fn one(byte: u32) -> Self {
        Self { first: byte, count: 1 }
    }
}

/// Whether a range of bytes is locked in a way that prevents an exclusive lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// By one or more shared locks.
    Shared,
    Exclusive,
}

/// A file or directory that is open in this process, and closed in every forked child. Dropping it
/// releases its locks.
pub(crate) struct Description {
    file: ManuallyDrop<OwnedFd>,
    /// The process that opened it. A forked child has a copy of this value, but not of the
    /// descriptor.
    process: u32,
}

impl Description {
    /// Opens a description that forked children do not keep. `open` must not fork or wait.
    pub(crate) fn open(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<Self> {
        close_in_children()?;
        // Under this lock, no thread can fork between opening the file and recording it.
        let mut kept = kept();
        let file = open()?;
        kept.push(file.as_raw_fd());
        Ok(Self { file: ManuallyDrop::new(file), process: std::process::id() })
    }

    /// Whether this process opened it. False in a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The open file, unless this is a forked child.
    pub(crate) fn file(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.is_ours() { Ok(self.file.as_fd()) } else { Err(Errno::BADF) }
    }

    /// Takes an exclusive lock on `bytes`, if nobody has a lock on them.
    pub(crate) fn try_lock(&self, bytes: Bytes) -> rustix::io::Result<bool> {
        match fcntl(self.file()?, &mut range(bytes, libc::F_WRLCK), libc::F_OFD_SETLK) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for an exclusive lock on `bytes`.
    pub(crate) fn lock(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_WRLCK), libc::F_OFD_SETLKW)
    }

    /// Waits for a shared lock on `bytes`.
    pub(crate) fn lock_shared(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_RDLCK), libc::F_OFD_SETLKW)
    }

    /// Releases `bytes`.
    pub(crate) fn unlock(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_UNLCK), libc::F_OFD_SETLK)
    }

    /// Whether others have a lock on any of `bytes`. Takes no lock.
    pub(crate) fn holder(&self, bytes: Bytes) -> rustix::io::Result<Holder> {
        let mut found = range(bytes, libc::F_WRLCK);
        fcntl(self.file()?, &mut found, libc::F_OFD_GETLK)?;
        Ok(match i32::from(found.l_type) {
            libc::F_UNLCK => Holder::Nobody,
            libc::F_RDLCK => Holder::Shared,
            _ => Holder::Exclusive,
        })
    }

    /// Waits for an exclusive lock on this directory.
    pub(crate) fn lock_directory(&self) -> rustix::io::Result<()> {
        let file = self.file()?;
        retry_on_intr(|| flock(file, FlockOperation::LockExclusive))
    }
}

impl AsFd for Description {
    /// The descriptor. In a forked child it is closed, or belongs to another file.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        if !self.is_ours() {
            // It is already closed, and its number may belong to another file now.
            return;
        }
        // Closing would be enough, except for children made by a direct system call.
        let given_up = self.unlock(Bytes::ALL).and_then(|()| flock(&*self.file, FlockOperation::Unlock));
        if let Err(errno) = given_up {
            tracing::debug!(%errno, "a lock is given up when its file is closed everywhere");
        }
        // Under this lock, no thread can fork between forgetting the file and closing it.
        let mut kept = kept();
        let number = self.file.as_raw_fd();
        kept.retain(|&other| other != number);
        // SAFETY: this is the only place that drops it, and the value is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// What to do if a file system has no locks; `None` for other errors.
pub(crate) fn remedy(errno: Errno) -> Option<&'static str> {
    matches!(errno, Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)
        .then_some("choose one on a file system with locks (fcntl), or have it mounted with them")
}

/// The same as an error of the standard library, with advice.
pub(crate) fn explained(errno: Errno) -> io::Error {
    match (remedy(errno), errno) {
        (Some(remedy), _) => {
            let reason = format!("the directory cannot be used: {}; {remedy}", io::Error::from(errno));
            io::Error::new(io::ErrorKind::Unsupported, reason)
        }
        (None, Errno::LOOP | Errno::INVAL | Errno::NXIO) => {
            io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file")
        }
        (None, errno) => errno.into(),
    }
}

fn range(bytes: Bytes, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(bytes.first),
        l_len: libc::off_t::from(bytes.count),
        l_pid: 0,
    }
}

/// Calls `fcntl` for locks, again if a signal interrupts it.
fn fcntl(file: BorrowedFd<'_>, range: &mut libc::flock, command: libc::c_int) -> rustix::io::Result<()> {
    retry_on_intr(|| {
        // SAFETY: the descriptor is open, and the commands used here take a pointer to a valid
        // `flock`.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut *range) } {
            -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    })
}

/// The descriptors of all descriptions of this process. A forked child closes them.
static KEPT: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Keeps other threads from changing that list while this one forks.
static FORKING: Forking = Forking(std::cell::UnsafeCell::new(None));

struct Forking(std::cell::UnsafeCell<Option<MutexGuard<'static, Vec<RawFd>>>>);

// SAFETY: only the handlers below use it, and only in the thread that holds the mutex.
unsafe impl Sync for Forking {}

/// Whether this process has this file open for a lock.
pub(crate) fn is_open_here(file: &Stat) -> bool {
    let is_it = |raw: &RawFd| {
        // SAFETY: while the list is locked, what is in it is open.
        let open = unsafe { BorrowedFd::borrow_raw(*raw) };
        fstat(open).is_ok_and(|open| (open.st_dev, open.st_ino) == (file.st_dev, file.st_ino))
    };
    kept().iter().any(is_it)
}

fn kept() -> MutexGuard<'static, Vec<RawFd>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the C library close all descriptions in the children that it forks.
fn close_in_children() -> rustix::io::Result<()> {
    static REGISTERED: Once = Once::new();
    let mut outcome = 0;
    REGISTERED.call_once(|| {
        // SAFETY: the handlers are functions that exist as long as this library, and do nothing
        // that is forbidden in a handler.
        outcome = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    });
    if outcome == 0 { Ok(()) } else { Err(Errno::NOMEM) }
}

extern "C" fn before_fork() {
    let guard = kept();
    // SAFETY: this thread holds the mutex.
    unsafe { *FORKING.0.get() = Some(guard) };
}

extern "C" fn after_fork() {
    // SAFETY: this thread has held the mutex since `before_fork`.
    drop(unsafe { (*FORKING.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: this is the only thread of the child, as a copy of the one that has held the mutex
    // since `before_fork`.
    let Some(mut kept) = (unsafe { (*FORKING.0.get()).take() }) else { return };
    for number in kept.drain(..) {
        // SAFETY: the copy of a descriptor that nothing in the child uses: its `Description` knows
        // that it is not ours.
        unsafe { libc::close(number) };
    }
}
