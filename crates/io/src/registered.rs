//! Memory that is registered with the kernel, so that it need not look up the pages for each
//! request.
//!
//! Memory is registered in pieces of one huge page, when a transfer first uses the piece.
//! Registering touches the piece, but the transfer touches a whole huge page anyway. If the kernel
//! refuses (it is old, or this user may not lock that much), requests use plain addresses, which
//! costs only time.
//!
//! Measured with requests of 1 MiB, 32 in flight: the rates are the same within noise, because the
//! disk limits them. But the processor time falls from 4-6 to 2-4 ms per GB, which is left to the
//! program. Registering the files as well would save one look-up per request; that was not tried.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use io_uring::IoUring;
use outcrop_memory::{Backing, Kept, Mapping, Pinned};

/// The unit of registration. Requests do not cross its multiples.
pub(crate) const PIECE: u64 = 2 << 20;
/// How many pieces one ring can register: the kernel's limit.
const PIECES_MAX: usize = 1 << 14;

/// The registered memory of one ring.
pub(crate) struct Registered {
    stage: Stage,
    regions: Vec<Region>,
    /// Shared by all rings of a carrier, for `Carrier::registered_bytes`.
    bytes_total: Arc<AtomicU64>,
    bytes: u64,
    pinned: Pinned,
}

#[derive(PartialEq, Eq)]
enum Stage {
    /// The kernel has no table yet.
    Empty,
    /// The kernel has a table with room for `PIECES_MAX`.
    Ready,
    /// The kernel takes no more pieces. Those that it has stay in use until the next `tidy`.
    Refused,
}

/// The range of the table that belongs to one mapping.
struct Region {
    mapping: Kept,
    first: usize,
    is_registered: Vec<bool>,
}

impl Registered {
    /// An empty table. It stays empty unless `wanted`.
    pub(crate) fn new(wanted: bool, bytes_total: Arc<AtomicU64>) -> Self {
        let stage = if wanted { Stage::Empty } else { Stage::Refused };
        Self { stage, regions: Vec::new(), bytes_total, bytes: 0, pinned: Pinned::default() }
    }

    /// Registers the pieces of `range` that are not registered yet, as far as the kernel allows.
    pub(crate) fn cover(&mut self, uring: &IoUring, mapping: &Arc<Mapping>, range: &Range<u64>) {
        // Chunks of shared memory may be replaced, which the kernel would not notice. Files may
        // grow, and the kernel refuses to register them anyway.
        if !matches!(mapping.backing(), Backing::Anonymous(_) | Backing::Memfd) {
            return;
        }
        if self.stage == Stage::Empty {
            self.stage = match uring.submitter().register_buffers_sparse(PIECES_MAX as u32) {
                Ok(()) => Stage::Ready,
                Err(error) => {
                    tracing::info!(%error, "memory cannot be registered with the kernel");
                    Stage::Refused
                }
            };
        }
        if self.stage == Stage::Refused {
            return;
        }
        let Some(index) = self.region(mapping) else { return };
        let pieces = (range.start / PIECE) as usize..range.end.div_ceil(PIECE) as usize;
        for piece in pieces {
            if self.regions[index].is_registered.get(piece) == Some(&false) && !self.register(uring, index, piece) {
                self.stage = Stage::Refused;
                return;
            }
        }
    }

    /// The kernel's index of the piece that contains byte `at` of `mapping`.
    pub(crate) fn number(&self, mapping: &Arc<Mapping>, at: u64) -> Option<u16> {
        let region = self.regions.iter().find(|region| Arc::ptr_eq(&region.mapping, mapping))?;
        let piece = (at / PIECE) as usize;
        region.is_registered.get(piece).filter(|&&is| is)?;
        u16::try_from(region.first + piece).ok()
    }

    /// Unregisters everything if some of it belongs to memory that nobody uses any more. What is
    /// still in use is registered again by its next transfer. Also unregisters everything once the
    /// kernel has refused a piece: then the memory that this user may lock is better left to
    /// others, such as other rings. Must not be called while requests are in flight.
    pub(crate) fn tidy(&mut self, uring: &IoUring) {
        let is_refused = self.stage == Stage::Refused && !self.regions.is_empty();
        if !is_refused && !self.regions.iter().any(|region| region.mapping.is_orphan()) {
            return;
        }
        self.pinned.clear();
        match uring.submitter().unregister_buffers() {
            Ok(()) if is_refused => {}
            Ok(()) => self.stage = Stage::Empty,
            Err(error) => {
                tracing::warn!(%error, "cannot unregister memory");
                self.stage = Stage::Refused;
            }
        }
        self.forget();
    }

    /// The region of `mapping`. Creates it if there is room for any of its pieces.
    fn region(&mut self, mapping: &Arc<Mapping>) -> Option<usize> {
        if let Some(index) = self.regions.iter().position(|region| Arc::ptr_eq(&region.mapping, mapping)) {
            return Some(index);
        }
        let first = self.regions.last().map_or(0, |region| region.first + region.is_registered.len());
        let pieces = (mapping.bytes().div_ceil(PIECE) as usize).min(PIECES_MAX - first);
        if pieces == 0 {
            return None;
        }
        self.regions.push(Region { mapping: mapping.keep_registered(), first, is_registered: vec![false; pieces] });
        Some(self.regions.len() - 1)
    }

    fn register(&mut self, uring: &IoUring, index: usize, piece: usize) -> bool {
        let region = &mut self.regions[index];
        let start = piece as u64 * PIECE;
        let bytes = PIECE.min(region.mapping.bytes() - start);
        let memory = libc::iovec { iov_base: region.mapping.address(start).cast(), iov_len: bytes as usize };
        // SAFETY: the piece lies inside the mapping, which the region keeps alive until the kernel
        // has released it.
        let update =
            unsafe { uring.submitter().register_buffers_update((region.first + piece) as u32, &[memory], None) };
        if let Err(error) = update {
            tracing::info!(%error, registered = self.bytes, "no more memory can be registered with the kernel");
            return false;
        }
        region.is_registered[piece] = true;
        self.bytes += bytes;
        self.pinned.add(bytes);
        self.bytes_total.fetch_add(bytes, Relaxed);
        true
    }

    /// Called before the ring is closed, which unpins everything.
    pub(crate) fn closing(&mut self) {
        self.pinned.clear();
    }

    fn forget(&mut self) {
        self.regions.clear();
        self.bytes_total.fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The ring is closed before this, so the kernel has released the memory.
        self.forget();
    }
}
