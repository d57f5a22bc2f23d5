//! Every rule is broken on purpose, and must be noticed; and what breaks none must not be.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::sys::{self, CUresult};
use outcrop_cuda_stand_in::{calls::*, controls::*};

const UNIT: usize = 2 << 20;
const OK: CUresult = CUresult::CUDA_SUCCESS;

/// There is one driver in a process, so that one test uses it at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A driver that knows nothing.
fn stopped() -> MutexGuard<'static, ()> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    outcrop_stand_in_reset();
    turn
}

/// A driver with the context of device 0 current.
fn ready() -> MutexGuard<'static, ()> {
    let turn = stopped();
    assert_eq!(cuInit(0), OK);
    push(0);
    turn
}

fn push(device: i32) -> sys::CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is to a context.
    assert_eq!(unsafe { cuDevicePrimaryCtxRetain(&raw mut context, device) }, OK);
    assert_eq!(cuCtxPushCurrent_v2(context), OK);
    context
}

fn pop() -> CUresult {
    let mut popped = ptr::null_mut();
    // SAFETY: the pointer is to a context.
    unsafe { cuCtxPopCurrent_v2(&raw mut popped) }
}

fn first_violation() -> String {
    let mut text = [0_u8; 256];
    // SAFETY: there is room for what it is told.
    let length = unsafe { outcrop_stand_in_first_violation(text.as_mut_ptr().cast::<c_char>(), text.len()) };
    String::from_utf8(text[..length].to_vec()).unwrap()
}

fn left() -> String {
    let mut text = [0_u8; 256];
    // SAFETY: there is room for what it is told.
    let length = unsafe { outcrop_stand_in_left(text.as_mut_ptr().cast::<c_char>(), text.len()) };
    String::from_utf8(text[..length].to_vec()).unwrap()
}

/// One rule was broken, with this code, and words of it are in the report.
#[track_caller]
fn expect_violation(answer: CUresult, code: CUresult, words: &str) {
    assert_eq!(answer, code);
    assert_eq!(outcrop_stand_in_violations(), 1);
    assert!(first_violation().contains(words), "{}", first_violation());
}

#[track_caller]
fn expect_invalid(answer: CUresult, words: &str) {
    expect_violation(answer, CUresult::CUDA_ERROR_INVALID_VALUE, words);
}

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn reserve(bytes: usize) -> (CUresult, u64) {
    let mut at = 0;
    // SAFETY: the pointer is to an address.
    (unsafe { cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) }, at)
}

fn create(bytes: usize) -> (CUresult, u64) {
    create_with(&properties(0), bytes, 0)
}

fn create_with(properties: &sys::CUmemAllocationProp, bytes: usize, flags: u64) -> (CUresult, u64) {
    let mut handle = 0;
    // SAFETY: the pointers are to a handle and a description.
    (unsafe { cuMemCreate(&raw mut handle, bytes, properties, flags) }, handle)
}

fn set_access(at: u64, bytes: usize, device: i32) -> CUresult {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(device), flags };
    // SAFETY: the pointer is to one description.
    unsafe { cuMemSetAccess(at, bytes, &raw const access, 1) }
}

/// Addresses, memory, and the one mapped to the other, with access.
fn mapped() -> (u64, u64) {
    let ((_, at), (_, handle)) = (reserve(UNIT), create(UNIT));
    assert_eq!(cuMemMap(at, UNIT, 0, handle, 0), OK);
    assert_eq!(set_access(at, UNIT, 0), OK);
    (at, handle)
}

fn allocate(bytes: usize) -> (CUresult, u64) {
    let mut at = 0;
    // SAFETY: the pointer is to an address.
    (unsafe { cuMemAlloc_v2(&raw mut at, bytes) }, at)
}

/// A stream that does not wait for the default one.
fn stream() -> sys::CUstream {
    let (answer, stream) = stream_with(1);
    assert_eq!(answer, OK);
    stream
}

fn stream_with(flags: u32) -> (CUresult, sys::CUstream) {
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is to a stream.
    (unsafe { cuStreamCreate(&raw mut stream, flags) }, stream)
}

fn event() -> sys::CUevent {
    let (answer, event) = event_with(0);
    assert_eq!(answer, OK);
    event
}

