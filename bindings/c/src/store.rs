//! Stores: places for versions that survive.

use std::ffi::{c_char, c_int};

use outcrop::{Store, StoreBuilder};

use crate::{
    border::{answer, call, check_version, outcrop_status, start_log, text},
    handles::{Opaque, close, give, with},
    session::{Protected, outcrop_session},
};

/// A place for checkpoints.
pub struct outcrop_store {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_store {
    type Value = Store;
    const NAME: &'static str = "store";
}

/// What outcrop_store_open calls, with the version of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_store_open_as(
    header_version: u32,
    config: *const c_char,
    store: *mut *mut outcrop_store,
) -> outcrop_status {
    call(|| {
        check_version(header_version)?;
        start_log();
        // SAFETY: the program keeps to the header.
        let config = unsafe { text(config, "configuration") }?;
        // SAFETY: as above.
        unsafe { give(store, || Ok(StoreBuilder::from_toml(config)?.open()?)) }
    })
}

/// Opens the series of versions called `name`. With several ranks, all of them call it, in the same
/// order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_store_session(
    store: *mut outcrop_store,
    name: *const c_char,
    session: *mut *mut outcrop_session,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the session") }?;
        // SAFETY: as above.
        unsafe { give(session, || with(store, |store| Ok(Protected::new(store.session(name)?)))) }
    })
}

/// Whether it is time to save, by the configured interval and what saving has cost until now: 1 or
/// 0. Without an interval it never is. With several ranks, all of them call it, and all get the
/// answer of rank 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_store_due(store: *mut outcrop_store, due: *mut c_int) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let due = unsafe { answer(due, "answer") }?;
        due.write(c_int::from(with(store, |store| Ok(store.due()?))?));
        Ok(())
    })
}

/// Ends a handle. Its sessions go on; the store ends with the last of them.
#[unsafe(no_mangle)]
pub extern "C" fn outcrop_store_close(store: *mut outcrop_store) -> outcrop_status {
    call(|| close(store).map(drop))
}
