//! `outcrop model`: trains the model by which pools decide when to persist.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use outcrop_bench::train::{self, Options, Trained};
use serde_json::json;

use crate::{
    say::say,
    store::{Exists, print_json},
    table,
};

/// How often to print a line.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Commands on models.
#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// Measure how long pools on this machine take to persist, and write a model of it.
    ///
    /// Varies the kind of structure (arrays, lists, trees, graphs), its size, dimensions, depth,
    /// fanout or degree, elements and blocks, how much has changed and where, and whether it was in
    /// memory or in the file. A quarter of the calls are not learned from: the relative
    /// absolute error on these says how good the model is. 0 % is perfect, and 100 % is no better
    /// than to say always the mean. A program uses the model with `Options::model`.
    ///
    /// Train it on the file system where the pools will be, and on an idle machine. It takes some
    /// minutes, with --quick some seconds.
    Train(TrainArgs),
}

/// What to measure, and where to write the result.
#[derive(Args)]
pub(crate) struct TrainArgs {
    /// File for the model.
    #[arg(long, value_name = "FILE", default_value = "outcrop.model")]
    output: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Measure fewer calls on smaller structures.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Directory for pools; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Calls to measure [default: 2000, quick: 200].
    #[arg(long, value_name = "COUNT")]
    calls: Option<usize>,
    /// Also write what was measured, as CSV, for other programs that learn.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

pub(crate) fn run(command: &ModelCommand) -> Result<()> {
    match command {
        ModelCommand::Train(args) => train(args),
    }
}

fn train(args: &TrainArgs) -> Result<()> {
    for path in [Some(&args.output), args.samples.as_ref()].into_iter().flatten() {
        if !args.force && path.symlink_metadata().is_ok() {
            return Err(Exists::new(path).into());
        }
    }
    let calls = args.calls.unwrap_or(if args.quick { 200 } else { 2000 });
    let bytes_max = if args.quick { 8 << 20 } else { 256 << 20 };
    let options = Options { calls, bytes_max, directory: args.dir.clone(), seed: 1 };
    let mut last_line = Instant::now();
    let trained = train::run(&options, &mut |done| {
        if last_line.elapsed() >= LINE_EVERY {
            last_line = Instant::now();
            eprintln!("measuring: {done} of {calls} calls");
        }
    })?;
    write(&args.output, &trained.model.to_text())?;
    if let Some(path) = &args.samples {
        write(path, &trained.csv())?;
    }
    print(args, &trained)
}

fn print(args: &TrainArgs, trained: &Trained) -> Result<()> {
    let percent = 100.0 * trained.error;
    if args.json {
        return print_json(&json!({
            "model": args.output, "learned_calls": trained.learned.len(), "held_out_calls": trained.held_out.len(),
            "relative_absolute_error_percent": percent, "median_factor": trained.factor,
            "linear_models": trained.model.leaves(),
        }));
    }
    let mut shown = table::new(&["model", ""]);
    for (what, value) in [
        ("calls that it learned from", trained.learned.len().to_string()),
        ("calls that it was tried on", trained.held_out.len().to_string()),
        ("relative absolute error there", format!("{percent:.1} %")),
        ("half of the predictions are off by at most", format!("a factor of {:.2}", trained.factor)),
        ("linear models", trained.model.leaves().to_string()),
    ] {
        shown.add_row(vec![what.to_owned(), value]);
    }
    say!("{shown}");
    say!("wrote {}; use it with Options::versions(2).model({:?})", args.output.display(), args.output);
    Ok(())
}

/// Writes a file under another name first, so that one with the final name is complete.
fn write(path: &Path, content: &str) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).with_context(cannot)?;
    let mut draft = tempfile::Builder::new();
    // For everybody, as the user's mask has it.
    draft.permissions(fs::Permissions::from_mode(0o666));
    let mut draft = draft.tempfile_in(directory).with_context(cannot)?;
    draft.write_all(content.as_bytes()).with_context(cannot)?;
    draft.as_file().sync_all().with_context(cannot)?;
    draft.persist(path).map(drop).with_context(cannot)
}
