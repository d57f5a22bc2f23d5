//! What MPI writes to memory, where liboutcrop-mpi.so is linked or preloaded (docs/mpi.md).
//!
//! The library sees the calls that receive. It is found by the names of its functions, so that no
//! program needs it.

use std::{
    ffi::{CStr, c_void},
    ops::Range,
    sync::OnceLock,
};

type Note = unsafe extern "C" fn(*mut c_void, usize, usize);

/// The functions of the library, as its header declares them.
struct Library {
    watch: unsafe extern "C" fn(usize, usize) -> u64,
    unwatch: unsafe extern "C" fn(u64),
    take: unsafe extern "C" fn(u64, Note, *mut c_void),
}

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let find = |name: &CStr| {
        // SAFETY: the name is a string.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let load = || {
        let (watch, unwatch) = (find(c"outcrop_mpi_watch")?, find(c"outcrop_mpi_unwatch")?);
        let take = find(c"outcrop_mpi_take")?;
        // SAFETY: nothing else has these names, and the types are those of its header.
        Some(unsafe {
            Library {
                watch: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, usize) -> u64>(watch),
                unwatch: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(unwatch),
                take: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, Note, *mut c_void)>(take),
            }
        })
    };
    LIBRARY.get_or_init(load).as_ref()
}

/// Memory of which is recorded what MPI writes to it.
pub(crate) struct Received(Option<(&'static Library, u64)>);

impl Received {
    /// From now on.
    pub(crate) fn watch(addresses: &Range<usize>) -> Self {
        // SAFETY: the memory is not accessed.
        Self(library().map(|library| (library, unsafe { (library.watch)(addresses.start, addresses.end) })))
    }

    /// The addresses that were written since the last call.
    pub(crate) fn take(&self) -> Vec<Range<usize>> {
        unsafe extern "C" fn note(ranges: *mut c_void, begin: usize, end: usize) {
            // SAFETY: the call below passes this, and nobody else uses it meanwhile.
            unsafe { &mut *ranges.cast::<Vec<Range<usize>>>() }.push(begin..end);
        }
        let mut ranges = Vec::new();
        if let Some((library, watch)) = self.0 {
            // SAFETY: the library calls `note` with what it was given, until it returns.
            unsafe { (library.take)(watch, note, (&raw mut ranges).cast()) };
        }
        ranges
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some((library, watch)) = self.0 {
            // SAFETY: it was opened once.
            unsafe { (library.unwatch)(watch) };
        }
    }
}
