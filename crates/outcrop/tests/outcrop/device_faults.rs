//! Tapes over a device that a test can make slow, full or lost: a real OpenCL device in a wrapper.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicI64, Ordering::SeqCst},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use outcrop::{
    ErrorKind, Tape,
    layers::{Buffer, Device, DeviceLayer, Error, Layer, Result},
};
use outcrop_testing::device::{Call, Guard, Guarded, device};

const MIB: u64 = 1 << 20;
/// Far longer than any call takes here.
const LIMIT: Duration = Duration::from_secs(60);

/// When the device fails.
#[derive(Default)]
struct Faults {
    /// Calls that succeed before the device is lost.
    calls_left: Option<AtomicI64>,
    /// Chunks that can be mapped before the device is full.
    chunks_left: Option<AtomicI64>,
    /// Copies within the device that succeed before one fails.
    copies_within_left: Option<AtomicI64>,
    /// Copies out of the device for the program that succeed before one fails.
    copies_out_left: Option<AtomicI64>,
    /// Chunks that are mapped at once. The others wait until the test lets them pass.
    gate: Option<Gate>,
    /// The shortest time of an asynchronous copy.
    copy_time: Duration,
}

struct Gate {
    open_for: Mutex<u64>,
    opened: Condvar,
}

impl Gate {
    fn new(chunks: u64) -> Self {
        Self { open_for: Mutex::new(chunks), opened: Condvar::new() }
    }

    fn open_for(&self, chunks: u64) {
        *self.open_for.lock().unwrap() = chunks;
        self.opened.notify_all();
    }

    fn pass(&self, chunk: u64) {
        let open_for = self.open_for.lock().unwrap();
        let (_open_for, timeout) =
            self.opened.wait_timeout_while(open_for, LIMIT, |open_for| chunk >= *open_for).unwrap();
        assert!(!timeout.timed_out(), "nobody has opened the gate");
    }
}

impl Faults {
    fn map(&self, at: u64, bytes: u64) -> Result<()> {
        if let Some(gate) = &self.gate {
            gate.pass(at / bytes);
        }
        match &self.chunks_left {
            Some(left) if left.fetch_sub(1, SeqCst) <= 0 => {
                Err(Error::DeviceFull { device: "wrapped".into(), bytes, reason: "it was told to".into() })
            }
            _ => Ok(()),
        }
    }

    fn is_lost(&self) -> bool {
        self.calls_left.as_ref().is_some_and(|left| left.load(SeqCst) < 0)
    }
}

/// Fails once, after `left` calls.
fn fail_once(left: Option<&AtomicI64>) -> Result<()> {
    match left {
        Some(left) if left.fetch_sub(1, SeqCst) == 0 => {
            let source = io::Error::other("it was told to");
            Err(Error::Broken { layer: "wrapped".into(), attempt: "copy", source })
        }
        _ => Ok(()),
    }
}

impl Guard for Faults {
    fn call(&self, call: Call) -> Result<()> {
        match call {
            Call::Reserve | Call::Buffer | Call::Register => return Ok(()),
            Call::EventWait => {
                thread::sleep(self.copy_time);
                return Ok(());
            }
            _ => {}
        }
        match &self.calls_left {
            Some(left) if left.fetch_sub(1, SeqCst) <= 0 => {
                return Err(Error::DeviceLost { device: "wrapped".into(), reason: "it was told to".into() });
            }
            _ => {}
        }
        match call {
            Call::Map(range) => self.map(range.start, range.end - range.start),
            Call::CopyOut => fail_once(self.copies_out_left.as_ref()),
            Call::BeginCopyWithin => fail_once(self.copies_within_left.as_ref()),
            _ => Ok(()),
        }
    }
}

/// A layer of `bytes` in chunks of 1 MiB.
fn layer(device: &Arc<dyn Device>, faults: &Arc<Faults>, bytes: u64) -> Arc<dyn Layer> {
    let guarded = Guarded { inner: Arc::clone(device), guard: Arc::clone(faults) as Arc<dyn Guard> };
    Arc::new(DeviceLayer::new(Arc::new(guarded), bytes, Some(MIB)).unwrap())
}

