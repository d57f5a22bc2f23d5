//! Hashing by whatever is fastest, the processor or a device, as measured while the program runs.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use outcrop_format::{Hash, HashKind};
use outcrop_layers::{Buffer, Device, DeviceHash, DeviceHasher, Error, Result};

use super::{CpuHasher, Hasher};

/// Less than this is hashed by the processor: to start a device takes longer.
const WORTH_BYTES: usize = 1 << 20;

/// The most that is hashed to try a way out. The rest of the call is hashed the best way, so that a
/// slow device costs little.
const TRIAL_BYTES: usize = 32 << 20;

/// The number of calls from one trial to the next. It doubles as long as trials change nothing.
const PAUSE: u32 = 4;
const PAUSE_MAX: u32 = 256;

/// How much of a buffer is in host memory at a time if its device cannot hash it.
const READ_BYTES: usize = 8 << 20;

/// A hasher on this device, whose hashes were compared with the processor's. Everything that a
/// store believes of its blocks depends on them.
pub fn hasher_on(device: Arc<dyn Device>, kind: HashKind) -> Result<DeviceHasher> {
    let broken = |device: &dyn Device, attempt, reason: &'static str| Error::Broken {
        layer: device.name().to_owned(),
        attempt,
        source: io::Error::other(reason),
    };
    let on_device = match kind {
        HashKind::Xxh3 => DeviceHash::Xxh3,
        HashKind::Md5 => DeviceHash::Md5,
        HashKind::Blake3 => {
            let reason = "devices have xxh3 and md5; choose one of these, or no device";
            return Err(broken(&*device, "hash with BLAKE3", reason));
        }
    };
    let hasher = DeviceHasher::new(device, on_device);
    let bytes: Vec<u8> = (0_u32..20_000).map(|index| (index.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
    for block_bytes in [1, 5, 13, 100, 200, 1000, 4096, bytes.len()] {
        let mut hashes = vec![Hash::default(); bytes.len().div_ceil(block_bytes)];
        hasher.hash(&[&bytes], block_bytes, &mut hashes)?;
        if bytes.chunks(block_bytes).zip(hashes).any(|(block, hash)| kind.hash(block) != hash) {
            let reason = "its hashes differ from the processor's; do not name it for hashing";
            return Err(broken(&**hasher.device(), "hash", reason));
        }
    }
    Ok(hasher)
}

/// Hashes with the processor or a device, whichever is faster, copies to the device included.
///
/// A device that fails is not used again, and the processor hashes what it was to hash.
pub struct ChosenHasher {
    cpu: CpuHasher,
    devices: Vec<Arc<DeviceHasher>>,
    choice: Mutex<Choice>,
    /// For buffers of the program.
    in_place: Mutex<Vec<InPlace>>,
}

/// A device, and its hasher unless it cannot hash.
type InPlace = (Arc<dyn Device>, Option<Arc<DeviceHasher>>);

/// What is known of one way to hash.
#[derive(Debug, Clone, PartialEq)]
pub struct HashRate {
    /// `processor`, or the name of a device.
    pub name: String,
    /// In bytes per second, copies included, as last measured.
    pub rate: Option<f64>,
    /// Whether it is used at present.
    pub is_chosen: bool,
    /// Whether it has failed and is not used any more.
    pub has_failed: bool,
}

impl ChosenHasher {
    /// Chooses between the processor and these devices, which must have the processor's hash.
    ///
    /// # Panics
    ///
    /// If a device has another hash.
    pub fn new(cpu: CpuHasher, devices: Vec<Arc<DeviceHasher>>) -> Self {
        let is_same = |device: &Arc<DeviceHasher>| {
            matches!((cpu.kind(), device.kind()), (HashKind::Xxh3, DeviceHash::Xxh3) | (HashKind::Md5, DeviceHash::Md5))
        };
        assert!(devices.iter().all(is_same), "one hash for all ways");
        let choice = Mutex::new(Choice::new(1 + devices.len()));
        Self { cpu, devices, choice, in_place: Mutex::default() }
    }

    /// The rates of the processor and of the devices, as far as they are known.
    pub fn rates(&self) -> Vec<HashRate> {
        let choice = self.choice();
        let names = std::iter::once("processor").chain(self.devices.iter().map(|device| device.device().name()));
        let rate = |(way, name): (usize, &str)| HashRate {
            name: name.to_owned(),
            rate: choice.rates[way],
            is_chosen: choice.best == way,
            has_failed: choice.has_failed[way],
        };
        names.enumerate().map(rate).collect()
    }

    /// Hashes the blocks of a part of a buffer where it is. If its device cannot, the buffer is
    /// read piece by piece and hashed by the processor. The error is that of reading it.
    ///
    /// # Panics
    ///
    /// As [`Hasher::hash`].
    pub fn hash_buffer(
        &self,
        device: &Arc<dyn Device>,
        buffer: &Buffer,
        offset: u64,
        bytes: u64,
        block_bytes: usize,
        hashes: &mut [Hash],
    ) -> Result<()> {
        if let Some(hasher) = self.hasher_in_place(device) {
            match hasher.hash_buffer(buffer, offset, bytes, block_bytes, hashes) {
                Err(error @ (Error::OtherDevice { .. } | Error::BufferTooSmall { .. })) => return Err(error),
                Err(error) => self.forget_in_place(device, &error),
                Ok(()) => return Ok(()),
            }
        }
        let piece_bytes = (READ_BYTES / block_bytes).max(1) * block_bytes;
        let mut memory = vec![0; piece_bytes.min(bytes as usize)];
        let mut at = 0;
        for hashes in hashes.chunks_mut(piece_bytes / block_bytes) {
            let length = memory.len().min(bytes as usize - at);
            buffer.read(&**device, offset + at as u64, &mut memory[..length])?;
            self.cpu.hash(&[&memory[..length]], block_bytes, hashes);
            at += length;
        }
        Ok(())
    }

    /// The hasher of a device, if it can hash.
    fn hasher_in_place(&self, device: &Arc<dyn Device>) -> Option<Arc<DeviceHasher>> {
        let mut known = lock(&self.in_place);
        if let Some((_, hasher)) = known.iter().find(|(of, _)| of.identity() == device.identity()) {
            return hasher.clone();
        }
        let hasher = hasher_on(Arc::clone(device), self.kind());
        let hasher = hasher.inspect_err(|error| tracing::warn!(%error, "buffers are hashed by the processor")).ok();
        let hasher = hasher.map(Arc::new);
        known.push((Arc::clone(device), hasher.clone()));
        hasher
    }

    fn forget_in_place(&self, device: &Arc<dyn Device>, error: &Error) {
        tracing::warn!(%error, "a device cannot hash any more; its buffers are hashed by the processor");
        let mut known = lock(&self.in_place);
        known.iter_mut().filter(|(of, _)| of.identity() == device.identity()).for_each(|(_, hasher)| *hasher = None);
    }

    /// Hashes in one way, and measures it.
    fn hash_by(&self, way: usize, stretches: &[&[u8]], block_bytes: usize, hashes: &mut [Hash]) {
        let bytes = bytes_of(stretches);
        if bytes == 0 {
            return;
        }
        let start = Instant::now();
        if let Some(device) = way.checked_sub(1).map(|index| &self.devices[index]) {
            match device.hash(stretches, block_bytes, hashes) {
                Ok(()) => return self.choice().measured(way, bytes, start.elapsed()),
                Err(error) => {
                    tracing::warn!(%error, "a device cannot hash any more; the processor does it");
                    self.choice().failed(way);
                }
            }
        }
        // Also what a device has hashed before it failed: nothing of this call is believed.
        let start = Instant::now();
        self.cpu.hash(stretches, block_bytes, hashes);
        self.choice().measured(0, bytes, start.elapsed());
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        lock(&self.choice)
    }
}

impl Hasher for ChosenHasher {
    fn kind(&self) -> HashKind {
        self.cpu.kind()
    }

    fn hash(&self, stretches: &[&[u8]], block_bytes: usize, hashes: &mut [Hash]) {
        if self.devices.is_empty() || bytes_of(stretches) < WORTH_BYTES {
            return self.cpu.hash(stretches, block_bytes, hashes);
        }
        assert!(block_bytes > 0, "a block has at least one byte");
        let (best, trial) = self.choice().next();
        let trial_bytes = if trial.is_some() { TRIAL_BYTES } else { 0 };
        let (tried, others) = split(stretches, block_bytes, trial_bytes);
        let blocks: usize = tried.iter().map(|stretch| stretch.len().div_ceil(block_bytes)).sum();
        let (tried_hashes, other_hashes) = hashes.split_at_mut(blocks.min(hashes.len()));
        self.hash_by(trial.unwrap_or(best), &tried, block_bytes, tried_hashes);
        self.hash_by(best, &others, block_bytes, other_hashes);
    }
}

impl fmt::Debug for ChosenHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenHasher").field("cpu", &self.cpu).field("devices", &self.devices).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of(stretches: &[&[u8]]) -> usize {
    stretches.iter().map(|stretch| stretch.len()).sum()
}

