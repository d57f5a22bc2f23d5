//! `outcrop restore` and `outcrop export`: the regions of a version as plain files.

use std::{collections::BTreeSet, fs, io::Write, path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use clap::Args;
use outcrop::{
    MemoryOrder, Shape,
    catalog::{Error, Reader, Version},
};
use serde_json::{Value, json};

use super::{SessionArgs, Which, open_one, print_json, progress::ByteProgress, region_name};
use crate::{say::say, table};

/// How much of a region is in memory at a time.
const CHUNK_BYTES: u64 = 64 << 20;

/// What to write, and where.
#[derive(Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// The version, or `latest`.
    #[arg(value_name = "VERSION", default_value = "latest")]
    which: Which,
    /// Directory for the files: one file per region, in one subdirectory per rank.
    #[arg(long, value_name = "OUT")]
    to: PathBuf,
    /// Only this rank.
    #[arg(long)]
    rank: Option<u32>,
    /// Only this region.
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Replace existing files.
    #[arg(long)]
    force: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A file that is to be written.
struct Output {
    rank: u32,
    region: String,
    bytes: u64,
    path: PathBuf,
    /// Its name until it is whole.
    draft: PathBuf,
    /// What comes before the bytes.
    head: Vec<u8>,
    /// What the elements are, if there is no way to say it in the file.
    note: Option<String>,
}

pub(crate) fn run(args: &RestoreArgs, is_export: bool) -> Result<()> {
    let catalog = open_one(&args.session.directory)?;
    let version = catalog.version(&args.session.session, args.which.0)?;
    let outputs = outputs(args, &version, is_export)?;
    let progress = ByteProgress::new("writing");
    let total = outputs.iter().map(|output| output.bytes).sum();
    for (&rank, manifest) in &version.manifests {
        let mut of_rank = outputs.iter().filter(|output| output.rank == rank).peekable();
        if of_rank.peek().is_none() {
            continue;
        }
        let reader = catalog.reader(manifest)?;
        for output in of_rank {
            write(&reader, output, &|done| progress.add(done, total))?;
        }
    }
    drop(progress);
    if args.json {
        let files = outputs.iter().map(|output| {
            json!({
                "rank": output.rank,
                "region": output.region,
                "bytes": output.bytes,
                "file": output.path,
                "note": output.note,
            })
        });
        return print_json(&json!({ "version": version.version, "files": files.collect::<Value>() }));
    }
    say!("version {} of {}", version.version, args.session.session);
    let mut listed = table::new(&["file", "rank", "region", "size"]);
    for output in &outputs {
        let path = output.path.display().to_string();
        listed.add_row(vec![
            path,
            output.rank.to_string(),
            region_name(&output.region).to_owned(),
            table::bytes(output.bytes),
        ]);
    }
    say!("{listed}");
    for output in &outputs {
        if let Some(note) = &output.note {
            say!("{}: {note}", output.path.display());
        }
    }
    Ok(())
}

/// All files that are to be written; an error if one of them is there and must not be replaced.
fn outputs(args: &RestoreArgs, version: &Version, is_export: bool) -> Result<Vec<Output>> {
    let session = &args.session.session;
    let manifests = version.manifests.values().filter(|manifest| args.rank.is_none_or(|rank| rank == manifest.rank));
    let manifests: Vec<_> = manifests.map(Arc::as_ref).collect();
    let asked = args.rank.unwrap_or_default();
    ensure!(
        !manifests.is_empty(),
        "version {} of {session} has no rank {asked}; it has {} ranks",
        version.version,
        version.ranks
    );
    let mut outputs = Vec::new();
    let mut known = BTreeSet::new();
    for manifest in manifests {
        for region in &manifest.regions {
            known.insert(region.name.clone());
            if args.region.as_ref().is_some_and(|name| *name != region.name) {
                continue;
            }
            let dir = args.to.join(format!("rank-{:05}", manifest.rank));
            let stem = if region.name.is_empty() { "unnamed" } else { &region.name };
            let (bytes, element_bytes) = (region.blocks.bytes(), region.element_bytes);
            let head = if is_export { npy_head(&region.element, element_bytes, &region.shape) } else { None };
            let extension = match (&head, &*region.element) {
                (Some(_), _) => "npy",
                (None, "text") if is_export => "txt",
                (None, "pickle") if is_export => "pickle",
                _ => "bin",
            };
            let raw = || format!("raw bytes: {} elements of {element_bytes} bytes, {}", region.element, region.shape);
            outputs.push(Output {
                rank: manifest.rank,
                region: region.name.clone(),
                bytes,
                path: dir.join(format!("{stem}.{extension}")),
                draft: dir.join(format!("{stem}.{extension}.draft")),
                note: (is_export && extension == "bin").then(raw),
                head: head.unwrap_or_default(),
            });
        }
    }
    if let (Some(region), true) = (&args.region, outputs.is_empty()) {
        let (rank, known) = (asked, known.into_iter().collect());
        let (session, region) = (session.clone(), region.clone());
        return Err(Error::NoRegion { session, version: version.version, rank, region, known }.into());
    }
    let mut paths = BTreeSet::new();
    for output in &outputs {
        let path = output.path.display();
        ensure!(paths.insert(&output.path), "two regions would be written to {path}; choose one with --region");
        if !args.force && output.path.symlink_metadata().is_ok() {
            return Err(Exists(path.to_string()).into());
        }
    }
    Ok(outputs)
}

/// A file that is there and was not to be replaced.
#[derive(Debug)]
pub(crate) struct Exists(String);

impl std::fmt::Display for Exists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} exists, so nothing was written; use --force to replace it", self.0)
    }
}

