//! Tapes with a front of device memory, on a real OpenCL device, which may be the processor itself.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use outcrop::{
    ErrorKind, Order, Part, Pinning, Preference, SpanKind, Tape,
    layers::{Device, DeviceLayer, Layer},
};
use outcrop_testing::device::device;

const MIB: u64 = 1 << 20;
const LEN: usize = MIB as usize / size_of::<f32>();

fn values(step: u64) -> Vec<f32> {
    (0..LEN).map(|index| step as f32 + (index % 1000) as f32 / 1024.0).collect()
}

/// 8 MiB on the device in chunks of 2 MiB, 16 MiB in host memory, and a directory.
fn tape(device: &Arc<dyn Device>, scratch: &std::path::Path, order: Order) -> Tape {
    let layer = DeviceLayer::new(Arc::clone(device), 8 * MIB, Some(2 * MIB)).unwrap();
    Tape::builder()
        .layer(Arc::new(layer) as Arc<dyn Layer>)
        .host(16 * MIB)
        .dir(scratch, "256 MiB")
        .order(order)
        .open()
        .unwrap()
}

#[test]
fn host_slices_go_down_through_device_host_and_directory_and_come_back() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    for order in [Order::Reverse, Order::Forward, Order::Unknown] {
        let mut tape = tape(&device, scratch.path(), order.clone());
        (0..60).for_each(|step| tape.save(step, &values(step)).unwrap());
        let stats = tape.stats();
        assert!(stats.layers[0].name.starts_with("device"), "{}", stats.layers[0].name);
        assert!(stats.layers[1].written_bytes > 0 && stats.layers[2].written_bytes > 0, "{stats:?}");
        for (count, &step) in (1..).zip(&keys(&order)) {
            match count % 3 {
                0 => assert_eq!(*tape.take::<f32>(step).unwrap(), values(step)),
                1 => {
                    let mut buffer = vec![0.0f32; LEN];
                    tape.take_into(step, &mut buffer).unwrap();
                    assert_eq!(buffer, values(step));
                }
                _ => {
                    assert_eq!(*tape.get::<f32>(step).unwrap(), values(step));
                    tape.discard(step).unwrap();
                }
            }
        }
        assert!(tape.keys().is_empty());
    }
}

fn keys(order: &Order) -> Vec<u64> {
    match order {
        Order::Reverse => (0..60).rev().collect(),
        _ => (0..60).collect(),
    }
}

#[test]
fn device_buffers_are_saved_and_restored_without_passing_the_host() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = tape(&device, scratch.path(), Order::Reverse);
    let mut buffer = device.buffer(3 * MIB).unwrap();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    for step in 0..40 {
        buffer.write(&*device, MIB, &bytes(&values(step))).unwrap();
        tape.save_buffer::<f32>(step, &buffer, MIB, LEN).unwrap();
    }
    for step in (0..40).rev() {
        if step % 2 == 0 {
            tape.take_buffer::<f32>(step, &mut buffer, 12).unwrap();
            let mut back = vec![0; MIB as usize];
            buffer.read(&*device, 12, &mut back).unwrap();
            assert!(back == bytes(&values(step)), "step {step} came back as another one");
        } else {
            assert_eq!(*tape.take::<f32>(step).unwrap(), values(step), "saved from the device, restored to the host");
        }
    }
}

#[test]
fn nothing_is_evicted_before_the_cache_is_mapped_and_filled() {
    let Some(device) = device() else { return };
    let layer = DeviceLayer::new(Arc::clone(&device), 8 * MIB, Some(2 * MIB)).unwrap();
    let mut tape = Tape::builder().layer(Arc::new(layer) as Arc<dyn Layer>).host(64 * MIB).open().unwrap();
    (0..8).for_each(|step| tape.save(step, &values(step)).unwrap());
    let layer = &tape.stats().layers[0];
    assert_eq!((layer.used_bytes, layer.memory.unwrap().touched_bytes), (8 * MIB, 8 * MIB), "all of it, and all used");
    for step in (0..8).rev() {
        assert_eq!(*tape.take::<f32>(step).unwrap(), values(step));
    }
    assert_eq!(tape.stats().hits, 8, "all were still there");
}

