//! Mounting over a directory, and taking the mount away.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use outcrop_error::{Error, ErrorKind, Result};
use outcrop_local::{Meeting, Mounted, mounts_over};
use outcrop_node::Cache;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, openat, statat},
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit},
};

use super::{server::Server, tree::Tree};
use crate::{
    paths::Paths,
    run::{Fsync, Undrained},
};

/// What `mount` shows as the type of the file system.
const TYPE: &str = "fuse.outcrop";

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";

/// For how long to wait for copies of the mount in other mount namespaces.
const OTHERS: Duration = Duration::from_secs(5);

/// The program that mounts for users without the right to.
const HELPER: &str = "fusermount3";

/// What a mount is to do.
pub struct Mounting {
    /// Which files are cached.
    pub paths: Paths,
    /// What holds their bytes.
    pub cache: Arc<dyn Cache>,
    /// What `fsync` of a program means.
    pub fsync: Fsync,
}

/// A directory under which the bytes of files are cached. Unmount it before it is dropped; a drop
/// takes the mount away even if programs use it.
pub struct Mount {
    directory: PathBuf,
    tree: Arc<Tree>,
    session: Option<BackgroundSession>,
}

impl Mount {
    /// Mounts over `directory`, which is one of those of `mounting.paths`. Returns `None` if a
    /// mount of another run is there already: two in one place would hide each other.
    pub fn new(directory: &Path, mounting: &Mounting) -> Result<Option<Self>> {
        // Of several runs that begin at once, one mounts.
        let meeting = Meeting::open(&Meeting::usual_directory())?;
        meeting.alone(|| {
            let is_there = mounts_over(directory, TYPE).iter().any(|mounted| !is_dead(&mounted.point));
            Ok(if is_there { Ok(None) } else { Self::over(directory, mounting).map(Some) })
        })?
    }

    fn over(directory: &Path, mounting: &Mounting) -> Result<Self> {
        let caused = |error: io::Error| {
            let message =
                format_args!("cannot mount over {} (outcrop run --via auto tries other ways)", directory.display());
            Error::caused(ErrorKind::Storage, message, error)
        };
        raise_limit();
        let descriptor = open_directory(directory).map_err(caused)?;
        let flags = mount_flags(&descriptor).map_err(caused)?;
        // Where the daemon finds the directory below.
        let source = format!("outcrop:/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd());
        let Mounting { paths, cache, fsync } = mounting;
        let tree = Tree::new(directory.to_owned(), descriptor, paths.clone(), cache.clone(), *fsync);
        let tree = Arc::new(tree.map_err(caused)?);
        let session = start(directory, flags, &source, &tree).map_err(caused)?;
        let _ = tree.notifier.set(session.notifier());
        tree.watch_crowd();
        Ok(Self { directory: directory.to_owned(), tree, session: Some(session) })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes the mount away, unless programs still use it (`EBUSY`).
    pub fn unmount(&mut self) -> io::Result<()> {
        detach(&self.directory, false)?;
        self.end();
        Ok(())
    }

    /// Takes the mount away from under programs that still use it. Their next call fails with
    /// `ENOTCONN`.
    pub fn abandon(&mut self) -> io::Result<()> {
        detach(&self.directory, true)?;
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        self.tree.crowded.end();
        let Some(session) = self.session.take() else { return };
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || sender.send(session.join()));
        let directory = self.directory.display();
        match ended.recv_timeout(OTHERS) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, %directory, "the mount did not end well"),
            // Whoever made a mount namespace in the meantime has a copy, which ends with this
            // process.
            Err(_) => tracing::warn!(%directory, "another mount namespace still has a copy of the mount"),
        }
    }

    /// Writes everything that is cached to the files, and checks that it is there. `go_on` is told
    /// how many files of how many are done, and says whether to go on. Returns what is not drained.
    pub fn drain(&self, mut go_on: impl FnMut(usize, usize) -> bool) -> Vec<Undrained> {
        let nodes = self.tree.nodes.files();
        let undrained: Vec<_> = nodes.into_iter().filter(|node| node.content().undrained().is_some()).collect();
        let mut left = Vec::new();
        for (done, node) in undrained.iter().enumerate() {
            let outcome = match go_on(done, undrained.len()) {
                true => self.tree.drain_and_check(node),
                false => Err(io::Error::other("the daemon has not drained it yet")),
            };
            if let Err(error) = outcome {
                let path = node.path().unwrap_or_else(|_| self.directory.clone());
                left.push(Undrained { path, error });
            }
        }
        go_on(undrained.len(), undrained.len());
        left
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some() {
            let _ = self.abandon();
        }
    }
}

