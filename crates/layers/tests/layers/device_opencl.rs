//! Device memory with OpenCL, on any device of this machine. PoCL, which computes on the processor,
//! is enough.

use std::{
    io, ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use opencl3::{
    context::Context,
    device::Device as Description,
    memory::{CL_MEM_READ_WRITE, create_buffer, release_mem_object},
};
use outcrop_layers::{
    Device, DeviceKind, DeviceLayer, Error, Fault, Faulty, Feed, Host, Layer, OpenCl, Result, Transfer, contract,
    devices,
};
use outcrop_testing::{
    child, child_directory,
    device::{Call, Guard, Guarded, device},
    expect_success, pattern,
};
use proptest::prelude::*;

use crate::common::UNIT;
use crate::device_checks::{self, CAPACITY, Script, filled, touched};

#[test]
fn layers_keep_the_contract() {
    let Some(device) = device() else { return };
    device_checks::keep_the_contract(&device, &[Some(3 * UNIT), Some(1 << 20), None]);
    contract::check(&|| Arc::new(Faulty::new(Arc::new(touched(&device, CAPACITY, Some(UNIT))))));
}

#[test]
fn memory_is_mapped_chunk_by_chunk() {
    let Some(device) = device() else { return };
    device_checks::map_chunk_by_chunk(&device);
}

#[test]
fn bytes_are_copied_at_any_offset() {
    let Some(device) = device() else { return };
    device_checks::copy_at_any_offset(&device);
    device_checks::slide_over_itself(&device);
}

#[test]
fn the_device_finds_the_same_checksum_as_the_host() {
    let Some(device) = device() else { return };
    device_checks::sum_like_the_host(&device);
}

#[test]
fn the_device_finds_the_same_hashes_as_the_host() {
    let Some(device) = device() else { return };
    device_checks::hash::hash_like_the_host(&device);
}

#[test]
fn what_is_on_the_device_is_hashed_there() {
    let (Some(device), Some(other)) = (device(), device()) else { return };
    device_checks::hash::hash_in_place(&device);
    device_checks::hash::refuse_to_hash_what_is_not_there(&device, &other);
}

#[test]
fn wrong_buffers_are_refused() {
    let (Some(device), Some(other)) = (device(), device()) else { return };
    device_checks::refuse_wrong_buffers(&device, &other);
}

#[test]
fn many_transfers_run_at_once() {
    let Some(device) = device() else { return };
    device_checks::run_many_at_once(&device);
    device_checks::serve_many_threads(&device);
    device_checks::survive_a_panic_of_the_feed(&device);
    device_checks::let_registered_memory_go(&device);
}

#[test]
fn faults_of_a_device_layer_are_seen() {
    let Some(device) = device() else { return };
    let faulty = Faulty::new(Arc::new(touched(&device, CAPACITY, None)));
    faulty.inject(Fault::ReadFlipsBit, 0, Some(1));
    faulty.write(0, &pattern(1, UNIT)).unwrap();
    let mut found = vec![0; UNIT as usize];
    faulty.read(0, &mut found).unwrap();
    assert_ne!(found, pattern(1, UNIT));
}

#[test]
fn devices_are_listed_and_opened_by_number() {
    let Some(device) = device() else { return };
    let list: Vec<_> = devices().into_iter().filter(|found| found.kind == DeviceKind::OpenCl).collect();
    assert_eq!((list[0].index, list[0].total_bytes), (0, device.total_bytes()));
    assert!(!list[0].model.is_empty());
    let error = OpenCl::open(list.len()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { count, .. } if count == list.len()), "{error}");
    assert_eq!(device.name(), "opencl 0");
}

