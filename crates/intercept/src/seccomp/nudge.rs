//! Has a program make a call that is looked at.
//!
//! Small writes are not looked at, so a program that makes no other calls can fill the memory, and
//! its descriptor can only be replaced while a call of it is stopped. So its next call, whatever it
//! is, is made to be a large write of nothing (ptrace). That is looked at, as any large write, and
//! fails, because its bytes are at no address. Then the program makes its own call.
//!
//! This needs no privileges: the program is a descendant of this process, and of the same user.

use std::{
    io,
    mem::MaybeUninit,
    ptr::null_mut,
    thread,
    time::{Duration, Instant},
};

use super::filter::LARGE;
use crate::stage::checked;

/// How long to wait for the next call of a program. The write takes as long as draining the file.
const PATIENCE: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(24 * 3600);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// What `PTRACE_GET_SYSCALL_INFO` says of a call that has not begun, and of one that has ended.
const BEGINS: u8 = 1;
const ENDED: u8 = 2;

/// Calls of programs of 32 bits have other numbers.
const ARCHITECTURE: u32 = 0xc000_003e;

/// Has the only threads of these processes write to a descriptor each, as described above. All of
/// them are stopped first: one may fill the memory while the file of another leaves it.
pub(crate) fn nudge(users: impl Iterator<Item = (u32, i32)>) -> io::Result<()> {
    let seize = |(process, descriptor)| Some((Traced::seize(process).ok()?, descriptor));
    let stopped: Vec<_> = users.filter_map(seize).collect();
    stopped.into_iter().try_for_each(|(traced, descriptor)| traced.write_nothing(descriptor))
}

/// A process that this thread traces, until this is dropped.
struct Traced(libc::pid_t);

impl Traced {
    fn seize(process: u32) -> io::Result<Self> {
        let process = process as libc::pid_t;
        // SAFETY: the calls take numbers.
        unsafe {
            checked(libc::ptrace(libc::PTRACE_SEIZE, process, 0, libc::PTRACE_O_TRACESYSGOOD))?;
            let traced = Self(process);
            checked(libc::ptrace(libc::PTRACE_INTERRUPT, process, 0, 0))?;
            Ok(traced)
        }
    }

    /// Has it make a large write before its next call, unless it makes no call for a while.
    fn write_nothing(&self, descriptor: i32) -> io::Result<()> {
        /// The instruction that makes a call.
        const CALL_BYTES: u64 = 2;
        let Some(own) = self.stop_at(BEGINS, PATIENCE)? else { return Ok(()) };
        let write = libc::user_regs_struct {
            orig_rax: libc::SYS_write as u64,
            rdi: descriptor as u64,
            rsi: 0,
            rdx: u64::from(LARGE),
            ..own
        };
        self.set(&write)?;
        self.go_on(0)?;
        if self.stop_at(ENDED, LONG)?.is_some() {
            // It makes its call again, from before it.
            self.set(&libc::user_regs_struct { rip: own.rip - CALL_BYTES, rax: own.orig_rax, ..own })?;
        }
        Ok(())
    }

    /// Lets it go on until a call begins, or has ended. Returns its registers then. `None` if that
    /// takes too long.
    fn stop_at(&self, wanted: u8, patience: Duration) -> io::Result<Option<libc::user_regs_struct>> {
        let until = Instant::now() + patience;
        loop {
            let Some(signal) = self.stopped(until)? else { return Ok(None) };
            let is_call = signal == libc::SIGTRAP | 0x80;
            let (stage, architecture) = if is_call { self.call()? } else { (0, ARCHITECTURE) };
            if architecture != ARCHITECTURE {
                return Ok(None);
            }
            if stage == wanted {
                let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
                // SAFETY: the kernel fills the registers, for which any bits are valid.
                unsafe {
                    checked(libc::ptrace(libc::PTRACE_GETREGS, self.0, 0, registers.as_mut_ptr()))?;
                    return Ok(Some(registers.assume_init()));
                }
            }
            let is_event = signal >> 8 != 0;
            let is_interrupted = is_event && signal & 0xff == libc::SIGTRAP;
            if is_event && !is_interrupted {
                // It is stopped as a job of a shell.
                return Ok(None);
            }
            let passed_on = if is_call || is_interrupted { 0 } else { signal };
            self.go_on(passed_on)?;
        }
    }

    fn go_on(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the call takes numbers.
        checked(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.0, 0, i64::from(signal)) }).map(drop)
    }

    /// Whether the call at which it is stopped begins or has ended, and its architecture.
    fn call(&self) -> io::Result<(u8, u32)> {
        const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
        let mut info = [0_u32; 32];
        let at = info.as_mut_ptr().cast::<libc::c_void>();
        // SAFETY: the kernel fills at most as many bytes as it is told.
        checked(unsafe { libc::ptrace(GET_SYSCALL_INFO, self.0, size_of_val(&info), at) })?;
        Ok((info[0].to_ne_bytes()[0], info[1]))
    }

    fn set(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
        // SAFETY: the kernel reads the registers.
        checked(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.0, 0, std::ptr::from_ref(registers)) }).map(drop)
    }
}

impl Traced {
    /// The signal or event by which it is stopped. `None` if it is not, until then, or has ended.
    fn stopped(&self, until: Instant) -> io::Result<Option<i32>> {
        loop {
            if let Some(status) = self.news(libc::WSTOPPED)? {
                return Ok(Some(status));
            }
            if Instant::now() > until || self.news(libc::WEXITED | libc::WNOWAIT)?.is_some() {
                return Ok(None);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// What the system has to tell of it, if anything.
    fn news(&self, options: i32) -> io::Result<Option<i32>> {
        let mut told = MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = options | libc::WNOHANG | libc::__WALL;
        // SAFETY: the kernel fills the structure, of which zeros are a valid value, for a child.
        let (process, status) = unsafe {
            checked(libc::waitid(libc::P_PID, self.0 as libc::id_t, told.as_mut_ptr(), options))?;
            let told = told.assume_init();
            (told.si_pid(), told.si_status())
        };
        Ok((process != 0).then_some(status))
    }

    /// If it has ended, this process hears of it first. Whose child it is has to hear of it too.
    fn pass_on_its_end(&self) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1)?.parse::<u32>().ok());
        if parent.is_some_and(|parent| parent != std::process::id()) {
            // SAFETY: the call takes numbers, and fills nothing.
            unsafe {
                libc::waitid(
                    libc::P_PID,
                    self.0 as libc::id_t,
                    null_mut(),
                    libc::WEXITED | libc::WNOHANG | libc::__WALL,
                )
            };
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // SAFETY: the calls take numbers.
        let detach = || unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) == 0 };
        if detach() {
            return;
        }
        // It runs, and can only be let go of while it is stopped. Until then it must not be left:
        // nobody else would let it go on after that.
        // SAFETY: the call takes numbers.
        unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.0, 0, 0) };
        while let Ok(Some(_)) = self.stopped(Instant::now() + LONG) {
            if detach() {
                return;
            }
        }
        self.pass_on_its_end();
    }
}
