//! An image by write protection (userfaultfd): a page is copied before it can be written.
//!
//! A thread is notified of each write to a protected page, copies the page to a pool, and lets the
//! write continue. Pages that are still protected are read in place. The program may unmap its
//! memory at any time, so it is only read by a system call, which fails if the memory is gone.
//! Afterwards this checks that the pages are still protected by this image: only then are the bytes
//! those that were frozen.
//!
//! Nothing here may wait for memory that is protected here. So only whole pages inside the frozen
//! memory are protected (the ends are copied at once), and neither the thread nor a reader
//! allocates: if the program frees frozen memory, the allocator may reuse it.

use std::{
    io,
    mem::ManuallyDrop,
    ops::Range,
    sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outcrop_memory::{Pages, Private};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::OwnedFd,
    io::Errno,
};

use super::{FreezeOptions, FreezeWay, child::image_bytes, refused};
use crate::{
    Error, Result,
    pagemap::Pagemap,
    ranges::{addresses, page_bytes, released_pages, shared, whole_pages},
    userfault::Userfault,
};

/// How many bytes a reader copies before it releases the lock for the thread.
const RUN_BYTES: usize = 256 << 10;

/// Where the bytes of a page are. Values from `IN_POOL` on: in the pool, at this number minus
/// `IN_POOL`.
type Place = u32;
const PROTECTED: Place = 0;
/// Protected, and a write to it waits.
const AWAITED: Place = 1;
const RELEASED: Place = 2;
const VANISHED: Place = 3;
const IN_POOL: Place = 4;

/// A part of the frozen memory.
struct Part {
    range: Range<usize>,
    /// Its whole pages, and the number of the first one.
    pages: Range<usize>,
    first_page: usize,
    /// The ends that are not whole pages.
    head: Vec<u8>,
    tail: Vec<u8>,
    /// How many bytes were released from the start.
    released: usize,
}

/// Everything that changes, with all memory that changes need.
struct State {
    parts: Vec<Part>,
    /// Indices of the parts, by address.
    by_address: Vec<usize>,
    places: Vec<Place>,
    pool: Private,
    rooms: usize,
    /// Pages of the pool that were used and are free again, and how many were ever used.
    free: Vec<u32>,
    used: usize,
    awaited: usize,
    /// Since when a write waits without anything being released.
    waiting_since: Option<Instant>,
    is_given_up: bool,
    map: Pagemap,
}

struct Shared {
    fault: Userfault,
    /// Signals the thread to end.
    end: OwnedFd,
    state: Mutex<State>,
    wait_max: Duration,
    process: libc::pid_t,
    /// Passed once the thread has started, because starting allocates.
    begun: Barrier,
}

