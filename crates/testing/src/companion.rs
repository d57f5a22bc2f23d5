//! A second process that a test controls line by line: the same test program, running one test as a
//! child.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::child;

/// The prefix of lines that a companion sends, to tell them from the output of the test harness.
const MARK: &str = "companion: ";

/// A process that is killed when it is dropped.
pub struct Companion {
    process: Child,
    /// Closed to tell the companion that no more lines follow.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Companion {
    /// Starts the test `name` as a process that works in `directory`.
    pub fn start(name: &str, directory: &Path) -> Self {
        Self::run(child(name, directory))
    }

    /// Starts a command that `child` made.
    pub fn run(mut command: Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Its process number (PID).
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line.
    pub fn say(&mut self, words: &str) {
        writeln!(self.input.as_mut().unwrap(), "{words}").unwrap();
    }

    /// Waits for its next line.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the companion ended without another word");
            // The harness may have printed the start of the line.
            if let Some((_, words)) = line.split_once(MARK) {
                return words.trim_end().to_owned();
            }
        }
    }

    /// Sends a line, and waits for the answer.
    pub fn ask(&mut self, words: &str) -> String {
        self.say(words);
        self.hear()
    }

    /// Waits for its next line, which must be this one.
    pub fn expect(&mut self, words: &str) {
        assert_eq!(self.hear(), words);
    }

    /// Kills it (SIGKILL).
    pub fn kill(self) {
        drop(self);
    }

    /// Waits until it has ended successfully.
    pub fn end(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success() && rest.contains("1 passed"), "{status}: {rest}");
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // This fails if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a companion: sends a line to the test.
pub fn answer(words: impl std::fmt::Display) {
    println!("{MARK}{words}");
}

/// In a companion: the next line of the test; `None` if there are no more.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line).unwrap();
    (bytes > 0).then(|| line.trim_end().to_owned())
}
