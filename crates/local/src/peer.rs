//! Who is at the other end of a Unix socket.

use std::{
    io,
    num::NonZeroU32,
    os::fd::{AsFd, AsRawFd},
};

/// The process that has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its number. `None` if it cannot be seen from here: it is in another namespace of processes.
    pub process: Option<NonZeroU32>,
    /// Its effective user.
    pub user: u32,
}

impl Peer {
    /// Asks the system, which knows from the time of the connection.
    ///
    /// # Errors
    /// If it is not a Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: the system fills at most these bytes, of which any are valid.
        let result = unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut bytes)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { process: NonZeroU32::new(found.pid as u32), user: found.uid })
    }
}
