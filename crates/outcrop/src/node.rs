//! A client of the node daemon: files whose bytes go to spare memory of the machine first, and are
//! drained behind (docs/node.md).
//!
//! ```no_run
//! use outcrop::node::Node;
//! # fn main() -> outcrop::Result<()> {
//! let node = Node::from_toml("memory = '4 GiB'")?; // starts the daemon if there is none
//! let file = node.open("restart.7")?;
//! file.write(0, b"returns when it is in memory")?;
//! let state: std::sync::Arc<[u8]> = std::sync::Arc::from(vec![7; 1 << 20]);
//! let pending = file.write_async(4096, std::sync::Arc::clone(&state))?;
//! // The program computes meanwhile.
//! pending.wait()?;
//! file.sync()?; // on the file system
//! # Ok(())
//! # }
//! ```

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use outcrop_error::patience::{self, ASK_EVERY, Awaited};
use outcrop_node::{Cached, Client, ClientFile, Connect, ServeOptions, failed};
pub use outcrop_node::{ClientStatus, FileStatus, PENDING_MAX, Status};
use outcrop_settings::{NodeSettings, Settings};

use crate::{Error, ErrorKind, Result};

/// A connection to the node daemon of this user. Cheap to clone; all threads can use it.
#[derive(Clone)]
pub struct Node {
    client: Client,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}

impl Node {
    /// Connects to the daemon, which is started if there is none and the settings say so.
    pub fn connect(settings: NodeSettings) -> Result<Self> {
        let connect = to_connect(settings.in_force()?)?;
        let client = patiently(move || Client::connect(&connect))?.map_err(|error| failed("", error))?;
        Ok(Self { client })
    }

    /// As [`connect`](Self::connect), with settings in TOML: `memory = '4 GiB'`.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::connect(NodeSettings::from_toml(text)?)
    }

    /// Opens a file to be read and written; it is created if it is missing.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<NodeFile> {
        let path = path.as_ref();
        let cannot = |error| failed(format_args!("cannot open {}", path.display()), error);
        let file = fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(cannot)?;
        if !file.metadata().map_err(cannot)?.is_file() {
            let message = format!("cannot open {}: it is not a regular file", path.display());
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let file = self.client.open(file, path).map_err(cannot)?;
        Ok(NodeFile { file: Arc::new(file), path: path.to_owned() })
    }

    /// Drains all files of all clients. Those that could not be drained are tried again.
    pub fn drain_all(&self) -> Result<()> {
        let client = self.client.clone();
        patiently(move || client.drain_all())?.map_err(|error| failed("cannot drain everything", error))
    }

    /// What the daemon holds, for whom, and what it could not drain.
    pub fn status(&self) -> Result<Status> {
        self.client.status().map_err(|error| failed("", error))
    }

    /// The status as JSON.
    pub fn status_json(&self) -> Result<String> {
        self.client.status_json().map_err(|error| failed("", error))
    }
}

/// Settings as the client has them. The daemon works in another directory, so paths are absolute.
fn to_connect(settings: NodeSettings) -> Result<Connect> {
    let absolute = |path: Option<PathBuf>| {
        path.map(std::path::absolute).transpose().map_err(|error| failed("cannot find the working directory", error))
    };
    let serve = ServeOptions {
        directory: absolute(settings.directory)?,
        memory_bytes: settings.memory.map(|size| size.bytes()).transpose()?,
        threads: settings.threads,
        cores: settings.cores,
        reserve: absolute(settings.reserve)?,
        idle: Some(settings.idle),
        verify: settings.is_verified,
        trace: absolute(settings.trace)?,
        ..ServeOptions::default()
    };
    // A name alone is looked for as the shell does.
    let is_name = settings.program.components().count() == 1;
    let program = if is_name { Some(settings.program) } else { absolute(Some(settings.program))? };
    let program = program.filter(|_| settings.is_started);
    let arguments = ["node", "serve"].map(Into::into).to_vec();
    Ok(Connect { serve, program, arguments, ..Connect::default() })
}

