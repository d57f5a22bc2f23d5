//! The protocol by which the ranks of a run communicate through their mailboxes. It has no clock
//! and never waits: the caller passes the time, and decides when to look.
//!
//! Each rank writes to its own mailbox. Messages go up a tree (see [`tree`]): a rank reads the
//! mailboxes of the few that are next below it, and repeats in its own what they say. Rank 0 so
//! gets all messages, and what it repeats is read by all others. So a look costs a few files,
//! however many ranks there are. Who passes on messages is no further point of failure: no version
//! is complete without any of them. Until all have joined, rank 0 reads the mailboxes of all.
//!
//! A rank that ends may have written a message just before, for which others wait. So a rank counts
//! as gone only when all of its messages have been read and passed on. Whoever reads its mailbox
//! notices that it is dead, reads the mailbox to its end, and then tells those above it. Only what
//! rank 0 says of it counts. Rank 0 itself counts as gone when its mailbox has been read to the
//! end. If a new process takes the place of a rank, it keeps the old mailbox, so that it can still
//! be read. That may be the same process, opening its store again.
//!
//! Files of an earlier run may still be there. So a rank accepts the messages of another one only
//! after that one has repeated the random number (nonce) that this rank has just chosen.

use std::{io, ops::Range, time::Duration};

use outcrop_format::{Hello, Nonce, Record, rank_name};

use crate::{
    exchange::Exchanges,
    mailbox::{Inbox, Look, Outbox},
    medium::Medium,
    tree,
};

/// The rank at the top, whose mailbox all others read.
const FIRST: u32 = 0;

/// The pause between two checks of whether those with whom a rank has to do are alive.
const LIVES_EVERY: Duration = Duration::from_millis(100);

/// One rank, and what it knows about the others.
pub(crate) struct Talk<M: Medium> {
    medium: M,
    rank: u32,
    count: u32,
    nonce: Nonce,
    /// The lock that shows others that this process is alive.
    _alive: M::Alive,
    outbox: Outbox<M>,
    /// Rank 0, and those whose messages this rank passes on. For rank 0, all until they have met.
    others: Vec<Other<M>>,
    /// Who passes messages on to this rank, each with all below it.
    below: Vec<Range<u32>>,
    /// The part of the mailbox of this rank that its reader is reading, if that is one rank.
    reader_part: u32,
    /// Whether all ranks hold their locks.
    have_begun: bool,
    /// Whether all ranks have joined.
    has_met: bool,
    exchanges: Exchanges,
    messages: Vec<(u32, Vec<u8>)>,
    /// Why this rank cannot write its messages, and since when.
    trouble: Option<(Duration, String)>,
    /// When ranks were last checked.
    lives_looked: Option<Duration>,
    /// A rank that seems to be gone, while its last messages may not have been read yet.
    suspect: Option<Gone>,
    gone: Option<Gone>,
}

/// What is known about another rank.
struct Other<M: Medium> {
    rank: u32,
    /// The ranks whose messages it may repeat.
    below: Range<u32>,
    /// Its mailbox, once this rank may read it.
    inbox: Option<Inbox>,
    /// Its lock file, once it has been found.
    watch: Option<M::Watch>,
    /// Whether it has been seen alive.
    has_lived: bool,
    /// Whether those above have been told that it is gone.
    is_told_of: bool,
    /// The part of the mailbox of rank 0 that it and all below it are reading.
    reads_part: u32,
    /// Why its mailbox cannot be read, and since when.
    doubt: Option<(Duration, String)>,
}

