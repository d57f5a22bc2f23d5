//! The timeline of a daemon: a track for each connection of a client, and one for each thread that
//! drains.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outcrop_format::NodeFailure;
use outcrop_grants::{Answer, ClientId, Event, FileId, Request};
use outcrop_trace::{Span, SpanKind, TraceFile};

use crate::{
    daemon::Files,
    place::said,
    serve::ServeOptions,
    target::Target,
    workers::{Outcome, Work},
};

/// How late what has happened may be in the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Where spans go, and since when time counts.
struct Sink {
    file: TraceFile,
    start: Instant,
}

impl Sink {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn add(&self, kind: SpanKind, track: &str, start_ns: u64, note: String) {
        let end_ns = self.now();
        let (track, note) = (track.to_owned(), Some(note).filter(|note| !note.is_empty()));
        self.file.add(&Span { kind, key: None, track, start_ns, end_ns, note });
    }

    fn moment(&self, kind: SpanKind, track: &str, note: String) {
        self.add(kind, track, self.now(), note);
    }
}

/// What clients do. Nothing if no timeline was asked for.
pub(crate) struct Timeline {
    sink: Option<Arc<Sink>>,
    clients: BTreeMap<ClientId, Client>,
    /// Whose request is being handled: if the answer comes at once, nobody has waited.
    serving: Option<ClientId>,
    written: Instant,
}

struct Client {
    track: String,
    /// The request that has no answer yet: what it is for, and since when.
    request: Option<(String, u64)>,
}

impl Timeline {
    /// The timeline that was asked for. One that was begun by a daemon that has died is not
    /// continued: its path may lead through a mount that waits for this daemon.
    pub(crate) fn open(options: &ServeOptions, generation: u64) -> io::Result<Self> {
        let sink = match &options.trace {
            Some(path) if generation <= 1 => {
                let file = File::create(path).and_then(TraceFile::new);
                let file = file.map_err(|error| said(&error, format!("write the timeline {}", path.display())))?;
                Some(Arc::new(Sink { file, start: Instant::now() }))
            }
            _ => None,
        };
        Ok(Self { sink, clients: BTreeMap::new(), serving: None, written: Instant::now() })
    }

    /// The same, for threads that drain.
    pub(crate) fn of_threads(&self) -> OfThreads {
        OfThreads(self.sink.clone())
    }

    pub(crate) fn joined(&mut self, client: ClientId, name: &str, process: u32, line: u64) {
        if self.sink.is_some() {
            let track = format!("{name} {process}, line {line}");
            self.clients.insert(client, Client { track, request: None });
        }
    }

    pub(crate) fn left(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    pub(crate) fn requested(&mut self, client: ClientId, request: &Request, files: &Files) {
        let Some(sink) = &self.sink else { return };
        let Some(known) = self.clients.get_mut(&client) else { return };
        let path = |file: FileId| files.target(file).map(|it| it.path.display().to_string()).unwrap_or_default();
        let what = match request {
            Request::Ask { file, bytes } => format!("{bytes} bytes of memory for {}", path(*file)),
            Request::Fill(fill) => {
                let (bytes, offset) = (fill.part.bytes, fill.part.offset);
                let what = format!("{}: {bytes} bytes at {offset}", path(fill.file));
                sink.moment(SpanKind::Filled, &known.track, what.clone());
                what
            }
            Request::Drain { file } => format!("drain {}", path(*file)),
            Request::Sync { file } => format!("sync {}", path(*file)),
            Request::DrainAll => "drain everything".to_owned(),
            Request::SetBytes { file, bytes } => format!("cut off {} at {bytes}", path(*file)),
            Request::Read { file, .. }
            | Request::Length { file }
            | Request::SetTimes { file, .. }
            | Request::Discard { file } => path(*file),
        };
        known.request = Some((what, sink.now()));
        self.serving = Some(client);
    }

    /// The request that came last was handled.
    pub(crate) fn served(&mut self) {
        self.serving = None;
    }

    pub(crate) fn replied(&mut self, client: ClientId, failure: NodeFailure, answer: &Answer) {
        let Some(sink) = &self.sink else { return };
        let Some(known) = self.clients.get_mut(&client) else { return };
        let Some((what, start_ns)) = known.request.take() else { return };
        let track = &known.track;
        if self.serving != Some(client) {
            sink.add(SpanKind::Wait, track, start_ns, what.clone());
        }
        match answer {
            Answer::Granted(range) if !range.is_empty() => {
                sink.moment(SpanKind::Granted, track, format!("{} bytes", range.end - range.start));
            }
            Answer::Failed(errno) => sink.moment(SpanKind::Failed, track, format!("{what}: {}", words(*errno))),
            _ if failure.errno != 0 => {
                sink.moment(SpanKind::Failed, track, format!("not drained: {}", words(failure.errno)));
            }
            _ => {}
        }
    }

    /// When to look after it; `None` if everything is in the file.
    pub(crate) fn due(&self) -> Option<Duration> {
        let has_more = self.sink.as_ref().is_some_and(|sink| sink.file.has_more());
        has_more.then(|| WRITE_EVERY.saturating_sub(self.written.elapsed()))
    }

    /// Writes what is not in the file yet.
    pub(crate) fn look_after(&mut self) {
        if let Some(sink) = &self.sink
            && self.written.elapsed() >= WRITE_EVERY
        {
            sink.file.flush();
            self.written = Instant::now();
        }
    }
}

/// What threads do.
pub(crate) struct OfThreads(Option<Arc<Sink>>);

/// Something that a thread does.
pub(crate) struct Begun {
    kind: SpanKind,
    what: String,
    start_ns: u64,
}

impl OfThreads {
    pub(crate) fn begin(&self, target: &Target, work: &Work) -> Option<Begun> {
        let sink = self.0.as_ref()?;
        let path = target.path.display();
        let (kind, what) = match work {
            Work::Drain { parts, .. } => {
                let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                let offset = parts.first().map_or(0, |part| part.offset);
                (SpanKind::Drained, format!("{path}: {bytes} bytes at {offset}"))
            }
            Work::Sync { .. } => (SpanKind::Synced, path.to_string()),
            _ => return None,
        };
        Some(Begun { kind, what, start_ns: sink.now() })
    }

    pub(crate) fn end(&self, begun: Option<Begun>, outcome: &Outcome) {
        let (Some(sink), Some(Begun { kind, what, start_ns })) = (&self.0, begun) else { return };
        let thread = thread::current();
        let track = thread.name().unwrap_or("drain");
        sink.add(kind, track, start_ns, what.clone());
        if let Outcome::Event(Event::Drained { outcome: Err(errno), .. } | Event::Synced { outcome: Err(errno), .. }) =
            outcome
        {
            sink.moment(SpanKind::Failed, track, format!("{what}: {}", words(*errno)));
        }
    }
}

/// What the system's number of an error means.
fn words(errno: u32) -> String {
    io::Error::from_raw_os_error(errno as i32).to_string()
}
