//! Sessions: series of versions of the regions that the program protects.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::NonNull,
    slice,
};

use outcrop::{
    DIMENSIONS_MAX, Element, Error, MemoryOrder, Part, PartMut, Reached, Session, Shape, ShapeError,
    bindings::check_region_name,
    store::{RegionOptions, Restored, SavedRegion, Skipped},
};
use outcrop_memory::{Access, Maps};

use crate::{
    border::{Failure, Outcome, answer, call, check_memory, outcrop_status, text},
    handles::{Opaque, close, with},
};

/// Where a version may have come to, for outcrop_session_wait: all directories.
pub const OUTCROP_ALL: c_int = 0;
/// Where a version may have come to, for outcrop_session_wait: host memory, from where this process
/// can restore it.
pub const OUTCROP_HOST: c_int = -1;

/// The last index runs fastest in memory, as in C.
pub const OUTCROP_ROW_MAJOR: c_int = 0;
/// The first index runs fastest in memory, as in Fortran.
pub const OUTCROP_COLUMN_MAJOR: c_int = 1;

/// The length of a list in the box of a part of it, in its slowest dimension: the list has the
/// parts of all ranks, in the order of the ranks.
pub const OUTCROP_LIST: usize = 281474976710655;
const _: () = assert!(OUTCROP_LIST == outcrop::LIST, "all languages have the same lists");

/// One series of versions. Calls on one session are made one after the other.
pub struct outcrop_session {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_session {
    type Value = Protected;
    const NAME: &'static str = "session";
}

/// What a region is made of.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum outcrop_element {
    /// Bytes without a meaning, or unsigned numbers of 8 bits.
    OUTCROP_U8 = 0,
    /// int8_t
    OUTCROP_I8 = 1,
    /// uint16_t
    OUTCROP_U16 = 2,
    /// int16_t
    OUTCROP_I16 = 3,
    /// uint32_t
    OUTCROP_U32 = 4,
    /// int32_t
    OUTCROP_I32 = 5,
    /// uint64_t
    OUTCROP_U64 = 6,
    /// int64_t
    OUTCROP_I64 = 7,
    /// Floating point numbers of 16 bits.
    OUTCROP_F16 = 8,
    /// float
    OUTCROP_F32 = 9,
    /// double
    OUTCROP_F64 = 10,
    /// Two floats.
    OUTCROP_C64 = 11,
    /// Two doubles.
    OUTCROP_C128 = 12,
    /// bool
    OUTCROP_BOOL = 13,
    /// Text in UTF-8; its elements are its bytes.
    OUTCROP_TEXT = 14,
}

/// A session with the regions that the program has protected.
pub(crate) struct Protected {
    pub(crate) session: Session,
    regions: Vec<Region>,
    /// What the last restore has passed over.
    pub(crate) skipped: Vec<Skipped>,
}

/// Memory of the program under a name.
struct Region {
    name: String,
    element: Element,
    shape: Shape,
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is read and written inside calls only, one after the other, and the program
// says by a call that it may be.
unsafe impl Send for Region {}

impl Region {
    /// What is saved.
    fn part(&self) -> Part<'_> {
        // SAFETY: the program has protected it and not ended that, so that it is there, and leaves
        // it alone during this call.
        let bytes = unsafe { slice::from_raw_parts(self.data.as_ptr(), self.bytes) };
        Part::of(&self.name, self.element.clone(), bytes).like(&self.shape)
    }

    /// What is restored.
    ///
    /// # Safety
    /// No other region that is restored at the same time has any of these bytes.
    unsafe fn part_mut(&self) -> PartMut<'_> {
        // SAFETY: the program has protected it and not ended that, and leaves it alone during this
        // call; the caller vouches for the rest.
        let bytes = unsafe { slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) };
        PartMut::of(&self.name, self.element.clone(), bytes).like(&self.shape)
    }

    fn end(&self) -> usize {
        self.data.addr().get() + self.bytes
    }

    /// An error if the memory is known to be constant, or not there any more.
    fn check_writable(&self) -> Outcome<()> {
        let place = self.data.addr().get()..self.end();
        // A system that does not say what is mapped is no reason to fail. What other threads map
        // meanwhile may disturb a list, so a second one is believed.
        let is_writable = || Maps::now().and_then(|maps| maps.allows(&place, Access::ReadWrite)).unwrap_or(true);
        match self.bytes == 0 || is_writable() || is_writable() {
            true => Ok(()),
            false => Err(Failure::usage(format!(
                "region {} cannot be written: is it constant, or was it freed? Nothing was changed",
                self.name
            ))),
        }
    }
}

