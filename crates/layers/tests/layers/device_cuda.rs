//! Device memory with CUDA, against the stand-in driver, which counts every broken rule. Nothing
//! here runs on hardware.
//!
//! A process loads the driver only once, so each test runs in a child process that finds the
//! stand-in under the driver's name.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys;
use outcrop_format::HashKind;
use outcrop_layers::{
    Buffer, Cuda, Device, DeviceHash, DeviceHasher, DeviceKind, DeviceLayer, Error, Host, Layer, Memory, Result,
    checksum, devices, open_device,
};
use outcrop_testing::{child, child_directory, does_not_apply, expect_success, pattern};

use crate::common::UNIT;
use crate::device_checks::{self, CAPACITY, Script, touched};

/// The granularity of the stand-in.
const CHUNK: u64 = 2 << 20;

/// The driver's file name on machines that only run programs, and on those that also build them.
const RUN_TIME_NAME: &str = "libcuda.so.1";
const BUILD_TIME_NAME: &str = "libcuda.so";

/// Runs `work` in a child process, as the test `name`, with `library` as the driver, under this
/// name.
fn with_driver(name: &str, library: Option<(&Path, &str)>, work: fn()) {
    if child_directory().is_some() {
        return work();
    }
    let directory = tempfile::tempdir().unwrap();
    if let Some((library, file_name)) = library {
        symlink(library, directory.path().join(file_name)).unwrap();
    }
    let mut command = child(name, directory.path());
    command.env("LD_LIBRARY_PATH", directory.path());
    expect_success(command);
}

/// Runs `work` in a child process with the stand-in, and checks that it breaks no rule and leaks
/// nothing.
fn with_stand_in(name: &str, work: fn()) {
    with_stand_in_as(BUILD_TIME_NAME, name, work);
}

fn with_stand_in_as(file_name: &str, name: &str, work: fn()) {
    // Cargo puts it next to the test programs that depend on it.
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("liboutcrop_cuda_stand_in.so");
    assert!(library.exists(), "{} has not been built", library.display());
    if child_directory().is_some() {
        work();
        return expect_clean();
    }
    with_driver(name, Some((&library, file_name)), work);
}

/// The broken rules so far: their number, and the first.
fn violations() -> (u64, String) {
    // SAFETY: the stand-in is loaded, and these are the types of its functions.
    unsafe {
        let count = sys::culib().get::<extern "C" fn() -> u64>(b"outcrop_stand_in_violations").unwrap()();
        (count, text(b"outcrop_stand_in_first_violation"))
    }
}

/// What has not been released.
fn left() -> String {
    // SAFETY: the stand-in has a function of this name and type.
    unsafe { text(b"outcrop_stand_in_left") }
}

