//! Damaged bytes, and bytes that no writer would have written.

use outcrop_format::{Blocks, Decoder, Error, Manifest, PAGE_BYTES, PackHeader, Result, Structure};
use outcrop_region::Shape;
use twox_hash::XxHash3_128;

use crate::{
    corpus::assert_in_corpus,
    samples::{self, Sample},
};

fn index_of<'a>(header: &PackHeader, file: &'a [u8]) -> &'a [u8] {
    let range = header.index_range();
    &file[range.start as usize..range.end as usize]
}

/// Reads every byte of a pack, as a reader does. Returns what is wrong.
fn verify(file: &[u8]) -> std::result::Result<(), String> {
    let text = |error: Error| error.to_string();
    let header = PackHeader::decode(file).map_err(text)?;
    if header.file_bytes() != file.len() as u64 {
        return Err("the length".to_owned());
    }
    let index = header.decode_index(index_of(&header, file)).map_err(text)?;
    let bytes = |start: u64, end: u64| &file[start as usize..end as usize];
    if header.zero_ranges(&index).iter().any(|range| bytes(range.start, range.end).iter().any(|&byte| byte != 0)) {
        return Err("zeros".to_owned());
    }
    let mut decoder = Decoder::new();
    let places = index.regions().iter().flat_map(|region| region.places());
    for (_, place) in places.filter(|(_, place)| place.pack == header.origin().id) {
        let mut plain = vec![0; place.plain_bytes as usize];
        let stored = bytes(place.at, place.range().end);
        decoder.decode(place.coding, place.stored.check, stored, &mut plain).map_err(text)?;
        if samples::hash(&plain) != place.hash {
            return Err("the hash of a block".to_owned());
        }
    }
    Ok(())
}

#[test]
fn every_flipped_bit_of_a_pack_is_found() {
    for mut file in [samples::small().file, samples::full().file] {
        assert_eq!(verify(&file), Ok(()));
        for bit in 0..file.len() * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&file).is_err(), "bit {bit} was flipped and nobody noticed");
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_flipped_bit_of_a_manifest_is_found() {
    for sample in [samples::small(), samples::full()] {
        let mut bytes = sample.manifest.encode().unwrap();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes).is_err(), "bit {bit} was flipped and nobody noticed");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_truncation_is_found() {
    let Sample { file, header, manifest, .. } = samples::full();
    for length in 0..PAGE_BYTES {
        assert!(PackHeader::decode(&file[..length]).is_err());
    }
    let index = index_of(&header, &file);
    for length in 0..index.len() {
        let cut = Error::Short {
            structure: Structure::PackIndex,
            at: 0,
            needed: index.len() as u64,
            available: length as u64,
        };
        assert_eq!(header.decode_index(&index[..length]), Err(cut));
    }
    let bytes = manifest.encode().unwrap();
    for length in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..length]).is_err());
    }
    // Extra bytes are as wrong as missing ones.
    assert!(Manifest::decode(&[&bytes[..], &[0]].concat()).is_err());
    assert!(header.decode_index(&[index, &[0]].concat()).is_err());
}

