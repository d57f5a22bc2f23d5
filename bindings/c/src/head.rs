//! Heads: arrays and linked structures that lie in the program's own memory, and of which one call
//! makes a version durable in a pool. What `outcrop annotate` makes of pragmas calls these.

mod hints;
mod layout;
mod linked;
mod rebuild;
mod room;

use std::{
    collections::BTreeMap,
    ffi::{c_char, c_int, c_void},
    time::{Duration, Instant},
};

use outcrop::{
    Element, Error, ErrorKind,
    pool::{Mirror, Options, Pool, Structure},
};

pub use self::hints::{
    outcrop_head_hint_degree, outcrop_head_hint_elements, outcrop_head_hint_structs, outcrop_head_usage,
};
use self::{hints::Hints, linked::Linked};
use crate::{
    border::{
        Failure, Outcome, call, check_memory, check_version, memory, memory_mut, outcrop_status, start_log, text,
    },
    handles::{Opaque, close, give, with},
    pool::element_of,
};

/// What a member of a struct is, for outcrop_field.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum outcrop_member {
    /// Numbers.
    OUTCROP_NUMBERS = 0,
    /// Structs, inside this one.
    OUTCROP_STRUCTS = 1,
    /// Addresses of memory from malloc, which belongs to the structure, or NULL.
    OUTCROP_POINTERS = 2,
    /// Addresses of structs that other members lead to, or NULL.
    OUTCROP_LINKS = 3,
    /// Addresses of texts from malloc that end with a zero byte, or NULL.
    OUTCROP_TEXTS = 4,
}

/// A member of a struct. All numbers are what the compiler says: offsetof and sizeof.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outcrop_field {
    /// Its name, for messages.
    pub name: *const c_char,
    /// What it is: an outcrop_member.
    pub member: c_int,
    /// Where it begins.
    pub offset: usize,
    /// How many there are one after the other: 1 unless it is an array.
    pub count: usize,
    /// The bytes of one number, or of one number that a pointer leads to.
    pub bytes: usize,
    /// The index of the type of a struct, or of what a pointer leads to; -1 for numbers.
    pub type_index: isize,
    /// How many elements a pointer leads to, if length_bytes is 0; otherwise the offset of the
    /// integer that says it.
    pub length: usize,
    /// The bytes of that integer: 1, 2, 4 or 8. Negative ones are refused.
    pub length_bytes: usize,
    /// Of a member of a union: the offset of the integer that says whether it is the valid one.
    pub tag: usize,
    /// The bytes of that integer: 1, 2, 4 or 8. 0 if the field is always valid.
    pub tag_bytes: usize,
    /// What the integer is if the field is valid. A field that is valid for several is there
    /// several times.
    pub tag_value: u64,
}

/// A struct of the program. Bytes that belong to no field are not kept.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outcrop_type {
    /// Its name.
    pub name: *const c_char,
    /// Its length.
    pub bytes: usize,
    /// Its fields.
    pub fields: *const outcrop_field,
    /// How many there are.
    pub field_count: usize,
}

/// Arrays and linked structures of the program, of which versions are durable in a pool.
pub struct outcrop_head {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_head {
    type Value = Head;
    const NAME: &'static str = "head";
}

/// An array of the program, and what the pool has of it.
struct Kept {
    mirror: Mirror,
    element: Element,
    address: usize,
    bytes: usize,
}

/// A pool and what the program keeps there.
pub(crate) struct Head {
    pool: Pool,
    block_bytes: Option<usize>,
    arrays: BTreeMap<String, Kept>,
    linked: Option<Linked>,
    hints: Hints,
    /// What it took to find out what has changed.
    followed_in: Duration,
}

impl Head {
    /// Has the pool's copies be what the program has.
    ///
    /// # Safety
    /// What was added is still there, and nobody changes it.
    unsafe fn follow(&mut self) -> Outcome<()> {
        let start = Instant::now();
        for (name, array) in &mut self.arrays {
            let data = std::ptr::with_exposed_provenance(array.address);
            // SAFETY: the caller vouches for it.
            array.mirror.follow(unsafe { memory(data, array.bytes, name) }?);
        }
        // SAFETY: as above.
        self.linked.as_mut().map_or(Ok(()), |linked| unsafe { linked.follow() })?;
        self.followed_in = start.elapsed();
        Ok(())
    }

