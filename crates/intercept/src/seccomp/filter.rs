//! Which system calls the kernel stops at, as a program for its filter (BPF).
//!
//! The kernel knows beforehand which calls are always allowed, and does not run the filter for
//! them. So calls that are not in the list cost nothing.

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF, sock_filter,
};

/// Writes of fewer bytes are not looked at. They cost less than looking.
pub(crate) const LARGE: u32 = 64 << 10;

/// New namespaces change what a path means.
const NEW_NAMES: u32 = (libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as u32;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// When a call is stopped at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// If this argument has one of these bits.
    Has(u32, u32),
    /// If this argument is not zero.
    Given(u32),
    /// If this argument is at least as large.
    AtLeast(u32, u32),
    /// Never: the call fails with this error.
    Refused(i32),
}

/// The calls. What depends on arguments comes first, because the kernel runs the filter for it.
const RULES: &[(libc::c_long, When)] = &[
    (libc::SYS_write, When::AtLeast(2, LARGE)),
    (libc::SYS_pwrite64, When::AtLeast(2, LARGE)),
    (libc::SYS_clone, When::Has(0, NEW_NAMES)),
    (libc::SYS_msync, When::Has(2, libc::MS_SYNC as u32)),
    (libc::SYS_utimensat, When::Given(1)),
    (libc::SYS_fchownat, When::Has(4, libc::AT_EMPTY_PATH as u32)),
    (libc::SYS_linkat, When::Given(4)),
    (libc::SYS_fallocate, When::AtLeast(3, LARGE)),
    (libc::SYS_sendfile, When::AtLeast(3, LARGE)),
    (libc::SYS_copy_file_range, When::AtLeast(4, LARGE)),
    (libc::SYS_splice, When::AtLeast(4, LARGE)),
    (libc::SYS_openat, When::Always),
    (libc::SYS_openat2, When::Always),
    (libc::SYS_newfstatat, When::Always),
    (libc::SYS_statx, When::Always),
    (libc::SYS_fstat, When::Always),
    (libc::SYS_renameat, When::Always),
    (libc::SYS_renameat2, When::Always),
    (libc::SYS_truncate, When::Always),
    (libc::SYS_execve, When::Always),
    (libc::SYS_execveat, When::Always),
    (libc::SYS_fsync, When::Always),
    (libc::SYS_fdatasync, When::Always),
    (libc::SYS_sync, When::Always),
    (libc::SYS_syncfs, When::Always),
    (libc::SYS_fchmod, When::Always),
    (libc::SYS_fchown, When::Always),
    (libc::SYS_fsetxattr, When::Always),
    (libc::SYS_fgetxattr, When::Always),
    (libc::SYS_flistxattr, When::Always),
    (libc::SYS_fremovexattr, When::Always),
    (libc::SYS_listxattr, When::Always),
    (libc::SYS_llistxattr, When::Always),
    (libc::SYS_fstatfs, When::Always),
    (libc::SYS_readlinkat, When::Always),
    (libc::SYS_umask, When::Always),
    (libc::SYS_setuid, When::Always),
    (libc::SYS_setgid, When::Always),
    (libc::SYS_setreuid, When::Always),
    (libc::SYS_setregid, When::Always),
    (libc::SYS_setresuid, When::Always),
    (libc::SYS_setresgid, When::Always),
    (libc::SYS_setfsuid, When::Always),
    (libc::SYS_setfsgid, When::Always),
    (libc::SYS_setgroups, When::Always),
    (libc::SYS_chroot, When::Always),
    (libc::SYS_pivot_root, When::Always),
    (libc::SYS_unshare, When::Always),
    (libc::SYS_setns, When::Always),
    // Its flags are in memory, where the filter cannot see them. Libraries use `clone` instead.
    (libc::SYS_clone3, When::Refused(libc::ENOSYS)),
    // What a ring does goes past every filter.
    (libc::SYS_io_uring_setup, When::Refused(libc::ENOSYS)),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utime, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utimes, When::Always),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_futimesat, When::Given(1)),
];

/// Where the number, the architecture and the arguments of a call are.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// The program for the kernel.
pub(crate) fn program() -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCH),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        // Calls of another architecture are not for us. A lease keeps them right.
        end(SECCOMP_RET_ALLOW),
        load(NUMBER),
    ];
    for &(call, when) in RULES {
        let block = block(when);
        program.push(jump(BPF_JEQ, call as u32, 0, block.len() as u8));
        program.extend(block);
    }
    program.push(end(SECCOMP_RET_ALLOW));
    program
}

