//! `outcrop ls`, `show` and `du`: list versions and their sizes.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use clap::Args;
use outcrop::{
    MemoryOrder, Shape,
    catalog::{Catalog, Error, Usage, Version},
};
use serde_json::{Value, json};

use super::{SessionArgs, Unread, Which, open, open_one, print_json, region_name, time};
use crate::{say::say, table};

/// Which directories to list.
#[derive(Args)]
pub(crate) struct LsArgs {
    /// The directories of the store, fastest first.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// What to show.
#[derive(Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// The version, or `latest` for the newest complete one [default: list all versions].
    #[arg(value_name = "VERSION")]
    which: Option<Which>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Which directories to add up.
#[derive(Args)]
pub(crate) struct DuArgs {
    /// The directories of the store.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// One version, in any of the directories.
struct Row {
    session: String,
    /// For each directory, what it has of the version.
    in_each: Vec<Option<Version>>,
}

impl Row {
    /// The version in one of the directories; preferably a complete one.
    fn any(&self) -> Option<&Version> {
        let mut known = self.in_each.iter().flatten();
        let first = known.clone().next();
        known.find(|version| version.is_complete()).or(first)
    }
}

pub(crate) fn ls(args: &LsArgs) -> Result<()> {
    let mut unread = Unread::default();
    let rows = rows(&args.directories, &mut unread)?;
    if args.json {
        let directories: Vec<_> = args.directories.iter().map(|directory| directory.display().to_string()).collect();
        let versions: Vec<_> = rows
            .iter()
            .filter_map(|row| {
                let mut object = version_json(row.any()?);
                object["session"] = json!(row.session);
                object["states"] = row.in_each.iter().map(|version| state(version.as_ref())).collect();
                Some(object)
            })
            .collect();
        print_json(&json!({ "directories": directories, "versions": versions }))?;
        return unread.into_result();
    }
    let places: Vec<_> = args.directories.iter().map(|directory| directory.display().to_string()).collect();
    let heads = ["session", "version", "saved", "ranks", "size", "stored"];
    let mut listed = table::new(&heads.iter().copied().chain(places.iter().map(String::as_str)).collect::<Vec<_>>());
    for row in &rows {
        let Some(version) = row.any() else { continue };
        let mut cells = vec![row.session.clone(), version.version.to_string()];
        cells.extend(described(version));
        cells.extend(row.in_each.iter().map(|version| state(version.as_ref())));
        listed.add_row(cells);
    }
    say!("{listed}");
    unread.into_result()
}

/// The versions in all directories, by session and number. What could not be read is added to
/// `unread`.
fn rows(directories: &[PathBuf], unread: &mut Unread) -> Result<Vec<Row>, Error> {
    let catalogs = open(directories)?;
    let mut rows = BTreeMap::new();
    for (nth, catalog) in catalogs.iter().enumerate() {
        for (session, versions) in all_versions(catalog, unread)? {
            for version in versions {
                let key = (session.clone(), version.version, version.run);
                let row = rows
                    .entry(key)
                    .or_insert_with(|| Row { session: session.clone(), in_each: vec![None; directories.len()] });
                row.in_each[nth] = Some(version);
            }
        }
    }
    Ok(rows.into_values().collect())
}

/// The readable versions of all sessions. What could not be read is added to `unread`.
fn all_versions(catalog: &Catalog, unread: &mut Unread) -> Result<Vec<(String, Vec<Version>)>, Error> {
    let sessions = catalog.look()?;
    unread.add(&sessions.unread);
    let mut all = Vec::new();
    for session in sessions.names {
        match catalog.versions(&session) {
            Ok(versions) => {
                unread.add(versions.iter().flat_map(Version::unread));
                all.push((session, versions));
            }
            Err(error) => unread.add([&error]),
        }
    }
    Ok(all)
}

/// What a directory has of a version, in a word or two.
fn state(version: Option<&Version>) -> String {
    match version {
        None => "-".to_owned(),
        Some(version) if version.is_complete() => "complete".to_owned(),
        Some(version) if version.unread().next().is_some() => "not readable".to_owned(),
        Some(version) if !version.damaged.is_empty() => "damaged".to_owned(),
        Some(version) => format!("{} of {} ranks", version.manifests.len(), version.ranks),
    }
}

/// When it was saved, by how many ranks, its size, and the bytes stored for it.
fn described(version: &Version) -> [String; 4] {
    let is_known = version.run.is_some();
    let known = |text: String| if is_known { text } else { "?".to_owned() };
    [
        known(time(version.saved_at_unix_ns())),
        known(version.ranks.to_string()),
        known(table::bytes(version.full_bytes())),
        known(table::bytes(version.stored_bytes())),
    ]
}

fn version_json(version: &Version) -> Value {
    json!({
        "version": version.version,
        "run": version.run.map(|run| run.to_string()),
        "ranks": version.ranks,
        "saved_at_unix_ns": version.saved_at_unix_ns(),
        "full_bytes": version.full_bytes(),
        "stored_bytes": version.stored_bytes(),
        "is_complete": version.is_complete(),
    })
}

pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    let catalog = open_one(&args.session.directory)?;
    let session = &args.session.session;
    let mut versions = catalog.versions(session)?;
    let mut unread = Unread::default();
    for remark in catalog.remarks(session) {
        eprintln!("note: {}: {remark}", catalog.files().location());
    }
    let Some(which) = args.which else {
        unread.add(versions.iter().flat_map(Version::unread));
        show_all(&versions, args.json)?;
        return unread.into_result();
    };
    versions.retain(|version| which.0 == Some(version.version));
    if versions.is_empty() {
        // The newest one. If no directory has this number, the error lists the existing ones.
        versions.push(catalog.version(session, which.0)?);
    }
    if args.json {
        print_json(&versions.iter().map(detail_json).collect())?;
    } else {
        versions.iter().for_each(|version| print_detail(session, version));
    }
    unread.add(versions.iter().flat_map(Version::unread));
    unread.into_result()
}

fn show_all(versions: &[Version], is_json: bool) -> Result<()> {
    if is_json {
        return print_json(&versions.iter().map(version_json).collect());
    }
    let mut listed = table::new(&["version", "saved", "ranks", "size", "stored", "packs", "state", "run"]);
    for version in versions {
        let packs = version.manifests.values().map(|manifest| manifest.packs.len()).max().unwrap_or(0);
        let mut cells = vec![version.version.to_string()];
        cells.extend(described(version));
        cells.extend([packs.to_string(), state(Some(version))]);
        cells.push(version.run.map_or_else(|| "?".to_owned(), |run| run.to_string()));
        listed.add_row(cells);
    }
    say!("{listed}");
    Ok(())
}

fn detail_json(version: &Version) -> Value {
    let mut object = version_json(version);
    let ranks = version.manifests.values().map(|manifest| {
        let regions = manifest.regions.iter().map(|region| {
            json!({
                "region": region.name,
                "element": region.element,
                "element_bytes": region.element_bytes,
                "shape": region.shape.dimensions(),
                "order": order(&region.shape),
                "global": region.shape.global().map(|global| {
                    json!({ "shape": global.shape(), "offset": global.offset() })
                }),
                "bytes": region.blocks.bytes(),
                "block_bytes": region.blocks.block_bytes(),
                "blocks": region.blocks.count(),
                "hash": region.hash_kind.to_string(),
                "excluded": region.excluded.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>(),
            })
        });
        let packs = manifest.packs.iter().map(|pack| {
            json!({
                "rank": pack.id.rank,
                "number": pack.id.number,
                "file_bytes": pack.file_bytes,
                "index_checksum": format!("{:032x}", pack.index_check),
                "is_borrowed": pack.is_borrowed,
            })
        });
        json!({
            "rank": manifest.rank,
            "saved_at_unix_ns": manifest.saved_at_unix_ns,
            "stored_bytes": manifest.stored_bytes,
            "regions": regions.collect::<Value>(),
            "packs": packs.collect::<Value>(),
        })
    });
    object["manifests"] = ranks.collect();
    object["damaged"] =
        version.damaged.iter().map(|(rank, error)| json!({ "rank": rank, "problem": error.to_string() })).collect();
    object
}

/// NumPy's name of the memory order.
fn order(shape: &Shape) -> &'static str {
    match shape.order() {
        MemoryOrder::RowMajor => "C",
        MemoryOrder::ColumnMajor => "F",
    }
}

