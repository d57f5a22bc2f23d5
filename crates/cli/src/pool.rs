//! `outcrop pool`: show, verify and export the versions of a pool.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use outcrop::{
    ErrorKind, MemoryOrder, Shape,
    layers::files::{DiskFiles, Files},
    pool::{Described, Options, Pool, View},
};
use serde_json::json;

use crate::{
    say::say,
    store::{Exists, npy_head, print_json, region_name, time},
    table,
};

/// Commands on a pool. No program may have it open meanwhile.
#[derive(Subcommand)]
pub(crate) enum PoolCommand {
    /// Show the versions of a pool, and the structures of the newest.
    Show(ShowArgs),
    /// Read every byte of all versions and report damage.
    ///
    /// Exits with code 16 if a version is damaged. Changes nothing.
    Verify(ShowArgs),
    /// Write the arrays of a version to files, numbers as NumPy arrays (.npy).
    Export(ExportArgs),
}

/// Which pool.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The file of the pool.
    file: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// What to write, and where.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The file of the pool.
    file: PathBuf,
    /// The version; the newest by default.
    #[arg(value_name = "VERSION")]
    which: Option<u64>,
    /// Directory for the files, one per array.
    #[arg(long, value_name = "OUT")]
    to: PathBuf,
    /// Replace existing files.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(command: &PoolCommand) -> Result<()> {
    match command {
        PoolCommand::Show(args) => show(args),
        PoolCommand::Verify(args) => verify(args),
        PoolCommand::Export(args) => export(args),
    }
}

/// A pool that is there. It keeps all versions that it has.
fn open(file: &Path) -> Result<Pool> {
    Ok(Pool::open(file, Options::versions(31).existing()).map_err(outcrop::Error::from)?)
}

fn view(pool: &Pool, version: u64) -> Result<View> {
    Ok(pool.view(version).map_err(outcrop::Error::from)?)
}

fn show(args: &ShowArgs) -> Result<()> {
    let pool = open(&args.file)?;
    let views = pool.versions().into_iter().map(|version| view(&pool, version)).collect::<Result<Vec<_>>>()?;
    let usage = pool.usage();
    if args.json {
        let versions = views.iter().map(|view| {
            let structures = view.structures().map(|it| {
                json!({
                    "name": it.name, "kind": it.kind, "element": it.element, "element_bytes": it.element_bytes, "shape": it.shape,
                    "block_bytes": it.block_bytes,
                })
            });
            json!({
                "version": view.version(), "saved_at_unix_ns": view.saved_at_unix_ns(),
                "structures": structures.collect::<Vec<_>>(),
            })
        });
        let versions: Vec<_> = versions.collect();
        let skipped: Vec<_> =
            pool.skipped().iter().map(|(version, why)| json!({ "version": version, "why": why })).collect();
        return print_json(&json!({
            "file_bytes": usage.file_bytes, "used_bytes": usage.used_bytes, "flush": usage.flush, "versions": versions,
            "damaged": skipped,
        }));
    }
    let used = table::bytes(usage.used_bytes);
    let (file, count, all) = (args.file.display(), views.len(), table::bytes(usage.file_bytes));
    say!("{file}: {count} versions, {used} of {all} in use, flushed by {}", usage.flush);
    let mut listed = table::new(&["version", "persisted", "structures"]);
    for view in &views {
        listed.add_row(vec![
            view.version().to_string(),
            time(view.saved_at_unix_ns()),
            view.structures().count().to_string(),
        ]);
    }
    say!("{listed}");
    if let Some(newest) = views.last() {
        say!("version {}", newest.version());
        let mut listed = table::new(&["structure", "kind", "element", "shape", "size", "block"]);
        for it in newest.structures() {
            let element = it.element.map_or_else(|| format!("{} bytes", it.element_bytes), str::to_owned);
            let shape = dimensions(&it).iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            let (size, block) = (table::bytes(bytes(&it)), table::bytes(it.block_bytes));
            listed.add_row(vec![region_name(&it.name).to_owned(), it.kind.to_owned(), element, shape, size, block]);
        }
        say!("{listed}");
    }
    for (version, why) in pool.skipped() {
        say!("version {version} is damaged: {why}");
    }
    Ok(())
}

fn verify(args: &ShowArgs) -> Result<()> {
    let pool = open(&args.file)?;
    let mut damaged = pool.skipped();
    let versions = pool.versions();
    for &version in &versions {
        if let Err(error) = view(&pool, version)?.verify() {
            damaged.push((version, error.to_string()));
        }
    }
    if args.json {
        let damaged = damaged.iter().map(|(version, why)| json!({ "version": version, "why": why }));
        print_json(&json!({ "versions": versions, "damaged": damaged.collect::<Vec<_>>() }))?;
    } else {
        damaged.iter().for_each(|(version, why)| say!("version {version} is damaged: {why}"));
        let whole = versions.iter().filter(|version| damaged.iter().all(|(damaged, _)| damaged != *version)).count();
        say!("{whole} versions are as they were persisted");
    }
    match damaged.len() {
        0 => Ok(()),
        count => {
            let message = format!("{count} versions of {} are damaged", args.file.display());
            Err(outcrop::Error::new(ErrorKind::Damaged, message).into())
        }
    }
}

fn export(args: &ExportArgs) -> Result<()> {
    let pool = open(&args.file)?;
    let Some(version) = args.which.or_else(|| pool.versions().last().copied()) else {
        let message = format!("{} has no version", args.file.display());
        return Err(outcrop::Error::new(ErrorKind::Missing, message).into());
    };
    let view = view(&pool, version)?;
    view.verify().map_err(outcrop::Error::from)?;
    let files = DiskFiles::create(&args.to).with_context(|| format!("cannot write {}", args.to.display()))?;
    let files = files.without_links();
    let mut outputs = Vec::new();
    for it in view.structures() {
        let shape = Shape::new(&dimensions(&it), MemoryOrder::RowMajor)?;
        let head = it.element.and_then(|element| npy_head(element, it.element_bytes, &shape));
        let stem = if it.name.is_empty() { "unnamed" } else { &it.name };
        let name = format!("{stem}.{}", if head.is_some() { "npy" } else { "bin" });
        let path = args.to.join(&name);
        if !args.force && path.symlink_metadata().is_ok() {
            return Err(Exists::new(&path).into());
        }
        outputs.push((it, name, path, head.unwrap_or_default()));
    }
    for (it, name, path, head) in &outputs {
        let content = view.bytes(&it.name).map_err(outcrop::Error::from)?;
        // Under another name first, so that a file with the final name is complete.
        let draft = format!("{name}.draft");
        let _ = files.remove(&draft);
        let written = files.create(&draft, 0).and_then(|file| {
            file.write_at(0, head)?;
            file.write_at(head.len() as u64, &content)?;
            file.sync()
        });
        let written = written.and_then(|()| files.rename(&draft, name));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        say!("{} {}", path.display(), table::bytes(bytes(it)));
    }
    files.sync_dir("").with_context(|| format!("cannot write {}", args.to.display()))
}

/// The dimensions of an array: those of length 1 at the end are left out.
fn dimensions(it: &Described) -> Vec<usize> {
    let count = it.shape.iter().rposition(|count| *count != 1).map_or(1, |last| last + 1);
    it.shape[..count].iter().map(|count| *count as usize).collect()
}

fn bytes(it: &Described) -> u64 {
    it.shape.iter().product::<u64>() * u64::from(it.element_bytes)
}
