//! Pools: arrays that are ordinary memory, and of which one call makes a version durable.

use std::{
    collections::BTreeMap,
    ffi::{c_char, c_int, c_void},
    slice,
};

use outcrop::{
    Element, Error,
    pool::{Block, Foreign, Options, Pool, Structure},
};

use crate::{
    border::{Failure, Outcome, answer, call, check_version, memory_mut, outcrop_status, start_log, text},
    handles::{Opaque, close, give, with},
};

/// The most dimensions that an array of a pool can have.
const DIMENSIONS_MAX: usize = 3;

/// A file with arrays of which versions are durable.
pub struct outcrop_pool {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_pool {
    type Value = OpenPool;
    const NAME: &'static str = "pool";
}

/// A pool with the arrays that the program has opened.
pub(crate) struct OpenPool {
    pool: Pool,
    arrays: BTreeMap<String, Foreign>,
}

impl OpenPool {
    /// Calls something with all arrays.
    fn with_all<T>(
        &mut self,
        work: impl FnOnce(&Pool, &mut [&mut dyn Structure]) -> outcrop::pool::Result<T>,
    ) -> Outcome<T> {
        let mut structures: Vec<&mut dyn Structure> =
            self.arrays.values_mut().map(|array| array as &mut dyn Structure).collect();
        Ok(work(&self.pool, &mut structures).map_err(Error::from)?)
    }
}

/// What outcrop_pool_open calls, with the version of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_open_as(
    header_version: u32,
    path: *const c_char,
    versions: u64,
    pool: *mut *mut outcrop_pool,
) -> outcrop_status {
    call(|| {
        check_version(header_version)?;
        start_log();
        // SAFETY: the program keeps to the header.
        let path = unsafe { text(path, "path of the pool") }?;
        let open = || {
            let pool = Pool::open(path, Options::versions(versions)).map_err(Error::from)?;
            Ok(OpenPool { pool, arrays: BTreeMap::new() })
        };
        // SAFETY: as above.
        unsafe { give(pool, open) }
    })
}

/// Closes a pool. What was not persisted is lost, and its arrays must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_close(pool: *mut outcrop_pool) -> outcrop_status {
    call(|| close(pool).map(drop))
}

/// Opens an array: `data` is where it is, until the pool is closed. It is as in the newest version,
/// or in the one that was restored; one that is not there is made of zeros. `element` is an
/// outcrop_element, of numbers; `shape` has as many numbers as `dimensions` says, up to three, in
/// row-major order. The program reads and writes it as its own memory, but not during a call with
/// this pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_array(
    pool: *mut outcrop_pool,
    name: *const c_char,
    element: c_int,
    dimensions: usize,
    shape: *const usize,
    data: *mut *mut c_void,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, data) = unsafe { (text(name, "name of the array")?, answer(data, "array")?) };
        data.write(std::ptr::null_mut());
        let element = element_of(name, element)?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            let problem = format!("array {name}: {dimensions} dimensions; there can be 1 to {DIMENSIONS_MAX}");
            return Err(Failure::usage(problem));
        }
        if shape.is_null() {
            return Err(Failure::usage(format!("array {name}: the shape is NULL")));
        }
        let mut counts = [1; DIMENSIONS_MAX];
        // SAFETY: it is not NULL, and the program keeps to the header.
        counts[..dimensions].copy_from_slice(unsafe { slice::from_raw_parts(shape, dimensions) });
        with(pool, |open| {
            let mut array = open.pool.foreign(name, element.name(), counts, Block::default()).map_err(Error::from)?;
            data.write(array.address().cast());
            open.arrays.insert(name.to_owned(), array);
            Ok(())
        })
    })
}

/// What the elements of an array are.
pub(crate) fn element_of(name: &str, element: c_int) -> Outcome<Element> {
    let known = usize::try_from(element).ok().and_then(|element| Element::ALL.into_iter().nth(element));
    known.ok_or_else(|| {
        Failure::usage(format!("array {name}: {element} is no outcrop_element; use OUTCROP_F64 or another one"))
    })
}

/// Makes a version of all arrays durable, and says its number at `version`, which may be NULL. What
/// has not changed is not written. If it fails, the newest version is the one that was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_persist(pool: *mut outcrop_pool, version: *mut u64) -> outcrop_status {
    call(|| {
        let persisted = with(pool, |open| open.with_all(|pool, arrays| pool.persist(arrays)))?;
        // SAFETY: the program keeps to the header.
        if let Some(version) = unsafe { version.as_mut() } {
            *version = persisted;
        }
        Ok(())
    })
}

/// Has all arrays be as in a version, where they are. What was not persisted is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_restore(pool: *mut outcrop_pool, version: u64) -> outcrop_status {
    call(|| with(pool, |open| open.with_all(|pool, arrays| pool.restore(version, arrays))))
}

/// The versions that there are, in ascending order: the first `room` of them at `versions`, which
/// may be NULL if that is 0. `count` says how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_versions(
    pool: *mut outcrop_pool,
    versions: *mut u64,
    room: usize,
    count: *mut usize,
) -> outcrop_status {
    call(|| {
        let found = with(pool, |open| Ok(open.pool.versions()))?;
        // SAFETY: the program keeps to the header.
        unsafe { crate::versions::give_versions(&found, versions, room, count) }
    })
}

/// Copies an array as it is in a version to `data`, which has as many bytes as it. Damage is found
/// before anything is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pool_read(
    pool: *mut outcrop_pool,
    version: u64,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, data) = unsafe { (text(name, "name of the array")?, memory_mut(data, bytes, "the buffer")?) };
        with(pool, |open| {
            let read = || open.pool.view(version)?.bytes_verified(name);
            let array = read().map_err(Error::from)?;
            if array.len() != data.len() {
                let problem = format!("array {name} of version {version} has {} bytes, not {bytes}", array.len());
                return Err(Failure::usage(problem));
            }
            data.copy_from_slice(&array);
            Ok(())
        })
    })
}
