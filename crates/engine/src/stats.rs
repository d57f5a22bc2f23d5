//! What a run has cost and where its bytes went.

use outcrop_plan::MemoryState;
use serde::Serialize;

/// What a tape has done until now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// The layers, the front first, then in the order in which snapshots sink.
    pub layers: Vec<LayerStats>,
    /// Snapshots saved, by copy or by lending.
    pub saves: u64,
    /// The program's bytes in them.
    pub saved_bytes: u64,
    /// Snapshots taken or got.
    pub reads: u64,
    /// Seconds that the program spent inside saves: copies, waits and all.
    pub save_seconds: f64,
    /// Seconds of these that it waited for room.
    pub wait_seconds: f64,
    /// Seconds that it spent inside takes and gets.
    pub read_seconds: f64,
    /// Reads that found their snapshot in the front.
    pub hits: u64,
    /// Reads that found it on its way.
    pub late: u64,
    /// Reads that found it elsewhere, or broke the announced order.
    pub misses: u64,
    /// Calls that wait now, for room or for a snapshot.
    pub waiting: u32,
    /// Seconds in which helpers moved bytes, however many at a time.
    pub move_seconds: f64,
    /// Threads that the last large copy used.
    pub copy_threads: usize,
}

/// What one layer has done until now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerStats {
    /// Its name.
    pub name: String,
    /// The bytes that it may hold; none if it has no limit.
    pub capacity_bytes: Option<u64>,
    /// The bytes in use now, with those that stay on it after the engine has forgotten them.
    pub used_bytes: u64,
    /// The most that were in use at a time.
    pub used_bytes_max: u64,
    /// Moves to it.
    pub writes: u64,
    /// Bytes moved to it.
    pub written_bytes: u64,
    /// Seconds in which something was moved to it.
    pub write_seconds: f64,
    /// Moves from it.
    pub reads: u64,
    /// Bytes moved from it.
    pub read_bytes: u64,
    /// Seconds in which something was moved from it.
    pub read_seconds: f64,
    /// Moves from it for which the program had to wait.
    pub fetches: u64,
    /// Reads that found their snapshot here and no higher.
    pub hits: u64,
    /// Reads that found it deeper only.
    pub misses: u64,
    /// Its number among the layers below the front, by preference for writing: 1 is the best.
    pub write_preference: Option<usize>,
    /// Its number by preference for reading.
    pub read_preference: Option<usize>,
    /// What is known of it if it is memory that is touched ahead: how much is, when, and why then.
    pub memory: Option<MemoryState>,
    /// Why it could not be pinned.
    pub pin_refusal: Option<String>,
    /// The last thing that went wrong with it.
    pub fault: Option<String>,
}

impl LayerStats {
    /// Bytes per second moved to it, while any were.
    pub fn write_rate(&self) -> f64 {
        rate(self.written_bytes, self.write_seconds)
    }

    /// Bytes per second moved from it, while any were.
    pub fn read_rate(&self) -> f64 {
        rate(self.read_bytes, self.read_seconds)
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
}