pub(super) struct Protected {
    shared: ManuallyDrop<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Protected {
    pub(super) fn new(memory: &[&[u8]], options: &FreezeOptions) -> Result<Self> {
        let failed = |attempt| move |source: io::Error| refused(FreezeWay::Protect, attempt, source);
        let fault = Userfault::synchronous().map_err(failed("handle faults of the system"))?;
        let map = Pagemap::open().map_err(failed("open its page map"))?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(|source| failed("make an event")(source.into()))?;
        let state = State::new(memory, options.extra_bytes_max, map)?;
        let pages: Vec<_> =
            state.parts.iter().map(|part| part.pages.clone()).filter(|pages| !pages.is_empty()).collect();
        let shared = Arc::new(Shared {
            fault,
            end,
            state: Mutex::new(state),
            wait_max: options.wait_max,
            process: std::process::id() as libc::pid_t,
            begun: Barrier::new(2),
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("outcrop-frozen".to_owned())
            .spawn(move || for_thread.serve())
            .map_err(failed("start a thread"))?;
        shared.begun.wait();
        let mut made = Self { shared: ManuallyDrop::new(shared), thread: Some(thread) };
        let outcome = pages.iter().try_for_each(|pages| {
            made.shared.fault.register(pages)?;
            made.shared.fault.protect(pages, true)
        });
        if let Err(source) = outcome {
            made.end(true);
            return Err(failed("protect the memory")(source));
        }
        Ok(made)
    }

    pub(super) fn read(&self, part: usize, at: usize, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let is_frozen = self.shared.state().is_frozen(&addresses(rest));
            done += if is_frozen {
                // A write to frozen memory may wait for something that needs the lock, so do not
                // write to `into` under it.
                let mut bounce = [0; 4096];
                let bytes = rest.len().min(bounce.len());
                let count = self.shared.read_some(part, at + done, &mut bounce[..bytes])?;
                rest[..count].copy_from_slice(&bounce[..count]);
                count
            } else {
                self.shared.read_some(part, at + done, rest)?
            };
        }
        Ok(())
    }

    pub(super) fn release(&self, part: usize, range: Range<usize>) {
        self.shared.release(part, range);
    }

    pub(super) fn extra_bytes(&self) -> u64 {
        self.shared.state().extra_bytes()
    }

    /// Ends the protection and the thread. A forked process has neither, so it has nothing to do.
    pub(super) fn end(&mut self, is_ours: bool) {
        if !is_ours {
            return;
        }
        let Some(thread) = self.thread.take() else { return };
        // Unprotect first, because ending a thread may write to protected memory. Closing the
        // descriptor is not enough: a forked process may have it open too.
        let mut state = self.shared.state();
        self.shared.give_up(&mut state);
        for part in state.parts.iter().filter(|part| !part.pages.is_empty()) {
            self.shared.fault.unregister(&part.pages);
        }
        drop(state);
        // This cannot block, and the thread ends.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        let _ = thread.join();
        // SAFETY: not used afterwards: a second call finds no thread.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The code of the thread: handles writes until it is told to end.
    fn serve(&self) {
        self.begun.wait();
        loop {
            let waiting_since = self.state().waiting_since;
            let left = waiting_since.map(|since| self.wait_max.saturating_sub(since.elapsed()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut files = [PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.fault, PollFlags::IN)];
            let outcome = poll(&mut files, left.as_ref());
            if !files[0].revents().is_empty() {
                return;
            }
            let mut state = self.state();
            while let Ok(Some(address)) = self.fault.next_write() {
                self.written(&mut state, address);
            }
            let is_over = state.waiting_since.is_some_and(|since| since.elapsed() >= self.wait_max);
            if is_over || outcome.is_err_and(|errno| errno != Errno::INTR) {
                self.give_up(&mut state);
            }
        }
    }

    /// Handles a write to this address that waits.
    fn written(&self, state: &mut State, address: usize) {
        let Some((page, pages)) = state.page_at(address) else {
            let start = address / page_bytes() * page_bytes();
            return self.fault.wake(&(start..start + page_bytes()));
        };
        if state.places[page] == PROTECTED && !state.is_given_up {
            match state.take_room() {
                Some(room) => self.copy(state, page, &pages, room),
                None => {
                    state.places[page] = AWAITED;
                    state.awaited += 1;
                    state.waiting_since.get_or_insert_with(Instant::now);
                }
            }
        }
        if state.places[page] != AWAITED {
            self.unprotect(state, &pages);
        }
    }

    /// Copies a page to the pool, if its bytes are still the frozen ones.
    fn copy(&self, state: &mut State, page: usize, pages: &Range<usize>, room: u32) {
        let at = room as usize * page_bytes();
        let is_copied = read_self(self.process, pages.start, &mut state.pool[at..at + page_bytes()]).is_ok()
            && self.is_still_frozen(state, pages);
        if is_copied {
            state.places[page] = IN_POOL + room;
        } else {
            state.places[page] = VANISHED;
            state.free.push(room);
        }
    }

    /// Visits the ranges of these pages that this image has protected all the time: unprotecting
    /// needs the state lock. Unprotected pages are not touched, because they may belong to others
    /// by now.
    fn still_frozen(&self, state: &State, pages: &Range<usize>, mut visit: impl FnMut(&Range<usize>)) {
        let _ = state.map.protected(pages, |stretch| {
            if self.fault.register(&stretch).is_ok() {
                visit(&stretch);
            }
        });
    }

    fn is_still_frozen(&self, state: &State, pages: &Range<usize>) -> bool {
        let mut bytes = 0;
        self.still_frozen(state, pages, |stretch| bytes += stretch.len());
        bytes == pages.len()
    }

    /// Allows writes to these pages.
    fn unprotect(&self, state: &State, pages: &Range<usize>) {
        let mut woken = 0;
        self.still_frozen(state, pages, |stretch| {
            if self.fault.protect(stretch, false).is_ok() {
                woken += stretch.len();
            }
        });
        // Writes that wait for unmapped pages are repeated, and find what is there now.
        if woken < pages.len() {
            self.fault.wake(pages);
        }
    }

    /// Reads some bytes of a part, at least one, and returns how many.
    fn read_some(&self, part: usize, at: usize, into: &mut [u8]) -> Result<usize> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.is_given_up {
            return Err(Error::GivenUp { waited: self.wait_max });
        }
        if at < state.parts[part].released {
            return Err(Error::Released { part, at });
        }
        let Part { range, pages, first_page, head, tail, .. } = &state.parts[part];
        let address = range.start + at;
        if address < pages.start {
            return Ok(copy_from(&head[at..], into));
        }
        if address >= pages.end {
            return Ok(copy_from(&tail[address - pages.end..], into));
        }
        let start = address / page_bytes() * page_bytes();
        let page = first_page + (start - pages.start) / page_bytes();
        let is_here = |place: &Place| matches!(*place, PROTECTED | AWAITED);
        match state.places[page] {
            RELEASED => Err(Error::Released { part, at }),
            VANISHED => Err(Error::Vanished { part, at }),
            place if place >= IN_POOL => {
                let from = (place - IN_POOL) as usize * page_bytes();
                Ok(copy_from(&state.pool[from + (address - start)..from + page_bytes()], into))
            }
            _ => {
                let end = pages.end.min(address + into.len().min(RUN_BYTES));
                let run = state.places[page..].iter().take((end - start).div_ceil(page_bytes()));
                let run_end = start + run.take_while(|place| is_here(place)).count() * page_bytes();
                let into = &mut into[..end.min(run_end) - address];
                read_self(self.process, address, into).map_err(|_| Error::Vanished { part, at })?;
                if !self.is_still_frozen(state, &(start..run_end)) {
                    return Err(Error::Vanished { part, at });
                }
                Ok(into.len())
            }
        }
    }

    fn release(&self, part: usize, range: Range<usize>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Part { range: whole, pages, first_page, released, .. } = &mut state.parts[part];
        let gone = shared(&released_pages(whole.start, released, range), pages);
        if let Some(gone) = gone.filter(|_| !state.is_given_up) {
            let first = *first_page + (gone.start - pages.start) / page_bytes();
            for page in first..first + gone.len() / page_bytes() {
                match std::mem::replace(&mut state.places[page], RELEASED) {
                    AWAITED => state.awaited -= 1,
                    place if place >= IN_POOL => state.free.push(place - IN_POOL),
                    _ => {}
                }
            }
            self.unprotect(state, &gone);
        }
        self.serve_awaited(state);
    }

    /// Uses free pages of the pool for writes that wait.
    fn serve_awaited(&self, state: &mut State) {
        let mut from = 0;
        while state.awaited > 0 {
            let Some(found) = state.places[from..].iter().position(|place| *place == AWAITED) else { break };
            from += found;
            let Some(pages) = state.pages_of(from) else { break };
            let Some(room) = state.take_room() else { break };
            self.copy(state, from, &pages, room);
            state.awaited -= 1;
            self.unprotect(state, &pages);
        }
        state.waiting_since = (state.awaited > 0).then(Instant::now);
    }

    /// Lets all writes continue. The image is invalid from now on.
    fn give_up(&self, state: &mut State) {
        state.is_given_up = true;
        state.waiting_since = None;
        for part in state.parts.iter().filter(|part| !part.pages.is_empty()) {
            self.unprotect(state, &part.pages);
        }
    }
}

impl State {
    fn new(memory: &[&[u8]], bytes_max: u64, map: Pagemap) -> Result<Self> {
        let no_memory = |source| refused(FreezeWay::Protect, "reserve memory for copies", source);
        let mut pages_count = 0;
        let mut parts = Vec::with_capacity(memory.len());
        for memory in memory {
            let range = addresses(memory);
            let mut pages = whole_pages(range.clone());
            if pages.is_empty() {
                // No whole page: all of it is copied at once.
                pages = range.end..range.end;
            }
            let head = memory[..pages.start - range.start].to_vec();
            let tail = memory[pages.end - range.start..].to_vec();
            let first_page = pages_count;
            pages_count += pages.len() / page_bytes();
            parts.push(Part { range, pages, first_page, head, tail, released: 0 });
        }
        let mut by_address: Vec<_> = (0..parts.len()).filter(|part| !parts[*part].pages.is_empty()).collect();
        by_address.sort_unstable_by_key(|part| parts[*part].pages.start);
        let mut state = Self {
            parts,
            by_address,
            places: vec![PROTECTED; pages_count],
            pool: Private::new(0, Pages::Small).map_err(no_memory)?,
            rooms: 0,
            free: Vec::new(),
            used: 0,
            awaited: 0,
            waiting_since: None,
            is_given_up: false,
            map,
        };
        // Each page of the pool may have to be listed as free.
        let room_bytes = page_bytes() + size_of::<u32>();
        let rooms = bytes_max.saturating_sub(state.extra_bytes()) / room_bytes as u64;
        if rooms == 0 && pages_count > 0 {
            let reason = "that is not enough to protect it and to copy a single page".to_owned();
            return Err(Error::Bound { bytes: image_bytes(memory.iter().copied()), bytes_max, reason });
        }
        state.rooms = pages_count.min(usize::try_from(rooms).unwrap_or(usize::MAX));
        state.pool = Private::new(state.rooms * page_bytes(), Pages::Small).map_err(no_memory)?;
        state.free.reserve_exact(state.rooms);
        Ok(state)
    }

    /// Takes a free page of the pool.
    fn take_room(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.used < self.rooms).then(|| {
                self.used += 1;
                self.used as u32 - 1
            })
        })
    }

