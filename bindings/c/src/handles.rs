//! Handles: numbers that look like pointers, so that a wrong one is an error and not a crash.
//!
//! A number is made of the process that opened something, the slot in a table, and how often that
//! slot was used before. So a handle that was closed is never mistaken for the one that came after
//! it, and a forked child finds out that a handle is not its own before it takes a lock, which a
//! thread that it does not have may hold.

use std::{
    any::Any,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire},
    },
};

use outcrop::bindings::{closed, forked};

use crate::border::{Failure, Outcome, answer};

/// The parts of a handle's number: process (Linux has no more than 2²²), use of the slot, slot.
const USE_BITS: u32 = 21;
const SLOT_BITS: u32 = 21;
const _: () = assert!(usize::BITS == 64, "handles need pointers of 64 bits");

/// What C knows by an incomplete type only.
pub(crate) trait Opaque {
    /// What it stands for.
    type Value: Send + 'static;
    /// Its name in messages.
    const NAME: &'static str;
}

/// A value that is open, or was.
type Cell<T> = Mutex<Option<T>>;

struct Entry {
    name: &'static str,
    cell: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
struct Slot {
    uses: usize,
    entry: Option<Entry>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

/// Everything that is open in a process. It is never dropped, so that a forked child, which has
/// none of the threads, ends nothing.
struct OpenHere {
    process: usize,
    table: Mutex<Table>,
    /// What its parent had open when it was forked.
    parents: *const OpenHere,
}

static OPEN: AtomicPtr<OpenHere> = AtomicPtr::new(ptr::null_mut());

/// This process.
fn process() -> usize {
    std::process::id() as usize
}

/// The table of this process. A forked child begins with an empty one.
fn table() -> MutexGuard<'static, Table> {
    loop {
        let open = OPEN.load(Acquire);
        // SAFETY: it is NULL, or was made below and is never freed.
        if let Some(open) = unsafe { open.as_ref() }.filter(|open| open.process == process()) {
            return open.table.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let new = OpenHere { process: process(), table: Mutex::default(), parents: open };
        let new = Box::into_raw(Box::new(new));
        if OPEN.compare_exchange(open, new, AcqRel, Acquire).is_err() {
            // SAFETY: another thread was faster, and nobody has seen this one.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Whether this process, or one that it was forked from, has opened anything under this number.
fn is_of_family(process: usize) -> bool {
    let mut open = OPEN.load(Acquire).cast_const();
    // SAFETY: each is NULL, or was made by `table` and is never freed.
    while let Some(this) = unsafe { open.as_ref() } {
        if this.process == process {
            return true;
        }
        open = this.parents;
    }
    false
}

/// Makes a handle of a value.
fn open<H: Opaque>(value: H::Value) -> Outcome<*mut H> {
    let entry = Entry { name: H::NAME, cell: Arc::new(Cell::new(Some(value))) };
    let mut table = table();
    let slot = match table.free.pop() {
        Some(slot) => slot,
        None if table.slots.len() >> SLOT_BITS == 0 => {
            table.slots.push(Slot::default());
            table.slots.len() - 1
        }
        None => return Err(Failure::usage("more handles are open than there can be; close what is not needed")),
    };
    table.slots[slot].entry = Some(entry);
    let number = process() << (USE_BITS + SLOT_BITS) | table.slots[slot].uses << SLOT_BITS | slot;
    Ok(ptr::without_provenance_mut(number))
}

/// Makes a handle of what `make` makes, where the program wants it.
///
/// # Safety
/// As for [`answer`].
pub(crate) unsafe fn give<H: Opaque>(place: *mut *mut H, make: impl FnOnce() -> Outcome<H::Value>) -> Outcome<()> {
    // SAFETY: the caller vouches for it.
    let place = unsafe { answer(place, H::NAME) }?;
    // Whoever does not look at the status has nothing that could be taken for a handle.
    place.write(ptr::null_mut());
    place.write(open(make()?)?);
    Ok(())
}

/// Works with what a handle stands for, alone.
pub(crate) fn with<H: Opaque, T>(handle: *const H, work: impl FnOnce(&mut H::Value) -> Outcome<T>) -> Outcome<T> {
    let cell = find(handle)?.cell;
    let mut value = cell.lock().map_err(|_| Failure::panicked(H::NAME))?;
    work(value.as_mut().ok_or_else(|| closed(H::NAME))?)
}

/// Ends a handle, when nobody works with it any more. What it stood for is the caller's.
pub(crate) fn close<H: Opaque>(handle: *const H) -> Outcome<H::Value> {
    let Found { mut table, slot, cell } = find(handle)?;
    table.slots[slot].entry = None;
    table.slots[slot].uses += 1;
    // A slot that was used as often as can be counted is not used again.
    if table.slots[slot].uses >> USE_BITS == 0 {
        table.free.push(slot);
    }
    drop(table);
    let mut value = cell.lock().map_err(|_| Failure::panicked(H::NAME))?;
    Ok(value.take().ok_or_else(|| closed(H::NAME))?)
}

/// What a handle stands for, and where it is in the table.
struct Found<T> {
    table: MutexGuard<'static, Table>,
    slot: usize,
    cell: Arc<Cell<T>>,
}

fn find<H: Opaque>(handle: *const H) -> Outcome<Found<H::Value>> {
    let (name, number) = (H::NAME, handle.addr());
    if number == 0 {
        return Err(Failure::usage(format!("the {name} is NULL; open one, and look at the status")));
    }
    let slot = number & ((1 << SLOT_BITS) - 1);
    let uses = number >> SLOT_BITS & ((1 << USE_BITS) - 1);
    let owner = number >> (USE_BITS + SLOT_BITS);
    let unknown = || Failure::usage(format!("this {name} is not open: it was closed before, or never was a {name}"));
    if owner != process() {
        return Err(if is_of_family(owner) { forked(name, owner as u32).into() } else { unknown() });
    }
    let table = table();
    let entry = table.slots.get(slot).filter(|slot| slot.uses == uses).and_then(|slot| slot.entry.as_ref());
    let entry = entry.ok_or_else(unknown)?;
    let cell = Arc::clone(&entry.cell).downcast::<Cell<H::Value>>();
    let cell = cell.map_err(|_| Failure::usage(format!("this is a {}, where a {name} is needed", entry.name)))?;
    Ok(Found { table, slot, cell })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number;
    impl Opaque for Number {
        type Value = u64;
        const NAME: &'static str = "number";
    }
    struct Word;
    impl Opaque for Word {
        type Value = String;
        const NAME: &'static str = "word";
    }

    #[test]
    fn only_what_is_open_can_be_used() {
        let one = open::<Number>(1).ok().unwrap();
        assert_eq!(with(one, |value| Ok(*value)).ok(), Some(1));
        let is_refused = |handle: *mut Number| with(handle, |value| Ok(*value)).is_err();
        assert!(is_refused(ptr::null_mut()));
        assert!(with(one.cast::<Word>(), |_| Ok(())).is_err(), "another kind");
        for bit in 0..usize::BITS {
            assert!(is_refused(one.map_addr(|number| number ^ 1 << bit)), "bit {bit} is another one");
        }
        assert_eq!(close(one).ok(), Some(1));
        assert!(is_refused(one) && close(one).is_err());
        let two = open::<Number>(2).ok().unwrap();
        assert!(is_refused(one), "its slot is used again, and yet it is not mistaken");
        assert_eq!(close(two).ok(), Some(2));
    }
}
