//! Mailboxes as files: each rank appends to its own, and others read what is new in it.
//!
//! A shared file system guarantees little (see [`Medium`]). So the owner syncs what it has written
//! before it continues, and a reader opens the file again for each look. The reader accepts only
//! records with valid checksums, from the mailbox that it knows.

use std::io;

use outcrop_format::{HELLO_BYTES, Hello, Nonce, RECORD_HEAD_BYTES, Record, RecordHead, rank_name};

use crate::medium::Medium;

/// The size of one read, unless a record is longer.
const READ_BYTES: usize = 8 << 10;

/// When a part of a mailbox has this size, the mailbox continues in another part. Unit tests of
/// this crate use small parts, so they have many.
const PART_BYTES: u64 = if cfg!(test) { 2 << 10 } else { 1 << 20 };

/// With so many waiting messages one is compared: a few of each rank that passes some on.
const JOINED_MAX: usize = 32;

/// The name of the mailbox of a rank, and of the one that its previous process has left.
const MAILBOX: &str = "mailbox";
const FORMER: &str = "former";

/// The name of a part of a mailbox of a rank.
fn part_name(mailbox: &str, rank: u32, part: u32) -> String {
    match part {
        0 => format!("{}.{mailbox}", rank_name(rank)),
        part => format!("{}.{mailbox}-{part}", rank_name(rank)),
    }
}

/// The mailbox of this rank.
pub(crate) struct Outbox<M: Medium> {
    hello: Hello,
    part: u32,
    file: M::File,
    /// The offset of the next record.
    end: u64,
    /// Records that may not be written yet. If a write fails they are kept unchanged, because
    /// somebody may have read them. They are written again at the same offset, before all others.
    unsaid: Vec<u8>,
    /// Messages that come after these, and that equal ones of other ranks may still join.
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    /// The next part, if the last of these records says that the mailbox continues there.
    next: Option<M::File>,
    /// The first part that has not been removed.
    first: u32,
    /// The parts of the mailbox that the previous process of this rank has left.
    former: Vec<String>,
}

/// A message of some ranks.
struct Waiting {
    first: u32,
    last: u32,
    message: Vec<u8>,
}

impl<M: Medium> Outbox<M> {
    /// Makes a mailbox, in place of one that an earlier process may have left. The old mailbox
    /// stays under another name, because another rank may not have read its last records yet.
    pub(crate) fn make(medium: &M, hello: Hello) -> io::Result<Self> {
        let [present, former] = [MAILBOX, FORMER].map(|mailbox| part_name(mailbox, hello.rank, 0));
        let names = medium.names()?;
        let part_of = |mailbox: &str, name: &str| {
            let rest = name.strip_prefix(mailbox)?;
            (rest.is_empty() || rest.starts_with('-')).then(|| rest.to_owned())
        };
        names.iter().filter(|name| part_of(&former, name).is_some()).try_for_each(|name| medium.remove(name))?;
        let mut left = Vec::new();
        for (name, part) in names.iter().filter_map(|name| Some((name, part_of(&present, name)?))) {
            left.push(format!("{former}{part}"));
            medium.rename(name, &left[left.len() - 1])?;
        }
        let file = make_part(medium, &hello, 0)?;
        let (part, end, unsaid, next, first) = (0, HELLO_BYTES as u64, Vec::new(), None, 0);
        let (waiting, waiting_bytes) = (Vec::new(), 0);
        Ok(Self { hello, part, file, end, unsaid, waiting, waiting_bytes, next, first, former: left })
    }

    /// All ranks have joined again, so nobody will read the previous mailbox any more.
    pub(crate) fn forget_former(&mut self, medium: &M) {
        // What cannot be removed now is removed when the next process begins.
        self.former.drain(..).for_each(|name| drop(medium.remove(&name)));
    }

