//! The rivals of a store: a copy, plain files, and large O_DIRECT transfers.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Result;
use outcrop::layers::Slot;
use serde_json::Value;

use crate::{clock::Calls, disk, memory};

/// The sizes of direct transfers.
const BLOCKS: [usize; 3] = [1 << 20, 4 << 20, 16 << 20];

/// The times of each rival.
pub(super) struct Rivals {
    directory: PathBuf,
    /// Touched memory, as large as the state.
    target: Slot,
    pub(super) copy: Calls,
    copy_shared: Calls,
    write: Calls,
    write_synced: Calls,
    direct_writes: [Calls; BLOCKS.len()],
    direct_reads: [Calls; BLOCKS.len()],
}

type Line<'a> = dyn Fn(&str, &str, &Calls) -> Value + 'a;

impl Rivals {
    pub(super) fn new(directory: &Path, bytes: u64) -> Result<Self> {
        let mut target = disk::aligned(bytes as usize)?;
        target.fill(1);
        Ok(Self {
            directory: directory.to_owned(),
            target,
            copy: Calls::default(),
            copy_shared: Calls::default(),
            write: Calls::default(),
            write_synced: Calls::default(),
            direct_writes: Default::default(),
            direct_reads: Default::default(),
        })
    }

    /// Saves the state once in each way. The file of the last direct way stays, to be read.
    pub(super) fn save(&mut self, state: &[u8]) -> Result<()> {
        let target = &mut *self.target;
        self.copy_shared.time(|| {
            let half = state.len() / 2;
            let (low, high) = target.split_at_mut(half);
            thread::scope(|scope| {
                scope.spawn(|| high.copy_from_slice(&state[half..]));
                low.copy_from_slice(&state[..half]);
            });
        });
        self.copy.time(|| target.copy_from_slice(state));
        let path = self.directory.join("plain");
        // The page cache is memory too: warm it, so that the host of a virtual machine need not
        // provide it during the measurement.
        memory::warm(state.len() as u64);
        self.write.time(|| File::create(&path)?.write_all(state))?;
        // A removed file is not written back later, during another measurement.
        fs::remove_file(&path)?;
        self.write_synced.time(|| {
            let mut file = File::create(&path)?;
            file.write_all(state)?;
            file.sync_all()
        })?;
        fs::remove_file(&path)?;
        for (block, calls) in BLOCKS.into_iter().zip(&mut self.direct_writes) {
            let path = self.directory.join("direct");
            if path.exists() {
                fs::remove_file(&path)?;
            }
            let target = &*self.target;
            calls.time(|| -> Result<()> {
                let file = disk::open_direct(&path)?;
                for (piece, at) in target.chunks(block).zip((0..).step_by(block)) {
                    file.write_all_at(piece, at)?;
                }
                Ok(file.sync_data()?)
            })?;
        }
        Ok(())
    }

    /// Reads the last file once in each way.
    pub(super) fn read(&mut self) -> Result<()> {
        for (block, calls) in BLOCKS.into_iter().zip(&mut self.direct_reads) {
            let target = &mut *self.target;
            calls.time(|| -> Result<()> {
                let file = disk::open_direct(&self.directory.join("direct"))?;
                for (piece, at) in target.chunks_mut(block).zip((0..).step_by(block)) {
                    file.read_exact_at(piece, at)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The time of the fastest direct way of writing, in seconds.
    pub(super) fn best_write(&self) -> f64 {
        best(&self.direct_writes)
    }

    /// The time of the fastest direct way of reading, in seconds.
    pub(super) fn best_read(&self) -> f64 {
        best(&self.direct_reads)
    }

    pub(super) fn blocked_rows(&self, line: &Line<'_>) -> Vec<Value> {
        vec![
            line("blocked", "memcpy", &self.copy),
            line("blocked", "memcpy, two threads", &self.copy_shared),
            line("blocked", "write", &self.write),
            line("blocked", "write and fsync", &self.write_synced),
        ]
    }

    pub(super) fn write_rows(&self, line: &Line<'_>) -> Vec<Value> {
        direct_rows("durable", "O_DIRECT write and fdatasync", &self.direct_writes, line)
    }

    pub(super) fn read_rows(&self, line: &Line<'_>) -> Vec<Value> {
        direct_rows("restore", "O_DIRECT read", &self.direct_reads, line)
    }
}

fn best(calls: &[Calls]) -> f64 {
    calls.iter().map(|calls| calls.quantile(0.5)).fold(f64::INFINITY, f64::min)
}

fn direct_rows(part: &str, what: &str, calls: &[Calls], line: &Line<'_>) -> Vec<Value> {
    let of_block = |(block, calls)| line(part, &format!("{what}, {} MiB at a time", block >> 20), calls);
    BLOCKS.into_iter().zip(calls).map(of_block).collect()
}
