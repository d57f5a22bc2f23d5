//! Stores and devices: buffers on a device are saved incrementally, and devices hash for a store.
//! On OpenCL; `device_cuda.rs` runs the same with the stand-in driver.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use outcrop::{
    ErrorKind, HashKind, Part, PartMut, Reached, Session, Store, StoreBuilder,
    layers::{Buffer, Device, DeviceKind, Error, Result},
    store::RegionOptions,
};
use outcrop_testing::{
    device::{Call, Guard, Guarded, device},
    pattern,
};

const MIB: usize = 1 << 20;
/// Not a multiple of a block.
const BYTES: usize = 4 * MIB + 100;
/// Where the region begins in its buffer: not aligned to anything.
const OFFSET: u64 = 13;

fn builder(dir: &Path) -> StoreBuilder {
    Store::builder().host(32 * MIB as u64).dir(dir, None).pin(false)
}

fn buffer(device: &Arc<dyn Device>, bytes: &[u8]) -> Arc<Buffer> {
    let mut buffer = device.buffer(OFFSET + bytes.len() as u64).unwrap();
    buffer.write(&**device, OFFSET, bytes).unwrap();
    Arc::new(buffer)
}

fn saved(session: &mut Session, version: u64, parts: &[Part<'_>]) {
    session.save(version, parts).unwrap();
    session.wait(version, Reached::All).unwrap();
}

fn restored(session: &mut Session, version: u64) -> Vec<u8> {
    let mut found = vec![0; BYTES];
    session.restore(version, &mut [PartMut::new("field", &mut found)]).unwrap();
    found
}

/// A region in a buffer is hashed there, what has changed is saved, and all of it comes back. The
/// host memory of the region is not read.
pub(crate) fn save_a_buffer_incrementally(device: &Arc<dyn Device>) {
    let nothing = vec![0xEE_u8; BYTES];
    for (kind, live) in [(HashKind::Xxh3, None), (HashKind::Md5, Some("1 MiB")), (HashKind::Blake3, None)] {
        let dir = tempfile::tempdir().unwrap();
        let mut builder = builder(dir.path()).hash(kind);
        if let Some(extra) = live {
            builder = builder.live(extra);
        }
        let store = builder.open().unwrap();
        let mut session = store.session("field").unwrap();
        let written = || store.stats().layers[1].written_bytes;
        let mut bytes = pattern(1, BYTES as u64);
        let mut step = 0_u64;
        session.mark_device("field", Arc::clone(device), buffer(device, &bytes), OFFSET).unwrap();
        saved(&mut session, 0, &[Part::new("field", &nothing), Part::one("step", &step)]);
        let full = written();
        assert!(full > BYTES as u64, "{full}");
        // Two blocks, and the last, short one.
        for at in [5000, 2 * MIB, BYTES - 1] {
            bytes[at] ^= 1;
        }
        step += 1;
        session.mark_device("field", Arc::clone(device), buffer(device, &bytes), OFFSET).unwrap();
        saved(&mut session, 1, &[Part::new("field", &nothing), Part::one("step", &step)]);
        let added = written() - full;
        assert!(added < 8 * 4096, "{kind}: {added} bytes for four changed blocks");
        assert!(restored(&mut session, 1) == bytes, "{kind}");
        // The region moves to host memory, where one block differs.
        session.mark_host("field");
        bytes[70_000] ^= 1;
        saved(&mut session, 2, &[Part::new("field", &bytes), Part::one("step", &step)]);
        assert!(written() - full - added < 6 * 4096, "{kind}: what has not changed is known");
        assert!(restored(&mut session, 2) == bytes);
        session.finish().unwrap();
        let mut session = store.session("field").unwrap();
        assert!(restored(&mut session, 2) == bytes);
    }
}

#[test]
fn a_buffer_on_a_device_is_saved_incrementally() {
    let Some(device) = device() else { return };
    save_a_buffer_incrementally(&device);
}

#[test]
fn excluded_bytes_of_a_buffer_stay_as_they_are() {
    let Some(device) = device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut session = builder(dir.path()).open().unwrap().session("s").unwrap();
    let excluded = RegionOptions { excluded: std::iter::once(8192..MIB as u64).collect(), ..RegionOptions::default() };
    session.region("field", excluded);
    let bytes = pattern(1, BYTES as u64);
    session.mark_device("field", Arc::clone(&device), buffer(&device, &bytes), OFFSET).unwrap();
    let nothing = vec![0_u8; BYTES];
    for version in 0..2 {
        saved(&mut session, version, &[Part::new("field", &nothing)]);
        let found = restored(&mut session, version);
        assert!(found[..8192] == bytes[..8192] && found[MIB..] == bytes[MIB..]);
        assert!(found[8192..MIB].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_cannot_be_is_refused_and_the_session_goes_on() {
    let (Some(device), Some(other)) = (device(), device()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let bytes = pattern(1, BYTES as u64);
    let buffer = buffer(&device, &bytes);
    let mut certain = builder(&dir.path().join("certain")).certain(true).open().unwrap().session("s").unwrap();
    let error = certain.mark_device("field", Arc::clone(&device), Arc::clone(&buffer), 0).unwrap_err();
    assert!(error.to_string().contains("certain"), "{error}");
    let mut session = builder(dir.path()).open().unwrap().session("s").unwrap();
    let error = session.mark_device("field", other, Arc::clone(&buffer), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    session.mark_device("field", Arc::clone(&device), Arc::clone(&buffer), OFFSET + 1).unwrap();
    let error = session.save(0, &[Part::new("field", &bytes)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "one byte too long: {error}");
    session.mark_device("field", device, buffer, OFFSET).unwrap();
    saved(&mut session, 0, &[Part::new("field", &vec![0_u8; BYTES])]);
    assert!(restored(&mut session, 0) == bytes);
    let refused = |builder: StoreBuilder| builder.open().unwrap_err().to_string();
    let error = refused(builder(dir.path()).hash(HashKind::Blake3).hash_device(DeviceKind::OpenCl, 0));
    assert!(error.contains("xxh3 and md5"), "{error}");
    let error = refused(builder(dir.path()).hash_device(DeviceKind::OpenCl, 77));
    assert!(error.contains("77"), "{error}");
}

/// Fails from a moment on.
#[derive(Default)]
struct Failing(AtomicBool);

impl Guard for Failing {
    fn call(&self, _call: Call) -> Result<()> {
        match self.0.load(Relaxed) {
            false => Ok(()),
            true => {
                Err(Error::Broken { layer: "failing".to_owned(), attempt: "work", source: io::Error::other("told to") })
            }
        }
    }
}

/// A device hashes for a store, fails after some versions, and every version is what was saved.
#[test]
fn a_device_hashes_for_a_store_and_may_fail() {
    let Some(device) = device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let guard = Arc::new(Failing::default());
    let guarded: Arc<dyn Device> =
        Arc::new(Guarded { inner: device, guard: Arc::<Failing>::clone(&guard) as Arc<dyn Guard> });
    let store = builder(dir.path()).hash_on(guarded).open().unwrap();
    let mut session = store.session("s").unwrap();
    let mut bytes = pattern(1, BYTES as u64);
    for version in 0..8 {
        bytes[version * 100_000] ^= 1;
        saved(&mut session, version as u64, &[Part::new("field", &bytes)]);
        assert!(restored(&mut session, version as u64) == bytes);
        if version == 3 {
            assert!(session.hash_rates().iter().all(|way| way.rate.is_some()), "{:?}", session.hash_rates());
            guard.0.store(true, Relaxed);
        }
    }
    let full = store.stats().layers[1].written_bytes;
    assert!(full < 2 * BYTES as u64, "{full} bytes, of which all but the first version are increments");
}

/// A buffer whose device fails is not saved, and the next version is complete.
#[test]
fn a_lost_buffer_is_an_error_and_nothing_is_missed_later() {
    let Some(device) = device() else { return };
    let dir = tempfile::tempdir().unwrap();
    let guard = Arc::new(Failing::default());
    let guarded: Arc<dyn Device> =
        Arc::new(Guarded { inner: Arc::clone(&device), guard: Arc::<Failing>::clone(&guard) as Arc<dyn Guard> });
    let mut session = builder(dir.path()).open().unwrap().session("s").unwrap();
    let mut bytes = pattern(1, BYTES as u64);
    let nothing = vec![0_u8; BYTES];
    session.mark_device("field", Arc::clone(&guarded), buffer(&device, &bytes), OFFSET).unwrap();
    saved(&mut session, 0, &[Part::new("field", &nothing)]);
    bytes[1000] ^= 1;
    session.mark_device("field", guarded, buffer(&device, &bytes), OFFSET).unwrap();
    guard.0.store(true, Relaxed);
    let error = session.save(1, &[Part::new("field", &nothing)]).unwrap_err();
    assert!(error.to_string().contains("told to"), "{error}");
    guard.0.store(false, Relaxed);
    saved(&mut session, 2, &[Part::new("field", &nothing)]);
    assert!(restored(&mut session, 2) == bytes);
    assert!(restored(&mut session, 0) != bytes);
}
