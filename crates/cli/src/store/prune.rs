//! `outcrop prune`: removes versions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use outcrop::{
    Retention,
    catalog::{Removal, lock_session},
};
use serde_json::json;

use super::{SessionArgs, open_one, print_json};
use crate::{say::say, table};

/// What to keep. A version stays if any rule keeps it. The newest complete version always stays.
#[derive(Args)]
#[group(id = "rules", required = true, multiple = true, args = ["keep_last", "keep_every", "keep_for"])]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// Keep the newest COUNT versions.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: Option<u32>,
    /// Keep versions whose number is a multiple of COUNT.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    keep_every: Option<u64>,
    /// Keep versions younger than AGE, such as `12h` or `7d`.
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    keep_for: Option<Duration>,
    /// Only print what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PruneArgs) -> Result<()> {
    let catalog = open_one(&args.session.directory)?;
    let session = &args.session.session;
    // Held to the end: nobody may write while this decides what to remove, and removes it.
    let locks = if args.dry_run { Vec::new() } else { lock_session(&catalog, session)? };
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let retention =
        Retention { keep_last: args.keep_last, keep_every: args.keep_every, keep_for_ns: args.keep_for.map(ns) };
    let versions = catalog.versions(session)?;
    let complete = versions.iter().filter(|version| version.is_complete());
    let complete: Vec<_> = complete.map(|version| (version.version, version.saved_at_unix_ns())).collect();
    let now_unix_ns = ns(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let removal = Removal::plan(&catalog, session, &retention.dropped(now_unix_ns, &complete))?;
    if !args.dry_run {
        removal.carry_out(catalog.files())?;
    }
    drop(locks);
    let Removal { versions, manifests, packs, drafts, bytes } = &removal;
    if args.json {
        return print_json(&json!({
            "is_dry_run": args.dry_run,
            "versions": versions,
            "manifests": manifests,
            "packs": packs,
            "drafts": drafts,
            "pack_bytes": bytes,
        }));
    }
    let done = if args.dry_run { "would be removed" } else { "removed" };
    if removal.is_empty() {
        say!("nothing to remove from {session}");
        return Ok(());
    }
    for version in versions {
        say!("version {version}");
    }
    let (versions, packs, drafts) = (versions.len(), packs.len(), drafts.len());
    say!("{done}: {versions} versions, {packs} packs of {}, {drafts} unfinished files", table::bytes(*bytes));
    Ok(())
}
