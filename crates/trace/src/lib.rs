//! Timelines for chrome://tracing or Perfetto: who did what when, on a track each.
//!
//! A tape keeps its timeline in memory until the program asks for it ([`Trace`]). A daemon writes
//! it to a file as it goes ([`TraceFile`]), because it may run for weeks, or be killed.

#![forbid(unsafe_code)]

mod file;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

pub use file::TraceFile;
use serde_json::json;

/// The timeline ends after this many spans, so that a long run does not fill memory with it.
const SPANS_MAX: usize = 1 << 20;

/// What a span of the timeline was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanKind {
    /// The program's own work between two calls.
    Compute,
    /// A save, or the sealing of a lent slot.
    Save,
    /// Waiting for room, inside a save.
    Wait,
    /// A take or a get.
    Take,
    /// A move down.
    Drain,
    /// A move up, before the program asks for the snapshot.
    Prefetch,
    /// A move up that the program waits for.
    Fetch,
    /// Touching (pre-faulting) memory.
    Touch,
    /// Pinning memory, or waiting for the turn to do so.
    Pin,
    /// A change of the strategy for touching memory.
    Strategy,
    /// The node daemon granted memory to a client.
    Granted,
    /// A client of the node daemon filled memory.
    Filled,
    /// A thread of the node daemon wrote to a file.
    Drained,
    /// A thread of the node daemon made a file durable.
    Synced,
    /// Something failed.
    Failed,
}

/// How a kind of span is drawn.
enum Form {
    /// One at a time on its track.
    Whole,
    /// Several at a time on one track.
    Overlapping,
    /// At one moment of its track, or of all.
    Moment { of_all: bool },
}

impl SpanKind {
    fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Save => "save",
            Self::Wait => "wait",
            Self::Take => "take",
            Self::Drain => "drain",
            Self::Prefetch => "prefetch",
            Self::Fetch => "fetch",
            Self::Touch => "touch",
            Self::Pin => "pin",
            Self::Strategy => "strategy",
            Self::Granted => "granted",
            Self::Filled => "filled",
            Self::Drained => "drained",
            Self::Synced => "synced",
            Self::Failed => "failed",
        }
    }

    /// A program, a client and a thread do one thing at a time. Moves of a lane overlap.
    fn form(self) -> Form {
        match self {
            Self::Drain | Self::Prefetch | Self::Fetch => Form::Overlapping,
            Self::Strategy => Form::Moment { of_all: true },
            Self::Granted | Self::Filled | Self::Failed => Form::Moment { of_all: false },
            _ => Form::Whole,
        }
    }
}

/// A span of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// What it was spent on.
    pub kind: SpanKind,
    /// The snapshot, if it concerns one.
    pub key: Option<u64>,
    /// Who did it: a handle of the program, a lane, a client, a thread.
    pub track: String,
    /// The start, in nanoseconds since the timeline began.
    pub start_ns: u64,
    /// The end, likewise.
    pub end_ns: u64,
    /// A remark, such as the reason for a strategy, or the file.
    pub note: Option<String>,
}

/// The timeline of a run, in memory.
#[derive(Debug, Default)]
pub struct Trace {
    is_on: bool,
    spans: Mutex<Vec<Span>>,
}

impl Trace {
    /// A timeline, or none.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, spans: Mutex::default() }
    }

    /// Whether there is a timeline.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Adds a span, if there is a timeline and it is not too long.
    pub fn add(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_on && spans.len() < SPANS_MAX {
            spans.push(span);
        }
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the timeline in the JSON format of chrome://tracing and Perfetto.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let spans = self.spans();
        let mut events = Events::default();
        let mut tracks: Vec<&str> = spans.iter().map(|span| span.track.as_str()).collect();
        tracks.sort_unstable();
        tracks.dedup();
        out.write_all(HEAD)?;
        for track in tracks {
            events.track(out, track)?;
        }
        spans.iter().try_for_each(|span| events.write(out, span))?;
        out.write_all(END)
    }
}

/// How the JSON begins and ends.
const HEAD: &[u8] = b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
const END: &[u8] = b"{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"outcrop\"}}]}\n";

/// Spans as events of the JSON format.
#[derive(Debug, Default)]
struct Events {
    tracks: BTreeMap<String, usize>,
    count: usize,
}

impl Events {
    /// The number of a track, which is named when it comes first.
    fn track(&mut self, out: &mut dyn Write, name: &str) -> io::Result<usize> {
        if let Some(number) = self.tracks.get(name) {
            return Ok(*number);
        }
        let number = self.tracks.len();
        self.tracks.insert(name.to_owned(), number);
        let event = json!({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}});
        writeln!(out, "{event},")?;
        Ok(number)
    }

    /// One at a time is a complete event. What overlaps is a pair of begin and end events.
    fn write(&mut self, out: &mut dyn Write, span: &Span) -> io::Result<()> {
        let (id, track, name) = (self.count, self.track(out, &span.track)?, span.kind.name());
        self.count += 1;
        let args = match (&span.key, &span.note) {
            (Some(key), _) => json!({"snapshot": key}),
            (None, Some(note)) => json!({"note": note}),
            (None, None) => json!({}),
        };
        let microseconds = |ns: u64| ns as f64 / 1e3;
        let start = microseconds(span.start_ns);
        match span.kind.form() {
            Form::Moment { of_all } => {
                let scope = if of_all { "p" } else { "t" };
                let moment =
                    json!({"ph": "i", "s": scope, "name": name, "pid": 1, "tid": track, "ts": start, "args": args});
                writeln!(out, "{moment},")
            }
            Form::Overlapping => {
                let begin = json!({"ph": "b", "cat": span.track, "id": id, "name": name, "pid": 1, "tid": track,
                    "ts": start, "args": args});
                let end = json!({"ph": "e", "cat": span.track, "id": id, "name": name, "pid": 1, "tid": track,
                    "ts": microseconds(span.end_ns)});
                writeln!(out, "{begin},\n{end},")
            }
            Form::Whole => {
                let whole = json!({"ph": "X", "name": name, "pid": 1, "tid": track, "ts": start,
                    "dur": microseconds(span.end_ns) - start, "args": args});
                writeln!(out, "{whole},")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_is_json_with_every_span() {
        let trace = Trace::new(true);
        for (kind, start_ns) in [(SpanKind::Save, 1_000), (SpanKind::Drain, 2_000)] {
            trace.add(Span { kind, key: Some(7), track: "t".into(), start_ns, end_ns: start_ns + 500, note: None });
        }
        let note = Some("sequential: as set".to_owned());
        trace.add(Span { kind: SpanKind::Strategy, key: None, track: "t".into(), start_ns: 0, end_ns: 0, note });
        let mut text = Vec::new();
        trace.write_json(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let phases: Vec<_> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["M", "X", "b", "e", "i", "M"]);
        assert_eq!(events[4]["args"]["note"], "sequential: as set");
        assert_eq!(events[1]["dur"], 0.5);
    }
}
