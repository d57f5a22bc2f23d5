//! Looking at versions: which there are, what is in them, and parts of them.

use std::ffi::{c_char, c_int, c_void};

use outcrop::{Element, PartMut};

use crate::{
    border::{Failure, Outcome, answer, call, give_bytes, memory_mut, outcrop_status, text},
    handles::with,
    session::{outcrop_session, saved_region},
};

/// The versions that can be restored or are under way, in ascending order: the first `room` of them
/// at `versions`, which may be NULL if that is 0. `count` says how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_versions(
    session: *mut outcrop_session,
    versions: *mut u64,
    room: usize,
    count: *mut usize,
) -> outcrop_status {
    call(|| {
        let found = with(session, |session| Ok(session.session.versions()))?;
        // SAFETY: the program keeps to the header.
        unsafe { give_versions(&found, versions, room, count) }
    })
}

/// Gives the program as many versions as there is room for, and says how many there are.
///
/// # Safety
/// `versions` is NULL, or has so much room that nobody else uses during the call; `count` is as for
/// [`answer`].
pub(crate) unsafe fn give_versions(found: &[u64], versions: *mut u64, room: usize, count: *mut usize) -> Outcome<()> {
    // SAFETY: the caller vouches for it.
    let count = unsafe { answer(count, "number of versions") }?;
    if versions.is_null() && room > 0 {
        return Err(Failure::usage("there is room for versions, but its address is NULL"));
    }
    count.write(found.len());
    for (at, version) in found.iter().enumerate().take(room) {
        // SAFETY: the caller vouches for it.
        unsafe { versions.add(at).write(*version) };
    }
    Ok(())
}

/// The names of all regions of a version, each with a zero byte at its end. If `bytes` are not
/// enough for all of them, nothing is written, and `needed` says how many are; with 0 of them
/// `names` may be NULL. That is no failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_names(
    session: *mut outcrop_session,
    version: u64,
    names: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> outcrop_status {
    call(|| {
        let regions = with(session, |session| Ok(session.session.regions(version)?))?;
        let text: String = regions.iter().flat_map(|region| [region.name.as_str(), "\0"]).collect();
        // SAFETY: the program keeps to the header.
        unsafe { give_bytes(text.as_bytes(), names, bytes, needed) }
    })
}

/// What a region is made of in a version: an outcrop_element, or -1 if it is of another kind, which
/// some other language has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_element(
    session: *mut outcrop_session,
    version: u64,
    name: *const c_char,
    element: *mut c_int,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, element) = unsafe { (text(name, "name of the region")?, answer(element, "element")?) };
        let saved = with(session, |session| saved_region(session, version, name))?;
        let place = Element::ALL.iter().position(|known| known.name() == saved.element);
        element.write(place.and_then(|place| c_int::try_from(place).ok()).unwrap_or(-1));
        Ok(())
    })
}

/// Copies one region of a version to `data`, of which there are as many bytes as
/// outcrop_session_region_size says. It need not be protected, and the session goes on as if
/// nothing had been read. Concerns this rank alone. If the status is not 0, `data` may hold
/// anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_read(
    session: *mut outcrop_session,
    version: u64,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, data) = unsafe { (text(name, "name of the region")?, memory_mut(data, bytes, "the buffer")?) };
        with(session, |session| {
            let saved = saved_region(session, version, name)?;
            if saved.bytes != bytes as u64 {
                let problem = format!("region {name} of version {version} has {} bytes, not {bytes}", saved.bytes);
                return Err(Failure::usage(format!("{problem}; ask outcrop_session_region_size")));
            }
            let known = Element::named(&saved.element);
            let element = known.unwrap_or_else(|| Element::other(saved.element, saved.element_bytes));
            Ok(session.session.read(version, &mut [PartMut::of(name, element, data)])?)
        })
    })
}

/// What the last restore has passed over: newer versions that could not be used, and damaged
/// copies, one on each line, with a zero byte at the end. If `bytes` are not enough, nothing is
/// written, and `needed` says how many are: 1 if nothing was passed over. That is no failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_skipped(
    session: *mut outcrop_session,
    lines: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> outcrop_status {
    call(|| {
        let skipped = with(session, |session| Ok(session.skipped.clone()))?;
        let lines_of =
            |skipped: &outcrop::store::Skipped| format!("{}\n", skipped.to_string().replace(['\n', '\0'], " "));
        let text: String = skipped.iter().map(lines_of).chain(["\0".to_owned()]).collect();
        // SAFETY: the program keeps to the header.
        unsafe { give_bytes(text.as_bytes(), lines, bytes, needed) }
    })
}
