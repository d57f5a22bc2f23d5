//! Messages between ranks, and the mark in a rank's directory: all kinds.

use std::collections::BTreeSet;

use outcrop_format::{
    Answer, Candidates, Card, Coding, CodingKind, Due, Error, Fared, Former, Held, HeldLayer, Holdings, Keeps,
    MARK_BYTES_MAX, Mark, News, RunId, SharedBlocks, SharedLocation, SharedLocations, SharedPack, SharedPacks, Sharing,
    Stored, Structure, TEXT_BYTES_MAX, Tidings, Verdict,
};
use proptest::{
    collection::{btree_map, btree_set, vec},
    prelude::*,
};
use twox_hash::XxHash3_64;

use crate::{corpus::assert_in_corpus, decoders, samples::RUN};

/// Decodes a message and encodes it again.
type Decode = fn(&[u8]) -> Result<Vec<u8>, Error>;

/// All kinds of messages, by the names of their fuzz targets.
const KINDS: [(&str, Decode); 13] = [
    ("news", |bytes| News::decode(bytes).map(|it| it.encode())),
    ("holdings", |bytes| Holdings::decode(bytes).map(|it| it.encode())),
    ("mark", |bytes| Mark::decode(bytes)?.encode()),
    ("answer", |bytes| Answer::decode(bytes).map(|it| it.encode())),
    ("candidates", |bytes| Candidates::decode(bytes).map(|it| it.encode())),
    ("verdict", |bytes| Verdict::decode(bytes).map(|it| it.encode())),
    ("sharing", |bytes| Sharing::decode(bytes).map(|it| it.encode())),
    ("shared_blocks", |bytes| SharedBlocks::decode(bytes).map(|it| it.encode())),
    ("shared_locations", |bytes| SharedLocations::decode(bytes).map(|it| it.encode())),
    ("shared_packs", |bytes| SharedPacks::decode(bytes).map(|it| it.encode())),
    ("due", |bytes| Due::decode(bytes).map(|it| it.encode())),
    ("card", |bytes| Card::decode(bytes).map(|it| it.encode())),
    ("keeps", |bytes| Keeps::decode(bytes).map(|it| it.encode())),
];

fn decode(kind: &str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    KINDS.iter().find(|(name, _)| *name == kind).unwrap().1(bytes)
}

fn news(tidings: Tidings) -> News {
    News { run: RUN, number: 3, era: 1, tidings }
}

fn failed(reason: &str) -> News {
    news(Tidings::Failed { layer: 1, version: 42, reason: reason.to_owned() })
}

/// The mark that the documentation shows.
pub(crate) fn mark() -> Mark {
    Mark([RunId(7), RUN].into())
}

fn holdings() -> Holdings {
    let held = |saved_at_unix_ns| Held { run: RUN, saved_at_unix_ns, ranks: 3 };
    let full = HeldLayer {
        runs: [RunId(7), RUN].into(),
        versions: [(41, held(5)), (42, held(u64::MAX))].into(),
        unreadable: [3, u64::MAX].into(),
    };
    let former =
        vec![Former { layer: 1, rank: 7, held: Some(full.clone()) }, Former { layer: 0, rank: u32::MAX, held: None }];
    Holdings { proposal: RunId(u128::MAX), layers: vec![full, HeldLayer::default()], former }
}

fn locations() -> SharedLocations {
    let location = |number, coding| SharedLocation {
        hash: [0xab; 16],
        bytes: 4096,
        number,
        at: 8192,
        stored: Stored { bytes: 77, check: 0xdead_beef },
        coding,
    };
    SharedLocations(vec![location(1, Coding::RAW), location(u64::MAX, Coding::new(CodingKind::Zstd, 8))])
}

fn card(domain: &str, address: Result<String, String>) -> Vec<u8> {
    Card { code: (4, 2), secret: [9; 32], domain: domain.to_owned(), address }.encode()
}

