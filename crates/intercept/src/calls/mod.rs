//! What is done for each system call of a program, however it was intercepted.

mod answer;
mod caller;
mod grow;
mod meta;
mod names;
mod open;

use std::{
    ffi::CString,
    sync::{Arc, atomic::Ordering},
};

use rustix::fs::ResolveFlags;

pub(crate) use self::{answer::Answer, grow::sole_user};
use self::{
    caller::{Caller, Differences},
    grow::Replace,
    names::{Last, find},
    open::{Open, Turns},
};
use crate::{
    Fsync,
    stage::{Durable, Shared, Staged},
};

/// How often a file is synced before its program gets the real one.
const SYNCS: u32 = 3;

/// A system call that a thread is about to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) thread: u32,
    pub(crate) number: libc::c_long,
    pub(crate) arguments: [u64; 6],
}

/// What answers calls.
pub(crate) struct Calls {
    pub(crate) stage: Arc<Shared>,
    differences: Differences,
    turns: Turns,
}

impl Calls {
    pub(crate) fn new(stage: Arc<Shared>) -> Self {
        Self { stage, differences: Differences::default(), turns: Turns::default() }
    }

    /// The same if nobody tells when a program becomes different from this process.
    pub(crate) fn for_strangers(stage: Arc<Shared>) -> Self {
        Self { differences: Differences::all(), ..Self::new(stage) }
    }

    /// Answers the call of a thread. `replace` puts a file into the program in place of another.
    pub(crate) fn answer(&self, question: &Question, replace: Replace<'_>) -> Answer {
        let caller = Caller::new(question.thread, &self.differences);
        let one = One { calls: self, caller, a: question.arguments };
        let number = question.number;
        match number {
            libc::SYS_openat | libc::SYS_openat2 => one.open(number),
            libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_fstat => one.stat(number),
            libc::SYS_renameat | libc::SYS_renameat2 => one.rename(number),
            libc::SYS_fsync | libc::SYS_fdatasync => one.sync(replace),
            libc::SYS_sync | libc::SYS_syncfs => one.sync_all(),
            libc::SYS_msync => one.sync_mapping(),
            libc::SYS_execve => one.execute(libc::AT_FDCWD, one.a[0]),
            libc::SYS_execveat => one.execute(one.a[0] as i32, one.a[1]),
            libc::SYS_truncate => one.truncate(),
            libc::SYS_utimensat => one.set_times(),
            libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_fallocate
            | libc::SYS_sendfile
            | libc::SYS_copy_file_range
            | libc::SYS_splice => one.grow(number, replace),
            libc::SYS_umask => self.differ(|differences| &differences.umask),
            libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_unshare | libc::SYS_setns | libc::SYS_clone => {
                self.differ(|differences| &differences.names)
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups => self.differ(|differences| &differences.identity),
            other => one.meta(other),
        }
    }

    fn differ(&self, what: impl Fn(&Differences) -> &std::sync::atomic::AtomicBool) -> Answer {
        what(&self.differences).store(true, Ordering::SeqCst);
        Answer::Go
    }
}

/// One call.
struct One<'a> {
    calls: &'a Calls,
    caller: Caller<'a>,
    /// The arguments.
    a: [u64; 6],
}