impl Protected {
    pub(crate) fn new(mut session: Session) -> Self {
        // A program that is told of a failed restore may go on with its memory as it was.
        session.verify_before_restore(true);
        Self { session, regions: Vec::new(), skipped: Vec::new() }
    }

    /// Puts a region in the place of the one of the same name, or adds it.
    fn protect(&mut self, region: Region) -> Outcome<()> {
        match self.regions.iter_mut().find(|known| known.name == region.name) {
            Some(known) => {
                if (known.data, known.bytes) != (region.data, region.bytes) {
                    // The program may free what was there.
                    self.session.thaw()?;
                }
                *known = region;
            }
            None => self.regions.push(region),
        }
        Ok(())
    }

    /// The place of the region of this name.
    fn position(&self, name: &str) -> Outcome<usize> {
        self.regions.iter().position(|region| region.name == name).ok_or_else(|| {
            let names: Vec<_> = self.regions.iter().map(|region| region.name.as_str()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Failure::usage(format!("no region {name} is protected; there are: {names}"))
        })
    }

    fn check_any(&self) -> Outcome<()> {
        match self.regions.is_empty() {
            true => Err(Failure::usage("no region is protected; call outcrop_session_protect before")),
            false => Ok(()),
        }
    }

    fn save(&mut self, version: u64) -> Outcome<()> {
        self.check_any()?;
        let parts: Vec<_> = self.regions.iter().map(Region::part).collect();
        Ok(self.session.save(version, &parts)?)
    }

    /// Has `restore` write to all regions. Says which version it was, if there was any.
    fn restore(
        &mut self,
        restore: impl FnOnce(&mut Session, &mut [PartMut<'_>]) -> outcrop::Result<Option<Restored>>,
    ) -> Outcome<Option<u64>> {
        self.check_any()?;
        self.skipped.clear();
        let mut in_order: Vec<&Region> = self.regions.iter().filter(|region| region.bytes > 0).collect();
        in_order.sort_by_key(|region| region.data);
        if let Some(pair) = in_order.windows(2).find(|pair| pair[0].end() > pair[1].data.addr().get()) {
            let (one, other) = (&pair[0].name, &pair[1].name);
            return Err(Failure::usage(format!("regions {one} and {other} overlap: they cannot be restored together")));
        }
        self.regions.iter().try_for_each(Region::check_writable)?;
        // SAFETY: no two of them overlap.
        let mut parts: Vec<_> = self.regions.iter().map(|region| unsafe { region.part_mut() }).collect();
        let restored = restore(&mut self.session, &mut parts)?;
        Ok(restored.map(|restored| {
            self.skipped = restored.skipped;
            restored.version
        }))
    }
}

/// Protects `count` elements at `data` under a name: every save has them, and every restore writes
/// to them. They must stay where they are until the session is closed, or the name is protected
/// anew or unprotected. A region may be protected before its bytes mean anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_protect(
    session: *mut outcrop_session,
    name: *const c_char,
    data: *mut c_void,
    count: usize,
    element: c_int,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the region") }?;
        if name.is_empty() {
            return Err(Failure::usage("a region needs a name"));
        }
        check_region_name(name).map_err(Error::from)?;
        let known = usize::try_from(element).ok().and_then(|element| Element::ALL.into_iter().nth(element));
        let element = known.ok_or_else(|| {
            Failure::usage(format!("region {name}: {element} is no outcrop_element; use OUTCROP_F64 or another one"))
        })?;
        let bytes = count.saturating_mul(element.bytes());
        let data = check_memory(data, bytes, &format!("region {name}"))?;
        let region = Region { name: name.to_owned(), element, shape: Shape::flat(count), data, bytes };
        with(session, |session| session.protect(region))
    })
}

