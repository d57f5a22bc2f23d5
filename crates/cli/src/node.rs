//! `outcrop node`: the daemon that turns spare memory into a write-back cache for files.

mod metrics;
mod top;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use outcrop::{Error, ErrorKind};
use outcrop_node::{Client, Connect, FileStatus, ServeOptions, Status};

use crate::{say::say, store::print_json, table};

/// Commands about the daemon of this user on this machine.
#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    /// Start the daemon.
    Start(StartArgs),
    /// Show what the daemon holds, for whom, and what it could not drain.
    ///
    /// Exits with code 17 if a file cannot be drained, and with 12 if no daemon is running.
    Status(StatusArgs),
    /// Show the status live. Press q to end.
    Top(PlaceArgs),
    /// Drain everything, and wait for it.
    ///
    /// Files that could not be drained are tried again. Exits with code 17 if one still cannot.
    Drain(PlaceArgs),
    /// Drain everything, and end the daemon.
    Stop(PlaceArgs),
    /// Print metrics for Prometheus, or serve them.
    Metrics(metrics::MetricsArgs),
    /// Serve in the foreground. This is what `start` and clients start.
    #[command(hide = true)]
    Serve(StartArgs),
}

/// Where the daemon is.
#[derive(Args, Clone)]
pub(crate) struct PlaceArgs {
    /// Directory where the daemon and its clients meet; by default one of this user.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// What a daemon is told.
#[derive(Args, Clone)]
pub(crate) struct DaemonArgs {
    /// Memory that cached output may take at most; by default a quarter of the machine's.
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// How many drains are under way at once (1, 2 or 4).
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Cores that the drain threads are pinned to, as in 0,1.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Write a timeline of the daemon to this file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

impl DaemonArgs {
    fn serve(&self) -> io::Result<ServeOptions> {
        Ok(ServeOptions {
            directory: self.place.directory.clone(),
            memory_bytes: self.memory.map(|size| size.as_u64()),
            threads: self.threads.into(),
            cores: self.cores.clone(),
            // The daemon works in another directory.
            trace: self.trace.as_deref().map(std::path::absolute).transpose()?,
            ..ServeOptions::default()
        })
    }

    /// An error if a timeline is asked for that there cannot be.
    pub(crate) fn check_trace(&self, has_daemon: bool) -> Result<()> {
        if self.trace.is_none() {
            return Ok(());
        }
        if !has_daemon {
            let message = "--trace is the timeline of the daemon, which only --via fuse needs";
            return Err(Error::new(ErrorKind::Usage, message).into());
        }
        if is_served(self.place.directory.as_deref())? {
            let message = "--trace: a node daemon is running already, and keeps the options that it has; end it with \
                           `outcrop node stop`, or start it with `outcrop node start --trace FILE`";
            return Err(Error::new(ErrorKind::Busy, message).into());
        }
        Ok(())
    }

    /// How a client finds the daemon, which it starts if there is none. That one ends when nobody
    /// has used it for a while.
    pub(crate) fn connect(&self, idle: Duration, verify: bool) -> Result<Connect> {
        let serve = ServeOptions { idle: Some(idle), verify, ..self.serve()? };
        Ok(Connect { serve, ..starting(&self.place)? })
    }

    /// The most memory that output may take.
    pub(crate) fn memory_bytes(&self) -> io::Result<u64> {
        self.serve()?.memory()
    }
}

/// The daemon to start.
#[derive(Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Keep cached output in this file, so that it survives all processes. It is as large as the
    /// memory; what is in it when the daemon starts is drained.
    #[arg(long, value_name = "FILE")]
    reserve: Option<PathBuf>,
    /// End when nobody has used it for this time, as in 10min.
    #[arg(long, value_name = "TIME")]
    idle: Option<humantime::Duration>,
    /// Touch (pre-fault) all memory at once and keep it, so that the first burst is fast, too.
    #[arg(long)]
    touch: bool,
    /// Poll for messages instead of sleeping: faster answers, but one core is always busy.
    #[arg(long)]
    poll: bool,
}

impl StartArgs {
    fn serve(&self) -> Result<ServeOptions> {
        let reserve = self.reserve.as_deref().map(std::path::absolute).transpose()?;
        let idle = self.idle.map(Into::into);
        Ok(ServeOptions { reserve, idle, touch_all: self.touch, poll: self.poll, ..self.daemon.serve()? })
    }
}

/// How to show the status.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Start(args) => start(args),
        NodeCommand::Status(args) => status(args),
        NodeCommand::Top(args) => top::run(&running(args)?),
        NodeCommand::Drain(args) => drain(args),
        NodeCommand::Stop(args) => stop(args),
        NodeCommand::Metrics(args) => metrics::run(args),
        NodeCommand::Serve(args) => serve(args),
    }
}

/// An error of the daemon or its client, with the kind that its cause has.
pub(crate) fn failed(error: io::Error) -> Error {
    outcrop_node::failed("", error)
}

