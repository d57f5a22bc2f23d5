//! Mailboxes: the files through which the ranks of a run communicate. Each rank appends to its own.
//! Messages go up a tree of ranks, each of which repeats what those below it say; all read the
//! mailbox of rank 0, at the top.
//!
//! A mailbox starts with a [`Hello`], and [`Record`]s follow. When it has become long, it continues
//! in another file, its next part, which starts with the same [`Hello`]. A reader may read while a
//! record is being written, and on a shared file system the length of a file may be visible before
//! its bytes. So a record has two checksums: one of its head, so that its length can be trusted,
//! and one of its body.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use crate::{
    RANKS_MAX,
    cursor::{Cursor, check_start},
    error::{Error, Result, Structure},
    hash::checksum,
};

/// The length of a [`Hello`].
pub const HELLO_BYTES: usize = size_of::<RawHello>();
/// The length of the head of a record.
pub const RECORD_HEAD_BYTES: usize = size_of::<Head>();
/// The longest body of a record.
pub const RECORD_BYTES_MAX: u32 = 1 << 30;
/// The longest topic.
pub const TOPIC_BYTES_MAX: usize = 1024;

const MAGIC: [u8; 8] = *b"OUTCMAIL";
/// Its format number.
const FORMAT: u32 = 3;

const SEEN: u8 = 1;
const GATHER: u8 = 2;
const MESSAGE: u8 = 3;
const READ: u8 = 4;
const NEXT: u8 = 5;
const GONE: u8 = 6;

/// A random number, chosen each time a mailbox is made.
pub type Nonce = [u8; 16];

/// The header of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The rank that owns it.
    pub rank: u32,
    /// The number of ranks of the run.
    pub count: u32,
    /// Chosen when the mailbox was made.
    pub nonce: Nonce,
}

/// A record in the mailbox of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// The rank has seen the mailbox of another rank with this nonce, so both belong to the same
    /// run.
    Seen {
        /// The other rank.
        rank: u32,
        /// The nonce of the other rank's [`Hello`].
        nonce: Nonce,
    },
    /// A contribution to an exchange between all ranks.
    Gather {
        /// The rank that contributed. Others repeat it.
        from: u32,
        /// The topic of the exchange.
        topic: &'a str,
        /// The number of the exchange, counted from 0 for each topic.
        number: u64,
        /// The contribution.
        contribution: &'a [u8],
    },
    /// A message to all ranks, which the users of `Ranks` interpret.
    Message {
        /// The first of the ranks that sent it.
        first: u32,
        /// The last of them: all between have sent the same.
        last: u32,
        /// The message.
        message: &'a [u8],
    },
    /// The rank reads this part of the mailbox of another rank, and no earlier part any more.
    Read {
        /// The other rank.
        rank: u32,
        /// The part, counted from 0.
        part: u32,
    },
    /// The mailbox continues in its next part.
    Next,
    /// Another rank is gone.
    Gone {
        /// The other rank.
        rank: u32,
    },
}