#[test]
fn more_memory_than_there_is_is_refused_and_the_rest_stays_usable() {
    let Some(device) = device() else { return };
    device_checks::refuse_more_than_there_is(&device);
    let free = device.free_bytes().unwrap();
    // One buffer cannot be as large as all memory: this error comes from the driver itself.
    let total = device.total_bytes();
    let layer = DeviceLayer::new(Arc::clone(&device), total, Some(total)).unwrap();
    let error = layer.touch(0..1).unwrap_err();
    assert!(matches!(&error, Error::DeviceFull { reason, .. } if reason.starts_with("CL_")), "{error}");
    assert_eq!(layer.mapped_bytes(), 0);
    assert!(matches!(device.buffer(total), Err(Error::DeviceFull { .. })));
    assert_eq!(device.free_bytes().unwrap(), free, "nothing is counted that was not given");
    // All memory in several buffers, which are not touched, and then one byte more.
    let part = device.chunk_bytes();
    let all: Vec<_> = (0..total / part).map(|_| device.buffer(part).unwrap()).collect();
    let error = device.buffer(total % part + 1).unwrap_err();
    assert!(matches!(&error, Error::DeviceFull { reason, .. } if reason.contains("in use")), "{error}");
    drop(all);
    let small = touched(&device, UNIT, None);
    assert_eq!(device.free_bytes().unwrap(), free - UNIT);
    drop(small);
    assert_eq!(device.free_bytes().unwrap(), free);
}

/// In a child process, because the list of drivers is read once per process.
#[test]
fn without_a_driver_there_is_an_error_and_no_device() {
    const NAME: &str = "device_opencl::without_a_driver_there_is_an_error_and_no_device";
    let Some(empty) = child_directory() else {
        let empty = tempfile::tempdir().unwrap();
        let mut command = child(NAME, empty.path());
        command.env("OCL_ICD_VENDORS", empty.path());
        return expect_success(command);
    };
    assert!(empty.exists());
    let error = OpenCl::open(0).unwrap_err();
    assert!(matches!(error, Error::NoDriver { kind: DeviceKind::OpenCl, .. }), "{error}");
    assert!(error.to_string().contains("no OpenCL driver"), "{error}");
    assert!(devices().iter().all(|found| found.kind != DeviceKind::OpenCl));
}

#[test]
fn programs_use_their_own_buffers() {
    let Some(_) = device() else { return };
    let platform = opencl3::platform::platform::get_platform_ids().unwrap()[0];
    let id = opencl3::device::get_device_ids(platform, opencl3::device::CL_DEVICE_TYPE_ALL).unwrap()[0];
    let context = Context::from_device(&Description::new(id)).unwrap();
    // SAFETY: the context and the device are live and belong together.
    let device: Arc<dyn Device> = Arc::new(unsafe { OpenCl::in_context(context.get(), id) }.unwrap());
    // SAFETY: a new buffer.
    let raw = unsafe { create_buffer(context.get(), CL_MEM_READ_WRITE, 100, ptr::null_mut()) }.unwrap();
    // SAFETY: the handle is valid.
    let adopt = |device: &Arc<dyn Device>, bytes| unsafe { device.adopt(raw as u64, bytes) };
    assert!(matches!(adopt(&device, 101), Err(Error::BufferTooSmall { .. })));
    let stranger: Arc<dyn Device> = Arc::new(OpenCl::open(0).unwrap());
    assert!(matches!(adopt(&stranger, 100), Err(Error::OtherDevice { .. })));

    let mut buffer = adopt(&device, 100).unwrap();
    // SAFETY: the program releases its own reference; the buffer has another.
    unsafe { release_mem_object(raw) }.unwrap();
    let layer = touched(&device, CAPACITY, Some(UNIT));
    buffer.write(&*device, 0, &pattern(5, 100)).unwrap();
    layer.store(UNIT - 50, &buffer, 0, 100).unwrap();
    buffer.write(&*device, 0, &[0; 100]).unwrap();
    layer.load(UNIT - 50, &mut buffer, 0, 100).unwrap();
    let mut found = [0; 100];
    buffer.read(&*device, 0, &mut found).unwrap();
    assert_eq!(found[..], pattern(5, 100));
}

#[test]
fn transfers_go_on_while_memory_is_being_registered() {
    let Some(device) = device() else { return };
    let (has_begun, begun) = channel();
    let (may_end, end) = channel();
    let slow = Arc::new(Fragile { registers: Some((has_begun, Mutex::new(end))), ..Fragile::default() });
    let layer = &touched(&slow.device(&device), CAPACITY, None);
    let host = &Host::new(16 * UNIT).unwrap();
    thread::scope(|scope| {
        let registering = scope.spawn(|| layer.register(host));
        begun.recv().unwrap();
        crate::common::run_write(layer, host, 0, &pattern(3, UNIT)).unwrap();
        assert_eq!(crate::common::run_read(layer, host, 0, UNIT).unwrap(), pattern(3, UNIT));
        assert_eq!(layer.registered_bytes(), 0);
        may_end.send(()).unwrap();
        registering.join().unwrap().unwrap();
    });
    assert_eq!(layer.registered_bytes(), host.capacity());
}

