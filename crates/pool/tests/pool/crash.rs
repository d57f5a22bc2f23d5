//! What a crash leaves of a pool: the last durable version, or the next one, whole, and the older
//! ones that are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use fastrand::Rng;
use outcrop_format::{PAGE_BYTES, POOL_FIRST_PAGE, pool_check};
use outcrop_pool::{Block, Options, Pool};
use outcrop_testing::{amount, covered, say};

use crate::{
    medium::Recorded,
    model::{Contents, Program, check_versions},
};

/// What was counted.
#[derive(Default)]
struct Counts {
    images: u64,
    /// Images by what a reader can tell apart.
    classes: BTreeSet<u64>,
    /// Images by the bytes of their roots, of which the classes are known: what roots lead to, by
    /// checksums that were compared, is the same.
    roots: BTreeSet<u64>,
}

/// A call of `persist`: between which moments it ran, the versions before it, and those after it.
struct Call {
    moments: std::ops::Range<usize>,
    before: Vec<u64>,
    after: Vec<u64>,
}

/// What a reader can tell of a pool: which structures its versions have, which pages of them are
/// zeros, and which are the same as in other versions.
fn class(pool: &Pool) -> u64 {
    let mut hasher = DefaultHasher::new();
    let views: Vec<_> = pool.versions().into_iter().map(|version| pool.view(version).unwrap()).collect();
    views.len().hash(&mut hasher);
    for (number, view) in views.iter().enumerate() {
        for part in view.structures() {
            let bytes = view.bytes(&part.name).unwrap();
            (&part.name, bytes.len()).hash(&mut hasher);
            bytes.chunks(4096).for_each(|page| page.iter().all(|byte| *byte == 0).hash(&mut hasher));
            for other in views[..number].iter().filter_map(|other| other.bytes(&part.name).ok()) {
                bytes.chunks(4096).zip(other.chunks(4096)).for_each(|(a, b)| (a == b).hash(&mut hasher));
            }
        }
    }
    hasher.finish()
}

/// Opens an image, and writes on.
fn check(image: Vec<u8>, call: &Call, versions_max: u64, attempted: &BTreeMap<u64, Contents>, counts: &mut Counts) {
    counts.images += 1;
    let roots = pool_check(&image[..image.len().min(POOL_FIRST_PAGE as usize * PAGE_BYTES)]);
    let pool = Pool::on(Recorded::new(image), Options::versions(versions_max)).unwrap();
    let versions = pool.versions();
    assert!(versions == call.before || versions == call.after, "{versions:?}, {:?} or {:?}", call.before, call.after);
    assert_eq!(pool.skipped(), []);
    versions.iter().for_each(|version| pool.view(*version).unwrap().verify().unwrap());
    if !counts.roots.insert(roots) || !counts.classes.insert(class(&pool)) {
        return;
    }
    check_versions(&pool, attempted);
    // Written on and checked again.
    let mut attempted = attempted.clone();
    let now = versions.last().map_or_else(Contents::new, |last| attempted[last].clone());
    attempted.retain(|version, _| versions.contains(version));
    let mut program = Program::new(pool, versions_max, counts.images);
    program.attempted = attempted;
    program.continue_from(now);
    for _ in 0..3 {
        program.change();
        program.persist().unwrap();
        program.check_versions();
    }
}

