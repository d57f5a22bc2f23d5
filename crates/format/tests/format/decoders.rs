//! One function per decoder, for the fuzz targets and for the test that runs on their corpus. For
//! any bytes there must be a value or an error, and a value must be encoded as the same bytes
//! again. Each function returns whether there was a value.

use outcrop_format::{
    Answer, Candidates, Card, Coding, CodingKind, Decoder, Due, Encoder, Error, HELLO_BYTES, HashKind, Hello, Holdings,
    Index, IndexRegion, JournalHeader, JournalRecord, Keeps, Manifest, Mark, News, NodeReply, NodeRequest, PAGE_BYTES,
    POOL_HEADER_BYTES, POOL_ROOT_BYTES, PackHeader, PackId, PackOrigin, PeerHello, PeerReply, PeerRequest,
    PoolContents, PoolEntry, PoolHeader, PoolRoot, RECORD_HEAD_BYTES, Record, Result, RunId, SEGMENT_HEADER_BYTES,
    SHARD_HEADER_BYTES, SegmentHeader, ShardHeader, SharedBlocks, SharedLocations, SharedPacks, Sharing, Structure,
    Verdict, check_region_name, check_session_name, draft_name, pack_name, parse_draft_name, parse_pack_name,
    parse_rank_name, parse_shard_name, parse_version_name, rank_name, shard_name, version_name,
};
use twox_hash::{XxHash3_64, XxHash3_128};

/// A decoder, with its checks.
#[allow(dead_code, reason = "a fuzz target has one of them only")]
pub(crate) type Check = fn(&[u8]) -> bool;

/// The decoders, by the names of their fuzz targets.
#[allow(dead_code, reason = "a fuzz target has one of them only")]
pub(crate) const ALL: &[(&str, Check)] = &[
    ("header", header),
    ("index", index),
    ("manifest", manifest),
    ("names", names),
    ("block", block),
    ("mailbox", mailbox),
    ("record", record),
    ("segment", segment),
    ("news", news),
    ("holdings", holdings),
    ("mark", mark),
    ("answer", answer),
    ("candidates", candidates),
    ("verdict", verdict),
    ("sharing", sharing),
    ("shared_blocks", shared_blocks),
    ("shared_locations", shared_locations),
    ("shared_packs", shared_packs),
    ("due", due),
    ("card", card),
    ("keeps", keeps),
    ("shard", shard),
    ("peer_request", peer_request),
    ("peer_reply", peer_reply),
    ("pool", pool),
    ("node_request", node_request),
    ("node_reply", node_reply),
    ("journal", journal),
];

/// A pack's header: as given, and with its checksum corrected, to reach the code after the
/// checksum.
pub(crate) fn header(bytes: &[u8]) -> bool {
    check_header(bytes);
    let mut page = [0; PAGE_BYTES];
    let (checked, check) = page.split_at_mut(PAGE_BYTES - 16);
    let count = bytes.len().min(checked.len());
    checked[..count].copy_from_slice(&bytes[..count]);
    check.copy_from_slice(&XxHash3_128::oneshot(checked).to_le_bytes());
    check_header(&page)
}

fn check_header(bytes: &[u8]) -> bool {
    let Ok(header) = PackHeader::decode(bytes) else { return false };
    assert_eq!(header.encode(), bytes[..PAGE_BYTES]);
    assert!(header.payload_range().end <= header.index_range().start);
    assert!(header.index_range().end <= header.file_bytes());
    assert!(header.file_bytes().is_multiple_of(PAGE_BYTES as u64));
    true
}

