//! What every call has in common: its status, the message of this thread, checked arguments, and
//! that no panic leaves.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_void},
    io::IsTerminal,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    slice,
    sync::Once,
};

use outcrop::{Error, ErrorKind};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    prelude::*,
};

/// The version of this header. That of the library is what outcrop_version() says.
pub const OUTCROP_VERSION_MAJOR: u32 = 0;
/// See OUTCROP_VERSION_MAJOR.
pub const OUTCROP_VERSION_MINOR: u32 = 1;
/// See OUTCROP_VERSION_MAJOR.
pub const OUTCROP_VERSION_PATCH: u32 = 0;

/// What a call returns: 0 is success, and outcrop_error() says what any other one means.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum outcrop_status {
    /// All is well.
    OUTCROP_OK = 0,
    /// The call makes no sense: a wrong handle, length, name, size or configuration.
    OUTCROP_USAGE = 10,
    /// The key or version is in use.
    OUTCROP_EXISTS = 11,
    /// There is no such snapshot, version or region.
    OUTCROP_MISSING = 12,
    /// It is larger than the memory that it has to pass through.
    OUTCROP_TOO_LARGE = 13,
    /// There is no room, and none can be made.
    OUTCROP_FULL = 14,
    /// There is no room because of what the program holds.
    OUTCROP_HELD = 15,
    /// Bytes came back changed.
    OUTCROP_DAMAGED = 16,
    /// A layer or a file failed.
    OUTCROP_STORAGE = 17,
    /// Another process is in the way, or one is missing.
    OUTCROP_BUSY = 18,
    /// A mistake in the library, which has caught itself. What the call was about cannot be used
    /// any more.
    OUTCROP_PANIC = 20,
    /// The program was compiled with the header of another version.
    OUTCROP_VERSION = 21,
}

use outcrop_status::{
    OUTCROP_BUSY, OUTCROP_DAMAGED, OUTCROP_EXISTS, OUTCROP_FULL, OUTCROP_HELD, OUTCROP_MISSING, OUTCROP_OK,
    OUTCROP_PANIC, OUTCROP_STORAGE, OUTCROP_TOO_LARGE, OUTCROP_USAGE, OUTCROP_VERSION,
};

impl From<ErrorKind> for outcrop_status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Usage => OUTCROP_USAGE,
            ErrorKind::Exists => OUTCROP_EXISTS,
            ErrorKind::Missing => OUTCROP_MISSING,
            ErrorKind::TooLarge => OUTCROP_TOO_LARGE,
            ErrorKind::Full => OUTCROP_FULL,
            ErrorKind::Held => OUTCROP_HELD,
            ErrorKind::Damaged => OUTCROP_DAMAGED,
            ErrorKind::Busy => OUTCROP_BUSY,
            // Kinds may be added; what is not the program's fault is the storage's.
            _ => OUTCROP_STORAGE,
        }
    }
}

/// Why a call has failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: outcrop_status,
    message: String,
}

impl Failure {
    /// The program has asked for something that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: OUTCROP_USAGE, message: message.into() }
    }

    /// There is no such thing.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self { status: OUTCROP_MISSING, message: message.into() }
    }

    /// The same, said of something.
    pub(crate) fn of(self, what: &str) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// An earlier call on the same handle has panicked.
    pub(crate) fn panicked(what: &str) -> Self {
        let message = format!("an earlier call on this {what} ended in a mistake of the library; close it");
        Self { status: OUTCROP_PANIC, message }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { status: error.kind().into(), message: format!("{error:#}") }
    }
}

/// How a call ends.
pub(crate) type Outcome<T> = Result<T, Failure>;

thread_local! {
    /// Why the last call of this thread that failed has failed.
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Carries out a call of the program. Whatever happens inside becomes a status, and a message for
/// this thread.
pub(crate) fn call(work: impl FnOnce() -> Outcome<()>) -> outcrop_status {
    // What a panic leaves half done is behind a lock that is poisoned by it.
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return OUTCROP_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let message = format!("a mistake in the library, please report it: {}", words(&*panic));
            Failure { status: OUTCROP_PANIC, message }
        }
    };
    let text = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // A thread that is about to end has no message any more.
    let _ = MESSAGE.try_with(|message| message.replace(text));
    failure.status
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "it does not say what",
    }
}

/// Why the last call of this thread that failed has failed, and what can be done. Valid until the
/// next one fails; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_error() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library, as a text such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Whether a program that was compiled with this version of the header can be served. Before 1.0
/// that is one minor version.
pub(crate) fn check_version(header: u32) -> Outcome<()> {
    if header >> 8 == OUTCROP_VERSION_MAJOR << 8 | OUTCROP_VERSION_MINOR {
        return Ok(());
    }
    let (major, minor, patch) = (header >> 16, header >> 8 & 0xff, header & 0xff);
    let message = format!(
        "this program was compiled with outcrop.h of version {major}.{minor}.{patch}, but runs with liboutcrop {}; compile it again, or let \
         it find the library of its own version",
        env!("CARGO_PKG_VERSION")
    );
    Err(Failure { status: OUTCROP_VERSION, message })
}

