//! The protocol by which the ranks of a run communicate through their mailboxes. It has no clock
//! and never waits: the caller passes the time, and decides when to look.
//!
//! Each rank writes to its own mailbox. Rank 0 reads all mailboxes, and forwards all messages in
//! its own. The other ranks read only the mailbox of rank 0. So a look costs one file, except for
//! rank 0. This adds no single point of failure: no version is complete without rank 0 anyway.
//!
//! A rank that ends may have written a message just before, for which others wait. So a rank counts
//! as gone only when all of its messages have been read and forwarded, and only rank 0 decides
//! this: whoever notices a dead rank tells rank 0. Rank 0 itself counts as gone when its mailbox
//! has been read to the end. If a new process takes the place of a rank, it keeps the old mailbox,
//! so that it can still be read. That may be the same process, opening its store again.
//!
//! Files of an earlier run may still be there. So a rank accepts the messages of another one only
//! after that one has repeated the random number (nonce) that this rank has just chosen.

use std::{io, time::Duration};

use outcrop_format::{Hello, Nonce, Record, rank_name};

use crate::{
    exchange::Exchanges,
    mailbox::{Inbox, Look, Outbox},
    medium::Medium,
};

/// The rank that forwards the messages of the others.
const FIRST: u32 = 0;

/// The pause between two checks of which ranks are alive, and how many are checked each time.
const LIVES_EVERY: Duration = Duration::from_millis(100);
const LIVES_AT_ONCE: usize = 8;

/// One rank, and what it knows about the others.
pub(crate) struct Talk<M: Medium> {
    medium: M,
    rank: u32,
    nonce: Nonce,
    /// The lock that shows others that this process is alive.
    _alive: M::Alive,
    outbox: Outbox<M>,
    others: Vec<Other<M>>,
    /// Whether all ranks have joined.
    has_met: bool,
    exchanges: Exchanges,
    messages: Vec<(u32, Vec<u8>)>,
    /// Why this rank cannot write its messages, and since when.
    trouble: Option<(Duration, String)>,
    /// When ranks were last checked, and which one is checked next.
    lives_looked: Option<Duration>,
    lives_next: usize,
    /// A rank that seems to be gone, while its last messages may not have been read yet.
    suspect: Option<Gone>,
    gone: Option<Gone>,
}

/// What is known about another rank.
struct Other<M: Medium> {
    rank: u32,
    /// Its mailbox, if this rank reads it.
    inbox: Option<Inbox>,
    /// Its lock file, once it has been found.
    watch: Option<M::Watch>,
    /// Whether it has been seen alive.
    has_lived: bool,
    /// Whether rank 0 has been told that it is gone.
    is_told_of: bool,
    /// The part of this rank's mailbox that it is reading.
    reads_part: u32,
    /// Why its mailbox cannot be read, and since when.
    doubt: Option<(Duration, String)>,
}

/// A rank that took part and does not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) rank: u32,
    /// Whether this rank had seen it alive.
    pub(crate) had_lived: bool,
}

impl<M: Medium> Talk<M> {
    /// Joins as `rank` of `count`; `None` if another process has joined as this rank.
    pub(crate) fn begin(medium: M, rank: u32, count: u32, nonce: Nonce) -> io::Result<Option<Self>> {
        let Some(alive) = medium.hold(&lock_name(rank))? else { return Ok(None) };
        let outbox = Outbox::make(&medium, Hello { rank, count, nonce })?;
        let other = |other| Other {
            rank: other,
            inbox: (rank == FIRST || other == FIRST).then(|| Inbox::new(other, count)),
            watch: None,
            has_lived: false,
            is_told_of: false,
            reads_part: 0,
            doubt: None,
        };
        Ok(Some(Self {
            medium,
            rank,
            nonce,
            _alive: alive,
            outbox,
            others: (0..count).filter(|&other| other != rank).map(other).collect(),
            has_met: count == 1,
            exchanges: Exchanges::new(rank, count),
            messages: Vec::new(),
            trouble: None,
            lives_looked: None,
            // Each rank starts with another one.
            lives_next: rank as usize,
            suspect: None,
            gone: None,
        }))
    }

    /// Whether all ranks have joined.
    pub(crate) fn has_met(&self) -> bool {
        self.has_met
    }

    /// Contributes to the current exchange of a topic, if this rank has not yet.
    pub(crate) fn contribute(&mut self, topic: &str, mine: &[u8]) -> io::Result<()> {
        if let Some(number) = self.exchanges.due(topic) {
            let record = Record::Gather { from: self.rank, topic, number, contribution: mine };
            self.outbox.add(&self.medium, &record)?;
            // Others may read it from now on, even if the flush below fails.
            self.exchanges.contributed(topic, mine);
        }
        self.outbox.flush(&self.medium)
    }