/// By move between two layers: the keys, in the order in which the moves started, without the first
/// spans of the timeline.
fn ways(tape: &Tape, skipped: usize, kinds: &[SpanKind]) -> BTreeMap<String, Vec<u64>> {
    let mut spans = tape.trace().spans().split_off(skipped);
    spans.sort_by_key(|span| span.start_ns);
    let mut ways = BTreeMap::<String, Vec<u64>>::new();
    for span in spans.into_iter().filter(|span| kinds.contains(&span.kind)) {
        ways.entry(span.track).or_default().push(span.key.unwrap());
    }
    ways
}

/// Paper points A1, A8 and A9: first in, first out on the way down; last in, first out on the way
/// up. Between all three layers, with equal and with different sizes.
#[test]
fn snapshots_sink_in_the_order_of_saves_and_come_up_in_reverse() {
    const STEPS: u64 = 64;
    let Some(device) = device() else { return };
    let sizes: [fn(u64) -> usize; 2] = [|_| LEN / 2, |step| LEN / 30 + (step as usize * 7_919_777) % (LEN - LEN / 30)];
    for size in sizes {
        let scratch = tempfile::tempdir().unwrap();
        let layer = DeviceLayer::new(Arc::clone(&device), 4 * MIB, Some(MIB)).unwrap();
        let builder =
            Tape::builder().layer(Arc::new(layer) as Arc<dyn Layer>).host(8 * MIB).dir(scratch.path(), "256 MiB");
        let mut tape = builder.order(Order::Reverse).preference(Preference::Fixed).trace(true).open().unwrap();
        let sized = |step: u64| vec![step as f32; size(step)];
        (0..STEPS).for_each(|step| tape.save(step, &sized(step)).unwrap());
        // Some are prefetched as soon as there is room. Then nothing moves until the first take.
        let mut spans = 0;
        while tape.trace().spans().len() > spans {
            spans = tape.trace().spans().len();
            thread::sleep(Duration::from_millis(200));
        }
        let down = ways(&tape, 0, &[SpanKind::Drain]);
        for step in (0..STEPS).rev() {
            assert_eq!(*tape.take::<f32>(step).unwrap(), sized(step));
            thread::sleep(Duration::from_millis(1));
        }
        let up = ways(&tape, spans, &[SpanKind::Prefetch, SpanKind::Fetch]);
        let many = |ways: &BTreeMap<String, Vec<u64>>, from: &str, to: &str| {
            let way = ways.iter().find(|(way, _)| way.starts_with(from) && way.contains(&format!(" to {to}")));
            assert!(way.is_some_and(|(_, keys)| keys.len() >= 8), "few went from {from} to {to}: {ways:?}");
        };
        many(&down, "device", "host");
        many(&down, "host", "dir");
        many(&up, "dir", "host");
        many(&up, "host", "device");
        for (way, keys) in &down {
            assert!(keys.is_sorted_by(|one, next| one < next), "{way}: {keys:?}");
        }
        // A long read from the directory may be overtaken by another one that runs at the same
        // time.
        for (way, keys) in &up {
            let mut wanted = keys.clone();
            wanted.sort_by(|one, next| next.cmp(one));
            let place = |key: &u64| wanted.iter().position(|wanted| wanted == key).unwrap();
            let is_near = |(index, key): (usize, &u64)| place(key).abs_diff(index) <= 8;
            assert!(keys.iter().enumerate().all(is_near), "{way}: {keys:?}");
        }
    }
}