/// A pool's header, root, contents and entries: as they are, and as if the checksums were right.
pub(crate) fn pool(bytes: &[u8]) -> bool {
    let with_check = |count: usize| {
        let mut copy = bytes.to_vec();
        copy.resize(count, 0);
        let check = XxHash3_128::oneshot(&copy[..count - 16]).to_le_bytes();
        copy[count - 16..].copy_from_slice(&check);
        copy
    };
    let mut is_value = false;
    for header in [bytes.to_vec(), with_check(POOL_HEADER_BYTES)] {
        if let Ok(decoded) = PoolHeader::decode(&header) {
            assert_eq!(decoded.encode(), header[..POOL_HEADER_BYTES]);
            is_value = true;
        }
    }
    for root in [bytes.to_vec(), with_check(POOL_ROOT_BYTES)] {
        if let Ok(decoded) = PoolRoot::decode(&root) {
            assert_eq!(decoded.encode(), root[..POOL_ROOT_BYTES]);
            assert!((1..=decoded.version).contains(&decoded.oldest));
            is_value = true;
        }
    }
    if let Ok(contents) = PoolContents::decode(bytes) {
        assert_eq!(contents.encode().unwrap(), bytes);
        for structure in &contents.structures {
            assert_eq!(contents.find(&structure.name), Some(structure));
            assert!(structure.blocks().checked_mul(structure.block_bytes).is_some());
        }
        is_value = true;
    }
    if let Ok(entries) = PoolEntry::decode_page(bytes) {
        assert_eq!(PoolEntry::encode_page(entries), bytes[..PAGE_BYTES]);
        is_value = true;
    }
    is_value
}

/// A pack's index, with a matching header.
pub(crate) fn index(bytes: &[u8]) -> bool {
    const PAYLOAD_BYTES: u64 = 1 << 20;
    let id = PackId { rank: 0, number: 7 };
    let origin = PackOrigin { run: RunId(1), id, version: 42, hash_kind: HashKind::Xxh3 };
    let header = PackHeader::new(origin, PAYLOAD_BYTES, PAGE_BYTES as u64 + PAYLOAD_BYTES, bytes).unwrap();
    let Ok(index) = header.decode_index(bytes) else { return false };
    assert_eq!(index.encode().unwrap(), bytes);
    assert_eq!(index.size().bytes(), bytes.len() as u64);
    for region in index.regions() {
        assert_eq!(index.region(region.name()), Some(region));
        check_places(region, &header);
    }
    check_zeros(&header, &index);
    true
}

fn check_places(region: &IndexRegion, header: &PackHeader) {
    assert_eq!(region.places().count(), region.block_count());
    let blocks = region.blocks();
    let mut free_from = 0;
    for (block, place) in region.places() {
        assert_eq!(region.find(block), Some(place));
        assert!((free_from..blocks.count()).contains(&block));
        assert!((1..=place.plain_bytes).contains(&place.stored.bytes));
        assert_eq!(place.plain_bytes, blocks.len(block));
        if place.pack == header.origin().id {
            assert!(header.payload_range().start <= place.at && place.range().end <= header.payload_range().end);
        }
        free_from = block + 1;
    }
    assert_eq!(region.find(blocks.count()), None);
    assert_eq!(region.find(u64::MAX), None);
}

fn check_zeros(header: &PackHeader, index: &Index) {
    let mut free_from = PAGE_BYTES as u64;
    for range in header.zero_ranges(index) {
        assert!(free_from <= range.start && range.start < range.end && range.end <= header.file_bytes());
        free_from = range.end;
    }
}

/// A manifest: as given, and with its checksum corrected.
pub(crate) fn manifest(bytes: &[u8]) -> bool {
    check_manifest(bytes);
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(&XxHash3_128::oneshot(bytes).to_le_bytes());
    check_manifest(&whole)
}

fn check_manifest(bytes: &[u8]) -> bool {
    let Ok(manifest) = Manifest::decode(bytes) else { return false };
    let written = manifest.encode().unwrap();
    match bytes[8] {
        // Nothing writes format 1 any more. Its content can be written in the newest format.
        1 => assert_eq!(Manifest::decode(&written).unwrap(), manifest),
        _ => assert_eq!(written, bytes),
    }
    assert!(!manifest.to_string().is_empty());
    assert!(manifest.rank < manifest.ranks);
    for region in &manifest.regions {
        assert_eq!(manifest.region(&region.name), Some(region));
        assert_eq!(region.shape.count() as u64 * u64::from(region.element_bytes), region.blocks.bytes());
        for range in &region.excluded {
            let block = range.start / u64::from(region.blocks.block_bytes());
            let bytes = region.blocks.range(block);
            assert_eq!(region.is_excluded(block), range.start <= bytes.start && bytes.end <= range.end);
        }
    }
    true
}