/// How to find a daemon, or to start one.
fn starting(place: &PlaceArgs) -> Result<Connect> {
    let serve = ServeOptions { directory: place.directory.clone(), ..ServeOptions::default() };
    let program = Some(std::env::current_exe()?);
    let arguments = ["node", "serve"].map(Into::into).to_vec();
    Ok(Connect { serve, program, arguments, ..Connect::default() })
}

/// A client of the daemon that is running.
fn running(place: &PlaceArgs) -> Result<Client> {
    if !Client::is_served(place.directory.as_deref()).map_err(failed)? {
        let message = "no node daemon is running; start one with `outcrop node start`";
        return Err(Error::new(ErrorKind::Missing, message).into());
    }
    // None is started for somebody who only looks.
    Ok(Client::connect(&Connect { program: None, ..starting(place)? }).map_err(failed)?)
}

fn is_served(directory: Option<&Path>) -> Result<bool> {
    Ok(Client::is_served(directory).map_err(failed)?)
}

fn start(args: &StartArgs) -> Result<()> {
    let place = &args.daemon.place;
    if is_served(place.directory.as_deref())? {
        let status = running(place)?.status().map_err(failed)?;
        let message = format!(
            "a node daemon is running already (process {}); look at it with `outcrop node status`, or end it with `outcrop node stop`",
            status.process
        );
        return Err(Error::new(ErrorKind::Busy, message).into());
    }
    let connect = Connect { serve: args.serve()?, ..starting(place)? };
    let status = Client::connect(&connect).and_then(|client| client.status()).map_err(failed)?;
    say!("the node daemon is running: process {}, up to {}", status.process, table::bytes(status.limit_bytes));
    if status.at_risk_bytes > 0 {
        say!("it drains {} that another daemon has left", table::bytes(status.at_risk_bytes));
    }
    Ok(())
}

fn serve(args: &StartArgs) -> Result<()> {
    let given = ServeOptions::from_environment().map_err(failed)?;
    let options = given.map_or_else(|| args.serve(), Ok)?;
    Ok(outcrop_node::serve(options).map_err(failed)?)
}

fn status(args: &StatusArgs) -> Result<()> {
    let status = running(&args.place)?.status().map_err(failed)?;
    if args.json {
        print_json(&serde_json::to_value(&status)?)?;
    } else {
        say!("{}", described(&status));
    }
    Ok(all_drained(&status.files)?)
}

/// The status for a person.
fn described(status: &Status) -> String {
    let (used, limit) = (table::bytes(status.used_bytes), table::bytes(status.limit_bytes));
    let mut text = format!(
        "process {}: {used} of {limit} in use, {} at risk, {} drained, {}",
        status.process,
        table::bytes(status.at_risk_bytes),
        table::bytes(status.drained_total_bytes),
        table::rate(status.drain_rate)
    );
    if status.damaged_records > 0 {
        text += &format!("\n{} records of a daemon that died could not be read", status.damaged_records);
    }
    if !status.clients.is_empty() {
        let mut listed = table::new(&["client", "process", "granted", "at risk", "draining", "drained", ""]);
        for client in &status.clients {
            listed.add_row(vec![
                client.name.escape_debug().to_string(),
                client.process.to_string(),
                table::bytes(client.granted_bytes),
                table::bytes(client.at_risk_bytes),
                table::bytes(client.draining_bytes),
                table::bytes(client.drained_total_bytes),
                if client.is_waiting { "waits for memory".to_owned() } else { String::new() },
            ]);
        }
        text += &format!("\n{listed}");
    }
    if !status.files.is_empty() {
        let mut listed = table::new(&["file", "at risk", ""]);
        for file in &status.files {
            let error = file.error.as_deref().map(|error| format!("cannot be drained: {error}"));
            let path = file.path.escape_debug().to_string();
            listed.add_row(vec![path, table::bytes(file.at_risk_bytes), error.unwrap_or_default()]);
        }
        text += &format!("\n{listed}");
    }
    text
}

/// An error that names the files that cannot be drained.
pub(crate) fn all_drained(files: &[FileStatus]) -> outcrop::Result<()> {
    let failing = files.iter().filter_map(|file| Some(format!("{}: {}", file.path, file.error.as_ref()?)));
    let failing: Vec<_> = failing.collect();
    if failing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} cannot be drained ({}); mend the cause, then `outcrop node drain` tries again",
        if failing.len() == 1 { "a file".to_owned() } else { format!("{} files", failing.len()) },
        failing.join("; ")
    );
    Err(Error::new(ErrorKind::Storage, message))
}

fn drain(args: &PlaceArgs) -> Result<()> {
    let client = running(args)?;
    let before = client.status().map_err(failed)?;
    let outcome = client.drain_all();
    all_drained(&client.status().map_err(failed)?.files)?;
    outcome.map_err(failed)?;
    say!("drained {}", table::bytes(before.at_risk_bytes));
    Ok(())
}

fn stop(args: &PlaceArgs) -> Result<()> {
    let client = running(args)?;
    let outcome = client.drain_all();
    all_drained(&client.status().map_err(failed)?.files)?;
    outcome.and_then(|()| client.stop()).map_err(failed)?;
    say!("the node daemon has ended; everything is drained");
    Ok(())
}