impl Tree {
    /// Drains a file, and checks that the file has its length.
    fn drain_and_check(&self, node: &super::node::Node) -> io::Result<()> {
        let cached = node.content().cached();
        let Some(cached) = cached else { return Ok(()) };
        cached.drain()?;
        let (expected, real) = (cached.bytes()?, fstat(node.descriptor())?.st_size as u64);
        if real != expected {
            return Err(io::Error::other(format!("it has {real} bytes, and should have {expected}")));
        }
        Ok(())
    }
}

/// Opens a directory as it is below any mount that comes later.
fn open_directory(directory: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// What the file system below does not allow is not allowed above it either.
fn mount_flags(below: &OwnedFd) -> io::Result<MountFlags> {
    let below = fstatvfs(below)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    ];
    Ok(pairs
        .iter()
        .filter(|(of_below, _)| below.contains(*of_below))
        .fold(MountFlags::empty(), |all, (_, one)| all | *one))
}

/// Mounts, and starts to answer.
fn start(directory: &Path, flags: MountFlags, source: &str, tree: &Arc<Tree>) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    // Writers wait here for memory; others shall not wait behind them.
    config.n_threads = Some(2 * thread::available_parallelism().map_or(4, usize::from) + 12);
    config.clone_fd = true;
    let server = Server(tree.clone());
    match mount_as_root(directory, flags, source) {
        Ok(device) => {
            let started = Session::from_fd(server, device, SessionACL::All, config).and_then(Session::spawn);
            if started.is_err() {
                let _ = detach(directory, true);
            }
            started
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            config.mount_options = vec![
                MountOption::FSName(source.into()),
                MountOption::Subtype("outcrop".into()),
                MountOption::DefaultPermissions,
            ];
            Session::new(server, directory, &config)?.spawn()
        }
        Err(error) => Err(error),
    }
}

/// Mounts for all users of the node.
fn mount_as_root(directory: &Path, flags: MountFlags, source: &str) -> io::Result<OwnedFd> {
    let device = openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    mount(source, directory, TYPE, flags, &*CString::new(options)?)?;
    Ok(device)
}

/// Takes the top mount of `directory` away; by force even if it is in use.
fn detach(directory: &Path, by_force: bool) -> io::Result<()> {
    let flags = if by_force { UnmountFlags::DETACH | UnmountFlags::FORCE } else { UnmountFlags::empty() };
    match unmount(directory, flags) {
        Err(rustix::io::Errno::PERM) => {}
        outcome => return Ok(outcome?),
    }
    let mut command = Command::new(HELPER);
    command.args(if by_force { &["-u", "-z", "--"][..] } else { &["-u", "--"][..] }).arg(directory);
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&output.stderr).contains("busy") => Err(rustix::io::Errno::BUSY.into()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Every file that the kernel knows about needs a descriptor here.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most: Option<u64> = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    // Only root may raise the hard limit; everybody may use it up.
    if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Takes away mounts that an `outcrop run` left behind when it was killed, if they cover `path`.
pub fn clear_stale(path: &Path) -> Result<()> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for Mounted { point, .. } in mounts_over(&path, TYPE) {
        if is_dead(&point) {
            detach(&point, true).map_err(|error| {
                let shown = point.display();
                let message = format!(
                    "{shown} is left over from an outcrop run that was killed, and cannot be unmounted; \
                     type: fusermount3 -u -z {shown}   (or, as root: umount -l {shown})"
                );
                Error::caused(ErrorKind::Busy, message, error)
            })?;
        }
    }
    Ok(())
}

fn is_dead(point: &Path) -> bool {
    statat(CWD, point, AtFlags::empty()).is_err_and(|errno| errno == rustix::io::Errno::NOTCONN)
}

/// Whether this machine lets us mount, and if not, why.
pub fn possible() -> std::result::Result<(), String> {
    if let Err(errno) = openat(CWD, DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        return Err(format!("cannot open {DEVICE}: {errno}"));
    }
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN));
    let has_helper = || Command::new(HELPER).arg("-V").output().is_ok_and(|output| output.status.success());
    if may_mount || has_helper() {
        return Ok(());
    }
    Err(format!("this user may not mount, and {HELPER} is not installed"))
}
