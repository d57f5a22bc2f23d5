//! One queue of blocks to and from the kernel, through io_uring.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use io_uring::{IoUring, Probe, opcode, squeue, types::Fd};
use rustix::io::Errno;

use super::{
    registered::Registered,
    segments::{Piece, Segment},
};

/// A queue, and the memory that its kernel side knows.
pub(crate) struct Ring {
    // Dropped in this order: the kernel lets go of the memory first.
    uring: IoUring,
    pub(super) registered: Registered,
}

/// The queues of one layer: one for each `run` that there were at the same time.
pub(crate) struct Rings {
    depth: u32,
    register: bool,
    idle: Mutex<Vec<Ring>>,
    registered_bytes: Arc<AtomicU64>,
}

impl Rings {
    /// None yet; each will have room for `depth` blocks, and host memory registered if `register`.
    pub(crate) fn new(depth: u32, register: bool) -> Self {
        Self { depth, register, idle: Mutex::default(), registered_bytes: Arc::default() }
    }

    /// How many blocks can be under way on each.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// How much host memory is registered with the kernel at present.
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

/// One read or write of the kernel's.
pub(super) struct Block {
    pub(super) is_write: bool,
    pub(super) segment: Arc<Segment>,
    pub(super) piece: Piece,
    pub(super) address: *mut u8,
    /// Under which number the memory is registered.
    pub(super) registered: Option<u16>,
    /// How much of it has been moved.
    pub(super) moved: u64,
}

/// A block that came back: its number, and the bytes moved or the error.
pub(super) struct Completion {
    pub(super) block: usize,
    pub(super) result: Result<u64, Errno>,
}

impl Ring {
    /// A queue for `depth` blocks; an error where the system has no io_uring, or none that can do what is needed.
    fn new(depth: u32, register: bool, registered_bytes: Arc<AtomicU64>) -> io::Result<Self> {
        // With `coop_taskrun` the kernel does not interrupt this thread to tell of a completion that it will ask for
        // anyway. Kernels before 5.19 do not know it.
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
    pub(super) fn split(&mut self) -> (&IoUring, &mut Registered) {
        (&self.uring, &mut self.registered)
    }

    /// Puts what is left of `block` into the queue. The kernel sees it at the next `submit` or `wait`.
    ///
    /// # Safety
    /// The block's memory must stay valid, and for a read untouched by anyone else, until the block has come back.
    /// No more blocks may be in the queue than it was made for.
    pub(super) unsafe fn push(&mut self, number: usize, block: &Block) {
        let entry = block.entry().user_data(number as u64);
        // SAFETY: the entry is valid by the duty of the caller; its file is open as long as the block has the segment.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "more blocks than the queue was made for");
    }

    /// Hands the queue to the kernel. What it does not take now it is offered again by `wait`.
    pub(super) fn submit(&mut self) {
        if let Err(error) = self.uring.submit() {
            tracing::trace!(%error, "the kernel takes blocks later");
        }
    }

    /// Hands the queue to the kernel and waits until a block has come back, or a signal.
    ///
    /// Panics if the kernel does not know the queue any more.
    pub(super) fn wait(&mut self) {
        let Err(error) = self.uring.submit_and_wait(1) else { return };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => {}
            // Short of memory or room: as blocks come back there will be more; without any, after a while.
            Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                if self.uring.completion().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            _ => panic!("io_uring cannot go on: {error}"),
        }
    }

    /// Collects the blocks that have come back.
    pub(super) fn completions(&mut self, into: &mut Vec<Completion>) {
        into.extend(self.uring.completion().map(|entry| Completion {
            block: entry.user_data() as usize,
            result: match entry.result() {
                count @ 0.. => Ok(u64::from(count.unsigned_abs())),
                negative => Err(Errno::from_raw_os_error(-negative)),
            },
        }));
    }
}

impl Block {
    fn entry(&self) -> squeue::Entry {
        let file = Fd(self.segment.file.as_raw_fd());
        let at = self.piece.at + self.moved;
        let bytes = (self.piece.bytes - self.moved) as u32;
        let address = self.address.wrapping_add(self.moved as usize);
        match (self.is_write, self.registered) {
            (true, None) => opcode::Write::new(file, address, bytes).offset(at).build(),
            (false, None) => opcode::Read::new(file, address, bytes).offset(at).build(),
            (true, Some(number)) => opcode::WriteFixed::new(file, address, bytes, number).offset(at).build(),
            (false, Some(number)) => opcode::ReadFixed::new(file, address, bytes, number).offset(at).build(),
        }
    }
}