/// # Safety
///
/// The stand-in must have a function of this name that writes a text.
unsafe fn text(function: &[u8]) -> String {
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the caller guarantees the function, and there is room for as much as it is told.
    let length = unsafe {
        let write = sys::culib().get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(function).unwrap();
        write(bytes.as_mut_ptr(), bytes.len())
    };
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Passes a number to the stand-in.
fn tell(function: &[u8], number: u64) {
    // SAFETY: the functions that take one number have this type.
    unsafe { sys::culib().get::<extern "C" fn(u64)>(function).unwrap()(number) }
}

fn set_devices(devices: usize, bytes: u64) {
    // SAFETY: the stand-in has a function of this name and type.
    unsafe { sys::culib().get::<extern "C" fn(usize, u64)>(b"outcrop_stand_in_set_devices").unwrap()(devices, bytes) }
}

/// Resets the stand-in and starts it.
fn start_afresh() {
    // SAFETY: the stand-in has a function of this name and type, and may be started again after it.
    unsafe {
        sys::culib().get::<extern "C" fn()>(b"outcrop_stand_in_reset").unwrap()();
        assert_eq!(sys::cuInit(0), sys::CUresult::CUDA_SUCCESS);
    }
}

fn expect_clean() {
    assert_eq!(violations(), (0, String::new()), "rules of the driver were broken");
    assert_eq!(left(), "", "something was not given back");
}

fn device() -> Arc<dyn Device> {
    open_device(DeviceKind::Cuda, 0).unwrap()
}

#[test]
fn layers_keep_the_contract() {
    with_stand_in("device_cuda::layers_keep_the_contract", || {
        device_checks::keep_the_contract(&device(), &[Some(CHUNK), None]);
    });
}

#[test]
fn memory_is_mapped_chunk_by_chunk() {
    with_stand_in("device_cuda::memory_is_mapped_chunk_by_chunk", || device_checks::map_chunk_by_chunk(&device()));
}

#[test]
fn bytes_are_copied_at_any_offset() {
    with_stand_in("device_cuda::bytes_are_copied_at_any_offset", || {
        device_checks::copy_at_any_offset(&device());
        device_checks::slide_over_itself(&device());
    });
}

/// The stand-in computes what the kernel would compute: this tests how it is loaded and started.
#[test]
fn the_device_finds_the_same_checksum_as_the_host() {
    with_stand_in("device_cuda::the_device_finds_the_same_checksum_as_the_host", || {
        device_checks::sum_like_the_host(&device())
    });
}

/// As above.
#[test]
fn the_device_finds_the_same_hashes_as_the_host() {
    with_stand_in("device_cuda::the_device_finds_the_same_hashes_as_the_host", || {
        device_checks::hash::hash_like_the_host(&device())
    });
}

#[test]
fn what_is_on_the_device_is_hashed_there() {
    with_stand_in("device_cuda::what_is_on_the_device_is_hashed_there", || {
        set_devices(2, 64 << 20);
        device_checks::hash::hash_in_place(&device());
        let other = open_device(DeviceKind::Cuda, 1).unwrap();
        device_checks::hash::refuse_to_hash_what_is_not_there(&device(), &other);
    });
}

#[test]
fn many_transfers_run_at_once() {
    with_stand_in("device_cuda::many_transfers_run_at_once", || {
        device_checks::run_many_at_once(&device());
        device_checks::serve_many_threads(&device());
        device_checks::survive_a_panic_of_the_feed(&device());
        device_checks::let_registered_memory_go(&device());
    });
}

#[test]
fn wrong_buffers_are_refused() {
    with_stand_in("device_cuda::wrong_buffers_are_refused", || {
        set_devices(2, 64 << 20);
        let other = open_device(DeviceKind::Cuda, 1).unwrap();
        device_checks::refuse_wrong_buffers(&device(), &other);
        // A device that is opened twice is still one device.
        let (first, second) = (device(), device());
        let buffer = device_checks::filled(&first, &[9; 8]);
        touched(&second, CAPACITY, None).store(0, &buffer, 0, 8).unwrap();
    });
}

#[test]
fn devices_are_listed_and_opened_by_number() {
    with_stand_in("device_cuda::devices_are_listed_and_opened_by_number", || {
        set_devices(2, 40 << 30);
        let list: Vec<_> = devices().into_iter().filter(|found| found.kind == DeviceKind::Cuda).collect();
        let seen: Vec<_> = list.iter().map(|found| (found.index, &*found.model, found.total_bytes)).collect();
        assert_eq!(seen, [(0, "Stand-in", 40 << 30), (1, "Stand-in", 40 << 30)]);
        assert_eq!(device().chunk_bytes(), 1 << 30, "as large as in the paper on a large device");
        assert!(matches!(Cuda::open(2), Err(Error::NoDevice { index: 2, count: 2, .. })));
        set_devices(0, 0);
        assert!(matches!(Cuda::open(0), Err(Error::NoDevice { count: 0, .. })));
        assert!(devices().iter().all(|found| found.kind != DeviceKind::Cuda));
        set_devices(1, 256 << 20);
        assert_eq!(device().chunk_bytes(), 16 << 20, "smaller on a small one");
    });
}

#[test]
fn programs_use_their_own_memory_and_keep_their_context() {
    with_stand_in("device_cuda::programs_use_their_own_memory_and_keep_their_context", || {
        set_devices(2, 64 << 20);
        let (device, other) = (device(), open_device(DeviceKind::Cuda, 1).unwrap());
        let (mut own, mut popped, mut raw) = (ptr::null_mut(), ptr::null_mut(), 0);
        // SAFETY: ordinary driver calls, as a program makes them; its context is that of the other
        // device.
        unsafe {
            assert_eq!(sys::cuDevicePrimaryCtxRetain(&raw mut own, 1), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuCtxPushCurrent_v2(own), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemAlloc_v2(&raw mut raw, 100), sys::CUresult::CUDA_SUCCESS);
        }
        // SAFETY: the memory is live until it is freed below.
        let adopt = |device: &Arc<dyn Device>| unsafe { device.adopt(raw, 100) };
        assert!(matches!(adopt(&device), Err(Error::OtherDevice { .. })));
        let mut buffer = adopt(&other).unwrap();
        let layer = touched(&other, CAPACITY, None);
        buffer.write(&*other, 0, &pattern(5, 100)).unwrap();
        layer.store(CHUNK - 50, &buffer, 0, 100).unwrap();
        buffer.write(&*other, 0, &[0; 100]).unwrap();
        layer.load(CHUNK - 50, &mut buffer, 0, 100).unwrap();
        let mut found = [0; 100];
        buffer.read(&*other, 0, &mut found).unwrap();
        assert_eq!(found[..], pattern(5, 100));
        drop((layer, buffer));
        // The context used last is not the program's.
        drop(touched(&device, CAPACITY, None));
        // SAFETY: as above; the buffer made of it is gone.
        unsafe {
            assert_eq!(sys::cuMemFree_v2(raw), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuCtxPopCurrent_v2(&raw mut popped), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(popped, own, "the program's context is current again");
            assert_eq!(sys::cuDevicePrimaryCtxRelease_v2(1), sys::CUresult::CUDA_SUCCESS);
        }
    });
}

#[test]
fn the_driver_is_found_where_no_programs_are_built() {
    with_stand_in_as(RUN_TIME_NAME, "device_cuda::the_driver_is_found_where_no_programs_are_built", || {
        assert_eq!(device().name(), "cuda 0");
    });
}

/// Copies within the device do not wait for the program's default stream, and it does not wait for
/// them.
#[test]
fn copies_do_not_wait_for_the_program() {
    with_stand_in("device_cuda::copies_do_not_wait_for_the_program", || {
        let device = device();
        let layer = touched(&device, CAPACITY, None);
        let (buffer, mut target) = (device_checks::filled(&device, &[1; 8]), device_checks::filled(&device, &[2; 8]));
        let (mut own, mut popped, mut raw) = (ptr::null_mut(), ptr::null_mut(), 0);
        // SAFETY: ordinary driver calls, as a program makes them. The bytes arrive when the default
        // stream is waited for.
        unsafe {
            assert_eq!(sys::cuDevicePrimaryCtxRetain(&raw mut own, 0), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuCtxPushCurrent_v2(own), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemAlloc_v2(&raw mut raw, 8), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemcpyHtoD_v2(raw, [3_u8; 8].as_ptr().cast(), 8), sys::CUresult::CUDA_SUCCESS);
        }
        layer.store(0, &buffer, 0, 8).unwrap();
        // SAFETY: the memory is live until it is freed below.
        let late = unsafe { device.adopt(raw, 8) }.unwrap();
        layer.store(8, &late, 0, 8).unwrap();
        layer.load(8, &mut target, 0, 8).unwrap();
        let mut found = [9; 8];
        target.read(&*device, 0, &mut found).unwrap();
        assert_eq!(
            found, [0; 8],
            "the stand-in carries out what is waited for, and nobody has waited for the program's copy"
        );
        drop((late, buffer, target, layer));
        // SAFETY: as above; the buffer made of it is gone.
        unsafe {
            assert_eq!(sys::cuStreamSynchronize(ptr::null_mut()), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuMemFree_v2(raw), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuCtxPopCurrent_v2(&raw mut popped), sys::CUresult::CUDA_SUCCESS);
            assert_eq!(sys::cuDevicePrimaryCtxRelease_v2(0), sys::CUresult::CUDA_SUCCESS);
        }
    });
}

#[test]
fn a_device_that_runs_out_of_memory_keeps_what_it_has() {
    with_stand_in("device_cuda::a_device_that_runs_out_of_memory_keeps_what_it_has", || {
        set_devices(1, 4 * CHUNK);
        let device = device();
        device_checks::refuse_more_than_there_is(&device);
        let somebody = device.buffer(CHUNK).unwrap();
        let layer = DeviceLayer::new(Arc::clone(&device), 4 * CHUNK, Some(CHUNK)).unwrap();
        let error = layer.touch(0..4 * CHUNK).unwrap_err();
        assert!(matches!(error, Error::DeviceFull { bytes: CHUNK, .. }), "{error}");
        assert_eq!((layer.mapped_bytes(), device.free_bytes().unwrap()), (3 * CHUNK, 0));
        layer.write(2 * CHUNK, &pattern(1, UNIT)).unwrap();
        assert!(matches!(layer.write(3 * CHUNK, &pattern(1, UNIT)), Err(Error::Unmapped { .. })));
        assert!(matches!(device.buffer(1), Err(Error::DeviceFull { .. })));
        drop(somebody);
        layer.touch(0..4 * CHUNK).unwrap();
        layer.write(3 * CHUNK, &pattern(1, UNIT)).unwrap();
    });
}

/// What a program does from start to end. The first error ends it.
fn whole_life(host: &Host) -> Result<()> {
    let device = open_device(DeviceKind::Cuda, 0)?;
    let layer = DeviceLayer::new(Arc::clone(&device), 3 * CHUNK, Some(CHUNK))?;
    layer.touch(0..3 * CHUNK)?;
    layer.write(CHUNK - UNIT, &pattern(1, 2 * UNIT))?;
    layer.register(host)?;
    let mut buffer = device.buffer(2 * UNIT)?;
    layer.load(CHUNK - UNIT, &mut buffer, 0, 2 * UNIT)?;
    layer.store(2 * CHUNK - UNIT, &buffer, 0, 2 * UNIT)?;
    assert_eq!(layer.checksum(2 * CHUNK - UNIT, 2 * UNIT)?, checksum(&pattern(1, 2 * UNIT)));
    hash_all(&layer, &buffer)?;
    let mut script = Script::default();
    script.write(host, 0, &pattern(2, UNIT), &[0..UNIT]);
    script.read(host, UNIT, 2 * UNIT, &[2 * CHUNK - UNIT..2 * CHUNK + UNIT]);
    layer.run(&mut script);
    assert_eq!(script.done.len(), 2, "each transfer is told as done");
    for (transfer, result) in script.done.drain(..) {
        match &transfer.memory {
            Memory::Write(sealed) => assert!(sealed[..] == pattern(2, UNIT), "the program's bytes are whole"),
            Memory::Read(slot) => assert!(result.is_err() || slot[..] == pattern(1, 2 * UNIT)),
        }
        if let Err(error) = result {
            assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
            // Once lost, always lost.
            assert!(matches!(layer.write(0, &pattern(1, UNIT)), Err(Error::DeviceLost { .. })));
            assert!(matches!(layer.store(0, &buffer, 0, 1), Err(Error::DeviceLost { .. })));
            assert!(matches!(layer.touch(0..1), Err(Error::DeviceLost { .. })));
            return Err(error);
        }
    }
    Ok(())
}

/// Hashes what a layer and a buffer have, where it is, and the same in host memory. Hashes that are
/// returned are right.
fn hash_all(layer: &DeviceLayer, buffer: &Buffer) -> Result<()> {
    let bytes = pattern(1, 2 * UNIT);
    let hasher = DeviceHasher::new(Arc::clone(layer.device()), DeviceHash::Md5);
    let wanted = device_checks::hash::wanted(HashKind::Md5, &[&bytes], 3000);
    let mut found = vec![[0; 16]; wanted.len()];
    for way in 0..3 {
        found.fill([0; 16]);
        match way {
            0 => hasher.hash(&[&bytes], 3000, &mut found)?,
            1 => hasher.hash_buffer(buffer, 0, 2 * UNIT, 3000, &mut found)?,
            _ => hasher.hash_layer(layer, CHUNK - UNIT, 2 * UNIT, 3000, &mut found)?,
        }
        assert_eq!(found, wanted);
    }
    Ok(())
}

/// Runs many lives. In each, the stand-in fails after one more call than in the one before, until a
/// life ends before the failure.
fn lose_at_any_moment(control: &[u8]) {
    let host = Host::new(16 * UNIT).unwrap();
    whole_life(&host).unwrap();
    expect_clean();
    let mut calls = 0;
    loop {
        start_afresh();
        tell(control, calls);
        let outcome = whole_life(&host);
        assert_eq!(violations(), (0, String::new()), "lost after {calls} calls");
        // If the driver still answers, the program's thread keeps no context of ours.
        let still_answers = control == b"outcrop_stand_in_break_after";
        assert!(!(still_answers && left().contains("pushed")), "broken after {calls} calls: {}", left());
        match outcome {
            Ok(()) => break,
            Err(error) => assert!(matches!(error, Error::DeviceLost { .. }), "after {calls} calls: {error}"),
        }
        assert!(host.slot(0, 16 * UNIT).is_ok(), "every slot was given back");
        calls += 1;
    }
    assert!(calls > 50, "the device was lost {calls} times");
    start_afresh();
}

#[test]
fn a_device_may_be_lost_at_any_moment() {
    with_stand_in("device_cuda::a_device_may_be_lost_at_any_moment", || {
        lose_at_any_moment(b"outcrop_stand_in_lose_after")
    });
}

/// As after an illegal access of a kernel: the driver still answers, but nothing that needs the
/// context succeeds any more.
#[test]
fn a_context_may_be_broken_at_any_moment_and_the_program_gets_its_own_back() {
    with_stand_in("device_cuda::a_context_may_be_broken_at_any_moment_and_the_program_gets_its_own_back", || {
        lose_at_any_moment(b"outcrop_stand_in_break_after");
    });
}

#[test]
fn memory_may_run_out_at_any_moment() {
    with_stand_in("device_cuda::memory_may_run_out_at_any_moment", || {
        let host = Host::new(16 * UNIT).unwrap();
        let mut allocations = 0;
        loop {
            tell(b"outcrop_stand_in_fail_allocations_after", allocations);
            match whole_life(&host) {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, Error::DeviceFull { .. }), "{error}"),
            }
            expect_clean();
            allocations += 1;
        }
        assert!(allocations > 5, "it failed {allocations} times");
    });
}

