//! An image in a forked child process that only keeps the memory.
//!
//! The C library does not know about the child, and only one thread of the program exists in it. So
//! it may only make plain system calls. It unmaps all memory that is not part of the image, so that
//! writes of the program elsewhere are not copied, and closes all files. Then it unmaps what it is
//! told to. It ends when it is killed, or when the program has ended, in whatever way.

use std::{
    fs,
    io::{self, Write},
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use outcrop_memory::{Maps, Pages, Private};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    mm::munmap,
    pipe::{PipeFlags, pipe_with},
    process::{PidfdFlags, getpid, pidfd_open},
};

use super::{FreezeWay, refused};
use crate::{
    Error, Result,
    ranges::{addresses, released_pages, tidy, touched_pages, without},
};

/// How much the child keeps on each side of its stack pointer and of its thread-local variables.
const OWN_BYTES: usize = 256 << 10;

/// The size of an order to the child to unmap a range.
const ORDER_BYTES: usize = 2 * size_of::<usize>();

pub(super) struct Child {
    pid: libc::pid_t,
    /// Its memory (`/proc/PID/mem`). `process_vm_readv` would make the kernel copy each page first.
    memory: fs::File,
    /// The pipe for orders to unmap a range.
    orders: fs::File,
    parts: Vec<Range<usize>>,
    /// How many bytes were released from the start of each part.
    released: Vec<usize>,
}

/// The size of all pages of `memory`: what an image of it takes if all of them change.
pub fn image_bytes<'a>(memory: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    pages_of(memory).iter().map(|range| range.len() as u64).sum()
}

fn pages_of<'a>(memory: impl IntoIterator<Item = &'a [u8]>) -> Vec<Range<usize>> {
    let parts = memory.into_iter().filter(|part| !part.is_empty());
    let mut pages: Vec<_> = parts.map(|part| touched_pages(addresses(part))).collect();
    tidy(&mut pages, 0..usize::MAX);
    pages
}

impl Child {
    pub(super) fn new(memory: &[&[u8]], bytes_max: u64) -> Result<Self> {
        let bytes = image_bytes(memory.iter().copied());
        if bytes > bytes_max {
            let reason = "a fork could copy all of it".to_owned();
            return Err(Error::Bound { bytes, bytes_max, reason });
        }
        let failed = |attempt| move |source: Errno| refused(FreezeWay::Fork, attempt, source);
        let parent = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed("refer to this process"))?;
        let (inbox, orders) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("make a pipe"))?;
        let excess = excess(pages_of(memory.iter().copied()))
            .map_err(|source| refused(FreezeWay::Fork, "look at its maps", source))?;
        let pid = clone(&parent, &inbox, &excess)
            .map_err(|source| refused(FreezeWay::Fork, "make a child process", source))?;
        let opened = fs::File::open(format!("/proc/{pid}/mem")).map_err(unreadable);
        let child = opened.map(|opened| Self {
            pid,
            memory: opened,
            orders: orders.into(),
            parts: memory.iter().map(|part| addresses(part)).collect(),
            released: vec![0; memory.len()],
        });
        child.and_then(|child| child.check(memory).map(|()| child)).inspect_err(|_| kill(pid))
    }

    /// Checks that the child has all the memory, and that it can be read. A mapping can be marked
    /// with `madvise` so that a fork omits or zeroes it. So one byte that is not 0 is compared in
    /// each mapping.
    fn check(&self, memory: &[&[u8]]) -> Result<()> {
        let maps = Maps::now().map_err(unreadable)?;
        for (part, memory) in memory.iter().enumerate() {
            let range = addresses(memory);
            for piece in maps.pieces(&range).map_err(unreadable)? {
                let (first, last) = (piece.range.start - range.start, piece.range.end - range.start);
                let at = first + first_set(&memory[first..last]).unwrap_or(0);
                let mut byte = [0];
                match self.memory.read_exact_at(&mut byte, (range.start + at) as u64) {
                    Ok(()) if byte[0] == memory[at] => {}
                    Err(error) if error.raw_os_error() != Some(libc::EIO) => return Err(unreadable(error)),
                    _ => return Err(Error::NotPrivate { part }),
                }
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, part: usize, at: usize, into: &mut [u8]) -> Result<()> {
        if at < self.released[part] && !into.is_empty() {
            return Err(Error::Released { part, at });
        }
        let address = self.parts[part].start + at;
        self.memory.read_exact_at(into, address as u64).map_err(|source| match source.raw_os_error() {
            Some(libc::EIO) => Error::Released { part, at },
            _ => Error::Lost { source },
        })
    }

    pub(super) fn release(&mut self, part: usize, range: Range<usize>) {
        let start = self.parts[part].start;
        let pages = released_pages(start, &mut self.released[part], range);
        if !pages.is_empty() {
            // If the child has ended, the next read fails.
            let _ = self.orders.write_all(&order(&pages));
        }
    }

    /// The private memory of the child.
    pub(super) fn extra_bytes(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).unwrap_or_default();
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        (of("Private_Clean:") + of("Private_Dirty:")) << 10
    }

    pub(super) fn end(&mut self, is_ours: bool) {
        if is_ours {
            kill(self.pid);
        }
    }
}

