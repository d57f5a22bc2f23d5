//! An emulator of non-volatile memory: delays a program by what such memory takes more than DRAM.

use std::{
    fmt, io,
    ops::Range,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{Medium, medium::OfThisCrate};

/// The speed of non-volatile memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nvm {
    /// How long a read takes that waits for the memory.
    pub read_latency_ns: u64,
    /// The same for a write.
    pub write_latency_ns: u64,
    /// How much can be read in a second.
    pub read_bytes_per_second: u64,
    /// How much can be written in a second.
    pub write_bytes_per_second: u64,
}

impl Nvm {
    /// The memory that NV-Checkpoint emulates: 100 and 150 ns, 35 and 10 GB/s.
    pub const fn paper() -> Self {
        Self {
            read_latency_ns: 100,
            write_latency_ns: 150,
            read_bytes_per_second: 35_000_000_000,
            write_bytes_per_second: 10_000_000_000,
        }
    }
}

/// An access to DRAM takes so long: the paper says that its latencies are 67 and 150 % more.
const DRAM_LATENCY_NS: u64 = 60;

/// What was charged, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charged {
    /// How many bytes were read.
    pub read_bytes: u64,
    /// How many bytes were written.
    pub written_bytes: u64,
    /// How many accesses waited for the memory, to read.
    pub reads: u64,
    /// The same, to write.
    pub writes: u64,
    /// How long callers were delayed, all together.
    pub delayed_ns: u64,
}

/// Emulated memory. It is told what a program reads and writes, and delays it. Clones are the same
/// memory: threads share its bandwidth.
///
/// An access that waits for the memory takes longer than in DRAM by the difference of the
/// latencies. Bytes take at least as long as the bandwidth allows, from the charge before on: a
/// program that computes meanwhile, and moves them more slowly anyway, is not delayed. Both
/// overlap, as they do in a memory. Nothing becomes faster.
///
/// ```
/// use outcrop_pool::{Emulator, Nvm};
/// let nvm = Emulator::new(Nvm::paper());
/// let field = vec![1.0; 1000];
/// let sum: f64 = field.iter().sum();
/// nvm.read(8 * 1000, 1); // one after the other: one access waits, the others are prefetched
/// nvm.write(8, 1);
/// assert_eq!((sum, nvm.charged().read_bytes), (1000.0, 8000));
/// ```
#[derive(Clone)]
pub struct Emulator(Arc<Shared>);

struct Shared {
    nvm: Nvm,
    clock: Box<dyn Clock>,
    state: Mutex<State>,
}

/// Time as the emulator sees it.
trait Clock: Send + Sync {
    fn now_ns(&self) -> u64;

    /// Returns at this time, or later.
    fn wait_until(&self, ns: u64);
}

struct State {
    charged: Charged,
    reading: Channel,
    writing: Channel,
    /// When the last charge was.
    last_ns: u64,
    /// What is owed and too short to wait for; negative after a wait that was too long.
    carried_ns: i64,
}

/// Bytes go one after the other.
#[derive(Debug, Default)]
struct Channel {
    busy_until_ns: u64,
    /// What the division has left, so that small transfers add up exactly.
    rest: u128,
}

impl Channel {
    /// Transfers bytes, not before `from_ns`.
    fn transfer(&mut self, bytes: u64, bytes_per_second: u64, from_ns: u64) {
        let rate = u128::from(bytes_per_second.max(1));
        let all = u128::from(bytes) * 1_000_000_000 + self.rest;
        self.rest = all % rate;
        let takes = u64::try_from(all / rate).unwrap_or(u64::MAX);
        self.busy_until_ns = self.busy_until_ns.max(from_ns).saturating_add(takes);
    }
}

/// Shorter delays are carried over: looking at a clock takes some of that.
const LEAST_NS: i64 = 1_000;

/// Longer delays sleep at first. A system wakes a thread too late by about that.
const SPIN_NS: u64 = 200_000;

impl Emulator {
    /// Memory of this speed.
    pub fn new(nvm: Nvm) -> Self {
        Self::with_clock(nvm, Box::new(RealClock(Instant::now())))
    }

    fn with_clock(nvm: Nvm, clock: Box<dyn Clock>) -> Self {
        let (reading, writing) = Default::default();
        let state = State { charged: Charged::default(), reading, writing, last_ns: clock.now_ns(), carried_ns: 0 };
        Self(Arc::new(Shared { nvm, clock, state: Mutex::new(state) }))
    }