fn print_detail(session: &str, version: &Version) {
    let run = version.run.map_or_else(|| "unknown".to_owned(), |run| run.to_string());
    say!("version {} of {session}: {}, run {run}", version.version, state(Some(version)));
    let mut regions =
        table::new(&["region", "rank", "shape", "elements", "size", "blocks", "block size", "hash", "excluded"]);
    let mut packs = table::new(&["pack", "of rank", "for rank", "size", "checksum of its index", "use"]);
    for manifest in version.manifests.values() {
        for region in &manifest.regions {
            let element = if region.element.is_empty() { "bytes" } else { &region.element };
            let excluded_bytes = region.excluded.iter().map(|range| range.end - range.start).sum();
            regions.add_row(vec![
                region_name(&region.name).to_owned(),
                manifest.rank.to_string(),
                region.shape.to_string(),
                element.to_owned(),
                table::bytes(region.blocks.bytes()),
                region.blocks.count().to_string(),
                table::bytes(region.blocks.block_bytes().into()),
                region.hash_kind.to_string(),
                table::bytes(excluded_bytes),
            ]);
        }
        for pack in &manifest.packs {
            packs.add_row(vec![
                pack.id.number.to_string(),
                pack.id.rank.to_string(),
                manifest.rank.to_string(),
                table::bytes(pack.file_bytes),
                format!("{:032x}", pack.index_check),
                if pack.is_borrowed { "borrowed" } else { "own" }.to_owned(),
            ]);
        }
    }
    say!("{regions}\n{packs}");
    for (rank, error) in &version.damaged {
        say!("rank {rank}: {error}");
    }
}