    /// Everything that is part of a version.
    fn structures<'a>(
        arrays: &'a mut BTreeMap<String, Kept>,
        linked: &'a mut Option<Linked>,
    ) -> Vec<&'a mut dyn Structure> {
        let arrays = arrays.values_mut().map(|array| &mut array.mirror as &mut dyn Structure);
        arrays.chain(linked.as_mut().map(|linked| linked as &mut dyn Structure)).collect()
    }

    /// # Safety
    /// As for [`follow`](Self::follow), which was called.
    unsafe fn persist(&mut self) -> Outcome<u64> {
        if let Some(linked) = &mut self.linked {
            // SAFETY: the caller vouches for it.
            unsafe { linked.place(&self.hints) };
        }
        self.hints = Hints::default();
        let mut structures = Self::structures(&mut self.arrays, &mut self.linked);
        Ok(self.pool.persist_after(&mut structures, self.followed_in).map_err(Error::from)?.version)
    }

    /// The newest version that is whole, if there is any.
    fn newest_whole(&self) -> Outcome<Option<u64>> {
        let mut found = None;
        for version in self.pool.versions().into_iter().rev() {
            let verified = self.pool.view(version).and_then(|view| view.verify()).map_err(Error::from);
            match verified {
                Ok(()) => return Ok(Some(version)),
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    eprintln!("outcrop: version {version} is passed over: {error:#}");
                    found = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        found.map_or(Ok(None), |error| Err(error.into()))
    }

    /// # Safety
    /// What was added is still there, and nobody uses it.
    unsafe fn restore(&mut self, version: u64) -> Outcome<()> {
        let mut structures = Self::structures(&mut self.arrays, &mut self.linked);
        self.pool.restore(version, &mut structures).map_err(Error::from)?;
        // What can fail comes first.
        if let Some(linked) = &mut self.linked {
            // SAFETY: the caller vouches for it.
            unsafe { linked.rebuild() }?;
        }
        for (name, array) in &self.arrays {
            let data = std::ptr::with_exposed_provenance_mut(array.address);
            // SAFETY: as above.
            unsafe { memory_mut(data, array.bytes, name) }?.copy_from_slice(array.mirror.bytes());
        }
        Ok(())
    }

    /// Whether a version is worth what it costs by now. If so, the copies are up to date.
    ///
    /// # Safety
    /// As for [`follow`](Self::follow).
    unsafe fn is_worth_it(&mut self) -> Outcome<bool> {
        let pool = self.pool.clone();
        let mut followed = None;
        let is_worth_it = pool.is_worth_it(|| {
            // SAFETY: the caller vouches for it.
            followed = Some(unsafe { self.follow() });
            pool.features(&mut Self::structures(&mut self.arrays, &mut self.linked))
        });
        // Nothing is worth it before that was asked, and then the copies are up to date.
        let followed = followed.transpose()?;
        Ok(is_worth_it.map_err(Error::from)? && followed.is_some())
    }
}

/// What outcrop_head_open calls, with the version of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_open_as(
    header_version: u32,
    path: *const c_char,
    versions: u64,
    block_bytes: usize,
    mtbf_s: f64,
    head: *mut *mut outcrop_head,
) -> outcrop_status {
    call(|| {
        check_version(header_version)?;
        start_log();
        // SAFETY: the program keeps to the header.
        let path = unsafe { text(path, "path of the pool") }?;
        let open = || {
            let mut options = Options::versions(versions);
            if mtbf_s != 0.0 {
                let mtbf = Duration::try_from_secs_f64(mtbf_s);
                options = options.mtbf(mtbf.map_err(|_| Failure::usage(format!("{mtbf_s} s between failures")))?);
            }
            let pool = Pool::open(path, options).map_err(Error::from)?;
            let block_bytes = (block_bytes != 0).then_some(block_bytes);
            let (arrays, linked) = (BTreeMap::new(), None);
            Ok(Head { pool, block_bytes, arrays, linked, hints: Hints::default(), followed_in: Duration::ZERO })
        };
        // SAFETY: as above.
        unsafe { give(head, open) }
    })
}

/// Closes a head. The program's memory stays as it is; what was not persisted is not durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_close(head: *mut outcrop_head) -> outcrop_status {
    call(|| close(head).map(drop))
}

/// Keeps an array of numbers that lies in the program's memory: `element` is an outcrop_element,
/// of numbers. It stays valid until the head is closed, or until this is called again with the same
/// name and another address. The pool has it under its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_array(
    head: *mut outcrop_head,
    name: *const c_char,
    element: c_int,
    data: *mut c_void,
    count: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the array") }?;
        let element = element_of(name, element)?;
        with(head, |head| {
            if !head.arrays.contains_key(name) {
                let mirror = head.pool.mirror(name, element.name(), count, head.block_bytes).map_err(Error::from)?;
                head.arrays.insert(name.to_owned(), Kept { mirror, element: element.clone(), address: 0, bytes: 0 });
            }
            let Some(array) = head.arrays.get_mut(name) else { unreachable!("it was added") };
            let bytes = array.mirror.bytes().len();
            if Some(bytes) != count.checked_mul(element.bytes()) {
                let problem = format!("array {name} was added before with {bytes} bytes; its length must stay");
                return Err(Failure::usage(problem));
            }
            check_memory(data, bytes, name)?;
            (array.address, array.bytes) = (data.expose_provenance(), bytes);
            Ok(())
        })
    })
}

