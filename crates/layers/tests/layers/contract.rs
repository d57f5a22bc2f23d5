//! The contract, checked for every layer and wrapper of this crate.

use std::{path::Path, sync::Arc, time::Duration};

use outcrop_layers::{Dir, DirOptions, Faulty, Host, Layer, Method, Throttled, contract};

const CAPACITY: u64 = contract::CAPACITY_MIN + 3 * 4096;

fn host() -> Arc<dyn Layer> {
    Arc::new(Host::new(CAPACITY).unwrap())
}

fn check_dir(path: &Path, options: DirOptions) {
    contract::check(&|| {
        let dir = Dir::open(path, CAPACITY, options.clone()).unwrap();
        assert!(options.method.is_none_or(|method| method == dir.method()));
        Arc::new(dir)
    });
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "nothing is left");
}

fn uring() -> DirOptions {
    DirOptions { method: Some(Method::Uring), ..DirOptions::default() }
}

fn blocking() -> DirOptions {
    DirOptions { method: Some(Method::Blocking), ..DirOptions::default() }
}

/// Options with which everything crosses the boundaries of segments and requests.
fn tiny(options: DirOptions) -> DirOptions {
    DirOptions { segment_bytes: 5 * 4096, request_bytes: Some(2 * 4096), depth: 3, ..options }
}

#[test]
fn host_keeps_the_contract() {
    contract::check(&host);
}

#[test]
fn dir_through_io_uring_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    check_dir(directory.path(), uring());
    check_dir(directory.path(), DirOptions { register: false, ..uring() });
    check_dir(directory.path(), DirOptions { depth: 1, ..uring() });
    check_dir(directory.path(), DirOptions::default());
}

#[test]
fn dir_through_blocking_calls_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    check_dir(directory.path(), blocking());
}

#[test]
fn dir_of_tiny_segments_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    check_dir(directory.path(), tiny(uring()));
    check_dir(directory.path(), tiny(blocking()));
}

#[test]
fn dir_through_the_page_cache_keeps_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    check_dir(directory.path(), DirOptions { direct: false, ..uring() });
    check_dir(directory.path(), DirOptions { direct: false, ..blocking() });
}

#[test]
fn dir_in_memory_keeps_the_contract() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    check_dir(directory.path(), uring());
    check_dir(directory.path(), tiny(uring()));
    check_dir(directory.path(), blocking());
}

#[test]
fn throttled_layers_keep_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let slow =
        |inner| -> Arc<dyn Layer> { Arc::new(Throttled::new(inner, 400 << 20, 800 << 20, Duration::from_micros(20))) };
    contract::check(&|| slow(host()));
    contract::check(&|| slow(Arc::new(Dir::open(directory.path(), CAPACITY, uring()).unwrap())));
}

#[test]
fn faulty_layers_without_faults_keep_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    contract::check(&|| Arc::new(Faulty::new(host())));
    contract::check(&|| Arc::new(Faulty::new(Arc::new(Dir::open(directory.path(), CAPACITY, uring()).unwrap()))));
}
