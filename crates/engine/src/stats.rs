//! Statistics of a run: what it has cost, and where its bytes went.

use outcrop_plan::MemoryState;
use serde::Serialize;

/// Statistics of a tape, since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// The layers, the front first, then in the order in which snapshots sink.
    pub layers: Vec<LayerStats>,
    /// Snapshots saved, by copy or by lending.
    pub saves: u64,
    /// The program's bytes in these snapshots.
    pub saved_bytes: u64,
    /// Snapshots taken or got.
    pub reads: u64,
    /// Seconds that the program spent inside saves, copies and waits included.
    pub save_seconds: f64,
    /// Seconds of these in which it waited for room.
    pub wait_seconds: f64,
    /// Seconds that the program spent inside takes and gets.
    pub read_seconds: f64,
    /// Reads that found their snapshot in the front.
    pub hits: u64,
    /// Reads that found it on its way to the front.
    pub late: u64,
    /// Reads that found it elsewhere, or did not follow the announced order.
    pub misses: u64,
    /// Calls that are waiting now, for room or for a snapshot.
    pub waiting: u32,
    /// Seconds in which at least one move was under way.
    pub move_seconds: f64,
    /// Seconds of processor time that the helper threads have taken: draining, prefetching,
    /// touching memory, checksums. The copies of saves are in `save_seconds`.
    pub helper_seconds: f64,
    /// Bytes of memory that the lists of snapshots take, beside what the layers hold: some 200 for
    /// each snapshot, 100 more for one that is in host memory, and each layout once.
    pub bookkeeping_bytes: u64,
    /// How many threads the last large copy used.
    pub copy_threads: usize,
}

/// Statistics of one layer, since the tape was opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerStats {
    /// Its name.
    pub name: String,
    /// How many bytes it may hold; `None` without a limit.
    pub capacity_bytes: Option<u64>,
    /// Bytes in use now, including those that stay on it after the engine has forgotten them.
    pub used_bytes: u64,
    /// The largest number of bytes in use so far.
    pub used_bytes_max: u64,
    /// Moves to it.
    pub writes: u64,
    /// Bytes moved to it.
    pub written_bytes: u64,
    /// Seconds in which at least one move to it was under way.
    pub write_seconds: f64,
    /// Moves from it.
    pub reads: u64,
    /// Bytes moved from it.
    pub read_bytes: u64,
    /// Seconds in which at least one move from it was under way.
    pub read_seconds: f64,
    /// Moves from it that the program waited for.
    pub fetches: u64,
    /// Reads that found their snapshot here, and not on a layer above.
    pub hits: u64,
    /// Reads that found it only on a deeper layer.
    pub misses: u64,
    /// Its rank among the layers below the front, by preference for writing. 1 is the best.
    pub write_preference: Option<usize>,
    /// Its rank by preference for reading.
    pub read_preference: Option<usize>,
    /// The state of its memory, if it is memory that is touched ahead: how much is touched, and
    /// which strategy is in use, for what reason.
    pub memory: Option<MemoryState>,
    /// Why it could not be pinned.
    pub pin_refusal: Option<String>,
    /// The last error of this layer.
    pub fault: Option<String>,
}

impl Stats {
    /// Processor seconds of the helper threads per GB that they moved between layers.
    pub fn helper_seconds_per_gb(&self) -> f64 {
        let moved_bytes: u64 = self.layers.iter().map(|layer| layer.written_bytes).sum();
        if moved_bytes > 0 { self.helper_seconds / (moved_bytes as f64 / 1e9) } else { 0.0 }
    }
}

impl LayerStats {
    /// Bytes per second moved to it, while moves were under way.
    pub fn write_rate(&self) -> f64 {
        rate(self.written_bytes, self.write_seconds)
    }

    /// Bytes per second moved from it, while moves were under way.
    pub fn read_rate(&self) -> f64 {
        rate(self.read_bytes, self.read_seconds)
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
}
