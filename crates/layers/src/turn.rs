//! A turn that goes round all processes of a node: one at a time, first come first served.
//!
//! Who wants the turn draws a ticket: a file with the next number, on which it keeps a lock for as long as it wants or
//! has the turn. Then it waits for the lock of every lower ticket, one after the other; after the last it is its turn.
//! The system gives up the locks of a process that ends, in whatever way, so that a dead one holds nobody up, be it
//! waiting or in its turn. To wait is to sleep in the system.
//!
//! The next number is one more than the highest that exists, found and taken while the directory is locked: a number
//! cannot come back while anybody waits behind it, there is no counter to be damaged or to survive a reboot, and
//! nothing is left when nobody wants the turn. A ticket that a dead process left is removed by whoever meets it and
//! may.
//!
//! Users trust each other as far as they share a node: one who never gives the turn back keeps the others waiting. So a
//! turn is for work that can also be done without it, by a thread that can wait. A process that forks and is then
//! killed in its turn leaves it to the child, until that ends or executes another program.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};

use crate::{
    Result,
    node::{self, Node},
};

/// This process's turn, until it is dropped. Threads of one process take turns as well.
#[must_use = "the turn passes on when this is dropped"]
pub struct Turn {
    ticket: Ticket,
}

impl Turn {
    /// Waits until it is this thread's turn at `name` among all processes of the node that name the same.
    pub fn wait(name: &str) -> Result<Self> {
        Self::wait_in(&node::usual_directory(), name)
    }

    /// As `wait`, with processes that meet in `directory`.
    pub fn wait_in(directory: &Path, name: &str) -> Result<Self> {
        node::check_name(directory, name)?;
        let node = Node::open(directory)?;
        let (ticket, before) = Ticket::draw(node, &format!("outcrop-turn-{name}-"))?;
        for number in before {
            ticket.wait_for(number)?;
        }
        Ok(Self { ticket })
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turn({})", self.ticket.path().display())
    }
}

/// A place in the queue, given up when it is dropped.
struct Ticket {
    node: Node,
    prefix: String,
    number: u64,
    file: OwnedFd,
    /// Who drew it: a child that was forked has a copy that is not its own.
    process: u32,
}

impl Ticket {
    /// A new ticket at the end of the queue, and the numbers before it, lowest first.
    fn draw(node: Node, prefix: &str) -> Result<(Self, Vec<u64>)> {
        let (number, file, before) = node.alone(|| {
            let mut before: Vec<u64> = node.names(prefix)?.iter().filter_map(|name| number_of(name)).collect();
            before.sort_unstable();
            let number = before.last().map_or(Some(0), |last| last.checked_add(1));
            let number =
                number.ok_or_else(|| node.failure("draw a ticket with a higher number in it", Errno::OVERFLOW))?;
            let name = name_of(prefix, number);
            // To lock it, others only have to open it.
            let file = node
                .make(&name, Mode::RUSR | Mode::RGRP | Mode::ROTH)
                .map_err(|errno| node.failure("draw a ticket in it", errno))?;
            if let Err(errno) = node::lock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                node.remove(&name);
                return Err(node.failure("lock a ticket in it", errno));
            }
            Ok((number, file, before))
        })?;
        Ok((Self { node, prefix: prefix.to_owned(), number, file, process: std::process::id() }, before))
    }

    /// Waits until the owner of a lower ticket has given it up.
    fn wait_for(&self, number: u64) -> Result<()> {
        let name = name_of(&self.prefix, number);
        let file = match self.node.file(&name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(()),
            // An owner lets everybody open its ticket before anybody can see it: this is no ticket.
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::INVAL | Errno::ISDIR | Errno::NXIO)) => {
                tracing::debug!(path = %self.node.path().join(&name).display(), %errno, "this is not a ticket");
                return Ok(());
            }
            Err(errno) => return Err(self.node.failure("open another's ticket in it", errno)),
        };
        node::lock(file.as_fd(), FlockOperation::LockShared)
            .map_err(|errno| self.node.failure("wait for another's ticket in it", errno))?;
        // Its owner is dead, or about to remove it as well.
        self.node.remove(&name);
        Ok(())
    }

    fn path(&self) -> std::path::PathBuf {
        self.node.path().join(name_of(&self.prefix, self.number))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.node.remove_same(&name_of(&self.prefix, self.number), self.file.as_fd());
        // Closing the file would do, but for children that were forked and have it open too.
        if let Err(errno) = node::lock(self.file.as_fd(), FlockOperation::Unlock) {
            tracing::warn!(path = %self.path().display(), %errno, "cannot give up a turn before the process ends");
        }
    }
}

fn name_of(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}")
}

/// The number in the rest of a ticket's name, if it is one.
fn number_of(rest: &str) -> Option<u64> {
    let is_number = rest.len() == 16 && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(rest, 16).ok().filter(|_| is_number)
}
