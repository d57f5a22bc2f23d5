//! The threads that drain, and do everything else that may take long.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use outcrop_format::NodePart;
use outcrop_grants::{ClientId, Event, FileId, JobId, PieceSum};
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    reserve::Reserve,
    serve::ServeOptions,
    target::{Target, Writer},
    timeline::OfThreads,
};

/// Something to do with a file.
pub(crate) enum Work {
    Drain { job: JobId, parts: Vec<NodePart>, pieces: Vec<PieceSum> },
    Truncate { file: FileId, bytes: u64 },
    Sync { client: ClientId },
    Mark,
    Settle { file: FileId, accessed_ns: Option<i64>, modified_ns: Option<i64>, is_marked: bool },
    Verify { client: ClientId, pieces: Vec<PieceSum> },
}

/// What has happened.
pub(crate) enum Outcome {
    /// The state machine is told.
    Event(Event),
    /// How many bytes were verified for a client, or the system's error number.
    Verified { client: ClientId, outcome: Result<u64, u32> },
    /// The reserve is touched up to here, or cannot be touched.
    Touched { to: u64, is_refused: bool },
}

#[derive(Default)]
struct Queue {
    work: VecDeque<(Arc<Target>, Work)>,
    /// Up to where the reserve is, and shall be, touched.
    touched: u64,
    touch_to: u64,
    outcomes: Vec<Outcome>,
    is_closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Wakes threads.
    work: Condvar,
    touch: Condvar,
    /// Wakes the daemon.
    wake: OwnedFd,
    reserve: Arc<Reserve>,
    timeline: OfThreads,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, outcome: Outcome) {
        self.lock().outcomes.push(outcome);
        // It can only fail when it is already set.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// How much is touched at a time.
const TOUCH_BYTES: u64 = 4 << 20;

/// The threads. Dropping this ends them when their work is done.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    /// Starts threads.
    pub(crate) fn start(options: &ServeOptions, reserve: Arc<Reserve>, timeline: OfThreads) -> io::Result<Self> {
        let (count, cores) = (options.threads.clamp(1, 64), &options.cores);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (queue, work) = (Mutex::default(), Condvar::new());
        let shared = Shared { queue, work, touch: Condvar::new(), wake, reserve, timeline };
        let mut workers = Self { shared: Arc::new(shared), threads: Vec::new() };
        // One more than drains: what is short does not wait behind what is long.
        for nth in 0..count + 1 {
            let (shared, mut writer) = (Arc::clone(&workers.shared), Writer::new(options.verify)?);
            let core = (!cores.is_empty()).then(|| cores[nth % cores.len()]);
            let run = move || {
                core.into_iter().for_each(pin);
                give_way();
                run(&shared, &mut writer);
            };
            workers.threads.push(thread::Builder::new().name(format!("drain-{nth}")).spawn(run)?);
        }
        let shared = Arc::clone(&workers.shared);
        workers.threads.push(thread::Builder::new().name("touch".to_owned()).spawn(move || touch(&shared))?);
        Ok(workers)
    }

    /// Readable when there are outcomes.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    pub(crate) fn push(&self, target: Arc<Target>, work: Work) {
        self.shared.lock().work.push_back((target, work));
        self.shared.work.notify_one();
    }

    /// Has the reserve touched up to here.
    pub(crate) fn touch(&self, to: u64) {
        let mut queue = self.shared.lock();
        if to > queue.touch_to {
            queue.touch_to = to;
            self.shared.touch.notify_one();
        }
    }

    /// Nothing beyond this byte is touched any more.
    pub(crate) fn untouched_from(&self, at: u64) {
        let mut queue = self.shared.lock();
        queue.touched = queue.touched.min(at);
        queue.touch_to = queue.touch_to.min(at);
    }

    /// What has happened since the last call.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        std::mem::take(&mut self.shared.lock().outcomes)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_all();
        self.shared.touch.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Keeps this thread on one core.
fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cores) {
        tracing::warn!(core, %error, "a drain thread cannot be pinned to its core");
    }
}