    /// So many bytes were read, and so many of the accesses had to wait for the memory. Those that
    /// a processor makes ahead of time, as it does in a loop over neighbours, do not wait.
    pub fn read(&self, bytes: u64, accesses: u64) {
        self.charge(accesses, self.0.nvm.read_latency_ns, |state, nvm, from| {
            state.charged.read_bytes += bytes;
            state.charged.reads += accesses;
            state.reading.transfer(bytes, nvm.read_bytes_per_second, from);
            state.reading.busy_until_ns
        });
    }

    /// So many bytes were written, and so many of the accesses had to wait for the memory.
    pub fn write(&self, bytes: u64, accesses: u64) {
        self.charge(accesses, self.0.nvm.write_latency_ns, |state, nvm, from| {
            state.charged.written_bytes += bytes;
            state.charged.writes += accesses;
            state.writing.transfer(bytes, nvm.write_bytes_per_second, from);
            state.writing.busy_until_ns
        });
    }

    /// What was charged so far.
    pub fn charged(&self) -> Charged {
        self.state().charged
    }

    /// The speed that is emulated.
    pub fn nvm(&self) -> Nvm {
        self.0.nvm
    }

    fn charge(&self, accesses: u64, latency_ns: u64, account: impl FnOnce(&mut State, &Nvm, u64) -> u64) {
        let clock = &self.0.clock;
        let mut state = self.state();
        let now = clock.now_ns();
        let from = std::mem::replace(&mut state.last_ns, now);
        let busy_until = account(&mut state, &self.0.nvm, from);
        let more_ns = accesses.saturating_mul(latency_ns.saturating_sub(DRAM_LATENCY_NS));
        state.carried_ns = state.carried_ns.saturating_add(i64::try_from(more_ns).unwrap_or(i64::MAX));
        let transfer_ns = i64::try_from(busy_until.saturating_sub(now)).unwrap_or(i64::MAX);
        let owed = state.carried_ns.max(transfer_ns);
        if owed < LEAST_NS {
            return;
        }
        // Others are charged meanwhile, and are delayed for themselves.
        let paid = std::mem::take(&mut state.carried_ns);
        drop(state);
        clock.wait_until(now.saturating_add(owed.unsigned_abs()));
        let took = i64::try_from(clock.now_ns().saturating_sub(now)).unwrap_or(i64::MAX);
        let mut state = self.state();
        state.charged.delayed_ns = state.charged.delayed_ns.saturating_add(took.unsigned_abs());
        // What was owed for bytes is no credit for accesses.
        state.carried_ns -= (took - owed).min(paid.max(0));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator").field("nvm", &self.0.nvm).field("charged", &self.charged()).finish()
    }
}

struct RealClock(Instant);

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wait_until(&self, ns: u64) {
        let left = ns.saturating_sub(self.now_ns());
        if left > SPIN_NS {
            std::thread::sleep(Duration::from_nanos(left - SPIN_NS / 2));
        }
        while self.now_ns() < ns {
            std::hint::spin_loop();
        }
    }
}

/// A medium that is charged as non-volatile memory.
pub(crate) struct Emulated {
    pub(crate) medium: Box<dyn Medium>,
    pub(crate) nvm: Emulator,
}

impl Medium for Emulated {
    fn bytes(&self) -> u64 {
        self.medium.bytes()
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        self.medium.grow(bytes)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.medium.read(at, into)?;
        self.nvm.read(into.len() as u64, 1);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.medium.write(at, bytes)?;
        self.nvm.write(bytes.len() as u64, 1);
        Ok(())
    }