/// Whole blocks of at most `bytes_max`, but at least one if that is not 0, and the rest.
fn split<'a>(stretches: &[&'a [u8]], block_bytes: usize, bytes_max: usize) -> (Vec<&'a [u8]>, Vec<&'a [u8]>) {
    let mut room = bytes_max.next_multiple_of(block_bytes);
    let halves = stretches.iter().map(|stretch| {
        let (first, second) = stretch.split_at(stretch.len().min(room));
        // A short block ends what fits in whole blocks.
        room -= first.len().next_multiple_of(block_bytes).min(room);
        (first, second)
    });
    let (first, second): (Vec<_>, Vec<_>) = halves.unzip();
    let is_there = |stretch: &&[u8]| !stretch.is_empty();
    (first.into_iter().filter(is_there).collect(), second.into_iter().filter(is_there).collect())
}

/// Which way is the fastest, and when to try the others. Way 0 is the processor, which cannot fail.
struct Choice {
    rates: Vec<Option<f64>>,
    has_failed: Vec<bool>,
    best: usize,
    /// The way that was tried last.
    tried: usize,
    /// Calls until the next trial, and what that number is afterwards.
    wait: u32,
    pause: u32,
}

impl Choice {
    fn new(ways: usize) -> Self {
        Self { rates: vec![None; ways], has_failed: vec![false; ways], best: 0, tried: 0, wait: 0, pause: PAUSE }
    }