/// Runs `work` on another thread, and fails if it hangs.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let worker = thread::spawn(move || sender.send(work()).expect("somebody waits"));
    let result = receiver.recv_timeout(LIMIT);
    match result {
        Ok(result) => result,
        Err(_) if !worker.is_finished() => panic!("{what} hangs"),
        Err(_) => std::panic::resume_unwind(worker.join().unwrap_err()),
    }
}

/// Values that identify the snapshot. Their number differs from step to step.
fn values(step: u64) -> Vec<u64> {
    vec![step.wrapping_mul(0x9E37_79B9_7F4A_7C15); (20_000 + step * 7919 % 100_000) as usize]
}

/// Saves from and restores to host memory and a buffer of the device, through three layers. Returns
/// the first error.
fn life(device: &Arc<dyn Device>, faults: &Arc<Faults>, scratch: &Path) -> outcrop::Result<()> {
    const STEPS: u64 = 24;
    let builder = Tape::builder().layer(layer(device, faults, 3 * MIB)).host(4 * MIB).dir(scratch, "64 MiB");
    let mut tape = builder.open().unwrap();
    let mut buffer = device.buffer(MIB).unwrap();
    let outcome = try_life(&mut tape, device, &mut buffer, STEPS);
    if outcome.is_err() {
        // Nothing can be read any more, and every call says why.
        let after =
            [tape.save(1000, &values(1)).unwrap_err(), tape.save_buffer::<u64>(1001, &buffer, 0, 8).unwrap_err()];
        let keys = tape.keys();
        let takes = keys.into_iter().map(|key| tape.take::<u64>(key).map(drop).unwrap_err());
        for error in after.into_iter().chain(takes.collect::<Vec<_>>()) {
            assert!(error.to_string().contains("lost"), "{error}");
        }
    }
    outcome
}

fn try_life(tape: &mut Tape, device: &Arc<dyn Device>, buffer: &mut Buffer, steps: u64) -> outcrop::Result<()> {
    let bytes = |step| values(step).iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    for step in 0..steps {
        if step % 3 == 0 {
            buffer.write(&**device, 0, &bytes(step)).unwrap();
            tape.save_buffer::<u64>(step, buffer, 0, values(step).len())?;
        } else {
            tape.save(step, &values(step))?;
        }
    }
    for step in (0..steps).rev() {
        if step % 4 == 0 {
            tape.take_buffer::<u64>(step, buffer, 0)?;
            let mut found = bytes(step);
            buffer.read(&**device, 0, &mut found).unwrap();
            assert!(found == bytes(step), "step {step} came back as another one");
        } else {
            assert!(*tape.take::<u64>(step)? == values(step), "step {step} came back as another one");
        }
    }
    Ok(())
}

#[test]
fn a_device_may_be_lost_in_every_phase_and_no_call_hangs() {
    let Some(device) = device() else { return };
    let free = device.free_bytes().unwrap();
    let mut lives = 0;
    loop {
        // The step is not a multiple of the calls of one save or take.
        let calls = lives * 5 + lives % 5;
        let faults = Arc::new(Faults { calls_left: Some(AtomicI64::new(calls)), ..Faults::default() });
        let scratch = tempfile::tempdir().unwrap();
        let (own_device, own_faults, own_scratch) =
            (Arc::clone(&device), Arc::clone(&faults), scratch.path().to_owned());
        let outcome = in_time(&format!("a device lost after {calls} calls"), move || {
            life(&own_device, &own_faults, &own_scratch)
        });
        assert_eq!(device.free_bytes().unwrap(), free, "lost after {calls} calls: memory was not given back");
        assert!(std::fs::read_dir(scratch.path()).unwrap().next().is_none(), "files were left");
        match outcome {
            Err(error) => assert!(error.to_string().contains("lost"), "after {calls} calls: {error}"),
            Ok(()) if faults.is_lost() => panic!("lost after {calls} calls, but nobody was told"),
            Ok(()) => break,
        }
        lives += 1;
    }
    assert!(lives > 20, "the device was lost {lives} times");
}

