//! The node daemon's messages and journal: what is written can be read, the bytes do not change by
//! accident, and what makes no sense is refused.

use outcrop_format::{
    Error, JournalFill, JournalHeader, JournalKept, JournalPart, JournalRecord, NODE_FILE_BYTES_MAX,
    NODE_MESSAGE_BYTES_MAX, NODE_RANGES_MAX, NodeFailure, NodeFill, NodePart, NodeReply, NodeReplyKind, NodeRequest,
    PIECE_BYTES_MAX, node_checksum, node_pieces,
};

use crate::corpus::assert_in_corpus;

fn part() -> NodePart {
    NodePart { offset: PIECE_BYTES_MAX - 10, at: 4086, bytes: 30 }
}

fn requests() -> Vec<(&'static str, NodeRequest)> {
    let sums = vec![3, u64::MAX];
    let fill = NodeFill { file: 7, part: part(), modified_ns: -5, ask_bytes: 1 << 20, sums };
    vec![
        ("hello", NodeRequest::Hello { group: 1, line: u64::MAX, name: "sängerin".to_owned() }),
        ("open", NodeRequest::Open { path: b"/a/file".to_vec() }),
        ("close", NodeRequest::Close { file: 7 }),
        ("ask", NodeRequest::Ask { file: 7, bytes: 16 << 20 }),
        ("fill", NodeRequest::Fill(fill)),
        ("read", NodeRequest::Read { file: 7, offset: 5, bytes: 100 }),
        ("release", NodeRequest::Release),
        ("return", NodeRequest::Return { at: 4096, bytes: 100 }),
        ("length", NodeRequest::Length { file: 7 }),
        ("set-bytes", NodeRequest::SetBytes { file: 7, bytes: NODE_FILE_BYTES_MAX }),
        ("set-times", NodeRequest::SetTimes { file: 7, accessed_ns: None, modified_ns: Some(-1) }),
        ("drain", NodeRequest::Drain { file: 7 }),
        ("sync", NodeRequest::Sync { file: 7 }),
        ("drain-all", NodeRequest::DrainAll),
        ("verify", NodeRequest::Verify { file: 7 }),
        ("discard", NodeRequest::Discard { file: 7 }),
        ("status", NodeRequest::Status),
        ("limit", NodeRequest::Limit { bytes: 1 << 30 }),
        ("stop", NodeRequest::Stop),
    ]
}

fn replies() -> Vec<(&'static str, NodeReply)> {
    let granted = vec![(4096, 8192), (1 << 30, 1)];
    let welcome = NodeReplyKind::Welcome { generation: 3, nonce: 9, reserve_bytes: 1 << 32, granted };
    let kinds = vec![
        ("welcome", welcome),
        ("refused", NodeReplyKind::Refused { reason: "no".to_owned() }),
        ("opened", NodeReplyKind::Opened { file: 7 }),
        ("granted", NodeReplyKind::Granted { at: 4096, bytes: 100 }),
        ("cached", NodeReplyKind::Cached { end: 1000, known_to: 500, parts: vec![part(), part()] }),
        ("length", NodeReplyKind::Length { end: 8, is_clean: true }),
        ("done", NodeReplyKind::Done),
        ("verified", NodeReplyKind::Verified { bytes: 77 }),
        ("failed", NodeReplyKind::Failed { errno: 28, reason: "full".to_owned() }),
    ];
    let failure = NodeFailure { serial: 2, errno: 28 };
    kinds.into_iter().map(|(name, kind)| (name, NodeReply { failure, kind })).collect()
}

fn records() -> Vec<(&'static str, JournalRecord)> {
    let fill = JournalFill { piece: 40, file: 7, part: part(), modified_ns: 11, line: 5, sums: vec![1, 2] };
    let kept = JournalKept { piece: 40, since: 38, file: 7, part: part(), sum: 6, live: vec![(65530, 2), (65540, 1)] };
    vec![
        ("file", JournalRecord::File { file: 7, device: 2, inode: 99, path: b"/a/file".to_vec() }),
        ("forgotten", JournalRecord::Forgotten { file: 7 }),
        ("granted", JournalRecord::Granted { line: 5, process: 1234, at: 4096, bytes: 8192 }),
        ("returned", JournalRecord::Returned { line: 5, at: 4096, bytes: 100 }),
        ("filled", JournalRecord::Filled(fill)),
        ("kept", JournalRecord::Kept(kept)),
        ("drained", JournalRecord::Drained(JournalPart { file: 7, offset: 0, bytes: 100, before: 41 })),
        ("cut", JournalRecord::Cut { file: 7, bytes: 50 }),
        ("truncated", JournalRecord::Truncated { file: 7 }),
        ("times", JournalRecord::Times { file: 7, accessed_ns: Some(1), modified_ns: None }),
        ("settled", JournalRecord::Settled { file: 7 }),
    ]
}

