//! `outcrop sim`: simulates the figures of the papers, and tests the plan with random worlds.

use std::{
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::CellAlignment;
use indicatif::{ProgressBar, ProgressStyle};
use outcrop_sim::{Coverage, Entry, Figure, Machine};
use outcrop_survey::Profile;
use serde_json::{Value, json};

use crate::{say::say, table};

/// The default directory of plots.
const OUTPUT: &str = "outcrop-sim";

/// How often to print a line if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: Option<SimCommand>,
    /// The figure: 3b to 6c, or mlbs-2 to mlbs-5. `outcrop sim list` describes them.
    #[arg(value_name = "FIGURE", required = true)]
    figure: Option<String>,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Subcommand)]
enum SimCommand {
    /// List the figures.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Simulate all figures.
    All(ReportArgs),
    /// Simulate a tape on this machine, with the rates that `outcrop survey` has measured.
    Here(HereArgs),
    /// Test the planner with random programs, stacks and faults.
    ///
    /// Checks after every event that the planner keeps its promises. At the first violation it
    /// prints the seed and the last events, and exits with code 1. A seed replays exactly.
    Fuzz(FuzzArgs),
}

/// How to report.
#[derive(Args)]
struct ReportArgs {
    /// Print JSON instead of tables, and draw plots only with --output.
    #[arg(long)]
    json: bool,
    /// Directory for the plots, as PNG [default: outcrop-sim].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Simulate fewer points.
    #[arg(long)]
    quick: bool,
    /// Use your own machine model instead of the paper's: a TOML file, described in docs/sim.md.
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
}

#[derive(Args)]
struct HereArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// The profile that `outcrop survey` has written.
    #[arg(long, value_name = "FILE", default_value = outcrop_survey::FILE)]
    profile: PathBuf,
    /// Directory of the tape. The survey must have measured it, or another one on the same file
    /// system.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

#[derive(Args)]
struct FuzzArgs {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    start: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SimArgs) -> Result<()> {
    match (&args.command, &args.figure) {
        (Some(SimCommand::List { json }), _) => list(*json),
        (Some(SimCommand::All(report)), _) => all(report),
        (Some(SimCommand::Here(args)), _) => here(args),
        (Some(SimCommand::Fuzz(args)), _) => fuzz(args),
        (None, figure) => {
            let entry = outcrop_sim::figure(figure.as_deref().unwrap_or_default())?;
            print_json(&simulate(entry, &args.report)?, &args.report)
        }
    }
}

fn here(args: &HereArgs) -> Result<()> {
    let known = "run `outcrop survey` first, or give its profile with --profile";
    let profile = Profile::load(&args.profile).context(known)?;
    let rates = outcrop_bench::model::plain_rates(&profile, &args.dir).with_context(|| {
        format!("the profile has no measurement of {0}; run `outcrop survey {0}`", args.dir.display())
    })?;
    let machine = Machine::plain(&profile.machine, rates, profile.memory_bytes, u64::MAX / 2)?;
    let figure = outcrop_sim::here(&machine, args.report.quick)?;
    show(&figure, &args.report)?;
    print_json(&figure, &args.report)
}

fn print_json(figure: &Figure, report: &ReportArgs) -> Result<()> {
    if report.json {
        say!("{}", serde_json::to_string_pretty(figure)?);
    }
    Ok(())
}

fn list(is_json: bool) -> Result<()> {
    if is_json {
        let figure = |entry: &Entry| json!({ "figure": entry.name, "title": entry.title });
        let figures: Vec<_> = outcrop_sim::figures().iter().map(figure).collect();
        say!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(());
    }
    let mut figures = table::new(&["figure", "what it shows"]);
    for entry in outcrop_sim::figures() {
        figures.add_row(vec![entry.name, entry.title]);
    }
    if let Some(column) = figures.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    say!("{figures}");
    Ok(())
}

fn all(report: &ReportArgs) -> Result<()> {
    let mut figures = Vec::new();
    for entry in outcrop_sim::figures() {
        figures.push(simulate(entry, report)?);
    }
    if report.json {
        say!("{}", serde_json::to_string_pretty(&figures)?);
    }
    Ok(())
}