/// Keeps structs that lie in the program's memory, `count` of them from `data` on, with all that
/// their members lead to. `types` describes all of them, and `type_index` says which these are.
/// When a version is restored, what members lead to is new memory from malloc. Otherwise as
/// outcrop_head_array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_linked(
    head: *mut outcrop_head,
    name: *const c_char,
    types: *const outcrop_type,
    type_count: usize,
    type_index: usize,
    data: *mut c_void,
    count: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the structure") }?;
        // SAFETY: as above.
        let layouts = unsafe { layout::read(types, type_count) }?;
        with(head, |head| {
            let linked = match &mut head.linked {
                Some(linked) => linked,
                none => none.insert(Linked::open(&head.pool).map_err(Error::from)?),
            };
            linked.add_root(name, layouts, type_index, data, count)
        })
    })
}

/// Makes a version of everything that was added durable, and says its number at `version`, which
/// may be NULL. What has not changed is not written. If it fails, the newest version is the one
/// that was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_persist(head: *mut outcrop_head, version: *mut u64) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let persisted = with(head, |head| unsafe { head.follow().and_then(|()| head.persist()) })?;
        // SAFETY: as above.
        unsafe { say(version, persisted) };
        Ok(())
    })
}

/// As outcrop_head_persist, if it is worth it by now: if a failure would cost more than this does.
/// Otherwise the version is 0. Call it at the end of each iteration; a call that does nothing takes
/// about a microsecond.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_persist_if_worth_it(
    head: *mut outcrop_head,
    version: *mut u64,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let persisted = with(head, |head| unsafe {
            match head.is_worth_it()? {
                true => head.persist(),
                false => Ok(0),
            }
        })?;
        // SAFETY: as above.
        unsafe { say(version, persisted) };
        Ok(())
    })
}

/// Has everything that was added be as in the newest version that is whole, and says its number at
/// `version`, which may be NULL. It is 0 if there is none; then nothing has changed. Memory that
/// pointers led to before is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_restore(head: *mut outcrop_head, version: *mut u64) -> outcrop_status {
    call(|| {
        let restored = with(head, |head| {
            let version = head.newest_whole()?.unwrap_or(0);
            if version > 0 {
                // SAFETY: the program keeps to the header.
                unsafe { head.restore(version) }?;
            }
            Ok(version)
        })?;
        // SAFETY: as above.
        unsafe { say(version, restored) };
        Ok(())
    })
}

/// As outcrop_head_restore for one version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_restore_version(head: *mut outcrop_head, version: u64) -> outcrop_status {
    // SAFETY: the program keeps to the header.
    call(|| with(head, |head| unsafe { head.restore(version) }))
}

/// Whether outcrop_head_persist_if_worth_it would persist now: 1 at `is_worth_it` if so, and
/// otherwise 0. For programs of several processes, of which one decides for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_is_worth_it(head: *mut outcrop_head, is_worth_it: *mut u64) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let answer = with(head, |head| unsafe { head.is_worth_it() })?;
        // SAFETY: as above.
        unsafe { say(is_worth_it, u64::from(answer)) };
        Ok(())
    })
}

/// The versions that there are, as outcrop_pool_versions gives them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_versions(
    head: *mut outcrop_head,
    versions: *mut u64,
    room: usize,
    count: *mut usize,
) -> outcrop_status {
    call(|| {
        let found = with(head, |head| Ok(head.pool.versions()))?;
        // SAFETY: the program keeps to the header.
        unsafe { crate::versions::give_versions(&found, versions, room, count) }
    })
}

/// Copies an array of a version, all of which is compared with its checksums first, to `data`,
/// which has as many bytes as the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_read(
    head: *mut outcrop_head,
    version: u64,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, data) = unsafe { (text(name, "name of the array")?, memory_mut(data, bytes, "the buffer")?) };
        with(head, |head| {
            let view = head.pool.view(version).map_err(Error::from)?;
            view.verify().map_err(Error::from)?;
            let array = view.bytes_verified(name).map_err(Error::from)?;
            if array.len() != data.len() {
                let problem = format!("array {name} of version {version} has {} bytes, not {bytes}", array.len());
                return Err(Failure::usage(problem));
            }
            data.copy_from_slice(&array);
            Ok(())
        })
    })
}

/// # Safety
/// It is NULL, or a place for a number.
unsafe fn say(place: *mut u64, number: u64) {
    // SAFETY: the caller vouches for it.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = number;
    }
}
