//! The symbols of `veloc.h`, and those that `cpp/veloc.cpp` needs. Every call ends with a status:
//! what went wrong is said on stderr, and a panic of this library ends here.

use std::{
    cell::Cell,
    collections::BTreeSet,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use outcrop::bindings::{OfProcess, closed};

use crate::{
    checkpoint::Mode,
    client::{Client, Phase, Tell},
    config::Config,
    failure::{Failure, Result, say},
    ranks::{Meeting, Ranks},
    regions::{Callbacks, Memory, Region},
};

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
/// What a test for a version says if it cannot tell whether there is one.
const UNKNOWN: c_int = -2;
/// How a program ends that is not to begin anew by mistake.
const STRICT_EXIT_CODE: i32 = 16;
/// `VELOC_MAX_NAME`: the room that a program has for a path.
const PATH_BYTES_MAX: usize = 1024;
/// `VELOC_OBSERVE_CKPT_END`.
const OBSERVE_CHECKPOINT_END: c_int = 0;

/// The one client of this process.
static SLOT: Mutex<Slot> = Mutex::new(Slot { client: None, meeting: None });
/// The process that it belongs to; 0 if there is none. Asked before the lock, which a forked child
/// may find taken for ever.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Its rank, for messages.
static RANK: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The name of the call that this thread is in.
    static CALL: Cell<Option<&'static str>> = const { Cell::new(None) };
}

struct Slot {
    client: Option<OfProcess<Client>>,
    /// Ranks that are coming together.
    meeting: Option<Meeting>,
}

fn slot() -> MutexGuard<'static, Slot> {
    SLOT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something, and says what went wrong.
fn guard<T>(call: &'static str, rank: u32, action: impl FnOnce() -> Result<T>) -> Option<T> {
    let outer = CALL.replace(Some(call));
    let result = match outer {
        Some(outer) => {
            Err(Failure::new(format!("it was called by a function that {outer} has called; that cannot be")))
        }
        None => catch_unwind(AssertUnwindSafe(action)).unwrap_or_else(|_| {
            Err(Failure::new("this library has failed in a way that it should not; please report what is above"))
        }),
    };
    CALL.set(outer);
    result.map_err(|failure| say(rank, format!("{call}: {failure}"))).ok()
}

/// Does something with the client.
fn with<T>(call: &'static str, action: impl FnOnce(&mut Client) -> Result<T>) -> Option<T> {
    let owner = OWNER.load(SeqCst);
    guard(call, RANK.load(SeqCst), || {
        if owner == 0 {
            return Err(Failure::new("VELOC is not initialised, or has been finalised; call VELOC_Init first"));
        }
        if owner != process::id() {
            let remedy =
                "a child has no threads to write with; call it in the parent, or VELOC_Init_single in the child";
            return Err(Failure::new(format!("VELOC was initialised by process {owner}: {remedy}")));
        }
        let mut slot = slot();
        let client = slot.client.as_mut().ok_or_else(|| closed("VELOC client"))?.get_mut()?;
        action(client)
    })
}

fn status(result: Option<()>) -> c_int {
    if result.is_some() { SUCCESS } else { FAILURE }
}

/// Puts a client into its place.
fn begin(slot: &mut Slot, client: Client) {
    RANK.store(client.ranks.rank(), SeqCst);
    slot.client = Some(OfProcess::new("VELOC client", client));
    OWNER.store(process::id(), SeqCst);
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: the function lives as long as the process.
        unsafe { libc::atexit(finish_at_exit) };
    });
}

/// A program that ends without VELOC_Finalize keeps what it has saved: this rank's part is written,
/// without waiting for others.
extern "C" fn finish_at_exit() {
    if OWNER.load(SeqCst) != process::id() {
        return;
    }
    let _ = catch_unwind(|| {
        // Who holds the lock now will never give it back.
        let Ok(mut slot) = SLOT.try_lock() else { return };
        if let Some(Ok(client)) = slot.client.as_mut().map(OfProcess::get_mut) {
            client.phase = Phase::Idle;
            if let Err(failure) = client.checkpoint_wait() {
                client.say(format!("at exit: {failure}"));
            }
        }
    });
}

