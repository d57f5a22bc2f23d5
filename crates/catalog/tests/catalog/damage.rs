//! Changes every byte of a small store, one by one, and truncates every file at every length. Each
//! damage is found, its harm is reported, and no wrong byte is ever read.

use std::{collections::BTreeSet, sync::Arc, thread};

use outcrop_catalog::{Catalog, FindingKind, Reader, Verified, verify};
use outcrop_format::{Coding, CodingKind};

use crate::fixture::{MemoryFiles, Region, Writer, pattern};

/// What is saved: version, rank, region, bytes.
type Saved = Vec<(u64, u32, String, Vec<u8>)>;
/// Version, rank, region.
type Part = (u64, u32, String);

/// Two ranks that share blocks, two versions, blocks that only the first version needs, compressed
/// blocks, and gaps between blocks.
fn small_store() -> (MemoryFiles, Saved) {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 2);
    writer.is_deduplicating = true;
    let mut saved = Vec::new();
    for version in 1..=2 {
        for rank in 0..2 {
            let mut field = pattern(1, 700);
            field[0] = version as u8;
            let coded = pattern(version, 300);
            let regions = [
                Region::new("field", 256, field),
                Region::new("coded", 256, coded).coded(Coding::new(CodingKind::Lz4, 4)).without(10..12),
            ];
            writer.save(rank, version, &regions);
            saved.extend(regions.map(|region| (version, rank, region.name, region.bytes)));
        }
    }
    for (_, _, name, bytes) in &mut saved {
        if name == "coded" {
            bytes[10..12].fill(0);
        }
    }
    let mut files = MemoryFiles::load(directory.path());
    files.0.retain(|name, _| !name.ends_with("lock"));
    (files, saved)
}

fn look(files: &MemoryFiles) -> Verified {
    verify(&Catalog::new(Arc::new(files.clone())), None, None, &|_, _| {}).unwrap()
}

/// The parts that cannot be read. Checks that the others are correct.
fn lost(files: &MemoryFiles, saved: &Saved) -> BTreeSet<Part> {
    let catalog = Catalog::new(Arc::new(files.clone()));
    let versions = catalog.versions("heat").unwrap();
    let mut lost = BTreeSet::new();
    let mut reader: Option<(u64, u32, Option<Reader>)> = None;
    for (version, rank, region, bytes) in saved {
        if reader.as_ref().is_none_or(|(v, r, _)| (v, r) != (version, rank)) {
            let mut groups = versions.iter().filter(|group| group.version == *version);
            let manifest = groups.find_map(|group| group.manifests.get(rank));
            let opened = manifest.and_then(|manifest| catalog.reader(manifest).ok());
            reader = Some((*version, *rank, opened));
        }
        let opened = reader.as_ref().and_then(|(_, _, reader)| reader.as_ref());
        match opened.map(|reader| reader.read_region(region)) {
            Some(Ok(read)) => assert!(read == *bytes, "wrong bytes in {region} of version {version} of rank {rank}"),
            Some(Err(error)) => {
                assert!(error.is_damage(), "{error}");
                lost.insert((*version, *rank, region.clone()));
            }
            None => drop(lost.insert((*version, *rank, region.clone()))),
        }
    }
    lost
}

/// The parts that a verification reports as harmed.
fn harmed(verified: &Verified, saved: &Saved) -> BTreeSet<Part> {
    let mut harmed = BTreeSet::new();
    for harm in verified.findings.iter().flat_map(|finding| &finding.harms) {
        for (version, rank, region, _) in saved {
            let is_region = harm.region.as_ref().is_none_or(|(name, _)| name == region);
            if (harm.version, harm.rank) == (*version, *rank) && is_region {
                harmed.insert((*version, *rank, region.clone()));
            }
        }
    }
    harmed
}

/// Compares what a verification of a damaged store reports with what cannot be read.
fn check(files: &MemoryFiles, saved: &Saved, file: &str, what: &str) -> usize {
    let verified = look(files);
    let damaged: Vec<_> = verified.findings.iter().filter(|finding| finding.kind == FindingKind::Damage).collect();
    assert!(damaged.iter().any(|finding| finding.file == file), "{file}: {what}: {:?}", verified.findings);
    let lost = lost(files, saved);
    assert_eq!(harmed(&verified, saved), lost, "{file}: {what}: {damaged:?}");
    lost.len()
}

#[test]
fn a_sound_store_has_no_findings() {
    let (files, saved) = small_store();
    assert!(look(&files).findings.is_empty());
    assert!(lost(&files, &saved).is_empty());
}