    /// A fence waits until the last line of each range has arrived.
    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.medium.flush(ranges)?;
        self.nvm.write(0, ranges.len() as u64);
        Ok(())
    }

    fn file(&self, inside: OfThisCrate) -> Option<BorrowedFd<'_>> {
        self.medium.file(inside)
    }

    fn flush_way(&self) -> &'static str {
        self.medium.flush_way()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;

    /// A clock that goes on when somebody waits or computes, and wakes sleepers too late.
    #[derive(Clone, Default)]
    struct Virtual(Arc<AtomicU64>, u64);

    impl Clock for Virtual {
        fn now_ns(&self) -> u64 {
            self.0.load(Relaxed)
        }

        fn wait_until(&self, ns: u64) {
            self.0.fetch_max(ns + self.1, Relaxed);
        }
    }

    const NVM: Nvm = Nvm {
        read_latency_ns: 100,
        write_latency_ns: 150,
        read_bytes_per_second: 7_000_000_000,
        write_bytes_per_second: 3_000_000_000,
    };

    fn emulator(late_ns: u64) -> (Emulator, Virtual) {
        let clock = Virtual(Arc::default(), late_ns);
        (Emulator::with_clock(NVM, Box::new(clock.clone())), clock)
    }

    #[test]
    fn small_charges_add_up_exactly() {
        // 64 bytes take 64/3 ns: rounded each time, a third of a nanosecond would be lost. Less
        // than a wait is carried over.
        let (nvm, clock) = emulator(0);
        (0..30_000).for_each(|_| nvm.write(64, 0));
        assert!((639_001..=640_000).contains(&clock.now_ns()), "{}", clock.now_ns());
        // And 40 ns more for each access that waits.
        let (nvm, clock) = emulator(0);
        (0..5_000).for_each(|_| nvm.read(0, 1));
        assert_eq!(clock.now_ns(), 200_000);
        assert_eq!(nvm.charged().delayed_ns, 200_000);
    }

    #[test]
    fn waits_that_are_too_long_are_made_up_for() {
        let (nvm, clock) = emulator(70);
        (0..5_000).for_each(|_| nvm.read(0, 1));
        assert!((199_001..=200_000 + 70).contains(&clock.now_ns()), "{}", clock.now_ns());
    }

    #[test]
    fn a_program_that_is_slower_than_the_memory_waits_for_latency_only() {
        let (nvm, clock) = emulator(0);
        for _ in 0..100 {
            clock.0.fetch_add(20_000, Relaxed);
            nvm.write(30_000, 0);
        }
        assert_eq!((clock.now_ns(), nvm.charged().delayed_ns), (2_000_000, 0));
        for _ in 0..100 {
            clock.0.fetch_add(20_000, Relaxed);
            nvm.write(30_000, 100);
        }
        assert_eq!(clock.now_ns(), 2_000_000 + 100 * (20_000 + 100 * 90));
    }

    #[test]
    fn a_pool_is_charged_with_what_it_writes_and_reads() {
        use crate::{Block, Options, Pool};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pool");
        let pool = Pool::open(&path, Options::versions(2).emulate(Nvm::paper())).unwrap();
        let mut array = pool.array::<u64>("a", 4096, Block::elements(512)).unwrap();
        let before = pool.emulator().unwrap().charged();
        array[..1024].fill(7);
        let bytes = pool.persist_counted(&mut [&mut array]).unwrap().bytes;
        let charged = pool.emulator().unwrap().charged();
        let root = outcrop_format::POOL_ROOT_BYTES as u64;
        // The list of structures does not fill its page.
        let written = charged.written_bytes - before.written_bytes;
        assert!((bytes - 4096..bytes + root).contains(&written), "{written} of {bytes}");
        assert!(charged.writes > before.writes);
        // What is too short to wait for adds up.
        for version in 0..50 {
            array[0] = version;
            pool.persist(&mut [&mut array]).unwrap();
        }
        assert!(pool.emulator().unwrap().charged().delayed_ns > before.delayed_ns);
        assert!(Pool::open(&path, Options::versions(2)).is_err());
        drop((array, pool));
        let plain = Pool::open(&path, Options::versions(2)).unwrap();
        assert!(plain.emulator().is_none());
        assert_eq!(plain.array::<u64>("a", 4096, Block::default()).unwrap()[1023], 7);
    }

    proptest! {
        /// Never shorter than the memory takes, and never shorter than without it.
        #[test]
        fn nothing_becomes_faster(
            charges in prop::collection::vec((0..5_000u64, 0..20_000u64, 0..50u64, any::<bool>()), 1..60),
            late in 0..5_000u64,
        ) {
            let (nvm, clock) = emulator(late);
            let (mut computed, mut bytes, mut latency) = (0, [0u64; 2], 0);
            for &(compute, count, accesses, is_read) in &charges {
                clock.0.fetch_add(compute, Relaxed);
                computed += compute;
                let before = clock.now_ns();
                if is_read { nvm.read(count, accesses) } else { nvm.write(count, accesses) }
                prop_assert!(clock.now_ns() >= before);
                bytes[usize::from(is_read)] += count;
                latency += accesses * (if is_read { 100 } else { 150 } - DRAM_LATENCY_NS);
            }
            let now = clock.now_ns();
            let least = LEAST_NS.unsigned_abs();
            prop_assert!(now + least >= computed + latency, "{} {} {}", now, computed, latency);
            prop_assert!(now + least >= bytes[1] / 7, "{} {}", now, bytes[1] / 7);
            prop_assert!(now + least >= bytes[0] / 3, "{} {}", now, bytes[0] / 3);
            let charged = nvm.charged();
            prop_assert_eq!([charged.written_bytes, charged.read_bytes], bytes);
            prop_assert_eq!(charged.delayed_ns, now - computed);
        }
    }
}