    /// The number and the addresses of the frozen page that contains `address`.
    fn page_at(&self, address: usize) -> Option<(usize, Range<usize>)> {
        let after = self.by_address.partition_point(|part| self.parts[*part].pages.start <= address);
        let part = &self.parts[self.by_address[after.checked_sub(1)?]];
        let start = address / page_bytes() * page_bytes();
        let page = part.first_page + (start - part.pages.start) / page_bytes();
        part.pages.contains(&address).then(|| (page, start..start + page_bytes()))
    }

    /// The addresses of a page.
    fn pages_of(&self, page: usize) -> Option<Range<usize>> {
        let after = self.parts.partition_point(|part| part.first_page <= page);
        let part = &self.parts[after.checked_sub(1)?];
        let start = part.pages.start + (page - part.first_page) * page_bytes();
        Some(start..start + page_bytes())
    }

    /// Whether part of `range` may be protected.
    fn is_frozen(&self, range: &Range<usize>) -> bool {
        let after = self.by_address.partition_point(|part| self.parts[*part].pages.start < range.end);
        after > 0 && shared(&self.parts[self.by_address[after - 1]].pages, range).is_some()
    }

    /// The extra memory of the image: the ends, the pages of the pool that were ever used, and its
    /// tables.
    fn extra_bytes(&self) -> u64 {
        let ends: usize = self.parts.iter().map(|part| part.head.len() + part.tail.len()).sum();
        let tables = size_of_val(&self.places[..]) + self.free.capacity() * size_of::<u32>();
        (ends + tables + self.used * page_bytes()) as u64
    }
}

/// Reads memory of this process through the system. Returns an error if the memory is not mapped.
fn read_self(pid: libc::pid_t, at: usize, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at + done), iov_len: rest.len() };
        // SAFETY: the local side is a slice that may be written to; the other is only read, and the
        // system checks it.
        let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(count) {
            Ok(0) => return Err(Errno::FAULT.into()),
            Ok(count) => done += count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Copies as many bytes as fit, and returns how many.
fn copy_from(from: &[u8], into: &mut [u8]) -> usize {
    let bytes = from.len().min(into.len());
    into[..bytes].copy_from_slice(&from[..bytes]);
    bytes
}
