//! Tapes over CUDA, with the stand-in driver, which counts every broken rule. Nothing here runs on
//! hardware.
//!
//! Each test runs in a child that finds the stand-in under the driver's name.

use std::{
    os::unix::fs::symlink,
    path::Path,
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use cudarc::driver::sys;
use outcrop::{
    Pinning, Tape,
    layers::{Device, DeviceKind, DeviceLayer, Layer, open_device},
};
use outcrop_testing::{child, child_directory, expect_success};

const MIB: u64 = 1 << 20;
const LEN: usize = MIB as usize / size_of::<u64>();

/// Runs `work` in a child, as the test `name`, with the stand-in as the driver.
fn with_stand_in(name: &str, work: fn()) {
    if child_directory().is_some() {
        return work();
    }
    let directory = tempfile::tempdir().unwrap();
    // Cargo puts it next to the test programs that depend on it.
    let library = std::env::current_exe().unwrap().with_file_name("liboutcrop_cuda_stand_in.so");
    symlink(library, directory.path().join("libcuda.so")).unwrap();
    let mut command = child(name, directory.path());
    command.env("LD_LIBRARY_PATH", directory.path());
    expect_success(command);
}

/// Passes a number to the stand-in.
fn tell(function: &str, number: u64) {
    // SAFETY: the stand-in is loaded, and its functions that are told one number have this type.
    unsafe { sys::culib().get::<extern "C" fn(u64)>(function.as_bytes()).unwrap()(number) }
}

/// Reads a text of the stand-in.
fn text(function: &str) -> String {
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the stand-in is loaded, its functions that write a text have this type, and there is
    // room for it.
    let length = unsafe {
        let write = sys::culib().get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(function.as_bytes()).unwrap();
        write(bytes.as_mut_ptr(), bytes.len())
    };
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Checks that no rule was broken, and that everything was released.
fn expect_clean() {
    assert_eq!(text("outcrop_stand_in_first_violation"), "", "a rule of the driver was broken");
    assert_eq!(text("outcrop_stand_in_left"), "", "something was not given back");
}

/// Resets the stand-in.
fn start_afresh() {
    // SAFETY: the stand-in has a function of this name and type, and may be started again after it.
    unsafe {
        sys::culib().get::<extern "C" fn()>(b"outcrop_stand_in_reset").unwrap()();
        assert_eq!(sys::cuInit(0), sys::CUresult::CUDA_SUCCESS);
    }
}

fn values(step: u64) -> Vec<u64> {
    vec![step.wrapping_mul(0x9E37_79B9_7F4A_7C15); LEN]
}

/// 16 MiB on the device in chunks of 2 MiB, 32 MiB in host memory.
fn layer(device: &Arc<dyn Device>) -> Arc<dyn Layer> {
    Arc::new(DeviceLayer::new(Arc::clone(device), 16 * MIB, Some(2 * MIB)).unwrap())
}

#[test]
fn a_buffer_on_a_device_is_saved_incrementally() {
    with_stand_in("device_cuda::a_buffer_on_a_device_is_saved_incrementally", || {
        crate::store_device::save_a_buffer_incrementally(&open_device(DeviceKind::Cuda, 0).unwrap());
        expect_clean();
    });
}

#[test]
fn a_tape_breaks_no_rule_of_the_driver() {
    with_stand_in("device_cuda::a_tape_breaks_no_rule_of_the_driver", || {
        let scratch = tempfile::tempdir().unwrap();
        let device = open_device(DeviceKind::Cuda, 0).unwrap();
        let builder = Tape::builder().layer(layer(&device)).host(32 * MIB).dir(scratch.path(), "1 GiB");
        let mut tape = builder.open().unwrap();
        let mut buffer = device.buffer(2 * MIB).unwrap();
        let bytes = |step| values(step).iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        for step in 0..80 {
            if step % 2 == 0 {
                tape.save(step, &values(step)).unwrap();
            } else {
                buffer.write(&*device, 4096, &bytes(step)).unwrap();
                tape.save_buffer::<u64>(step, &buffer, 4096, LEN).unwrap();
            }
        }
        let start = Instant::now();
        while tape.stats().layers[1].memory.unwrap().pinning != Pinning::Done {
            assert!(start.elapsed() < Duration::from_secs(30), "host memory was not registered: {:?}", tape.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        for step in (0..80).rev() {
            if step % 3 == 0 {
                tape.take_buffer::<u64>(step, &mut buffer, 8192).unwrap();
                let mut back = vec![0; MIB as usize];
                buffer.read(&*device, 8192, &mut back).unwrap();
                assert!(back == bytes(step), "step {step} came back as another one");
            } else {
                assert_eq!(*tape.take::<u64>(step).unwrap(), values(step));
            }
        }
        drop((tape, buffer, device));
        expect_clean();
    });
}

#[test]
fn a_device_with_less_memory_than_asked_for_is_a_smaller_cache() {
    with_stand_in("device_cuda::a_device_with_less_memory_than_asked_for_is_a_smaller_cache", || {
        let device = open_device(DeviceKind::Cuda, 0).unwrap();
        let layer = layer(&device);
        tell("outcrop_stand_in_fail_allocations_after", 3);
        let mut tape = Tape::builder().layer(layer).host(256 * MIB).open().unwrap();
        (0..40).for_each(|step| tape.save(step, &values(step)).unwrap());
        let stats = tape.stats();
        assert_eq!(stats.layers[0].used_bytes_max, 6 * MIB, "three chunks");
        (0..40).rev().for_each(|step| assert_eq!(*tape.take::<u64>(step).unwrap(), values(step)));
        drop((tape, device));
        expect_clean();
    });
}

/// A program that uses a tape with three layers, from open to close. Returns the first error.
fn life(scratch: &Path) -> Result<(), String> {
    let device = open_device(DeviceKind::Cuda, 0).map_err(|error| error.to_string())?;
    let layer = DeviceLayer::new(Arc::clone(&device), 4 * MIB, Some(2 * MIB)).map_err(|error| error.to_string())?;
    let mut buffer = device.buffer(MIB).map_err(|error| error.to_string())?;
    let mut tape = Tape::builder().layer(Arc::new(layer)).host(4 * MIB).dir(scratch, "64 MiB").open().unwrap();
    let sized = |step: u64| vec![step; 20_000 + (step as usize * 7919) % 90_000];
    let mut go = |tape: &mut Tape| -> outcrop::Result<()> {
        tape.save(0, &sized(0))?;
        // Wait before most of what follows, so that it uses registered memory.
        let start = Instant::now();
        while matches!(tape.stats().layers[1].memory.unwrap().pinning, Pinning::Not | Pinning::UnderWay) {
            assert!(start.elapsed() < Duration::from_secs(30), "host memory was not registered: {:?}", tape.stats());
            thread::sleep(Duration::from_micros(100));
        }
        for step in 1..16 {
            match step % 3 {
                0 => tape.save_buffer::<u64>(step, &buffer, 0, sized(step).len())?,
                _ => tape.save(step, &sized(step))?,
            }
        }
        for step in (0..16).rev() {
            match step % 3 {
                0 if step > 0 => tape.take_buffer::<u64>(step, &mut buffer, 0)?,
                _ => assert!(*tape.take::<u64>(step)? == sized(step), "step {step} came back as another one"),
            }
        }
        Ok(())
    };
    let outcome = go(&mut tape).map_err(|error| error.to_string());
    if outcome.is_err() {
        // Every later call returns too.
        assert!(tape.save(100, &sized(1)).is_err(), "a lost device took a snapshot");
        assert!(tape.keys().into_iter().all(|key| tape.take::<u64>(key).is_err()), "a lost device gave a snapshot");
    }
    outcome
}

/// In every phase: open, save, drain, register, take, prefetch, close.
#[test]
fn a_device_may_be_lost_in_every_phase_and_no_call_hangs() {
    with_stand_in("device_cuda::a_device_may_be_lost_in_every_phase_and_no_call_hangs", || {
        let scratch = tempfile::tempdir().unwrap();
        life(scratch.path()).unwrap();
        expect_clean();
        for control in ["outcrop_stand_in_lose_after", "outcrop_stand_in_break_after"] {
            let mut lives = 0;
            loop {
                start_afresh();
                tell(control, lives * 7 + lives % 7);
                let (sender, outcome) = channel();
                let path = scratch.path().to_owned();
                thread::spawn(move || sender.send(life(&path)));
                let outcome =
                    outcome.recv_timeout(Duration::from_secs(60)).expect("a life that ends, and without panic");
                assert_eq!(text("outcrop_stand_in_first_violation"), "", "{control} {}", lives * 7 + lives % 7);
                match outcome {
                    Ok(()) => break,
                    Err(error) => assert!(error.contains("lost"), "{error}"),
                }
                lives += 1;
            }
            assert!(lives > 20, "the device was lost {lives} times");
        }
        start_afresh();
    });
}

#[test]
fn a_device_that_is_lost_ends_every_call_with_an_error_that_says_so() {
    with_stand_in("device_cuda::a_device_that_is_lost_ends_every_call_with_an_error_that_says_so", || {
        for calls in [1, 7, 30, 120, 400] {
            start_afresh();
            let device = open_device(DeviceKind::Cuda, 0).unwrap();
            let mut tape = Tape::builder().layer(layer(&device)).host(64 * MIB).open().unwrap();
            tape.save(1000, &values(1000)).unwrap();
            tell("outcrop_stand_in_lose_after", calls);
            let saves = (0..200).map(|step| tape.save(step, &values(step)).map_err(|error| error.to_string()));
            let failed = saves.filter_map(Result::err).last().expect("a lost device takes no more");
            assert!(failed.contains("lost"), "{failed}");
            let failed = tape.take::<u64>(1000).expect_err("what lay there cannot be had").to_string();
            assert!(failed.contains("lost"), "{failed}");
            drop((tape, device));
        }
    });
}
