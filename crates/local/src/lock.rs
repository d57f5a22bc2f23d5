//! Locks: the only file in which the system is asked for one.
//!
//! Files are locked with **open file description locks** (`fcntl` with `F_OFD_SETLK`), not with
//! `flock` and not with the older POSIX locks of a process:
//!
//! - They belong to what was opened. Threads exclude each other like processes do, and closing some
//!   other descriptor of the same file gives nothing up, as it would with the locks of a process.
//! - They can be asked about (`F_OFD_GETLK`) without being taken, so that looking at a lock never
//!   looks like holding it. `flock` can only be tried.
//! - They cover ranges of bytes, so that one file has room for the locks of a thousand processes.
//! - NFS and Lustre know them as the POSIX locks of all clients, where they are mounted with locks.
//!
//! An exclusive one needs a file that is open for writing. A directory never is:
//! [`Description::lock_directory`] takes `flock` instead. It is for meeting places, which are
//! local.
//!
//! The system gives a lock up when its description is closed everywhere, so when the process ends
//! in whatever way. A forked child has a copy of every descriptor and would keep the locks of a
//! dead parent. So a [`Description`] is closed in every child that the C library forks
//! (`pthread_atfork`); what is executed closes it by itself. Closing gives nothing up while the
//! parent has it open. A child that the system was asked for directly (`clone`) keeps the copies
//! until it ends, unless it closes them.

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, retry_on_intr},
};

/// A range of bytes that is locked. The file need not have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) first: u32,
    /// How many, or 0 for all that follow.
    pub(crate) count: u32,
}

impl Bytes {
    /// All that there can be.
    pub(crate) const ALL: Self = Self { first: 0, count: 0 };

    /// A single one.
    pub(crate) fn one(byte: u32) -> Self {
        Self { first: byte, count: 1 }
    }
}

/// Who has a range of bytes locked in a way that keeps an exclusive lock from being taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// One or more, together.
    Shared,
    Exclusive,
}

/// A file or directory that is open in this process and in no forked child. Dropping it gives its
/// locks up.
pub(crate) struct Description {
    file: ManuallyDrop<OwnedFd>,
    /// Who opened it: a forked child has a copy of this value, but not of the descriptor.
    process: u32,
}

impl Description {
    /// Keeps what `open` opens from forked children. It must not fork or wait.
    pub(crate) fn open(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> rustix::io::Result<Self> {
        close_in_children()?;
        // Nobody can fork between opening it and noting that it is to be closed.
        let mut kept = kept();
        let file = open()?;
        kept.push(file.as_raw_fd());
        Ok(Self { file: ManuallyDrop::new(file), process: std::process::id() })
    }

    /// Whether this process opened it, and not one that this one was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The open file, unless this is a forked child.
    pub(crate) fn file(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.is_ours() { Ok(self.file.as_fd()) } else { Err(Errno::BADF) }
    }

    /// Locks `bytes` for this description alone, if nobody has them.
    pub(crate) fn try_lock(&self, bytes: Bytes) -> rustix::io::Result<bool> {
        match fcntl(self.file()?, &mut range(bytes, libc::F_WRLCK), libc::F_OFD_SETLK) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until `bytes` can be locked for this description alone.
    pub(crate) fn lock(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_WRLCK), libc::F_OFD_SETLKW)
    }

    /// Waits until nobody has `bytes` alone, and then keeps them together with others.
    pub(crate) fn lock_shared(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_RDLCK), libc::F_OFD_SETLKW)
    }

    /// Gives `bytes` up.
    pub(crate) fn unlock(&self, bytes: Bytes) -> rustix::io::Result<()> {
        fcntl(self.file()?, &mut range(bytes, libc::F_UNLCK), libc::F_OFD_SETLK)
    }

    /// Who else has any of `bytes`. Takes nothing.
    pub(crate) fn holder(&self, bytes: Bytes) -> rustix::io::Result<Holder> {
        let mut found = range(bytes, libc::F_WRLCK);
        fcntl(self.file()?, &mut found, libc::F_OFD_GETLK)?;
        Ok(match i32::from(found.l_type) {
            libc::F_UNLCK => Holder::Nobody,
            libc::F_RDLCK => Holder::Shared,
            _ => Holder::Exclusive,
        })
    }

    /// Waits until this directory can be locked for this description alone.
    pub(crate) fn lock_directory(&self) -> rustix::io::Result<()> {
        let file = self.file()?;
        retry_on_intr(|| flock(file, FlockOperation::LockExclusive))
    }
}

impl AsFd for Description {
    /// The descriptor; in a forked child it is closed, or another's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        if !self.is_ours() {
            // It is closed already, and its number may be another file's by now.
            return;
        }
        // Closing it would do, but for children that the system was asked for directly.
        let given_up = self.unlock(Bytes::ALL).and_then(|()| flock(&*self.file, FlockOperation::Unlock));
        if let Err(errno) = given_up {
            tracing::debug!(%errno, "a lock is given up when its file is closed everywhere");
        }
        // Nobody can fork between forgetting it and closing it.
        let mut kept = kept();
        let number = self.file.as_raw_fd();
        kept.retain(|&other| other != number);
        // SAFETY: this is the only place that drops it, and the value is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// What to do where a file system has no locks; nothing if `errno` says something else.
pub(crate) fn remedy(errno: Errno) -> Option<&'static str> {
    matches!(errno, Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)
        .then_some("choose one on a file system with locks (fcntl), or have it mounted with them")
}

/// The same as an error of the standard library, which says what to do.
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

/// A command about locks that a signal does not end.
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

/// The descriptors of all descriptions of this process, which a forked child closes.
static KEPT: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// What keeps other threads from changing that list while this one forks.
static FORKING: Forking = Forking(std::cell::UnsafeCell::new(None));

struct Forking(std::cell::UnsafeCell<Option<MutexGuard<'static, Vec<RawFd>>>>);

// SAFETY: only the handlers below use it, and only in the thread that holds the mutex.
unsafe impl Sync for Forking {}

fn kept() -> MutexGuard<'static, Vec<RawFd>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the C library close all descriptions in the children that it forks.
fn close_in_children() -> rustix::io::Result<()> {
    static REGISTERED: Once = Once::new();
    let mut outcome = 0;
    REGISTERED.call_once(|| {
        // SAFETY: the handlers are functions that live as long as this library, and do nothing that
        // a handler must not.
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
