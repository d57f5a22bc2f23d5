//! Interception by a library that a program loads before the C library (`LD_PRELOAD`): the last
//! resort, where neither a mount nor a filter is allowed.
//!
//! The library asks this process what to do with each call that names a path, through a socket, and
//! gets the same answers as the kernel gets for a filter.

mod protocol;

use std::{
    env,
    ffi::OsStr,
    io,
    mem::{MaybeUninit, size_of},
    num::NonZeroU32,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
};

use outcrop_error::{Error, ErrorKind, Result};
use outcrop_local::Peer;

use self::protocol::{DESCRIPTOR, FAILED, GO, Reply, Request, SOCKET, VALUE, VERSION};
use crate::{
    calls::{Answer, Calls, Question},
    crew::{Crew, Source, Supervisor},
    seccomp::listener::send_with_descriptor,
    stage::{Stage, checked},
};

/// The file name of the library.
const NAME: &str = "liboutcrop_preload.so";

/// Where the library is, if it is not beside this program.
const VARIABLE: &str = "OUTCROP_PRELOAD";

/// Where the library is: where `OUTCROP_PRELOAD` says, beside this program, one directory up, or in
/// `../lib`.
pub fn library() -> Option<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return Some(path.into()).filter(|path: &PathBuf| path.is_file());
    }
    let own = env::current_exe().ok()?;
    let directory = own.parent()?;
    let beside = |place: &str| directory.join(place).join(NAME);
    ["", "..", "../lib"].into_iter().map(beside).find(|path: &PathBuf| path.is_file())
}

/// What to say if it is not there.
pub(crate) fn missing() -> String {
    format!("{NAME} is not beside this program; name it in the environment variable {VARIABLE}")
}

/// Makes the program load the library.
pub(crate) fn prepare(command: &mut Command) -> Result<()> {
    let Some(library) = library() else {
        return Err(Error::new(ErrorKind::Usage, missing()));
    };
    let mut libraries = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD") {
        libraries.push(":");
        libraries.push(others);
    }
    command.env("LD_PRELOAD", libraries);
    Ok(())
}

/// Starts a program that loads the library.
pub(crate) fn spawn(command: &mut Command, stage: Stage) -> io::Result<(Child, Supervisor)> {
    let (socket, name) = Socket::bind()?;
    let calls = Calls::for_strangers(Arc::clone(stage.shared()));
    let supervisor = Supervisor::start(stage, move |over| Crew::answer_all(socket, calls, over))?;
    match command.env(OsStr::from_bytes(SOCKET.to_bytes()), name).spawn() {
        Ok(child) => Ok((child, supervisor)),
        Err(error) => {
            supervisor.end()?;
            Err(error)
        }
    }
}

/// The socket that the library connects to.
struct Socket(OwnedFd);

impl Socket {
    /// A socket with a name that has no file, and that name.
    fn bind() -> io::Result<(Self, String)> {
        let mut random = [0; 16];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
        let name = format!("outcrop-{:032x}", u128::from_ne_bytes(random));
        // SAFETY: zeros are a valid address.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let bytes = size_of::<libc::sa_family_t>() + 1 + name.len();
        // SAFETY: the kernel reads the address, and the descriptor is new.
        let socket = unsafe {
            let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket = OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_UNIX, kind, 0))? as i32);
            checked(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes as u32))?;
            checked(libc::listen(socket.as_raw_fd(), 1024))?;
            socket
        };
        Ok((Self(socket), name))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Source for Socket {
    type Call = OwnedFd;

    fn receive(&self) -> io::Result<Option<OwnedFd>> {
        // SAFETY: no address is asked for, and what is returned is new.
        let accepted = unsafe {
            libc::accept4(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        match checked(accepted) {
            // SAFETY: as above.
            Ok(accepted) => Ok(Some(unsafe { OwnedFd::from_raw_fd(accepted as i32) })),
            // It went away, or there is no descriptor left for it just now.
            Err(error) if error.raw_os_error() != Some(libc::EBADF) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn question(&self, call: &OwnedFd) -> Option<Question> {
        let mut request = Request::default();
        // SAFETY: the kernel fills the request, of which any bytes are valid.
        let count = unsafe { libc::recv(call.as_raw_fd(), (&raw mut request).cast(), size_of::<Request>(), 0) };
        let is_right = count == size_of::<Request>() as isize
            && request.version == VERSION
            && peer(call)
                .is_some_and(|process| Path::new(&format!("/proc/{process}/task/{}", request.thread)).exists());
        is_right.then_some(Question {
            thread: request.thread,
            number: request.number as libc::c_long,
            arguments: request.arguments,
        })
    }

    fn answer(&self, call: &OwnedFd, answer: Answer) {
        let (reply, file) = match answer {
            Answer::Go => (Reply { kind: GO, value: 0 }, None),
            Answer::Value(value) => (Reply { kind: VALUE, value }, None),
            Answer::Failed(error) => (Reply { kind: FAILED, value: error.into() }, None),
            Answer::Descriptor { file, closes_at_exec } => {
                (Reply { kind: DESCRIPTOR, value: closes_at_exec.into() }, Some(file))
            }
        };
        // SAFETY: a reply has no padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const reply).cast(), size_of::<Reply>()) };
        // Whoever does not wait for it any more does not miss it. The file is closed before the
        // connection, for which the library waits.
        let _ = send_with_descriptor(call.as_raw_fd(), bytes, file.as_ref().map(AsRawFd::as_raw_fd));
    }

    fn replace(&self, _: &OwnedFd, _: &OwnedFd, _: i32, _: bool) -> io::Result<()> {
        // The library does not ask about writes.
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The process on the other side, if it is of this user.
fn peer(call: &OwnedFd) -> Option<NonZeroU32> {
    let (peer, own) = (Peer::of(call).ok()?, rustix::process::geteuid());
    peer.process.filter(|_| own.is_root() || own.as_raw() == peer.user)
}