#[test]
fn a_lost_device_stays_lost_and_host_memory_is_whole() {
    let Some(device) = device() else { return };
    let fragile = Arc::new(Fragile::default());
    let layer = DeviceLayer::new(fragile.device(&device), CAPACITY, Some(2 << 20)).unwrap();
    layer.touch(0..2 << 20).unwrap();
    let host = Host::new(16 * UNIT).unwrap();
    let mut script = Script::default();
    for index in 0..4 {
        script.write(&host, index * UNIT, &pattern(index, UNIT), &[index * UNIT..(index + 1) * UNIT]);
    }
    // For one call only: the driver answers again after it, but what was on the device is lost.
    fragile.is_lost.store(true, Relaxed);
    layer.run(&mut script);
    assert!(!fragile.is_lost.load(Relaxed));
    assert_eq!(script.done.len(), 4);
    for (transfer, result) in &script.done {
        assert!(matches!(result, Err(Error::DeviceLost { .. })), "{result:?}");
        let outcrop_layers::Memory::Write(sealed) = &transfer.memory else { panic!("a write came back as a read") };
        assert!(sealed[..] == pattern(transfer.tag, UNIT), "the program's bytes are still there");
    }
    let mut buffer = filled(&device, &[1; 8]);
    let outcomes = [
        layer.write(0, &pattern(1, UNIT)),
        layer.read(0, &mut vec![0; UNIT as usize]),
        layer.store(0, &buffer, 0, 8),
        layer.load(0, &mut buffer, 0, 8),
        layer.touch(0..CAPACITY),
        layer.register(&host),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        assert!(error.to_string().contains("the device is lost"), "{error}");
    }
}

/// A feed that checks, whenever a transfer has failed, whether the device may still use its memory.
struct Watcher {
    script: Script,
    fragile: Arc<Fragile>,
    failures: usize,
}

impl Feed for Watcher {
    fn next(&mut self) -> Option<Transfer> {
        self.script.next()
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        if result.is_err() {
            self.failures += 1;
            assert_eq!(self.fragile.under_way.load(Relaxed), 0, "memory was given back while the device may use it");
        }
        self.script.done(transfer, result);
    }
}

#[test]
fn memory_of_a_transfer_that_fails_is_given_back_when_the_device_is_done_with_it() {
    let Some(device) = device() else { return };
    for is_refused in [true, false] {
        let fragile = Arc::new(Fragile::default());
        let layer = touched(&fragile.device(&device), CAPACITY, Some(UNIT));
        let host = Host::new(16 * UNIT).unwrap();
        let mut script = Script::default();
        // Each has two pieces, because it crosses the end of a chunk.
        for index in 0..3 {
            let at = 4 * index * UNIT;
            script.write(&host, 2 * index * UNIT, &pattern(index, 2 * UNIT), &[at..at + 2 * UNIT]);
        }
        if is_refused {
            fragile.refuse_at.store(4, Relaxed);
        } else {
            fragile.fails_at_end.store(true, Relaxed);
        }
        let mut watcher = Watcher { script, fragile, failures: 0 };
        layer.run(&mut watcher);
        assert_eq!((watcher.failures, watcher.script.done.len()), (1, 3));
    }
}

/// A device that can be lost for one call, that can be slow to register memory, and that counts its
/// copies.
#[derive(Default)]
struct Fragile {
    is_lost: AtomicBool,
    /// Notified when registering begins, and waited for before it ends.
    registers: Option<(Sender<()>, Mutex<Receiver<()>>)>,
    /// How many copies have not been waited for.
    under_way: AtomicUsize,
    /// How many copies begin before one is refused; 0 if none is refused.
    refuse_at: AtomicUsize,
    /// Whether waiting for an event fails once.
    fails_at_end: AtomicBool,
}

impl Fragile {
    fn device(self: &Arc<Self>, inner: &Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Guarded { inner: Arc::clone(inner), guard: Arc::clone(self) as Arc<dyn Guard> })
    }
}

