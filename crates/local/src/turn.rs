//! A turn among all processes of a machine: one at a time, first come first served.
//!
//! A process that wants the turn draws a ticket: a lock file with the next number, which it holds
//! for as long as it wants or has the turn. Then it waits for the end of every lower ticket, in
//! ascending order. After the last one it has the turn. A dead process blocks nobody, whether it
//! was waiting or had the turn. Waiting is sleeping in the kernel.
//!
//! The next number is one more than the highest that exists, found and taken while the meeting
//! place is locked. A number cannot be reused while a process waits behind it. There is no counter
//! that could be corrupted, and no file is left when nobody wants the turn. Whoever finds the
//! ticket of a dead process removes it, if permitted.
//!
//! Users trust each other as far as they share a machine: one who never gives the turn back keeps
//! the others waiting. So a turn is for work that can also be done without it, by a thread that can
//! wait.

use std::path::Path;

use rustix::{fs::Mode, io::Errno};

use crate::{Result, alive::Alive, meeting::Meeting};

/// The mode of tickets: others only have to read one to wait for it.
const TICKET: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::ROTH);

/// This process's turn, until it is dropped. Threads of one process take turns as well. A forked
/// child does not have the turn, and cannot give it back.
#[must_use = "the turn passes on when this is dropped"]
pub struct Turn {
    ticket: Ticket,
}

impl Turn {
    /// Waits for the turn called `name`, among all processes of the machine.
    pub fn wait(name: &str) -> Result<Self> {
        Self::wait_in(&Meeting::usual_directory(), name)
    }

    /// As `wait`, among the processes that meet in `directory`.
    pub fn wait_in(directory: &Path, name: &str) -> Result<Self> {
        let meeting = Meeting::open(directory)?;
        meeting.check_name(name)?;
        let (ticket, before) = Ticket::draw(meeting, &format!("outcrop-turn-{name}-"))?;
        for number in before {
            ticket.wait_for(number)?;
        }
        Ok(Self { ticket })
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turn({})", self.ticket.meeting.path().join(&self.ticket.name).display())
    }
}

/// A position in the queue. Dropping it gives the position up.
struct Ticket {
    meeting: Meeting,
    prefix: String,
    name: String,
    alive: Alive,
}

impl Ticket {
    /// Draws a ticket at the end of the queue. Returns it with the numbers before it, lowest first.
    fn draw(meeting: Meeting, prefix: &str) -> Result<(Self, Vec<u64>)> {
        let (name, alive, before) = meeting.alone(|| {
            let (number, before) = next(meeting.names(prefix)?)
                .ok_or_else(|| meeting.failure("draw a ticket with a higher number in it", Errno::OVERFLOW))?;
            let name = name_of(prefix, number);
            match meeting.hold_new(&name, TICKET) {
                Ok(Some(alive)) => Ok((name, alive, before)),
                // Another program has removed or locked it without knowing what a ticket is.
                Ok(None) => Err(meeting.failure("keep a ticket in it", Errno::AGAIN)),
                Err(errno) => {
                    meeting.remove(&name);
                    Err(meeting.failure("draw a ticket in it", errno))
                }
            }
        })?;
        Ok((Self { meeting, prefix: prefix.to_owned(), name, alive }, before))
    }

    /// Waits until the owner of a lower ticket has given it up.
    fn wait_for(&self, number: u64) -> Result<()> {
        let name = name_of(&self.prefix, number);
        let watch = match self.meeting.watch(&name) {
            Ok(Some(watch)) => watch,
            Ok(None) => return Ok(()),
            // The owner of a ticket makes it readable before others can see it: this is no ticket.
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::INVAL | Errno::ISDIR | Errno::NXIO)) => {
                tracing::debug!(path = %self.meeting.path().join(&name).display(), %errno, "this is not a ticket");
                return Ok(());
            }
            Err(errno) => return Err(self.meeting.failure("open another's ticket in it", errno)),
        };
        watch.wait_for_end().map_err(|errno| self.meeting.failure("wait for another's ticket in it", errno))?;
        // Its owner is dead, or about to remove it as well.
        self.meeting.remove(&name);
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.alive.is_ours() {
            // Remove the file before the lock is released, so that nobody finds it without an
            // owner.
            self.meeting.remove_same(&self.name, self.alive.file());
        }
    }
}

/// The number of the next ticket, and those before it, lowest first, from the names of the present
/// tickets. `None` if there is no higher number.
fn next(names: Vec<String>) -> Option<(u64, Vec<u64>)> {
    let mut before: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    before.sort_unstable();
    let number = before.last().map_or(Some(0), |last| last.checked_add(1))?;
    Some((number, before))
}

fn name_of(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}")
}

/// The number in the rest of a ticket's name, if it has the right form.
fn number_of(rest: &str) -> Option<u64> {
    let is_number = rest.len() == 16 && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(rest, 16).ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_ticket_is_behind_all_that_look_like_one() {
        let names = |numbers: &[&str]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(next(Vec::new()), Some((0, Vec::new())));
        let some = names(&["000000000000000a", "0000000000000003", "12", "", "000000000000000G", "+00000000000000f"]);
        assert_eq!(next(some), Some((11, vec![3, 10])));
        assert_eq!(next(names(&["ffffffffffffffff"])), None);
    }
}
