//! Hashing on devices: chosen by rate, several pieces at once, and nothing is missed when a device
//! fails. On OpenCL, for which PoCL is enough; the tests of layers compare the hashes themselves.
//! In processes of their own: PoCL puts its own handler of SIGSEGV in place, and trackers that
//! protect memory need theirs.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use outcrop_layers::{Device, DeviceHash, Error, Result};
use outcrop_testing::{
    alone,
    device::{Call, Guard, Guarded, device},
    pattern,
};
use outcrop_track::{ChosenHasher, CpuHasher, Hash, HashKind, Hasher, hasher_on};

/// More than three pieces.
const BYTES: u64 = 30 << 20;
const BLOCK_BYTES: usize = 4096;

/// Fails after so many calls, and notes what was called.
struct Failing {
    calls_left: AtomicUsize,
    seen: Mutex<Vec<Call>>,
    hash: Option<DeviceHash>,
    needs_registration: bool,
}

impl Failing {
    fn after(calls: usize) -> Arc<Self> {
        Arc::new(Self {
            calls_left: AtomicUsize::new(calls),
            seen: Mutex::default(),
            hash: None,
            needs_registration: false,
        })
    }

    fn around(self: &Arc<Self>, device: &Arc<dyn Device>) -> Arc<dyn Device> {
        let guard: Arc<dyn Guard> = Arc::<Self>::clone(self);
        Arc::new(Guarded { inner: Arc::clone(device), guard })
    }

    fn has_failed(&self) -> bool {
        self.calls_left.load(Relaxed) == 0
    }
}

impl Guard for Failing {
    fn call(&self, call: Call) -> Result<()> {
        self.seen.lock().unwrap().push(call);
        match self.calls_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => {
                let source = io::Error::other("told to");
                Err(Error::Broken { layer: "failing".to_owned(), attempt: "work", source })
            }
        }
    }

    fn hash(&self, kind: DeviceHash) -> DeviceHash {
        self.hash.unwrap_or(kind)
    }

    fn needs_registration(&self) -> bool {
        self.needs_registration
    }
}

fn wanted(memory: &[u8]) -> Vec<Hash> {
    memory.chunks(BLOCK_BYTES).map(|block| HashKind::Xxh3.hash(block)).collect()
}

/// The processor hashes in one thread, and the device if it is faster or to be tried out.
fn chosen(device: Arc<dyn Device>) -> ChosenHasher {
    let on_device = Arc::new(hasher_on(device, HashKind::Xxh3).unwrap());
    ChosenHasher::new(CpuHasher::new(HashKind::Xxh3, 1), vec![on_device])
}

#[test]
fn both_ways_are_tried_and_the_faster_one_is_used() {
    if alone("hash_device::both_ways_are_tried_and_the_faster_one_is_used") {
        return;
    }
    let Some(device) = device() else { return };
    let hasher = chosen(device);
    assert!(hasher.rates().iter().all(|way| way.rate.is_none()));
    let memory = pattern(1, BYTES + 5);
    let wanted = wanted(&memory);
    for _ in 0..10 {
        let mut hashes = vec![[0; 16]; wanted.len()];
        hasher.hash(&[&memory], BLOCK_BYTES, &mut hashes);
        assert!(hashes == wanted);
    }
    let rates = hasher.rates();
    let fastest = rates.iter().max_by(|way, other| way.rate.unwrap().total_cmp(&other.rate.unwrap())).unwrap();
    assert!(fastest.is_chosen, "{rates:?}");
    assert_eq!(rates.iter().map(|way| &*way.name).collect::<Vec<_>>(), ["processor", "opencl 0"]);
}

#[test]
fn little_is_hashed_without_the_device() {
    if alone("hash_device::little_is_hashed_without_the_device") {
        return;
    }
    let Some(device) = device() else { return };
    let guard = Failing::after(usize::MAX);
    let hasher = chosen(guard.around(&device));
    guard.seen.lock().unwrap().clear();
    let memory = pattern(1, 100_000);
    let mut hashes = vec![[0; 16]; 25];
    for _ in 0..10 {
        hasher.hash(&[&memory], BLOCK_BYTES, &mut hashes);
    }
    assert_eq!(hashes, wanted(&memory));
    assert!(guard.seen.lock().unwrap().is_empty());
}

/// Whichever call of the device fails, all hashes are right, and the device is not used again.
#[test]
fn a_device_may_fail_at_any_moment_and_nothing_is_missed() {
    if alone("hash_device::a_device_may_fail_at_any_moment_and_nothing_is_missed") {
        return;
    }
    let Some(device) = device() else { return };
    let memory = pattern(1, BYTES);
    let wanted = wanted(&memory);
    let mut failures = 0;
    for calls in 0.. {
        let guard = Failing::after(usize::MAX);
        let hasher = chosen(guard.around(&device));
        guard.calls_left.store(calls, Relaxed);
        // The first call measures the processor, the second one tries the device.
        for _ in 0..2 {
            let mut hashes = vec![[0; 16]; wanted.len()];
            hasher.hash(&[&memory], BLOCK_BYTES, &mut hashes);
            assert!(hashes == wanted, "after {calls} calls");
        }
        let on_device = &hasher.rates()[1];
        if !on_device.has_failed {
            break;
        }
        assert!(guard.has_failed());
        failures += 1;
        let seen = guard.seen.lock().unwrap().len();
        for _ in 0..10 {
            hasher.hash(&[&memory[..2 << 20]], BLOCK_BYTES, &mut vec![[0; 16]; 512]);
        }
        assert_eq!(guard.seen.lock().unwrap().len(), seen, "it is left alone");
    }
    assert!(failures > 15, "it failed {failures} times");
}

