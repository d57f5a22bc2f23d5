//! Packets with descriptors over a Unix socket.

use std::{
    cell::RefCell,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use outcrop_format::NODE_MESSAGE_BYTES_MAX;
use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg,
        sendmsg, socket_with,
    },
};

/// How many descriptors one packet may have.
const DESCRIPTORS_MAX: usize = 2;
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;

/// A packet.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// Connects to the socket `path`.
pub(crate) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::empty())?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| connect(&socket, &address))?;
    Ok(socket)
}

/// Listens on the new socket `path`.
pub(crate) fn listen_on(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Sends a packet.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Receives a packet; `None` if the other side is gone.
pub(crate) fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<Packet>> {
    // Large enough for every message, and kept: most messages are short.
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; NODE_MESSAGE_BYTES_MAX + 1]);
    }
    BUFFER.with_borrow_mut(|buffer| receive_in(socket, flags, buffer))
}

fn receive_in(socket: impl AsFd, flags: RecvFlags, bytes: &mut [u8]) -> io::Result<Option<Packet>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut once = || retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags));
    // If the other side has ended the connection before it had read everything, what it has said
    // comes after that error.
    let received = match once() {
        Err(Errno::CONNRESET) => once(),
        received => received,
    };
    let received = match received {
        Err(Errno::CONNRESET) => return Ok(None),
        received => received?,
    };
    let (count, flags) = (received.bytes, received.flags);
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    if count == 0 {
        return Ok(None);
    }
    if flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::from(Errno::MSGSIZE));
    }
    Ok(Some(Packet { bytes: bytes[..count].to_vec(), descriptors }))
}