/// Paper point A2: a save waits for the chunk that it needs, and for no other.
#[test]
fn a_save_waits_only_for_the_chunk_that_it_needs() {
    let Some(device) = device() else { return };
    let faults = Arc::new(Faults { gate: Some(Gate::new(2)), ..Faults::default() });
    let builder = Tape::builder().layer(layer(&device, &faults, 4 * MIB)).host(64 * MIB);
    let mut tape = builder.open().unwrap();
    let half = |step: u64| vec![step; MIB as usize / 16];
    // Two chunks are mapped, or will be at once.
    let mut tape = in_time("a save into what is mapped", move || {
        (0..4).for_each(|step| tape.save(step, &half(step)).unwrap());
        tape
    });
    assert_eq!(tape.stats().layers[0].memory.unwrap().touched_bytes, 2 * MIB);
    // The snapshots there are in host memory too, so there would be room if they were evicted.
    let start = Instant::now();
    while tape.stats().layers[1].used_bytes < 2 * MIB {
        assert!(start.elapsed() < LIMIT, "nothing drains: {:?}", tape.stats());
        thread::sleep(Duration::from_millis(1));
    }
    let (has_saved, saved) = channel();
    let saver = thread::spawn(move || {
        tape.save(4, &half(4)).unwrap();
        has_saved.send(()).unwrap();
        tape
    });
    let early = saved.recv_timeout(Duration::from_millis(300));
    assert!(early.is_err(), "a save did not wait for the chunk that is to come, but took another's place");
    let gate = faults.gate.as_ref().unwrap();
    gate.open_for(3);
    saved.recv_timeout(LIMIT).expect("the third chunk is there");
    let mut tape = saver.join().unwrap();
    let front = &tape.stats().layers[0];
    assert_eq!(
        (front.used_bytes, front.memory.unwrap().touched_bytes),
        (2 * MIB + MIB / 2, 3 * MIB),
        "none was evicted"
    );
    gate.open_for(4);
    (5..20).for_each(|step| tape.save(step, &half(step)).unwrap());
    (0..20).rev().for_each(|step| assert!(*tape.take::<u64>(step).unwrap() == half(step)));
    assert_eq!(tape.stats().layers[0].used_bytes_max, 4 * MIB, "all of it was used before");
}

#[test]
fn a_device_that_is_full_when_a_later_chunk_is_mapped_is_a_smaller_cache() {
    let Some(device) = device() else { return };
    let free = device.free_bytes().unwrap();
    for chunks in [1, 3] {
        let faults = Arc::new(Faults { chunks_left: Some(AtomicI64::new(chunks)), ..Faults::default() });
        let scratch = tempfile::tempdir().unwrap();
        let (own_device, own_faults, path) = (Arc::clone(&device), faults, scratch.path().to_owned());
        in_time("a full device", move || {
            let builder =
                Tape::builder().layer(layer(&own_device, &own_faults, 8 * MIB)).host(4 * MIB).dir(path, "64 MiB");
            let mut tape = builder.open().unwrap();
            let sized = |step: u64| vec![step; 10_000 + (step as usize * 7919) % 50_000];
            (0..40).for_each(|step| tape.save(step, &sized(step)).unwrap());
            assert!(tape.stats().layers[0].used_bytes_max <= chunks as u64 * MIB);
            assert_eq!(tape.stats().layers[0].memory.unwrap().touched_bytes, chunks as u64 * MIB);
            (0..40).rev().for_each(|step| assert!(*tape.take::<u64>(step).unwrap() == sized(step)));
        });
        assert_eq!(device.free_bytes().unwrap(), free);
    }
}

