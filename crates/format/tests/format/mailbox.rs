//! Formats between processes: mailboxes of ranks, and segments of shared memory.

use outcrop_format::{
    Error, HELLO_BYTES, Hello, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, Record, RecordHead, SEGMENT_HEADER_BYTES,
    SegmentHeader, Structure, TOPIC_BYTES_MAX, encode_segment_number,
};
use twox_hash::XxHash3_128;

use crate::corpus::assert_in_corpus;

const NONCE: [u8; 16] = *b"0123456789abcdef";
const HELLO: Hello = Hello { rank: 3, count: 70_000, nonce: NONCE };

fn records() -> [Record<'static>; 9] {
    [
        Record::Seen { rank: 7, nonce: NONCE },
        Record::Gather { from: 5, topic: "open heat", number: 1 << 40, contribution: b"some bytes" },
        Record::Gather { from: 0, topic: "", number: 0, contribution: b"" },
        Record::Gather { from: u32::MAX, topic: "ö", number: u64::MAX, contribution: &[0; 300] },
        Record::Message { first: 2, last: 9, message: b"words" },
        Record::Message { first: 0, last: 0, message: b"" },
        Record::Read { rank: 1, part: 1 << 20 },
        Record::Next,
        Record::Gone { rank: 4 },
    ]
}

fn header() -> SegmentHeader {
    SegmentHeader::new(4 << 20, 64).unwrap()
}

#[test]
fn what_was_written_is_read() {
    assert_eq!(Hello::decode(&HELLO.encode()), Ok(HELLO));
    assert_eq!(Hello::decode(&[&HELLO.encode()[..], b"records"].concat()), Ok(HELLO), "what follows is not looked at");
    let all: Vec<u8> = records().iter().flat_map(|record| record.encode().unwrap()).collect();
    let mut rest = &all[..];
    for record in records() {
        let (found, length) = Record::decode(rest).unwrap();
        assert_eq!(found, record);
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    assert_eq!(SegmentHeader::decode(&header().encode()), Ok(header()));
}

#[test]
fn every_flipped_bit_and_every_missing_byte_is_found() {
    fn check<T: PartialEq + std::fmt::Debug>(whole: &[u8], decode: impl Fn(&[u8]) -> Result<T, Error>) {
        decode(whole).unwrap();
        let mut bytes = whole.to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit} was flipped and nobody noticed");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..whole.len() {
            assert!(matches!(decode(&whole[..length]), Err(Error::Short { .. })), "{length} bytes");
        }
    }
    check(&HELLO.encode(), Hello::decode);
    check(&header().encode(), SegmentHeader::decode);
    for record in records() {
        check(&record.encode().unwrap(), |bytes| {
            Record::decode(bytes).map(|(record, length)| (format!("{record:?}"), length))
        });
    }
}

/// Replaces the last 16 bytes by the checksum of the others.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 16;
    let check = XxHash3_128::oneshot(&bytes[..at]).to_le_bytes();
    bytes[at..].copy_from_slice(&check);
    bytes
}

#[track_caller]
fn assert_wrong<T: std::fmt::Debug>(decoded: Result<T, Error>, byte: u64, expected: &str) {
    match decoded.unwrap_err() {
        Error::Wrong { at, problem, .. } => {
            assert!(at == byte && problem.contains(expected), "{problem} at {at}");
        }
        error => panic!("{error}"),
    }
}

#[test]
fn what_cannot_be_is_refused_though_its_checksum_is_right() {
    let hello = |at: usize, bytes: &[u8]| {
        let mut whole = HELLO.encode().to_vec();
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        Hello::decode(&sealed(whole))
    };
    assert_wrong(hello(12, &70_000_u32.to_le_bytes()), 12, "rank 70000 of 70000");
    assert_wrong(hello(16, &u32::MAX.to_le_bytes()), 12, "rank 3 of 4294967295");
    for found in [1, 9] {
        let refused = Err(Error::Format { structure: Structure::Mailbox, found, newest: 3 });
        assert_eq!(hello(8, &[found as u8]), refused);
    }
    assert!(matches!(hello(0, b"OUTCPACK"), Err(Error::Magic { structure: Structure::Mailbox, .. })));

    let head = |at: usize, bytes: &[u8]| {
        let words = Record::Message { first: 2, last: 9, message: b"words" };
        let mut whole = words.encode().unwrap()[..RECORD_HEAD_BYTES].to_vec();
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        RecordHead::decode(&sealed(whole))
    };
    assert_wrong(head(0, &[0]), 0, "kind 0");
    assert_wrong(head(0, &[7]), 0, "kind 7");
    assert_wrong(head(2, &[1]), 1, "not zero");
    assert_wrong(head(4, &(RECORD_BYTES_MAX + 1).to_le_bytes()), 4, "at most");
    assert_eq!(head(4, &RECORD_BYTES_MAX.to_le_bytes()).unwrap().body_bytes(), RECORD_BYTES_MAX);

    let segment = |at: usize, bytes: &[u8]| {
        let mut whole = header().encode().to_vec();
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        SegmentHeader::decode(&sealed(whole))
    };
    assert_wrong(segment(12, &7_u32.to_le_bytes()), 12, "7 owners");
    for chunk_bytes in [0_u64, 1, (2 << 20) + 4096, 32 << 20, u64::MAX] {
        assert_wrong(segment(16, &chunk_bytes.to_le_bytes()), 16, "cannot be");
        assert!(SegmentHeader::new(chunk_bytes, 1).is_err());
    }
    assert_wrong(segment(24, &[0; 4]), 24, "no chunks");
    assert_wrong(segment(31, &[1]), 28, "not zero");
    assert!(matches!(segment(8, &[9]), Err(Error::Format { structure: Structure::Segment, found: 9, .. })));
}