fn event_with(flags: u32) -> (CUresult, sys::CUevent) {
    let mut event = ptr::null_mut();
    // SAFETY: the pointer is to an event.
    (unsafe { cuEventCreate(&raw mut event, flags) }, event)
}

fn copy_in(at: u64, bytes: &[u8]) -> CUresult {
    // SAFETY: the pointer is to so many bytes.
    unsafe { cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()) }
}

fn copy_out(at: u64, bytes: &mut [u8]) -> CUresult {
    // SAFETY: the pointer is to so many bytes.
    unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, bytes.len()) }
}

fn register(bytes: &mut [u8]) -> *mut c_void {
    let address = bytes.as_mut_ptr().cast();
    assert_eq!(cuMemHostRegister_v2(address, bytes.len(), 0), OK);
    address
}

#[test]
fn a_whole_life_breaks_no_rule_and_leaves_nothing() {
    let _turn = ready();
    let (at, handle) = mapped();
    let (_, buffer) = allocate(100);
    let mut bytes = vec![5; 100];
    let address = register(&mut bytes);
    let (stream, event) = (stream(), event());
    assert_eq!(cuMemcpyHtoDAsync_v2(at, address, 100, stream), OK);
    assert_eq!(cuMemcpyDtoDAsync_v2(buffer, at, 100, stream), OK);
    assert_eq!(cuEventRecord(event, stream), OK);
    assert_eq!(cuEventSynchronize(event), OK);
    let mut found = [0; 100];
    assert_eq!(copy_out(buffer, &mut found), OK);
    assert_eq!(found, [5; 100]);
    assert_ne!(left(), "");
    let endings = [
        cuEventDestroy_v2(event),
        cuStreamDestroy_v2(stream),
        cuMemHostUnregister(address),
        cuMemFree_v2(buffer),
        cuMemUnmap(at, UNIT),
        cuMemRelease(handle),
        cuMemAddressFree(at, UNIT),
        pop(),
        cuDevicePrimaryCtxRelease_v2(0),
    ];
    assert_eq!(endings, [OK; 9]);
    assert_eq!((outcrop_stand_in_violations(), first_violation(), left()), (0, String::new(), String::new()));
}

#[test]
fn started_before_anything_else() {
    let _turn = stopped();
    let mut count = 0;
    // SAFETY: the pointer is to a number.
    let answer = unsafe { cuDeviceGetCount(&raw mut count) };
    expect_violation(answer, CUresult::CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
}

#[test]
fn only_devices_that_there_are() {
    let _turn = ready();
    let mut device = 0;
    // SAFETY: the pointer is to a device.
    let answer = unsafe { cuDeviceGet(&raw mut device, 1) };
    expect_violation(answer, CUresult::CUDA_ERROR_INVALID_DEVICE, "no device 1");
}

#[test]
fn a_context_is_current_before_use() {
    let _turn = ready();
    assert_eq!(pop(), OK);
    expect_violation(allocate(1).0, CUresult::CUDA_ERROR_INVALID_CONTEXT, "without a current context");
}

#[test]
fn a_context_is_popped_once() {
    let _turn = ready();
    assert!(left().contains("1 contexts that this thread has pushed"), "{}", left());
    assert_eq!(pop(), OK);
    expect_violation(pop(), CUresult::CUDA_ERROR_INVALID_CONTEXT, "none is current");
}

#[test]
fn a_context_is_retained_before_it_is_current_and_released_once() {
    let _turn = ready();
    assert_eq!(pop(), OK);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), OK);
    expect_violation(cuCtxPushCurrent_v2(8 as sys::CUcontext), CUresult::CUDA_ERROR_INVALID_CONTEXT, "not retained");
    assert_eq!(cuDevicePrimaryCtxRelease_v2(0), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(outcrop_stand_in_violations(), 2);
}

#[test]
fn everything_is_given_back_before_the_context() {
    let _turn = ready();
    stream();
    assert_eq!(pop(), OK);
    expect_violation(cuDevicePrimaryCtxRelease_v2(0), CUresult::CUDA_ERROR_ILLEGAL_STATE, "1 streams");
}

