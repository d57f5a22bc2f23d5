//! Signals that are meant for the program are passed on to it.
//!
//! The program is in the same process group as this process. What the terminal sends (Ctrl-C) it
//! has got already; what somebody sends to this process alone it has not.

use std::{
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, c_int};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit},
};
use signal_hook_registry::SigId;

/// The signals that are passed on.
const PASSED_ON: [c_int; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT];

/// Says that the program has ended, in place of a signal.
const ENDED: u8 = 0;

/// Listens to signals until it is dropped.
pub(crate) struct Signals {
    reader: std::fs::File,
    writer: OwnedFd,
    registered: Vec<SigId>,
}

/// What has happened.
pub(crate) enum News {
    /// The program has ended.
    Ended,
    /// A signal has come, from the terminal or from somebody.
    Signal { number: c_int, is_of_terminal: bool },
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        let mut signals = Self { reader: reader.into(), writer, registered: Vec::new() };
        let raw = signals.writer.as_raw_fd();
        for number in PASSED_ON {
            let action = move |info: &libc::siginfo_t| {
                let news = [number as u8, u8::from(info.si_code > 0)];
                // SAFETY: `write` may be called in a handler; the pipe is closed only after the
                // handler is gone. A full pipe loses a signal of which many are waiting.
                unsafe { libc::write(raw, news.as_ptr().cast(), news.len()) };
            };
            // SAFETY: the action calls nothing but `write`.
            signals.registered.push(unsafe { signal_hook_registry::register_sigaction(number, action) }?);
        }
        Ok(signals)
    }

    /// Something to wake [`next`](Self::next) with.
    pub(crate) fn ending(&self) -> io::Result<Ending> {
        Ok(Ending(self.writer.try_clone()?))
    }

    /// Waits for the next news, but not for longer than this. `None` if there are none.
    pub(crate) fn next_within(&mut self, within: Option<Duration>) -> io::Result<Option<News>> {
        match within {
            Some(within) if self.is_quiet(within)? => Ok(None),
            _ => self.next().map(Some),
        }
    }

    /// Waits for the next news.
    pub(crate) fn next(&mut self) -> io::Result<News> {
        let mut news = [0; 2];
        loop {
            match self.reader.read_exact(&mut news) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match news[0] {
            ENDED => News::Ended,
            number => News::Signal { number: number.into(), is_of_terminal: news[1] != 0 },
        })
    }

    /// Whether there are no news for a while.
    pub(crate) fn is_quiet(&self, within: Duration) -> io::Result<bool> {
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        let mut waiting = [PollFd::new(&self.reader, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut waiting, Some(&within)))? == 0)
    }

    /// Whether a signal to end has come meanwhile.
    pub(crate) fn wants_end(&mut self) -> bool {
        while rustix::io::ioctl_fionread(&self.reader).is_ok_and(|waiting| waiting >= 2) {
            if self.next().is_ok_and(|news| matches!(news, News::Signal { number, .. } if is_to_end(number))) {
                return true;
            }
        }
        false
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &id in &self.registered {
            signal_hook_registry::unregister(id);
        }
    }
}

/// Tells [`Signals`] that the program has ended.
pub(crate) struct Ending(OwnedFd);

impl Ending {
    pub(crate) fn tell(self) {
        let _ = rustix::io::write(&self.0, &[ENDED, 0]);
    }
}

/// Whether a signal asks a program to end.
pub(crate) fn is_to_end(number: c_int) -> bool {
    matches!(number, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
}

/// Gives a signal to the program as if it had come to it.
pub(crate) fn pass_on(program: Pid, number: c_int, is_of_terminal: bool) {
    if !is_of_terminal {
        // SAFETY: the number is one of those that are listened to.
        let signal = unsafe { Signal::from_raw_unchecked(number) };
        let _ = kill_process(program, signal);
    }
    if number == SIGTSTP {
        // The shell waits for this process to stop.
        let _ = kill_process(rustix::process::getpid(), Signal::STOP);
    }
}

/// Ends this process by a signal, as it has ended the program. Returns if the signal ends nothing.
pub fn end_by(number: c_int) {
    // The program has left a core dump, if anybody wanted one.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    // SAFETY: the default action; no handler of this process is needed any more.
    unsafe { libc::signal(number, libc::SIG_DFL) };
    // SAFETY: the system has reported this number.
    let signal = unsafe { Signal::from_raw_unchecked(number) };
    let _ = kill_process(rustix::process::getpid(), signal);
}
