//! Other ways to make a changed array durable.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use outcrop::pool::{Array, Block, Options, Pool};

/// A way to keep an array.
pub(super) trait Way {
    fn name(&self) -> &'static str;

    /// Sets the first elements to a value, and makes that durable. Returns seconds and, where it is
    /// known, how many bytes were written.
    fn change(&mut self, count: usize, value: f64) -> Result<(f64, Option<u64>)>;

    /// Reads everything in a way that a new process can. `None` if it is not compared.
    fn restore(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }
}

/// Ways that there are here, and why others are not.
pub(super) type Found = (Vec<Box<dyn Way>>, Vec<String>);

/// All ways. `inside` is an empty directory.
pub(super) fn all(inside: &Path, len: usize) -> Result<Found> {
    let mut ways: Vec<Box<dyn Way>> = vec![
        Box::new(Ours::new(inside, len)?),
        Box::new(WholeFile { path: inside.join("bench.file"), state: vec![1.0; len] }),
    ];
    let mut missing = Vec::new();
    #[cfg(feature = "redb")]
    ways.push(Box::new(super::redb::Redb::new(inside, len)?));
    #[cfg(not(feature = "redb"))]
    missing.push("redb: this program was built without it (cargo run --release --features redb)".to_owned());
    match PmemObj::new(inside, len) {
        Ok(way) => ways.push(Box::new(way)),
        Err(error) => missing.push(format!("pmemobj: {error:#}")),
    }
    Ok((ways, missing))
}

struct Ours {
    path: PathBuf,
    open: Option<(Pool, Array<f64>)>,
    len: usize,
}

pub(super) const OURS: &str = "pool: change and persist";
pub(super) const FILE: &str = "whole file and fsync";
pub(super) const REDB: &str = "redb: changed blocks, commit";
pub(super) const PMEMOBJ: &str = "pmemobj: transaction (emulation)";

impl Ours {
    fn new(inside: &Path, len: usize) -> Result<Self> {
        let path = inside.join("bench.pool");
        let mut ours = Self { path, open: None, len };
        let (pool, array) = ours.open()?;
        array[..].fill(1.0);
        pool.persist(&mut [array])?;
        Ok(ours)
    }

    fn open(&mut self) -> Result<&mut (Pool, Array<f64>)> {
        if self.open.is_none() {
            let pool = Pool::open(&self.path, Options::versions(2))?;
            let array = pool.array::<f64>("state", self.len, Block::default())?;
            self.open = Some((pool, array));
        }
        self.open.as_mut().context("the pool is open")
    }
}

impl Way for Ours {
    fn name(&self) -> &'static str {
        OURS
    }

    fn change(&mut self, count: usize, value: f64) -> Result<(f64, Option<u64>)> {
        let (pool, array) = self.open()?;
        let start = Instant::now();
        array[..count].fill(value);
        let bytes = pool.persist_counted(&mut [array])?.bytes;
        Ok((start.elapsed().as_secs_f64(), Some(bytes)))
    }

    fn restore(&mut self) -> Result<Option<f64>> {
        self.open = None;
        let middle = self.len / 2;
        let start = Instant::now();
        let (_, array) = self.open()?;
        std::hint::black_box(array[middle]);
        Ok(Some(start.elapsed().as_secs_f64()))
    }
}

struct WholeFile {
    path: PathBuf,
    state: Vec<f64>,
}

impl Way for WholeFile {
    fn name(&self) -> &'static str {
        FILE
    }

    fn change(&mut self, count: usize, value: f64) -> Result<(f64, Option<u64>)> {
        let start = Instant::now();
        self.state[..count].fill(value);
        let bytes = zerocopy::IntoBytes::as_bytes(&self.state[..]);
        let mut file = File::create(&self.path)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        Ok((start.elapsed().as_secs_f64(), Some(bytes.len() as u64)))
    }

    fn restore(&mut self) -> Result<Option<f64>> {
        let start = Instant::now();
        let mut bytes = Vec::with_capacity(self.state.len() * 8);
        File::open(&self.path)?.read_to_end(&mut bytes)?;
        let state: Vec<f64> =
            bytes.chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().unwrap_or_default())).collect();
        std::hint::black_box(state[state.len() / 2]);
        Ok(Some(start.elapsed().as_secs_f64()))
    }
}

/// A program with libpmemobj. It believes that the file is persistent memory
/// (PMEM_IS_PMEM_FORCE), which is emulation: nothing is durable there on a disk.
struct PmemObj {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl PmemObj {
    fn new(inside: &Path, len: usize) -> Result<Self> {
        let (source, program) = (inside.join("pmemobj.c"), inside.join("pmemobj"));
        std::fs::write(&source, include_str!("pmemobj.c"))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-o"]).args([&program, &source]).arg("-lpmemobj");
        let compiled = compiler.output().context("there is no C compiler")?;
        ensure!(compiled.status.success(), "it cannot be compiled here (package libpmemobj-dev)");
        let mut command = Command::new(&program);
        command.arg(inside.join("bench.pmemobj")).arg(len.to_string()).env("PMEM_IS_PMEM_FORCE", "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("it has no input or output") };
        let mut started = Self { process, input, output: BufReader::new(output) };
        ensure!(started.hear()? == "ready", "it did not start");
        Ok(started)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "it has ended");
        Ok(line.trim().to_owned())
    }
}

impl Way for PmemObj {
    fn name(&self) -> &'static str {
        PMEMOBJ
    }

    fn change(&mut self, count: usize, value: f64) -> Result<(f64, Option<u64>)> {
        writeln!(self.input, "{count} {value}")?;
        Ok((self.hear()?.parse()?, None))
    }
}

impl Drop for PmemObj {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