/// How much less of a core a thread that drains gets than others, if they want it (nice).
const NICE: i32 = 5;

/// Programs, and the thread that answers them, come before this thread.
fn give_way() {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "a drain thread has the priority of others");
    }
}

fn run(shared: &Shared, writer: &mut Writer) {
    loop {
        let mut queue = shared.lock();
        let (target, work) = loop {
            match queue.work.pop_front() {
                Some(work) => break work,
                None if queue.is_closed => return,
                None => queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let span = shared.timeline.begin(&target, &work);
        if let Some(outcome) = carry_out(shared, writer, &target, work) {
            shared.timeline.end(span, &outcome);
            shared.done(outcome);
        }
    }
}

fn carry_out(shared: &Shared, writer: &mut Writer, target: &Target, work: Work) -> Option<Outcome> {
    Some(Outcome::Event(match work {
        Work::Drain { job, parts, pieces } => {
            let outcome = target.drain(writer, &shared.reserve, &parts, &pieces);
            if let Err(error) = &outcome {
                tracing::warn!(path = %target.path.display(), %error, "cannot drain");
            }
            Event::Drained { job, outcome: outcome.map_err(|error| errno(&error)) }
        }
        Work::Truncate { file, bytes } => {
            Event::Truncated { file, outcome: target.truncate(bytes).map_err(|error| errno(&error)) }
        }
        Work::Sync { client } => Event::Synced { client, outcome: target.sync().map_err(|error| errno(&error)) },
        Work::Mark => {
            target.mark();
            return None;
        }
        Work::Settle { file, accessed_ns, modified_ns, is_marked } => {
            target.settle(accessed_ns, modified_ns, is_marked);
            Event::Settled { file }
        }
        Work::Verify { client, pieces } => {
            return Some(Outcome::Verified { client, outcome: verify(writer, target, &pieces) });
        }
    }))
}

/// Reads back what was drained, and compares it.
fn verify(writer: &Writer, target: &Target, pieces: &[PieceSum]) -> Result<u64, u32> {
    let mut memory =
        outcrop_memory::Private::new(outcrop_format::PIECE_BYTES_MAX as usize, outcrop_memory::Pages::Small)
            .map_err(|_| rustix::io::Errno::NOMEM.raw_os_error() as u32)?;
    let mut total = 0;
    for piece in pieces {
        let bytes = &mut memory[..piece.bytes as usize];
        target.read_back(&writer.carrier, piece.offset, bytes).map_err(|error| errno(&error))?;
        if outcrop_format::node_checksum(bytes) != piece.sum {
            tracing::error!(path = %target.path.display(), offset = piece.offset, "the file has other bytes than drained");
            return Err(rustix::io::Errno::IO.raw_os_error() as u32);
        }
        total += piece.bytes;
    }
    Ok(total)
}

fn errno(error: &io::Error) -> u32 {
    error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()) as u32
}

/// Touches the reserve, piece by piece, as far as it shall be.
fn touch(shared: &Shared) {
    let mut queue = shared.lock();
    loop {
        while !queue.is_closed && queue.touched >= queue.touch_to {
            queue = shared.touch.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.is_closed {
            return;
        }
        let range = queue.touched..(queue.touched + TOUCH_BYTES).min(queue.touch_to);
        drop(queue);
        let touched = shared.reserve.touch(range.clone());
        queue = shared.lock();
        let is_refused = touched.is_err();
        if queue.touched != range.start {
            // What is below was given back in the meantime, so nobody uses this either.
            drop(queue);
            if let Err(error) = shared.reserve.give_back(&range) {
                tracing::warn!(%error, "memory cannot be given back");
            }
            queue = shared.lock();
        } else if !is_refused {
            queue.touched = range.end;
        }
        if is_refused {
            queue.touch_to = queue.touched;
        }
        let to = queue.touched;
        queue.outcomes.push(Outcome::Touched { to, is_refused });
        drop(queue);
        let _ = rustix::io::write(&shared.wake, &1_u64.to_ne_bytes());
        queue = shared.lock();
    }
}