/// Says how the elements of a protected region form an array: `dimensions` numbers at `shape`, in
/// the order of the indices, and OUTCROP_ROW_MAJOR or OUTCROP_COLUMN_MAJOR. If it is a part of a
/// global array, `global` has as many numbers, the dimensions of that one, and `offset` the index
/// of the part's first element; otherwise both are NULL. A region of which nothing is said has one
/// dimension, and so has one that is protected again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_shape(
    session: *mut outcrop_session,
    name: *const c_char,
    order: c_int,
    dimensions: usize,
    shape: *const usize,
    global: *const usize,
    offset: *const usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the region") }?;
        let order = match order {
            OUTCROP_ROW_MAJOR => MemoryOrder::RowMajor,
            OUTCROP_COLUMN_MAJOR => MemoryOrder::ColumnMajor,
            _ => {
                return Err(Failure::usage(format!(
                    "{order} is no order; use OUTCROP_ROW_MAJOR or OUTCROP_COLUMN_MAJOR"
                )));
            }
        };
        if dimensions > DIMENSIONS_MAX {
            let problem = format!("region {name}: {dimensions} dimensions; at most {DIMENSIONS_MAX} are possible");
            return Err(Failure::usage(problem));
        }
        if shape.is_null() && dimensions > 0 {
            return Err(Failure::usage(format!("region {name}: the shape is NULL")));
        }
        if global.is_null() != offset.is_null() {
            return Err(Failure::usage(format!(
                "region {name}: a part needs a global shape and an offset, or neither"
            )));
        }
        let numbers = |at: *const usize| match dimensions {
            0 => &[][..],
            // SAFETY: it is not null, and the program keeps to the header.
            _ => unsafe { slice::from_raw_parts(at, dimensions) },
        };
        let wrong = |error: ShapeError| Failure::usage(format!("region {name}: {error}"));
        let mut described = Shape::new(numbers(shape), order).map_err(wrong)?;
        if !global.is_null() {
            described = described.in_box(numbers(global), numbers(offset)).map_err(wrong)?;
        }
        with(session, |session| {
            let at = session.position(name)?;
            let region = &mut session.regions[at];
            described.check_bytes(region.element.bytes(), region.bytes as u64).map_err(wrong)?;
            region.shape = described;
            Ok(())
        })
    })
}

/// How many dimensions a region has in a version, and the first `room` of them. The order is
/// OUTCROP_ROW_MAJOR or OUTCROP_COLUMN_MAJOR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_shape(
    session: *mut outcrop_session,
    version: u64,
    name: *const c_char,
    order: *mut c_int,
    dimensions: *mut usize,
    shape: *mut usize,
    room: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, order, dimensions) = unsafe {
            (text(name, "name of the region")?, answer(order, "order")?, answer(dimensions, "number of dimensions")?)
        };
        if shape.is_null() && room > 0 {
            return Err(Failure::usage("there is room for dimensions, but its address is NULL"));
        }
        with(session, |session| {
            let saved = saved_region(session, version, name)?;
            order.write(match saved.shape.order() {
                MemoryOrder::RowMajor => OUTCROP_ROW_MAJOR,
                MemoryOrder::ColumnMajor => OUTCROP_COLUMN_MAJOR,
            });
            dimensions.write(saved.shape.dimensions().len());
            for (at, dimension) in saved.shape.dimensions().iter().enumerate().take(room) {
                // SAFETY: the program has said that there is room for so many.
                unsafe { shape.add(at).write(*dimension) };
            }
            Ok(())
        })
    })
}

/// Which part of a global array a region is in a version: the first `room` dimensions of that array
/// at `global`, and as many numbers of the index of its first element there at `offset`. `found` is
/// 0 if it was not said to be a part, and then nothing else is written; otherwise it is 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_box(
    session: *mut outcrop_session,
    version: u64,
    name: *const c_char,
    found: *mut c_int,
    global: *mut usize,
    offset: *mut usize,
    room: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, found) = unsafe { (text(name, "name of the region")?, answer(found, "answer")?) };
        let found = found.write(0);
        if room > 0 && (global.is_null() || offset.is_null()) {
            return Err(Failure::usage("there is room for a box, but the address of its shape or offset is NULL"));
        }
        with(session, |session| {
            let saved = saved_region(session, version, name)?;
            let Some(part) = saved.shape.global() else { return Ok(()) };
            for (at, (all, start)) in part.shape().iter().zip(part.offset()).enumerate().take(room) {
                // SAFETY: the program has said that there is room for so many.
                unsafe {
                    global.add(at).write(*all);
                    offset.add(at).write(*start);
                }
            }
            *found = 1;
            Ok(())
        })
    })
}