/// Whether this process has a client already, and may go on with it.
fn is_open() -> bool {
    OWNER.load(SeqCst) == process::id()
}

/// # Safety
///
/// `text` is NULL or a string of C.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::new(format!("the {what} is NULL")));
    }
    // SAFETY: as promised.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(format!("the {what} is not UTF-8")))
}

/// # Safety
///
/// `file` is NULL or a string of C.
unsafe fn config(file: *const c_char) -> Result<Config> {
    // SAFETY: as promised.
    let file = if file.is_null() { "" } else { unsafe { text(file, "name of the configuration file") }? };
    Config::read(file, |name| std::env::var(name).ok())
}

/// # Safety
///
/// `ids` is NULL or has `count` numbers.
unsafe fn ids(ids: *const c_int, count: c_int) -> Result<BTreeSet<i32>> {
    match usize::try_from(count) {
        Err(_) => Err(Failure::new(format!("{count} ids are fewer than none"))),
        Ok(0) => Ok(BTreeSet::new()),
        Ok(_) if ids.is_null() => Err(Failure::new("the list of ids is NULL")),
        // SAFETY: as promised.
        Ok(count) => Ok(unsafe { std::slice::from_raw_parts(ids, count) }.iter().copied().collect()),
    }
}

/// # Safety
///
/// `address` and the length are as `Memory::new` wants them.
unsafe fn memory(id: c_int, address: *mut c_void, count: usize, base_size: usize) -> Result<Region> {
    let bytes = count.checked_mul(base_size).filter(|bytes| *bytes <= isize::MAX as usize);
    let bytes = bytes.ok_or_else(|| Failure::new(format!("region {id} would be larger than memory can be")))?;
    if address.is_null() && bytes > 0 {
        return Err(Failure::new(format!(
            "region {id} is NULL and has {bytes} bytes; protect it when it is allocated"
        )));
    }
    // SAFETY: as promised.
    Ok(Region::Memory(unsafe { Memory::new(address, bytes) }))
}

/// Begins without MPI, as the process `id`.
///
/// # Safety
///
/// `cfg_file` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Init_single(id: c_uint, cfg_file: *const c_char) -> c_int {
    status(guard("VELOC_Init_single", id, || {
        if is_open() {
            say(id, "VELOC_Init_single: it is initialised already, and goes on as it was");
            return Ok(());
        }
        // SAFETY: as promised.
        let client = Client::open(unsafe { config(cfg_file) }?, Ranks::Single(id))?;
        begin(&mut slot(), client);
        Ok(())
    }))
}

/// A number for the directory in which ranks meet.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(process::id());
    hasher.finish()
}

/// Whether there is a client already.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_is_open() -> c_int {
    c_int::from(is_open())
}

/// The first step of ranks that come together.
///
/// # Safety
///
/// `cfg_file` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_call(
    cfg_file: *const c_char,
    rank: c_uint,
    count: c_uint,
    local_count: c_uint,
    number: u64,
) -> c_int {
    status(guard("VELOC_Init", rank, || {
        // SAFETY: as promised.
        let meeting = Meeting::call(unsafe { config(cfg_file) }?, rank, count, local_count, number)?;
        slot().meeting = Some(meeting);
        Ok(())
    }))
}

/// The second, when all have done the first.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_look(rank: c_uint) -> c_int {
    status(guard("VELOC_Init", rank, || slot().meeting.as_ref().map_or(Ok(()), Meeting::look)))
}

/// The third, when all have done the second.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_join(rank: c_uint) -> c_int {
    status(guard("VELOC_Init", rank, || {
        let mut slot = slot();
        let meeting = slot.meeting.take().ok_or_else(|| Failure::new("no ranks are coming together"))?;
        begin(&mut slot, meeting.join()?);
        Ok(())
    }))
}

/// Instead of the second or third, if some rank has failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_call_off() {
    let meeting = slot().meeting.take();
    meeting.into_iter().for_each(Meeting::call_off);
}