#[test]
fn bodies_that_make_no_sense_are_refused() {
    // A topic that is longer than the body, or than the limit, or is not UTF-8.
    let body = |topic_bytes: u32, rest: &[u8]| [&[0; 12][..], &topic_bytes.to_le_bytes(), rest].concat();
    let decode = |kind: u8, body: &[u8]| {
        let start = [&[kind, 0, 0, 0][..], &(body.len() as u32).to_le_bytes()].concat();
        let check = XxHash3_128::oneshot(body).to_le_bytes();
        let head = sealed([&start[..], &check, &[0; 16]].concat());
        Record::decode(&[&head[..], body].concat()).map(|(record, _)| format!("{record:?}"))
    };
    assert!(decode(2, &body(3, b"abcd")).unwrap().contains("abc"));
    assert!(matches!(decode(2, &body(5, b"abcd")), Err(Error::Short { .. })));
    assert_wrong(decode(2, &body(TOPIC_BYTES_MAX as u32 + 1, &[b'x'; 2000])), 12, "at most 1024");
    assert_wrong(decode(2, &body(2, &[0xff; 4])), 16, "not UTF-8");
    assert!(matches!(decode(2, &[0; 15]), Err(Error::Short { .. })));
    assert!(matches!(decode(1, &[0; 19]), Err(Error::Short { .. })));
    assert_wrong(decode(1, &[0; 21]), 20, "1 bytes follow");
    assert!(matches!(decode(3, &[0; 7]), Err(Error::Short { .. })));
    assert_wrong(decode(3, &[9, 0, 0, 0, 8, 0, 0, 0, 1]), 4, "ranks 9 to 8 cannot be");
    assert!(matches!(decode(4, &[0; 7]), Err(Error::Short { .. })));
    assert_wrong(decode(4, &[0; 9]), 8, "1 bytes follow");
    assert_wrong(decode(5, &[0; 1]), 0, "1 bytes follow");
    assert!(matches!(decode(6, &[0; 3]), Err(Error::Short { .. })));
    assert_wrong(decode(6, &[0; 5]), 4, "1 bytes follow");
    let topic = "x".repeat(TOPIC_BYTES_MAX + 1);
    let error = Record::Gather { from: 0, topic: &topic, number: 0, contribution: &[] }.encode().unwrap_err();
    assert!(error.to_string().contains("a topic of 1025 bytes"), "{error}");
}

#[test]
fn tables_of_a_segment_are_within_bounds() {
    let header = header();
    assert_eq!((header.wanted_at(0), header.owner_at(0)), (64, 64 + 4 * 1025));
    assert_eq!((header.chunk_at(0), header.file_bytes()), (2 << 20, (2 << 20) + header.bytes()));
    let numbers =
        |numbers: &[u32]| numbers.iter().flat_map(|&number| encode_segment_number(number)).collect::<Vec<_>>();
    let mut owners = vec![0; 64];
    owners[..5].copy_from_slice(&[1, 1024, 1025, u32::MAX, 7]);
    let read = header.decode_owners(&numbers(&owners)).unwrap();
    assert_eq!(read[..5], [1, 1024, 0, 0, 7], "what no owner can be is nobody");
    let wanted = header.decode_wanted(&numbers(&[u32::MAX; 1025])).unwrap();
    assert!(wanted.len() == 1025 && wanted.iter().all(|&count| count == 64), "not more than there are");
    assert!(header.decode_owners(&numbers(&[0; 63])).is_err() && header.decode_owners(&numbers(&[0; 65])).is_err());
}

#[test]
fn samples_are_in_the_corpus() {
    let cut = |bytes: &[u8]| bytes[..bytes.len() - 16].to_vec();
    let mut samples = vec![("mailbox", cut(&HELLO.encode())), ("segment", cut(&header().encode()))];
    assert_eq!(
        samples.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(),
        [HELLO_BYTES - 16, SEGMENT_HEADER_BYTES - 16]
    );
    for record in records() {
        let bytes = record.encode().unwrap();
        // Without its checksums, which the fuzz target adds.
        samples.push(("record", [&bytes[..8], &bytes[RECORD_HEAD_BYTES..]].concat()));
    }
    for (nth, (decoder, bytes)) in samples.iter().enumerate() {
        assert_in_corpus(decoder, &format!("sample-{nth}"), bytes);
    }
}