/// A region of a version.
pub(crate) fn saved_region(session: &mut Protected, version: u64, name: &str) -> Outcome<SavedRegion> {
    let mut regions = session.session.regions(version)?;
    match regions.iter().position(|region| region.name == name) {
        Some(at) => Ok(regions.swap_remove(at)),
        None => {
            let names: Vec<_> = regions.iter().map(|region| region.name.as_str()).collect();
            Err(Failure::missing(format!("version {version} has no region {name}, only {}", names.join(", "))))
        }
    }
}

/// Leaves a region out from here on. Its memory may be freed: with `live`, this waits until it has
/// been read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_unprotect(
    session: *mut outcrop_session,
    name: *const c_char,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the region") }?;
        with(session, |session| {
            let at = session.position(name)?;
            session.session.thaw()?;
            session.regions.remove(at);
            Ok(())
        })
    })
}

/// Saves all protected regions as a version, which must be higher than all before. Returns when the
/// program may change them again. If an earlier version has failed to become durable and the
/// program does not know yet, that is the error, once, and nothing is saved. A version that is on
/// no directory may be saved again then; with several ranks, after a rewind.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_save(session: *mut outcrop_session, version: u64) -> outcrop_status {
    call(|| with(session, |session| session.save(version)))
}

/// Waits until a version is durable: on the directory `layer`, 1 being the first, on all ranks; or
/// OUTCROP_ALL, or OUTCROP_HOST. An error if it never will be.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_wait(session: *mut outcrop_session, version: u64, layer: c_int) -> outcrop_status {
    call(|| {
        let reached = place_of(layer)?;
        with(session, |session| Ok(session.session.wait(version, reached)?))
    })
}

/// Whether a version is durable there by now, with layers as for outcrop_session_wait: 1 or 0. An
/// error if it never will be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_has_reached(
    session: *mut outcrop_session,
    version: u64,
    layer: c_int,
    is_there: *mut c_int,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let place = unsafe { answer(is_there, "answer") }?.write(0);
        let reached = place_of(layer)?;
        *place = c_int::from(with(session, |session| Ok(session.session.has_reached(version, reached)?))?);
        Ok(())
    })
}

/// Where a version is to have come to.
fn place_of(layer: c_int) -> Outcome<Reached> {
    match (layer, usize::try_from(layer)) {
        (OUTCROP_ALL, _) => Ok(Reached::All),
        (OUTCROP_HOST, _) => Ok(Reached::Host),
        (_, Ok(layer)) => Ok(Reached::Layer(layer)),
        _ => {
            let problem = "directories are layers 1, 2, ...; or use OUTCROP_ALL or OUTCROP_HOST";
            Err(Failure::usage(format!("there is no layer {layer}; {problem}")))
        }
    }
}

/// Sets the options of a region from the next save on, as TOML: `compression = 'lz4'`, `block = '64
/// KiB'`, `excluded = [[0, 4096]]`; docs/settings.md has all of them. What is not mentioned is as
/// for the store. The region need not be protected yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_options(
    session: *mut outcrop_session,
    name: *const c_char,
    options: *const c_char,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, options) = unsafe { (text(name, "name of the region")?, text(options, "text of options")?) };
        check_region_name(name).map_err(Error::from)?;
        let in_region = |failure: Failure| failure.of(&format!("region {name}"));
        let options = RegionOptions::from_toml(options).map_err(|error| in_region(error.into()))?;
        with(session, |session| {
            session.session.region(name, options);
            Ok(())
        })
    })
}

/// Restores a version into all protected regions, or fails and changes none of them: if the version
/// is damaged anywhere, or a region has another size or type there. With several ranks, all of them
/// call it.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_restore(session: *mut outcrop_session, version: u64) -> outcrop_status {
    call(|| {
        with(session, |session| session.restore(|session, parts| session.restore(version, parts).map(Some)).map(drop))
    })
}