/// Ends everything.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Finalize(drain: c_int) -> c_int {
    let waited = with("VELOC_Finalize", |client| {
        client.phase = Phase::Idle;
        match client.checkpoint_wait() {
            // The program does not ask, and is told nevertheless.
            Err(failure) if drain == 0 => client.say(failure),
            waited => waited?,
        }
        Ok(())
    });
    if !is_open() {
        return FAILURE;
    }
    OWNER.store(0, SeqCst);
    let closed = guard("VELOC_Finalize", RANK.load(SeqCst), || match slot().client.take() {
        Some(mut client) => client.close()?.close(),
        None => Ok(()),
    });
    status(waited.and(closed))
}

/// Protects memory, for all checkpoints that have no regions of their own.
///
/// # Safety
///
/// The memory is there for as long as it is protected.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Mem_protect(
    id: c_int,
    ptr: *mut c_void,
    count: usize,
    base_size: usize,
) -> c_int {
    status(with("VELOC_Mem_protect", |client| {
        // SAFETY: as promised.
        client.protect("", id, unsafe { memory(id, ptr, count, base_size) }?)
    }))
}

/// Forgets a region.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Mem_unprotect(id: c_int) -> c_int {
    status(with("VELOC_Mem_unprotect", |client| client.unprotect("", id)))
}

/// Forgets all regions.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Mem_clear() -> c_int {
    status(with("VELOC_Mem_clear", |client| client.clear("")))
}

/// Protects memory, for checkpoints of this name.
///
/// # Safety
///
/// The memory is there for as long as it is protected. `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Region_protect(
    id: c_int,
    ptr: *mut c_void,
    count: usize,
    base_size: usize,
    name: *const c_char,
) -> c_int {
    status(with("VELOC_Region_protect", |client| {
        // SAFETY: as promised.
        let (name, region) = unsafe { (text(name, "name")?, memory(id, ptr, count, base_size)?) };
        client.protect(name, id, region)
    }))
}

/// Forgets a region of checkpoints of this name.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Region_unprotect(id: c_int, name: *const c_char) -> c_int {
    // SAFETY: as promised.
    status(with("VELOC_Region_unprotect", |client| client.unprotect(unsafe { text(name, "name") }?, id)))
}

/// Forgets all regions of checkpoints of this name.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Region_clear(name: *const c_char) -> c_int {
    // SAFETY: as promised.
    status(with("VELOC_Region_clear", |client| client.clear(unsafe { text(name, "name") }?)))
}

/// Protects what functions of the program write and read.
///
/// # Safety
///
/// `name` is a string of C, and the functions may be called with the context until it is released.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_protect(id: c_int, callbacks: Callbacks, name: *const c_char) -> c_int {
    status(with("client_t::mem_protect", |client| {
        // SAFETY: as promised.
        client.protect(unsafe { text(name, "name") }?, id, Region::Serialized(callbacks))
    }))
}

/// A serializer has bytes.
///
/// # Safety
///
/// `sink` is what the serializer was given, and `bytes` has `len` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_push(sink: *mut c_void, bytes: *const u8, len: usize) {
    if len > 0 {
        // SAFETY: the sink is what `Callbacks::write` lends for the time of the call; the rest is
        // as promised.
        unsafe { (*sink.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, len)) };
    }
}

/// Calls a function of the program when something has happened.
#[repr(C)]
pub(crate) struct Observer {
    context: *mut c_void,
    call: extern "C" fn(*mut c_void, *const c_char, c_int),
    release: extern "C" fn(*mut c_void),
}

// SAFETY: it is called by threads that the program calls from, as it would call it itself.
unsafe impl Send for Observer {}
// SAFETY: as above.
unsafe impl Sync for Observer {}

impl Drop for Observer {
    fn drop(&mut self) {
        (self.release)(self.context);
    }
}