#[test]
fn everything_of_a_device_is_given_back_before_its_context_also_while_another_is_retained() {
    for make in [
        || assert!(!stream().is_null()),
        || assert!(!event().is_null()),
        || assert_eq!(allocate(1).0, OK),
        || assert_eq!(load(KERNEL).0, OK),
        || assert_eq!(copy_in(allocate(1).1, &[1]), OK),
    ] {
        let _turn = ready();
        outcrop_stand_in_set_devices(2, 64 << 20);
        push(1);
        make();
        assert_eq!(pop(), OK);
        let answer = cuDevicePrimaryCtxRelease_v2(1);
        expect_violation(answer, CUresult::CUDA_ERROR_ILLEGAL_STATE, "device 1 was released, but there are left");
        drop(_turn);
        let _turn = ready();
        outcrop_stand_in_set_devices(2, 64 << 20);
        make();
        push(1);
        assert_eq!((pop(), cuDevicePrimaryCtxRelease_v2(1)), (OK, OK), "what is left is the other device's");
    }
}

#[test]
fn only_flags_that_there_are() {
    let mut bytes = [0_u8; 8];
    let address = bytes.as_mut_ptr().cast();
    let _turn = ready();
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    assert_eq!((stream_with(0).0, stream_with(1).0, event_with(3).0, event_with(6).0), (OK, OK, OK, OK));
    assert_eq!(outcrop_stand_in_violations(), 0);
    expect_invalid(stream_with(2).0, "cuStreamCreate");
    assert_eq!((event_with(8).0, event_with(4).0), (invalid, invalid), "unknown, and for other processes with timing");
    assert_eq!(cuMemHostRegister_v2(address, 8, 16), invalid);
    assert_eq!(outcrop_stand_in_violations(), 4);
}

