//! Shards, and what ranks say to each other about them.

use outcrop_format::{
    PEER_READ_BYTES_MAX, PeerFailure, PeerHello, PeerPlace, PeerReply, PeerRequest, PeerShard, PeerSide,
    SHARD_HEADER_BYTES, ShardHeader, ShardedFile, shard_name,
};

use crate::{corpus::assert_in_corpus, decoders, golden::committed};

fn header() -> ShardHeader {
    let (id, check) = (0x0011_2233_4455_6677_8899_aabb_ccdd_eeff, u128::MAX - 1);
    let file = ShardedFile { generation: 42, id, owner: 7, bytes: 300_000, check, data: 4, count: 5 };
    ShardHeader { file, index: 4 }
}

fn place() -> PeerPlace {
    PeerPlace { session: "heat".to_owned(), rank: 7 }
}

fn requests() -> Vec<Vec<u8>> {
    let name = || shard_name("pack-00000000000000000007", 4);
    let requests = [
        PeerRequest::List { place: place(), after: String::new() },
        PeerRequest::List { place: place(), after: name() },
        PeerRequest::Begin { place: place(), name: name(), bytes: header().file.shard_bytes() },
        PeerRequest::Append(b"a chunk"),
        PeerRequest::Commit(header()),
        PeerRequest::Read { place: place(), name: name(), at: 88, bytes: PEER_READ_BYTES_MAX - 1 },
        PeerRequest::Remove { place: place(), name: shard_name("runs", 0) },
        PeerRequest::Sync { place: place() },
    ];
    let mut encoded: Vec<Vec<u8>> = requests.iter().map(PeerRequest::encode).collect();
    for (request, bytes) in requests.iter().zip(&encoded) {
        assert_eq!(PeerRequest::decode(bytes).as_ref(), Ok(request));
    }
    encoded.push(PeerHello { from: 1, to: 2, nonce: [3; 32] }.encode().to_vec());
    encoded
}

fn replies() -> Vec<Vec<u8>> {
    let shard = |name: &str, header| PeerShard { name: shard_name(name, 4), bytes: 9, header };
    let listed = vec![shard("pack-00000000000000000007", Some(header())), shard("runs", None)];
    let replies = [
        PeerReply::Done,
        PeerReply::Failed(PeerFailure::Full, "der Datenträger ist voll".to_owned()),
        PeerReply::Bytes(b"bytes"),
        PeerReply::Listed(listed, true),
        PeerReply::Listed(Vec::new(), false),
    ];
    let encoded: Vec<Vec<u8>> = replies.iter().map(PeerReply::encode).collect();
    for (reply, bytes) in replies.iter().zip(&encoded) {
        assert_eq!(PeerReply::decode(bytes).as_ref(), Ok(reply));
    }
    encoded
}

#[test]
fn samples_of_shards_and_messages_about_them_are_in_the_corpus() {
    for (nth, request) in requests().iter().enumerate() {
        assert_in_corpus("peer_request", &format!("sample-{nth}"), request);
    }
    for (nth, reply) in replies().iter().enumerate() {
        assert_in_corpus("peer_reply", &format!("sample-{nth}"), reply);
    }
    assert_in_corpus("shard", "sample", &header().encode());
}

#[test]
fn the_header_of_a_shard_is_as_committed() {
    let bytes = committed("header.shard", &header().encode());
    assert_eq!(ShardHeader::decode(&bytes), Ok(header()));
    assert_eq!(header().encode().to_vec(), bytes);
    // Every change is noticed.
    for at in 0..SHARD_HEADER_BYTES {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        ShardHeader::decode(&changed).unwrap_err();
    }
    assert!((0..SHARD_HEADER_BYTES).all(|count| ShardHeader::decode(&bytes[..count]).is_err()));
    assert_eq!(
        header().file.shard_bytes(),
        88 + 65_536 + 16 + (300_000u64 - 4 * 65_536).div_ceil(4).next_multiple_of(64) + 16
    );
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let file = header().file;
    for file in [
        ShardedFile { data: 0, ..file },
        ShardedFile { data: 6, ..file },
        ShardedFile { count: 255, ..file },
        ShardedFile { count: 4, ..file },
        ShardedFile { bytes: 1 << 57, ..file },
    ] {
        assert!(ShardHeader::decode(&ShardHeader { file, index: 4 }.encode()).is_err(), "{file:?}");
    }
}

#[test]
fn requests_that_lead_elsewhere_are_refused() {
    let name = || "runs.000".to_owned();
    for (session, name) in
        [("..", name()), ("", name()), ("a/b", name()), ("heat", "lock".to_owned()), ("heat", "../x.000".to_owned())]
    {
        let place = PeerPlace { session: session.to_owned(), rank: 0 };
        let request = PeerRequest::Remove { place, name };
        assert!(PeerRequest::decode(&request.encode()).is_err(), "{request:?}");
    }
    let much = PeerRequest::Read { place: place(), name: name(), at: 0, bytes: u32::MAX };
    assert!(PeerRequest::decode(&much.encode()).is_err());
    assert!(
        !decoders::peer_request(&[])
            && !decoders::peer_reply(&[])
            && !decoders::peer_reply(&[104, 0, 0xff, 0xff, 0xff, 0xff])
    );
}

#[test]
fn a_proof_is_of_one_side_of_one_connection() {
    let hello = PeerHello { from: 1, to: 2, nonce: [3; 32] };
    let proof = hello.proof(&[5; 32], &[4; 32], PeerSide::Server);
    assert_eq!(proof, proof.bytes().into());
    for other in [
        hello.proof(&[6; 32], &[4; 32], PeerSide::Server),
        hello.proof(&[5; 32], &[5; 32], PeerSide::Server),
        hello.proof(&[5; 32], &[4; 32], PeerSide::Client),
        PeerHello { nonce: [4; 32], ..hello }.proof(&[5; 32], &[4; 32], PeerSide::Server),
        PeerHello { from: 2, ..hello }.proof(&[5; 32], &[4; 32], PeerSide::Server),
    ] {
        assert_ne!(proof, other);
    }
}