/// What is done with a call of the right number.
fn block(when: When) -> Vec<sock_filter> {
    let (notify, allow) = (end(SECCOMP_RET_USER_NOTIF), end(SECCOMP_RET_ALLOW));
    match when {
        When::Always => vec![notify],
        When::Refused(error) => vec![end(SECCOMP_RET_ERRNO | error as u32)],
        When::Has(argument, bits) => vec![load(low(argument)), jump(BPF_JSET, bits, 0, 1), notify, allow],
        When::Given(argument) => vec![
            load(low(argument)),
            jump(BPF_JEQ, 0, 0, 2),
            load(high(argument)),
            jump(BPF_JEQ, 0, 1, 0),
            notify,
            allow,
        ],
        When::AtLeast(argument, least) => vec![
            load(high(argument)),
            jump(BPF_JGT, 0, 2, 0),
            load(low(argument)),
            jump(BPF_JGE, least, 0, 1),
            notify,
            allow,
        ],
    }
}

fn load(offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

fn jump(test: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: if_true, jf: if_false, k: value }
}

fn end(with: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: with }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do with a call.
    fn run(architecture: u32, call: libc::c_long, arguments: [u64; 6]) -> u32 {
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&(call as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&architecture.to_ne_bytes());
        for (nth, argument) in arguments.iter().enumerate() {
            bytes[16 + 8 * nth..24 + 8 * nth].copy_from_slice(&argument.to_ne_bytes());
        }
        let program = program();
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let code = u32::from(code);
            if code == BPF_RET | BPF_K {
                return k;
            } else if code == BPF_LD | BPF_W | BPF_ABS {
                let word = &bytes[k as usize..k as usize + 4];
                value = u32::from_ne_bytes(word.try_into().unwrap());
                continue;
            }
            let is_so = match code & !(BPF_JMP | BPF_K) {
                BPF_JEQ => value == k,
                BPF_JGT => value > k,
                BPF_JGE => value >= k,
                BPF_JSET => value & k != 0,
                other => panic!("{other}"),
            };
            at += usize::from(if is_so { jt } else { jf });
        }
    }

    #[test]
    fn the_filter_stops_at_what_it_should() {
        let of = |call, arguments| run(ARCHITECTURE, call, arguments);
        let stop = SECCOMP_RET_USER_NOTIF;
        let refused = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        let large = u64::from(LARGE);
        for (call, arguments, expected) in [
            (libc::SYS_openat, [0; 6], stop),
            (libc::SYS_read, [0, 0, 1 << 40, 0, 0, 0], SECCOMP_RET_ALLOW),
            (libc::SYS_close, [0; 6], SECCOMP_RET_ALLOW),
            (libc::SYS_write, [1, 0, large - 1, 0, 0, 0], SECCOMP_RET_ALLOW),
            (libc::SYS_write, [1, 0, large, 0, 0, 0], stop),
            (libc::SYS_write, [1, 0, 1 << 32, 0, 0, 0], stop),
            (libc::SYS_utimensat, [3, 0, 77, 0, 0, 0], SECCOMP_RET_ALLOW),
            (libc::SYS_utimensat, [3, 1, 0, 0, 0, 0], stop),
            (libc::SYS_utimensat, [3, 1 << 32, 0, 0, 0, 0], stop),
            (libc::SYS_msync, [0, 0, libc::MS_ASYNC as u64, 0, 0, 0], SECCOMP_RET_ALLOW),
            (libc::SYS_msync, [0, 0, libc::MS_SYNC as u64, 0, 0, 0], stop),
            (libc::SYS_clone, [libc::CLONE_VM as u64, 0, 0, 0, 0, 0], SECCOMP_RET_ALLOW),
            (libc::SYS_clone, [libc::CLONE_NEWNS as u64, 0, 0, 0, 0, 0], stop),
            (libc::SYS_clone3, [0; 6], refused),
            (libc::SYS_io_uring_setup, [0; 6], refused),
        ] {
            assert_eq!(of(call, arguments), expected, "{call} {arguments:?}");
        }
        assert_eq!(run(0x4000_0003, libc::SYS_openat, [0; 6]), SECCOMP_RET_ALLOW);
    }

    #[test]
    fn each_call_has_one_rule() {
        let mut calls: Vec<_> = RULES.iter().map(|(call, _)| call).collect();
        calls.sort();
        calls.dedup();
        assert_eq!(calls.len(), RULES.len());
    }
}
