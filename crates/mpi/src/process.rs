//! Which MPI this process runs with.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs,
    path::PathBuf,
};

use crate::{Error, Result};

/// What every MPI has, with the same arguments everywhere.
const VERSION: &CStr = c"PMPI_Get_library_version";

/// The longest text that it writes, in any MPI.
const VERSION_BYTES: usize = 8192;

/// An MPI library that this process has loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Its file.
    pub(crate) path: PathBuf,
    /// The name of the file, and what the library says of itself: what `identity.c` prints.
    pub(crate) identity: String,
}

impl Loaded {
    /// The MPI of this process; an error if there is none or more than one.
    pub(crate) fn find() -> Result<Self> {
        let mut found: Vec<Self> = Vec::new();
        for loaded in names().iter().filter_map(|name| inspect(name.as_deref())) {
            if !found.contains(&loaded) {
                found.push(loaded);
            }
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Error::Mpi(
                "this process has not loaded MPI; link the program with it and call MPI_Init, or in Python import \
                 mpi4py.MPI, before the store is opened"
                    .to_owned(),
            )),
            _ => {
                let list: Vec<_> = found.iter().map(|loaded| loaded.path.display().to_string()).collect();
                Err(Error::Mpi(format!(
                    "this process has loaded more than one MPI ({}); a communicator of one means nothing to the other. \
                     Compile everything for one of them, liboutcrop-mpi.so too if it is preloaded",
                    list.join(", ")
                )))
            }
        }
    }
}

/// The name of an MPI, for messages: the first line of what it says of itself.
pub(crate) fn title(identity: &str) -> String {
    let line = identity.lines().nth(1).unwrap_or(identity);
    let words: Vec<_> = line.split(',').next().unwrap_or(line).split_whitespace().collect();
    format!("{} ({})", words.join(" "), identity.lines().next().unwrap_or_default())
}

/// What may be an MPI: the program itself (`None`), and libraries with such a name.
fn names() -> Vec<Option<CString>> {
    unsafe extern "C" fn note(object: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the caller below passes this.
        let names = unsafe { &mut *names.cast::<Vec<Option<CString>>>() };
        // SAFETY: the loader passes an object, whose name is a string.
        let name = unsafe { CStr::from_ptr((*object).dlpi_name) };
        let bytes = name.to_bytes();
        let file = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libmpi") {
            names.push(Some(name.to_owned()));
        }
        0
    }
    let mut names = vec![None];
    // SAFETY: `note` gets what it expects, and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}

/// The MPI that an object, or what it needs, has.
fn inspect(name: Option<&CStr>) -> Option<Loaded> {
    let name = name.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: nothing is loaded by this, so no code of others runs.
    let object = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if object.is_null() {
        return None;
    }
    // SAFETY: the object is open.
    let function = unsafe { libc::dlsym(object, VERSION.as_ptr()) };
    let loaded = if function.is_null() { None } else { describe(function) };
    // SAFETY: it was opened above, and whoever loaded it keeps it.
    unsafe { libc::dlclose(object) };
    loaded
}

/// The MPI whose function `PMPI_Get_library_version` is.
pub(crate) fn describe(function: *mut c_void) -> Option<Loaded> {
    let path = file_of(function)?;
    // SAFETY: this is its type in the standard of MPI.
    let version =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int>(function) };
    let (mut text, mut length) = (vec![0_u8; VERSION_BYTES + 1], 0);
    // SAFETY: there is room for the longest text. It may be called at any time, by any thread.
    if unsafe { version(text.as_mut_ptr().cast(), &mut length) } != 0 {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
    let identity = format!("{}\n{text}", path.file_name()?.to_string_lossy());
    Some(Loaded { path, identity })
}

/// The file that has an address.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for.
    if unsafe { libc::dladdr(address, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader has named it.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    fs::canonicalize(name.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_mpi_is_told_so() {
        let error = Loaded::find().unwrap_err().to_string();
        assert!(error.contains("has not loaded MPI"), "{error}");
        assert_eq!(title("libmpi.so.40.30.4\nOpen MPI v4.1.4, package: Debian"), "Open MPI v4.1.4 (libmpi.so.40.30.4)");
    }
}
