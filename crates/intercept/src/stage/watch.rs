//! Learns when a staged file was closed, and when somebody outside waits for a real file.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};

use super::{file::Staged, system::checked};

/// What the watching thread was told.
pub(crate) enum Told {
    /// Somebody closed the file in memory with this number.
    Closed(i32),
    /// More was closed than the system could remember.
    Overflow,
    /// Somebody waits for the real file with this descriptor.
    Wanted(RawFd),
    /// Somebody waits for some real file.
    SomeWanted,
    /// It is time to look at this file.
    Due(Weak<Staged>, Look),
    /// The end.
    Stop,
}

/// Why to look at a file later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It may be closed by now. The system says so a moment before it counts it as closed.
    Again(u32),
    /// It should be marked if it still is not drained.
    Mark,
}

struct Timer {
    at: Instant,
    file: Weak<Staged>,
    look: Look,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// What the watching thread waits for.
pub(crate) struct Watch {
    closes: OwnedFd,
    wake: OwnedFd,
    timers: Mutex<BinaryHeap<Reverse<Timer>>>,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            closes: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timers: Mutex::new(BinaryHeap::new()),
        })
    }

    /// Watches for closes of the file at `path`. Returns its number.
    pub(crate) fn add(&self, path: &Path) -> io::Result<i32> {
        Ok(inotify::add_watch(&self.closes, path, WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE)?)
    }

    pub(crate) fn remove(&self, number: i32) {
        let _ = inotify::remove_watch(&self.closes, number);
    }

    /// Looks at a file after a while.
    pub(crate) fn later(&self, after: Duration, file: Weak<Staged>, look: Look) {
        let timer = Timer { at: Instant::now() + after, file, look };
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = timers.peek().is_none_or(|Reverse(first)| timer.at < first.at);
        timers.push(Reverse(timer));
        drop(timers);
        if is_first {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn due(&self) -> (Vec<Told>, Option<Duration>) {
        let now = Instant::now();
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        while timers.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            let Some(Reverse(timer)) = timers.pop() else { break };
            due.push(Told::Due(timer.file, timer.look));
        }
        let next = timers.peek().map(|Reverse(timer)| timer.at - now);
        (due, next)
    }

    /// Waits for news, and passes them on, until `tell` says that it is over.
    pub(crate) fn run(&self, signals: &Signals, mut tell: impl FnMut(Told), is_over: impl Fn() -> bool) {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        while !is_over() {
            let (due, next) = self.due();
            due.into_iter().for_each(&mut tell);
            let timeout =
                next.map(|next| Timespec { tv_sec: next.as_secs() as i64, tv_nsec: i64::from(next.subsec_nanos()) });
            let of = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
            let mut waiting = [of(self.closes.as_fd()), of(self.wake.as_fd()), of(signals.0.as_fd())];
            match poll(&mut waiting, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nothing that the caller could do wrong, or right.
                Err(error) => return tracing::error!("cannot wait for staged files: {error}"),
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
            signals.tell(&mut tell);
            self.tell_closed(&mut buffer, &mut tell);
        }
        tell(Told::Stop);
    }

    fn tell_closed(&self, buffer: &mut [MaybeUninit<u8>], tell: &mut impl FnMut(Told)) {
        let mut reader = inotify::Reader::new(self.closes.as_fd(), buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                tell(Told::Overflow);
            } else if event.events().intersects(ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE) {
                tell(Told::Closed(event.wd()));
            }
        }
    }
}

/// The signals by which the system tells one thread that a lease is wanted back.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// The signal that a lease is to send.
    pub(crate) fn number() -> libc::c_int {
        libc::SIGRTMIN() + 9
    }

    /// The signals of the calling thread, which from now on come here instead.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        // SAFETY: the set is initialised by the first call, and only read by the others.
        let file = unsafe {
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), Self::number());
            // What the system sends when it has no memory for the other one.
            libc::sigaddset(set.as_mut_ptr(), libc::SIGIO);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        checked(file)?;
        // SAFETY: it was just opened.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(file) }))
    }

    fn tell(&self, tell: &mut impl FnMut(Told)) {
        let mut signal = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the system fills at most these bytes, and any bytes are a valid value.
        while unsafe { libc::read(self.0.as_raw_fd(), signal.as_mut_ptr().cast(), bytes) } == bytes as isize {
            // SAFETY: it was just filled.
            let signal = unsafe { signal.assume_init() };
            match signal.ssi_signo == libc::SIGIO as u32 {
                true => tell(Told::SomeWanted),
                false => tell(Told::Wanted(signal.ssi_fd)),
            }
        }
    }
}
