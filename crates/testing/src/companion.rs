//! Another process, which a test talks with line by line: this very test program, carrying out one
//! test as a child.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::child;

/// What a companion says begins with this, so that it can be told from what the test harness
/// prints.
const MARK: &str = "companion: ";

/// A process that is killed when it is dropped.
pub struct Companion {
    process: Child,
    /// Closed to tell it that there is no more to say.
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

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line.
    pub fn say(&mut self, words: &str) {
        writeln!(self.input.as_mut().unwrap(), "{words}").unwrap();
    }

    /// What it says next.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the companion ended without another word");
            // The harness may have begun the line.
            if let Some((_, words)) = line.split_once(MARK) {
                return words.trim_end().to_owned();
            }
        }
    }

    /// Says a line and returns the answer.
    pub fn ask(&mut self, words: &str) -> String {
        self.say(words);
        self.hear()
    }

    /// Waits until it says exactly this.
    pub fn expect(&mut self, words: &str) {
        assert_eq!(self.hear(), words);
    }

    /// Ends it in a way that it cannot do anything about.
    pub fn kill(self) {
        drop(self);
    }

    /// Lets it end by itself, and well.
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
        // SIGKILL; one that has already ended is only waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a companion: says a line to the test.
pub fn answer(words: impl std::fmt::Display) {
    println!("{MARK}{words}");
}

/// In a companion: the next line that the test says, or nothing when it has no more to say.
pub fn listen() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().lock().read_line(&mut line).unwrap();
    (bytes > 0).then(|| line.trim_end().to_owned())
}
