//! Progress in bytes: a bar on a terminal, otherwise a line from time to time.

use std::{
    io::IsTerminal,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::table;

/// How often to print a line if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of work on bytes, in several threads.
pub(super) struct ByteProgress {
    what: &'static str,
    bar: Option<ProgressBar>,
    done_bytes: AtomicU64,
    last_line: Mutex<Instant>,
}

impl ByteProgress {
    pub(super) fn new(what: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {bytes} of {total_bytes} (left: {eta})");
            let bar = ProgressBar::new(1);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.set_prefix(what);
            bar
        });
        Self { what, bar, done_bytes: AtomicU64::new(0), last_line: Mutex::new(Instant::now()) }
    }

    /// Adds bytes that are done, out of a total.
    pub(super) fn add(&self, bytes: u64, total: u64) {
        let done = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            return bar.set_position(done);
        }
        let Ok(mut last_line) = self.last_line.lock() else { return };
        if last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            eprintln!("{}: {} of {}", self.what, table::bytes(done), table::bytes(total));
        }
    }
}

impl Drop for ByteProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