impl<M: Medium> Other<M> {
    fn new(below: Range<u32>, inbox: Option<Inbox>) -> Self {
        let (rank, watch, has_lived, is_told_of) = (below.start, None, false, false);
        Self { rank, below, inbox, watch, has_lived, is_told_of, reads_part: 0, doubt: None }
    }
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
        let below = tree::below(rank, count);
        let others = match rank {
            FIRST => (1..count).map(|rank| Other::new(rank..rank + 1, Some(Inbox::new(rank, count)))).collect(),
            _ => {
                let first = Other::new(FIRST..count, Some(Inbox::new(FIRST, count)));
                [first].into_iter().chain(below.iter().map(|part| Other::new(part.clone(), None))).collect()
            }
        };
        Ok(Some(Self {
            medium,
            rank,
            count,
            nonce,
            _alive: alive,
            outbox,
            others,
            below,
            reader_part: 0,
            have_begun: false,
            has_met: count == 1,
            exchanges: Exchanges::new(rank, count),
            messages: Vec::new(),
            trouble: None,
            lives_looked: None,
            suspect: None,
            gone: None,
        }))
    }

    /// All ranks hold their locks, as they have told each other in another way. So one that dies is
    /// noticed before all have met, too.
    pub(crate) fn all_have_begun(&mut self) {
        self.have_begun = true;
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

    /// Whether all that this rank had to say and to pass on is written.
    pub(crate) fn has_said_all(&self) -> bool {
        self.outbox.has_said_all()
    }

    /// The contributions of all ranks to the current exchange, once all are there.
    pub(crate) fn complete(&mut self, topic: &str) -> Option<Vec<Vec<u8>>> {
        // This rank may leave when it has the result, so its own messages must be written first.
        if self.has_said_all() { self.exchanges.complete(topic) } else { None }
    }

    /// Sends a message to all other ranks.
    pub(crate) fn announce(&mut self, message: &[u8]) -> io::Result<()> {
        self.outbox.add(&self.medium, &Record::Message { first: self.rank, last: self.rank, message })?;
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

    /// Reads new messages, and passes them on. Returns whether there were any.
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
        let part = if self.rank == FIRST { self.all_read_part() } else { self.reader_part };
        self.outbox.free_before(&self.medium, part);
        Ok(has_news)
    }

    /// Writes all waiting records. Returns whether it succeeded; records the reason if not.
    fn flush(&mut self, now: Duration) -> io::Result<bool> {
        let said = self.outbox.flush(&self.medium);
        Ok(note(said, &mut self.trouble, now, true)?.is_some())
    }

    /// The part of the mailbox of rank 0 that all below this rank have reached.
    fn all_read_part(&self) -> u32 {
        let below = self.others.iter().filter(|other| other.rank != FIRST);
        below.map(|other| other.reads_part).min().unwrap_or(u32::MAX)
    }

    /// Tells the others that this rank passes on nothing more.
    pub(crate) fn leave(&mut self) {
        if !self.below.is_empty() && self.gone.is_none() {
            self.gone = Some(Gone { rank: self.rank, had_lived: true });
            // If this fails, nothing else can be done.
            let _ = self.outbox.append(&Record::Gone { rank: self.rank });
            let _ = self.outbox.flush(&self.medium);
        }
    }

    /// Reads the mailbox of another rank, if this rank is to read it.
    fn read(&mut self, index: usize, now: Duration) -> io::Result<bool> {
        let all_read_part = self.all_read_part();
        let Other { rank, below, inbox, reads_part, doubt, .. } = &mut self.others[index];
        let Some(inbox) = inbox else { return Ok(false) };
        let (me, nonce, rank) = (self.rank, self.nonce, *rank);
        // What comes from above is for this rank, and what comes from below is passed on. Rank 0
        // does both.
        let (is_above, is_for_me) = (rank == FIRST, rank == FIRST || me == FIRST);
        let (exchanges, messages, gone, outbox) =
            (&mut self.exchanges, &mut self.messages, &mut self.gone, &mut self.outbox);
        let reader_part = &mut self.reader_part;
        let mut has_news = false;
        let mut passed_on = Ok(());
        let mut met = Vec::new();
        let look = inbox.read(&self.medium, |inbox, record| {
            if *record == (Record::Seen { rank: me, nonce }) {
                inbox.has_met = true;
            }
            if !inbox.has_met || !is_of(record, below) {
                return;
            }
            has_news = true;
            match *record {
                Record::Read { rank: FIRST, part } => return *reads_part = part.max(*reads_part),
                Record::Read { rank, part } if rank == me => *reader_part = part.max(*reader_part),
                Record::Seen { rank, nonce } if is_above => met.push((rank, nonce)),
                Record::Gather { from, topic, number, contribution } if is_for_me => {
                    exchanges.heard(from, topic, number, contribution);
                }
                Record::Message { first, last, message } if is_for_me => {
                    let from = (first..=last).filter(|from| *from != me);
                    messages.extend(from.map(|from| (from, message.to_vec())));
                }
                Record::Gone { rank } if is_for_me => *gone = gone.or(Some(Gone { rank, had_lived: true })),
                _ => {}
            }
            let is_for_all = !matches!(record, Record::Seen { .. } | Record::Next);
            if !is_above && is_for_all && passed_on.is_ok() {
                passed_on = outbox.append(record);
            }
        });
        passed_on?;
        let is_known = inbox.nonce().is_some();
        let limit = if is_above { all_read_part } else { u32::MAX };
        let read = inbox.due(limit);
        match note(look, doubt, now, is_known)? {
            Some(Look::New(nonce)) if is_above => self.outbox.append(&Record::Seen { rank, nonce })?,
            Some(Look::Replaced) => self.found_gone(Gone { rank, had_lived: true })?,
            Some(_) | None => {}
        }
        if let Some(read) = read {
            self.outbox.append(&read)?;
        }
        let count = self.count;
        for (rank, nonce) in met {
            if let Some(other) = self.others.iter_mut().find(|other| other.rank == rank) {
                other.inbox.get_or_insert_with(|| Inbox::met(rank, count, nonce));
            }
        }
        Ok(has_news)
    }

    /// Checks whether all ranks have joined. If so, rank 0 tells all of them at once. From then on
    /// it only reads the mailboxes of those next below it.
    fn meet(&mut self) -> io::Result<()> {
        self.has_met = self.others.iter().filter_map(|other| other.inbox.as_ref()).all(|inbox| inbox.has_met);
        if self.has_met {
            self.outbox.forget_former(&self.medium);
        }
        if self.has_met && self.rank == FIRST {
            for other in &self.others {
                let nonce = other.inbox.as_ref().and_then(Inbox::nonce);
                let seen = nonce.map(|nonce| Record::Seen { rank: other.rank, nonce });
                seen.map_or(Ok(()), |seen| self.outbox.append(&seen))?;
            }
            let below = |rank| self.below.iter().find(|part| part.start == rank);
            self.others.retain_mut(|other| below(other.rank).map(|part| other.below = part.clone()).is_some());
        }
        Ok(())
    }

    /// From time to time, checks whether the others with whom this rank has to do are alive:
    /// whether their locks are held.
    fn look_for_gone(&mut self, now: Duration) -> io::Result<()> {
        let is_time = self.lives_looked.is_none_or(|looked| now >= looked + LIVES_EVERY);
        let can_tell = self.has_met || self.have_begun;
        if !can_tell || self.gone.is_some() || self.suspect.is_some() || !is_time {
            return Ok(());
        }
        self.lives_looked = Some(now);
        for other in self.others.iter_mut().filter(|other| !other.is_told_of) {
            if other.watch.is_none() {
                other.watch = self.medium.watch(&lock_name(other.rank))?;
            }
            // A missing lock file proves nothing: anybody may have removed it.
            let Some(watch) = &other.watch else { continue };
            if self.medium.is_alive(watch)? {
                other.has_lived = true;
            } else {
                self.suspect = Some(Gone { rank: other.rank, had_lived: other.has_lived });
                return Ok(());
            }
        }
        Ok(())
    }

    /// A rank is gone. Tells those above, or all if this is rank 0.
    fn found_gone(&mut self, found: Gone) -> io::Result<()> {
        let is_certain = self.rank == FIRST || found.rank == FIRST || !self.has_met;
        if is_certain && self.gone.is_none() {
            self.gone = Some(found);
        } else if is_certain {
            return Ok(());
        }
        let other = self.others.iter_mut().find(|other| other.rank == found.rank);
        if other.is_some_and(|other| std::mem::replace(&mut other.is_told_of, true)) {
            return Ok(());
        }
        self.outbox.append(&Record::Gone { rank: found.rank })
    }
}

/// Whether one of these ranks may have made this record, or its reader was told so by rank 0.
fn is_of(record: &Record<'_>, ranks: &Range<u32>) -> bool {
    match *record {
        Record::Gather { from, .. } => ranks.contains(&from),
        Record::Message { first, last, .. } => ranks.contains(&first) && ranks.contains(&last),
        Record::Gone { rank } | Record::Read { rank, .. } => rank == FIRST || ranks.contains(&rank),
        Record::Seen { .. } | Record::Next => true,
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