/// Has the library report what it meets to standard error: what OUTCROP_LOG says, or only what is
/// wrong with the variables of the environment themselves.
pub(crate) fn start_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        let filter = std::env::var("OUTCROP_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
        let filter = filter.unwrap_or_else(|| Targets::new().with_target("outcrop_settings", LevelFilter::WARN));
        // No colours in files.
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
        // A program that has a log of its own, in Rust, keeps it.
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    });
}

/// A text of the program.
///
/// # Safety
/// It is NULL, or ends with a zero byte and does not change during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::usage(format!("the {what} is NULL; give a text that ends with a zero byte")));
    }
    // SAFETY: it is not NULL, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::usage(format!("the {what} {} is not UTF-8", text.to_string_lossy())))
}

/// Memory of the program, to be read.
///
/// # Safety
/// It is NULL, or there are so many bytes, which nobody changes for as long as the slice is used.
pub(crate) unsafe fn memory<'a>(data: *const c_void, bytes: usize, what: &str) -> Outcome<&'a [u8]> {
    let data = check_memory(data.cast_mut(), bytes, what)?;
    // SAFETY: it is not NULL and not longer than memory can be; the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts(data.as_ptr(), bytes) })
}

/// Memory of the program, to be written.
///
/// # Safety
/// It is NULL, or there are so many bytes, which nobody else uses for as long as the slice is.
pub(crate) unsafe fn memory_mut<'a>(data: *mut c_void, bytes: usize, what: &str) -> Outcome<&'a mut [u8]> {
    let data = check_memory(data, bytes, what)?;
    // SAFETY: it is not NULL and not longer than memory can be; the caller vouches for the rest.
    Ok(unsafe { slice::from_raw_parts_mut(data.as_ptr(), bytes) })
}

/// Memory of the program, as far as it can be checked. NULL is fine for no bytes at all.
pub(crate) fn check_memory(data: *mut c_void, bytes: usize, what: &str) -> Outcome<NonNull<u8>> {
    if isize::try_from(bytes).is_err() || data.addr().checked_add(bytes).is_none() {
        return Err(Failure::usage(format!("{what} cannot have {bytes} bytes: that is more than memory can have")));
    }
    match NonNull::new(data.cast()) {
        Some(data) => Ok(data),
        None if bytes == 0 => Ok(NonNull::dangling()),
        None => Err(Failure::usage(format!("{what} is NULL, but is to have {bytes} bytes"))),
    }
}

/// Gives the program bytes, if its room is enough for them; says in any case how many there are.
///
/// # Safety
/// `room` is NULL and has none, or there are so many bytes that nobody else uses during the call;
/// `needed` is as for [`answer`].
pub(crate) unsafe fn give_bytes(given: &[u8], room: *mut c_char, bytes: usize, needed: *mut usize) -> Outcome<()> {
    // SAFETY: the caller vouches for it.
    let (room, needed) = unsafe { (memory_mut(room.cast(), bytes, "the text")?, answer(needed, "length")?) };
    needed.write(given.len());
    if let Some(room) = room.get_mut(..given.len()) {
        room.copy_from_slice(given);
    }
    Ok(())
}

/// Where the program wants an answer.
///
/// # Safety
/// It is NULL, or a place for a value that nobody else uses during the call.
pub(crate) unsafe fn answer<'a, T>(place: *mut T, what: &str) -> Outcome<&'a mut std::mem::MaybeUninit<T>> {
    // SAFETY: a place for a value may hold anything; the caller vouches for the rest.
    unsafe { place.cast::<std::mem::MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| Failure::usage(format!("the place for the {what} is NULL; give the address of a variable")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: it is a text of this thread.
        unsafe { CStr::from_ptr(outcrop_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(call(|| panic!("of {}", 3)), OUTCROP_PANIC);
        assert!(message().ends_with("of 3"), "{}", message());
        assert_eq!(call(|| Ok(())), OUTCROP_OK);
        assert_eq!(call(|| Err(Failure::usage("a\0b"))), OUTCROP_USAGE);
        assert_eq!(message(), "a b");
    }

    #[test]
    fn the_header_has_the_version_of_the_library() {
        let header = format!("{OUTCROP_VERSION_MAJOR}.{OUTCROP_VERSION_MINOR}.{OUTCROP_VERSION_PATCH}");
        assert_eq!(header, env!("CARGO_PKG_VERSION"));
        assert!(check_version(0x0000_0107).is_ok(), "a patch changes no interface");
        let failure = check_version(0x0001_0203).unwrap_err();
        assert_eq!(failure.status, OUTCROP_VERSION);
        assert!(failure.message.contains("1.2.3") && failure.message.contains(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn statuses_are_the_exit_codes_of_the_program() {
        for kind in ErrorKind::all() {
            let status = outcrop_status::from(kind);
            assert_eq!(status as u32, u32::from(kind.exit_code()), "{kind:?}");
            assert_eq!(format!("{status:?}"), kind.c_name());
        }
    }
}