/// Parameters that make no sense whatever was done before.
#[test]
fn only_parameters_that_make_sense() {
    type Call = fn() -> CUresult;
    let calls: [(&str, Call); 18] = [
        ("cuInit with flags", || cuInit(1)),
        // SAFETY: nothing is written where the pointer is null.
        ("null pointer", || unsafe { cuMemAlloc_v2(ptr::null_mut(), 8) }),
        // SAFETY: there is room for so many bytes.
        ("without room", || unsafe { cuDeviceGetName([0; 8].as_mut_ptr(), 8, 0) }),
        ("for what is no device", || {
            let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
            let location = sys::CUmemLocation { type_, id: 0 };
            create_with(&sys::CUmemAllocationProp { location, ..properties(0) }, UNIT, 0).0
        }),
        ("no device 7", || create_with(&properties(7), UNIT, 0).0),
        ("cuMemCreate with flags", || create_with(&properties(0), UNIT, 1).0),
        ("without a description", || {
            let (mut bytes, kind) = (0, sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
            // SAFETY: the pointer is to a number, and nothing is read where the other is null.
            unsafe { cuMemGetAllocationGranularity(&raw mut bytes, ptr::null(), kind) }
        }),
        ("cuMemAddressReserve with flags", || {
            let mut at = 0;
            // SAFETY: the pointer is to an address.
            unsafe { cuMemAddressReserve(&raw mut at, UNIT, 0, 0, 1) }
        }),
        ("cuMemMap with flags", || cuMemMap(reserve(UNIT).1, UNIT, UNIT, create(UNIT).1, 0)),
        ("other than reading and writing", || {
            let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
            let access = sys::CUmemAccessDesc { location: location(0), flags };
            // SAFETY: the pointer is to one description.
            unsafe { cuMemSetAccess(mapped().0, UNIT, &raw const access, 1) }
        }),
        ("cuMemUnmap", || cuMemUnmap(mapped().0, UNIT / 2)),
        ("cuMemUnmap", || cuMemUnmap(allocate(UNIT).1, UNIT)),
        ("cuMemFree", || cuMemFree_v2(mapped().0)),
        ("cuMemFree", || cuMemFree_v2(allocate(64).1 + 8)),
        ("cuMemAddressFree", || cuMemAddressFree(reserve(2 * UNIT).1, UNIT)),
        ("cuMemAlloc of nothing", || allocate(0).0),
        ("cuMemHostRegister of nothing", || cuMemHostRegister_v2(ptr::null_mut(), 8, 0)),
        ("without parameters", || {
            let (_, sum) = function(load(KERNEL).1, c"outcrop_sum_words");
            // SAFETY: nothing is read where the pointers are null.
            unsafe { cuLaunchKernel(sum, 1, 1, 1, 4, 1, 1, 0, stream(), ptr::null_mut(), ptr::null_mut()) }
        }),
    ];
    for (words, call) in calls {
        let _turn = ready();
        let answer = call();
        assert_ne!(answer, OK, "{words}");
        expect_violation(answer, answer, words);
    }
}

#[test]
fn events_and_kernels_in_streams_of_their_own_device() {
    let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
    let _turn = ready();
    outcrop_stand_in_set_devices(2, 64 << 20);
    let (first, sum, buffer) = (stream(), function(load(KERNEL).1, c"outcrop_sum_words").1, allocate(64).1);
    push(1);
    let event = event();
    expect_violation(cuEventRecord(event, first), invalid, "another device");
    assert_eq!(launch(sum, [buffer, 8, 0, buffer], stream()), invalid, "a kernel of the first device");
    assert_eq!(pop(), OK);
    assert_eq!(cuEventRecord(event, ptr::null_mut()), invalid, "the default stream is that of the current context");
    push(1);
    let second = stream();
    assert_eq!(pop(), OK);
    assert_eq!(launch(sum, [buffer, 8, 0, buffer], second), invalid, "a stream of the second device");
    assert_eq!(launch(sum, [buffer, 8, 0, buffer], first), OK);
    assert_eq!(outcrop_stand_in_violations(), 4);
}

#[test]
fn memory_is_used_by_the_device_that_has_access() {
    for copy in [
        |at: u64, _: *mut c_void| copy_in(at, &[1]),
        |at, _| copy_out(at, &mut [0]),
        |at, address: *mut c_void| cuMemcpyHtoDAsync_v2(at, address, 1, stream()),
        |at, address| cuMemcpyDtoHAsync_v2(address, at, 1, stream()),
        |at, _| cuMemcpyDtoDAsync_v2(at, allocate(1).1, 1, stream()),
        |at, _| cuMemcpyDtoDAsync_v2(allocate(1).1, at, 1, stream()),
        |at, _| launch(function(load(KERNEL).1, c"outcrop_sum_words").1, [at, 8, 0, allocate(64).1], stream()),
    ] {
        let _turn = ready();
        let mut bytes = [0_u8; 8];
        let address = register(&mut bytes);
        let (at, _) = mapped();
        outcrop_stand_in_set_devices(2, 64 << 20);
        push(1);
        expect_invalid(copy(at, address), "no access");
    }
}

#[test]
fn copies_within_the_device_do_not_overlap() {
    let _turn = ready();
    let (at, _) = mapped();
    assert_eq!(cuMemcpyDtoDAsync_v2(at + 8, at, 8, stream()), OK);
    expect_invalid(cuMemcpyDtoDAsync_v2(at + 7, at, 8, stream()), "overlaps");
}

#[test]
fn lengths_are_multiples_of_the_granularity() {
    for call in [
        || reserve(UNIT + 1).0,
        || create(UNIT / 2).0,
        || reserve(0).0,
        || {
            let ((_, at), (_, handle)) = (reserve(2 * UNIT), create(UNIT));
            cuMemMap(at + 4096, UNIT, 0, handle, 0)
        },
    ] {
        let _turn = ready();
        expect_invalid(call(), "multiple of the granularity");
    }
}

#[test]
fn reserved_before_mapped() {
    let _turn = ready();
    let ((_, at), (_, handle)) = (reserve(UNIT), create(UNIT));
    expect_invalid(cuMemMap(at + UNIT as u64, UNIT, 0, handle, 0), "not reserved");
}

#[test]
fn created_before_mapped() {
    let _turn = ready();
    let ((_, at), (_, handle)) = (reserve(UNIT), create(UNIT));
    assert_eq!(cuMemRelease(handle), OK);
    expect_invalid(cuMemMap(at, UNIT, 0, handle, 0), "never created or is released");
}

#[test]
fn as_long_as_what_is_mapped() {
    let _turn = ready();
    let ((_, at), (_, handle)) = (reserve(2 * UNIT), create(UNIT));
    expect_invalid(cuMemMap(at, 2 * UNIT, 0, handle, 0), "another length");
}

#[test]
fn mapped_once() {
    let _turn = ready();
    let (at, _) = mapped();
    let (_, second) = create(UNIT);
    expect_violation(cuMemMap(at, UNIT, 0, second, 0), CUresult::CUDA_ERROR_ALREADY_MAPPED, "are mapped");
}

#[test]
fn mapped_before_access() {
    let _turn = ready();
    let (_, at) = reserve(UNIT);
    expect_invalid(set_access(at, UNIT, 0), "not mapped");
}

#[test]
fn access_for_the_device_of_the_memory() {
    let _turn = ready();
    outcrop_stand_in_set_devices(2, 64 << 20);
    let ((_, at), (_, handle)) = (reserve(UNIT), create(UNIT));
    assert_eq!(cuMemMap(at, UNIT, 0, handle, 0), OK);
    expect_invalid(set_access(at, UNIT, 1), "another device");
}

#[test]
fn access_before_use() {
    let _turn = ready();
    let ((_, at), (_, handle)) = (reserve(UNIT), create(UNIT));
    assert_eq!(cuMemMap(at, UNIT, 0, handle, 0), OK);
    expect_invalid(copy_in(at, &[1]), "without access");
}

#[test]
fn mapped_before_use() {
    let _turn = ready();
    let (_, at) = reserve(UNIT);
    expect_invalid(copy_in(at, &[1]), "not, or no longer, mapped");
}

#[test]
fn not_beyond_the_end() {
    let _turn = ready();
    let (_, buffer) = allocate(100);
    expect_invalid(copy_out(buffer + 90, &mut [0; 11]), "not, or no longer, mapped");
}

#[test]
fn not_used_after_it_is_unmapped_or_freed() {
    let _turn = ready();
    let (at, _) = mapped();
    assert_eq!(cuMemUnmap(at, UNIT), OK);
    expect_invalid(copy_out(at, &mut [0; 1]), "no longer, mapped");
    drop(_turn);
    let _turn = ready();
    let (_, buffer) = allocate(100);
    assert_eq!(cuMemFree_v2(buffer), OK);
    expect_invalid(copy_in(buffer, &[1]), "no longer, mapped");
}

#[test]
fn not_unmapped_or_freed_while_a_copy_is_under_way() {
    let _turn = ready();
    let (at, _) = mapped();
    let (_, buffer) = allocate(8);
    let stream = stream();
    assert_eq!(cuMemcpyDtoDAsync_v2(buffer, at, 8, stream), OK);
    assert_eq!(cuMemFree_v2(buffer), OK);
    expect_invalid(cuStreamSynchronize(stream), "no longer, mapped");
}

#[test]
fn unmapped_released_and_freed_once() {
    let _turn = ready();
    let (at, handle) = mapped();
    assert_eq!((cuMemUnmap(at, UNIT), cuMemRelease(handle), cuMemAddressFree(at, UNIT)), (OK, OK, OK));
    expect_invalid(cuMemUnmap(at, UNIT), "cuMemUnmap");
    drop(_turn);
    let _turn = ready();
    let (_, handle) = create(UNIT);
    assert_eq!(cuMemRelease(handle), OK);
    expect_invalid(cuMemRelease(handle), "cuMemRelease");
    drop(_turn);
    let _turn = ready();
    let (_, at) = reserve(UNIT);
    assert_eq!(cuMemAddressFree(at, UNIT), OK);
    expect_invalid(cuMemAddressFree(at, UNIT), "cuMemAddressFree");
    drop(_turn);
    let _turn = ready();
    let (_, buffer) = allocate(1);
    assert_eq!(cuMemFree_v2(buffer), OK);
    expect_invalid(cuMemFree_v2(buffer), "cuMemFree");
}

#[test]
fn unmapped_before_the_addresses_are_freed() {
    let _turn = ready();
    let (at, _) = mapped();
    expect_invalid(cuMemAddressFree(at, UNIT), "addresses that are mapped");
}

#[test]
fn released_memory_stays_while_it_is_mapped() {
    let _turn = ready();
    let (at, handle) = mapped();
    assert_eq!(cuMemRelease(handle), OK);
    assert_eq!(copy_in(at, &[1]), OK);
    assert_eq!(outcrop_stand_in_violations(), 0);
}

#[test]
fn registered_before_asynchronous() {
    let _turn = ready();
    let (at, _) = mapped();
    let bytes = [0_u8; 8];
    expect_invalid(cuMemcpyHtoDAsync_v2(at, bytes.as_ptr().cast(), 8, stream()), "registered");
    drop(_turn);
    let _turn = ready();
    let (at, _) = mapped();
    let mut bytes = [0_u8; 8];
    expect_invalid(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), at, 8, stream()), "registered");
}