    /// Adds a record, after all records before it have been written.
    pub(crate) fn add(&mut self, medium: &M, record: &Record<'_>) -> io::Result<()> {
        self.flush(medium)?;
        self.append(record)
    }

    /// Adds a record to those that are to be written. A message joins an equal one of the rank
    /// before or after, which is then one message of both.
    pub(crate) fn append(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Record::Message { first, last, message } = *record else {
            self.seal()?;
            return self.encode(record);
        };
        for waiting in self.waiting.iter_mut().rev().take(JOINED_MAX) {
            if waiting.message == message && waiting.last.checked_add(1) == Some(first) {
                waiting.last = last;
                return Ok(());
            }
            if waiting.message == message && last.checked_add(1) == Some(waiting.first) {
                waiting.first = first;
                return Ok(());
            }
            if first <= waiting.last && waiting.first <= last {
                // What a rank says stays in its order.
                break;
            }
        }
        self.waiting_bytes += RECORD_HEAD_BYTES + message.len();
        self.waiting.push(Waiting { first, last, message: message.to_vec() });
        Ok(())
    }

    /// Nothing joins the waiting messages any more.
    fn seal(&mut self) -> io::Result<()> {
        self.waiting_bytes = 0;
        for Waiting { first, last, message } in std::mem::take(&mut self.waiting) {
            self.encode(&Record::Message { first, last, message: &message })?;
        }
        Ok(())
    }

    fn encode(&mut self, record: &Record<'_>) -> io::Result<()> {
        let bytes = record.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.unsaid.extend_from_slice(&bytes);
        Ok(())
    }

    /// Whether all records are written.
    pub(crate) fn has_said_all(&self) -> bool {
        self.unsaid.is_empty() && self.waiting.is_empty()
    }

    /// Whether so much is waiting to be written that it should not wait for more.
    pub(crate) fn has_much_to_say(&self) -> bool {
        (self.unsaid.len() + self.waiting_bytes) as u64 >= PART_BYTES
    }

    /// Writes and syncs all waiting records.
    pub(crate) fn flush(&mut self, medium: &M) -> io::Result<()> {
        self.seal()?;
        if self.unsaid.is_empty() {
            return Ok(());
        }
        // If the next part cannot be made now, this one grows until it can.
        if self.next.is_none()
            && self.end + self.unsaid.len() as u64 >= PART_BYTES
            && let Ok(next) = make_part(medium, &self.hello, self.part + 1)
        {
            self.append(&Record::Next)?;
            self.next = Some(next);
        }
        medium.write_at(&self.file, self.end, &self.unsaid)?;
        medium.sync(&self.file)?;
        self.end += self.unsaid.len() as u64;
        self.unsaid.clear();
        if let Some(next) = self.next.take() {
            self.file = next;
            self.part += 1;
            self.end = HELLO_BYTES as u64;
        }
        Ok(())
    }

    /// All readers of this mailbox have reached this part: removes the parts before it.
    pub(crate) fn free_before(&mut self, medium: &M, part: u32) {
        while self.first < part.min(self.part)
            && medium.remove(&part_name(MAILBOX, self.hello.rank, self.first)).is_ok()
        {
            self.first += 1;
        }
    }
}

/// Makes a part of a mailbox, with a header and no records.
fn make_part<M: Medium>(medium: &M, hello: &Hello, part: u32) -> io::Result<M::File> {
    // Under a draft name first, so that nobody reads an incomplete header.
    let draft = format!("{}.draft", rank_name(hello.rank));
    let file = medium.create(&draft)?;
    medium.write_at(&file, 0, &hello.encode())?;
    medium.sync(&file)?;
    medium.rename(&draft, &part_name(MAILBOX, hello.rank, part))?;
    Ok(file)
}

/// The mailbox of another rank.
pub(crate) struct Inbox {
    rank: u32,
    count: u32,
    /// The nonce of the mailbox that is being read.
    nonce: Option<Nonce>,
    /// Whether its owner has seen this rank: then both belong to the same run.
    pub(crate) has_met: bool,
    part: u32,
    /// Whether the current part has been seen.
    has_begun: bool,
    /// The offset of the next record.
    at: u64,
    /// The last part that its owner knows to be reached.
    told: u32,
}