pub(crate) fn du(args: &DuArgs) -> Result<()> {
    let mut objects = Vec::new();
    let mut unread = Unread::default();
    let mut sessions = table::new(&["session", "directory", "versions", "size", "stored", "factor", "garbage"]);
    let mut versions = table::new(&["session", "directory", "version", "size", "stored", "factor"]);
    for (directory, catalog) in args.directories.iter().zip(open(&args.directories)?) {
        let place = directory.display().to_string();
        for (session, all) in all_versions(&catalog, &mut unread)? {
            let usage = match catalog.usage(&session) {
                Ok(usage) => usage,
                Err(error) => {
                    unread.add([&error]);
                    continue;
                }
            };
            for version in all.iter().filter(|version| version.run.is_some()) {
                let (full, stored) = (version.full_bytes(), version.stored_bytes());
                let mut cells = vec![session.clone(), place.clone(), version.version.to_string()];
                cells.extend([table::bytes(full), table::bytes(stored), factor(full, stored)]);
                versions.add_row(cells);
            }
            let full_bytes = all.iter().map(Version::full_bytes).fold(0, u64::saturating_add);
            let Usage { pack_bytes, manifest_bytes, garbage_bytes, .. } = usage;
            let stored_bytes = pack_bytes + manifest_bytes;
            sessions.add_row(vec![
                session.clone(),
                place.clone(),
                all.len().to_string(),
                table::bytes(full_bytes),
                table::bytes(stored_bytes),
                factor(full_bytes, stored_bytes),
                table::bytes(garbage_bytes),
            ]);
            objects.push(json!({
                "directory": place,
                "session": session,
                "full_bytes": full_bytes,
                "stored_bytes": stored_bytes,
                "pack_bytes": pack_bytes,
                "manifest_bytes": manifest_bytes,
                "garbage_bytes": garbage_bytes,
                "versions": all.iter().map(version_json).collect::<Value>(),
            }));
        }
    }
    if args.json {
        print_json(&objects.into())?;
    } else {
        say!("{versions}\n{sessions}");
    }
    unread.into_result()
}

/// The ratio of full to stored bytes.
fn factor(full: u64, stored: u64) -> String {
    if stored == 0 { "-".to_owned() } else { format!("{:.1}", full as f64 / stored as f64) }
}
