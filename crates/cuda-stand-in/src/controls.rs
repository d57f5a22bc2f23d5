//! What tests tell the stand-in and ask it. A real driver has none of these.

use std::ffi::c_char;

use crate::driver::{DEVICES_MAX, driver};

/// Forgets everything: memory, streams, settings and violations.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_reset() {
    driver().reset();
}

/// How many rules were broken.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_violations() -> u64 {
    driver().violations.count
}

/// Writes which rule was broken first, as a text with its end, and returns how long the text is
/// without.
///
/// # Safety
///
/// `text` must have room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_stand_in_first_violation(text: *mut c_char, bytes: usize) -> usize {
    let first = driver().violations.first.clone().unwrap_or_default();
    // SAFETY: the caller vouches for the room.
    unsafe { put(&first, text, bytes) }
}

/// Writes what was not given back, as a NUL-terminated text, and returns its length without the
/// NUL.
///
/// # Safety
///
/// `text` must have room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_stand_in_left(text: *mut c_char, bytes: usize) -> usize {
    let left = driver().left().join(", ");
    // SAFETY: the caller vouches for the room.
    unsafe { put(&left, text, bytes) }
}

/// How many devices there are from now on, and how much memory each has.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_set_devices(devices: usize, bytes: u64) {
    let mut driver = driver();
    driver.settings.devices = devices.min(DEVICES_MAX);
    driver.settings.bytes = bytes;
}

/// Lets this many allocations succeed, and all later ones fail.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_fail_allocations_after(allocations: u64) {
    driver().settings.allocations_left = Some(allocations);
}

/// Lets this many calls succeed; then the device is lost, and every call fails.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_lose_after(calls: u64) {
    driver().settings.calls_left = Some(calls);
}

/// Lets so many calls in a context be answered; then every other one fails with the error of a
/// kernel that has run astray, while contexts can still be made current, put back and released.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_stand_in_break_after(calls: u64) {
    driver().settings.whole_calls_left = Some(calls);
}

/// # Safety
///
/// `place` must have room for `bytes` bytes.
unsafe fn put(text: &str, place: *mut c_char, bytes: usize) -> usize {
    let length = text.len().min(bytes.saturating_sub(1));
    if bytes > 0 {
        // SAFETY: the text and its end are no longer than the room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, length);
            place.add(length).write(0);
        }
    }
    length
}