    /// The way to hash, and another one to be tried out.
    fn next(&mut self) -> (usize, Option<usize>) {
        let others = (1..=self.rates.len()).map(|step| (self.tried + step) % self.rates.len());
        let mut others = others.filter(|&way| way != self.best && !self.has_failed[way]);
        let unknown = others.clone().find(|&way| self.rates[way].is_none());
        // The first call measures what is compared with.
        let trial = if self.rates[self.best].is_none() { None } else { unknown.or_else(|| others.next()) };
        if trial.is_none() || (unknown.is_none() && self.wait > 0) {
            self.wait = self.wait.saturating_sub(1);
            return (self.best, None);
        }
        (self.wait, self.pause) = (self.pause, (self.pause * 2).min(PAUSE_MAX));
        self.tried = trial.unwrap_or(self.tried);
        (self.best, trial)
    }

    fn measured(&mut self, way: usize, bytes: usize, took: Duration) {
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        // What was known of a way that was not used is old.
        let known = self.rates[way].filter(|_| way == self.best);
        self.rates[way] = Some(known.map_or(rate, |known| f64::midpoint(known, rate)));
        self.choose();
    }

    fn failed(&mut self, way: usize) {
        self.has_failed[way] = true;
        self.choose();
    }

    fn choose(&mut self) {
        let rate = |way: usize| self.rates[way].filter(|_| !self.has_failed[way]).unwrap_or(0.0);
        let fastest = (0..self.rates.len()).max_by(|&way, &other| rate(way).total_cmp(&rate(other))).unwrap_or(0);
        let best = if rate(fastest) > 0.0 { fastest } else { 0 };
        if std::mem::replace(&mut self.best, best) != best {
            self.pause = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL_BYTES: usize = 1 << 30;

    /// Simulates calls with ways of these rates, in bytes per second. Returns the total time, and
    /// how often each way was the best.
    fn run(choice: &mut Choice, calls: usize, rates: &[f64]) -> (f64, Vec<usize>) {
        let (mut seconds, mut chosen) = (0.0, vec![0; rates.len()]);
        for _ in 0..calls {
            let (best, trial) = choice.next();
            let tried_bytes = if trial.is_some() { TRIAL_BYTES } else { 0 };
            chosen[best] += 1;
            for (way, bytes) in
                trial.map(|way| (way, tried_bytes)).into_iter().chain([(best, CALL_BYTES - tried_bytes)])
            {
                let took = Duration::from_secs_f64(bytes as f64 / rates[way]);
                choice.measured(way, bytes, took);
                seconds += took.as_secs_f64();
            }
        }
        (seconds, chosen)
    }

    #[test]
    fn the_fastest_way_is_found_and_slow_ones_cost_little() {
        for rates in [[4e9, 20e9, 1e9], [4e9, 1e9, 20e9], [20e9, 4e9, 1e9]] {
            let (seconds, _) = run(&mut Choice::new(3), 100, &rates);
            let least = 100.0 * CALL_BYTES as f64 / 20e9;
            assert!(seconds < 1.15 * least, "{rates:?}: {seconds} instead of {least}");
        }
    }

    #[test]
    fn a_way_that_becomes_faster_or_slower_is_noticed() {
        let mut choice = Choice::new(2);
        let (_, chosen) = run(&mut choice, 50, &[4e9, 1e9]);
        assert_eq!(chosen[0], 50);
        let (_, chosen) = run(&mut choice, 300, &[4e9, 20e9]);
        assert!(chosen[1] > 200, "{chosen:?}");
        let (_, chosen) = run(&mut choice, 50, &[4e9, 1e9]);
        assert!(chosen[0] > 45, "{chosen:?}");
    }

    #[test]
    fn a_way_that_has_failed_is_not_tried_again() {
        let mut choice = Choice::new(2);
        run(&mut choice, 5, &[1e9, 20e9]);
        assert_eq!(choice.best, 1);
        choice.failed(1);
        for _ in 0..2 * PAUSE_MAX {
            assert_eq!(choice.next(), (0, None));
        }
    }

    #[test]
    fn whole_blocks_are_split_off() {
        let memory = [0; 100];
        let lengths = |(first, second): (Vec<&[u8]>, Vec<&[u8]>)| {
            let lengths = |parts: Vec<&[u8]>| parts.iter().map(|part| part.len()).collect::<Vec<_>>();
            (lengths(first), lengths(second))
        };
        assert_eq!(lengths(split(&[&memory], 30, 31)), (vec![60], vec![40]));
        assert_eq!(lengths(split(&[&memory[..40], &memory], 30, 90)), (vec![40, 30], vec![70]));
        assert_eq!(lengths(split(&[&memory[..40], &memory], 30, 60)), (vec![40], vec![100]));
        assert_eq!(lengths(split(&[&memory], 30, 0)), (vec![], vec![100]));
        assert_eq!(lengths(split(&[&memory], 300, 1)), (vec![100], vec![]));
    }
}