    /// The contributions of all ranks to the current exchange, once all are there.
    pub(crate) fn complete(&mut self, topic: &str) -> Option<Vec<Vec<u8>>> {
        // This rank may leave when it has the result, so its own messages must be written first.
        if self.outbox.has_said_all() { self.exchanges.complete(topic) } else { None }
    }

    /// Sends a message to all other ranks.
    pub(crate) fn announce(&mut self, message: &[u8]) -> io::Result<()> {
        self.outbox.add(&self.medium, &Record::Message { from: self.rank, message })?;
        self.outbox.flush(&self.medium)
    }

    /// The messages of other ranks that have been read.
    pub(crate) fn heard(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.messages)
    }

    /// A rank that took part and is known to be gone.
    pub(crate) fn gone(&self) -> Option<Gone> {
        self.gone
    }

    /// What is wrong with the mailboxes, and since when.
    pub(crate) fn doubt(&self) -> Option<(Duration, &str)> {
        let doubts = self.others.iter().filter_map(|other| other.doubt.as_ref()).chain(&self.trouble);
        doubts.min_by_key(|(since, _)| *since).map(|(since, what)| (*since, &**what))
    }

    /// Reads new messages, and forwards them if this is rank 0. Returns whether there were any.
    pub(crate) fn look(&mut self, now: Duration) -> io::Result<bool> {
        // Before the mailboxes are read, so that the last messages of a dead rank are not missed.
        self.look_for_gone(now)?;
        let suspect = self.suspect.take();
        if !self.has_met || self.others.iter().any(|other| other.doubt.is_some()) {
            self.medium.refresh()?;
        }
        let mut has_news = false;
        for index in 0..self.others.len() {
            // Messages that cannot be forwarded are not read either.
            if (index == 0 || self.outbox.has_much_to_say()) && !self.flush(now)? {
                self.suspect = self.suspect.or(suspect);
                return Ok(has_news);
            }
            has_news |= self.read(index, now)?;
        }
        if let Some(suspect) = suspect.filter(|_| self.gone.is_none()) {
            self.found_gone(suspect)?;
        }
        if !self.has_met {
            self.meet()?;
        }
        self.flush(now)?;
        let readers = self.others.iter().filter(|other| other.inbox.is_some());
        let part = readers.map(|other| other.reads_part).min().unwrap_or(u32::MAX);
        self.outbox.free_before(&self.medium, part);
        Ok(has_news)
    }

    /// Writes all waiting records. Returns whether it succeeded; records the reason if not.
    fn flush(&mut self, now: Duration) -> io::Result<bool> {
        let said = self.outbox.flush(&self.medium);
        Ok(note(said, &mut self.trouble, now, true)?.is_some())
    }

    /// Tells the others that this rank forwards nothing more.
    pub(crate) fn leave(&mut self) {
        if self.rank == FIRST && self.gone.is_none() {
            self.gone = Some(Gone { rank: self.rank, had_lived: true });
            // If this fails, nothing else can be done.
            let _ = self.outbox.append(&Record::Gone { rank: self.rank });
            let _ = self.outbox.flush(&self.medium);
        }
    }

    /// Reads the mailbox of another rank, if this rank is to read it.
    fn read(&mut self, index: usize, now: Duration) -> io::Result<bool> {
        let Other { rank, inbox, reads_part, doubt, .. } = &mut self.others[index];
        let Some(inbox) = inbox else { return Ok(false) };
        let (me, nonce, rank) = (self.rank, self.nonce, *rank);
        let (exchanges, messages) = (&mut self.exchanges, &mut self.messages);
        // Rank 0 reads the mailbox of that rank before it believes this.
        let gone = if me == FIRST { &mut self.suspect } else { &mut self.gone };
        let mut has_news = false;
        let mut passed_on = Ok(());
        let look = inbox.read(&self.medium, |inbox, record| {
            if *record == (Record::Seen { rank: me, nonce }) {
                inbox.has_met = true;
            }
            if !inbox.has_met {
                return;
            }
            has_news = true;
            match *record {
                // Only rank 0 may forward messages of others.
                Record::Gather { from, .. } | Record::Message { from, .. } if from != rank && rank != FIRST => {}
                Record::Gather { from, topic, number, contribution } => {
                    exchanges.heard(from, topic, number, contribution);
                }
                Record::Message { from, message } if from != me => messages.push((from, message.to_vec())),
                Record::Gone { rank } => *gone = gone.or(Some(Gone { rank, had_lived: true })),
                Record::Read { rank, part } if rank == me => *reads_part = part.max(*reads_part),
                Record::Message { .. } | Record::Seen { .. } | Record::Read { .. } | Record::Next => {}
            }
            let is_for_all = matches!(record, Record::Gather { .. } | Record::Message { .. });
            if me == FIRST && is_for_all && passed_on.is_ok() {
                passed_on = self.outbox.append(record);
            }
        });
        passed_on?;
        let is_known = inbox.nonce().is_some();
        match note(look, doubt, now, is_known)? {
            Some(Look::New(nonce)) if rank == FIRST => self.outbox.append(&Record::Seen { rank, nonce })?,
            Some(Look::Replaced) if self.gone.is_none() => self.found_gone(Gone { rank, had_lived: true })?,
            Some(_) | None => {}
        }
        if let Some(read) = self.others[index].inbox.as_mut().and_then(Inbox::due) {
            self.outbox.append(&read)?;
        }
        Ok(has_news)
    }

    /// Checks whether all ranks have joined. If so, rank 0 tells all of them at once.
    fn meet(&mut self) -> io::Result<()> {
        let mut inboxes = self.others.iter().filter_map(|other| Some((other.rank, other.inbox.as_ref()?)));
        self.has_met = inboxes.clone().all(|(_, inbox)| inbox.has_met);
        if self.has_met {
            self.outbox.forget_former(&self.medium);
        }
        if self.has_met && self.rank == FIRST {
            let outbox = &mut self.outbox;
            let mut seen =
                inboxes.by_ref().filter_map(|(rank, inbox)| Some(Record::Seen { rank, nonce: inbox.nonce()? }));
            return seen.try_for_each(|record| outbox.append(&record));
        }
        Ok(())
    }

    /// From time to time, checks whether some of the other ranks are alive: whether their locks are
    /// held. Rank 0 is always among them.
    fn look_for_gone(&mut self, now: Duration) -> io::Result<()> {
        let is_time = self.lives_looked.is_none_or(|looked| now >= looked + LIVES_EVERY);
        if !self.has_met || self.gone.is_some() || self.suspect.is_some() || !is_time {
            return Ok(());
        }
        self.lives_looked = Some(now);
        let count = self.others.len();
        let some = (0..count.min(LIVES_AT_ONCE)).map(|nth| (self.lives_next + nth) % count);
        // The first of the others is rank 0, unless this one is.
        let some: Vec<usize> = (self.rank != FIRST).then_some(0).into_iter().chain(some).collect();
        self.lives_next = (self.lives_next + LIVES_AT_ONCE) % count.max(1);
        for index in some {
            let other = &mut self.others[index];
            if other.watch.is_none() {
                other.watch = self.medium.watch(&lock_name(other.rank))?;
            }
            // A missing lock file proves nothing: anybody may have removed it.
            let Some(watch) = &other.watch else { continue };
            if self.medium.is_alive(watch)? {
                other.has_lived = true;
            } else {
                let gone = Gone { rank: other.rank, had_lived: other.has_lived };
                match self.rank == FIRST || gone.rank == FIRST {
                    true => self.suspect = Some(gone),
                    false if other.is_told_of => continue,
                    false => {
                        other.is_told_of = true;
                        self.outbox.append(&Record::Gone { rank: gone.rank })?;
                    }
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// A rank is gone. Tells the others.
    fn found_gone(&mut self, gone: Gone) -> io::Result<()> {
        self.gone = Some(gone);
        self.outbox.append(&Record::Gone { rank: gone.rank })
    }
}

/// The name of the lock file of a rank.
pub(crate) fn lock_name(rank: u32) -> String {
    format!("{}.lock", rank_name(rank))
}

/// The result of a read or write, or `None` if it failed in a way that may be temporary. The
/// failure is recorded until the next success.
fn note<T>(
    outcome: io::Result<T>,
    doubt: &mut Option<(Duration, String)>,
    now: Duration,
    is_known: bool,
) -> io::Result<Option<T>> {
    match outcome {
        Ok(outcome) => {
            *doubt = None;
            Ok(Some(outcome))
        }
        Err(error) if may_pass(&error) || is_known => {
            let since = doubt.take().map_or(now, |(since, _)| since);
            *doubt = Some((since, error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether a retry may succeed: a shared file system may show the length of a file before its
/// bytes, or for a while a file that was replaced (`ESTALE`).
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::StaleNetworkFileHandle)
}