/// Names: no two names may mean the same.
pub(crate) fn names(bytes: &[u8]) -> bool {
    let name = &*String::from_utf8_lossy(bytes);
    let meanings = [
        parse_pack_name(name).map(pack_name),
        parse_version_name(name).map(version_name),
        parse_rank_name(name).map(rank_name),
        parse_draft_name(name).map(draft_name),
    ];
    assert!(meanings.iter().flatten().count() <= 1);
    assert!(meanings.iter().flatten().all(|written| written == name));
    if check_session_name(name).is_ok() {
        assert!(!name.starts_with('.') && !name.contains(['/', '\0']) && (1..=128).contains(&name.len()));
    }
    if check_region_name(name).is_ok() {
        assert!(!name.contains(['/', '\0']) && name.len() <= 240);
    }
    meanings.iter().any(Option::is_some)
}

/// A compressed block: the coding, the shuffle, the length of the block divided by 16, and the
/// stored bytes. Also the other direction: compresses the stored bytes as a block.
pub(crate) fn block(bytes: &[u8]) -> bool {
    let [kind, shuffle, length, stored @ ..] = bytes else { return false };
    let kind = [CodingKind::Raw, CodingKind::Lz4, CodingKind::Zstd][usize::from(*kind) % 3];
    let coding = Coding::new(kind, *shuffle);
    let mut decoder = Decoder::new();
    // The block is the middle. The bytes around it must stay unchanged.
    let length = usize::from(*length) * 16;
    let mut memory = vec![0xa5; length + 128];
    let check = XxHash3_64::oneshot(stored) as u32;
    let decoded = decoder.decode(coding, check, stored, &mut memory[64..64 + length]);
    assert!(memory[..64].iter().chain(&memory[64 + length..]).all(|&byte| byte == 0xa5));
    assert!(decoded.is_ok() || stored.len() != length);
    if !coding.is_raw() {
        let changed = decoder.decode(coding, !check, stored, &mut memory[64..64 + length]);
        assert!(matches!(changed, Err(Error::Changed { structure: Structure::Block, .. })));
    }

    let mut coded = vec![0; stored.len()];
    let coded_as = Encoder::new(coding, 1).unwrap().encode(stored, &mut coded).unwrap();
    let mut plain = vec![0; stored.len()];
    decoder.decode(coding, coded_as.check, &coded[..coded_as.bytes as usize], &mut plain).unwrap();
    assert_eq!(plain, stored);
    decoded.is_ok()
}

/// The header of a mailbox: as given, and with its checksum corrected.
pub(crate) fn mailbox(bytes: &[u8]) -> bool {
    check_hello(bytes);
    check_hello(&with_checksum(&bytes[..bytes.len().min(HELLO_BYTES - 16)]))
}

fn check_hello(bytes: &[u8]) -> bool {
    let Ok(hello) = Hello::decode(bytes) else { return false };
    assert_eq!(hello.encode(), bytes[..HELLO_BYTES]);
    assert!(hello.rank < hello.count);
    true
}

/// A record of a mailbox: as given, and with both checksums corrected. For the latter, the first 8
/// bytes are the start of the head, and the rest is the body.
pub(crate) fn record(bytes: &[u8]) -> bool {
    check_record(bytes);
    let Some((start, body)) = bytes.split_at_checked(8) else { return false };
    let head = with_checksum(&[start, &XxHash3_128::oneshot(body).to_le_bytes()].concat());
    assert_eq!(head.len(), RECORD_HEAD_BYTES);
    check_record(&[&head, body].concat())
}

fn check_record(bytes: &[u8]) -> bool {
    let Ok((record, length)) = Record::decode(bytes) else { return false };
    assert_eq!(record.encode().unwrap(), bytes[..length]);
    // A truncated record is never another record.
    assert!(matches!(Record::decode(&bytes[..length - 1]), Err(Error::Short { .. })));
    true
}

