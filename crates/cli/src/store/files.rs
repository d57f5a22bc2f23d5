//! `outcrop restore` and `outcrop export`: write the regions of a version to plain files.

use std::{
    collections::BTreeSet,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use outcrop::{
    MemoryOrder, Shape,
    catalog::{Error, Reader, Version},
    layers::files::{DiskFiles, Files},
};
use serde_json::{Value, json};

use super::{SessionArgs, Which, open_one, print_json, progress::ByteProgress, region_name, whole::Whole};
use crate::{say::say, table};

/// How much of a region is in memory at a time.
const CHUNK_BYTES: u64 = 64 << 20;
/// At least this many excluded bytes become a hole in the file.
const HOLE_BYTES_MIN: u64 = 64 << 10;

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
    /// With `export`: write zeros for elements of a global array that no rank has saved.
    #[arg(long)]
    allow_holes: bool,
    /// Replace existing files.
    #[arg(long)]
    force: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A file to write.
struct Output {
    /// `None` if it has the parts of all ranks.
    rank: Option<u32>,
    whole: Option<Whole>,
    region: String,
    bytes: u64,
    path: PathBuf,
    /// Its name in the output directory.
    name: String,
    /// The bytes before the contents.
    head: Vec<u8>,
    /// The element type, if the file format cannot express it.
    note: Option<String>,
}

pub(crate) fn run(args: &RestoreArgs, is_export: bool) -> Result<()> {
    let catalog = open_one(&args.session.directory)?;
    let version = catalog.version(&args.session.session, args.which.0)?;
    let outputs = outputs(args, &version, is_export)?;
    let progress = ByteProgress::new("writing");
    let total = outputs.iter().map(|output| output.bytes).fold(0, u64::saturating_add);
    let files = DiskFiles::create(&args.to).with_context(|| format!("cannot write {}", args.to.display()))?;
    let files = files.without_links();
    for (&rank, manifest) in &version.manifests {
        let mut of_rank = outputs.iter().filter(|output| output.rank == Some(rank)).peekable();
        if of_rank.peek().is_none() {
            continue;
        }
        let reader = catalog.reader(manifest)?;
        let dir = rank_dir(rank);
        let failed = || format!("cannot write to {}/{dir}", files.location());
        files.make_dir(&dir).and_then(|()| files.sync_dir("")).with_context(failed)?;
        for output in of_rank {
            write(&files, &reader, output, &|done| progress.add(done, total))?;
        }
        files.sync_dir(&dir).with_context(failed)?;
    }
    for output in &outputs {
        if let Some(whole) = &output.whole {
            let failed = || format!("cannot write {}", output.path.display());
            let write_draft = |draft: &str| {
                whole.write(&catalog, &version, (&files, draft, &output.head), &|done| progress.add(done, total))
            };
            in_place(&files, output, write_draft).and_then(|()| Ok(files.sync_dir("")?)).with_context(failed)?;
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
            output.rank.map_or_else(|| "all".to_owned(), |rank| rank.to_string()),
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

/// All files to write. Returns an error if one of them exists and must not be replaced.
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
    let mut put_together = BTreeSet::new();
    for manifest in manifests {
        for region in &manifest.regions {
            known.insert(region.name.clone());
            if args.region.as_ref().is_some_and(|name| *name != region.name) || put_together.contains(&region.name) {
                continue;
            }
            let is_part = is_export && args.rank.is_none() && region.shape.global().is_some();
            if let Some(whole) =
                is_part.then(|| Whole::new(version, &region.name, args.allow_holes)).transpose()?.flatten()
            {
                put_together.insert(region.name.clone());
                outputs.push(whole_output(args, &region.name, whole));
                continue;
            }
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
            let name = format!("{}/{stem}.{extension}", rank_dir(manifest.rank));
            outputs.push(Output {
                rank: Some(manifest.rank),
                whole: None,
                region: region.name.clone(),
                bytes,
                path: args.to.join(&name),
                name,
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
            return Err(Exists::new(&output.path).into());
        }
    }
    Ok(outputs)
}

/// The file of a region of which all ranks have a part.
fn whole_output(args: &RestoreArgs, region: &str, whole: Whole) -> Output {
    let stem = if region.is_empty() { "unnamed" } else { region };
    let head = npy_head(&whole.element, whole.element_bytes, &whole.shape);
    let name = format!("{stem}.{}", if head.is_some() { "npy" } else { "bin" });
    let (element, bytes) = (&whole.element, whole.element_bytes);
    let note = head.is_none().then(|| format!("raw bytes: {element} elements of {bytes} bytes, {}", whole.shape));
    Output {
        rank: None,
        region: region.to_owned(),
        bytes: whole.bytes(),
        path: args.to.join(&name),
        name,
        head: head.unwrap_or_default(),
        note,
        whole: Some(whole),
    }
}

/// A file exists and must not be replaced.
#[derive(Debug)]
pub(crate) struct Exists(String);

impl Exists {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.display().to_string())
    }
}

impl std::fmt::Display for Exists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} exists, so nothing was written; use --force to replace it", self.0)
    }
}

impl std::error::Error for Exists {}

