//! liboutcrop-mpi.so in this process: linked or preloaded by the user, or loaded here.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    ptr::NonNull,
};

use crate::{
    Error, Result,
    build::library_for,
    process::{Loaded, describe, title},
};

/// The library to use, instead of one that Outcrop compiles.
const VARIABLE: &str = "OUTCROP_MPI_LIBRARY";

/// Room for a message of the library.
const MESSAGE_BYTES: usize = 1024;

type Open = unsafe extern "C" fn(c_int, c_int, *mut c_char, usize) -> *mut c_void;
type Count = unsafe extern "C" fn(*const c_void, *mut u32, *mut u32, *mut u32);
type Gather = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, *mut c_char, usize) -> c_int;

/// The functions of `shim.h`.
pub(crate) struct Shim {
    state: unsafe extern "C" fn() -> c_int,
    open: Open,
    count: Count,
    gather: Gather,
    close: unsafe extern "C" fn(*mut c_void),
}

/// A communicator of our own, which all ranks open and drop together.
pub(crate) struct Comm<'shim> {
    shim: &'shim Shim,
    ranks: NonNull<c_void>,
    pub(crate) rank: u32,
    pub(crate) count: u32,
    /// How many ranks are on this machine.
    pub(crate) local_count: u32,
}

impl Shim {
    /// Finds or loads the library for the MPI of this process.
    pub(crate) fn load() -> Result<Self> {
        // It may be linked or preloaded.
        // SAFETY: the name is a string.
        if !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"outcrop_mpi_library".as_ptr()) }.is_null() {
            return Self::of(libc::RTLD_DEFAULT, &Loaded::find()?);
        }
        let mpi = Loaded::find()?;
        let named = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.map_or_else(|| library_for(&mpi), Ok)?;
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| Error::Library(error.to_string()))?;
        // SAFETY: the library has no code that runs when it is loaded. It is never unloaded.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: the last call of the loader on this thread has failed, so there is a message.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
            return Err(Error::Library(format!("cannot load it: {reason}; build it again with `outcrop mpi build`")));
        }
        Self::of(library, &mpi)
    }

    /// The functions of a library, if it is for this MPI.
    fn of(library: *mut c_void, mpi: &Loaded) -> Result<Self> {
        let find = |name: &CStr| {
            // SAFETY: the library is open, or stands for all that the program has loaded.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            NonNull::new(address).map(NonNull::as_ptr).ok_or_else(|| {
                Error::Library(format!("it has no {}; build it again with `outcrop mpi build`", name.to_string_lossy()))
            })
        };
        // SAFETY: it is a string that shim.h declares.
        let built_for = unsafe { CStr::from_ptr(find(c"outcrop_mpi_built_for")?.cast()) }.to_string_lossy();
        // SAFETY: the types are those of shim.h.
        let (shim, function) = unsafe {
            let library: unsafe extern "C" fn() -> *mut c_void = std::mem::transmute(find(c"outcrop_mpi_library")?);
            let shim = Self {
                state: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(find(c"outcrop_mpi_state")?),
                open: std::mem::transmute::<*mut c_void, Open>(find(c"outcrop_mpi_open")?),
                count: std::mem::transmute::<*mut c_void, Count>(find(c"outcrop_mpi_count")?),
                gather: std::mem::transmute::<*mut c_void, Gather>(find(c"outcrop_mpi_gather")?),
                close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(find(
                    c"outcrop_mpi_close",
                )?),
            };
            (shim, library())
        };
        if built_for != mpi.identity || describe(function).is_none_or(|its| its != *mpi) {
            return Err(Error::Library(format!(
                "it was built for {}, but this process runs with {}; build it with the mpicc of that one: \
                 `outcrop mpi build --mpicc PATH`",
                title(&built_for),
                title(&mpi.identity)
            )));
        }
        Ok(shim)
    }

    /// Opens a communicator with the ranks of another one: the one with this number, or the world.
    pub(crate) fn open(&self, number: Option<i32>) -> Result<Comm<'_>> {
        // SAFETY: it may be called at any time.
        match unsafe { (self.state)() } {
            0 => {}
            1 => return Err(Error::Mpi("MPI is not initialised; call MPI_Init before the store is opened".to_owned())),
            2 => return Err(Error::Mpi("MPI has ended; open the store before MPI_Finalize".to_owned())),
            _ => {
                return Err(Error::Mpi(
                    "MPI was initialised for its main thread only; open the store on that thread, or initialise MPI \
                     with MPI_THREAD_SERIALIZED"
                        .to_owned(),
                ));
            }
        }
        let mut message = [0_u8; MESSAGE_BYTES];
        let (is_world, number) = (c_int::from(number.is_none()), number.unwrap_or_default());
        // SAFETY: this thread may use MPI, as was just asked, and there is room for the message.
        let ranks = unsafe { (self.open)(is_world, number, message.as_mut_ptr().cast(), message.len()) };
        let ranks = NonNull::new(ranks).ok_or_else(|| failed(&message))?;
        let mut comm = Comm { shim: self, ranks, rank: 0, count: 0, local_count: 0 };
        // SAFETY: it is open.
        unsafe { (self.count)(ranks.as_ptr(), &mut comm.rank, &mut comm.count, &mut comm.local_count) };
        Ok(comm)
    }
}

impl Comm<'_> {
    /// The contributions of all ranks, which have the same length, by rank.
    pub(crate) fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut message = [0_u8; MESSAGE_BYTES];
        let mut all = vec![0_u8; mine.len() * self.count as usize];
        // SAFETY: it is open and used by the thread that opened it. There is room for all.
        let status = unsafe {
            let (mine, all) = ((mine.as_ptr().cast(), mine.len()), all.as_mut_ptr().cast());
            (self.shim.gather)(self.ranks.as_ptr(), mine.0, mine.1, all, message.as_mut_ptr().cast(), message.len())
        };
        if status != 0 {
            return Err(failed(&message));
        }
        Ok(all.chunks(mine.len().max(1)).map(<[u8]>::to_vec).collect())
    }
}

impl Drop for Comm<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened once.
        unsafe { (self.shim.close)(self.ranks.as_ptr()) };
    }
}

fn failed(message: &[u8]) -> Error {
    let message = CStr::from_bytes_until_nul(message).unwrap_or_default();
    Error::Mpi(message.to_string_lossy().into_owned())
}
