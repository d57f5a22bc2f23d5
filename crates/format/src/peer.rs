//! What ranks say to each other over TCP, to keep shards on each other's nodes.
//!
//! A connection begins with a greeting: both sides prove that they know the secret of the run,
//! without saying it. After that, each frame is its length (4 bytes) and a request or a reply.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    cursor::Cursor,
    error::{Result, Structure},
    names::{MARK_NAME, check_session_name, parse_pack_name, parse_version_name},
    shard::{SHARD_HEADER_BYTES, SHARDS_MAX, ShardHeader, parse_shard_name},
};

/// The longest request or reply.
pub const PEER_FRAME_BYTES_MAX: u32 = 2 << 20;
/// The most bytes of a shard in one request or reply.
pub const PEER_READ_BYTES_MAX: u32 = 1 << 20;
/// How many shards a reply lists at most.
pub const PEER_LISTED_MAX: usize = 4096;
/// The length of what a client says first.
pub const PEER_HELLO_BYTES: usize = size_of::<RawHello>();

const MAGIC: [u8; 8] = *b"OUTCPEER";
/// Both sides of a connection need the same.
const PROTOCOL: u16 = 1;
const REASON_BYTES_MAX: usize = 1024;

/// The secret of a run.
pub type PeerSecret = [u8; 32];

/// A random number, by which a proof is not that of another connection.
pub type PeerNonce = [u8; 32];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 8],
    protocol: U16,
    from: U32,
    to: U32,
    nonce: PeerNonce,
}

/// What a client says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerHello {
    /// The rank that it is.
    pub from: u32,
    /// The rank that it wants.
    pub to: u32,
    /// A number of its choice.
    pub nonce: PeerNonce,
}

/// Who proves that it knows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSide {
    /// Whoever was connected to.
    Server,
    /// Whoever has connected.
    Client,
}

impl PeerHello {
    /// Encodes it.
    pub fn encode(&self) -> [u8; PEER_HELLO_BYTES] {
        let raw = RawHello {
            magic: MAGIC,
            protocol: PROTOCOL.into(),
            from: self.from.into(),
            to: self.to.into(),
            nonce: self.nonce,
        };
        let mut bytes = [0; PEER_HELLO_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(Structure::PeerMessage, bytes);
        let raw: &RawHello = cursor.value()?;
        cursor.end()?;
        if raw.magic != MAGIC || raw.protocol.get() != PROTOCOL {
            return Err(cursor.wrong_at(0, "it does not begin as a connection of this Outcrop does"));
        }
        Ok(Self { from: raw.from.get(), to: raw.to.get(), nonce: raw.nonce })
    }

    /// The proof that one side knows the secret of the run. Compare it with `==` of this type only,
    /// which takes the same time for all values.
    pub fn proof(&self, secret: &PeerSecret, nonce: &PeerNonce, side: PeerSide) -> PeerProof {
        let mut hasher = blake3::Hasher::new_keyed(secret);
        hasher.update(&self.encode()).update(nonce).update(&[u8::from(side == PeerSide::Client)]);
        PeerProof(hasher.finalize())
    }
}

/// The proof that somebody knows the secret of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerProof(blake3::Hash);

impl PeerProof {
    /// Its bytes.
    pub fn bytes(&self) -> [u8; 32] {
        *self.0.as_bytes()
    }
}

impl From<[u8; 32]> for PeerProof {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes.into())
    }
}

/// The shards of one rank in one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerPlace {
    /// The session.
    pub session: String,
    /// The rank.
    pub rank: u32,
}

/// A request to the rank that keeps shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRequest<'a> {
    /// Which shards are there, by name, from the first one after this name.
    List {
        /// Of whom.
        place: PeerPlace,
        /// Empty for the first ones.
        after: String,
    },
    /// Begin a shard. No reply; what fails is said at the end.
    Begin {
        /// Of whom.
        place: PeerPlace,
        /// The name of the shard.
        name: String,
        /// Its length, for which room is kept.
        bytes: u64,
    },
    /// The next bytes of the shard that was begun. No reply.
    Append(&'a [u8]),
    /// The shard is whole, with this header. Make it durable, and give it its name.
    Commit(ShardHeader),
    /// Read a part of a shard.
    Read {
        /// Of whom.
        place: PeerPlace,
        /// The name of the shard.
        name: String,
        /// From which byte on.
        at: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// Remove a shard. It is no error if there is none.
    Remove {
        /// Of whom.
        place: PeerPlace,
        /// The name of the shard.
        name: String,
    },
    /// Make all names durable.
    Sync {
        /// Of whom.
        place: PeerPlace,
    },
}

/// A shard that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerShard {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its header; `None` if that is damaged.
    pub header: Option<ShardHeader>,
}

