//! `outcrop node top`: the status, once a second.

use std::{
    io::IsTerminal,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::Result;
use console::{Key, Term};
use outcrop::{Error, ErrorKind};
use outcrop_node::Client;

use super::{described, failed};

const EVERY: Duration = Duration::from_secs(1);

/// Shows the status until a key ends it.
pub(super) fn run(client: &Client) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        let message = "`outcrop node top` needs a terminal; `outcrop node status` prints the same once";
        return Err(Error::new(ErrorKind::Usage, message).into());
    }
    let term = Term::stdout();
    let (ending, ends) = mpsc::channel();
    let keys = term.clone();
    thread::spawn(move || {
        // An interrupt ends it as `q` does.
        while !matches!(keys.read_key(), Ok(Key::Char('q') | Key::Escape | Key::CtrlC) | Err(_)) {}
        let _ = ending.send(());
    });
    term.hide_cursor()?;
    let outcome = show(client, &term, &ends);
    term.show_cursor()?;
    outcome
}

fn show(client: &Client, term: &Term, ends: &mpsc::Receiver<()>) -> Result<()> {
    loop {
        let status = client.status().map_err(failed)?;
        let rows = usize::from(term.size().0).saturating_sub(2);
        let text = described(&status);
        term.clear_screen()?;
        for line in text.lines().take(rows) {
            term.write_line(line)?;
        }
        term.write_line("q ends")?;
        match ends.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}
