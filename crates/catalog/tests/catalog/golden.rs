//! A store of format 1, written by an older version of Outcrop, can be listed, verified and read.

use std::path::{Path, PathBuf};

use outcrop_catalog::{Catalog, verify};
use outcrop_region::Shape;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-v1")
}

fn of_bytes<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|chunk| value(chunk.try_into().unwrap())).collect()
}

#[test]
fn a_store_of_format_1_is_listed_and_verified() {
    let catalog = Catalog::open(&golden()).unwrap();
    assert_eq!(catalog.sessions().unwrap(), ["arrays", "heat"]);
    let versions = catalog.versions("heat").unwrap();
    let listed: Vec<_> =
        versions.iter().map(|version| (version.version, version.ranks, version.is_complete())).collect();
    assert_eq!(listed, [(1, 2, true), (2, 2, true), (5, 2, true)]);
    let verified = verify(&catalog, None, None, &|_, _| {}).unwrap();
    assert_eq!((verified.manifests, verified.packs, verified.has_damage()), (7, 7, false));
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
}

#[test]
fn every_version_of_format_1_is_read() {
    let catalog = Catalog::open(&golden()).unwrap();
    for number in [1, 2, 5] {
        let version = catalog.version("heat", Some(number)).unwrap();
        for (&rank, manifest) in &version.manifests {
            let reader = catalog.reader(manifest).unwrap();
            let field = of_bytes(&reader.read_region("field").unwrap(), f64::from_le_bytes);
            let expected = (0..1024).map(|i| if i < 16 { number as f64 } else { f64::from(i + rank * 10_000) });
            assert!(field.iter().copied().eq(expected), "version {number}, rank {rank}");
            let shared = of_bytes(&reader.read_region("shared").unwrap(), f32::from_le_bytes);
            assert!(shared.iter().copied().eq((0..2048).map(|i| (i * i) as f32 * 0.5)));
            let mask = reader.read_region("mask").unwrap();
            assert!(mask[4096..].iter().copied().eq((4096..5000u32).map(|i| (i % 7) as u8)));
            assert!(mask[..4096].iter().all(|&byte| byte == 0));
            assert_eq!(of_bytes(&reader.read_region("step").unwrap(), u64::from_le_bytes), [number]);
            // Format 1 has no shapes: a region has one dimension.
            assert_eq!(manifest.region("field").unwrap().shape, Shape::flat(1024));
            assert_eq!(manifest.region("step").unwrap().shape, Shape::flat(1));
        }
    }
}