/// The result of reading a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The known mailbox, or none.
    Same,
    /// A new mailbox, while this rank has not met its owner.
    New(Nonce),
    /// The mailbox of another process, in place of the one whose owner this rank has met.
    Replaced,
}

impl Inbox {
    /// The mailbox of `rank` out of `count`, not found yet.
    pub(crate) fn new(rank: u32, count: u32) -> Self {
        let (nonce, has_met, has_begun) = (None, false, false);
        Self { rank, count, nonce, has_met, part: 0, has_begun, at: HELLO_BYTES as u64, told: 0 }
    }

    /// The same, of a rank that belongs to the same run, by what rank 0 says.
    pub(crate) fn met(rank: u32, count: u32, nonce: Nonce) -> Self {
        Self { nonce: Some(nonce), has_met: true, ..Self::new(rank, count) }
    }

    /// The nonce of the mailbox that is being read.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        self.nonce
    }

    /// Passes all new and complete records to `take`, in order.
    ///
    /// Fails if the next record is not valid. On a shared file system this can be temporary,
    /// because the length of a file may be visible before its bytes. So the caller retries, and
    /// gives up after its timeout.
    pub(crate) fn read<M: Medium>(
        &mut self,
        medium: &M,
        mut take: impl FnMut(&mut Self, &Record<'_>),
    ) -> io::Result<Look> {
        let look = self.read_present(medium, &mut take)?;
        if look == Look::Replaced {
            self.read_former(medium, &mut take)?;
        }
        Ok(look)
    }

    /// Like [`read`](Self::read), for the present mailbox only.
    fn read_present<M: Medium>(
        &mut self,
        medium: &M,
        take: &mut impl FnMut(&mut Self, &Record<'_>),
    ) -> io::Result<Look> {
        let mut look = Look::Same;
        loop {
            let name = part_name(MAILBOX, self.rank, self.part);
            let Some(file) = medium.open(&name)? else {
                // It does not exist yet, its name is not visible yet, or another process has
                // replaced it.
                return match (self.nonce.is_none(), self.has_successor(medium)?) {
                    (true, _) => Ok(look),
                    (false, true) => Ok(Look::Replaced),
                    (false, false) => Err(invalid(format!("{name} is missing"))),
                };
            };
            match self.begin(medium, &file, &name)? {
                Look::Same => {}
                Look::New(nonce) => look = Look::New(nonce),
                Look::Replaced => return Ok(Look::Replaced),
            }
            if !self.read_part(medium, &file, take)? {
                return Ok(look);
            }
            self.go_on();
        }
    }

    /// Reads the last records of a process that this rank had met, and that another process has
    /// replaced.
    fn read_former<M: Medium>(&mut self, medium: &M, take: &mut impl FnMut(&mut Self, &Record<'_>)) -> io::Result<()> {
        medium.refresh()?;
        while let Some(file) = medium.open(&part_name(FORMER, self.rank, self.part))? {
            if Some(read_hello(medium, &file)?.nonce) != self.nonce || !self.read_part(medium, &file, take)? {
                break;
            }
            self.go_on();
        }
        Ok(())
    }

    /// Continues with the next part of the mailbox.
    fn go_on(&mut self) {
        (self.part, self.has_begun, self.at) = (self.part + 1, false, HELLO_BYTES as u64);
    }

    /// Whether the first part belongs to a later mailbox than the one whose owner this rank has
    /// met.
    fn has_successor<M: Medium>(&self, medium: &M) -> io::Result<bool> {
        let Some(file) = medium.open(&part_name(MAILBOX, self.rank, 0))?.filter(|_| self.has_met) else {
            return Ok(false);
        };
        match read_hello(medium, &file) {
            Ok(hello) => Ok(Some(hello.nonce) != self.nonce),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether another process has taken the place of the owner, before this rank has begun to read
    /// this part.
    fn is_replaced<M: Medium>(&self, medium: &M) -> io::Result<bool> {
        if self.part > 0 {
            return self.has_successor(medium);
        }
        // The file that is there may be older or newer, but a newer process keeps the one before.
        let Some(former) = medium.open(&part_name(FORMER, self.rank, 0))? else { return Ok(false) };
        Ok(read_hello(medium, &former).is_ok_and(|hello| Some(hello.nonce) == self.nonce))
    }

    /// Compares the header of a file with what is known about the mailbox.
    fn begin<M: Medium>(&mut self, medium: &M, file: &M::File, name: &str) -> io::Result<Look> {
        let hello = read_hello(medium, file)?;
        if (hello.rank, hello.count) != (self.rank, self.count) {
            let Self { rank, count, .. } = self;
            let (other_rank, other_count) = (hello.rank, hello.count);
            let problem = format!(
                "the mailbox of rank {rank} of {count} is that of rank {other_rank} of {other_count}; give all ranks the \
                 same number of ranks, and each run its own directory"
            );
            return Err(invalid(problem));
        }
        match (self.nonce == Some(hello.nonce), self.has_met) {
            (true, _) => {
                self.has_begun = true;
                Ok(Look::Same)
            }
            // This may be a file of an earlier run, while the new one is not visible yet.
            (false, true) if !self.has_begun && !self.is_replaced(medium)? => {
                Err(invalid(format!("{name} is of an earlier run")))
            }
            (false, true) => Ok(Look::Replaced),
            (false, false) => {
                *self = Self { nonce: Some(hello.nonce), has_begun: true, ..Self::new(self.rank, self.count) };
                Ok(Look::New(hello.nonce))
            }
        }
    }

    /// Passes the new records of a part to `take`. Returns whether the mailbox continues in the
    /// next part.
    fn read_part<M: Medium>(
        &mut self,
        medium: &M,
        file: &M::File,
        take: &mut impl FnMut(&mut Self, &Record<'_>),
    ) -> io::Result<bool> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = medium.read_at(file, self.at, &mut buffer)?;
            let mut rest = &buffer[..count];
            let mut wanted = RECORD_HEAD_BYTES;
            while rest.len() >= RECORD_HEAD_BYTES {
                let head = RecordHead::decode(rest).map_err(invalid)?;
                wanted = RECORD_HEAD_BYTES + head.body_bytes() as usize;
                let Some(body) = rest.get(RECORD_HEAD_BYTES..wanted) else { break };
                let record = head.decode_body(body).map_err(invalid)?;
                self.at += wanted as u64;
                // The next part may belong to an earlier run, so it is read only after both ranks
                // have met.
                if record == Record::Next && self.has_met {
                    return Ok(true);
                }
                take(self, &record);
                rest = &rest[wanted..];
            }
            if count < buffer.len() {
                // Everything in the file has been read.
                return Ok(false);
            }
            buffer.resize(wanted.max(READ_BYTES), 0);
        }
    }

    /// A record that tells its owner which part is being read, at most `limit`, if the owner does
    /// not know.
    pub(crate) fn due(&mut self, limit: u32) -> Option<Record<'static>> {
        let part = self.part.min(limit);
        let is_due = self.has_begun && self.told < part;
        self.told = if is_due { part } else { self.told };
        is_due.then_some(Record::Read { rank: self.rank, part })
    }
}

/// Reads the header of a part.
fn read_hello<M: Medium>(medium: &M, file: &M::File) -> io::Result<Hello> {
    let mut bytes = [0; HELLO_BYTES];
    let count = medium.read_at(file, 0, &mut bytes)?;
    Hello::decode(&bytes[..count]).map_err(invalid)
}

fn invalid(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