/// Why a request failed, as far as the other side must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerFailure {
    /// There is no such shard.
    Missing,
    /// The medium is full.
    Full,
    /// Anything else.
    Other,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerReply<'a> {
    /// It is done, and durable where that was asked for.
    Done,
    /// It failed.
    Failed(PeerFailure, String),
    /// The bytes that were asked for.
    Bytes(&'a [u8]),
    /// Shards, in ascending order of their names, and whether there are more.
    Listed(Vec<PeerShard>, bool),
}

const LIST: u8 = 1;
const BEGIN: u8 = 2;
const APPEND: u8 = 3;
const COMMIT: u8 = 4;
const READ: u8 = 5;
const REMOVE: u8 = 6;
const SYNC: u8 = 7;
const DONE: u8 = 101;
const FAILED: u8 = 102;
const BYTES: u8 = 103;
const LISTED: u8 = 104;

impl PeerRequest<'_> {
    /// What an [`Append`](Self::Append) begins with; its bytes follow.
    pub const APPEND: u8 = APPEND;

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::List { place, after } => {
                push_place(&mut bytes, LIST, place);
                push_text(&mut bytes, after);
            }
            Self::Begin { place, name, bytes: length } => {
                push_place(&mut bytes, BEGIN, place);
                push_text(&mut bytes, name);
                bytes.extend_from_slice(&length.to_le_bytes());
            }
            Self::Append(part) => {
                bytes.push(APPEND);
                bytes.extend_from_slice(part);
            }
            Self::Commit(header) => {
                bytes.push(COMMIT);
                bytes.extend_from_slice(&header.encode());
            }
            Self::Read { place, name, at, bytes: length } => {
                push_place(&mut bytes, READ, place);
                push_text(&mut bytes, name);
                bytes.extend_from_slice(&at.to_le_bytes());
                bytes.extend_from_slice(&length.to_le_bytes());
            }
            Self::Remove { place, name } => {
                push_place(&mut bytes, REMOVE, place);
                push_text(&mut bytes, name);
            }
            Self::Sync { place } => push_place(&mut bytes, SYNC, place),
        }
        bytes
    }
}

impl<'a> PeerRequest<'a> {
    /// Decodes a request. All names in it lead to shards and nowhere else.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(Structure::PeerMessage, bytes);
        let request = match *cursor.value::<u8>()? {
            LIST => Self::List { place: take_place(&mut cursor)?, after: take_after(&mut cursor)? },
            BEGIN => Self::Begin {
                place: take_place(&mut cursor)?,
                name: take_shard(&mut cursor)?,
                bytes: cursor.value::<U64>()?.get(),
            },
            APPEND => return Ok(Self::Append(&bytes[1..])),
            COMMIT => Self::Commit(take_header(&mut cursor)?),
            READ => Self::Read {
                place: take_place(&mut cursor)?,
                name: take_shard(&mut cursor)?,
                at: cursor.value::<U64>()?.get(),
                bytes: cursor.value::<U32>()?.get(),
            },
            REMOVE => Self::Remove { place: take_place(&mut cursor)?, name: take_shard(&mut cursor)? },
            SYNC => Self::Sync { place: take_place(&mut cursor)? },
            kind => return Err(cursor.wrong_at(0, format!("a request of kind {kind}, which is not known"))),
        };
        if let Self::Read { bytes: PEER_READ_BYTES_MAX.., .. } = request {
            return Err(cursor.wrong("it asks for too many bytes at once"));
        }
        cursor.end()?;
        Ok(request)
    }
}

impl PeerReply<'_> {
    /// What [`Bytes`](Self::Bytes) begin with.
    pub const BYTES: u8 = BYTES;

    /// Encodes it. A long reason is cut off.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => vec![DONE],
            Self::Failed(failure, reason) => {
                let end = (0..=reason.len().min(REASON_BYTES_MAX)).rev().find(|at| reason.is_char_boundary(*at));
                let mut bytes = vec![FAILED, *failure as u8];
                push_text(&mut bytes, &reason[..end.unwrap_or(0)]);
                bytes
            }
            Self::Bytes(part) => [&[BYTES], *part].concat(),
            Self::Listed(shards, has_more) => {
                let mut bytes = vec![LISTED, (*has_more).into()];
                bytes.extend_from_slice(&(shards.len() as u32).to_le_bytes());
                for PeerShard { name, bytes: length, header } in shards {
                    push_text(&mut bytes, name);
                    bytes.extend_from_slice(&length.to_le_bytes());
                    bytes.push(header.is_some().into());
                    header.iter().for_each(|header| bytes.extend_from_slice(&header.encode()));
                }
                bytes
            }
        }
    }
}

