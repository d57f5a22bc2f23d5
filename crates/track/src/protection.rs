//! Dirty tracking with `mprotect`: watched memory is read-only, a write raises SIGSEGV, and the
//! signal handler makes the memory around it writable.
//!
//! There is no list of what was written: it is the memory that is writable. So memory that was
//! unmapped and mapped again counts as written. The handler only uses atomic numbers and one system
//! call.
//!
//! The limits are why the program has to allow it: a system call that writes to watched memory
//! fails with EFAULT; writes to memory that is discarded with `madvise` or moved with `mremap`
//! while it is watched are missed; and access rights that the program sets itself are lost.

use std::{
    fs, io,
    ops::Range,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use outcrop_memory::Maps;
use rustix::mm::{MprotectFlags, mprotect};

use crate::ranges::{page_bytes, shared};

/// How many ranges all trackers of the process can watch at the same time.
const SLOTS: usize = 256;

/// The maximum number of granules in a range. A granule becomes writable as a whole.
const GRANULES_MAX: usize = 16_384;

/// The default limit of mappings of a process (`vm.max_map_count`).
const MAPPINGS: usize = 65_530;

/// How many faults in a range that is not watched any more count as late and are ignored. After
/// that, a fault is an error of the program.
const LATE_MAX: usize = 10_000;

/// The approximate cost of the first write to a granule.
pub(crate) const WRITE_NS: f64 = 8_000.0;

/// A watched range, for the signal handler.
struct Slot {
    /// Odd while the numbers change. Nothing is protected then.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// The size of a granule; 0 if the range is not watched any more.
    granule: AtomicUsize,
    late: AtomicUsize,
}

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// Locked while the table changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// The handler that was installed before ours, for signals that are not ours. Set before ours is
/// installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            granule: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
        }
    }

    /// The range that is watched, or was watched last, and its granule.
    fn load(&self) -> Option<(Range<usize>, usize)> {
        let version = self.version.load(SeqCst);
        let found = (self.start.load(SeqCst)..self.end.load(SeqCst), self.granule.load(SeqCst));
        (version.is_multiple_of(2) && version == self.version.load(SeqCst)).then_some(found)
    }

    fn store(&self, range: &Range<usize>, granule: usize) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(range.start, SeqCst);
        self.end.store(range.end, SeqCst);
        self.granule.store(granule, SeqCst);
        self.late.store(LATE_MAX, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }
}

/// A range that is watched until this is dropped. A forked process has its own table, handler and
/// access rights, and may drop its copy.
pub(crate) struct Protection {
    slot: &'static Slot,
    range: Range<usize>,
    granule: usize,
}

impl Protection {
    /// Begins to watch whole pages. Fails for memory that is not private, anonymous and writable,
    /// or that is watched already.
    pub(crate) fn new(range: Range<usize>) -> io::Result<Self> {
        let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let pieces = Maps::now()?.pieces(&range)?;
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        if bytes < range.len() || !pieces.iter().all(|p| p.is_private_anonymous && p.is_readable && p.is_writable) {
            return Err(io::Error::other("it is not private anonymous memory that is writable"));
        }
        let watched = || TABLE.iter().filter_map(Slot::load).filter(|(_, granule)| *granule > 0);
        if watched().any(|(other, _)| shared(&other, &range).is_some()) {
            return Err(io::Error::other("part of it is watched already"));
        }
        let taken: usize = watched().map(|(other, granule)| other.len().div_ceil(granule)).sum();
        let granule = granule(range.len(), (mappings_max() / 4).saturating_sub(taken) / 2)
            .ok_or_else(|| io::Error::other("the process has too many mappings"))?;
        // Reuse the slot that was released first: late faults may still arrive for its old range.
        let free = TABLE.iter().filter(|slot| slot.granule.load(SeqCst) == 0);
        let slot = free
            .min_by_key(|slot| slot.version.load(SeqCst))
            .ok_or_else(|| io::Error::other("too many ranges are watched"))?;
        slot.store(&range, granule);
        if let Err(error) = rights(&range, MprotectFlags::READ) {
            // Part of it may be protected now. If that cannot be undone, the slot stays in use, so
            // that the handler resolves writes there.
            rights(&range, MprotectFlags::READ | MprotectFlags::WRITE).map(|()| slot.store(&range, 0))?;
            return Err(error);
        }
        Ok(Self { slot, range, granule })
    }

    /// Visits what may have changed since the last call, and protects it again.
    pub(crate) fn collect(&mut self, mut visit: impl FnMut(Range<usize>)) -> io::Result<()> {
        let pieces = Maps::now()?.pieces(&self.range)?;
        let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        if bytes < self.range.len() || !pieces.iter().all(|piece| piece.is_private_anonymous && piece.is_readable) {
            return Err(io::Error::other("it is not private anonymous memory any more"));
        }
        for piece in pieces.into_iter().filter(|piece| piece.is_writable) {
            visit(piece.range);
        }
        rights(&self.range, MprotectFlags::READ)
    }