/// Simulates a figure, prints it unless JSON is requested, and draws it.
fn simulate(entry: &Entry, report: &ReportArgs) -> Result<Figure> {
    eprintln!("simulating: {} ({})", entry.name, entry.title);
    let figure = match &report.machine {
        Some(file) => entry.run_on(&machine(file)?, report.quick)?,
        None => entry.run(report.quick)?,
    };
    show(&figure, report)?;
    Ok(figure)
}

/// Draws a figure, and prints it unless JSON is requested.
fn show(figure: &Figure, report: &ReportArgs) -> Result<()> {
    let output = report.output.as_deref().or((!report.json).then_some(Path::new(OUTPUT)));
    if let Some(output) = output {
        outcrop_sim::draw(&figure.chart, figure.name, figure.title, output)?;
    }
    if !report.json {
        print(figure);
        let name = output.unwrap_or(Path::new(OUTPUT)).join(figure.name);
        say!("plot: {}.png\n", name.display());
    }
    Ok(())
}

fn machine(file: &Path) -> Result<Machine> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read the machine model {name}"))?;
    Ok(Machine::parse(&name, &text)?)
}

fn print(figure: &Figure) {
    say!("{}: {}", figure.name, figure.title);
    let columns: Vec<_> =
        figure.rows.first().map_or(&[][..], |row| &row.0).iter().map(|(name, _)| name.as_str()).collect();
    let mut rows = table::new(&columns);
    for row in &figure.rows {
        rows.add_row(row.0.iter().map(|(_, value)| cell(value)));
    }
    say!("{rows}");
    let mut headline = table::new(&["ratio", "paper", "here"]);
    for (name, ours) in &figure.headline.ours {
        let paper = figure.headline.paper.get(name).map_or_else(|| "-".to_owned(), |paper| number(*paper));
        headline.add_row(vec![(*name).to_owned(), paper, number(*ours)]);
    }
    say!("{headline}");
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(integer) if integer.is_u64() => integer.to_string(),
        other => other.as_f64().map_or_else(|| other.to_string(), number),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn fuzz(args: &FuzzArgs) -> Result<()> {
    let end = args.start.saturating_add(args.seeds);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let of_plan = FuzzProgress::new(args.seeds);
    let plan = outcrop_sim::fuzz(args.start..end, threads, |tried| of_plan.show(tried));
    of_plan.end();
    let of_commit = FuzzProgress::new(args.seeds);
    let commit = outcrop_sim::fuzz_commit(args.start..end, threads, |tried| of_commit.show(tried));
    of_commit.end();
    let of_node = FuzzProgress::new(args.seeds);
    let node = outcrop_sim::fuzz_node(args.start..end, threads, |tried| of_node.show(tried));
    of_node.end();
    if args.json {
        let object = |outcome: &std::result::Result<Coverage, Box<outcrop_sim::Failure>>| match outcome {
            Ok(tried) => json!({ "tried": tried, "failure": null }),
            Err(failure) => json!({ "tried": null, "failure": failure }),
        };
        let (plan, commit, node) = (object(&plan), object(&commit), object(&node));
        let object = json!({ "start": args.start, "seeds": args.seeds, "plan": plan, "commit": commit, "node": node });
        say!("{}", serde_json::to_string_pretty(&object)?);
    }
    for (what, outcome) in [("plan", plan), ("commit", commit), ("node", node)] {
        let Coverage { seeds, events, faults, refusals } = outcome.map_err(|failure| *failure)?;
        if !args.json {
            say!("{what}: {seeds} seeds, {events} events, {faults} faults, {refusals} refusals: no violation");
        }
    }
    Ok(())
}

/// A bar on a terminal, otherwise a line from time to time.
struct FuzzProgress {
    bar: Option<ProgressBar>,
    seeds: u64,
    last_line: Mutex<Instant>,
}

impl FuzzProgress {
    fn new(seeds: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:40} {pos} of {len} seeds (left: {eta})");
            ProgressBar::new(seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, seeds, last_line: Mutex::new(Instant::now()) }
    }

    fn show(&self, tried: &Coverage) {
        if let Some(bar) = &self.bar {
            return bar.set_position(tried.seeds);
        }
        let Ok(mut last_line) = self.last_line.lock() else { return };
        if last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            eprintln!("{} of {} seeds", tried.seeds, self.seeds);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
