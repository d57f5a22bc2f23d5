//! LU decomposition with versions as an expert would write it by hand for this one program, in a
//! mapped file and without a pool.
//!
//! An iteration changes all rows from one on, and no row before. So two copies of the matrix are
//! enough: iteration `n` goes to copy `n % 2`, and a finished row stays where it was last written.
//! A root, of which there are two as well, says which iteration is whole. It has a checksum; the
//! rows have none.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use outcrop_science::{
    Job, Program, Way,
    lu::{self, Lu, Settings},
};
use serde_json::{Value, json};

use crate::pool::median;

/// A matrix whose iterations are durable.
struct HandWritten {
    order: usize,
    block: usize,
    matrix: Vec<f64>,
    pivots: Vec<u32>,
    done: u64,
    map: MmapMut,
}

const PAGE: usize = 4096;

impl HandWritten {
    fn open(settings: &Settings, path: &Path) -> Result<Self> {
        let (order, block) = (settings.order as usize, settings.block as usize);
        let is_new = !path.exists();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let bytes = 2 * (root_bytes(order) + matrix_bytes(order)) as u64;
        if is_new {
            file.set_len(bytes)?;
            file.sync_all()?;
        }
        ensure!(file.metadata()?.len() == bytes, "{} has another length", path.display());
        // SAFETY: the file is in a directory that belongs to this benchmark.
        let map = unsafe { MmapMut::map_mut(&file)? };
        let mut lu = Self { order, block, matrix: vec![0.0; order * order], pivots: vec![0; order], done: 0, map };
        match lu.newest_root() {
            Some(done) => lu.restore(done),
            None => lu::fill(settings.seed, &mut lu.matrix),
        }
        Ok(lu)
    }

    fn step(&mut self) {
        let first = self.done as usize * self.block;
        let width = self.block.min(self.order - first);
        let pivots = &mut self.pivots[first..first + width];
        lu::factorize(&mut self.matrix[first * self.order..], pivots, self.order, first);
        self.done += 1;
    }

    /// Makes the last iteration durable.
    fn persist(&mut self) -> Result<()> {
        let first = (self.done as usize - 1) * self.block * self.order * 8;
        let from = self.copy_at(self.done) + first;
        let rows = zerocopy::IntoBytes::as_bytes(&self.matrix[first / 8..]);
        self.map[from..from + rows.len()].copy_from_slice(rows);
        self.map.flush_range(from, rows.len())?;
        let root = self.root(self.done);
        let at = self.root_at(self.done);
        self.map[at..at + root.len()].copy_from_slice(&root);
        self.map.flush_range(at, root.len())?;
        Ok(())
    }

    fn restore(&mut self, done: u64) {
        self.done = done;
        let at = self.root_at(done) + 16;
        let bytes = self.map[at..at + 4 * self.order].chunks_exact(4);
        let pivots = bytes.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()));
        self.pivots = pivots.collect();
        for row in 0..self.order {
            // Where it was written last.
            let at = self.copy_at(done.min((row / self.block) as u64 + 1)) + row * self.order * 8;
            let to = zerocopy::IntoBytes::as_mut_bytes(&mut self.matrix[row * self.order..(row + 1) * self.order]);
            to.copy_from_slice(&self.map[at..at + self.order * 8]);
        }
    }

    /// The iteration of the newest root that is whole.
    fn newest_root(&self) -> Option<u64> {
        let number = |slot: u64| {
            let at = self.root_at(slot);
            let root = &self.map[at..at + 16 + 4 * self.order];
            let done = u64::from_le_bytes(root[8..16].try_into().ok()?);
            (done > 0 && done % 2 == slot && root[..8] == checksum(&root[8..])).then_some(done)
        };
        number(0).max(number(1))
    }

    /// Checksum, iteration, pivots.
    fn root(&self, done: u64) -> Vec<u8> {
        let mut content = done.to_le_bytes().to_vec();
        content.extend(self.pivots.iter().flat_map(|pivot| pivot.to_le_bytes()));
        [&checksum(&content)[..], &content].concat()
    }

    fn root_at(&self, done: u64) -> usize {
        (done % 2) as usize * root_bytes(self.order)
    }

    fn copy_at(&self, done: u64) -> usize {
        2 * root_bytes(self.order) + (done % 2) as usize * matrix_bytes(self.order)
    }
}

fn root_bytes(order: usize) -> usize {
    (16 + 4 * order).next_multiple_of(PAGE)
}

fn matrix_bytes(order: usize) -> usize {
    (8 * order * order).next_multiple_of(PAGE)
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix).to_le_bytes()
}

/// The time of LU in a pool over the same written by hand, both with every iteration durable. The
/// medians of `rounds` go to `runs`.
pub(crate) fn over_hand_written_lu(order: u64, rounds: usize, directory: &Path, runs: &mut Vec<Value>) -> Result<f64> {
    let settings = Settings { order, block: (order / 16).clamp(1, 64), seed: 1 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let paths: [PathBuf; 2] = ["lu.pool", "lu.hand"].map(|name| directory.join(name));
    for _ in 0..rounds {
        let mut job = Job::<Lu>::open(&settings, Way::Pool, &paths[0])?;
        let start = Instant::now();
        while !job.is_finished() {
            job.step();
            job.persist()?;
        }
        ours.push(start.elapsed().as_secs_f64());
        let mut hand = HandWritten::open(&settings, &paths[1])?;
        let start = Instant::now();
        for _ in 0..Lu::iterations(&settings) {
            hand.step();
            hand.persist()?;
        }
        theirs.push(start.elapsed().as_secs_f64());
        let same = [zerocopy::IntoBytes::as_bytes(&hand.matrix[..]), zerocopy::IntoBytes::as_bytes(&hand.pivots[..])];
        ensure!(job.program().output() == same.concat(), "both programs should have the same result");
        drop((job, hand));
        for path in &paths {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let part = format!("LU of order {order}, every iteration durable (figure 12)");
    runs.push(json!({ "part": part, "way": "pool", "ms_median": 1e3 * median(&ours) }));
    runs.push(json!({ "part": part, "way": "written by hand", "ms_median": 1e3 * median(&theirs) }));
    Ok(median(&ours) / median(&theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rival is worth comparing with: it goes on after any iteration with the same result.
    #[test]
    fn what_is_written_by_hand_goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { order: 70, block: 9, seed: 1 };
        let mut whole = HandWritten::open(&settings, &dir.path().join("whole")).unwrap();
        (0..8).for_each(|_| whole.step());
        let path = dir.path().join("interrupted");
        for done in 0..8 {
            let mut lu = HandWritten::open(&settings, &path).unwrap();
            assert_eq!(lu.done, done);
            lu.step();
            lu.persist().unwrap();
            // Not durable: the next one starts before it.
            if lu.done < 8 {
                lu.step();
            }
        }
        let last = HandWritten::open(&settings, &path).unwrap();
        assert!(last.matrix == whole.matrix && last.pivots == whole.pivots);
    }
}
