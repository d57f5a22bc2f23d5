//! Golden files: the committed bytes are what is written today, and can be read.
//!
//! After a deliberate change of the format, with a new format number, `OUTCROP_GOLDEN=write` writes
//! the files again.

use std::{env, fs, path::PathBuf};

use outcrop_format::{Decoder, Manifest, PAGE_BYTES, PackHeader};

use crate::{
    messages,
    samples::{self, Sample},
};

pub(crate) fn committed(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if env::var("OUTCROP_GOLDEN").is_ok_and(|wish| wish == "write") {
        fs::write(&path, bytes).unwrap();
    }
    fs::read(&path).unwrap()
}

fn check(name: &str, sample: &Sample) {
    let file = committed(&format!("{name}.pack"), &sample.file);
    assert!(file == sample.file, "another pack is written than {name}.pack");
    let header = PackHeader::decode(&file).unwrap();
    assert_eq!(header, sample.header);
    assert_eq!(header.file_bytes(), file.len() as u64);
    let range = header.index_range();
    let index = header.decode_index(&file[range.start as usize..range.end as usize]).unwrap();
    assert_eq!(index, sample.index);
    let manifest = committed(&format!("{name}.manifest"), &sample.manifest.encode().unwrap());
    assert_eq!(Manifest::decode(&manifest).unwrap(), sample.manifest);
    assert_eq!(sample.manifest.encode().unwrap(), manifest);
    // Written by a version of Outcrop before shapes. No code here can write it any more.
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}-1.manifest"));
    let first = Manifest::decode(&fs::read(path).unwrap()).unwrap();
    assert_eq!(first, samples::flattened(sample.manifest.clone()));
}

#[test]
fn the_small_files_are_as_committed() {
    check("small", &samples::small());
}

#[test]
fn the_full_files_are_as_committed() {
    check("full", &samples::full());
}

#[test]
fn every_block_of_the_full_pack_is_found_and_has_its_hash() {
    let Sample { file, header, index, .. } = samples::full();
    let mut decoder = Decoder::new();
    let mut seen = 0;
    for region in index.regions() {
        assert_eq!(region.block_count() as u64, region.blocks().count());
        for (block, place) in region.places().filter(|(_, place)| place.pack == header.origin().id) {
            let stored = &file[place.at as usize..place.range().end as usize];
            let mut plain = vec![0; place.plain_bytes as usize];
            decoder.decode(place.coding, place.stored.check, stored, &mut plain).unwrap();
            assert_eq!(samples::hash(&plain), place.hash, "block {block} of {}", region.name());
            seen += 1;
        }
    }
    assert_eq!(seen, 8);
}

#[test]
fn every_byte_that_nothing_names_is_listed_and_zero() {
    let Sample { file, header, index, .. } = samples::full();
    let zeros = header.zero_ranges(&index);
    let gap = PAGE_BYTES as u64 + 1007..PAGE_BYTES as u64 + 1012;
    assert_eq!(zeros, [gap, header.index_range().end..header.file_bytes()]);
    for range in zeros {
        assert!(file[range.start as usize..range.end as usize].iter().all(|&byte| byte == 0));
    }
}

/// The bytes of a hex dump in the documentation: lines of an offset and up to 16 bytes. Bytes that
/// are left out are zero.
fn documented(what: &str, length: usize) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, dump) = text.split_once(&format!("```{what}\n")).expect("the documentation shows it");
    let mut bytes = vec![0; length];
    for line in dump.lines().take_while(|line| *line != "```") {
        let (at, values) = line.split_once("  ").unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (nth, value) in values.split_whitespace().enumerate() {
            bytes[at + nth] = u8::from_str_radix(value, 16).unwrap();
        }
    }
    bytes
}

#[test]
fn the_documented_examples_are_the_small_ones() {
    let Sample { file, manifest, .. } = samples::small();
    assert!(documented("pack", file.len()) == file, "docs/format.md shows another pack");
    let encoded = manifest.encode().unwrap();
    let shown = documented("manifest", encoded.len());
    assert_eq!(shown, encoded);
    assert_eq!(Manifest::decode(&shown).unwrap(), manifest);
    let mark = messages::mark().encode().unwrap();
    assert_eq!(documented("runs", mark.len()), mark);
}
