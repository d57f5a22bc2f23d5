//! Hashes of blocks.

mod chosen;

use std::fmt;

pub use chosen::{ChosenHasher, HashRate, hasher_on};
use outcrop_format::{Hash, HashKind};
use rayon::{
    ThreadPool, ThreadPoolBuilder,
    iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator},
};

/// How much one thread hashes at a time. The calling thread hashes less than twice this alone.
const PIECE_BYTES: usize = 1 << 20;

/// Hashes memory, on the processor or on a device.
pub trait Hasher: Send + Sync {
    /// The hash function.
    fn kind(&self) -> HashKind;

    /// Hashes the consecutive blocks of each of `stretches` into `hashes`. All blocks have
    /// `block_bytes`, except the last one of a stretch.
    ///
    /// # Panics
    ///
    /// If `block_bytes` is 0 or `hashes` does not have exactly one element for each block.
    fn hash(&self, stretches: &[&[u8]], block_bytes: usize, hashes: &mut [Hash]);
}

/// Hashes with the processor, in several threads if there is much to do.
pub struct CpuHasher {
    kind: HashKind,
    /// `None` if the calling thread hashes everything.
    pool: Option<ThreadPool>,
}

impl CpuHasher {
    /// A hasher with a pool of `threads` threads, which sleep between calls. With one or none, or
    /// if no threads can be started, the calling thread hashes everything.
    pub fn new(kind: HashKind, threads: usize) -> Self {
        let build = |threads| {
            ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("outcrop-hash-{i}")).build()
        };
        let pool = (threads > 1).then(|| build(threads)).transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "no threads to hash with; hashing is done by the calling thread");
            None
        });
        Self { kind, pool }
    }
}

impl Hasher for CpuHasher {
    fn kind(&self) -> HashKind {
        self.kind
    }

    fn hash(&self, stretches: &[&[u8]], block_bytes: usize, hashes: &mut [Hash]) {
        assert!(block_bytes > 0, "a block has at least one byte");
        let blocks: usize = stretches.iter().map(|stretch| stretch.len().div_ceil(block_bytes)).sum();
        assert_eq!(blocks, hashes.len(), "one hash for each block");
        let hash_piece = |(piece, hashes): (&[u8], &mut [Hash])| {
            for (block, hash) in piece.chunks(block_bytes).zip(hashes) {
                *hash = self.kind.hash(block);
            }
        };
        let piece_bytes = (PIECE_BYTES / block_bytes).max(1) * block_bytes;
        let mut rest = hashes;
        let pieces = stretches.iter().flat_map(|stretch| stretch.chunks(piece_bytes)).map(|piece| {
            let (these, others) = std::mem::take(&mut rest).split_at_mut(piece.len().div_ceil(block_bytes));
            rest = others;
            (piece, these)
        });
        let bytes: usize = stretches.iter().map(|stretch| stretch.len()).sum();
        match &self.pool {
            Some(pool) if bytes >= 2 * PIECE_BYTES => {
                let pieces: Vec<_> = pieces.collect();
                // Small pieces are handed out in groups of about `PIECE_BYTES`.
                let count = (pieces.len() * PIECE_BYTES / bytes).max(1);
                pool.install(|| pieces.into_par_iter().with_min_len(count).for_each(hash_piece));
            }
            _ => pieces.for_each(hash_piece),
        }
    }
}

impl fmt::Debug for CpuHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.pool.as_ref().map_or(1, ThreadPool::current_num_threads);
        f.debug_struct("CpuHasher").field("kind", &self.kind).field("threads", &threads).finish()
    }
}
