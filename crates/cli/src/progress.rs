//! Progress of long work: a bar on a terminal, otherwise a line from time to time.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use outcrop_rtm::{Phase, Progress};

/// How often to print a line if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of one migration.
pub(crate) struct MigrationProgress {
    label: &'static str,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl MigrationProgress {
    pub(crate) fn new(label: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {percent:>3}% {msg} (left: {eta})");
            let bar = ProgressBar::new(1);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.set_prefix(label);
            bar
        });
        Self { label, bar, last_line: Instant::now() }
    }

    pub(crate) fn show(&mut self, progress: Progress) {
        let (number, name) = match progress.phase {
            Phase::Modelling => (0, "modelling the recording"),
            Phase::Forward => (1, "forward pass"),
            Phase::Backward => (2, "backward pass"),
        };
        let done = (progress.shot * 3 + number) * progress.steps + progress.step;
        let all = progress.shots * 3 * progress.steps;
        let what = format!("shot {} of {}, {name}", progress.shot + 1, progress.shots);
        if let Some(bar) = &self.bar {
            if done.is_multiple_of(16) {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                bar.set_message(what);
            }
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}: {}% {what}", self.label, done * 100 / all.max(1));
        }
    }
}

impl Drop for MigrationProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
