//! `outcrop due`: tells a script whether it is time to save.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use outcrop::{Rule, catalog::Catalog};
use serde_json::json;

use super::{SessionArgs, print_json};
use crate::say::say;

/// The exit code that says that it is not time to save.
const NOT_DUE: u8 = 3;

/// When it is time to save: a fixed time after the newest version was saved, or the best time for
/// the failures of this machine.
#[derive(Args)]
#[group(id = "when", required = true, multiple = false, args = ["every", "failures"])]
pub(crate) struct DueArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// Save in this interval, such as `10m`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    every: Option<Duration>,
    /// The mean time between failures, such as `12h`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "cost")]
    failures: Option<Duration>,
    /// How long a save stops the program, such as `20s`.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    cost: Option<Duration>,
    /// How the interval follows from both.
    #[arg(long, value_enum, default_value_t = Formula::Exact)]
    rule: Formula,
    /// Print JSON instead of a line.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Formula {
    Young,
    Daly,
    Exact,
}

/// Whether a version that was saved some time ago is old enough, or there is none.
fn is_due(age: Option<Duration>, interval: Duration) -> bool {
    age.is_none_or(|age| age >= interval)
}

pub(super) fn run(args: &DueArgs) -> Result<ExitCode> {
    let SessionArgs { directory, session } = &args.session;
    let interval = match (args.every, args.failures, args.cost) {
        (Some(every), ..) => every,
        (None, failures, cost) => {
            let rule = match args.rule {
                Formula::Young => Rule::Young,
                Formula::Daly => Rule::Daly,
                Formula::Exact => Rule::Exact,
            };
            let ns = |time: Option<Duration>| time.unwrap_or_default().as_nanos().max(1) as f64;
            Duration::from_nanos(rule.interval_ns(ns(cost), ns(failures)) as u64)
        }
    };
    let catalog = Catalog::open(directory)?;
    let versions = if catalog.sessions()?.contains(session) { catalog.versions(session)? } else { Vec::new() };
    let newest = versions.iter().filter(|version| version.is_complete()).max_by_key(|version| version.version);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // A clock that was put back says nothing about the time since.
    let age = newest.and_then(|version| now.checked_sub(Duration::from_nanos(version.saved_at_unix_ns())));
    let is_due = is_due(age, interval);
    if args.json {
        print_json(&json!({
            "is_due": is_due,
            "version": newest.map(|version| version.version),
            "age_seconds": age.map(|age| age.as_secs_f64()),
            "interval_seconds": interval.as_secs_f64(),
        }))?;
    } else {
        let seconds = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
        let newest = match (newest, age) {
            (Some(version), Some(age)) => format!("version {} is {} old", version.version, seconds(age)),
            (Some(version), None) => format!("version {} was saved after now", version.version),
            (None, _) => format!("{session} has no complete version in {}", directory.display()),
        };
        say!("{}: {newest}, the interval is {}", if is_due { "due" } else { "not due" }, seconds(interval));
    }
    Ok(ExitCode::from(if is_due { 0 } else { NOT_DUE }))
}