/// The head of a record, with the length of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHead {
    kind: u8,
    body_bytes: u32,
    body_check: u128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 8],
    format: U32,
    rank: U32,
    count: U32,
    nonce: Nonce,
    check: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    zero: [u8; 3],
    body_bytes: U32,
    body_check: U128,
    check: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSeen {
    rank: U32,
    nonce: Nonce,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRead {
    rank: U32,
    part: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawGather {
    from: U32,
    number: U64,
    topic_bytes: U32,
}

impl Hello {
    /// Encodes the header of a mailbox.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let Self { rank, count, nonce } = *self;
        let mut raw = RawHello {
            magic: MAGIC,
            format: FORMAT.into(),
            rank: rank.into(),
            count: count.into(),
            nonce,
            check: 0.into(),
        };
        raw.check = checksum(&raw.as_bytes()[..HELLO_BYTES - 16]).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes the header of a mailbox. Ignores what follows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Mailbox;
        let found = check_start(structure, MAGIC, FORMAT, bytes)?;
        if found != FORMAT {
            // A mailbox of an earlier run. It is of no use after that run.
            return Err(Error::Format { structure, found, newest: FORMAT });
        }
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &RawHello = cursor.value()?;
        let (written, computed) = (raw.check.get(), checksum(&raw.as_bytes()[..HELLO_BYTES - 16]));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        let (rank, count) = (raw.rank.get(), raw.count.get());
        if rank >= count || count > RANKS_MAX {
            return Err(cursor.wrong_at(12, format!("rank {rank} of {count} cannot be")));
        }
        Ok(Self { rank, count, nonce: raw.nonce })
    }
}

impl RecordHead {
    /// The length of the body that follows.
    pub fn body_bytes(&self) -> u32 {
        self.body_bytes
    }

    /// Decodes the head of a record. Ignores what follows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::MailboxRecord;
        let mut cursor = Cursor::new(structure, bytes);
        let head: &Head = cursor.value()?;
        let (written, computed) = (head.check.get(), checksum(&head.as_bytes()[..RECORD_HEAD_BYTES - 16]));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        if !(SEEN..=GONE).contains(&head.kind) {
            return Err(cursor.wrong_at(0, format!("kind {} is not known", head.kind)));
        }
        if head.zero != [0; 3] {
            return Err(cursor.wrong_at(1, "an unused byte is not zero"));
        }
        let body_bytes = head.body_bytes.get();
        if body_bytes > RECORD_BYTES_MAX {
            return Err(cursor.wrong_at(4, format!("{body_bytes} bytes; at most {RECORD_BYTES_MAX} are possible")));
        }
        Ok(Self { kind: head.kind, body_bytes, body_check: head.body_check.get() })
    }

    /// Decodes the body, which must have exactly [`body_bytes`](Self::body_bytes) bytes.
    pub fn decode_body<'a>(&self, body: &'a [u8]) -> Result<Record<'a>> {
        let structure = Structure::MailboxRecord;
        if body.len() as u64 != u64::from(self.body_bytes) {
            let (needed, available) = (self.body_bytes.into(), body.len() as u64);
            return Err(Error::Short { structure, at: RECORD_HEAD_BYTES as u64, needed, available });
        }
        let computed = checksum(body);
        if computed != self.body_check {
            return Err(Error::Changed { structure, written: self.body_check, computed });
        }
        let mut cursor = Cursor::new(structure, body);
        match self.kind {
            SEEN => {
                let raw: &RawSeen = cursor.value()?;
                cursor.end()?;
                Ok(Record::Seen { rank: raw.rank.get(), nonce: raw.nonce })
            }
            GATHER => {
                let raw: &RawGather = cursor.value()?;
                let topic_bytes = raw.topic_bytes.get();
                if topic_bytes as usize > TOPIC_BYTES_MAX {
                    let problem = format!("a topic of {topic_bytes} bytes; at most {TOPIC_BYTES_MAX} are possible");
                    return Err(cursor.wrong_at(12, problem));
                }
                let topic = cursor.text(topic_bytes.into())?;
                let contribution = cursor.slice(body.len() as u64 - cursor.at())?;
                Ok(Record::Gather { from: raw.from.get(), topic, number: raw.number.get(), contribution })
            }
            READ => {
                let raw: &RawRead = cursor.value()?;
                cursor.end()?;
                Ok(Record::Read { rank: raw.rank.get(), part: raw.part.get() })
            }
            NEXT => {
                cursor.end()?;
                Ok(Record::Next)
            }
            GONE => {
                let rank: &U32 = cursor.value()?;
                cursor.end()?;
                Ok(Record::Gone { rank: rank.get() })
            }
            _ => {
                let [first, last]: &[U32; 2] = cursor.value()?;
                let (first, last) = (first.get(), last.get());
                if first > last {
                    return Err(cursor.wrong_at(4, format!("ranks {first} to {last} cannot be")));
                }
                Ok(Record::Message { first, last, message: cursor.slice(body.len() as u64 - cursor.at())? })
            }
        }
    }
}

impl<'a> Record<'a> {
    /// Encodes a record: a head and a body.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; RECORD_HEAD_BYTES];
        let kind = match self {
            Self::Seen { rank, nonce } => {
                bytes.extend_from_slice(RawSeen { rank: (*rank).into(), nonce: *nonce }.as_bytes());
                SEEN
            }
            Self::Gather { from, topic, number, contribution } => {
                if topic.len() > TOPIC_BYTES_MAX {
                    let problem = format!("a topic of {} bytes; at most {TOPIC_BYTES_MAX} are possible", topic.len());
                    return Err(Error::unfit(Structure::MailboxRecord, problem));
                }
                let (from, topic_bytes) = ((*from).into(), (topic.len() as u32).into());
                let raw = RawGather { from, number: (*number).into(), topic_bytes };
                bytes.extend_from_slice(raw.as_bytes());
                bytes.extend_from_slice(topic.as_bytes());
                bytes.extend_from_slice(contribution);
                GATHER
            }
            Self::Message { first, last, message } => {
                bytes.extend_from_slice([U32::from(*first), U32::from(*last)].as_bytes());
                bytes.extend_from_slice(message);
                MESSAGE
            }
            Self::Read { rank, part } => {
                bytes.extend_from_slice(RawRead { rank: (*rank).into(), part: (*part).into() }.as_bytes());
                READ
            }
            Self::Next => NEXT,
            Self::Gone { rank } => {
                bytes.extend_from_slice(U32::from(*rank).as_bytes());
                GONE
            }
        };
        let (head, body) = bytes.split_at_mut(RECORD_HEAD_BYTES);
        let Some(body_bytes) = u32::try_from(body.len()).ok().filter(|bytes| *bytes <= RECORD_BYTES_MAX) else {
            let problem = format!("{} bytes; at most {RECORD_BYTES_MAX} are possible", body.len());
            return Err(Error::unfit(Structure::MailboxRecord, problem));
        };
        let body_check = checksum(body).into();
        let mut raw = Head { kind, zero: [0; 3], body_bytes: body_bytes.into(), body_check, check: 0.into() };
        raw.check = checksum(&raw.as_bytes()[..RECORD_HEAD_BYTES - 16]).into();
        head.copy_from_slice(raw.as_bytes());
        Ok(bytes)
    }

    /// Decodes the record at the start of `bytes`, and returns its length. [`Error::Short`] if it
    /// is not complete.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, usize)> {
        let head = RecordHead::decode(bytes)?;
        let end = RECORD_HEAD_BYTES + head.body_bytes as usize;
        let body = bytes.get(RECORD_HEAD_BYTES..end).unwrap_or(&bytes[RECORD_HEAD_BYTES..]);
        Ok((head.decode_body(body)?, end))
    }
}
