//! Many regions: the cost of a version grows in proportion to their number, and not faster.

use std::{sync::Arc, time::Instant};

use outcrop::{
    Part, PartMut, Reached, Store,
    catalog::{Catalog, verify},
    layers::files::DiskFiles,
    store::RegionOptions,
};
use outcrop_crash::{Failing, Operation};
use outcrop_testing::{amount, covered};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("particle {nth}")).collect()
}

fn parts<'a>(names: &'a [String], values: &'a [Vec<u64>]) -> Vec<Part<'a>> {
    names.iter().zip(values).map(|(name, values)| Part::new(name, values)).collect()
}

#[test]
fn many_regions_are_saved_and_restored_together() {
    let count = amount(20_000, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let files = Failing::new(Arc::new(DiskFiles::create(dir.path()).unwrap()));
    let reads = || files.calls(Some(Operation::Read));
    let open = || {
        let store = Store::builder().host("64 MiB").files(Arc::new(files.clone()), None).pin(false).certain(true);
        store.open().unwrap().session("heat").unwrap()
    };
    let names = names(count);
    let mut values: Vec<Vec<u64>> = (0..count as u64).map(|nth| vec![nth; 1 + nth as usize % 40]).collect();
    let mut session = open();
    let excluded = vec![8..16, 24..32];
    session.region(&names[7], RegionOptions { excluded, ..RegionOptions::default() });
    let start = Instant::now();
    session.save(1, &parts(&names, &values)).unwrap();
    let saved = start.elapsed();
    session.wait(1, Reached::All).unwrap();
    let durable = start.elapsed();
    for nth in (0..count).step_by(100) {
        values[nth][0] += 1;
    }
    session.save(2, &parts(&names, &values)).unwrap();
    session.finish().unwrap();

    let mut session = open();
    let reads_before = reads();
    let mut found: Vec<Vec<u64>> = values.iter().map(|values| vec![7; values.len()]).collect();
    let mut targets: Vec<_> = names.iter().zip(&mut found).map(|(name, found)| PartMut::new(name, found)).collect();
    let start = Instant::now();
    assert_eq!(session.restore_latest(&mut targets).unwrap().unwrap().version, 2);
    let restored = start.elapsed();
    let mut expected = values.clone();
    (expected[7][1], expected[7][3]) = (7, 7);
    assert!(found == expected);
    // Headers, indexes and payloads are read in large pieces, not region by region.
    let reads = reads() - reads_before;
    assert!(reads < count as u64 / 50, "{reads} reads");
    session.finish().unwrap();
    let verified = verify(&Catalog::open(dir.path()).unwrap(), None, None, &|_, _| {}).unwrap();
    assert!(!verified.has_damage(), "{:?}", verified.findings.first());
    println!("{count} regions: saved {saved:?}, durable {durable:?}, restored {restored:?}, {reads} reads");
    covered("regions of one version", count);
}