/// A file of which the newest bytes may be in memory of the node. All threads can use it.
///
/// Calls take effect in the order in which they are made, pending writes included.
pub struct NodeFile {
    file: Arc<ClientFile>,
    path: PathBuf,
}

impl fmt::Debug for NodeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl NodeFile {
    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when the bytes are in memory of the node; waits if there is none left. An earlier
    /// failure to drain this file is reported once.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.settle()?;
        self.file.write(offset, bytes).map_err(|error| self.failed("write to", error))
    }

    /// Begins to write, and returns at once; if [`PENDING_MAX`] writes are pending, when there are
    /// fewer. The bytes are dropped when they are in memory of the node.
    pub fn write_async(&self, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> Result<Pending> {
        while !self.file.wait_for_room(ASK_EVERY) {
            patience::ask(Awaited::Others)?;
        }
        let pending = self.file.write_async(offset, bytes).map_err(|error| self.failed("write to", error))?;
        Ok(Pending { pending, path: self.path.clone() })
    }

    /// Reads what is newest, wherever it is. The result is short at the end of the file.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.settle()?;
        self.file.read(offset, into).map_err(|error| self.failed("read", error))
    }

    /// The length of the file.
    pub fn size(&self) -> Result<u64> {
        self.settle()?;
        self.file.bytes().map_err(|error| self.failed("look at", error))
    }

    /// Cuts the file off, or extends it with zeros.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        self.settle()?;
        self.file.set_bytes(bytes).map_err(|error| self.failed("resize", error))
    }

    /// Waits until everything that was written before is in the file.
    pub fn drain(&self) -> Result<()> {
        self.settle()?;
        let file = Arc::clone(&self.file);
        patiently(move || file.drain())?.map_err(|error| self.failed("drain", error))
    }

    /// Drains, and makes the file durable.
    pub fn sync(&self) -> Result<()> {
        self.settle()?;
        let file = Arc::clone(&self.file);
        patiently(move || file.sync())?.map_err(|error| self.failed("sync", error))
    }

    /// Waits for pending writes, and reports a failure to drain that was not reported before: the
    /// last call before a file is dropped. What is in memory is drained after it.
    pub fn check(&self) -> Result<()> {
        self.settle()?;
        self.file.check().map_err(|error| self.failed("drain", error))
    }

    /// Waits until the writes that are pending are done.
    fn settle(&self) -> Result<()> {
        while !self.file.settle(ASK_EVERY) {
            patience::ask(Awaited::Others)?;
        }
        Ok(())
    }

    fn failed(&self, attempt: &str, error: io::Error) -> Error {
        failed(format_args!("cannot {attempt} {}", self.path.display()), error)
    }
}

/// A write that was begun. To drop this does not end the write.
#[derive(Debug, Clone)]
pub struct Pending {
    pending: outcrop_node::Pending,
    path: PathBuf,
}

impl Pending {
    /// Whether it is done, well or not.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    /// Waits until it is done, and says how it ended, as [`NodeFile::write`] does.
    pub fn wait(&self) -> Result<()> {
        loop {
            if let Some(outcome) = self.pending.wait_for(ASK_EVERY) {
                return outcome.map_err(|error| failed(format_args!("cannot write to {}", self.path.display()), error));
            }
            patience::ask(Awaited::Others)?;
        }
    }
}

/// Calls something that waits for the daemon. If the program wants to be asked meanwhile, another
/// thread waits, and goes on to do so when the program has lost patience.
fn patiently<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<io::Result<T>> {
    if !patience::is_asked() {
        return Ok(call());
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = thread::Builder::new().name("outcrop-wait".to_owned()).spawn(move || drop(sender.send(call())));
    thread.map_err(|error| failed("cannot start a thread", error))?;
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(outcome) => return Ok(outcome),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => patience::ask(Awaited::Others)?,
            Err(_) => return Ok(Err(io::Error::other("the thread that waited has panicked"))),
        }
    }
}
