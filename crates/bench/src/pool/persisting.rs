//! How long it takes until a changed array is durable, by each way, on several file systems.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CHANGED, MIB, median, rivals};

/// What to measure in one directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    /// What to call it.
    pub(super) name: String,
    pub(super) directory: PathBuf,
    pub(super) len: usize,
    pub(super) rounds: usize,
}

/// What was measured in one directory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) runs: Vec<Value>,
    /// Medians in seconds, by way and percent changed; the restores have 0 percent.
    medians: BTreeMap<String, Vec<(f64, f64)>>,
    /// Bytes that the pool has written with 1 % changed, over what has changed.
    pub(super) bytes_over_changed: f64,
    /// Ways that are not there, and why.
    pub(super) missing: Vec<String>,
}

/// Restores are noted as this share.
pub(super) const RESTORE: f64 = 0.0;

impl Measured {
    /// The median of one way over that of another; `None` if one of them is not there.
    pub(super) fn ratio(&self, way: &str, over: &str, share: f64) -> Option<f64> {
        let median = |way: &str| Some(self.medians.get(way)?.iter().find(|(of, _)| *of == share)?.1);
        Some(median(way)? / median(over)?)
    }
}

/// Measures all ways in a directory, one after the other in each round.
pub(super) fn measure(order: &Order) -> Result<Measured> {
    let inside = tempfile::tempdir_in(&order.directory)?;
    let (mut ways, missing) = rivals::all(inside.path(), order.len)?;
    let mut measured = Measured { missing, ..Measured::default() };
    for share in CHANGED {
        let changed = ((order.len as f64 * share) as usize).max(1);
        let part = format!("{}: {} % changed, until durable", order.name, share * 100.0);
        let mut seconds = vec![Vec::new(); ways.len()];
        let mut written = vec![None; ways.len()];
        for round in 0..order.rounds {
            for (number, way) in ways.iter_mut().enumerate() {
                let (took, bytes) = way.change(changed, 2.0 + round as f64 + share)?;
                seconds[number].push(took);
                written[number] = bytes;
            }
        }
        for (number, way) in ways.iter().enumerate() {
            let median = median(&seconds[number]);
            measured.medians.entry(way.name().to_owned()).or_default().push((share, median));
            measured.runs.push(json!({
                "part": part, "way": way.name(), "file_system": order.name, "changed_percent": share * 100.0,
                "ms_median": 1e3 * median, "written_mib": written[number].map(|bytes| bytes as f64 / MIB),
            }));
            if way.name() == rivals::OURS && share == 0.01 {
                measured.bytes_over_changed = written[number].unwrap_or(0) as f64 / (8 * changed) as f64;
            }
        }
    }
    for way in &mut ways {
        let restores = (0..order.rounds).map(|_| way.restore()).collect::<Result<Option<Vec<f64>>>>()?;
        let Some(restores) = restores else { continue };
        measured.medians.entry(way.name().to_owned()).or_default().push((RESTORE, median(&restores)));
        let part = format!("{}: until a new process can use it, files in the page cache", order.name);
        let name = match way.name() {
            rivals::OURS => "pool: open and read one element",
            rivals::FILE => "read a file and rebuild",
            _ => "redb: open, read and rebuild",
        };
        measured.runs.push(json!({ "part": part, "way": name, "ms_median": 1e3 * median(&restores) }));
    }
    Ok(measured)
}

/// As `measure`, in a process of its own with a file system of its own, whose image is in the
/// directory. Both end with the process.
pub(super) fn measure_on(file_system: &str, order: &Order) -> Result<Measured> {
    let inside = tempfile::tempdir_in(&order.directory)?;
    let (image, medium) = (inside.path().join("image"), inside.path().join("medium"));
    std::fs::create_dir(&medium)?;
    // Sparse: enough for all ways, and for the smallest xfs.
    File::create(&image)?.set_len(((order.len * 8 * 12) as u64 + (256 << 20)).max(512 << 20))?;
    succeed(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&image))?;
    let order = Order { name: file_system.to_owned(), directory: medium.clone(), ..order.clone() };
    let script = r#"mount -o loop "$0" "$1" && exec "$2" bench pool-process "$3""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).args([&image, &medium]).arg(std::env::current_exe()?);
    let output = succeed(command.arg(serde_json::to_string(&order)?))?;
    serde_json::from_slice(&output).context("the process gave no result")
}

fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", command.get_program().display(), said.trim());
    Ok(output.stdout)
}

/// One process of the benchmark: prints what it has measured.
pub fn process(order: &str) -> Result<()> {
    println!("{}", serde_json::to_string(&measure(&serde_json::from_str(order)?)?)?);
    Ok(())
}

/// Whether files in a directory are in memory.
pub(super) fn is_memory(directory: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}