/// Manifests and indexes with right checksums that refer to what is not there.
#[test]
fn borrowed_blocks_that_do_not_exist_are_found_before_anything_is_read() {
    let regions = [Region::new("field", 256, pattern(1, 700))];
    for is_unnamed in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(directory.path(), "heat", 2);
        writer.is_deduplicating = true;
        writer.save(0, 1, &regions);
        if !is_unnamed {
            // The first of its blocks would still lie in the file, if the whole file were blocks.
            writer.misplace(256);
        }
        writer.save(1, 1, &regions);
        if is_unnamed {
            let own = writer.chain(1).into_iter().filter(|pack| !pack.is_borrowed).collect();
            writer.write_manifest(1, 1, 0, &regions, own);
        }
        let catalog = Catalog::new(Arc::new(MemoryFiles::load(directory.path())));
        let versions = catalog.versions("heat").unwrap();
        assert!(catalog.reader(&versions[0].manifests[&0]).is_ok());
        let error = catalog.reader(&versions[0].manifests[&1]).expect_err("its blocks are nowhere");
        let reason = if is_unnamed { "which the manifest does not name" } else { "where no blocks are" };
        assert!(error.is_damage() && error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn every_changed_byte_is_found_and_so_is_what_it_harms() {
    let (files, saved) = small_store();
    let all: Vec<_> =
        files.0.iter().flat_map(|(name, bytes)| (0..bytes.len()).map(move |at| (name, bytes, at))).collect();
    let count = all.len();
    let check_some = |some: &[(&String, &Arc<Vec<u8>>, usize)]| {
        let mut harmless = 0;
        for &(name, bytes, at) in some {
            let mut files = files.clone();
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << (at % 8);
            files.0.insert(name.clone(), Arc::new(changed));
            harmless += usize::from(check(&files, &saved, name, &format!("byte {at}")) == 0);
        }
        harmless
    };
    let harmless: usize = thread::scope(|scope| {
        let (front, back) = all.split_at(count / 2);
        let other = scope.spawn(|| check_some(front));
        check_some(back) + other.join().unwrap()
    });
    println!("changed bytes: {count}, all found; {harmless} of them in padding that no version needs");
    assert!(harmless > 0, "padding is looked at as well");
}

#[test]
fn every_truncation_and_every_longer_file_is_found() {
    let (files, saved) = small_store();
    for (name, bytes) in &files.0 {
        let lengths = (0..bytes.len()).chain([bytes.len() + 1, 3 * bytes.len()]);
        for length in lengths {
            let mut files = files.clone();
            let mut changed = bytes.to_vec();
            changed.resize(length, 0);
            files.0.insert(name.clone(), Arc::new(changed));
            assert!(check(&files, &saved, name, &format!("{length} of {} bytes", bytes.len())) > 0);
        }
        let mut files = files.clone();
        files.0.remove(name);
        if name.contains("/pack-") {
            assert!(check(&files, &saved, name, "missing") > 0);
        } else {
            let findings = look(&files).findings;
            assert!(findings.iter().any(|finding| finding.kind == FindingKind::Incomplete), "{findings:?}");
        }
    }
}

/// Valid checksums in the wrong place: what an operator can do with `mv` and `cp`.
#[test]
fn exchanged_files_are_found() {
    let (files, saved) = small_store();
    let names: Vec<_> = files.0.keys().cloned().collect();
    for a in &names {
        for b in names.iter().filter(|b| *b != a && b.contains("/pack-") == a.contains("/pack-")) {
            let mut files = files.clone();
            files.0.insert(a.clone(), Arc::clone(&files.0[b]));
            check(&files, &saved, a, &format!("replaced by {b}"));
        }
    }
}

#[test]
fn zeroed_pages_and_swapped_blocks_are_found() {
    let (files, saved) = small_store();
    for (name, bytes) in files.0.iter().filter(|(name, _)| name.contains("/pack-")) {
        for start in (0..bytes.len()).step_by(512) {
            if bytes[start..start + 512].iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut files = files.clone();
            let mut changed = bytes.to_vec();
            changed[start..start + 512].fill(0);
            files.0.insert(name.clone(), Arc::new(changed));
            assert!(check(&files, &saved, name, &format!("zeros at {start}")) > 0);
        }
    }
    let (name, bytes) = files.0.iter().find(|(name, _)| name.contains("/pack-")).unwrap();
    let mut changed = bytes.to_vec();
    let (first, second) = changed[4096..].split_at_mut(256);
    first.swap_with_slice(&mut second[..256]);
    let mut files = files.clone();
    files.0.insert(name.clone(), Arc::new(changed));
    assert!(check(&files, &saved, name, "swapped blocks") > 0);
}
