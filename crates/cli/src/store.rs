//! The commands on the directories of a store: list, verify, compare, restore and remove versions.

mod check;
mod due;
mod files;
mod list;
mod progress;
mod prune;
mod whole;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::Result;
use clap::{Args, Subcommand};
pub(crate) use files::{Exists, npy_head};
use outcrop::{
    ErrorKind,
    catalog::{Catalog, Error, Sessions, catalog_at},
};

use crate::say::say;

/// Commands on the directories of a store.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// List the versions of a store, and which of its directories have them.
    Ls(list::LsArgs),
    /// Show the versions of a session, or the regions and packs of one version.
    Show(list::ShowArgs),
    /// Show the size of versions, and how many bytes are stored for them.
    Du(list::DuArgs),
    /// Read every byte of a store and report damage.
    ///
    /// Names the versions and regions that damage affects, and exits with code 16 if there is any.
    /// Exits with code 17 if something could not be read, and with code 18 if a running program has
    /// replaced something meanwhile, so that not everything was verified. Changes nothing.
    Verify(check::VerifyArgs),
    /// Show what changed between two versions.
    Diff(check::DiffArgs),
    /// Write the regions of a version to raw files.
    Restore(files::RestoreArgs),
    /// Write the regions of a version to files, numbers as NumPy arrays (.npy).
    Export(files::RestoreArgs),
    /// Remove old versions, and what crashed programs have left behind.
    ///
    /// A version stays if any of the rules keeps it. The newest complete version always stays. No
    /// program may use the session meanwhile.
    Prune(prune::PruneArgs),
    /// Tell a script whether it is time to save.
    ///
    /// It is when the newest complete version of the session in this directory is older than the
    /// interval, or if there is none. Exits with code 0 if it is time, and with code 3 if not:
    /// `if outcrop due DIR SESSION --every 30m; then kill -USR1 $program; fi`. Changes nothing.
    Due(due::DueArgs),
}

pub(crate) fn run(command: &StoreCommand) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let result = match command {
        StoreCommand::Ls(args) => list::ls(args),
        StoreCommand::Show(args) => list::show(args),
        StoreCommand::Du(args) => list::du(args),
        StoreCommand::Verify(args) => check::verify(args),
        StoreCommand::Diff(args) => check::diff(args),
        StoreCommand::Restore(args) => files::run(args, false),
        StoreCommand::Export(args) => files::run(args, true),
        StoreCommand::Prune(args) => prune::run(args),
        StoreCommand::Due(args) => due::run(args).map(|is_due| code = is_due),
    };
    // Kinds and exit codes are in one table: that of `outcrop::Error`.
    result.map(|()| code).map_err(|error| match error.downcast::<Error>() {
        Ok(error) => outcrop::Error::from(error).into(),
        Err(other) => other,
    })
}

/// A session in a directory.
#[derive(Args)]
struct SessionArgs {
    /// A directory of the store.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The session.
    session: String,
}

/// A version number, or the newest version.
#[derive(Debug, Clone, Copy)]
struct Which(Option<u64>);

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self(None)),
            number => number
                .parse()
                .map(|version| Self(Some(version)))
                .map_err(|_| "expected a version number or `latest`".into()),
        }
    }
}

/// The catalogs of these directories, at least one of which has a session.
fn open(directories: &[PathBuf]) -> Result<Vec<Catalog>, Error> {
    let catalogs = directories.iter().map(|directory| catalog_at(directory)).collect::<Result<Vec<_>, _>>()?;
    for catalog in &catalogs {
        let Sessions { names, unread } = catalog.look()?;
        if !names.is_empty() || !unread.is_empty() {
            return Ok(catalogs);
        }
    }
    let locations: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
    Err(Error::Empty { location: locations.join(", ") })
}

/// The catalog of a directory, which must have a session.
fn open_one(directory: &Path) -> Result<Catalog, Error> {
    let mut catalogs = open(&[directory.to_owned()])?;
    Ok(catalogs.remove(0))
}

/// What could not be read, and is missing in a listing.
#[derive(Default)]
struct Unread(Vec<String>);

impl Unread {
    fn add<'a>(&mut self, errors: impl IntoIterator<Item = &'a Error>) {
        self.0.extend(errors.into_iter().map(ToString::to_string));
    }

    /// Returns an error if anything is missing: the listing that was printed is incomplete.
    fn into_result(mut self) -> Result<()> {
        self.0.dedup();
        let message = match self.0.as_slice() {
            [] => return Ok(()),
            [one] => format!("the listing is not complete: {one}"),
            [first, others @ ..] => {
                format!("the listing is not complete: {first}; and {} more like this", others.len())
            }
        };
        Err(outcrop::Error::new(ErrorKind::Storage, message).into())
    }
}

/// As in `2026-01-31T12:00:00Z`.
pub(crate) fn time(unix_ns: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(unix_ns)).to_string()
}

pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A file name, safe for a terminal: control characters are escaped, because anybody can put files
/// into a directory.
fn file_name(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The name of a region for display.
pub(crate) fn region_name(name: &str) -> &str {
    if name.is_empty() { "(unnamed)" } else { name }
}
