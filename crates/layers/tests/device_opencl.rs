//! Device memory over OpenCL, on whatever device this machine has: PoCL, which computes on the processor, will do.

// Lists of one extent are what most transfers have.
#![allow(clippy::single_range_in_vec_init)]

mod common;
mod device_checks;

use std::{
    io::{self, Write},
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use common::{UNIT, child, child_directory, expect_success, pattern};
use device_checks::{CAPACITY, Script, filled, touched};
use opencl3::{
    context::Context,
    device::Device as Description,
    memory::{CL_MEM_READ_WRITE, create_buffer, release_mem_object},
};
use outcrop_layers::{
    Buffer, Device, DeviceKind, DeviceLayer, Error, Event, Fault, Faulty, Feed, Host, Layer, OpenCl, Place,
    Registration, Reservation, Result, Stream, Transfer, contract, devices, open_device,
};
use proptest::prelude::*;

/// The first device, if there is one. Where everything must be tested, there has to be.
fn device() -> Option<Arc<dyn Device>> {
    match open_device(DeviceKind::OpenCl, 0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("OUTCROP_TEST_ALL").is_none() => {
            // Not by the macro, whose output is hidden while a test passes.
            let _ = writeln!(io::stderr(), "SKIPPED, as there is no OpenCL device (Debian: pocl-opencl-icd): {error}");
            None
        }
        Err(error) => panic!("OUTCROP_TEST_ALL is set, but {error}"),
    }
}

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
    // One buffer may not be as large as all memory: a failure of the driver itself.
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

/// In a child, as the list of drivers is read once per process.
#[test]
fn without_a_driver_there_is_an_error_and_no_device() {
    const NAME: &str = "without_a_driver_there_is_an_error_and_no_device";
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
    // SAFETY: context and device are live and belong together.
    let device: Arc<dyn Device> = Arc::new(unsafe { OpenCl::in_context(context.get(), id) }.unwrap());
    // SAFETY: a new buffer.
    let raw = unsafe { create_buffer(context.get(), CL_MEM_READ_WRITE, 100, ptr::null_mut()) }.unwrap();
    // SAFETY: the handle is valid.
    let adopt = |device: &Arc<dyn Device>, bytes| unsafe { device.adopt(raw as u64, bytes) };
    assert!(matches!(adopt(&device, 101), Err(Error::BufferTooSmall { .. })));
    let stranger: Arc<dyn Device> = Arc::new(OpenCl::open(0).unwrap());
    assert!(matches!(adopt(&stranger, 100), Err(Error::OtherDevice { .. })));

    let mut buffer = adopt(&device, 100).unwrap();
    // SAFETY: the program gives its own reference up; the buffer has another.
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
    let slow: Arc<dyn Device> = Arc::new(Wrapped {
        registers: Some((has_begun, Mutex::new(end))),
        ..Wrapped::new(&device, &Arc::new(AtomicBool::new(false)))
    });
    let layer = &touched(&slow, CAPACITY, None);
    let host = &Host::new(16 * UNIT).unwrap();
    thread::scope(|scope| {
        let registering = scope.spawn(|| layer.register(host));
        begun.recv().unwrap();
        common::run_write(layer, host, 0, &pattern(3, UNIT)).unwrap();
        assert_eq!(common::run_read(layer, host, 0, UNIT).unwrap(), pattern(3, UNIT));
        assert_eq!(layer.registered_bytes(), 0);
        may_end.send(()).unwrap();
        registering.join().unwrap().unwrap();
    });
    assert_eq!(layer.registered_bytes(), host.capacity());
}

#[test]
fn a_lost_device_stays_lost_and_host_memory_is_whole() {
    let Some(device) = device() else { return };
    let is_lost = Arc::new(AtomicBool::new(false));
    let fragile: Arc<dyn Device> = Arc::new(Wrapped::new(&device, &is_lost));
    let layer = DeviceLayer::new(fragile, CAPACITY, Some(2 << 20)).unwrap();
    layer.touch(0..2 << 20).unwrap();
    let host = Host::new(16 * UNIT).unwrap();
    let mut script = Script::default();
    for index in 0..4 {
        script.write(&host, index * UNIT, &pattern(index, UNIT), &[index * UNIT..(index + 1) * UNIT]);
    }
    // For one call only: the driver answers again after it, but what was on the device is gone.
    is_lost.store(true, Relaxed);
    layer.run(&mut script);
    assert!(!is_lost.load(Relaxed));
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

/// A feed that looks, whenever a transfer has failed, whether the device may still use its memory.
struct Watcher {
    script: Script,
    copies: Arc<Copies>,
    failures: usize,
}

impl Feed for Watcher {
    fn next(&mut self) -> Option<Transfer> {
        self.script.next()
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        if result.is_err() {
            self.failures += 1;
            assert_eq!(self.copies.under_way.load(Relaxed), 0, "memory was given back while the device may use it");
        }
        self.script.done(transfer, result);
    }
}

#[test]
fn memory_of_a_transfer_that_fails_is_given_back_when_the_device_is_done_with_it() {
    let Some(device) = device() else { return };
    for is_refused in [true, false] {
        let wrapped = Wrapped::new(&device, &Arc::new(AtomicBool::new(false)));
        let copies = Arc::clone(&wrapped.copies);
        let layer = touched(&(Arc::new(wrapped) as Arc<dyn Device>), CAPACITY, Some(UNIT));
        let host = Host::new(16 * UNIT).unwrap();
        let mut script = Script::default();
        // Each has two pieces, as it crosses the end of a chunk.
        for index in 0..3 {
            let at = 4 * index * UNIT;
            script.write(&host, 2 * index * UNIT, &pattern(index, 2 * UNIT), &[at..at + 2 * UNIT]);
        }
        if is_refused {
            copies.refuse_at.store(4, Relaxed);
        } else {
            copies.fails_at_end.store(true, Relaxed);
        }
        let mut watcher = Watcher { script, copies, failures: 0 };
        layer.run(&mut watcher);
        assert_eq!((watcher.failures, watcher.script.done.len()), (1, 3));
    }
}

/// A device that is lost for one call when it is told to, and that may take its time to register memory.
struct Wrapped {
    inner: Arc<dyn Device>,
    is_lost: Arc<AtomicBool>,
    /// Who is told that registering has begun, and who tells that it may end.
    registers: Option<(Sender<()>, Mutex<Receiver<()>>)>,
    copies: Arc<Copies>,
}

/// What the streams of a device have begun.
#[derive(Default)]
struct Copies {
    /// How many nobody has waited for.
    under_way: AtomicUsize,
    /// How many are begun before one is refused; 0: all are.
    refuse_at: AtomicUsize,
    /// Whether waiting for an event fails.
    fails_at_end: AtomicBool,
}

impl Copies {
    fn begin(&self) -> Result<()> {
        if self.refuse_at.load(Relaxed) > 0 && self.refuse_at.fetch_sub(1, Relaxed) == 1 {
            return Err(Error::Broken {
                layer: "fragile".into(),
                attempt: "copy",
                source: io::Error::other("told to"),
            });
        }
        self.under_way.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Wrapped {
    fn new(inner: &Arc<dyn Device>, is_lost: &Arc<AtomicBool>) -> Self {
        Self { inner: Arc::clone(inner), is_lost: Arc::clone(is_lost), registers: None, copies: Arc::default() }
    }
}

/// Its streams.
struct WrappedStream {
    inner: Box<dyn Stream>,
    is_lost: Arc<AtomicBool>,
    copies: Arc<Copies>,
}

/// Their events.
struct WrappedEvent {
    inner: Box<dyn Event>,
    copies: Arc<Copies>,
}

impl Event for WrappedEvent {
    fn wait(&self) -> Result<()> {
        if self.copies.fails_at_end.swap(false, Relaxed) {
            return Err(Error::Broken {
                layer: "fragile".into(),
                attempt: "wait",
                source: io::Error::other("told to"),
            });
        }
        self.inner.wait()
    }
}

fn check(is_lost: &AtomicBool) -> Result<()> {
    if is_lost.swap(false, Relaxed) {
        return Err(Error::DeviceLost { device: "fragile".into(), reason: "it was told to".into() });
    }
    Ok(())
}

impl Device for Wrapped {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn identity(&self) -> usize {
        self.inner.identity()
    }
    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }
    fn free_bytes(&self) -> Result<u64> {
        self.inner.free_bytes()
    }
    fn chunk_bytes(&self) -> u64 {
        self.inner.chunk_bytes()
    }
    fn granularity_bytes(&self) -> u64 {
        self.inner.granularity_bytes()
    }
    fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>> {
        check(&self.is_lost).and_then(|()| self.inner.reserve(bytes))
    }
    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        check(&self.is_lost).and_then(|()| self.inner.buffer(bytes))
    }
    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer> {
        // SAFETY: the caller vouches for the handle.
        unsafe { self.inner.adopt(handle, bytes) }
    }
    fn needs_registration(&self) -> bool {
        self.registers.is_some() || self.inner.needs_registration()
    }
    unsafe fn register(&self, address: ptr::NonNull<u8>, bytes: usize) -> Result<Registration> {
        if let Some((has_begun, may_end)) = &self.registers {
            has_begun.send(()).unwrap();
            // Not for ever: transfers that wait for this would never let it end.
            may_end.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("transfers went on");
        }
        // SAFETY: the caller keeps the memory.
        unsafe { self.inner.register(address, bytes) }
    }
    fn stream(&self) -> Result<Box<dyn Stream>> {
        let inner = self.inner.stream()?;
        Ok(Box::new(WrappedStream { inner, is_lost: Arc::clone(&self.is_lost), copies: Arc::clone(&self.copies) }))
    }
}

// SAFETY of all calls below: the caller vouches for the same.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Stream for WrappedStream {
    unsafe fn copy_in(&mut self, bytes: &[u8], to: Place) -> Result<()> {
        check(&self.is_lost).and_then(|()| unsafe { self.inner.copy_in(bytes, to) })
    }
    unsafe fn copy_out(&mut self, from: Place, bytes: &mut [u8]) -> Result<()> {
        check(&self.is_lost).and_then(|()| unsafe { self.inner.copy_out(from, bytes) })
    }
    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()> {
        check(&self.is_lost).and_then(|()| self.copies.begin())?;
        unsafe { self.inner.begin_copy_in(from, to, bytes) }
    }
    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()> {
        check(&self.is_lost).and_then(|()| self.copies.begin())?;
        unsafe { self.inner.begin_copy_out(from, to, bytes) }
    }
    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()> {
        check(&self.is_lost).and_then(|()| unsafe { self.inner.begin_copy_within(from, to, bytes) })
    }
    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64> {
        check(&self.is_lost).and_then(|()| unsafe { self.inner.sum_words(at, first_word, bytes) })
    }
    fn record(&mut self) -> Result<Box<dyn Event>> {
        let inner = check(&self.is_lost).and_then(|()| self.inner.record())?;
        Ok(Box::new(WrappedEvent { inner, copies: Arc::clone(&self.copies) }))
    }
    fn wait(&mut self) -> Result<()> {
        self.copies.under_way.store(0, Relaxed);
        self.inner.wait().and_then(|()| check(&self.is_lost))
    }
}

/// What is done to a cache and a buffer.
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

    /// A cache of small chunks and a buffer do what two arrays do.
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