#[test]
fn registered_until_the_copy_has_ended() {
    let _turn = ready();
    let (at, _) = mapped();
    let mut bytes = [0_u8; 8];
    let address = register(&mut bytes);
    let stream = stream();
    assert_eq!(cuMemcpyHtoDAsync_v2(at, address, 8, stream), OK);
    assert_eq!(cuMemHostUnregister(address), OK);
    expect_invalid(cuStreamSynchronize(stream), "no longer, registered");
}

#[test]
fn registered_and_unregistered_once() {
    let _turn = ready();
    let mut bytes = [0_u8; 16];
    let address = register(&mut bytes[..8]);
    let overlapping = cuMemHostRegister_v2(bytes[4..].as_mut_ptr().cast(), 8, 0);
    expect_violation(overlapping, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "registered");
    assert_eq!(cuMemHostUnregister(address), OK);
    assert_eq!(cuMemHostUnregister(address), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(outcrop_stand_in_violations(), 2);
}

#[test]
fn host_memory_is_there_from_registering_to_unregistering() {
    // So large that the system has it back as soon as it is dropped.
    const LARGE: usize = 64 << 20;
    let _turn = ready();
    let mut bytes = vec![0_u8; LARGE];
    let address = register(&mut bytes);
    drop(bytes);
    expect_invalid(cuMemHostUnregister(address), "given the memory back");
    drop(_turn);
    let _turn = ready();
    expect_invalid(cuMemHostRegister_v2(address, LARGE, 0), "cannot read and write");
    let text = "constant";
    let answer = cuMemHostRegister_v2(text.as_ptr().cast_mut().cast(), text.len(), 0);
    assert_eq!(answer, CUresult::CUDA_ERROR_INVALID_VALUE, "read-only");
}

#[test]
fn only_streams_and_events_that_there_are() {
    let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
    let _turn = ready();
    let (gone, event) = (stream(), event());
    assert_eq!(cuStreamDestroy_v2(gone), OK);
    expect_violation(cuStreamSynchronize(gone), invalid, "stream");
    assert_eq!((cuStreamDestroy_v2(gone), cuEventRecord(event, gone)), (invalid, invalid));
    assert_eq!(cuEventDestroy_v2(event), OK);
    assert_eq!((cuEventDestroy_v2(event), cuEventSynchronize(event)), (invalid, invalid));
    assert_eq!(cuEventRecord(event, stream()), invalid);
    assert_eq!(outcrop_stand_in_violations(), 6);
}

#[test]
fn addresses_of_device_memory_only() {
    let _turn = ready();
    let mut ordinal = 0;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the pointer is to a number.
    let answer = unsafe { cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, 4096) };
    expect_invalid(answer, "no device memory");
}

