//! Asks the process of `outcrop run` what to do with a call.

use std::{
    ffi::{CStr, c_char, c_int, c_long},
    mem::{MaybeUninit, size_of},
};

use crate::protocol::{DESCRIPTOR, FAILED, GO, Reply, Request, SOCKET, VALUE, VERSION};

/// Makes a system call, unless the other process answers it. Returns what the C library would: -1
/// with `errno` if it failed.
pub(crate) fn call(number: c_long, arguments: [u64; 6]) -> c_long {
    let before = errno();
    match ask(number, arguments) {
        Some(Answer::Value(value)) => {
            set_errno(before);
            value
        }
        Some(Answer::Failed(error)) => {
            set_errno(error);
            -1
        }
        None => {
            set_errno(before);
            let [a, b, c, d, e, f] = arguments;
            // SAFETY: the call that the program was about to make.
            unsafe { libc::syscall(number, a, b, c, d, e, f) }
        }
    }
}

enum Answer {
    Value(c_long),
    Failed(c_int),
}

fn errno() -> c_int {
    // SAFETY: the place belongs to this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// `None` if the call shall be made as it is.
fn ask(number: c_long, arguments: [u64; 6]) -> Option<Answer> {
    let socket = connect()?;
    let reply = exchange(socket, number, arguments);
    // SAFETY: it was opened here.
    unsafe { libc::syscall(libc::SYS_close, socket) };
    let (reply, descriptor) = reply?;
    match reply.kind {
        VALUE => Some(Answer::Value(reply.value as c_long)),
        FAILED => Some(Answer::Failed(reply.value as c_int)),
        DESCRIPTOR => Some(Answer::Value(lowest(descriptor?, reply.value != 0))),
        GO => None,
        _ => None,
    }
}

/// The same file under the lowest free number, as programs expect it.
fn lowest(descriptor: c_int, closes_at_exec: bool) -> c_long {
    let how = if closes_at_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: the calls take numbers; the descriptor was received here.
    unsafe {
        let copy = libc::syscall(libc::SYS_fcntl, descriptor, how, 0);
        let error = errno();
        libc::syscall(libc::SYS_close, descriptor);
        set_errno(error);
        copy
    }
}

/// A connection, if this program was started by `outcrop run`.
fn connect() -> Option<c_int> {
    // SAFETY: the name ends with a zero byte; the value is copied before anybody can change it, as
    // far as a program that changes its environment in another thread allows.
    let name = unsafe {
        let name: *const c_char = libc::getenv(SOCKET.as_ptr());
        if name.is_null() {
            return None;
        }
        CStr::from_ptr(name).to_bytes()
    };
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.is_empty() || name.len() >= address.sun_path.len() {
        return None;
    }
    // The first byte stays zero: this name has no file.
    for (to, &from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = from as c_char;
    }
    let bytes = size_of::<libc::sa_family_t>() + 1 + name.len();
    // SAFETY: the kernel reads the address, of which these bytes are filled.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let socket = libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) as c_int;
        if socket < 0 {
            return None;
        }
        if libc::syscall(libc::SYS_connect, socket, &raw const address, bytes) != 0 {
            libc::syscall(libc::SYS_close, socket);
            return None;
        }
        Some(socket)
    }
}

/// Room for one descriptor in a message.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a request, and receives the reply with the descriptor that comes along, if any.
fn exchange(socket: c_int, number: c_long, arguments: [u64; 6]) -> Option<(Reply, Option<c_int>)> {
    // SAFETY: it only asks for a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let request = Request { version: VERSION, thread, number: number as u64, arguments };
    let mut reply = Reply::default();
    let mut control = Control([0; 64]);
    let mut vector = libc::iovec { iov_base: (&raw mut reply).cast(), iov_len: size_of::<Reply>() };
    // SAFETY: zeros are a valid message; the kernel reads the request and fills the reply, each of
    // which has no padding, and of which any bytes are valid.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>() as _;
        let bytes = size_of::<Request>();
        let flags = libc::MSG_NOSIGNAL;
        if libc::syscall(libc::SYS_sendto, socket, &raw const request, bytes, flags, 0, 0) != bytes as c_long {
            return None;
        }
        let received = loop {
            let received = libc::syscall(libc::SYS_recvmsg, socket, &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if received >= 0 || errno() != libc::EINTR {
                break received;
            }
        };
        if received != size_of::<Reply>() as c_long {
            return None;
        }
        if reply.kind == DESCRIPTOR {
            // Until the other side has closed the connection, and before that its copy of the file:
            // a program expects that nobody has a file open that it has closed.
            let mut nothing = 0_u8;
            while libc::syscall(libc::SYS_recvfrom, socket, &raw mut nothing, 1, 0, 0, 0) < 0 && errno() == libc::EINTR
            {
            }
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let has_one = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
        Some((reply, has_one.then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())))
    }
}