#[test]
fn no_crash_loses_a_version() {
    let mut counts = Counts::default();
    let (classes, mut seed) = (amount(5_000, 60_000), 0);
    while counts.classes.len() < classes {
        seed += 1;
        let versions_max = 1 + seed % 4;
        let medium = Recorded::new(Vec::new());
        let pool = Pool::on(medium.clone(), Options::versions(versions_max)).unwrap();
        let mut program = Program::new(pool, versions_max, seed);
        let mut calls = vec![Call { moments: 0..medium.stores.moment() + 1, before: vec![], after: vec![] }];
        for _ in 0..30 {
            let (from, before) = (medium.stores.moment(), program.pool.versions());
            program.step();
            let moments = from..medium.stores.moment() + 1;
            calls.extend((moments.len() > 1).then(|| Call { moments, before, after: program.pool.versions() }));
        }
        let mut rng = Rng::with_seed(seed);
        for call in &calls {
            medium.stores.images(call.moments.clone(), &mut rng, |moment, image| {
                let is_over = moment + 1 == call.moments.end;
                let sure = Call { moments: 0..0, before: call.after.clone(), after: call.after.clone() };
                check(image, if is_over { &sure } else { call }, versions_max, &program.attempted, &mut counts);
            });
        }
    }
    let (images, observable) = (counts.images, counts.classes.len());
    say(format_args!("pool crash images: {images}, observable: {observable}, opened: {observable}, lost: 0"));
    covered("pool crash images", format_args!("{images}, observable: {observable}, opened: {observable}, lost: 0"));
}

/// Whatever fails, and whenever: the program hears of it, and the newest version is the one that
/// was, or the one that was being made.
#[test]
fn every_call_may_fail() {
    for seed in 0..amount(20, 400) {
        for after in 0.. {
            let medium = Recorded::new(Vec::new());
            let pool = Pool::on(medium.clone(), Options::versions(2)).unwrap();
            let mut program = Program::new(pool, 2, seed);
            let kinds = ["array", "list", "quadtree", "octree", "graph"];
            program.open(kinds[seed as usize % kinds.len()]);
            program.change();
            program.persist().unwrap();
            let before = program.pool.versions();
            medium.fail_after(after);
            let mut has_failed = false;
            for _ in 0..3 {
                program.change();
                has_failed |= program.persist().is_err();
                program.check_now();
            }
            medium.fail_after(i64::MAX);
            let (left, attempted) = (program.pool.versions(), program.attempted.clone());
            assert!(left.last() >= before.last());
            drop(program);
            let again = Pool::on(Recorded::new(medium.stores.bytes()), Options::versions(2)).unwrap();
            let newest = again.versions().last().copied();
            assert!(
                newest == left.last().copied() || newest == left.last().map(|last| last + 1),
                "{left:?} {newest:?}"
            );
            check_versions(&again, &attempted);
            if !has_failed {
                break;
            }
        }
    }
}

#[test]
fn a_full_medium_keeps_what_it_has_and_goes_on_when_there_is_room() {
    let mut medium = Recorded::new(Vec::new());
    medium.bytes_max = 1 << 20;
    let pool = Pool::on(medium.clone(), Options::versions(1)).unwrap();
    let mut small = pool.array::<u64>("small", 100, Block::default()).unwrap();
    small[1] = 1;
    pool.persist(&mut [&mut small]).unwrap();
    let mut large = pool.array::<u64>("large", 1 << 18, Block::default()).unwrap();
    large[..].fill(7);
    let used = pool.usage();
    let error = pool.persist(&mut [&mut small, &mut large]).unwrap_err().to_string();
    assert!(error.contains("cannot grow the pool"), "{error}");
    assert_eq!((pool.versions(), pool.usage().used_bytes), (vec![1], used.used_bytes));
    large[1000..].fill(0);
    assert_eq!(pool.persist(&mut [&mut small, &mut large]).unwrap(), 2);
}

#[test]
fn every_changed_byte_is_found_or_harmless() {
    let medium = Recorded::new(Vec::new());
    let pool = Pool::on(medium.clone(), Options::versions(2)).unwrap();
    let mut program = Program::new(pool, 2, 5);
    ["array", "list", "quadtree", "octree", "graph"].iter().for_each(|name| program.open(name));
    for _ in 0..3 {
        program.change();
        program.persist().unwrap();
    }
    let bytes = medium.stores.bytes();
    let attempted = &program.attempted;
    for at in (0..bytes.len()).step_by(amount(37, 1)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let Ok(pool) = Pool::on(Recorded::new(damaged), Options::versions(2)) else { continue };
        for version in pool.versions() {
            let view = pool.view(version).unwrap();
            if view.verify().is_ok() {
                attempted[&version].iter().for_each(|(name, content)| content.check_view(&view, name));
            }
        }
    }
}