/// Two samples of each kind: a full one, and the smallest.
fn samples() -> Vec<(&'static str, [Vec<u8>; 2])> {
    let pack = SharedPack { number: 7.into(), file_bytes: 8192.into(), index_check: (u128::MAX - 1).into() };
    let verdict = |version, fared| Verdict { version, run: RUN, fared }.encode();
    vec![
        ("news", [failed("der Datenträger ist voll").encode(), news(Tidings::Over).encode()]),
        (
            "holdings",
            [holdings().encode(), Holdings { proposal: RunId(0), layers: Vec::new(), former: Vec::new() }.encode()],
        ),
        ("mark", [mark().encode().unwrap(), Mark(BTreeSet::new()).encode().unwrap()]),
        ("answer", [Answer(Err("no space left".to_owned())).encode(), Answer(Ok(())).encode()]),
        ("candidates", [Candidates(vec![(1, RUN), (42, RunId(7))]).encode(), Candidates(Vec::new()).encode()]),
        ("verdict", [verdict(42, Fared::Refused), verdict(0, Fared::Whole)]),
        ("sharing", [true, false].map(|fits| Sharing { fits, losses: u64::from(fits) << 40 }.encode())),
        (
            "shared_blocks",
            [SharedBlocks(vec![([1; 16], 256), ([2; 16], 1)]).encode(), SharedBlocks(Vec::new()).encode()],
        ),
        ("shared_locations", [locations().encode(), SharedLocations(Vec::new()).encode()]),
        ("shared_packs", [SharedPacks(vec![pack, pack]).encode(), SharedPacks(Vec::new()).encode()]),
        ("due", [true, false].map(|is_due| Due(is_due).encode())),
        ("card", [card("node-7", Ok("10.1.0.7:4711".to_owned())), card("", Err("no network".to_owned()))]),
        ("keeps", [Keeps([1, 7, u32::MAX].into()).encode(), Keeps::default().encode()]),
    ]
}

/// A message without its checksum.
fn open(message: &[u8]) -> &[u8] {
    &message[..message.len() - 8]
}

/// A message with a valid checksum.
fn sealed(open: &[u8]) -> Vec<u8> {
    [open, &XxHash3_64::oneshot(open).to_le_bytes()].concat()
}