/// The header of a segment, as given and with its checksum corrected, and its tables, made of the
/// same bytes.
pub(crate) fn segment(bytes: &[u8]) -> bool {
    check_segment(bytes);
    let tables = SegmentHeader::new(2 << 20, 3).unwrap();
    assert_eq!(tables.decode_owners(bytes).is_ok(), bytes.len() == 12);
    let table: Vec<u8> = bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { 12 }).collect();
    assert!(
        tables.decode_owners(&table).is_ok_and(|owners| owners.iter().all(|&owner| owner <= 1024)) || bytes.is_empty()
    );
    assert!(tables.decode_wanted(&table.repeat(1025)[..4100.min(table.len() * 1025)]).is_ok() || bytes.is_empty());
    check_segment(&with_checksum(&bytes[..bytes.len().min(SEGMENT_HEADER_BYTES - 16)]))
}

fn check_segment(bytes: &[u8]) -> bool {
    let Ok(header) = SegmentHeader::decode(bytes) else { return false };
    assert_eq!(header.encode(), bytes[..SEGMENT_HEADER_BYTES]);
    assert!(header.wanted_at(1024) < header.owner_at(0) && header.table_bytes() <= header.chunk_at(0));
    assert_eq!(header.file_bytes(), header.chunk_at(0) + header.bytes());
    true
}

fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    [bytes, &XxHash3_128::oneshot(bytes).to_le_bytes()].concat()
}

/// A message between ranks: as given, and with its checksum corrected.
fn message<T>(bytes: &[u8], decode: fn(&[u8]) -> Result<T>, encode: fn(&T) -> Vec<u8>) -> bool {
    let check = |bytes: &[u8]| decode(bytes).map(|message| assert_eq!(encode(&message), bytes)).is_ok();
    check(bytes);
    check(&[bytes, &XxHash3_64::oneshot(bytes).to_le_bytes()].concat())
}

/// Announcements of a rank about its versions.
pub(crate) fn news(bytes: &[u8]) -> bool {
    message(bytes, News::decode, News::encode)
}

/// What a rank has found in its directories.
pub(crate) fn holdings(bytes: &[u8]) -> bool {
    message(bytes, Holdings::decode, Holdings::encode)
}

/// The file `runs` of a rank's directory.
pub(crate) fn mark(bytes: &[u8]) -> bool {
    message(bytes, Mark::decode, |mark| mark.encode().unwrap())
}

/// Whether a rank succeeded.
pub(crate) fn answer(bytes: &[u8]) -> bool {
    message(bytes, Answer::decode, Answer::encode)
}

/// The versions that a rank can restore.
pub(crate) fn candidates(bytes: &[u8]) -> bool {
    message(bytes, Candidates::decode, Candidates::encode)
}

/// The result of a restore on a rank.
pub(crate) fn verdict(bytes: &[u8]) -> bool {
    message(bytes, Verdict::decode, Verdict::encode)
}

/// Whether a rank can share the blocks of a version.
pub(crate) fn sharing(bytes: &[u8]) -> bool {
    message(bytes, Sharing::decode, Sharing::encode)
}

/// The blocks that a rank is about to write.
pub(crate) fn shared_blocks(bytes: &[u8]) -> bool {
    message(bytes, SharedBlocks::decode, SharedBlocks::encode)
}

/// The places of a rank's blocks.
pub(crate) fn shared_locations(bytes: &[u8]) -> bool {
    message(bytes, SharedLocations::decode, SharedLocations::encode)
}

/// The packs that a rank has made.
pub(crate) fn shared_packs(bytes: &[u8]) -> bool {
    message(bytes, SharedPacks::decode, SharedPacks::encode)
}

/// A request to the node daemon.
pub(crate) fn node_request(bytes: &[u8]) -> bool {
    NodeRequest::decode(bytes).map(|request| assert_eq!(request.encode().unwrap(), bytes)).is_ok()
}