/// Says whom to tell of the ends of checkpoints.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_observe(kind: c_int, observer: Observer) -> c_int {
    status(with("client_t::register_observer", |client| {
        if kind != OBSERVE_CHECKPOINT_END {
            return Err(Failure::new(format!("there is nothing of kind {kind}; observe VELOC_OBSERVE_CKPT_END")));
        }
        let tell = move |name: &str, version: i32| {
            // The whole of it, with its drop, moves into the closure.
            let observer = &observer;
            if let Ok(name) = CString::new(name) {
                (observer.call)(observer.context, name.as_ptr(), version);
            }
        };
        client.observers.insert(kind, Arc::new(tell));
        Ok(())
    }))
}

/// Gives the path of the program's own file for this checkpoint or restart.
///
/// # Safety
///
/// `original` is NULL or a string of C, and `routed` is NULL or has room for `VELOC_MAX_NAME`
/// bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Route_file(original: *const c_char, routed: *mut c_char) -> c_int {
    status(with("VELOC_Route_file", |client| {
        // SAFETY: as promised.
        unsafe { text(original, "original name") }?;
        if routed.is_null() {
            return Err(Failure::new("the buffer for the path is NULL; give it VELOC_MAX_NAME bytes"));
        }
        let path: PathBuf = match client.phase {
            Phase::Checkpoint(_) => client.route_checkpoint()?,
            Phase::Restart(_) => client.route_restart()?,
            Phase::Idle => {
                let remedy = "call VELOC_Checkpoint_begin or VELOC_Restart_begin first";
                return Err(Failure::new(format!("no checkpoint and no restart has begun; {remedy}")));
            }
        };
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= PATH_BYTES_MAX {
            let problem = format!("its path would have {} bytes and {PATH_BYTES_MAX} are possible", bytes.len());
            return Err(Failure::new(format!("{problem}; choose a shorter scratch directory")));
        }
        // SAFETY: there is room, as promised and compared.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), routed.cast(), bytes.len());
            *routed.add(bytes.len()) = 0;
        }
        Ok(())
    }))
}

/// Removes what the scratch directory has of a name.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Cleanup(name: *const c_char) -> c_int {
    // SAFETY: as promised.
    status(with("VELOC_Cleanup", |client| client.cleanup(unsafe { text(name, "name") }?)))
}

/// Begins a checkpoint.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Checkpoint_begin(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as promised.
    status(with("VELOC_Checkpoint_begin", |client| client.checkpoint_begin(unsafe { text(name, "name") }?, version)))
}

/// Saves all regions.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Checkpoint_mem() -> c_int {
    status(with("VELOC_Checkpoint_mem", |client| client.checkpoint_mem(Mode::All, &BTreeSet::new())))
}

/// Saves some regions.
///
/// # Safety
///
/// `list` is NULL or has `count` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Checkpoint_selective(mode: c_int, list: *mut c_int, count: c_int) -> c_int {
    status(with("VELOC_Checkpoint_selective", |client| {
        // SAFETY: as promised.
        client.checkpoint_mem(Mode::of(mode)?, &unsafe { ids(list, count) }?)
    }))
}

/// Tells who observes, when the client is free again.
fn tell(ended: Option<(String, u32, Vec<Tell>)>) -> c_int {
    let Some((name, version, observers)) = ended else { return FAILURE };
    observers.iter().for_each(|observer| observer(&name, version.cast_signed()));
    SUCCESS
}

/// Ends a checkpoint.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Checkpoint_end(success: c_int) -> c_int {
    tell(with("VELOC_Checkpoint_end", |client| {
        let (name, version) = client.checkpoint_end(success != 0)?;
        Ok((name, version, client.observers.values().cloned().collect()))
    }))
}

/// Waits for what is under way.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Checkpoint_wait() -> c_int {
    status(with("VELOC_Checkpoint_wait", Client::checkpoint_wait))
}

/// Whether nothing is under way.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Checkpoint_finished() -> c_int {
    match with("VELOC_Checkpoint_finished", |client| Ok(client.is_finished())) {
        Some(true) => SUCCESS,
        _ => FAILURE,
    }
}