/// Full samples with some bytes replaced, without their checksums, and why each is refused.
fn refused() -> Vec<(&'static str, &'static str, Vec<u8>, &'static str)> {
    let samples = samples();
    let with = |kind: &'static str, name: &'static str, at: usize, bytes: &[u8], why: &'static str| {
        let (_, [full, _]) = samples.iter().find(|(found, _)| *found == kind).unwrap();
        let mut changed = open(full).to_vec();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        (kind, name, changed, why)
    };
    let too_long = (TEXT_BYTES_MAX as u16 + 1).to_le_bytes();
    vec![
        with("news", "kind-unknown", 38, &[4], "news of kind 4"),
        with("news", "kind-zero", 38, &[0], "news of kind 0"),
        with("news", "over-with-more", 38, &[3], "bytes follow where it should end"),
        with("news", "reason-huge", 51, &[0xff; 2], "a text of 65535 bytes; at most 4096"),
        with("news", "reason-long", 51, &too_long, "a text of 4097 bytes; at most 4096"),
        with("news", "reason-cut", 51, &[0, 1], "is cut off"),
        with("news", "reason-not-utf8", 53, &[0xff], "not UTF-8"),
        with("holdings", "layers-65", 22, &[65], "65 layers; at most 64"),
        with("holdings", "layers-huge", 22, &[0xff; 4], "4294967295 layers; at most 64"),
        with("holdings", "layers-more", 22, &[3], "are not in ascending order"),
        with("holdings", "runs-many", 26, &[0xff; 4], "is cut off"),
        with("holdings", "versions-many", 30, &[0xff; 4], "is cut off"),
        with("holdings", "unreadable-many", 34, &[0xff; 4], "is cut off"),
        with("holdings", "runs-same", 54, &RunId(7).0.to_le_bytes(), "runs are not in ascending order"),
        with("holdings", "versions-same", 70, &[42], "its versions are not in ascending order"),
        with("holdings", "unreadable-same", 142, &[0xff; 8], "its unreadable versions are not in ascending order"),
        with("holdings", "former-many", 170, &[0xff; 4], "4294967295 former ranks; at most 16777216"),
        with("holdings", "former-missing", 170, &[3], "is cut off"),
        with("holdings", "former-neither", 182, &[2], "neither that a former rank is adopted"),
        with("mark", "runs-many", 6, &65_537_u32.to_le_bytes(), "65537 runs; at most 65536"),
        with("mark", "runs-missing", 6, &[3], "is cut off"),
        with("mark", "runs-more", 6, &[1], "16 bytes follow"),
        with("mark", "runs-descending", 10, &[0xff; 16], "runs are not in ascending order"),
        with("mark", "runs-same", 26, &RunId(7).0.to_le_bytes(), "runs are not in ascending order"),
        with("answer", "kind-unknown", 6, &[2], "an answer of kind 2"),
        with("answer", "yes-with-reason", 6, &[0], "15 bytes follow"),
        with("answer", "reason-long", 7, &too_long, "a text of 4097 bytes; at most 4096"),
        with("candidates", "many", 6, &[0xff; 4], "is cut off"),
        with("candidates", "same", 10, &[42], "the versions are not in ascending order"),
        with("candidates", "descending", 10, &[43], "the versions are not in ascending order"),
        with("verdict", "kind-unknown", 30, &[3], "a verdict of kind 3"),
        with("sharing", "fits-unknown", 6, &[2], "neither that it fits nor that it does not"),
        with("shared_blocks", "many", 6, &[0xff; 8], "is cut off"),
        with("shared_blocks", "overflow", 6, &(u64::MAX / 20 + 2).to_le_bytes(), "is cut off"),
        with("shared_locations", "many", 6, &[0xff; 8], "is cut off"),
        with("shared_locations", "coding-unknown", 58, &[3], "coding 3 with shuffle 0 is not known"),
        with("shared_locations", "shuffle-of-raw", 59, &[4], "coding 0 with shuffle 4 is not known"),
        with("shared_locations", "shuffle-1", 105, &[1], "coding 2 with shuffle 1 is not known"),
        with("shared_packs", "many", 6, &[0xff; 8], "is cut off"),
        with("shared_packs", "fewer", 6, &[1], "32 bytes follow"),
        with("due", "neither", 6, &[2], "neither that it is time to save nor that it is not"),
    ]
}

#[test]
fn samples_are_read_and_are_in_the_corpus() {
    assert_eq!(samples().iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), KINDS.map(|(kind, _)| kind));
    for (kind, messages) in samples() {
        for (nth, message) in messages.iter().enumerate() {
            assert_eq!(decode(kind, message).as_ref(), Ok(message));
            // Without its checksum, which the fuzz target adds.
            assert_in_corpus(kind, &format!("sample-{nth}"), open(message));
        }
    }
}

#[test]
fn every_flipped_bit_and_every_missing_byte_is_found() {
    for (kind, message) in samples().into_iter().flat_map(|(kind, both)| both.map(|message| (kind, message))) {
        let mut bytes = message.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = decode(kind, &bytes).unwrap_err();
            assert!(matches!(error, Error::Changed { structure: Structure::Message, .. }), "{kind}, {bit}: {error}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..message.len() {
            assert!(decode(kind, &message[..length]).is_err(), "{kind} of {length} bytes");
        }
        assert!(decode(kind, &[&message[..], &[0]].concat()).is_err(), "{kind} with one byte more");
    }
}

