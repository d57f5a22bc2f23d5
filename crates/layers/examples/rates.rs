//! Measures layers against plain system calls in the same run and directory, and leaves no file.
//!
//! `cargo run --release -p outcrop-layers --example rates [DIRECTORY [GIB]]`
//!
//! All memory is touched before the clock starts. Rates are the best of six rounds in GB/s (10^9
//! bytes). A write to new blocks is possible only once per file, so it has one round.

use std::{
    env,
    error::Error,
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Instant,
};

use outcrop_layers::{Dir, DirOptions, Feed, Host, Layer, Memory, Method, Result as LayerResult, Transfer};
use outcrop_memory::Copier;
use rustix::{
    fs::OFlags,
    io::{pread, pwrite},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const TRANSFER: u64 = 32 << 20;
/// Slots are reused in turn, so that the memory stays much smaller than what is moved.
const SLOTS: u64 = 8;
const ROUNDS: usize = 6;

fn main() -> Outcome<()> {
    let mut arguments = env::args().skip(1);
    let directory = arguments.next().map_or_else(env::temp_dir, PathBuf::from);
    let total = arguments.next().map_or(Ok(2), |gib| gib.parse::<u64>())? << 30;
    let host = Host::new(SLOTS * TRANSFER)?;
    host.touch(0..SLOTS * TRANSFER)?;
    let layer = |method, register| -> Outcome<Subject> {
        let options = DirOptions { method: Some(method), register, ..tuned()? };
        Ok(Subject::Layer(Box::new(Dir::open(&directory, total, options)?)))
    };
    let subjects = [
        ("sequential O_DIRECT, 32 MiB", Subject::bare(&directory)?),
        ("uring, registered memory", layer(Method::Uring, true)?),
        ("uring, plain memory", layer(Method::Uring, false)?),
        ("blocking", layer(Method::Blocking, false)?),
    ];
    println!("{} GiB in transfers of {} MiB in {}", total >> 30, TRANSFER >> 20, directory.display());
    println!("{:30}{:>12}{:>12}{:>12}{:>16}", "GB/s", "new", "overwrite", "read", "CPU s per GB");
    let rates = measure(&subjects, &host, total)?;
    for ((label, _), (own, cpu)) in subjects.iter().zip(&rates) {
        print!("{label:30}");
        for (rate, reference) in own.iter().zip(&rates[0].0) {
            print!("{rate:7.2} {:3.0}%", 100.0 * rate / reference);
        }
        println!("{cpu:16.3}");
    }
    copies()
}

/// The rates of each subject, and its processor time per gigabyte. Subjects alternate, so that
/// other load on the machine affects all of them.
fn measure(subjects: &[(&str, Subject)], host: &Host, total: u64) -> Outcome<Vec<(Rates, f64)>> {
    let mut rates = vec![([0.0_f64; 3], f64::INFINITY); subjects.len()];
    for round in 0..=ROUNDS {
        for ((_, subject), (rates, cpu)) in subjects.iter().zip(&mut rates) {
            let mut timed = |is_write| -> Outcome<f64> {
                let (start, cpu_start) = (Instant::now(), cpu_seconds());
                subject.run(host, total, is_write)?;
                *cpu = cpu.min((cpu_seconds() - cpu_start) / (total as f64 / 1e9));
                Ok(total as f64 / start.elapsed().as_secs_f64() / 1e9)
            };
            if round == 0 {
                rates[0] = timed(true)?;
            } else {
                rates[1] = rates[1].max(timed(true)?);
                rates[2] = rates[2].max(timed(false)?);
            }
        }
    }
    Ok(rates)
}

/// A way to copy.
type Copying<'way> = &'way dyn Fn(&mut [u8], &[u8]);

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Options from the environment, to try other request lengths and depths.
fn tuned() -> Outcome<DirOptions> {
    let mut options = DirOptions::default();
    if let Ok(kib) = env::var("BLOCK_KIB") {
        options.request_bytes = Some(kib.parse::<u64>()? << 10);
    }
    if let Ok(depth) = env::var("DEPTH") {
        options.depth = depth.parse()?;
    }
    Ok(options)
}

/// Rates of writing new blocks, overwriting them and reading them.
type Rates = [f64; 3];

enum Subject {
    /// One file, one thread, one call after the other.
    Bare(fs::File),
    Layer(Box<Dir>),
}

impl Subject {
    fn bare(directory: &Path) -> Outcome<Self> {
        let path = directory.join(format!("outcrop-rates-{}", std::process::id()));
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(&path)?;
        // The name is not needed any more: whatever happens from now on, no file is left.
        fs::remove_file(&path)?;
        Ok(Self::Bare(file))
    }

    fn run(&self, host: &Host, total: u64, is_write: bool) -> Outcome<()> {
        match self {
            Self::Bare(file) => {
                let mut slot = host.slot(0, TRANSFER)?;
                for at in (0..total).step_by(slot.len()) {
                    let count = if is_write { pwrite(file, &slot, at)? } else { pread(file, &mut *slot, at)? };
                    assert_eq!(count, slot.len(), "all of a transfer at once");
                }
                Ok(())
            }
            Self::Layer(dir) => {
                let mut round = Round { host, at: 0, total, is_write, idle: (0..SLOTS).collect(), failure: None };
                dir.run(&mut round);
                round.failure.map_or(Ok(()), |error| Err(error.into()))
            }
        }
    }
}

/// Transfers over the whole layer, first to last, with slots that are reused in turn.
struct Round<'host> {
    host: &'host Host,
    at: u64,
    total: u64,
    is_write: bool,
    idle: Vec<u64>,
    failure: Option<outcrop_layers::Error>,
}