/// Waits for the last checkpoint, and makes another one.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Checkpoint(name: *const c_char, version: c_int) -> c_int {
    tell(with("VELOC_Checkpoint", |client| {
        // SAFETY: as promised.
        let (name, version) = client.checkpoint_all(unsafe { text(name, "name") }?, version)?;
        Ok((name, version, client.observers.values().cloned().collect()))
    }))
}

/// -1 stands for the program's own rank.
fn of_rank(target_rank: c_int) -> Option<u32> {
    u32::try_from(target_rank).ok()
}

/// The newest version that can be restored, up to this one.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Restart_test(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as promised.
    unsafe { outcrop_veloc_restart_test(name, version, FAILURE) }
}

/// As `VELOC_Restart_test`, of another rank if it is not negative.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_restart_test(
    name: *const c_char,
    version: c_int,
    target_rank: c_int,
) -> c_int {
    let mut is_strict = false;
    let found = with("VELOC_Restart_test", |client| {
        is_strict = client.config.is_strict;
        // SAFETY: as promised.
        client.restart_test(unsafe { text(name, "name") }?, version, of_rank(target_rank))
    });
    match found {
        Some(found) => found.map_or(FAILURE, u32::cast_signed),
        None if is_strict => {
            let reason = "the configuration says strict = true: the program ends, and does not begin anew";
            say(RANK.load(SeqCst), format!("VELOC_Restart_test: {reason}"));
            process::exit(STRICT_EXIT_CODE);
        }
        None => UNKNOWN,
    }
}

/// Begins a restart.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Restart_begin(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as promised.
    unsafe { outcrop_veloc_restart_begin(name, version, FAILURE) }
}

/// As `VELOC_Restart_begin`, of another rank if it is not negative.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_restart_begin(
    name: *const c_char,
    version: c_int,
    target_rank: c_int,
) -> c_int {
    status(with("VELOC_Restart_begin", |client| {
        // SAFETY: as promised.
        client.restart_begin(unsafe { text(name, "name") }?, version, of_rank(target_rank))
    }))
}

/// Restores all regions.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Recover_mem() -> c_int {
    status(with("VELOC_Recover_mem", |client| client.recover(Mode::All, &BTreeSet::new())))
}

/// Restores some regions.
///
/// # Safety
///
/// `list` is NULL or has `count` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Recover_selective(mode: c_int, list: *mut c_int, count: c_int) -> c_int {
    status(with("VELOC_Recover_selective", |client| {
        // SAFETY: as promised.
        client.recover(Mode::of(mode)?, &unsafe { ids(list, count) }?)
    }))
}

/// The length of a region in the version that is being restored.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Recover_size(id: c_int) -> c_int {
    let size = with("VELOC_Recover_size", |client| {
        let bytes = client.recover_size(id)?;
        let remedy = "ask client_t::recover_size of C++, or protect as much as was saved";
        let large = |_| Failure::new(format!("region {id} has {bytes} bytes, which an int cannot say; {remedy}"));
        c_int::try_from(bytes).map_err(large)
    });
    size.unwrap_or(FAILURE)
}

/// The same without the limits of an `int`; 0 if there is none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn outcrop_veloc_recover_size(id: c_int) -> usize {
    with("client_t::recover_size", |client| client.recover_size(id)).unwrap_or(0) as usize
}

/// Ends a restart. That the program has failed to use what it was given changes nothing here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn VELOC_Restart_end(_success: c_int) -> c_int {
    status(with("VELOC_Restart_end", Client::restart_end))
}

/// A whole restart.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn VELOC_Restart(name: *const c_char, version: c_int) -> c_int {
    // SAFETY: as promised.
    unsafe { outcrop_veloc_restart(name, version, FAILURE) }
}

/// As `VELOC_Restart`, of another rank if it is not negative.
///
/// # Safety
///
/// `name` is NULL or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outcrop_veloc_restart(
    name: *const c_char,
    version: c_int,
    target_rank: c_int,
) -> c_int {
    status(with("VELOC_Restart", |client| {
        // SAFETY: as promised.
        client.restart_all(unsafe { text(name, "name") }?, version, of_rank(target_rank))
    }))
}