/// Damage that the checksum cannot detect: a faulty writer, not a faulty medium.
#[test]
fn every_change_with_a_right_checksum_is_refused_or_is_another_valid_message() {
    for (kind, message) in samples().into_iter().flat_map(|(kind, both)| both.map(|message| (kind, message))) {
        let check = decoders::ALL.iter().find(|(name, _)| *name == kind).unwrap().1;
        let mut bytes = open(&message).to_vec();
        assert!(check(&bytes));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The check compares what was read with what is written.
            let is_value = check(&bytes);
            assert!(!is_value || bit >= 6 * 8, "{kind}: bit {bit} of the head may be anything");
            assert!(
                !is_value || decode(kind, &sealed(&bytes)) != Ok(message.clone()),
                "{kind}: bit {bit} means nothing"
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..bytes.len() {
            let error = decode(kind, &sealed(&bytes[..length])).unwrap_err();
            assert!(matches!(error, Error::Short { structure: Structure::Message, .. }), "{kind}, {length}: {error}");
        }
        let error = decode(kind, &sealed(&[&bytes[..], &[0]].concat())).unwrap_err().to_string();
        assert!(error.contains("1 bytes follow where it should end"), "{kind}: {error}");
    }
}

#[test]
fn what_cannot_be_is_refused_though_its_checksum_is_right() {
    for (kind, name, bytes, why) in refused() {
        let error = decode(kind, &sealed(&bytes)).unwrap_err().to_string();
        assert!(error.starts_with("the message of a rank is ") && error.contains(why), "{kind}, {name}: {error}");
        assert_in_corpus(kind, name, &bytes);
    }
}

#[test]
fn a_message_of_another_kind_is_refused() {
    for (kind, [message, _]) in samples() {
        for (other, decode) in KINDS.iter().filter(|(other, _)| *other != kind) {
            let error = decode(&message).unwrap_err().to_string();
            assert!(error.contains("another message than the one that is expected"), "{kind} as {other}: {error}");
        }
    }
}

#[test]
fn another_format_is_refused_and_named() {
    for (kind, [message, _]) in samples() {
        for format in [0, 2, u16::MAX] {
            let mut bytes = open(&message).to_vec();
            bytes[4..6].copy_from_slice(&format.to_le_bytes());
            let error = decode(kind, &sealed(&bytes)).unwrap_err();
            let expected = format!("the message of a rank has format {format}, and this Outcrop reads formats up to 1");
            assert!(error.to_string().starts_with(&expected), "{kind}: {error}");
            let found = format.into();
            assert_eq!(error, Error::Format { structure: Structure::Message, found, newest: 1 });
        }
    }
}

#[test]
fn the_largest_of_each_bound_is_read_and_one_more_is_refused() {
    let runs = |count| Mark((0..count).map(RunId).collect());
    let bytes = runs(65_536).encode().unwrap();
    assert_eq!(bytes.len(), MARK_BYTES_MAX);
    assert_eq!(Mark::decode(&bytes), Ok(runs(65_536)));
    let error = runs(65_537).encode().unwrap_err().to_string();
    assert!(error.contains("65537 runs; at most 65536 are possible"), "{error}");

    let layers = |count| Holdings { proposal: RUN, layers: vec![HeldLayer::default(); count], former: Vec::new() };
    assert_eq!(Holdings::decode(&layers(64).encode()), Ok(layers(64)));
    let error = Holdings::decode(&layers(65).encode()).unwrap_err().to_string();
    assert!(error.contains("65 layers; at most 64 are possible"), "{error}");
}

#[test]
fn long_reasons_are_cut_off_between_characters() {
    // In the second text, the last character starts one byte before the limit, and has two bytes.
    for (reason, kept) in [("x".repeat(5000), 4096), (format!("x{}", "ö".repeat(3000)), 4095), ("x".repeat(4096), 4096)]
    {
        assert_eq!(News::decode(&failed(&reason).encode()), Ok(failed(&reason[..kept])));
        let answer = |reason: &str| Answer(Err(reason.to_owned()));
        assert_eq!(Answer::decode(&answer(&reason).encode()), Ok(answer(&reason[..kept])));
    }
}

fn run() -> impl Strategy<Value = RunId> {
    any::<u128>().prop_map(RunId)
}

fn reason() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,60}", Just("n".repeat(TEXT_BYTES_MAX))]
}

