//! `outcrop verify` and `outcrop diff`: detect damage, and show what changed between versions.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use outcrop::{
    ErrorKind,
    catalog::{Change, Error, Finding, FindingKind, Harm, RegionDiff, Verified},
};
use serde_json::{Value, json};

use super::{SessionArgs, Which, file_name, open_one, print_json, progress::ByteProgress, region_name};
use crate::{say::say, table};

/// What to verify.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// A directory of the store.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Only this session.
    session: Option<String>,
    /// Only this version, with all packs that it needs.
    #[arg(value_name = "VERSION")]
    which: Option<u64>,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// What to compare.
#[derive(Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// The first version, or `latest`.
    before: Which,
    /// The second version, or `latest`.
    after: Which,
    /// Compare bytes instead of hashes.
    #[arg(long)]
    certain: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn verify(args: &VerifyArgs) -> Result<()> {
    let catalog = open_one(&args.directory)?;
    let progress = ByteProgress::new("verifying");
    let watch = |done, total| progress.add(done, total);
    let verified = outcrop::catalog::verify(&catalog, args.session.as_deref(), args.which, &watch)?;
    drop(progress);
    if args.json {
        print_json(&verified_json(&verified))?;
    } else {
        print(&verified);
    }
    outcome(&args.directory.display().to_string(), &verified)
}

/// Returns an error unless everything was verified and is undamaged.
fn outcome(path: &str, verified: &Verified) -> Result<()> {
    let count = |kind| verified.findings.iter().filter(|finding| finding.kind == kind).count();
    let (damaged, unread) = (count(FindingKind::Damage), count(FindingKind::Unread));
    if damaged > 0 {
        let reason =
            format!("{damaged} findings, listed above; restore the affected regions from another directory or version");
        return Err(Error::Damaged { path: path.to_owned(), reason }.into());
    }
    if unread > 0 {
        let message = format!("{path} was not verified: {unread} findings, listed above, could not be read");
        return Err(outcrop::Error::new(ErrorKind::Storage, message).into());
    }
    if !verified.is_whole() {
        let message = format!("{path} was not verified: a running program has changed it meanwhile; verify again");
        return Err(outcrop::Error::new(ErrorKind::Busy, message).into());
    }
    Ok(())
}

fn kind(finding: &Finding) -> &'static str {
    match finding.kind {
        FindingKind::Damage => "damaged",
        FindingKind::Incomplete => "incomplete",
        FindingKind::Garbage => "garbage",
        FindingKind::Unread | FindingKind::Changing => "not verified",
        FindingKind::Foreign => "foreign",
    }
}

fn print(verified: &Verified) {
    for finding in &verified.findings {
        let bytes = finding
            .bytes
            .as_ref()
            .map_or_else(String::new, |bytes| format!(", bytes {} to {}", bytes.start, bytes.end));
        let file = match finding.file.as_str() {
            "" => String::new(),
            file => format!("{}{bytes}: ", file_name(file)),
        };
        say!("{}: {file}{}", kind(finding), file_name(&finding.problem));
        for Harm { version, rank, region, .. } in &finding.harms {
            match region {
                None => say!("  affects all of version {version} of rank {rank}"),
                Some((region, bytes)) => {
                    let (region, start, end) = (region_name(region), bytes.start, bytes.end);
                    say!("  affects version {version} of rank {rank}: region {region}, bytes {start} to {end}");
                }
            }
        }
    }
    let Verified { manifests, packs, shards, bytes, .. } = verified;
    let kept =
        if *shards > 0 { format!(", and {shards} shards that are kept for other nodes,") } else { String::new() };
    let outcome = match (verified.has_damage(), verified.is_whole()) {
        (true, _) => "damaged",
        (false, true) => "no damage",
        (false, false) => "no damage found, but not everything was verified",
    };
    say!("{manifests} manifests and {packs} packs{kept} of {}: {outcome}", table::bytes(*bytes));
}

fn verified_json(verified: &Verified) -> Value {
    let findings = verified.findings.iter().map(|finding| {
        let harms = finding.harms.iter().map(|harm| {
            json!({
                "version": harm.version,
                "run": harm.run.map(|run| run.to_string()),
                "rank": harm.rank,
                "region": harm.region.as_ref().map(|(region, _)| region),
                "bytes": harm.region.as_ref().map(|(_, bytes)| [bytes.start, bytes.end]),
            })
        });
        json!({
            "kind": kind(finding),
            "file": finding.file,
            "bytes": finding.bytes.as_ref().map(|bytes| [bytes.start, bytes.end]),
            "problem": finding.problem,
            "harms": harms.collect::<Value>(),
        })
    });
    json!({
        "manifests": verified.manifests,
        "packs": verified.packs,
        "shards": verified.shards,
        "bytes": verified.bytes,
        "is_damaged": verified.has_damage(),
        "is_verified": verified.is_whole(),
        "findings": findings.collect::<Value>(),
    })
}

pub(crate) fn diff(args: &DiffArgs) -> Result<()> {
    let catalog = open_one(&args.session.directory)?;
    let [before, after] = [args.before, args.after].map(|which| catalog.version(&args.session.session, which.0));
    let (before, after) = (before?, after?);
    let progress = ByteProgress::new("comparing");
    let total = before.full_bytes().max(after.full_bytes());
    let mut diffs = Vec::new();
    for rank in 0..before.ranks.max(after.ranks) {
        let of_rank = match (before.manifests.get(&rank), after.manifests.get(&rank)) {
            (Some(before), Some(after)) => {
                let watch = |done| progress.add(done, total);
                outcrop::catalog::diff(&catalog.reader(before)?, &catalog.reader(after)?, args.certain, &watch)?
            }
            // The second version does not have this rank.
            (Some(gone), None) => {
                gone.regions.iter().map(|region| RegionDiff::whole(region, Change::Removed)).collect()
            }
            (None, Some(new)) => new.regions.iter().map(|region| RegionDiff::whole(region, Change::Added)).collect(),
            (None, None) => Vec::new(),
        };
        diffs.extend(of_rank.into_iter().map(|diff| (rank, diff)));
    }
    drop(progress);
    if args.json {
        let regions = diffs.iter().map(|(rank, diff)| diff_json(*rank, diff));
        let (before, after) = (before.version, after.version);
        return print_json(&json!({ "before": before, "after": after, "regions": regions.collect::<Value>() }));
    }
    let mut listed =
        table::new(&["region", "rank", "change", "size before", "size after", "blocks changed", "bytes changed"]);
    for (rank, diff) in &diffs {
        listed.add_row(vec![
            region_name(&diff.region).to_owned(),
            rank.to_string(),
            change(diff).to_owned(),
            table::bytes(diff.bytes_before),
            table::bytes(diff.bytes_after),
            format!("{} of {}", diff.blocks_changed, diff.blocks),
            table::bytes(diff.bytes_changed),
        ]);
    }
    say!("{listed}");
    Ok(())
}

fn change(diff: &RegionDiff) -> &'static str {
    match diff.change {
        Change::Same => "same",
        Change::Changed => "changed",
        Change::Added => "added",
        Change::Removed => "removed",
    }
}

fn diff_json(rank: u32, diff: &RegionDiff) -> Value {
    json!({
        "rank": rank,
        "region": diff.region,
        "change": change(diff),
        "bytes_before": diff.bytes_before,
        "bytes_after": diff.bytes_after,
        "blocks": diff.blocks,
        "blocks_changed": diff.blocks_changed,
        "bytes_changed": diff.bytes_changed,
    })
}