fn unreadable(source: io::Error) -> Error {
    refused(FreezeWay::Fork, "read from the child process", source)
}

/// Ends the child process.
fn kill(pid: libc::pid_t) {
    // SAFETY: the child is ours and was not waited for, so its process id is not reused. An
    // ordinary wait of the program does not find it.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        while libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The position of the first byte that is not 0.
fn first_set(memory: &[u8]) -> Option<usize> {
    static ZEROES: [u8; 4096] = [0; 4096];
    let chunk = memory.chunks(ZEROES.len()).position(|chunk| *chunk != ZEROES[..chunk.len()])?;
    let from = chunk * ZEROES.len();
    Some(from + memory[from..].iter().position(|byte| *byte != 0)?)
}

/// Orders to unmap the memory that the child does not need. The list itself is in memory that the
/// child keeps.
fn excess(mut kept: Vec<Range<usize>>) -> io::Result<Private> {
    let pieces = Maps::now()?.pieces(&(0..usize::MAX / 2))?;
    // Each hole splits one piece in two. The holes are the frozen memory, this list, the stack and
    // the thread-local variables.
    let mut list = Private::new((pieces.len() + kept.len() + 3) * ORDER_BYTES, Pages::Small)?;
    // SAFETY: queries the address of a thread-local variable.
    let own = unsafe { libc::__errno_location() }.addr();
    let stack = std::ptr::from_ref(&own).addr();
    kept.push(addresses(&list));
    kept.extend([own, stack].map(|at| touched_pages(at - OWN_BYTES..at + OWN_BYTES)));
    tidy(&mut kept, 0..usize::MAX);
    let anonymous = pieces.into_iter().filter(|piece| piece.is_private_anonymous && piece.is_writable);
    let unneeded = anonymous.flat_map(|piece| without(piece.range, &kept));
    for (place, range) in list.chunks_exact_mut(ORDER_BYTES).zip(unneeded) {
        place.copy_from_slice(&order(&range));
    }
    Ok(list)
}

/// An order to unmap this range: its start and its length.
fn order(range: &Range<usize>) -> [u8; ORDER_BYTES] {
    let mut order = [0; ORDER_BYTES];
    let (start, bytes) = order.split_at_mut(ORDER_BYTES / 2);
    start.copy_from_slice(&range.start.to_ne_bytes());
    bytes.copy_from_slice(&range.len().to_ne_bytes());
    order
}

/// Carries out an order, in the child.
fn obey(order: &[u8; ORDER_BYTES]) {
    let (start, bytes) = order.split_at(ORDER_BYTES / 2);
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
    // SAFETY: no order contains anything that the child uses. An order of 0 bytes does nothing.
    let _ = unsafe { munmap(std::ptr::without_provenance_mut(number(start)), number(bytes)) };
}

/// Forks the child. In it, all signals that can be blocked are blocked. Its end sends no signal.
fn clone(parent: &OwnedFd, inbox: &OwnedFd, excess: &[u8]) -> io::Result<libc::pid_t> {
    const NONE: libc::c_long = 0;
    let (parent, inbox) = (parent.as_fd(), inbox.as_fd());
    // SAFETY: plain numbers, which the calls fill before they are used; the mask belongs to the
    // thread.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    // SAFETY: like fork, but without a signal at the end; the child calls nothing for which the C
    // library would have to know about it.
    let pid = unsafe { libc::syscall(libc::SYS_clone, NONE, NONE, NONE, NONE, NONE) };
    if pid == 0 {
        keep(parent, inbox, excess);
    }
    let outcome = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) };
    // SAFETY: restores the earlier mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    outcome
}

/// The code of the child: only plain system calls.
fn keep(parent: BorrowedFd<'_>, inbox: BorrowedFd<'_>, excess: &[u8]) -> ! {
    // A file that stayed open in the child could, for example, keep the other end of a pipe from
    // closing.
    let (low, high) = match parent.as_raw_fd() < inbox.as_raw_fd() {
        true => (parent.as_raw_fd() as u32, inbox.as_raw_fd() as u32),
        false => (inbox.as_raw_fd() as u32, parent.as_raw_fd() as u32),
    };
    for (first, last) in [(0, low.wrapping_sub(1)), (low + 1, high.wrapping_sub(1)), (high + 1, u32::MAX)] {
        if first <= last && last.wrapping_add(1) != first {
            // SAFETY: this process uses none of them. A system without this call leaves them open.
            unsafe { libc::syscall(libc::SYS_close_range, libc::c_ulong::from(first), libc::c_ulong::from(last), 0) };
        }
    }
    excess.as_chunks().0.iter().for_each(obey);
    loop {
        let mut files =
            [PollFd::from_borrowed_fd(parent, PollFlags::IN), PollFd::from_borrowed_fd(inbox, PollFlags::IN)];
        if poll(&mut files, None).is_err() || !files[0].revents().is_empty() {
            break;
        }
        let mut order = [0; ORDER_BYTES];
        match rustix::io::read(inbox, &mut order) {
            // A write of this size to a pipe is atomic, so it is read as a whole.
            Ok(ORDER_BYTES) => obey(&order),
            _ => break,
        }
    }
    // SAFETY: ends the process without running any code of the program.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    unreachable!()
}