fn tidings() -> impl Strategy<Value = Tidings> {
    prop_oneof![
        any::<(u32, u64)>().prop_map(|(layer, version)| Tidings::Here { layer, version }),
        (any::<u32>(), any::<u64>(), reason()).prop_map(|(layer, version, reason)| Tidings::Failed {
            layer,
            version,
            reason
        }),
        Just(Tidings::Over),
    ]
}

fn held_layer() -> impl Strategy<Value = HeldLayer> {
    let held = (run(), any::<(u64, u32)>());
    let held = held.prop_map(|(run, (saved_at_unix_ns, ranks))| Held { run, saved_at_unix_ns, ranks });
    (btree_set(run(), 0..5), btree_map(any::<u64>(), held, 0..5), btree_set(any::<u64>(), 0..5))
        .prop_map(|(runs, versions, unreadable)| HeldLayer { runs, versions, unreadable })
}

fn location() -> impl Strategy<Value = SharedLocation> {
    let kind = prop_oneof![Just(CodingKind::Raw), Just(CodingKind::Lz4), Just(CodingKind::Zstd)];
    let coding = (kind, any::<u8>()).prop_map(|(kind, shuffle)| Coding::new(kind, shuffle));
    (any::<[u8; 16]>(), any::<(u32, u64, u64)>(), any::<(u32, u32)>(), coding).prop_map(
        |(hash, (bytes, number, at), (stored, check), coding)| SharedLocation {
            hash,
            bytes,
            number,
            at,
            stored: Stored { bytes: stored, check },
            coding,
        },
    )
}

proptest! {
    #[test]
    fn what_ranks_announce_and_find(
        run in run(), number: u64, era: u64, tidings in tidings(), layers in vec(held_layer(), 0..4),
        former in vec((any::<(u32, u32)>(), prop::option::of(held_layer())), 0..3),
    ) {
        let news = News { run, number, era, tidings };
        prop_assert_eq!(News::decode(&news.encode()), Ok(news));
        let mark = Mark(layers.iter().flat_map(|layer| layer.runs.clone()).collect());
        prop_assert_eq!(Mark::decode(&mark.encode().unwrap()), Ok(mark));
        let former = former.into_iter().map(|((layer, rank), held)| Former { layer, rank, held }).collect();
        let holdings = Holdings { proposal: run, layers, former };
        prop_assert_eq!(Holdings::decode(&holdings.encode()), Ok(holdings));
    }

    #[test]
    fn what_ranks_agree_on(
        answer in prop::result::maybe_ok(Just(()), reason()), versions in btree_map(any::<u64>(), run(), 0..9),
        version: u64, run in run(), fared in prop::sample::select(vec![Fared::Whole, Fared::Damaged, Fared::Refused]),
    ) {
        let answer = Answer(answer);
        prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        let candidates = Candidates(versions.into_iter().collect());
        prop_assert_eq!(Candidates::decode(&candidates.encode()), Ok(candidates));
        let verdict = Verdict { version, run, fared };
        prop_assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
    }

    #[test]
    fn what_ranks_share(
        fits: bool, losses: u64, blocks in vec(any::<([u8; 16], u32)>(), 0..9), locations in vec(location(), 0..9),
        packs in vec(any::<(u64, u64, u128)>(), 0..9),
    ) {
        let sharing = Sharing { fits, losses };
        prop_assert_eq!(Sharing::decode(&sharing.encode()), Ok(sharing));
        let blocks = SharedBlocks(blocks);
        prop_assert_eq!(SharedBlocks::decode(&blocks.encode()), Ok(blocks));
        let locations = SharedLocations(locations);
        prop_assert_eq!(SharedLocations::decode(&locations.encode()), Ok(locations));
        let pack = |(number, file_bytes, index_check): (u64, u64, u128)| SharedPack {
            number: number.into(),
            file_bytes: file_bytes.into(),
            index_check: index_check.into(),
        };
        let packs = SharedPacks(packs.into_iter().map(pack).collect());
        prop_assert_eq!(SharedPacks::decode(&packs.encode()), Ok(packs));
    }
}
