//! One submission and completion queue of io_uring.

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

/// A ring, and its registered memory.
pub(crate) struct Ring {
    // Dropped in this order: the kernel must release the memory first.
    uring: IoUring,
    pub(crate) registered: Registered,
}

/// The rings of one carrier: as many as there were concurrent calls of `run`.
pub(crate) struct Rings {
    depth: u32,
    register: bool,
    idle: Mutex<Vec<Ring>>,
    registered_bytes: Arc<AtomicU64>,
}

impl Rings {
    /// No rings yet. Each will have room for `depth` requests, and registered memory if `register`.
    pub(crate) fn new(depth: u32, register: bool) -> Self {
        Self { depth, register, idle: Mutex::default(), registered_bytes: Arc::default() }
    }

    /// How many requests can be in flight on each ring.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// How many bytes are registered with the kernel at present.
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.registered_bytes.load(Relaxed)
    }

    /// An idle ring, or a new one.
    pub(crate) fn take(&self) -> io::Result<Ring> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Ring::new(self.depth, self.register, Arc::clone(&self.registered_bytes)), Ok)
    }

    /// Returns a ring that is idle again.
    pub(crate) fn give(&self, ring: Ring) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(ring);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.registered.closing();
    }
}

/// A completed request: its number, and the bytes moved or the error.
pub(crate) struct Completion {
    pub(crate) request: usize,
    pub(crate) result: Result<u64, Errno>,
}

impl Ring {
    /// A ring for `depth` requests. Returns an error if the system has no io_uring, or lacks a
    /// feature that is needed.
    fn new(depth: u32, register: bool, registered_bytes: Arc<AtomicU64>) -> io::Result<Self> {
        // With `coop_taskrun` the kernel does not interrupt this thread for a completion, which
        // this thread collects anyway. Kernels before 5.19 do not support it.
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

    /// The io_uring and the registered memory, to register more.
    pub(crate) fn split(&mut self) -> (&IoUring, &mut Registered) {
        (&self.uring, &mut self.registered)
    }

    /// Queues the rest of `request`. The kernel sees it at the next `submit` or `wait`.
    ///
    /// # Safety
    /// The request's memory must stay valid, and for a read unused by anyone else, until the
    /// request has completed. At most `depth` requests may be queued.
    pub(crate) unsafe fn push(&mut self, number: usize, request: &Request) {
        let entry = entry(request).user_data(number as u64);
        // SAFETY: the caller guarantees that the entry is valid; the request keeps its file open.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "more requests than the queue was made for");
    }

    /// Submits the queue to the kernel. What the kernel does not take now, `wait` submits again.
    pub(crate) fn submit(&mut self) {
        if let Err(error) = self.uring.submit() {
            tracing::trace!(%error, "the kernel takes requests later");
        }
    }

    /// Submits the queue to the kernel and waits until a request has completed or a signal has
    /// arrived.
    ///
    /// Panics if the kernel does not know the ring any more.
    pub(crate) fn wait(&mut self) {
        let Err(error) = self.uring.submit_and_wait(1) else { return };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => {}
            // Out of memory or queue space: completions will free some. Without any, wait a moment.
            Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                if self.uring.completion().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            _ => panic!("io_uring cannot go on: {error}"),
        }
    }

    /// Collects the completed requests.
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