const KERNEL: &CStr = c".version 6.0\n.target sm_52\n.visible .entry outcrop_sum_words(";

fn load(text: &CStr) -> (CUresult, sys::CUmodule) {
    let mut module = ptr::null_mut();
    // SAFETY: the pointers are to a module and to a text with its end.
    (unsafe { cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }, module)
}

fn function(module: sys::CUmodule, name: &CStr) -> (CUresult, sys::CUfunction) {
    let mut function = ptr::null_mut();
    // SAFETY: the pointers are to a function and to a text with its end.
    (unsafe { cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }, function)
}

fn launch(function: sys::CUfunction, parameters: [u64; 4], stream: sys::CUstream) -> CUresult {
    launch_as((function, 1, 4), parameters, stream)
}

fn launch_as<const N: usize>(how: (sys::CUfunction, u32, u32), mut of: [u64; N], stream: sys::CUstream) -> CUresult {
    let (function, groups, threads) = how;
    let mut pointers = of.each_mut().map(|parameter| ptr::from_mut(parameter).cast::<c_void>());
    // SAFETY: the parameters are those of the kernel.
    unsafe { cuLaunchKernel(function, groups, 1, 1, threads, 1, 1, 0, stream, pointers.as_mut_ptr(), ptr::null_mut()) }
}

