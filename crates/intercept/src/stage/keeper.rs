//! Keeps what is staged when the process that stages it is killed.
//!
//! The keeper is a process that shares the descriptors of the one that stages (`CLONE_FILES`). So
//! the files in memory and the real files stay open when that one dies. A table in shared memory
//! says which belong together. The keeper waits until the other one is gone, closes everything
//! else, drains what is in the table, and ends when nobody writes to any of it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Timestamps, UTIME_OMIT, fremovexattr, fstat, futimens},
    io::retry_on_intr,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    process::{PidfdFlags, getpid, pidfd_open},
};

use super::{
    copy::{Buffer, Compare, make_equal},
    file::UNDRAINED,
    system::{Lease, checked, release_lease, take_lease},
};

/// How many files can be staged at once.
pub(super) const SLOTS: usize = 1 << 19;

/// Descriptors above this number are not in the table, and stay open.
const DESCRIPTORS: usize = 1 << 21;

/// How often the keeper looks whether programs still write to what it keeps.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The place of a file in the table.
pub(super) struct Slot(usize);

/// The process that keeps staged files, and the table that it reads.
pub(super) struct Keeper {
    table: Table,
    free: Mutex<Free>,
    process: libc::pid_t,
    /// What the keeper waits for. It is the same descriptor there, so it must stay open.
    _own: OwnedFd,
}

struct Free {
    /// Places that were used before.
    again: Vec<usize>,
    /// The first place that was never used.
    fresh: usize,
}

#[derive(Clone, Copy)]
struct Table(NonNull<Shared>);

/// What both processes see.
struct Shared {
    /// Each is 0, or both descriptors plus one.
    places: [AtomicU64; SLOTS],
    /// One bit for each descriptor, for the keeper alone.
    wanted: [AtomicU64; DESCRIPTORS / 64],
}

// SAFETY: it is memory of atomics that stays mapped as long as the keeper is there.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    fn new() -> io::Result<Self> {
        let (bytes, access) = (size_of::<Shared>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, at an address that the system chooses.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::SHARED)? };
        NonNull::new(memory.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn get(&self) -> &Shared {
        // SAFETY: the mapping has this size, and zeros are valid atomics.
        unsafe { self.0.as_ref() }
    }

    /// The pairs of a file in memory and a real file.
    fn pairs(&self) -> impl Iterator<Item = (&AtomicU64, BorrowedFd<'_>, BorrowedFd<'_>)> {
        self.get().places.iter().filter_map(|place| {
            let both = place.load(Ordering::SeqCst);
            // SAFETY: the place is cleared before the descriptors are closed.
            let borrow = |number: u64| unsafe { BorrowedFd::borrow_raw(number as RawFd - 1) };
            (both != 0).then(|| (place, borrow(both >> 32), borrow(both & 0xffff_ffff)))
        })
    }

    /// Closes every descriptor that is not in the table. Somebody may wait for the end of a pipe,
    /// or for an answer that nobody gives any more.
    fn close_others(&self) {
        let wanted = &self.get().wanted;
        for number in self.pairs().flat_map(|(_, memory, real)| [memory.as_raw_fd(), real.as_raw_fd()]) {
            if let Some(bits) = wanted.get(number as usize / 64) {
                bits.fetch_or(1 << (number % 64), Ordering::SeqCst);
            }
        }
        let is_wanted = |number: &usize| wanted[number / 64].load(Ordering::SeqCst) >> (number % 64) & 1 == 1;
        let mut from = 0;
        for number in (0..DESCRIPTORS).filter(is_wanted).chain([DESCRIPTORS]) {
            if number > from {
                // SAFETY: nobody else uses them: all threads of the other process are gone.
                unsafe { libc::syscall(libc::SYS_close_range, from, number - 1, 0) };
            }
            from = number + 1;
        }
    }
}

impl Keeper {
    /// Starts the process.
    pub(super) fn start() -> io::Result<Self> {
        let table = Table::new()?;
        let mut buffer = Buffer::new();
        let other = pidfd_open(getpid(), PidfdFlags::empty())?;
        // No signal at its end: nobody who waits for children of this process shall see this one.
        let flags = libc::CLONE_FILES;
        // SAFETY: a fork. The child only calls the system, and never returns.
        let process = checked(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
        if process == 0 {
            keep(table, &other, &mut buffer);
            // SAFETY: ends the child, which runs nothing of this program.
            unsafe { libc::_exit(0) };
        }
        Ok(Self {
            table,
            free: Mutex::new(Free { again: Vec::new(), fresh: 0 }),
            process: process as libc::pid_t,
            _own: other,
        })
    }

    /// Keeps a file in memory and the real file of it. Both stay open until it is forgotten.
    pub(super) fn keep(&self, memory: RawFd, real: RawFd) -> Slot {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free.again.pop().unwrap_or_else(|| {
            free.fresh += 1;
            free.fresh - 1
        });
        let both = (memory as u64 + 1) << 32 | (real as u64 + 1);
        self.table.get().places[slot].store(both, Ordering::SeqCst);
        Slot(slot)
    }

    /// Forgets a file, before it is closed.
    pub(super) fn forget(&self, slot: Slot) {
        self.table.get().places[slot.0].store(0, Ordering::SeqCst);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).again.push(slot.0);
    }

    pub(super) fn process(&self) -> u32 {
        self.process as u32
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: our own child, which nobody else waits for, and memory that nobody uses any more.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), libc::__WALL);
            let _ = munmap(self.table.0.as_ptr().cast(), size_of::<Shared>());
        }
    }
}

/// What the keeper does. It must not allocate: another thread of the process that it is a copy of
/// may have been in the middle of that.
fn keep(table: Table, other: &OwnedFd, buffer: &mut Buffer) {
    // Signals from a terminal are not for the keeper.
    let _ = rustix::process::setsid();
    let mut waiting = [PollFd::from_borrowed_fd(other.as_fd(), PollFlags::IN)];
    if retry_on_intr(|| poll(&mut waiting, None)).is_err() {
        return;
    }
    table.close_others();
    loop {
        let mut are_left = false;
        for (place, memory, real) in table.pairs() {
            // Before the copy, so that everything is in it if there are no writers.
            let has_writers = !take_lease(memory, Lease::NoWriter).unwrap_or(true);
            release_lease(memory);
            // What was removed need not be drained.
            let is_gone = !has_writers && fstat(real).is_ok_and(|stat| stat.st_nlink == 0);
            let is_drained = is_gone || drain(memory, real, buffer).is_ok();
            if is_drained {
                // Whoever waits for the file can have it now.
                release_lease(real);
            }
            if !is_drained || has_writers {
                are_left = true;
                continue;
            }
            place.store(0, Ordering::SeqCst);
            // SAFETY: nobody else uses it.
            unsafe { libc::close(real.as_raw_fd()) };
        }
        if !are_left {
            return;
        }
        let _ = poll(&mut [], Some(&LOOK_EVERY));
    }
}

fn drain(memory: BorrowedFd<'_>, real: BorrowedFd<'_>, buffer: &mut Buffer) -> io::Result<()> {
    make_equal(memory, real, Compare::No, buffer)?;
    let stat = fstat(memory)?;
    let _ = futimens(
        real,
        &Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: rustix::fs::Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 },
        },
    );
    let _ = fremovexattr(real, UNDRAINED);
    Ok(())
}