#[test]
fn other_files_and_other_formats_are_named() {
    let Sample { mut file, manifest, .. } = samples::small();
    file[8] = 2;
    let error = PackHeader::decode(&file).unwrap_err();
    assert_eq!(error, Error::Format { structure: Structure::PackHeader, found: 2, newest: 1 });
    assert!(error.to_string().contains("has format 2, and this Outcrop reads formats up to 1"), "{error}");
    let mut bytes = manifest.encode().unwrap();
    assert!(matches!(PackHeader::decode(&bytes), Err(Error::Magic { structure: Structure::PackHeader, .. })));
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let newer = Error::Format { structure: Structure::Manifest, found: u32::MAX, newest: 2 };
    assert_eq!(Manifest::decode(&bytes), Err(newer));
    bytes[8..12].copy_from_slice(&0u32.to_le_bytes());
    assert!(matches!(Manifest::decode(&bytes), Err(Error::Format { found: 0, .. })));
    let error = Manifest::decode(b"\x7fELF\0\"\n something else").unwrap_err();
    assert!(error.to_string().contains(r#"begins with "\x7fELF\x00\"\n ", not with "OUTCMANI""#), "{error}");
}

#[test]
fn messages_say_what_was_changed() {
    let Sample { mut file, header, manifest, .. } = samples::small();
    let at = header.index_range().start as usize;
    file[at + 60] ^= 1;
    let error = header.decode_index(index_of(&header, &file)).unwrap_err();
    assert!(error.to_string().starts_with("the pack's index was changed: its checksum is "), "{error}");
    let mut bytes = manifest.encode().unwrap();
    bytes[70] ^= 1;
    let error = Manifest::decode(&bytes).unwrap_err();
    assert!(error.to_string().starts_with("the manifest was changed: its checksum is "), "{error}");
}

/// Checks that decoding fails with `expected` at byte `at`.
#[track_caller]
fn assert_wrong<T: std::fmt::Debug>(decoded: Result<T>, at: u64, expected: &str) {
    match decoded.unwrap_err() {
        Error::Wrong { at: found, problem, .. } => {
            assert!(problem.contains(expected), "\"{problem}\" does not say \"{expected}\"");
            assert_eq!(found, at, "{problem}");
        }
        Error::Short { at: found, .. } => assert_eq!((found, expected), (at, "cut off")),
        other => panic!("{other} is not \"{expected}\""),
    }
}

#[test]
fn headers_that_make_no_sense_are_refused() {
    let checks: [(usize, &[u8], u64, &str); 9] = [
        (48, &u64::MAX.to_le_bytes(), 48, "a payload of 18446744073709551615 bytes"),
        (48, &(1_u64 << 56).to_le_bytes(), 56, "the index is at byte 4128"),
        (56, &4127_u64.to_le_bytes(), 56, "the index is at byte 4127"),
        (56, &(4128_u64 + 4096).to_le_bytes(), 56, "less than a page after"),
        (56, &u64::MAX.to_le_bytes(), 56, "the index is at byte 18446744073709551615"),
        (64, &((1_u64 << 32) + 1).to_le_bytes(), 64, "an index of 4294967297 bytes"),
        (88, &[0], 88, "hash kind 0 is not known"),
        (89, &[1], 89, "an unused byte is not zero"),
        (PAGE_BYTES - 17, &[0x80], PAGE_BYTES as u64 - 17, "an unused byte is not zero"),
    ];
    for (place, bytes, at, expected) in checks {
        let mut page = samples::small().header.encode();
        page[place..place + bytes.len()].copy_from_slice(bytes);
        let check = XxHash3_128::oneshot(&page[..PAGE_BYTES - 16]);
        page[PAGE_BYTES - 16..].copy_from_slice(&check.to_le_bytes());
        assert_wrong(PackHeader::decode(&page), at, expected);
    }
    // The largest possible file, and a larger one.
    let header = samples::small().header;
    let largest = (1_u64 << 56) - 2 * PAGE_BYTES as u64;
    let made = |bytes: u64| PackHeader::new(*header.origin(), bytes, PAGE_BYTES as u64 + bytes, &[0; PAGE_BYTES]);
    assert_eq!(made(largest).unwrap().file_bytes(), 1 << 56);
    assert!(matches!(made(largest + 1), Err(Error::Unfit { .. })));
}

/// Decodes an index with these bytes at `place`, with a valid checksum.
fn changed_index(place: usize, bytes: &[u8]) -> Result<outcrop_format::Index> {
    let Sample { file, header, .. } = samples::full();
    let mut index = index_of(&header, &file).to_vec();
    index[place..place + bytes.len()].copy_from_slice(bytes);
    let payload_bytes = header.payload_range().end - PAGE_BYTES as u64;
    PackHeader::new(*header.origin(), payload_bytes, header.index_range().start, &index).unwrap().decode_index(&index)
}

#[test]
fn indexes_that_make_no_sense_are_refused() {
    // The layout of the sample: the nameless region has one extent, which begins at 21, and its
    // hash ends at 71. Then comes "Feld ö".
    let field = 71;
    let extent = |nth: usize| field + 17 + 7 + 34 * nth;
    let stored = extent(6) + 8 * 16;
    let long = u64::MAX.to_le_bytes();
    let at = |place: usize| place as u64;
    let checks: [(usize, &[u8], u64, &str); 25] = [
        (0, &[2], at(stored) + 24, "22 bytes follow"),
        (0, &[4], at(stored) + 24 + 22, "cut off"),
        (0, &u32::MAX.to_le_bytes(), 0, "4294967295 regions"),
        (field, &long, at(field), "a region of 18446744073709551615 bytes"),
        (field + 8, &[0, 3], at(field), "blocks of 768 bytes"),
        (field + 8, &[128, 0], at(field), "blocks of 128 bytes"),
        (field + 8, &[0, 0, 0, 2], at(field), "blocks of 33554432 bytes"),
        (field + 12, &u32::MAX.to_le_bytes(), at(extent(0)), "cut off"),
        (field + 16, &[255], at(field) + 17, "not UTF-8"),
        (field + 17, b"/", at(field) + 17, "no name of a region"),
        (field + 17, &[0], at(field) + 17, "no name of a region"),
        (field + 17, &[0xff], at(field) + 17, "not UTF-8"),
        (field + 17, b"z", at(stored) + 24, "is not in order"),
        (extent(0), &long, at(extent(0)), "blocks up to 18446744073709551615, and there are 8"),
        (extent(1), &[1], at(extent(1)), "block 1 follows block 2"),
        (extent(6) - 34, &[8], at(extent(5)), "blocks up to 9"),
        (extent(0) + 8, &[255, 15], at(extent(0)), "where none can be"),
        (extent(0) + 8, &long, at(extent(0)), "where none can be"),
        (extent(3) + 8, &[0, 0, 0, 0, 0, 0, 0, 1], at(extent(3)), "where none can be"),
        (extent(5) + 8, &[0, 0x20], at(extent(5)), "the payload ends at 5208"),
        (extent(0) + 28, &[0, 0, 0, 0], at(extent(0)), "an extent without blocks"),
        (extent(0) + 28, &u32::MAX.to_le_bytes(), at(extent(6)), "cut off"),
        (extent(0) + 32, &[3], at(extent(0)), "coding 3 with shuffle 0"),
        (extent(0) + 33, &[4], at(extent(0)), "coding 0 with shuffle 4"),
        (extent(3) + 33, &[1], at(extent(3)), "coding 1 with shuffle 1"),
    ];
    assert!(changed_index(0, &[3]).is_ok());
    for (place, bytes, at, expected) in checks {
        println!("{bytes:?} at {place}");
        assert_wrong(changed_index(place, bytes), at, expected);
    }
    for bytes in [0_u32, 257, u32::MAX] {
        let expected = format!("block 4 of 256 bytes is stored in {bytes} bytes");
        assert_wrong(changed_index(stored, &bytes.to_le_bytes()), at(extent(3)), &expected);
    }
}

/// Decodes a manifest with these bytes at `place`, with a valid checksum.
fn changed_manifest(place: usize, bytes: &[u8]) -> Result<Manifest> {
    let mut body = samples::full().manifest.encode().unwrap();
    body.truncate(body.len() - 16);
    body[place..place + bytes.len()].copy_from_slice(bytes);
    let check = XxHash3_128::oneshot(&body);
    body.extend_from_slice(&check.to_le_bytes());
    Manifest::decode(&body)
}

#[test]
fn manifests_that_make_no_sense_are_refused() {
    let field = 69 + "heat-2.b_x".len();
    let shape = field + 27 + "Feld öf64".len();
    let excluded = shape + 48;
    let nameless = excluded + 32;
    let empty = nameless + 27 + 8;
    let packs = empty + 27 + "emptyu8".len() + 16;
    let at = |place: usize| place as u64;
    let many = u32::MAX.to_le_bytes();
    let checks: [(usize, &[u8], u64, &str); 36] = [
        (12, &[2], at(packs), "pack 18446744073709551615 of rank 1 is not borrowed, and this is rank 2"),
        (56, &[1], 0, "rank 1 of 1 ranks"),
        (56, &many, 0, "rank 1 of 4294967295 ranks"),
        (60, &many, at(packs), "a region of 18446744073709551615 bytes"),
        (64, &many, at(packs), "cut off"),
        (64, &[1], at(packs) + 37, "37 bytes follow"),
        (68, &[255], 69, "not UTF-8"),
        (69, b"/", 0, "cannot be the name of a session"),
        (69, &[0xc3], 69, "not UTF-8"),
        (field + 7, &[255], at(field), "a region of"),
        (field + 8, &[1, 1], at(field), "blocks of 257 bytes"),
        (field + 12, &[0], at(field), "no whole number of elements of 0 bytes"),
        (field + 12, &[7], at(field), "no whole number of elements of 7 bytes"),
        (field + 16, &many, at(excluded), "cut off"),
        (field + 20, &[4], at(field), "hash kind 4 is not known"),
        (field + 22, &[255, 255], at(field) + 34, "cut off"),
        (field + 24, &[255], at(shape), "cut off"),
        (field + 24, &[1], at(shape), "dimension 0 has 10 from 40 on, of 25"),
        (field + 25, &[2], at(shape), "memory order 2 is not known"),
        (field + 26, &[2], at(shape), "a shape has the mark 2"),
        (field + 27, b"/", at(field), "it has a `/`"),
        (field + 27 + 7, b"\n", at(field), "control character"),
        (shape, &[9], at(field), "an array of 9 x 25 at (30, 0) of 40 x 25, column-major with elements of 8 bytes"),
        (shape + 15, &[255], at(shape), "more elements than can be counted"),
        (shape + 16, &[39], at(shape), "dimension 0 has 10 from 30 on, of 39"),
        (shape + 47, &[255], at(shape), "the box is not inside its global array"),
        (nameless + 25, &[1], at(nameless) + 27, "column-major order where there is only one order"),
        (excluded, &[3], at(field), "the excluded bytes 3 to 3"),
        (excluded + 16, &[3, 0], at(field), "the excluded bytes 3 to 1100"),
        (excluded + 24, &[0xd1, 7], at(field), "the excluded bytes 512 to 2001"),
        (excluded + 31, &[1], at(field), "beyond the end"),
        (packs + 8, &[1], at(packs), "which no pack has"),
        (packs + 8, &[0, 0x10], at(packs), "has 4096 bytes, which no pack has"),
        (packs + 15, &[2], at(packs), "which no pack has"),
        (packs + 36, &[2], at(packs), "the mark 2"),
        (packs + 37 + 36, &[0], at(packs) + 37, "pack 3 of rank 0 is not borrowed, and this is rank 1"),
    ];
    assert!(changed_manifest(0, b"OUTC").is_ok());
    for (place, bytes, at, expected) in checks {
        println!("{bytes:?} at {place}");
        assert_wrong(changed_manifest(place, bytes), at, expected);
    }
    let first: Vec<u8> = samples::full().manifest.encode().unwrap()[packs..packs + 37].to_vec();
    assert_wrong(changed_manifest(packs + 37, &first), 0, "is there twice");
}

#[test]
fn what_cannot_be_read_is_not_written() {
    let sample = samples::full().manifest;
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = sample.clone();
        change(&mut manifest);
        let error = manifest.encode().unwrap_err();
        assert!(matches!(error, Error::Unfit { structure: Structure::Manifest, .. }), "{error}");
    };
    refused(&|manifest| manifest.session.clear());
    refused(&|manifest| manifest.rank = 2);
    refused(&|manifest| manifest.regions[2].name.clear());
    refused(&|manifest| manifest.regions[1].name = "x".repeat(241));
    refused(&|manifest| manifest.regions[1].element = "x".repeat(65_536));
    refused(&|manifest| manifest.regions[1].shape = Shape::flat(99));
    refused(&|manifest| manifest.regions[1].excluded.push(0..101));
    refused(&|manifest| manifest.packs[1].id = manifest.packs[0].id);
    refused(&|manifest| manifest.packs[1].is_borrowed = false);
    refused(&|manifest| manifest.packs[0].file_bytes += 1);
    refused(&|manifest| manifest.regions = vec![manifest.regions[0].clone(); 65_537]);
}

/// A manifest with impossible claims is refused before any pack is opened.
#[test]
fn a_manifest_whose_packs_cannot_have_its_blocks_is_refused() {
    let small = samples::small().manifest;
    let with = |bytes: u64, excluded: Option<std::ops::Range<u64>>| {
        let mut manifest = small.clone();
        let region = &mut manifest.regions[0];
        region.blocks = Blocks::new(bytes, 256).unwrap();
        region.shape = Shape::flat(bytes as usize / 4);
        region.excluded = excluded.into_iter().collect();
        manifest
    };
    // Its pack has one page beside its header, so it has room for 256 hashes.
    let (most, huge) = (256 * 256, 1 << 48);
    let possible = [
        with(most, None),
        with(huge, Some(most..huge)),
        Manifest { packs: Vec::new(), ..with(huge, Some(0..huge)) },
        Manifest { packs: Vec::new(), regions: Vec::new(), ..small.clone() },
    ];
    for manifest in possible {
        assert_eq!(Manifest::decode(&manifest.encode().unwrap()), Ok(manifest));
    }
    let mut borrowed = with(most, None);
    borrowed.packs[0].is_borrowed = true;
    let impossible = [
        with(most + 4, None),
        with(huge, None),
        with(huge, Some(0..huge - most - 256)),
        // A block that is excluded only in part is saved.
        with(huge, Some(most + 1..huge)),
        Manifest { packs: Vec::new(), ..small.clone() },
        borrowed,
    ];
    for manifest in impossible {
        let error = manifest.encode().unwrap_err().to_string();
        assert!(error.contains("its packs no room for their hashes"), "{error}");
    }
    // The same in bytes that no writer would produce: an array with this many rows of 4 numbers.
    for (rows, is_possible) in [(4096_u64, true), (4097, false), (1 << 44, false)] {
        let mut bytes = small.encode().unwrap();
        bytes.truncate(bytes.len() - 16);
        bytes[0x49..0x51].copy_from_slice(&(rows * 16).to_le_bytes());
        bytes[0x6c..0x74].copy_from_slice(&rows.to_le_bytes());
        assert_in_corpus("manifest", &format!("rows-{rows}"), &bytes);
        bytes.extend_from_slice(&XxHash3_128::oneshot(&bytes).to_le_bytes());
        assert_eq!(Manifest::decode(&bytes).is_ok(), is_possible, "{rows} rows");
    }
}