/// A tape is dropped while asynchronous copies are under way: it waits for them, and releases all
/// memory.
#[test]
fn a_tape_may_be_dropped_while_copies_are_under_way() {
    let Some(device) = device() else { return };
    let free = device.free_bytes().unwrap();
    for is_backward in [false, true] {
        let faults = Arc::new(Faults { copy_time: Duration::from_millis(20), ..Faults::default() });
        let scratch = tempfile::tempdir().unwrap();
        let builder =
            Tape::builder().layer(layer(&device, &faults, 3 * MIB)).host(8 * MIB).dir(scratch.path(), "64 MiB");
        let mut tape = builder.open().unwrap();
        (0..12).for_each(|step| tape.save(step, &values(step)).unwrap());
        if is_backward {
            (8..12).rev().for_each(|step| assert!(*tape.take::<u64>(step).unwrap() == values(step)));
        }
        in_time("dropping a tape", move || drop(tape));
        assert_eq!(device.free_bytes().unwrap(), free, "memory was not given back");
        assert_eq!(Arc::strong_count(&faults), 1, "a stream, an event or the layer is left");
    }
}

#[test]
fn a_copy_that_fails_consumes_nothing() {
    let Some(device) = device() else { return };
    for way in 0..3 {
        let (out, within) = if way < 2 { (Some(AtomicI64::new(0)), None) } else { (None, Some(AtomicI64::new(0))) };
        let faults = Arc::new(Faults { copies_out_left: out, copies_within_left: within, ..Faults::default() });
        let mut tape = Tape::builder().layer(layer(&device, &faults, 3 * MIB)).open().unwrap();
        tape.save(1, &values(1)).unwrap();
        let (mut target, mut buffer) = (values(0), device.buffer(MIB).unwrap());
        target.resize(values(1).len(), 0);
        let error = match way {
            0 => tape.take::<u64>(1).map(drop),
            1 => tape.take_into(1, &mut target),
            _ => tape.take_buffer::<u64>(1, &mut buffer, 0),
        };
        assert!(error.unwrap_err().to_string().contains("told to"));
        assert_eq!(tape.keys(), [1], "what cannot be read stays listed");
        assert!(*tape.take::<u64>(1).unwrap() == values(1));
        assert_eq!((tape.keys(), tape.stats().layers[0].used_bytes), (vec![], 0));
    }
}

#[test]
fn buffers_of_another_device_are_refused_and_change_nothing() {
    let (Some(device), Some(other)) = (device(), device()) else { return };
    let mut tape = Tape::builder().device(device, 3 * MIB).open().unwrap();
    tape.save(1, &values(1)).unwrap();
    let mut foreign = other.buffer(MIB).unwrap();
    assert_eq!(tape.save_buffer::<u64>(2, &foreign, 0, 8).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(tape.take_buffer::<u64>(1, &mut foreign, 0).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(tape.keys(), [1]);
    assert!(*tape.take::<u64>(1).unwrap() == values(1));
}

/// A snapshot that is not where the plan expects it is never handed over.
#[test]
fn a_slide_that_fails_ends_the_tape_with_an_error_that_says_why() {
    let Some(device) = device() else { return };
    let faults = Arc::new(Faults { copies_within_left: Some(AtomicI64::new(0)), ..Faults::default() });
    let mut tape = Tape::builder().layer(layer(&device, &faults, 4 * MIB)).open().unwrap();
    let sized = |step: u64, mebibytes: usize| vec![step; mebibytes * MIB as usize / 8];
    (0..4).for_each(|step| tape.save(step, &sized(step, 1)).unwrap());
    drop((tape.take::<u64>(0).unwrap(), tape.take::<u64>(2).unwrap()));
    let mut outcomes = vec![tape.save(5, &sized(5, 2)).map_err(|error| error.to_string())];
    for step in [1, 3] {
        let taken = tape.take::<u64>(step).map(|past| assert!(*past == sized(step, 1), "other bytes than were saved"));
        outcomes.push(taken.map_err(|error| error.to_string()));
    }
    for outcome in outcomes {
        assert!(outcome.as_ref().is_err_and(|error| error.contains("told to")), "{outcome:?}");
    }
}