/// Three pieces are under way before the first is waited for, in memory of three pieces.
#[test]
fn pieces_overlap_in_bounded_memory() {
    if alone("hash_device::pieces_overlap_in_bounded_memory") {
        return;
    }
    let Some(device) = device() else { return };
    for needs_registration in [false, true] {
        let guard = Arc::new(Failing {
            calls_left: AtomicUsize::new(usize::MAX),
            seen: Mutex::default(),
            hash: None,
            needs_registration,
        });
        let device = guard.around(&device);
        let hasher = hasher_on(Arc::clone(&device), HashKind::Xxh3).unwrap();
        let free = device.free_bytes().unwrap();
        guard.seen.lock().unwrap().clear();
        let memory = pattern(1, 2 * BYTES);
        let mut hashes = vec![[0; 16]; memory.len() / BLOCK_BYTES];
        hasher.hash(&[&memory], BLOCK_BYTES, &mut hashes).unwrap();
        assert!(hashes == wanted(&memory));
        let seen = std::mem::take(&mut *guard.seen.lock().unwrap());
        let first_wait = seen.iter().position(|call| *call == Call::EventWait).unwrap();
        let begun = |call: &Call| seen[..first_wait].iter().filter(|seen| *seen == call).count();
        assert_eq!([Call::BeginCopyIn, Call::BeginHash, Call::BeginCopyOut].map(|call| begun(&call)), [3; 3]);
        let taken = free - device.free_bytes().unwrap();
        assert!(taken <= 3 * (10 << 20), "{taken} bytes of the device for {} of blocks", memory.len());
    }
}

#[test]
fn a_device_with_wrong_hashes_and_a_hash_that_devices_do_not_have_are_refused() {
    if alone("hash_device::a_device_with_wrong_hashes_and_a_hash_that_devices_do_not_have_are_refused") {
        return;
    }
    let Some(device) = device() else { return };
    let guard = Arc::new(Failing {
        calls_left: AtomicUsize::new(usize::MAX),
        seen: Mutex::default(),
        hash: Some(DeviceHash::Md5),
        needs_registration: false,
    });
    let error = hasher_on(guard.around(&device), HashKind::Xxh3).unwrap_err();
    assert!(error.to_string().contains("differ from the processor's"), "{error}");
    hasher_on(guard.around(&device), HashKind::Md5).unwrap();
    let error = hasher_on(device, HashKind::Blake3).unwrap_err();
    assert!(error.to_string().contains("choose one of these"), "{error}");
}

/// A buffer is hashed where it is. If its device cannot, it is read and hashed by the processor.
#[test]
fn buffers_are_hashed_in_place_or_read() {
    if alone("hash_device::buffers_are_hashed_in_place_or_read") {
        return;
    }
    let Some(device) = device() else { return };
    let memory = pattern(3, 20_000_001);
    let mut buffer = device.buffer(memory.len() as u64).unwrap();
    buffer.write(&*device, 0, &memory).unwrap();
    for kind in HashKind::ALL {
        let hasher = ChosenHasher::new(CpuHasher::new(kind, 1), Vec::new());
        let wanted: Vec<Hash> = memory[9..].chunks(5000).map(|block| kind.hash(block)).collect();
        let guard = Failing::after(usize::MAX);
        let guarded = guard.around(&device);
        let check = || {
            let mut hashes = vec![[0; 16]; wanted.len()];
            hasher.hash_buffer(&guarded, &buffer, 9, memory.len() as u64 - 9, 5000, &mut hashes).unwrap();
            assert!(hashes == wanted, "{kind}");
        };
        check();
        let reads = |guard: &Failing| guard.seen.lock().unwrap().iter().filter(|call| **call == Call::CopyOut).count();
        assert_eq!(reads(&guard) > 0, kind == HashKind::Blake3, "only what devices cannot hash is read");
        // The device fails at its next call, and works again when the buffer is read.
        guard.calls_left.store(0, Relaxed);
        let mut hashes = vec![[0; 16]; wanted.len()];
        let failed = hasher.hash_buffer(&guarded, &buffer, 9, memory.len() as u64 - 9, 5000, &mut hashes);
        assert!(failed.is_err(), "neither way works");
        guard.calls_left.store(usize::MAX, Relaxed);
        check();
        assert!(reads(&guard) > 0, "it was read");
        let error = hasher.hash_buffer(&guarded, &buffer, 9, memory.len() as u64, 5000, &mut vec![[0; 16]; 4001]);
        assert!(error.is_err(), "more than there is");
    }
}
