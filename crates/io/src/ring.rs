//! One queue of requests to and from the kernel, through io_uring.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use io_uring::{IoUring, Probe, opcode, squeue, types::Fd};
use rustix::io::Errno;

use crate::{Direction, registered::Registered, request::Request};

/// A queue, and the memory that its kernel side knows.
pub(crate) struct Ring {
    // Dropped in this order: the kernel lets go of the memory first.
    uring: IoUring,
    pub(crate) registered: Registered,
}

/// The queues of one carrier: one for each `run` that there were at the same time.
pub(crate) struct Rings {
    depth: u32,
    register: bool,
    idle: Mutex<Vec<Ring>>,
    registered_bytes: Arc<AtomicU64>,
}

impl Rings {
    /// None yet; each will have room for `depth` requests, and memory registered if `register`.
    pub(crate) fn new(depth: u32, register: bool) -> Self {
        Self { depth, register, idle: Mutex::default(), registered_bytes: Arc::default() }
    }

    /// How many requests can be in flight on each.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// How much memory is registered with the kernel at present.
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.registered_bytes.load(Relaxed)
    }

    /// A queue that nobody uses.
    pub(crate) fn take(&self) -> io::Result<Ring> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Ring::new(self.depth, self.register, Arc::clone(&self.registered_bytes)), Ok)
    }

    /// Takes a queue back that is not needed any more.
    pub(crate) fn give(&self, ring: Ring) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(ring);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.registered.closing();
    }
}

/// A request that came back: its number, and the bytes moved or the error.
pub(crate) struct Completion {
    pub(crate) request: usize,
    pub(crate) result: Result<u64, Errno>,
}

impl Ring {
    /// A queue for `depth` requests; an error where the system has no io_uring, or none that can do
    /// what is needed.
    fn new(depth: u32, register: bool, registered_bytes: Arc<AtomicU64>) -> io::Result<Self> {
        // With `coop_taskrun` the kernel does not interrupt this thread to tell of a completion
        // that it will ask for anyway. Kernels before 5.19 do not know it.
        let uring = match IoUring::builder().setup_coop_taskrun().build(depth) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => IoUring::new(depth)?,
            result => result?,
        };
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(Errno::NOSYS.into());
        }
        Ok(Self { uring, registered: Registered::new(register, registered_bytes) })
    }

    /// The kernel's queue, for registering memory with it.
    pub(crate) fn split(&mut self) -> (&IoUring, &mut Registered) {
        (&self.uring, &mut self.registered)
    }

    /// Puts what is left of `request` into the queue. The kernel sees it at the next `submit` or
    /// `wait`.
    ///
    /// # Safety
    /// The request's memory must stay valid, and for a read unused by anyone else, until the
    /// request has come back. No more requests may be in the queue than it was made for.
    pub(crate) unsafe fn push(&mut self, number: usize, request: &Request) {
        let entry = entry(request).user_data(number as u64);
        // SAFETY: the entry is valid by the duty of the caller; its file is open as long as the
        // request has it.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "more requests than the queue was made for");
    }

    /// Hands the queue to the kernel. What it does not take now it is offered again by `wait`.
    pub(crate) fn submit(&mut self) {
        if let Err(error) = self.uring.submit() {
            tracing::trace!(%error, "the kernel takes requests later");
        }
    }

    /// Hands the queue to the kernel and waits until a request has come back, or a signal.
    ///
    /// Panics if the kernel does not know the queue any more.
    pub(crate) fn wait(&mut self) {
        let Err(error) = self.uring.submit_and_wait(1) else { return };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => {}
            // Short of memory or room: as requests come back there will be more; without any, after
            // a while.
            Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                if self.uring.completion().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            _ => panic!("io_uring cannot go on: {error}"),
        }
    }

    /// Collects the requests that have come back.
    pub(crate) fn completions(&mut self, into: &mut Vec<Completion>) {
        into.extend(self.uring.completion().map(|entry| Completion {
            request: entry.user_data() as usize,
            result: match entry.result() {
                count @ 0.. => Ok(u64::from(count.unsigned_abs())),
                negative => Err(Errno::from_raw_os_error(-negative)),
            },
        }));
    }
}

fn entry(request: &Request) -> squeue::Entry {
    let file = Fd(request.file.as_fd().as_raw_fd());
    let rest = request.rest();
    let (at, bytes, address) = (rest.offset, rest.bytes as u32, rest.address);
    match (request.direction, request.registered) {
        (Direction::Write, None) => opcode::Write::new(file, address, bytes).offset(at).build(),
        (Direction::Read, None) => opcode::Read::new(file, address, bytes).offset(at).build(),
        (Direction::Write, Some(number)) => opcode::WriteFixed::new(file, address, bytes, number).offset(at).build(),
        (Direction::Read, Some(number)) => opcode::ReadFixed::new(file, address, bytes, number).offset(at).build(),
    }
}