#[test]
fn kernels_are_loaded_from_what_is_one() {
    let _turn = ready();
    expect_violation(load(c"nothing").0, CUresult::CUDA_ERROR_INVALID_PTX, "no kernel");
}

#[test]
fn only_kernels_and_modules_that_there_are() {
    let _turn = ready();
    let (_, module) = load(KERNEL);
    expect_violation(function(module, c"another").0, CUresult::CUDA_ERROR_NOT_FOUND, "another");
    let (answer, sum) = function(module, c"outcrop_sum_words");
    assert_eq!((answer, cuModuleUnload(module)), (OK, OK));
    let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
    let (_, buffer) = allocate(64);
    assert_eq!(launch(sum, [buffer, 8, 0, buffer + 8], stream()), invalid);
    assert_eq!(cuModuleUnload(module), invalid);
    assert_eq!(outcrop_stand_in_violations(), 3);
}

#[test]
fn kernels_use_what_is_mapped_at_multiples_of_eight() {
    let _turn = ready();
    let (_, sum) = function(load(KERNEL).1, c"outcrop_sum_words");
    let (_, buffer) = allocate(64);
    expect_invalid(launch(sum, [buffer, 65, 0, buffer], stream()), "mapped");
    assert_eq!(launch(sum, [buffer, 8, 0, buffer + 40], stream()), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(launch(sum, [buffer + 4, 8, 0, buffer], stream()), CUresult::CUDA_ERROR_MISALIGNED_ADDRESS);
    assert_eq!(outcrop_stand_in_violations(), 3);
}

#[test]
fn kernels_that_hash_have_the_threads_and_the_room_that_they_need() {
    let _turn = ready();
    let module = load(c".version 6.0 .target sm_52 .entry outcrop_hash_md5( .entry outcrop_hash_xxh3(").1;
    let [md5, xxh3] = [c"outcrop_hash_md5", c"outcrop_hash_xxh3"].map(|name| function(module, name).1);
    let ((_, buffer), stream) = (allocate(4096), stream());
    // Nine blocks: one group for MD5, and two for XXH3, which has eight threads for each block.
    let nine = [buffer, 8, 900, 100, buffer + 1024];
    assert_eq!([launch_as((md5, 1, 64), nine, stream), launch_as((xxh3, 2, 64), nine, stream)], [OK; 2]);
    assert_eq!((cuStreamSynchronize(stream), outcrop_stand_in_violations()), (OK, 0));
    expect_invalid(launch_as((xxh3, 1, 64), nine, stream), "threads");
    let (no_bytes, too_many) = ([buffer, 0, 900, 0, buffer], [buffer, 4000, 97, 100, buffer]);
    let no_room = [buffer, 0, 900, 100, buffer + 4096 - 143];
    for (groups, threads, of) in [(2, 64, nine), (2, 32, nine), (1, 64, no_bytes), (1, 64, too_many), (1, 64, no_room)]
    {
        assert_eq!(launch_as((md5, groups, threads), of, stream), CUresult::CUDA_ERROR_INVALID_VALUE, "{of:?}");
    }
}

#[test]
fn kernels_run_when_they_are_waited_for() {
    let _turn = ready();
    let (_, sum) = function(load(KERNEL).1, c"outcrop_sum_words");
    let (_, buffer) = allocate(64);
    let stream = stream();
    assert_eq!(launch(sum, [buffer, 9, 0, buffer + 32], stream), OK);
    let mut found = [1; 32];
    assert_eq!(copy_out(buffer + 32, &mut found), OK);
    assert_eq!(found, [0; 32]);
    assert_eq!(cuStreamSynchronize(stream), OK);
    assert_eq!(copy_out(buffer + 32, &mut found), OK);
    assert!(found[..8] != [0; 8] && found[8..] == [0; 24], "two words are the first thread's: {found:?}");
    assert!(left().contains("1 modules"), "{}", left());
}

#[test]
fn copies_are_made_when_they_are_waited_for_and_not_before() {
    let _turn = ready();
    let (at, _) = mapped();
    let mut bytes = vec![1_u8; 8];
    let address = register(&mut bytes);
    let stream = stream();
    assert_eq!(cuMemcpyHtoDAsync_v2(at, address, 8, stream), OK);
    let mut found = [9; 8];
    assert_eq!(copy_out(at, &mut found), OK);
    assert_eq!(found, [0; 8], "nobody has waited");
    bytes.fill(2);
    assert_eq!(cuStreamSynchronize(stream), OK);
    assert_eq!(copy_out(at, &mut found), OK);
    assert_eq!(found, [2; 8], "what was changed too early is seen");
    assert_eq!(cuMemHostUnregister(address), OK);
    assert_eq!(outcrop_stand_in_violations(), 0);
}

#[test]
fn bytes_from_pageable_memory_arrive_when_the_default_stream_is_waited_for() {
    let _turn = ready();
    let ((at, _), (_, buffer)) = (mapped(), allocate(1));
    let stream = stream();
    assert_eq!(copy_in(at, &[7]), OK);
    assert_eq!(cuMemcpyDtoDAsync_v2(buffer, at, 1, stream), OK);
    assert_eq!(cuStreamSynchronize(stream), OK);
    let mut found = [9];
    assert_eq!(copy_out(buffer, &mut found), OK);
    assert_eq!(found, [0], "other streams do not wait for it");
    assert_eq!(copy_out(at, &mut found), OK);
    assert_eq!(found, [7]);
}

#[test]
fn blocking_streams_and_the_default_one_wait_for_each_other() {
    let _turn = ready();
    let ((at, _), (_, buffer)) = (mapped(), allocate(1));
    let mut found = [9];
    let (_, blocking) = stream_with(0);
    assert_eq!(copy_in(at, &[7]), OK);
    assert_eq!(cuMemcpyDtoDAsync_v2(buffer, at, 1, blocking), OK);
    assert_eq!(copy_out(buffer, &mut found), OK);
    assert_eq!(found, [7], "the copy out waits for the blocking stream, and that for the copy in");
}

#[test]
fn memory_is_limited_and_can_be_refused() {
    let _turn = ready();
    outcrop_stand_in_set_devices(1, 2 * UNIT as u64);
    let (_, handle) = create(UNIT);
    assert_eq!(allocate(UNIT + 1).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(allocate(UNIT).0, OK);
    assert_eq!(create(UNIT).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(cuMemRelease(handle), OK);
    outcrop_stand_in_fail_allocations_after(1);
    let (answer, buffer) = allocate(1);
    assert_eq!((answer, allocate(1).0), (OK, CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(cuMemFree_v2(buffer), OK);
    assert_eq!(outcrop_stand_in_violations(), 0, "a full device is nobody's fault");
}

#[test]
fn a_lost_device_answers_nothing_any_more() {
    let _turn = ready();
    outcrop_stand_in_lose_after(1);
    assert_eq!(allocate(1).0, OK);
    for _ in 0..3 {
        assert_eq!(allocate(1).0, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
        assert_eq!(pop(), CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    assert_eq!(outcrop_stand_in_violations(), 0);
}

#[test]
fn a_broken_context_stays_broken_but_can_be_put_back_and_released() {
    let _turn = ready();
    let (_, buffer) = allocate(1);
    outcrop_stand_in_break_after(1);
    assert_eq!(copy_in(buffer, &[1]), OK);
    let broken = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_eq!(
        (copy_in(buffer, &[1]), cuStreamSynchronize(ptr::null_mut()), cuMemFree_v2(buffer)),
        (broken, broken, broken)
    );
    push(0);
    assert_eq!((pop(), pop(), cuDevicePrimaryCtxRelease_v2(0), cuDevicePrimaryCtxRelease_v2(0)), (OK, OK, OK, OK));
    assert_eq!(outcrop_stand_in_violations(), 0);
}
