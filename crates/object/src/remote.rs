//! Requests to a server, each repeated for a limited time. The only place with an async runtime:
//! its threads are here, and calls from other threads wait for them.

use std::{
    collections::HashSet,
    future::Future,
    io,
    ops::Range,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture};
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, multipart::MultipartStore,
    path::Path,
};
use tokio::runtime::{Builder, Runtime};

use crate::failure::{Cause, Failure, Words};

/// Threads of the runtime. They wait for the network, sign and encrypt.
const THREADS: usize = 2;

/// The pause before a request whose outcome is not known is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// What [`ObjectFiles`](crate::ObjectFiles) needs of a client of an object store.
pub trait Store: ObjectStore + MultipartStore {}

impl<S: ObjectStore + MultipartStore> Store for S {}

/// Finds uploads that nobody has completed. Not every kind of server can tell.
pub trait Uploads: Send + Sync {
    /// The objects and the numbers of uploads whose names begin with `prefix`.
    fn list(&self, prefix: String) -> BoxFuture<'_, object_store::Result<Vec<(Path, String)>>>;
}

/// A bucket on a server.
pub(crate) struct Remote {
    core: Arc<Core>,
    runtime: Option<Runtime>,
}

/// What requests need.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) uploads: Option<Arc<dyn Uploads>>,
    pub(crate) words: Words,
    /// How long a request is repeated.
    pub(crate) patience: Duration,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Remote {
    pub(crate) fn new(core: Core) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(THREADS).thread_name("outcrop-object").enable_all().build()?;
        Ok(Self { core: Arc::new(core), runtime: Some(runtime) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Carries out requests on the threads of the runtime, and waits for the result. The caller may
    /// be a thread of another runtime.
    pub(crate) fn run<T, F>(&self, requests: impl FnOnce(Arc<Core>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.begin(requests)()
    }

    /// Starts requests. What it returns waits for their result.
    pub(crate) fn begin<T, F>(&self, requests: impl FnOnce(Arc<Core>) -> F) -> impl FnOnce() -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (ended, result) = mpsc::sync_channel(1);
        let requests = requests(Arc::clone(&self.core));
        self.spawn(async move {
            let _ = ended.send(requests.await);
        });
        let gone = |_| Failure::refused(io::ErrorKind::Other, "a request to an object store has panicked");
        move || result.recv().map_err(gone)?
    }

    /// Starts requests that nobody waits for.
    pub(crate) fn spawn(&self, requests: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        self.runtime.as_ref().expect("there until it is dropped").spawn(requests).abort_handle()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The caller may be a thread of another runtime, where waiting is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Core {
    /// One request. The client repeats it, and gives up after its patience; this is for the case
    /// that it does not.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = object_store::Result<T>> + Send) -> Result<T> {
        let limit = self.patience * 3;
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer.map_err(|error| self.words.failure(&error)),
            Err(_) => Err(self.words.silence(limit)),
        }
    }

    /// The names directly below a directory.
    pub(crate) async fn names(&self, dir: &Path) -> Result<Vec<String>> {
        let listed = self.ask(self.store.list_with_delimiter(Some(dir))).await?;
        let names = listed.common_prefixes.iter().filter_map(|found| found.filename().map(str::to_owned));
        Ok(names.collect())
    }

    /// Everything below a directory.
    pub(crate) async fn all(&self, dir: &Path) -> Result<Vec<ObjectMeta>> {
        let mut stream = self.store.list(Some(dir));
        let mut found = Vec::new();
        while let Some(object) = self.ask(async { stream.next().await.transpose() }).await? {
            found.push(object);
        }
        Ok(found)
    }

    /// The length of an object.
    pub(crate) async fn length(&self, path: &Path) -> Result<u64> {
        Ok(self.ask(self.store.head(path)).await?.size)
    }

    /// All of an object, which has at most `bytes_max`.
    pub(crate) async fn whole(&self, path: &Path, bytes_max: u64) -> Result<Bytes> {
        let found = self.ask(self.store.get_opts(path, GetOptions::default())).await?;
        if found.meta.size > bytes_max {
            let message = format!("{path} is {} bytes long, which is more than it can be", found.meta.size);
            return Err(Failure::refused(io::ErrorKind::InvalidData, message));
        }
        self.ask(found.bytes()).await
    }

    /// A range of an object, as it arrives. Passes each piece to `take`.
    pub(crate) async fn range(&self, path: &Path, range: Range<u64>, mut take: impl FnMut(Bytes) + Send) -> Result<()> {
        let bytes = range.end - range.start;
        let deadline = Instant::now() + self.patience;
        let mut arrived = 0;
        loop {
            let rest = range.start + arrived..range.end;
            match self.rest(path, rest, &mut arrived, &mut take).await {
                Ok(()) if arrived == bytes => return Ok(()),
                Ok(()) => {
                    let message = format!("{path} ends {} bytes too early", bytes - arrived.min(bytes));
                    return Err(Failure::refused(io::ErrorKind::UnexpectedEof, message));
                }
                // The connection may have been cut in the middle.
                Err(failure) if failure.cause == Cause::Unknown && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn rest(
        &self,
        path: &Path,
        range: Range<u64>,
        arrived: &mut u64,
        take: &mut (impl FnMut(Bytes) + Send),
    ) -> Result<()> {
        let most = range.end - range.start;
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let mut stream = self.ask(self.store.get_opts(path, options)).await?.into_stream();
        let mut here = 0;
        while let Some(mut piece) = self.ask(async { stream.next().await.transpose() }).await? {
            // A server that sends more than was asked for must not write past the end.
            piece.truncate((most - here).min(piece.len() as u64) as usize);
            here += piece.len() as u64;
            *arrived += piece.len() as u64;
            take(piece);
        }
        Ok(())
    }

    /// Makes an object, or replaces it.
    pub(crate) async fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        self.ask(self.store.put(path, PutPayload::from_bytes(bytes))).await.map(drop)
    }

    /// Makes an object that must not exist, under a condition if the server keeps it. Where the
    /// answer is lost, looks whether the object is there: if it has these bytes, it was made.
    /// [`Cause::Unknown`] if that cannot be found out: the object may be there, or come.
    pub(crate) async fn make(&self, path: &Path, bytes: Bytes, is_conditional: bool) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            let mode = if is_conditional { PutMode::Create } else { PutMode::Overwrite };
            let payload = PutPayload::from_bytes(bytes.clone());
            let failure = match self.ask(self.store.put_opts(path, payload, mode.into())).await {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            if !matches!(failure.cause, Cause::Exists | Cause::Unknown) {
                return Err(failure);
            }
            match self.whole(path, u64::MAX).await {
                Ok(found) if found == bytes => return Ok(()),
                Ok(_) => return Err(Failure { cause: Cause::Exists, ..failure }),
                Err(_) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                // A server that says that the object exists, and has none, says nothing.
                Err(_) => return Err(Failure { cause: Cause::Unknown, ..failure }),
            }
        }
    }

    /// Removes an object. It is no failure if it does not exist.
    pub(crate) async fn remove(&self, path: &Path) -> Result<()> {
        match self.ask(self.store.delete(path)).await {
            Err(failure) if failure.is_missing() => Ok(()),
            removed => removed,
        }
    }

    /// Aborts all uploads below a directory. Returns how many there were.
    pub(crate) async fn abort_uploads(&self, dir: &Path) -> Result<usize> {
        let Some(uploads) = &self.uploads else { return Ok(0) };
        let deadline = Instant::now() + self.patience;
        let found = loop {
            match self.ask(uploads.list(format!("{dir}/"))).await {
                // The client knows no such request, and so does not repeat it.
                Err(failure) if failure.cause == Cause::Unknown && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                found => break found?,
            }
        };
        // A server may list an upload twice, while it changes.
        let found: HashSet<_> = found.into_iter().collect();
        for (path, id) in &found {
            match self.ask(self.store.abort_multipart(path, id)).await {
                Err(failure) if failure.is_missing() => {}
                aborted => aborted?,
            }
        }
        Ok(found.len())
    }
}