impl std::error::Error for Exists {}

/// Writes a region under another name first, so that a file with the right name is whole.
fn write(reader: &Reader, output: &Output, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let result = write_draft(reader, output, progress).and_then(|()| {
        fs::rename(&output.draft, &output.path).with_context(|| format!("cannot write {}", output.path.display()))
    });
    if result.is_err() {
        // Half a file is of no use to anybody.
        let _ = fs::remove_file(&output.draft);
    }
    result
}

fn write_draft(reader: &Reader, output: &Output, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let failed = || format!("cannot write {}", output.draft.display());
    if let Some(dir) = output.draft.parent() {
        fs::create_dir_all(dir).with_context(failed)?;
    }
    let mut file = fs::File::create(&output.draft).with_context(failed)?;
    file.write_all(&output.head).with_context(failed)?;
    let mut chunk = Vec::new();
    let mut at = 0;
    while at < output.bytes {
        // Cleared for each chunk, because excluded bytes are not written to.
        chunk.clear();
        chunk.resize((output.bytes - at).min(CHUNK_BYTES) as usize, 0);
        reader.read(&output.region, at, &mut chunk, progress)?;
        file.write_all(&chunk).with_context(failed)?;
        at += chunk.len() as u64;
    }
    Ok(())
}

/// What an .npy file of such an array begins with; nothing if it cannot hold these elements.
fn npy_head(element: &str, element_bytes: u32, shape: &Shape) -> Option<Vec<u8>> {
    let descr = match element.strip_prefix("numpy:") {
        // As Python has written it: text of another encoding needs another version of .npy.
        Some(descr) => Some(descr.to_owned()).filter(|descr| descr.is_ascii())?,
        None => number_descr(element, element_bytes)?,
    };
    let dimensions: Vec<_> = shape.dimensions().iter().map(ToString::to_string).collect();
    // A tuple of one has a comma behind it.
    let comma = if dimensions.len() == 1 { "," } else { "" };
    let is_fortran = if shape.order() == MemoryOrder::ColumnMajor { "True" } else { "False" };
    let dimensions = dimensions.join(", ");
    let mut dict = format!("{{'descr': {descr}, 'fortran_order': {is_fortran}, 'shape': ({dimensions}{comma}), }}");
    // All of it is a multiple of 64, with the 10 bytes before and the line end behind.
    let padding = (10 + dict.len() + 1).next_multiple_of(64) - (10 + dict.len() + 1);
    dict.extend(std::iter::repeat_n(' ', padding));
    dict.push('\n');
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend(u16::try_from(dict.len()).ok()?.to_le_bytes());
    head.extend(dict.as_bytes());
    Some(head)
}

/// What NumPy calls a number type.
fn number_descr(element: &str, element_bytes: u32) -> Option<String> {
    let kind = match (element, element_bytes) {
        ("f16", 2) | ("f32", 4) | ("f64", 8) => 'f',
        ("c64", 8) | ("c128", 16) => 'c',
        ("bool", 1) => 'b',
        ("i8", 1) | ("i16", 2) | ("i32", 4) | ("i64", 8) => 'i',
        ("u8", 1) | ("u16", 2) | ("u32", 4) | ("u64", 8) => 'u',
        _ => return None,
    };
    let order = if element_bytes == 1 { '|' } else { '<' };
    Some(format!("'{order}{kind}{element_bytes}'"))
}