#[test]
fn host_memory_below_a_device_is_registered_once_all_of_it_is_touched() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let tape = tape(&device, scratch.path(), Order::Reverse);
    let start = std::time::Instant::now();
    while tape.stats().layers[1].memory.unwrap().pinning != Pinning::Done {
        assert!(start.elapsed().as_secs() < 30, "{:?}", tape.stats().layers[1]);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(tape.stats().layers[1].memory.unwrap().touched_bytes, 16 * MIB);
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = tape(&device, scratch.path(), Order::Reverse);
    tape.save(1, &values(1)).unwrap();
    assert_eq!(tape.lend::<f32>(2, LEN).unwrap_err().kind(), ErrorKind::Usage);
    let mut small = device.buffer(MIB / 2).unwrap();
    assert_eq!(tape.take_buffer::<f32>(1, &mut small, 0).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(tape.take_buffer::<u8>(1, &mut small, 0).unwrap_err().kind(), ErrorKind::Usage, "another type");
    assert!(tape.save_buffer::<f32>(3, &small, 0, LEN).is_err(), "longer than the buffer");
    assert_eq!(tape.keys(), [1], "a save that failed leaves nothing behind");
    assert_eq!(tape.save(4, &vec![0.0f32; 9 * LEN]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(*tape.take::<f32>(1).unwrap(), values(1));
    let mut host = Tape::builder().host(8 * MIB).open().unwrap();
    assert_eq!(host.save_buffer::<f32>(1, &small, 0, 1).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_device_without_host_memory_below_it_drains_to_a_directory() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().device(device, 8 * MIB).dir(scratch.path(), "256 MiB").open().unwrap();
    (0..40).for_each(|step| tape.save(step, &values(step)).unwrap());
    for step in (0..40).rev() {
        assert_eq!(*tape.take::<f32>(step).unwrap(), values(step));
    }
}

#[test]
fn snapshots_of_many_sizes_find_their_places_on_the_device() {
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = tape(&device, scratch.path(), Order::Unknown);
    let sized = |step: u64| vec![step as f32; 1000 + (step as usize * 7919) % LEN];
    (0..80).for_each(|step| tape.save(step, &sized(step)).unwrap());
    let order: Vec<u64> = (0..80).map(|step| step * 37 % 80).collect();
    for step in order {
        assert_eq!(*tape.take::<f32>(step).unwrap(), sized(step));
    }
}

/// A device below host memory or below another device, too, is mapped when it is needed.
#[test]
fn a_device_may_lie_below_other_memory() {
    let (Some(device), Some(second)) = (device(), device()) else { return };
    let chunked = |device: &Arc<dyn Device>, bytes| {
        Arc::new(DeviceLayer::new(Arc::clone(device), bytes, Some(2 * MIB)).unwrap()) as Arc<dyn Layer>
    };
    for order in [Order::Reverse, Order::Unknown] {
        let stacks = [
            Tape::builder().host(4 * MIB).layer(chunked(&device, 64 * MIB)),
            Tape::builder().layer(chunked(&device, 4 * MIB)).layer(chunked(&second, 64 * MIB)),
            Tape::builder().layer(chunked(&device, 4 * MIB)).host(4 * MIB).layer(chunked(&second, 64 * MIB)),
        ];
        for builder in stacks {
            let mut tape = builder.order(order.clone()).open().unwrap();
            (0..40).for_each(|step| tape.save(step, &values(step)).unwrap());
            for step in (0..40).rev() {
                assert_eq!(*tape.take::<f32>(step).unwrap(), values(step));
            }
        }
    }
}

#[test]
fn regions_empty_snapshots_and_several_threads_are_served_from_a_device() {
    const THREADS: u64 = 3;
    let Some(device) = device() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let tape = tape(&device, scratch.path(), Order::Unknown);
    thread::scope(|scope| {
        for first in 0..THREADS {
            let (mut tape, device) = (tape.clone(), &device);
            scope.spawn(move || {
                let mut buffer = device.buffer(8).unwrap();
                let steps = || (0..60).map(|step| step * THREADS + first);
                for step in steps() {
                    match step % 4 {
                        0 => tape.save::<f32>(step, &[]).unwrap(),
                        1 => tape.save_buffer::<f32>(step, &buffer, 8, 0).unwrap(),
                        _ => {
                            let (flags, field) = (vec![step as u8; 77], vec![step as f32; LEN / 3]);
                            tape.save_regions(step, &[Part::new("flags", &flags), Part::new("field", &field)]).unwrap();
                        }
                    }
                }
                for step in steps() {
                    match step % 4 {
                        0 => tape.take_buffer::<f32>(step, &mut buffer, 8).unwrap(),
                        1 => assert!(tape.take::<f32>(step).unwrap().is_empty()),
                        _ => {
                            let past = tape.take_regions(step).unwrap();
                            assert_eq!(past.region::<u8>("flags").unwrap(), [step as u8; 77]);
                            assert_eq!(past.region::<f32>("field").unwrap(), vec![step as f32; LEN / 3]);
                        }
                    }
                }
            });
        }
    });
    assert!(tape.keys().is_empty());
}