/// An answer of the node daemon.
pub(crate) fn node_reply(bytes: &[u8]) -> bool {
    NodeReply::decode(bytes).map(|reply| assert_eq!(reply.encode().unwrap(), bytes)).is_ok()
}

/// The journal of the node daemon: its header, as given and with its checksum corrected, an epoch,
/// and a record, with its length and checksum corrected.
pub(crate) fn journal(bytes: &[u8]) -> bool {
    const EPOCH: u64 = 7;
    let mut is_value = JournalHeader::decode_epoch(bytes).is_some();
    for header in [bytes.to_vec(), with_checksum(&bytes[..bytes.len().min(40)])] {
        if let Ok(decoded) = JournalHeader::decode(&header) {
            assert_eq!(decoded.encode(), header[..decoded.encode().len()]);
            assert!(decoded.half_at(1) > decoded.half_at(0));
            is_value = true;
        }
    }
    let mut record = [&[0; 16], bytes].concat();
    let length = record.len() as u64;
    record[..8].copy_from_slice(&length.to_le_bytes());
    let mut hasher = XxHash3_64::with_seed(EPOCH);
    std::hash::Hasher::write(&mut hasher, &record[..8]);
    std::hash::Hasher::write(&mut hasher, bytes);
    record[8..16].copy_from_slice(&std::hash::Hasher::finish(&hasher).to_le_bytes());
    assert!(JournalRecord::decode(EPOCH, bytes).is_err() || !bytes.is_empty());
    if let Ok((decoded, used)) = JournalRecord::decode(EPOCH, &record) {
        assert_eq!((decoded.encode(EPOCH).unwrap(), used), (record.clone(), record.len()));
        assert!(JournalRecord::decode(EPOCH + 1, &record).is_err(), "a record of another epoch is none");
        assert!(JournalRecord::decode(EPOCH, &record[..used - 1]).is_err(), "a part of a record is none");
        is_value = true;
    }
    is_value
}

/// Whether it is time to save.
pub(crate) fn due(bytes: &[u8]) -> bool {
    message(bytes, Due::decode, Due::encode)
}

/// Where a rank can be reached.
pub(crate) fn card(bytes: &[u8]) -> bool {
    message(bytes, Card::decode, Card::encode)
}

/// Whose shards a rank keeps.
pub(crate) fn keeps(bytes: &[u8]) -> bool {
    message(bytes, Keeps::decode, Keeps::encode)
}

/// The header of a shard: as given, and with its checksum corrected.
pub(crate) fn shard(bytes: &[u8]) -> bool {
    let mut header = bytes.to_vec();
    header.resize(SHARD_HEADER_BYTES - 16, 0);
    let mut is_value = false;
    for header in [bytes.to_vec(), with_checksum(&header)] {
        let Ok(decoded) = ShardHeader::decode(&header) else { continue };
        assert_eq!(decoded.encode(), header[..SHARD_HEADER_BYTES]);
        let file = decoded.file;
        assert!(file.shard_bytes() < file.bytes.saturating_add(1 << 20).saturating_mul(2));
        if let Some(last) = file.stripes().checked_sub(1) {
            assert!(file.bytes_in(last) > 0 && file.chunk_at(last) < file.shard_bytes());
        }
        is_value = true;
    }
    is_value
}

/// A request to a rank that keeps shards, and what a connection begins with.
pub(crate) fn peer_request(bytes: &[u8]) -> bool {
    if let Ok(hello) = PeerHello::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
        return true;
    }
    let Ok(request) = PeerRequest::decode(bytes) else { return false };
    assert_eq!(request.encode(), bytes);
    if let PeerRequest::Begin { name, .. } | PeerRequest::Read { name, .. } | PeerRequest::Remove { name, .. } =
        &request
    {
        let (file, index) = parse_shard_name(name).expect("no other file is named");
        assert_eq!(*name, shard_name(file, index));
        assert!(!name.contains('/'));
    }
    true
}

/// A reply of a rank that keeps shards.
pub(crate) fn peer_reply(bytes: &[u8]) -> bool {
    PeerReply::decode(bytes).map(|reply| assert_eq!(reply.encode(), bytes)).is_ok()
}