/// Restores the newest version that is undamaged on all ranks. `found` is 0 if there is no version
/// at all, which is no error; else it is 1, and `version` says which one it was, and
/// outcrop_session_skipped what was passed over for it. If it fails, no region is changed. With
/// several ranks, all of them call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_restore_latest(
    session: *mut outcrop_session,
    version: *mut u64,
    found: *mut c_int,
) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { tell(version, found, || with(session, |session| session.restore(Session::restore_latest))) })
}

/// The newest version that all ranks have. `found` is 0 if there is none. With several ranks, all
/// of them call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_latest(
    session: *mut outcrop_session,
    version: *mut u64,
    found: *mut c_int,
) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { tell(version, found, || with(session, |session| Ok(session.session.latest()?))) })
}

/// Tells the program a version, if there is one.
///
/// # Safety
/// As for [`answer`].
unsafe fn tell(version: *mut u64, found: *mut c_int, find: impl FnOnce() -> Outcome<Option<u64>>) -> Outcome<()> {
    // SAFETY: the caller vouches for it.
    let (version, found) = unsafe { (answer(version, "version")?, answer(found, "answer")?) };
    let (version, found) = (version.write(0), found.write(0));
    if let Some(newest) = find()? {
        (*version, *found) = (newest, 1);
    }
    Ok(())
}

/// How many bytes a region has in a version, so that room can be made for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_region_size(
    session: *mut outcrop_session,
    version: u64,
    name: *const c_char,
    bytes: *mut usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, bytes) = unsafe { (text(name, "name of the region")?, answer(bytes, "length")?) };
        with(session, |session| {
            let region = saved_region(session, version, name)?;
            bytes.write(usize::try_from(region.bytes).unwrap_or(usize::MAX));
            Ok(())
        })
    })
}

/// Says that bytes of a protected region have changed although this program has not written them: a
/// device or a network card did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_session_mark_dirty(
    session: *mut outcrop_session,
    name: *const c_char,
    offset: usize,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the region") }?;
        with(session, |session| {
            let length = session.regions[session.position(name)?].bytes;
            match offset.checked_add(bytes).filter(|end| *end <= length) {
                Some(end) => session.session.mark_dirty(name, offset..end),
                None => {
                    let problem = format!("region {name} has {length} bytes, not {bytes} more after {offset}");
                    return Err(Failure::usage(problem));
                }
            }
            Ok(())
        })
    })
}

/// Forgets all versions above this one, for good, so that the series can go on from there in
/// another way. With several ranks, all of them call it.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_rewind(session: *mut outcrop_session, version: u64) -> outcrop_status {
    call(|| with(session, |session| Ok(session.session.rewind(Some(version))?)))
}

/// Forgets all versions, for good. With several ranks, all of them call it.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_rewind_all(session: *mut outcrop_session) -> outcrop_status {
    call(|| with(session, |session| Ok(session.session.rewind(None)?)))
}

/// Forgets versions that were found when the session was opened and that not all ranks have, for
/// good: also those that would be whole again if a directory of some rank came back. All ranks call
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_forget_incomplete(session: *mut outcrop_session) -> outcrop_status {
    call(|| with(session, |session| Ok(session.session.forget_incomplete()?)))
}

/// Waits until everything under way is done. An error if some version has not become
/// durable on some directory.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_flush(session: *mut outcrop_session) -> outcrop_status {
    call(|| with(session, |session| Ok(session.session.flush()?)))
}

/// As outcrop_session_flush, and ends the session, whatever the status is.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_session_close(session: *mut outcrop_session) -> outcrop_status {
    call(|| Ok(close(session)?.session.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_the_places_that_the_header_says() {
        use outcrop_element::{
            OUTCROP_BOOL, OUTCROP_C64, OUTCROP_F64, OUTCROP_I32, OUTCROP_TEXT, OUTCROP_U8, OUTCROP_U64,
        };
        let known = [
            (OUTCROP_U8, "u8"),
            (OUTCROP_I32, "i32"),
            (OUTCROP_U64, "u64"),
            (OUTCROP_F64, "f64"),
            (OUTCROP_C64, "c64"),
            (OUTCROP_BOOL, "bool"),
            (OUTCROP_TEXT, "text"),
        ];
        for (element, name) in known {
            assert_eq!(Element::ALL[element as usize].name(), name);
        }
        assert_eq!(OUTCROP_TEXT as usize + 1, Element::ALL.len());
    }
}
