//! The client: files whose bytes go to the daemon's memory first.

use std::{
    fs::File,
    io,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use outcrop_format::{NODE_FILE_BYTES_MAX, NodeFailure, NodeReply, NodeReplyKind, NodeRequest};
use rustix::io::Errno;

use crate::{
    cached::{Cache, Cached},
    line::{Line, Sessions, Trouble},
    pending::Writers,
    start::{Connect, is_served, random, wait_for_end},
    status::Status,
    writing::Writing,
};

/// How many connections a process has at most: as many threads can write at once.
const LINES_MAX: usize = 16;

/// A connection of this process to the daemon of its user. Cheap to clone; all threads can use it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) connect: Connect,
    pub(crate) group: u64,
    pub(crate) sessions: Sessions,
    lines: Mutex<Lines>,
    /// Signalled when a line is free.
    freed: Condvar,
    writers: Writers,
}

#[derive(Default)]
struct Lines {
    free: Vec<Line>,
    count: usize,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` with a connection.
    fn with_line<T>(&self, work: impl FnOnce(&mut Line) -> io::Result<T>) -> io::Result<T> {
        let mut lines = self.lock();
        let free = loop {
            if let Some(line) = lines.free.pop() {
                break Some(line);
            }
            if lines.count < LINES_MAX {
                lines.count += 1;
                break None;
            }
            lines = self.freed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        };
        drop(lines);
        let made = free.map_or_else(|| Line::new(&self.connect, self.group, &self.sessions), Ok);
        let (line, result) = match made {
            Ok(mut line) => {
                let result = work(&mut line);
                (Some(line), result)
            }
            Err(error) => (None, Err(error)),
        };
        let mut lines = self.lock();
        match line {
            Some(line) => lines.free.push(line),
            None => lines.count -= 1,
        }
        self.freed.notify_one();
        result
    }

    /// Calls until there is an answer, from this daemon or the next.
    fn call(
        &self,
        line: &mut Line,
        mut request: impl FnMut(&mut Line) -> Result<NodeRequest, Trouble>,
    ) -> io::Result<NodeReply> {
        loop {
            match request(line).and_then(|request| line.call(&request, None)) {
                Ok(reply) => return Ok(reply),
                Err(Trouble::Failed(error)) => return Err(error),
                Err(Trouble::Lost) => drop(line.connect_again(&self.connect, self.group, &self.sessions)?),
            }
        }
    }
}

impl Client {
    /// Connects to the daemon of this user, which is started if there is none.
    ///
    /// # Errors
    /// If it cannot be started or refuses.
    pub fn connect(connect: &Connect) -> io::Result<Self> {
        let inner = Inner {
            connect: connect.clone(),
            group: random(),
            sessions: Mutex::default(),
            lines: Mutex::default(),
            freed: Condvar::new(),
            writers: Writers::default(),
        };
        inner.with_line(|_| Ok(()))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether a daemon serves this directory, or the usual one.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn is_served(directory: Option<&Path>) -> io::Result<bool> {
        is_served(directory)
    }

    /// Opens a file that is open for reading and writing. `path` is for messages and recovery.
    ///
    /// # Errors
    /// If it is not a regular file, or the daemon cannot use it.
    pub fn open(&self, file: File, path: &Path) -> io::Result<ClientFile> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let opened = Mutex::new(None);
        let (seen, inner) = (AtomicU64::new(0), Arc::clone(&self.inner));
        let file = ClientFile { inner, file, path, opened, seen, failures: AtomicU64::new(UNKNOWN) };
        self.inner.with_line(|line| {
            loop {
                match file.id(line) {
                    Ok(_) => return Ok(()),
                    Err(Trouble::Failed(error)) => return Err(error),
                    Err(Trouble::Lost) => {
                        line.connect_again(&self.inner.connect, self.inner.group, &self.inner.sessions)?;
                    }
                }
            }
        })?;
        Ok(file)
    }

    /// Drains all files of all clients.
    ///
    /// # Errors
    /// The first file that cannot be drained.
    pub fn drain_all(&self) -> io::Result<()> {
        self.simple(&NodeRequest::DrainAll)
    }

    /// What goes on.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn status(&self) -> io::Result<Status> {
        serde_json::from_str(&self.status_json()?).map_err(io::Error::other)
    }

    /// The same as JSON.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn status_json(&self) -> io::Result<String> {
        let (_, descriptors) = self.inner.with_line(|line| {
            loop {
                match line.call_for(&NodeRequest::Status, None) {
                    Ok(answer) => return Ok(answer),
                    Err(Trouble::Failed(error)) => return Err(error),
                    Err(Trouble::Lost) => {
                        line.connect_again(&self.inner.connect, self.inner.group, &self.inner.sessions)?;
                    }
                }
            }
        })?;
        let missing = || io::Error::other("the node daemon has sent no status");
        let file = File::from(descriptors.into_iter().next().ok_or_else(missing)?);
        let mut text = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut text, 0)?;
        String::from_utf8(text).map_err(io::Error::other)
    }

    /// Sets the most memory that the daemon uses, at most what it was started with.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn set_limit(&self, bytes: u64) -> io::Result<()> {
        self.simple(&NodeRequest::Limit { bytes })
    }

    /// Ends the daemon, if nothing is cached, and waits for its end.
    ///
    /// # Errors
    /// If something is.
    pub fn stop(&self) -> io::Result<()> {
        self.simple(&NodeRequest::Stop)?;
        wait_for_end(self.inner.connect.serve.directory.as_deref())
    }

    fn simple(&self, request: &NodeRequest) -> io::Result<()> {
        let reply = self.inner.with_line(|line| self.inner.call(line, |_| Ok(request.clone())))?;
        done(reply).map(drop)
    }
}

impl Cache for Client {
    fn open(&self, file: File, path: &Path) -> io::Result<Arc<dyn Cached>> {
        Ok(Arc::new(Client::open(self, file, path)?))
    }
}

/// A file of which the newest bytes may be in the daemon's memory.
pub struct ClientFile {
    pub(crate) inner: Arc<Inner>,
    file: File,
    path: PathBuf,
    /// The nonce and generation of the daemon that knows it, and the number there.
    opened: Mutex<Option<(u64, u64, u64)>>,
    /// The last failure that the program was told of.
    seen: AtomicU64,
    /// How many drains of all files had failed when the daemon was last asked about this one.
    failures: AtomicU64,
}

/// More failures than there ever are: the daemon has to be asked.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl ClientFile {
    pub(crate) fn writers(&self) -> &Writers {
        &self.inner.writers
    }

    /// Its number for the daemon of this line.
    pub(crate) fn id(&self, line: &Line) -> Result<u64, Trouble> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((nonce, generation, id)) = *opened
            && (nonce, generation) == (line.session.nonce, line.generation)
        {
            return Ok(id);
        }
        let path = self.path.as_os_str().as_bytes();
        let path = path[..path.len().min(outcrop_format::NODE_PATH_BYTES_MAX)].to_vec();
        let reply = line.call(&NodeRequest::Open { path }, Some(self.file.as_fd()))?;
        let failure = reply.failure;
        let NodeReplyKind::Opened { file } = done(reply)? else { return Err(strange().into()) };
        self.seen.store(failure.serial, Relaxed);
        *opened = Some((line.session.nonce, line.generation, file));
        Ok(file)
    }

    /// Calls with the number of this file.
    fn call(&self, request: impl Fn(u64) -> NodeRequest) -> io::Result<NodeReply> {
        self.inner.with_line(|line| self.inner.call(line, |line| Ok(request(self.id(line)?))))
    }

    /// Whether nothing of any file has failed since the daemon was last asked about this one.
    fn is_well(&self) -> bool {
        let opened = *self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let session = self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((nonce, generation, _)) = opened else { return false };
        session.as_ref().is_some_and(|it| {
            let failures = it.generation.failures();
            (nonce, generation) == (it.nonce, it.generation.now()) && failures == self.failures.load(Relaxed)
        })
    }

    /// The daemon was asked about this file when so many drains had failed.
    pub(crate) fn asked(&self, failures: u64) {
        self.failures.store(failures, Relaxed);
    }

    /// Reports a failure to drain that the program does not know yet.
    pub(crate) fn report(&self, failure: NodeFailure) -> io::Result<()> {
        let seen = self.seen.fetch_max(failure.serial, Relaxed);
        if failure.serial > seen && failure.errno != 0 {
            return Err(io::Error::from_raw_os_error(failure.errno as i32));
        }
        Ok(())
    }

    /// Reads once. `None` if the daemon died meanwhile: what was read may be wrong.
    fn read_some(&self, line: &mut Line, offset: u64, into: &mut [u8]) -> Result<Option<usize>, Trouble> {
        let bytes = (into.len() as u64).min(NODE_FILE_BYTES_MAX.saturating_sub(offset));
        if bytes == 0 {
            return Ok(Some(0));
        }
        let reply = line.call(&NodeRequest::Read { file: self.id(line)?, offset, bytes }, None)?;
        let NodeReplyKind::Cached { end, known_to, parts } = done(reply)? else { return Err(strange().into()) };
        let length = end.max(self.file.metadata().map_err(Trouble::Failed)?.len());
        let to = (offset + bytes).min(length).min(known_to).max(offset);
        let into = &mut into[..(to - offset) as usize];
        let mut at = offset;
        for part in &parts {
            let (start, end) = (part.offset.min(to), (part.offset + part.bytes).min(to));
            self.read_file(at, &mut into[(at - offset) as usize..(start - offset) as usize])?;
            let target = &mut into[(start - offset) as usize..(end - offset) as usize];
            line.session.reserve.copy_to(part.at, target)?;
            at = end;
        }
        self.read_file(at, &mut into[(at - offset) as usize..])?;
        if !parts.is_empty() {
            if line.session.generation.now() != line.generation {
                return Ok(None);
            }
            line.say(&NodeRequest::Release)?;
        }
        Ok(Some(into.len()))
    }

    /// Reads from the file itself. What it does not have is zero.
    fn read_file(&self, offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        let mut offset = offset;
        while !into.is_empty() {
            match self.file.read_at(into, offset) {
                Ok(0) => {
                    into.fill(0);
                    return Ok(());
                }
                Ok(count) => {
                    into = &mut into[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads back what was drained to the file, and compares checksums. Returns how many bytes were
    /// compared.
    ///
    /// # Errors
    /// If the file differs.
    pub fn verify(&self) -> io::Result<u64> {
        match done(self.call(|file| NodeRequest::Verify { file })?)? {
            NodeReplyKind::Verified { bytes } => Ok(bytes),
            _ => Err(strange()),
        }
    }

    /// Gives up what cannot be drained.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn discard(&self) -> io::Result<()> {
        done(self.call(|file| NodeRequest::Discard { file })?).map(drop)
    }

    fn wait(&self, request: impl Fn(u64) -> NodeRequest) -> io::Result<()> {
        let reply = self.call(request)?;
        let failure = reply.failure;
        let outcome = done(reply);
        // A failure that is returned now is not returned again.
        let reported = self.report(failure);
        outcome.and(reported)
    }
}

impl Cached for ClientFile {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > NODE_FILE_BYTES_MAX) {
            return Err(Errno::FBIG.into());
        }
        if bytes.is_empty() {
            return self.check();
        }
        self.inner.with_line(|line| Writing::new(self, offset, bytes).through(line))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.inner.with_line(|line| {
            let mut total = 0;
            while total < into.len() {
                match self.read_some(line, offset.saturating_add(total as u64), &mut into[total..]) {
                    Ok(Some(0)) => break,
                    Ok(Some(count)) => total += count,
                    Ok(None) | Err(Trouble::Lost) => {
                        line.connect_again(&self.inner.connect, self.inner.group, &self.inner.sessions)?;
                    }
                    Err(Trouble::Failed(error)) => return Err(error),
                }
            }
            Ok(total)
        })
    }

    fn bytes(&self) -> io::Result<u64> {
        match done(self.call(|file| NodeRequest::Length { file })?)? {
            NodeReplyKind::Length { end, .. } => Ok(end.max(self.file.metadata()?.len())),
            _ => Err(strange()),
        }
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        if bytes > NODE_FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        done(self.call(|file| NodeRequest::SetBytes { file, bytes })?).map(drop)
    }

    fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> io::Result<()> {
        let (accessed_ns, modified_ns) = (accessed.map(nanoseconds), modified.map(nanoseconds));
        done(self.call(|file| NodeRequest::SetTimes { file, accessed_ns, modified_ns })?).map(drop)
    }

    fn drain(&self) -> io::Result<()> {
        self.wait(|file| NodeRequest::Drain { file })
    }

    fn sync(&self) -> io::Result<()> {
        self.wait(|file| NodeRequest::Sync { file })
    }

    fn check(&self) -> io::Result<()> {
        if self.is_well() {
            return Ok(());
        }
        let reply = self.call(|file| NodeRequest::Length { file })?;
        self.report(reply.failure)
    }

    fn is_clean(&self) -> bool {
        let reply = self.call(|file| NodeRequest::Length { file });
        matches!(reply, Ok(NodeReply { kind: NodeReplyKind::Length { is_clean: true, .. }, .. }))
    }
}

impl Drop for ClientFile {
    fn drop(&mut self) {
        let Some((nonce, generation, file)) = *self.opened.lock().unwrap_or_else(PoisonError::into_inner) else {
            return;
        };
        // If the daemon is gone, so is its knowledge of this file.
        let _ = self.inner.with_line(|line| {
            if (nonce, generation) == (line.session.nonce, line.generation) {
                let _ = line.say(&NodeRequest::Close { file });
            }
            Ok(())
        });
    }
}

/// The answer, or the error that it is.
pub(crate) fn done(reply: NodeReply) -> io::Result<NodeReplyKind> {
    match reply.kind {
        NodeReplyKind::Failed { errno, .. } => Err(io::Error::from_raw_os_error(errno as i32)),
        kind => Ok(kind),
    }
}

pub(crate) fn strange() -> io::Error {
    io::Error::other("the node daemon answers something else than it was asked")
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}