impl<'a> PeerReply<'a> {
    /// Decodes a reply.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(Structure::PeerMessage, bytes);
        let reply = match *cursor.value::<u8>()? {
            DONE => Self::Done,
            FAILED => {
                let failure = match *cursor.value::<u8>()? {
                    0 => PeerFailure::Missing,
                    1 => PeerFailure::Full,
                    2 => PeerFailure::Other,
                    kind => return Err(cursor.wrong_at(1, format!("a failure of kind {kind}, which is not known"))),
                };
                Self::Failed(failure, take_text(&mut cursor, REASON_BYTES_MAX)?.to_owned())
            }
            BYTES => return Ok(Self::Bytes(&bytes[1..])),
            LISTED => take_listed(&mut cursor)?,
            kind => return Err(cursor.wrong_at(0, format!("a reply of kind {kind}, which is not known"))),
        };
        cursor.end()?;
        Ok(reply)
    }
}

fn take_listed<'a>(cursor: &mut Cursor<'_>) -> Result<PeerReply<'a>> {
    let has_more = take_flag(cursor)?;
    let count = cursor.value::<U32>()?.get();
    if count as usize > PEER_LISTED_MAX {
        return Err(cursor.wrong(format!("{count} shards; at most {PEER_LISTED_MAX} are possible")));
    }
    let mut shards: Vec<PeerShard> = Vec::new();
    for _ in 0..count {
        let (name, bytes) = (take_shard(cursor)?, cursor.value::<U64>()?.get());
        let header = take_flag(cursor)?.then(|| take_header(cursor)).transpose()?;
        if shards.last().is_some_and(|last| last.name >= name) {
            return Err(cursor.wrong("shards are not in ascending order"));
        }
        shards.push(PeerShard { name, bytes, header });
    }
    Ok(PeerReply::Listed(shards, has_more))
}

fn take_flag(cursor: &mut Cursor<'_>) -> Result<bool> {
    match *cursor.value::<u8>()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(cursor.wrong("neither yes nor no")),
    }
}

fn push_place(bytes: &mut Vec<u8>, kind: u8, place: &PeerPlace) {
    bytes.push(kind);
    push_text(bytes, &place.session);
    bytes.extend_from_slice(&place.rank.to_le_bytes());
}

fn take_place(cursor: &mut Cursor<'_>) -> Result<PeerPlace> {
    let session = take_text(cursor, crate::SESSION_NAME_BYTES_MAX)?.to_owned();
    check_session_name(&session).map_err(|_| cursor.wrong("no session has such a name"))?;
    Ok(PeerPlace { session, rank: cursor.value::<U32>()?.get() })
}

fn take_header(cursor: &mut Cursor<'_>) -> Result<ShardHeader> {
    ShardHeader::decode(cursor.slice(SHARD_HEADER_BYTES as u64)?)
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn take_text<'a>(cursor: &mut Cursor<'a>, bytes_max: usize) -> Result<&'a str> {
    let count = cursor.value::<U16>()?.get();
    if usize::from(count) > bytes_max {
        return Err(cursor.wrong(format!("a text of {count} bytes; at most {bytes_max} are possible")));
    }
    cursor.text(count.into())
}

/// The name of a shard.
fn take_shard(cursor: &mut Cursor<'_>) -> Result<String> {
    let name = take_text(cursor, 64)?;
    match parse_shard_name(name) {
        Some((_, 0..SHARDS_MAX)) => Ok(name.to_owned()),
        _ => Err(cursor.wrong("no shard has such a name")),
    }
}

/// The name of a shard, or nothing.
fn take_after(cursor: &mut Cursor<'_>) -> Result<String> {
    let name = take_text(cursor, 64)?;
    match name.is_empty() || parse_shard_name(name).is_some() {
        true => Ok(name.to_owned()),
        false => Err(cursor.wrong("no shard has such a name")),
    }
}

/// Whether files of this name are kept as whole copies, because they are small and replaced by
/// others. Packs are not: they are large, and never change.
pub fn is_copied(name: &str) -> bool {
    debug_assert!(name == MARK_NAME || parse_version_name(name).is_some() || parse_pack_name(name).is_some());
    parse_pack_name(name).is_none()
}
