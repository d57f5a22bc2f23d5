//! The threads that answer the calls of programs.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};

use crate::{
    calls::{Answer, Calls, Question},
    stage::{Amount, Stage},
};

/// How many threads answer calls at most. One waits for calls; others are there because a call may
/// wait for a disk.
const MOST_THREADS: usize = 64;

/// Where calls come from. Its descriptor is readable when there is one, and hung up when there will
/// be none.
pub(crate) trait Source: AsFd + Send + Sync + 'static {
    /// A call that waits for an answer.
    type Call: Send;

    /// The next call. `None` if it is there no more.
    fn receive(&self) -> io::Result<Option<Self::Call>>;

    /// What the call is. `None` if it waits no more.
    fn question(&self, call: &Self::Call) -> Option<Question>;

    /// Answers a call.
    fn answer(&self, call: &Self::Call, answer: Answer);

    /// Puts a file into the program in place of another one, while the call goes on waiting.
    fn replace(&self, call: &Self::Call, file: &OwnedFd, number: i32, closes_at_exec: bool) -> io::Result<()>;
}

/// Answers the calls of a program and of all that it starts.
pub(crate) struct Supervisor {
    stage: Stage,
    answering: JoinHandle<io::Result<()>>,
    /// Readable when it is over.
    over: Arc<OwnedFd>,
}

impl Supervisor {
    /// Starts a thread that answers until the descriptor that it gets is readable.
    pub(crate) fn start(
        stage: Stage,
        answer: impl FnOnce(Arc<OwnedFd>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let own = Arc::clone(&over);
        let answering = thread::Builder::new().name("outcrop calls".into()).spawn(move || answer(own))?;
        Ok(Self { stage, answering, over })
    }

    /// What is staged now.
    pub(crate) fn amount(&self) -> Amount {
        self.stage.amount()
    }

    /// Answers no more calls: those of processes that are left fail, or go to the real files. Gives
    /// back the stage, in which something may still have to be drained.
    pub(crate) fn end(self) -> io::Result<Stage> {
        rustix::io::write(&*self.over, &1_u64.to_ne_bytes())?;
        self.answering.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        Ok(self.stage)
    }
}

/// The threads, and what they share.
pub(crate) struct Crew<S> {
    source: S,
    calls: Calls,
    /// Whoever has it waits for the next call.
    next: Mutex<()>,
    idle: AtomicUsize,
    /// Readable when no process is left.
    over: Arc<OwnedFd>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

impl<S: Source> Crew<S> {
    /// Answers calls until the source has no more, or until `over` is readable.
    pub(crate) fn answer_all(source: S, calls: Calls, over: Arc<OwnedFd>) -> io::Result<()> {
        let crew = Arc::new(Self {
            source,
            calls,
            next: Mutex::new(()),
            idle: AtomicUsize::new(1),
            over,
            threads: Mutex::default(),
        });
        let outcome = Self::work(&crew);
        loop {
            let thread = crew.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match thread {
                Some(thread) => drop(thread.join()),
                None => return outcome,
            }
        }
    }

    fn work(crew: &Arc<Self>) -> io::Result<()> {
        // A file is created with the umask of the program, so this thread needs one of its own.
        // SAFETY: this thread gets a copy of what the others share.
        crate::stage::checked(unsafe { libc::unshare(libc::CLONE_FS) })?;
        while let Some(call) = crew.next()? {
            if crew.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                Self::hire(crew);
            }
            if let Some(question) = crew.source.question(&call) {
                let replace =
                    |file: &OwnedFd, number, closes_at_exec| crew.source.replace(&call, file, number, closes_at_exec);
                let answer = crew.calls.answer(&question, &replace);
                crew.source.answer(&call, answer);
            }
            crew.idle.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// One more thread, so that somebody waits for the next call.
    fn hire(crew: &Arc<Self>) {
        let mut threads = crew.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= MOST_THREADS {
            return;
        }
        let own = Arc::clone(crew);
        crew.idle.fetch_add(1, Ordering::SeqCst);
        match thread::Builder::new().name("outcrop calls".into()).spawn(move || Self::work(&own)) {
            Ok(thread) => threads.push(thread),
            Err(_) => drop(crew.idle.fetch_sub(1, Ordering::SeqCst)),
        }
    }

    /// The next call. `None` if no process is left that could make one.
    fn next(&self) -> io::Result<Option<S::Call>> {
        let _turn = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let of = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
            let mut waiting = [of(self.source.as_fd()), of(self.over.as_fd())];
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let told = waiting[0].revents();
            if told.contains(PollFlags::IN) {
                if let Some(call) = self.source.receive()? {
                    return Ok(Some(call));
                }
            } else if told.intersects(PollFlags::HUP | PollFlags::ERR) || !waiting[1].revents().is_empty() {
                let _ = rustix::io::write(&*self.over, &1_u64.to_ne_bytes());
                return Ok(None);
            }
        }
    }
}