    /// The size of a granule: its bytes become writable together.
    pub(crate) fn granule_bytes(&self) -> usize {
        self.granule
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        // Only pages as this left them: the program may have mapped something else there.
        let pieces = Maps::now().and_then(|maps| maps.pieces(&self.range)).unwrap_or_default();
        for piece in pieces.iter().filter(|p| p.is_private_anonymous && p.is_readable && !p.is_writable) {
            if let Err(error) = rights(&piece.range, MprotectFlags::READ | MprotectFlags::WRITE) {
                // The slot stays in use, so that the handler resolves writes.
                return tracing::warn!(%error, "cannot make protected memory writable again");
            }
        }
        self.slot.store(&self.range, 0);
    }
}

fn rights(range: &Range<usize>, rights: MprotectFlags) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: private anonymous memory whose contents do not change; the handler resolves writes to
    // it.
    Ok(unsafe { mprotect(start, range.len(), rights) }?)
}

/// The smallest granule with which a range has at most `granules_max` of them.
fn granule(bytes: usize, granules_max: usize) -> Option<usize> {
    let granules_max = granules_max.min(GRANULES_MAX);
    if granules_max == 0 {
        return None;
    }
    Some(bytes.div_ceil(granules_max).max(page_bytes()).next_power_of_two())
}

/// How many mappings a process may have.
pub(crate) fn mappings_max() -> usize {
    fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS)
}

/// Installs the handler, once per process.
fn install() -> io::Result<()> {
    // SAFETY: 0 is a valid value of all fields.
    let mut current: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only queries.
    if unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut current) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let handler = handle as *const () as usize;
    if BEFORE.get().is_some() {
        return match current.sa_sigaction == handler {
            true => Ok(()),
            // If we installed ours on top of it, the two could call each other endlessly.
            false => Err(io::Error::other("the program has put another handler of SIGSEGV in place")),
        };
    }
    let _ = BEFORE.set(current);
    let mut ours = current;
    ours.sa_sigaction = handler;
    // Keep the mask of the earlier handler, which is called with it.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (current.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    // SAFETY: a handler that may run at any time, with the flags that it expects.
    if unsafe { libc::sigaction(libc::SIGSEGV, &ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The signal handler. It uses only what is safe in one: atomic numbers and plain system calls.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid structure, which has an address for memory faults.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    /// The access rights do not allow it, but there is memory.
    const SEGV_ACCERR: i32 = 2;
    if code == SEGV_ACCERR && is_write(context) {
        let mut slots = TABLE.iter();
        if slots.any(|slot| is_resolved(slot, address)) || TABLE.iter().any(|slot| is_late(slot, address)) {
            return;
        }
    }
    pass_on(signal, code, info, context);
}

/// Makes the granule of `address` writable if it is in a watched range.
fn is_resolved(slot: &Slot, address: usize) -> bool {
    let Some((range, granule)) = slot.load() else { return false };
    if granule == 0 || !range.contains(&address) {
        return false;
    }
    let start = range.start + (address - range.start) / granule * granule;
    let writable = MprotectFlags::READ | MprotectFlags::WRITE;
    // This fails if there are too many mappings. Making the whole range writable joins them.
    rights(&(start..(start + granule).min(range.end)), writable).is_ok() || rights(&range, writable).is_ok()
}

/// Whether watching may have ended between the fault and the handler. Then the write is repeated, a
/// limited number of times.
fn is_late(slot: &Slot, address: usize) -> bool {
    slot.load().is_some_and(|(range, _)| range.contains(&address))
        && slot.late.fetch_update(SeqCst, SeqCst, |late| late.checked_sub(1)).is_ok()
}

/// Whether the fault is a write. If the processor does not report it, assume that it is.
fn is_write(context: *mut libc::c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the system passes a valid context to a handler with SA_SIGINFO.
        let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
        error & 2 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        true
    }
}

/// Does what would have happened without this handler.
fn pass_on(signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    static IS_SPENT: AtomicUsize = AtomicUsize::new(0);
    let Some(before) = BEFORE.get() else { return };
    let is_sent = code <= 0;
    let is_spent = before.sa_flags & libc::SA_RESETHAND != 0 && IS_SPENT.swap(1, SeqCst) == 1;
    match before.sa_sigaction {
        libc::SIG_IGN if is_sent => {}
        handler if handler == libc::SIG_DFL || handler == libc::SIG_IGN || is_spent => {
            // SAFETY: the default action is valid. A fault is repeated when we return; a signal
            // that was sent is sent again.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, std::ptr::null_mut());
                if is_sent {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with this flag has this signature.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler that was installed without the flag has this signature.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_fault_is_forgiven_but_not_for_ever() {
        // Not in the table that the handler uses.
        let slot = Slot::new();
        slot.store(&(0x1000..0x3000), 0);
        assert!(!is_resolved(&slot, 0x2000) && !is_late(&slot, 0x3000));
        assert_eq!((0..2 * LATE_MAX).filter(|_| is_late(&slot, 0x2000)).count(), LATE_MAX);
    }

    #[test]
    fn granules_grow_with_the_range() {
        let page = page_bytes();
        assert_eq!(granule(page, 100), Some(page));
        assert_eq!(granule(100 * page, 100), Some(page));
        assert_eq!(granule(101 * page, 100), Some(2 * page));
        assert_eq!(granule(1 << 30, usize::MAX), Some(1 << 16));
        assert_eq!(granule(1 << 30, 0), None);
    }
}
