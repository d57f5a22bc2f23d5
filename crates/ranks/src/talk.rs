//! What the ranks of a run say to each other through their mailboxes. Knows no clock and does not
//! wait: it is told the time, and looks when it is told to.
//!
//! Each rank says what it has to say in its own mailbox. Rank 0 reads all of them, and repeats in
//! its own what others say; the others read that alone. So a look costs one file, except for rank
//! 0, and not as many as there are ranks. Nothing can be complete without rank 0 in any case.
//!
//! A rank that ends may just have said what others wait for. So rank 0 says of another one that it
//! is gone when it has passed on its last words, and nobody else does: whoever notices it tells
//! rank 0. Of rank 0 it is believed when its mailbox has been read to the end. A process that takes
//! its place at once, perhaps the same one that opens its store again, leaves that mailbox there.
//!
//! Files of an earlier run may still be there: a rank believes another one only when that has
//! repeated the random number which this one has just chosen.

use std::{io, time::Duration};

use outcrop_format::{Hello, Nonce, Record, rank_name};

use crate::{
    exchange::Exchanges,
    mailbox::{Inbox, Look, Outbox},
    medium::Medium,
};

/// The rank that passes on what the others say.
const FIRST: u32 = 0;

/// Between two looks whether others live, and at how many of them.
const LIVES_EVERY: Duration = Duration::from_millis(100);
const LIVES_AT_ONCE: usize = 8;

/// One rank, and what it knows of the others.
pub(crate) struct Talk<M: Medium> {
    medium: M,
    rank: u32,
    nonce: Nonce,
    /// Says that this process takes part.
    _alive: M::Alive,
    outbox: Outbox<M>,
    others: Vec<Other<M>>,
    /// All ranks have met.
    has_met: bool,
    exchanges: Exchanges,
    messages: Vec<(u32, Vec<u8>)>,
    /// What keeps this rank from speaking, and since when.
    trouble: Option<(Duration, String)>,
    /// When it was last looked whether others live, and at which it is looked next.
    lives_looked: Option<Duration>,
    lives_next: usize,
    /// A rank that seems to be gone, and whose last words may not have been read yet.
    suspect: Option<Gone>,
    gone: Option<Gone>,
}

/// What is known of another rank.
struct Other<M: Medium> {
    rank: u32,
    /// Its mailbox, if this rank reads it.
    inbox: Option<Inbox>,
    /// Its lock file, once it has been found.
    watch: Option<M::Watch>,
    /// It has been seen to live.
    has_lived: bool,
    /// Rank 0 has been told that it is gone.
    is_told_of: bool,
    /// Which part of the mailbox of this rank it reads.
    reads_part: u32,
    /// What is wrong with its mailbox, and since when.
    doubt: Option<(Duration, String)>,
}

/// A rank that took part and does no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) rank: u32,
    /// This rank had seen it alive.
    pub(crate) had_lived: bool,
}

impl<M: Medium> Talk<M> {
    /// Begins to take part as `rank` of `count`; nothing if another process does.
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
            // Not all ranks begin with the same one.
            lives_next: rank as usize,
            suspect: None,
            gone: None,
        }))
    }

    /// Whether all ranks have met.
    pub(crate) fn has_met(&self) -> bool {
        self.has_met
    }

    /// Takes part in the present exchange of a topic, if this rank has not yet.
    pub(crate) fn contribute(&mut self, topic: &str, mine: &[u8]) -> io::Result<()> {
        if let Some(number) = self.exchanges.due(topic) {
            let record = Record::Gather { from: self.rank, topic, number, contribution: mine };
            self.outbox.add(&self.medium, &record)?;
            // From now on others may read it, also if the next line fails.
            self.exchanges.contributed(topic, mine);
        }
        self.outbox.flush(&self.medium)
    }

    /// Everybody's contribution to the present exchange, once all are there.
    pub(crate) fn complete(&mut self, topic: &str) -> Option<Vec<Vec<u8>>> {
        // What others need has to be said first: this one may leave when it has all.
        if self.outbox.has_said_all() { self.exchanges.complete(topic) } else { None }
    }

    /// Tells all others something.
    pub(crate) fn announce(&mut self, message: &[u8]) -> io::Result<()> {
        self.outbox.add(&self.medium, &Record::Message { from: self.rank, message })?;
        self.outbox.flush(&self.medium)
    }

    /// What others have announced, as far as it was seen.
    pub(crate) fn heard(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.messages)
    }

    /// A rank that took part and does no more, as far as it was seen.
    pub(crate) fn gone(&self) -> Option<Gone> {
        self.gone
    }

    /// What is wrong with what this rank sees, and since when.
    pub(crate) fn doubt(&self) -> Option<(Duration, &str)> {
        let doubts = self.others.iter().filter_map(|other| other.doubt.as_ref()).chain(&self.trouble);
        doubts.min_by_key(|(since, _)| *since).map(|(since, what)| (*since, &**what))
    }

    /// Looks what others have said since the last time, and passes it on. Whether there was
    /// something.
    pub(crate) fn look(&mut self, now: Duration) -> io::Result<bool> {
        // Before the mailboxes, so that the last words of a rank are not missed.
        self.look_for_gone(now)?;
        let suspect = self.suspect.take();
        if !self.has_met || self.others.iter().any(|other| other.doubt.is_some()) {
            self.medium.refresh()?;
        }
        let mut has_news = false;
        for index in 0..self.others.len() {
            // What cannot be passed on is not read either.
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

    /// Says what is to be said. Whether nothing is left; what keeps it from that is noted.
    fn flush(&mut self, now: Duration) -> io::Result<bool> {
        let said = self.outbox.flush(&self.medium);
        Ok(note(said, &mut self.trouble, now, true)?.is_some())
    }

    /// Nothing more is passed on: the others need not wait for it.
    pub(crate) fn leave(&mut self) {
        if self.rank == FIRST && self.gone.is_none() {
            self.gone = Some(Gone { rank: self.rank, had_lived: true });
            // If it cannot be said, there is nothing else to be done.
            let _ = self.outbox.append(&Record::Gone { rank: self.rank });
            let _ = self.outbox.flush(&self.medium);
        }
    }

    /// Reads the mailbox of another rank, if this one does.
    fn read(&mut self, index: usize, now: Duration) -> io::Result<bool> {
        let Other { rank, inbox, reads_part, doubt, .. } = &mut self.others[index];
        let Some(inbox) = inbox else { return Ok(false) };
        let (me, nonce, rank) = (self.rank, self.nonce, *rank);
        let (exchanges, messages) = (&mut self.exchanges, &mut self.messages);
        // Rank 0 looks by itself first.
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
                // Of others, only rank 0 may speak.
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

    /// Whether all have met by now. Rank 0 says so to all at once.
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

    /// Looks now and then whether some of the others live: whether somebody holds their locks. Rank
    /// 0 is always one of them.
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
            // Without a file nothing can be told: anybody may have removed it.
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

    /// A rank is gone: the others need not find out by themselves.
    fn found_gone(&mut self, gone: Gone) -> io::Result<()> {
        self.gone = Some(gone);
        self.outbox.append(&Record::Gone { rank: gone.rank })
    }
}

/// The name of the lock file of a rank.
pub(crate) fn lock_name(rank: u32) -> String {
    format!("{}.lock", rank_name(rank))
}

/// What was read, or nothing if it is not what was written or could not be read just now. That is
/// noted, and forgotten when it has become right.
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

/// Whether a later look may find it right: a shared file system may show the length of a file
/// before its bytes, and a file that another one has replaced for a while (`ESTALE`).
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::StaleNetworkFileHandle)
}
