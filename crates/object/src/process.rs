//! Which process an owner is, and whether it lives, as far as that can be seen from here.

use std::{fs, process};

use serde::{Deserialize, Serialize};

/// A process, on any machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// The name of its machine, for messages.
    pub(crate) host: String,
    pub(crate) number: u32,
    /// The boot of its machine.
    boot: String,
    /// In which its number means something.
    namespace: String,
    /// When it began, in ticks since the boot: another process may get its number.
    began: u64,
}

/// What can be seen of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is this one.
    Here,
    Lives,
    Ended,
    /// It is on another machine, or in another namespace.
    Unknown,
}

impl Process {
    pub(crate) fn own() -> Self {
        let number = process::id();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default().display().to_string();
        Self { host, number, boot, namespace, began: began(number).unwrap_or(0) }
    }

    pub(crate) fn seen(&self) -> Seen {
        let own = Self::own();
        if own.boot.is_empty() || own.namespace.is_empty() || own.began == 0 {
            return Seen::Unknown;
        }
        match (&self.boot, &self.namespace) == (&own.boot, &own.namespace) {
            true if *self == own => Seen::Here,
            true if began(self.number) == Some(self.began) => Seen::Lives,
            true => Seen::Ended,
            false => Seen::Unknown,
        }
    }
}

/// When a process began. `None` if it has ended, also if nobody has waited for it.
fn began(number: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // The name before may contain anything.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    (!matches!(state, "Z" | "X")).then(|| words.nth(18)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_lives_until_it_ends() {
        let own = Process::own();
        assert_eq!(own.seen(), Seen::Here);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let other = Process { number: child.id(), began: began(child.id()).unwrap(), ..own.clone() };
        assert_eq!(other.seen(), Seen::Lives);
        child.kill().unwrap();
        // It has ended, and nobody has waited for it.
        outcrop_testing::until("the child ends", || other.seen() == Seen::Ended);
        child.wait().unwrap();
        assert_eq!(other.seen(), Seen::Ended);
        let later = Process { began: own.began + 1, ..own.clone() };
        assert_eq!(later.seen(), Seen::Ended, "another process has the number");
        let elsewhere = Process { boot: "another".to_owned(), ..own };
        assert_eq!(elsewhere.seen(), Seen::Unknown);
    }
}