impl Guard for Fragile {
    fn call(&self, call: Call) -> Result<()> {
        let told_to = |attempt| Error::Broken { layer: "fragile".into(), attempt, source: io::Error::other("told to") };
        match call {
            Call::Register => {
                if let Some((has_begun, may_end)) = &self.registers {
                    has_begun.send(()).unwrap();
                    // With a timeout: transfers that waited for this would block it forever.
                    may_end.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("transfers went on");
                }
                return Ok(());
            }
            Call::EventWait if self.fails_at_end.swap(false, Relaxed) => return Err(told_to("wait")),
            Call::Stream | Call::Map(_) | Call::EventWait | Call::EventWaited => return Ok(()),
            Call::Waited => self.under_way.store(0, Relaxed),
            _ => {}
        }
        if self.is_lost.swap(false, Relaxed) {
            return Err(Error::DeviceLost { device: "fragile".into(), reason: "it was told to".into() });
        }
        if matches!(call, Call::BeginCopyIn | Call::BeginCopyOut) {
            if self.refuse_at.load(Relaxed) > 0 && self.refuse_at.fetch_sub(1, Relaxed) == 1 {
                return Err(told_to("copy"));
            }
            self.under_way.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn needs_registration(&self) -> bool {
        self.registers.is_some()
    }
}

/// An operation on a layer and a buffer.
#[derive(Debug, Clone)]
enum Step {
    CopyIn(usize, Vec<u8>),
    Store(usize, usize, usize),
    Load(usize, usize, usize),
}

const CACHE_BYTES: usize = 5 * UNIT as usize;
const BUFFER_BYTES: usize = 3 * UNIT as usize;

fn steps() -> impl Strategy<Value = Step> {
    let pair = (0..=CACHE_BYTES, 0..=BUFFER_BYTES, 0..=BUFFER_BYTES);
    prop_oneof![
        (0..=CACHE_BYTES, prop::collection::vec(any::<u8>(), 0..3000)).prop_map(|(at, bytes)| Step::CopyIn(at, bytes)),
        pair.clone().prop_map(|(at, offset, bytes)| Step::Store(at, offset, bytes)),
        pair.prop_map(|(at, offset, bytes)| Step::Load(at, offset, bytes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A layer of small chunks and a buffer behave like two arrays.
    #[test]
    fn copies_do_what_they_would_do_in_plain_memory(steps in prop::collection::vec(steps(), 1..40)) {
        let Some(device) = device() else { return Ok(()) };
        let layer = touched(&device, CACHE_BYTES as u64, Some(UNIT));
        let (mut cache, mut array) = (vec![0_u8; CACHE_BYTES], vec![1_u8; BUFFER_BYTES]);
        let mut buffer = filled(&device, &array);
        for step in steps {
            match step {
                Step::CopyIn(at, bytes) => {
                    let is_inside = at + bytes.len() <= CACHE_BYTES;
                    prop_assert_eq!(layer.copy_in(at as u64, &bytes).is_ok(), is_inside);
                    if is_inside {
                        cache[at..][..bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Step::Store(at, offset, bytes) => {
                    let is_inside = at + bytes <= CACHE_BYTES && offset + bytes <= BUFFER_BYTES;
                    prop_assert_eq!(layer.store(at as u64, &buffer, offset as u64, bytes as u64).is_ok(), is_inside);
                    if is_inside {
                        cache[at..][..bytes].copy_from_slice(&array[offset..][..bytes]);
                    }
                }
                Step::Load(at, offset, bytes) => {
                    let is_inside = at + bytes <= CACHE_BYTES && offset + bytes <= BUFFER_BYTES;
                    prop_assert_eq!(layer.load(at as u64, &mut buffer, offset as u64, bytes as u64).is_ok(), is_inside);
                    if is_inside {
                        array[offset..][..bytes].copy_from_slice(&cache[at..][..bytes]);
                    }
                }
            }
        }
        let (mut found_cache, mut found_array) = (vec![0; CACHE_BYTES], vec![0; BUFFER_BYTES]);
        layer.copy_out(0, &mut found_cache).unwrap();
        buffer.read(&*device, 0, &mut found_array).unwrap();
        prop_assert!(found_cache == cache && found_array == array);
    }
}
