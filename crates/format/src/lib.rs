//! The file formats of stores: packs, manifests, file names, compressed blocks, and messages
//! between processes.
//!
//! Bytes in, bytes out: no files, no threads, no clock. A decoder accepts any bytes. It returns a
//! value or an error, and never allocates more than a small multiple of its input. `docs/format.md`
//! describes every byte.
//!
//! ```
//! use outcrop_format::{Blocks, Coding, Extent, HashKind, Index, IndexRegion, PackHeader, PackId, PackOrigin, RunId, PAGE_BYTES};
//!
//! // A pack with one block of 256 bytes, in memory that is large enough for all of it.
//! let id = PackId { rank: 0, number: 7 };
//! let origin = PackOrigin { run: RunId(1), id, version: 42, hash_kind: HashKind::Xxh3 };
//! let mut file = vec![0; 3 * PAGE_BYTES];
//! file[PAGE_BYTES..PAGE_BYTES + 256].fill(9);
//! let mut region = IndexRegion::new("field", Blocks::new(256, 256)?)?;
//! region.push(Extent { first_block: 0, count: 1, pack: id, at: PAGE_BYTES as u64, coding: Coding::RAW }, &[[0; 16]], &[])?;
//! let sealed = PackHeader::seal(origin, 256, &Index::new(vec![region])?, &mut file)?;
//!
//! let header = PackHeader::decode(&file)?;
//! assert_eq!(header, sealed);
//! let range = header.index_range();
//! let index = header.decode_index(&file[range.start as usize..range.end as usize])?;
//! assert_eq!(index.region("field").unwrap().find(0).unwrap().at, 4096);
//! # Ok::<(), outcrop_format::Error>(())
//! ```

#![forbid(unsafe_code)]

mod blocks;
mod coding;
mod cursor;
mod error;
mod hash;
mod index;
mod mailbox;
mod manifest;
mod message;
mod names;
mod node;
mod pack;
mod peer;
mod pool;
mod segment;
mod shard;

pub use blocks::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Blocks, REGION_BYTES_MAX};
pub use coding::{Coding, CodingKind, Decoder, Encoder, Stored, Trial, pays};
pub use error::{Error, Result, Structure};
pub use hash::{Hash, HashKind, RunId};
pub use index::{Extent, Index, IndexRegion, IndexSize, Place};
pub use mailbox::{
    HELLO_BYTES, Hello, Nonce, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, Record, RecordHead, TOPIC_BYTES_MAX,
};
pub use manifest::{EXCLUDED_MAX, MANIFEST_BYTES_MAX, Manifest, ManifestPack, ManifestRegion, PACKS_MAX, RANKS_MAX};
pub use message::{
    Answer, Candidates, Card, Due, Fared, Former, Held, HeldLayer, Holdings, Keeps, MARK_BYTES_MAX, MARK_RUNS_MAX,
    MESSAGE_FORMAT, Mark, News, SharedBlocks, SharedLocation, SharedLocations, SharedPack, SharedPacks, Sharing,
    TEXT_BYTES_MAX, Tidings, Verdict,
};
pub use names::{
    ELEMENT_NAME_BYTES_MAX, LOCK_NAME, MARK_NAME, REGION_NAME_BYTES_MAX, SESSION_NAME_BYTES_MAX, check_region_name,
    check_session_name, draft_name, pack_name, parse_draft_name, parse_pack_name, parse_rank_name, parse_version_name,
    rank_name, version_name,
};
pub use node::{
    GRANT_BYTES_MAX, JOURNAL_HEADER_BYTES, JOURNAL_PIECES_MAX, JOURNAL_RECORD_BYTES_MAX, JournalFill, JournalHeader,
    JournalKept, JournalPart, JournalRecord, NODE_FILE_BYTES_MAX, NODE_MESSAGE_BYTES_MAX, NODE_PATH_BYTES_MAX,
    NODE_PROTOCOL, NODE_RANGES_MAX, NODE_TEXT_BYTES_MAX, NodeChecksum, NodeFailure, NodeFill, NodePart, NodeReply,
    NodeReplyKind, NodeRequest, PIECE_BYTES_MAX, node_checksum, node_pieces,
};
pub use pack::{FILE_BYTES_MAX, INDEX_BYTES_MAX, PAGE_BYTES, PackHeader, PackId, PackOrigin};
pub use peer::{
    PEER_FRAME_BYTES_MAX, PEER_HELLO_BYTES, PEER_LISTED_MAX, PEER_READ_BYTES_MAX, PeerFailure, PeerHello, PeerNonce,
    PeerPlace, PeerProof, PeerReply, PeerRequest, PeerSecret, PeerShard, PeerSide, is_copied,
};
pub use pool::{
    POOL_CONTENTS_BYTES_MAX, POOL_ENTRIES, POOL_FIRST_PAGE, POOL_HEADER_BYTES, POOL_PAGES_MAX, POOL_ROOT_BYTES,
    POOL_SLOTS, POOL_STATE_BYTES_MAX, PoolContents, PoolEntry, PoolHeader, PoolKind, PoolRoot, PoolStructure,
    pool_check,
};
pub use segment::{
    CHUNK_BYTES_MAX, CHUNK_UNIT_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_OWNERS_MAX, SegmentHeader, encode_segment_number,
};
pub use shard::{
    SHARD_CHECK_BYTES, SHARD_CHUNK_BYTES, SHARD_HEADER_BYTES, SHARDS_DIR, SHARDS_MAX, ShardHeader, ShardedFile,
    parse_shard_name, shard_name,
};

/// The format number of packs that are written. Newer ones are refused.
pub const PACK_FORMAT: u32 = 1;

/// The format number of manifests that are written. Older ones can be read, newer ones are refused.
pub const MANIFEST_FORMAT: u32 = 2;

/// The largest number of regions in one version of one rank.
pub const REGIONS_MAX: usize = 1 << 20;