#[test]
fn memory_that_is_registered_already_is_an_error_and_transfers_go_on() {
    with_stand_in("device_cuda::memory_that_is_registered_already_is_an_error_and_transfers_go_on", || {
        let (first, second) = (touched(&device(), CAPACITY, None), touched(&device(), CAPACITY, None));
        let host = Host::new(16 * UNIT).unwrap();
        first.register(&host).unwrap();
        let error = second.register(&host).unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        crate::common::run_write(&second, &host, 0, &pattern(3, UNIT)).unwrap();
        assert_eq!(crate::common::run_read(&second, &host, 0, UNIT).unwrap(), pattern(3, UNIT));
        let (count, rule) = violations();
        assert!(count == 1 && rule.contains("registered"), "{count} {rule}");
        drop((first, second));
        start_afresh();
    });
}

#[test]
fn a_library_without_the_driver_is_an_error_and_no_device() {
    // Any library will do, and every program loads this one.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    let libc = PathBuf::from(libc.expect("the C library is loaded"));
    with_driver(
        "device_cuda::a_library_without_the_driver_is_an_error_and_no_device",
        Some((&libc, BUILD_TIME_NAME)),
        || {
            let error = Cuda::open(0).unwrap_err();
            assert!(matches!(error, Error::NoDriver { kind: DeviceKind::Cuda, .. }), "{error}");
            assert!(error.to_string().contains("it lacks cuInit"), "{error}");
            assert!(devices().iter().all(|found| found.kind != DeviceKind::Cuda));
        },
    );
}

#[test]
fn without_a_driver_there_is_an_error_and_no_device() {
    with_driver("device_cuda::without_a_driver_there_is_an_error_and_no_device", None, || {
        // SAFETY: only checks whether there is a library.
        if unsafe { sys::is_culib_present() } {
            return does_not_apply("this machine has a CUDA driver");
        }
        let error = open_device(DeviceKind::Cuda, 0).err().expect("there is no driver");
        assert!(error.to_string().starts_with("no CUDA driver (libcuda) on this machine"), "{error}");
        assert!(devices().iter().all(|found| found.kind != DeviceKind::Cuda));
    });
}
