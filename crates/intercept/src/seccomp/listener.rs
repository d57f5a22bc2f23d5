//! The descriptor through which the kernel tells of stopped calls, and takes the answers.

use std::{
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use libc::{seccomp_notif, seccomp_notif_addfd, seccomp_notif_resp};

use super::filter;
use crate::{
    calls::{Answer, Question},
    crew::Source,
    stage::checked,
};

/// A call of a program that waits for an answer.
pub(crate) struct Call {
    /// What the answer has to name.
    id: u64,
    question: Question,
}

/// Where calls come from.
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        // Answers come soon: the caller may go on on the same core. Kernels before 6.6 do not know
        // it.
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: the call takes a number.
        unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
        Self(descriptor)
    }

    /// Puts a file into the program, and returns its number there. Nothing but its end can
    /// interrupt the program before it is answered, so the file is not left there for nothing.
    fn give(&self, call: &Call, file: OwnedFd, closes_at_exec: bool) -> io::Result<i64> {
        let mut given = seccomp_notif_addfd {
            id: call.id,
            flags: 0,
            srcfd: file.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if closes_at_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads the structure.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut given) })
    }
}

impl Source for Listener {
    type Call = Call;

    fn receive(&self) -> io::Result<Option<Call>> {
        let mut told = MaybeUninit::<seccomp_notif>::zeroed();
        // SAFETY: the kernel demands zeros, and fills them with what is valid for any value.
        let told = unsafe {
            match checked(libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, told.as_mut_ptr())) {
                Ok(_) => told.assume_init(),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let data = told.data;
        let question = Question { thread: told.pid, number: data.nr.into(), arguments: data.args };
        Ok(Some(Call { id: told.id, question }))
    }

    fn question(&self, call: &Call) -> Option<Question> {
        // If it waits no more, its thread number may belong to another thread.
        // SAFETY: the kernel reads the number.
        let is_waiting =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id) == 0 };
        is_waiting.then_some(call.question)
    }

    /// If the call waits no more, there is nobody who would miss the answer.
    fn answer(&self, call: &Call, answer: Answer) {
        let (value, error, flags) = match answer {
            Answer::Go => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Value(value) => (value, 0, 0),
            Answer::Failed(errno) => (0, -errno, 0),
            // The copy here is closed before the program goes on: it may close its own at once, and
            // expect that nobody has the file open then.
            Answer::Descriptor { file, closes_at_exec } => match self.give(call, file, closes_at_exec) {
                Ok(number) => (number, 0, 0),
                Err(error) => (0, -error.raw_os_error().unwrap_or(libc::EIO), 0),
            },
        };
        let mut response = seccomp_notif_resp { id: call.id, val: value, error, flags };
        // SAFETY: the kernel reads the response.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response) };
    }

    fn replace(&self, call: &Call, file: &OwnedFd, number: RawFd, closes_at_exec: bool) -> io::Result<()> {
        let mut given = seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: number as u32,
            newfd_flags: if closes_at_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads the structure.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut given) })?;
        Ok(())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Installs the filter for the calling thread and all that comes of it, and sends the descriptor of
/// the listener through `socket`. For a child between fork and exec: it allocates nothing.
pub(crate) fn install(program: &[libc::sock_filter], socket: RawFd) -> io::Result<()> {
    let listener = listen(program)?;
    send_descriptor(socket, listener)?;
    // SAFETY: nobody else knows it.
    unsafe { libc::close(listener) };
    Ok(())
}

fn listen(program: &[libc::sock_filter]) -> io::Result<RawFd> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // After the call was received, only a fatal signal may interrupt it: it has happened then.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel reads the filter, which is valid until the call returns.
    unsafe {
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        let listener = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter);
        Ok(checked(listener)? as RawFd)
    }
}

/// Whether the kernel, and whatever this process runs in, allows it.
pub(crate) fn is_supported() -> bool {
    let program = filter::program();
    // SAFETY: the child calls nothing but the system, and ends at once.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(listen(&program).is_err())),
            child => {
                let mut status = -1;
                child > 0 && libc::waitpid(child, &raw mut status, 0) == child && status == 0
            }
        }
    }
}

/// Room for one descriptor in a message.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn message(byte: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: zeros are a valid message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: it only calculates.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    message
}

/// Sends one descriptor.
fn send_descriptor(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    send_with_descriptor(socket, &[0], Some(descriptor))
}

/// Sends a message, and maybe a descriptor with it.
pub(crate) fn send_with_descriptor(socket: RawFd, bytes: &[u8], descriptor: Option<RawFd>) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut vector, &mut control);
    // SAFETY: the message has room for one header with one descriptor, and lives until it is sent.
    unsafe {
        match descriptor {
            Some(descriptor) => {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
                libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
            }
            None => message.msg_controllen = 0,
        }
        checked(libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) as i64)?;
    }
    Ok(())
}

/// Receives one descriptor. `None` if the other side has closed without sending any.
pub(crate) fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let (mut byte, mut control) = (0_u8, Control([0; 64]));
    let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut message = message(&mut vector, &mut control);
    // SAFETY: the kernel fills the message, which has room for one descriptor; what it puts there
    // is new and belongs to nobody else.
    unsafe {
        let count = checked(libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if count == 0 || header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Ok(None);
        }
        Ok(Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())))
    }
}