/// The directory for the files of a rank.
fn rank_dir(rank: u32) -> String {
    format!("rank-{rank:05}")
}

/// Writes a region under another name first, so that a file with the final name is complete, even
/// after a crash. No link is followed; a link with the final name is replaced.
fn write(files: &DiskFiles, reader: &Reader, output: &Output, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
    in_place(files, output, |draft| write_draft(files, draft, reader, output, progress))
}

fn in_place(files: &DiskFiles, output: &Output, write: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let draft = format!("{}.draft", output.name);
    // The existing file may be a hard link to a file that must not be overwritten.
    let _ = files.remove(&draft);
    let failed = || format!("cannot write {}", output.path.display());
    let result = write(&draft).and_then(|()| files.rename(&draft, &output.name).with_context(failed));
    if result.is_err() {
        // An incomplete file is of no use.
        let _ = files.remove(&draft);
    }
    result
}

fn write_draft(
    files: &DiskFiles,
    draft: &str,
    reader: &Reader,
    output: &Output,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let failed = || format!("cannot write {}", output.path.display());
    let file = files.create(draft, 0).with_context(failed)?;
    let head_bytes = output.head.len() as u64;
    file.write_at(0, &output.head).with_context(failed)?;
    if let Some(last) = output.bytes.checked_sub(1) {
        // The file may end with a hole. This fails now if it is too long for the file system.
        file.write_at(head_bytes + last, &[0]).with_context(failed)?;
    }
    let mut chunk = Vec::new();
    let mut done = 0;
    for piece in pieces(reader.saved(&output.region)?) {
        // Clear it for each piece, because excluded bytes are not written.
        chunk.clear();
        chunk.resize((piece.end - piece.start) as usize, 0);
        reader.read(&output.region, piece.start, &mut chunk, progress)?;
        file.write_at(head_bytes + piece.start, &chunk).with_context(failed)?;
        done += piece.end - piece.start;
    }
    progress(output.bytes - done);
    file.sync().with_context(failed)
}

/// The parts of a region that are written, from the ranges that were saved. The gaps between them
/// become holes.
fn pieces(mut saved: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let mut rest: Option<Range<u64>> = None;
    std::iter::from_fn(move || {
        let mut piece = rest.take().or_else(|| saved.next())?;
        while piece.end - piece.start <= CHUNK_BYTES {
            match saved.next() {
                Some(next) if next.start - piece.end < HOLE_BYTES_MIN => piece.end = next.end,
                next => {
                    rest = next;
                    return Some(piece);
                }
            }
        }
        let cut = piece.start + CHUNK_BYTES;
        rest = Some(cut..piece.end);
        Some(piece.start..cut)
    })
}

/// The header of an .npy file for such an array. `None` if .npy cannot hold these elements.
pub(crate) fn npy_head(element: &str, element_bytes: u32, shape: &Shape) -> Option<Vec<u8>> {
    let descr = match element.strip_prefix("numpy:") {
        // As Python has written it. Non-ASCII text would need another version of .npy.
        Some(descr) => Some(descr.to_owned()).filter(|descr| descr.is_ascii())?,
        None => number_descr(element, element_bytes)?,
    };
    let dimensions: Vec<_> = shape.dimensions().iter().map(ToString::to_string).collect();
    // A tuple of one element ends with a comma.
    let comma = if dimensions.len() == 1 { "," } else { "" };
    let is_fortran = if shape.order() == MemoryOrder::ColumnMajor { "True" } else { "False" };
    let dimensions = dimensions.join(", ");
    let mut dict = format!("{{'descr': {descr}, 'fortran_order': {is_fortran}, 'shape': ({dimensions}{comma}), }}");
    // The header is padded to a multiple of 64, including the 10 bytes before and the newline after
    // it.
    let padding = (10 + dict.len() + 1).next_multiple_of(64) - (10 + dict.len() + 1);
    dict.extend(std::iter::repeat_n(' ', padding));
    dict.push('\n');
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend(u16::try_from(dict.len()).ok()?.to_le_bytes());
    head.extend(dict.as_bytes());
    Some(head)
}

/// NumPy's name of a number type.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_was_saved_with_small_gaps_between() {
        const CHUNK: u64 = CHUNK_BYTES;
        let cut = |saved: &[Range<u64>]| pieces(saved.iter().cloned()).collect::<Vec<_>>();
        assert_eq!(cut(&[]), []);
        assert_eq!(cut(&[0..10, 20..30, (1 << 20)..(1 << 20) + 5]), [0..30, (1 << 20)..(1 << 20) + 5]);
        assert_eq!(cut(std::slice::from_ref(&(5..2 * CHUNK + 5))), [5..CHUNK + 5, CHUNK + 5..2 * CHUNK + 5]);
        assert_eq!(cut(&[0..CHUNK, CHUNK + 1..CHUNK + 9]), [0..CHUNK, CHUNK..CHUNK + 9]);
        assert_eq!(cut(&[0..CHUNK + 7, 1 << 40..(1 << 40) + 1]), [0..CHUNK, CHUNK..CHUNK + 7, 1 << 40..(1 << 40) + 1]);
    }
}