#[test]
fn messages_are_read_as_they_were_written_and_are_as_committed() {
    for (name, request) in requests() {
        let bytes = request.encode().unwrap();
        assert_eq!(NodeRequest::decode(&bytes).unwrap(), request);
        assert!(NodeRequest::decode(&bytes[..bytes.len() - 1]).is_err(), "{name}");
        assert!(NodeRequest::decode(&[&bytes[..], &[0]].concat()).is_err(), "{name}");
        assert_in_corpus("node_request", name, &bytes);
    }
    for (name, reply) in replies() {
        let bytes = reply.encode().unwrap();
        assert_eq!(NodeReply::decode(&bytes).unwrap(), reply);
        assert!(NodeReply::decode(&bytes[..bytes.len() - 1]).is_err(), "{name}");
        assert_in_corpus("node_reply", name, &bytes);
    }
}

#[test]
fn a_journal_is_read_as_it_was_written_and_is_as_committed() {
    let header = JournalHeader { nonce: 9, reserve_bytes: 1 << 32, half_bytes: 1 << 20 };
    assert_eq!(JournalHeader::decode(&header.encode()).unwrap(), header);
    assert_in_corpus("journal", "header", &header.encode());
    assert_eq!(JournalHeader::decode_epoch(&JournalHeader::encode_epoch(7)), Some(7));
    assert_eq!(JournalHeader::decode_epoch(&[0; 16]), None, "a half that was never written");
    for (name, record) in records() {
        let bytes = record.encode(7).unwrap();
        assert_eq!(JournalRecord::decode(7, &bytes).unwrap(), (record, bytes.len()));
        // The decoder's test adds the head.
        assert_in_corpus("journal", name, &bytes[16..]);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(JournalRecord::decode(7, &changed).is_err(), "{name}: byte {at} changed");
        }
    }
    assert!(matches!(JournalRecord::decode(7, &[0; 64]), Err(Error::Changed { .. })), "nothing was written there");
}

#[test]
fn pieces_end_at_multiples_of_their_largest_length() {
    let piece = PIECE_BYTES_MAX;
    for (offset, bytes, pieces) in [
        (0, 0, 0),
        (0, 1, 1),
        (0, piece, 1),
        (0, piece + 1, 2),
        (piece - 1, 1, 1),
        (piece - 1, 2, 2),
        (5, 3 * piece, 4),
    ] {
        assert_eq!(node_pieces(offset, bytes), pieces, "{bytes} bytes at {offset}");
    }
    assert_eq!(node_checksum(b""), 0x2d06_8005_38d3_94c2, "XXH3 of nothing, as everybody computes it");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fill = |part: NodePart, sums: usize| {
        NodeRequest::Fill(NodeFill { file: 1, part, modified_ns: 0, ask_bytes: 0, sums: vec![0; sums] }).encode()
    };
    assert!(fill(part(), 2).is_ok());
    assert!(fill(part(), 1).is_err(), "a piece without a checksum");
    assert!(fill(NodePart { offset: NODE_FILE_BYTES_MAX, at: 0, bytes: 1 }, 1).is_err(), "beyond every file");
    assert!(fill(NodePart { offset: 0, at: u64::MAX, bytes: 1 }, 1).is_err(), "beyond every reserve");
    assert!(NodeRequest::SetBytes { file: 1, bytes: u64::MAX }.encode().is_err());
    assert!(NodeRequest::Open { path: vec![b'a'; 4097] }.encode().is_err());
    assert!(NodeRequest::decode(&vec![0; NODE_MESSAGE_BYTES_MAX + 1]).is_err());
    let parts = vec![part(); NODE_RANGES_MAX + 1];
    assert!(NodeReply::plain(NodeReplyKind::Cached { end: 0, known_to: 0, parts }).encode().is_err());
    let parts = vec![part(); NODE_RANGES_MAX];
    assert!(NodeReply::plain(NodeReplyKind::Cached { end: 0, known_to: 0, parts }).encode().is_ok());
    let long = NodeReply::plain(NodeReplyKind::Refused { reason: "ä".repeat(5000) }).encode().unwrap();
    assert!(NodeReply::decode(&long).is_ok(), "a long reason is shortened");
}

#[test]
fn another_protocol_is_told_from_garbage() {
    let mut bytes = NodeRequest::Stop.encode().unwrap();
    bytes[2] = 2;
    assert!(matches!(NodeRequest::decode(&bytes), Err(Error::Format { found: 2, newest: 1, .. })));
}
