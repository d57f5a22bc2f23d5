//! A server of objects in memory that fails as told.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    memory::InMemory,
    multipart::{MultipartStore, PartId},
    path::Path,
};
use outcrop_object::{ObjectFiles, Options, Uploads};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// The server says that it is too busy, and does nothing.
    Busy,
    /// The server does it, and the answer is lost.
    Lost,
    /// The answer never comes, and nothing is done.
    Silent,
}

type Rule = Box<dyn FnMut(&str, &str) -> Fate + Send>;

#[derive(Default)]
struct State {
    rule: Option<Rule>,
    ignores_conditions: bool,
    uploads: BTreeMap<String, Path>,
    calls: Vec<String>,
}

/// The server. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct Server {
    objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn ignoring_conditions() -> Self {
        let server = Self::default();
        server.state().ignores_conditions = true;
        server
    }

    /// What becomes of each request from now on, by its kind and the name of its object.
    pub(crate) fn rule(&self, rule: impl FnMut(&str, &str) -> Fate + Send + 'static) {
        self.state().rule = Some(Box::new(rule));
    }

    pub(crate) fn heal(&self) {
        self.state().rule = None;
    }

    /// A client.
    pub(crate) fn files(&self) -> ObjectFiles {
        self.files_with(|_| {})
    }

    pub(crate) fn files_with(&self, change: impl FnOnce(&mut Options)) -> ObjectFiles {
        let mut options = Options::default();
        options.patience = Duration::from_millis(300);
        change(&mut options);
        let uploads = Some(Arc::new(self.clone()) as Arc<dyn Uploads>);
        ObjectFiles::over("memory://bucket/run", Arc::new(self.clone()), uploads, "run", options).unwrap()
    }

    pub(crate) fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The names of all objects.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut stream = self.objects.list(None);
        let mut names = Vec::new();
        while let Some(object) = stream.next().now_or_never().unwrap() {
            names.push(object.unwrap().location.to_string());
        }
        names.sort();
        names
    }

    pub(crate) fn read(&self, name: &str) -> Bytes {
        let got = self.objects.get(&Path::from(name)).now_or_never().unwrap().unwrap();
        got.bytes().now_or_never().unwrap().unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl Into<Bytes>) {
        let payload = PutPayload::from_bytes(bytes.into());
        self.objects.put(&Path::from(name), payload).now_or_never().unwrap().unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        self.objects.delete(&Path::from(name)).now_or_never().unwrap().unwrap();
    }

    /// Makes all owners so far processes of this machine that have ended.
    pub(crate) fn end_owners(&self) {
        self.change_claims(|claim| claim["process"]["began"] = 1.into());
    }

    /// Makes all owners so far processes of another machine.
    pub(crate) fn move_owners(&self) {
        self.change_claims(|claim| claim["process"]["boot"] = "elsewhere".into());
    }

    fn change_claims(&self, change: impl Fn(&mut serde_json::Value)) {
        for name in self.names().iter().filter(|name| name.contains("/owner/")) {
            let mut claim: serde_json::Value = serde_json::from_slice(&self.read(name)).unwrap();
            change(&mut claim);
            self.write(name, serde_json::to_vec(&claim).unwrap());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Does what the rule says around a request.
    async fn pass<T>(&self, kind: &str, path: &Path, request: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let fate = {
            let mut state = self.state();
            state.calls.push(format!("{kind} {path}"));
            state.rule.as_mut().map_or(Fate::Pass, |rule| rule(kind, path.as_ref()))
        };
        let busy = || Error::Generic { store: "test", source: "status code: 503 Slow Down".into() };
        match fate {
            Fate::Pass => request.await,
            Fate::Busy => Err(busy()),
            Fate::Lost => {
                let _ = request.await;
                Err(Error::Generic { store: "test", source: "the connection was cut".into() })
            }
            Fate::Silent => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

#[async_trait]
impl ObjectStore for Server {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        if self.state().ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        self.pass("put", path, self.objects.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(object_store::Error::NotImplemented {
            operation: "another way to write".into(),
            implementer: "a test".into(),
        })
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let kind = if options.head { "head" } else { "get" };
        self.pass(kind, path, self.objects.get_opts(path, options)).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let server = self.clone();
        let delete = move |path: Result<Path>| {
            let server = server.clone();
            async move {
                let path = path?;
                server.pass("delete", &path, server.objects.delete(&path)).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (server, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listed = async move {
            let found: Vec<_> = server.objects.list(Some(&prefix)).collect().await;
            match server.pass("list", &prefix, async { Ok(()) }).await {
                Ok(()) => found,
                Err(error) => vec![Err(error)],
            }
        };
        listed.map(stream::iter).flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let path = prefix.cloned().unwrap_or_default();
        self.pass("list", &path, self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(object_store::Error::NotImplemented {
            operation: "another way to write".into(),
            implementer: "a test".into(),
        })
    }
}

#[async_trait]
impl MultipartStore for Server {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let begun = async {
            let id = self.objects.create_multipart(path).await?;
            self.state().uploads.insert(id.clone(), path.clone());
            Ok(id)
        };
        self.pass("begin", path, begun).await
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, index: usize, data: PutPayload) -> Result<PartId> {
        self.pass("part", path, self.objects.put_part(path, id, index, data)).await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        let completed = async {
            let result = self.objects.complete_multipart(path, id, parts).await?;
            self.state().uploads.remove(id);
            Ok(result)
        };
        self.pass("complete", path, completed).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let aborted = async {
            if self.state().uploads.remove(id).is_none() {
                let source = "there is no such upload".into();
                return Err(Error::NotFound { path: path.to_string(), source });
            }
            self.objects.abort_multipart(path, id).await
        };
        self.pass("abort", path, aborted).await
    }
}

impl Uploads for Server {
    fn list(&self, prefix: String) -> BoxFuture<'_, Result<Vec<(Path, String)>>> {
        let state = self.state();
        let found = state.uploads.iter().filter(|(_, path)| path.as_ref().starts_with(&prefix));
        let found: Vec<_> = found.map(|(id, path)| (path.clone(), id.clone())).collect();
        async { Ok(found) }.boxed()
    }
}
