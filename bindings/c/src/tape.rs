//! Tapes: snapshots that sink and come back up.

use std::{
    ffi::{c_char, c_void},
    mem::size_of,
    ptr,
};

use outcrop::{Lent, Past, Stats, Tape, TapeBuilder, bindings::huge};

use crate::{
    border::{
        Failure, Outcome, answer, call, check_version, give_bytes, memory, memory_mut, outcrop_status, start_log, text,
    },
    handles::{Opaque, close, give, with},
};

/// A tape: snapshots written in one order and read back in a known other one. Calls on one handle
/// are made one after the other.
pub struct outcrop_tape {
    _opaque: [u8; 0],
}

/// A slot in the program's hands, to compute into.
pub struct outcrop_lent {
    _opaque: [u8; 0],
}

/// A snapshot in the program's hands, to be read in place.
pub struct outcrop_past {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_tape {
    type Value = Tape;
    const NAME: &'static str = "tape";
}

impl Opaque for outcrop_lent {
    type Value = Lent<u8>;
    const NAME: &'static str = "lent slot";
}

impl Opaque for outcrop_past {
    type Value = Past<u8>;
    const NAME: &'static str = "past snapshot";
}

/// What a tape has done until now. May become longer in later versions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outcrop_tape_stats_t {
    /// Snapshots saved, by copy or by lending.
    pub saves: u64,
    /// The program's bytes in them.
    pub saved_bytes: u64,
    /// Snapshots taken or got.
    pub reads: u64,
    /// Reads that found their snapshot in memory.
    pub hits: u64,
    /// Reads that found it on its way.
    pub late: u64,
    /// Reads that found it elsewhere, or broke the announced order.
    pub misses: u64,
    /// Seconds that the program spent inside saves: copies, waits and all.
    pub save_seconds: f64,
    /// Seconds of these that it waited for room.
    pub wait_seconds: f64,
    /// Seconds that it spent inside takes and gets.
    pub read_seconds: f64,
    /// Seconds in which bytes were moved between layers.
    pub move_seconds: f64,
    /// Seconds of processor time that the helper threads have taken.
    pub helper_seconds: f64,
}

impl From<&Stats> for outcrop_tape_stats_t {
    fn from(stats: &Stats) -> Self {
        Self {
            saves: stats.saves,
            saved_bytes: stats.saved_bytes,
            reads: stats.reads,
            hits: stats.hits,
            late: stats.late,
            misses: stats.misses,
            save_seconds: stats.save_seconds,
            wait_seconds: stats.wait_seconds,
            read_seconds: stats.read_seconds,
            move_seconds: stats.move_seconds,
            helper_seconds: stats.helper_seconds,
        }
    }
}

/// What outcrop_tape_open calls, with the version of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_open_as(
    header_version: u32,
    config: *const c_char,
    tape: *mut *mut outcrop_tape,
) -> outcrop_status {
    call(|| {
        check_version(header_version)?;
        start_log();
        // SAFETY: the program keeps to the header.
        let config = unsafe { text(config, "configuration") }?;
        // SAFETY: as above.
        unsafe { give(tape, || Ok(TapeBuilder::from_toml(config)?.open()?)) }
    })
}

/// Another handle to the same tape, for another thread. A call that finds no room waits for what
/// the owners of other handles may take; if all handles wait, it fails. The tape ends with its last
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_clone(tape: *mut outcrop_tape, clone: *mut *mut outcrop_tape) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { give(clone, || with(tape, |tape| Ok(tape.clone()))) })
}

/// Ends a handle. With the last one, all layers give back what they hold, and no file stays behind.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_tape_close(tape: *mut outcrop_tape) -> outcrop_status {
    call(|| close(tape).map(drop))
}

/// Saves bytes under a key by copying them. Returns when the program may change them again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_save(
    tape: *mut outcrop_tape,
    key: u64,
    data: *const c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let data = unsafe { memory(data, bytes, "what is to be saved") }?;
        with(tape, |tape| Ok(tape.save(key, data)?))
    })
}

/// Lends the slot of a new snapshot, to compute straight into. It holds at first whatever was there
/// before, begins with a page, and must be sealed or abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_lend(
    tape: *mut outcrop_tape,
    key: u64,
    bytes: usize,
    data: *mut *mut c_void,
    lent: *mut *mut outcrop_lent,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let data = unsafe { answer(data, "address of the slot") }?.write(ptr::null_mut());
        let lend = || {
            if isize::try_from(bytes).is_err() {
                return Err(huge(key).into());
            }
            let mut lent: Lent<u8> = with(tape, |tape| Ok(tape.lend(key, bytes)?))?;
            *data = lent.as_mut_ptr().cast();
            Ok(lent)
        };
        // SAFETY: as above.
        unsafe { give(lent, lend) }
    })
}