impl Feed for Round<'_> {
    fn next(&mut self) -> Option<Transfer> {
        if self.at >= self.total || self.failure.is_some() {
            return None;
        }
        let tag = self.idle.pop()?;
        let slot = self.host.slot(tag * TRANSFER, TRANSFER).expect("an idle slot is free");
        let extents = std::iter::once(self.at..self.at + TRANSFER).collect();
        self.at += TRANSFER;
        let memory = if self.is_write { Memory::Write(slot.seal()) } else { Memory::Read(slot) };
        Some(Transfer { tag, extents, memory })
    }

    fn done(&mut self, transfer: Transfer, result: LayerResult<()>) {
        self.idle.push(transfer.tag);
        self.failure = result.err();
    }
}

/// Copies between two pieces of memory that are much larger than the caches, like a program's
/// arrays and its snapshots.
fn copies() -> Outcome<()> {
    const STRETCH: usize = 1 << 30;
    let hosts = [Host::new(STRETCH as u64)?, Host::new(STRETCH as u64)?];
    let mut source = hosts[0].slot(0, STRETCH as u64)?;
    let mut target = hosts[1].slot(0, STRETCH as u64)?;
    source.fill(1);
    target.fill(2);
    let (alone, shared) = (Copier::new(1), Copier::default());
    println!("\n{:20}{:>16}{:>16}{:>16}{:>10}", "copies, GB/s", "copy_from_slice", "one thread", "Copier", "threads");
    for kib in [16, 64, 256, 1 << 10, 4 << 10, 8 << 10, 32 << 10, 128 << 10] {
        let mut rates = [0.0_f64; 3];
        for _ in 0..ROUNDS {
            let ways: [Copying<'_>; 3] =
                [&|to, from| to.copy_from_slice(from), &|to, from| alone.copy(to, from), &|to, from| {
                    shared.copy(to, from)
                }];
            for (rate, copy) in rates.iter_mut().zip(ways) {
                let start = Instant::now();
                for (target, source) in target.chunks_mut(kib << 10).zip(source.chunks(kib << 10)) {
                    copy(target, source);
                }
                *rate = rate.max(STRETCH as f64 / start.elapsed().as_secs_f64() / 1e9);
            }
        }
        let [plain, alone, both] = rates;
        println!("{:20}{plain:16.2}{alone:16.2}{both:16.2}{:>10}", format!("{kib} KiB"), shared.threads_used());
    }
    Ok(())
}