impl One<'_> {
    fn stage(&self) -> &Shared {
        &self.calls.stage
    }

    /// The path at an address. The kernel says what is wrong with it, if anything.
    fn path(&self, address: u64) -> Option<CString> {
        self.caller.path(address).ok()
    }

    /// Answers a call about a descriptor, if that is on a staged file.
    fn as_staged(&self, argument: usize, answer: impl FnOnce(&Staged) -> Answer) -> Answer {
        match meta::staged_as(self.stage(), &self.caller, self.a[argument] as i32) {
            Some(staged) => self.acting(|| answer(&staged)),
            None => Answer::Go,
        }
    }

    /// Answers a call about a path, if that names a staged file.
    fn at_staged(&self, directory: i32, path: u64, last: Last, answer: impl FnOnce(&Staged) -> Answer) -> Answer {
        if self.stage().is_empty() {
            return Answer::Go;
        }
        let Some(path) = self.path(path) else { return Answer::Go };
        self.acting(|| match meta::staged_at(self.stage(), &self.caller, directory, &path, last) {
            Some((staged, _)) => answer(&staged),
            None => Answer::Go,
        })
    }

    /// Does it as the user that the caller is.
    fn acting(&self, act: impl FnOnce() -> Answer) -> Answer {
        match self.caller.act() {
            Ok(_acting) => act(),
            Err(_) => Answer::Go,
        }
    }

    fn open(&self, number: libc::c_long) -> Answer {
        let [directory, path, flags, mode, ..] = self.a;
        let (flags, mode, resolve) = match number == libc::SYS_openat2 {
            false => (flags as i32, mode as u32, 0),
            // SAFETY: any numbers are valid.
            true => match unsafe { self.caller.read::<[u64; 3]>(flags) } {
                Ok([flags, mode, resolve]) if mode <= 0o7777 && flags <= i32::MAX as u64 => {
                    (flags as i32, mode as u32, resolve)
                }
                _ => return Answer::Go,
            },
        };
        self.open_with(directory as i32, path, flags, mode, resolve)
    }

    fn open_with(&self, directory: i32, path: u64, flags: i32, mode: u32, resolve: u64) -> Answer {
        let Some(resolve) = ResolveFlags::from_bits(resolve) else { return Answer::Go };
        if !open::is_ours(flags, self.stage()) {
            return Answer::Go;
        }
        let Some(path) = self.path(path).filter(|path| !path.is_empty()) else { return Answer::Go };
        let call = Open { directory, path: &path, flags, mode: mode & 0o7777, resolve };
        self.acting(|| open::open(self.stage(), &self.calls.turns, &self.caller, &call))
    }

    fn stat(&self, number: libc::c_long) -> Answer {
        if self.stage().is_empty() {
            return Answer::Go;
        }
        let [directory, path, third, fourth, fifth, _] = self.a;
        let is_extended = number == libc::SYS_statx;
        let (flags, into) = if is_extended { (third as i32, fifth) } else { (fourth as i32, third) };
        let answer = |staged: &Staged| match is_extended {
            true => meta::statx(&self.caller, staged, flags, fourth as u32, into),
            false => meta::stat(&self.caller, staged, into),
        };
        if number == libc::SYS_fstat {
            return self.as_staged(0, |staged| meta::stat(&self.caller, staged, path));
        }
        let is_descriptor =
            flags & libc::AT_EMPTY_PATH != 0 && (path == 0 || self.path(path).is_none_or(|path| path.is_empty()));
        if is_descriptor {
            return self.as_staged(0, answer);
        }
        let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
        self.at_staged(directory as i32, path, last, answer)
    }

    fn rename(&self, number: libc::c_long) -> Answer {
        let [old_directory, old, new_directory, new, flags, _] = self.a;
        let flags = if number == libc::SYS_renameat2 { flags as u32 } else { 0 };
        self.rename_with((old_directory as i32, old), (new_directory as i32, new), flags)
    }

    /// A name that replaces another one must not show before its bytes.
    fn rename_with(&self, old: (i32, u64), new: (i32, u64), flags: u32) -> Answer {
        if self.stage().is_empty() || flags & libc::RENAME_NOREPLACE != 0 {
            return Answer::Go;
        }
        let (Some(old_path), Some(new_path)) = (self.path(old.1), self.path(new.1)) else { return Answer::Go };
        self.acting(|| {
            if find(&self.caller, new.0, &new_path, Last::Keep).is_err() {
                return Answer::Go;
            }
            let mut renamed = vec![(old.0, &old_path)];
            if flags & libc::RENAME_EXCHANGE != 0 {
                renamed.push((new.0, &new_path));
            }
            for (directory, path) in renamed {
                let found = meta::staged_at(self.stage(), &self.caller, directory, path, Last::Keep);
                if let Some(Err(error)) = found.map(|(staged, _)| self.stage().settle(&staged, self.durable())) {
                    return Answer::failed(&error);
                }
            }
            Answer::Go
        })
    }

    fn durable(&self) -> Durable {
        match self.stage().settings.fsync {
            Fsync::Disk => Durable::Yes,
            Fsync::Memory => Durable::No,
        }
    }

    /// Each time, the whole file is drained. A program that syncs a file again and again is better
    /// off with the real one.
    fn sync(&self, replace: Replace<'_>) -> Answer {
        self.as_staged(0, |staged| {
            let outcome = self.stage().sync(staged);
            if outcome.is_ok() && self.stage().settings.fsync == Fsync::Disk && staged.count_sync() == SYNCS {
                let moved = grow::move_out(self.stage(), &self.caller, staged, self.a[0] as i32, replace);
                tracing::debug!("{} was synced often; moved out: {moved:?}", staged.path().display());
            }
            Answer::done(outcome)
        })
    }

    fn sync_all(&self) -> Answer {
        if !self.stage().is_empty() && self.stage().settings.fsync == Fsync::Disk {
            let undrained = self.stage().drain_all(Durable::No);
            // `sync` cannot fail; the others can.
            if let Some(undrained) = undrained.first() {
                return Answer::failed(&undrained.error);
            }
        }
        Answer::Go
    }

    fn sync_mapping(&self) -> Answer {
        if self.stage().is_empty() {
            return Answer::Go;
        }
        let [address, bytes, ..] = self.a;
        for id in self.caller.mapped(address..address.saturating_add(bytes)) {
            if let Some(Err(error)) = self.stage().find(id).map(|staged| self.stage().sync(&staged)) {
                return Answer::failed(&error);
            }
        }
        Answer::Go
    }

    /// The kernel opens the real file, which nobody may have open for writing.
    fn execute(&self, directory: i32, path: u64) -> Answer {
        if self.stage().is_empty() {
            return Answer::Go;
        }
        let Some(path) = self.path(path).filter(|path| !path.is_empty()) else { return Answer::Go };
        self.acting(|| {
            let found = meta::staged_at(self.stage(), &self.caller, directory, &path, Last::Follow);
            match found.map(|(staged, _)| self.stage().settle(&staged, Durable::No)) {
                Some(Err(error)) => Answer::failed(&error),
                _ => Answer::Go,
            }
        })
    }

    fn truncate(&self) -> Answer {
        if self.stage().is_empty() {
            return Answer::Go;
        }
        let Some(path) = self.path(self.a[0]) else { return Answer::Go };
        self.acting(|| match meta::staged_at(self.stage(), &self.caller, libc::AT_FDCWD, &path, Last::Follow) {
            Some((staged, found)) => meta::truncate(&staged, &found, self.a[1]),
            None => Answer::Go,
        })
    }

    fn set_times(&self) -> Answer {
        let [directory, path, times, flags, ..] = self.a;
        let flags = flags as i32;
        let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
        self.at_staged(directory as i32, path, last, |staged| {
            meta::set_times(&self.caller, staged, meta::Times::Nanoseconds(times))
        })
    }

    fn grow(&self, number: libc::c_long, replace: Replace<'_>) -> Answer {
        let (argument, bytes) = match number {
            libc::SYS_sendfile => (0, self.a[3]),
            libc::SYS_fallocate => (0, self.a[3]),
            libc::SYS_copy_file_range | libc::SYS_splice => (2, self.a[4]),
            _ => (0, self.a[2]),
        };
        let number = self.a[argument] as i32;
        match meta::staged_as(self.stage(), &self.caller, number) {
            Some(staged) => grow::grow(self.stage(), &self.caller, &staged, (number, bytes), replace),
            None => Answer::Go,
        }
    }

    /// Calls about what a file is, besides its bytes.
    fn meta(&self, number: libc::c_long) -> Answer {
        let a = self.a;
        match number {
            libc::SYS_fstatfs => self.as_staged(0, |staged| meta::statfs(&self.caller, staged, a[1])),
            libc::SYS_fchmod => self.as_staged(0, |staged| {
                // SAFETY: the call takes numbers.
                meta::with_real(staged, |real| unsafe { libc::fchmod(real, a[1] as u32).into() })
            }),
            libc::SYS_fchown => self.as_staged(0, |staged| {
                // SAFETY: the call takes numbers.
                meta::with_real(staged, |real| unsafe { libc::fchown(real, a[1] as u32, a[2] as u32).into() })
            }),
            libc::SYS_fchownat if self.path(a[1]).is_some_and(|path| path.is_empty()) => self.as_staged(0, |staged| {
                // SAFETY: the call takes numbers.
                meta::with_real(staged, |real| unsafe { libc::fchown(real, a[2] as u32, a[3] as u32).into() })
            }),
            libc::SYS_fsetxattr => self.as_staged(0, |staged| meta::set_attribute(&self.caller, staged, a)),
            libc::SYS_fgetxattr => self.as_staged(0, |staged| meta::attribute(&self.caller, staged, a)),
            libc::SYS_fremovexattr => self.as_staged(0, |staged| meta::remove_attribute(&self.caller, staged, a[1])),
            libc::SYS_flistxattr => self.as_staged(0, |staged| meta::attributes(&self.caller, staged, a[1], a[2])),
            libc::SYS_listxattr => self.at_staged(libc::AT_FDCWD, a[0], Last::Follow, |staged| {
                meta::attributes(&self.caller, staged, a[1], a[2])
            }),
            libc::SYS_llistxattr => self.at_staged(libc::AT_FDCWD, a[0], Last::Keep, |staged| {
                meta::attributes(&self.caller, staged, a[1], a[2])
            }),
            libc::SYS_readlinkat => self.read_link(a[1], a[2], a[3]),
            libc::SYS_linkat => meta::link(self.stage(), &self.caller, a),
            other => self.old(other),
        }
    }

    fn read_link(&self, path: u64, into: u64, bytes: u64) -> Answer {
        match self.path(path).filter(|_| !self.stage().is_empty()) {
            Some(path) => meta::read_link(self.stage(), &self.caller, &path, into, bytes),
            None => Answer::Go,
        }
    }

    /// Calls that only old architectures have.
    #[cfg(target_arch = "x86_64")]
    fn old(&self, number: libc::c_long) -> Answer {
        let a = self.a;
        let here = libc::AT_FDCWD;
        match number {
            libc::SYS_open => self.open_with(here, a[0], a[1] as i32, a[2] as u32, 0),
            libc::SYS_creat => {
                self.open_with(here, a[0], libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, a[1] as u32, 0)
            }
            libc::SYS_stat => self.at_staged(here, a[0], Last::Follow, |staged| meta::stat(&self.caller, staged, a[1])),
            libc::SYS_lstat => self.at_staged(here, a[0], Last::Keep, |staged| meta::stat(&self.caller, staged, a[1])),
            libc::SYS_rename => self.rename_with((here, a[0]), (here, a[1]), 0),
            libc::SYS_readlink => self.read_link(a[0], a[1], a[2]),
            libc::SYS_utime => self.at_staged(here, a[0], Last::Follow, |staged| {
                meta::set_times(&self.caller, staged, meta::Times::Seconds(a[1]))
            }),
            libc::SYS_utimes => self.at_staged(here, a[0], Last::Follow, |staged| {
                meta::set_times(&self.caller, staged, meta::Times::Microseconds(a[1]))
            }),
            libc::SYS_futimesat => self.at_staged(a[0] as i32, a[1], Last::Follow, |staged| {
                meta::set_times(&self.caller, staged, meta::Times::Microseconds(a[2]))
            }),
            _ => Answer::Go,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn old(&self, _number: libc::c_long) -> Answer {
        Answer::Go
    }
}