/// Makes a lent slot a snapshot. Neither the handle nor the slot is the program's any more.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_lent_seal(lent: *mut outcrop_lent) -> outcrop_status {
    call(|| close(lent).map(Lent::seal))
}

/// Makes a lent slot a snapshot that the program goes on reading, so that the next state can be
/// computed from it into the next slot. The address stays the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_lent_seal_and_keep(
    lent: *mut outcrop_lent,
    past: *mut *mut outcrop_past,
) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { give(past, || close(lent).map(Lent::seal_and_keep)) })
}

/// Gives a lent slot back; it becomes no snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_lent_abandon(lent: *mut outcrop_lent) -> outcrop_status {
    call(|| close(lent).map(drop))
}

/// Hands over a snapshot for the last time, in place: its key is free again, and the slot when it
/// is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_take(
    tape: *mut outcrop_tape,
    key: u64,
    data: *mut *const c_void,
    bytes: *mut usize,
    past: *mut *mut outcrop_past,
) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { hand_over(data, bytes, past, || with(tape, |tape| Ok(tape.take(key)?))) })
}

/// Hands over a snapshot, in place, and keeps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_get(
    tape: *mut outcrop_tape,
    key: u64,
    data: *mut *const c_void,
    bytes: *mut usize,
    past: *mut *mut outcrop_past,
) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| unsafe { hand_over(data, bytes, past, || with(tape, |tape| Ok(tape.get(key)?))) })
}

/// Gives the program a snapshot.
///
/// # Safety
/// As for [`answer`].
unsafe fn hand_over(
    data: *mut *const c_void,
    bytes: *mut usize,
    past: *mut *mut outcrop_past,
    read: impl FnOnce() -> Outcome<Past<u8>>,
) -> Outcome<()> {
    // SAFETY: the caller vouches for it.
    let (data, bytes) = unsafe { (answer(data, "address of the snapshot")?, answer(bytes, "length")?) };
    let (data, bytes) = (data.write(ptr::null()), bytes.write(0));
    let read = || {
        let past = read()?;
        (*data, *bytes) = (past.as_ptr().cast(), past.len());
        Ok(past)
    };
    // SAFETY: as above.
    unsafe { give(past, read) }
}

/// Ends the reading of a snapshot: its slot is not the program's any more.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_past_release(past: *mut outcrop_past) -> outcrop_status {
    call(|| close(past).map(drop))
}

/// Copies a snapshot out and drops it. With another number of bytes than it has, nothing happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_take_into(
    tape: *mut outcrop_tape,
    key: u64,
    data: *mut c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let data = unsafe { memory_mut(data, bytes, "the buffer") }?;
        with(tape, |tape| Ok(tape.take_into(key, data)?))
    })
}

/// How many bytes a snapshot has. It stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_size(tape: *mut outcrop_tape, key: u64, bytes: *mut usize) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let bytes = unsafe { answer(bytes, "length") }?.write(0);
        *bytes = with(tape, |tape| Ok(tape.bytes(key)?))?;
        Ok(())
    })
}

/// Forgets a snapshot without reading it.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_tape_discard(tape: *mut outcrop_tape, key: u64) -> outcrop_status {
    call(|| with(tape, |tape| Ok(tape.discard(key)?)))
}

/// What the tape has done until now. `bytes` is sizeof(outcrop_tape_stats_t).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_stats(
    tape: *mut outcrop_tape,
    stats: *mut outcrop_tape_stats_t,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        if bytes != size_of::<outcrop_tape_stats_t>() {
            let expected = size_of::<outcrop_tape_stats_t>();
            return Err(Failure::usage(format!(
                "statistics have {expected} bytes and not {bytes}; give sizeof(outcrop_tape_stats_t)"
            )));
        }
        // SAFETY: the program keeps to the header.
        let stats = unsafe { answer(stats, "statistics") }?;
        stats.write((&with(tape, |tape| Ok(tape.stats()))?).into());
        Ok(())
    })
}

/// All that is known of what the tape has done, layer by layer, as a JSON text with a zero byte at
/// its end. If `bytes` are not enough for it, nothing is written, and `needed` says how many are;
/// with 0 of them `text` may be NULL. That is no failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_stats_json(
    tape: *mut outcrop_tape,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> outcrop_status {
    call(|| {
        let json = with(tape, |tape| Ok(serde_json::to_string(&tape.stats())))?;
        let json =
            json.map_err(|error| Failure::usage(format!("the statistics cannot be written as JSON: {error}")))?;
        // SAFETY: the program keeps to the header.
        unsafe { give_bytes(format!("{json}\0").as_bytes(), text, bytes, needed) }
    })
}

/// Writes the timeline of a tape that was opened with `trace = true` to a file that
/// chrome://tracing and Perfetto open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_tape_write_trace(tape: *mut outcrop_tape, path: *const c_char) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let path = unsafe { text(path, "path") }?;
        with(tape, |tape| Ok(tape.write_trace(path)?))
    })
}
