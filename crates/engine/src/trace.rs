//! A timeline of the program's calls and the helpers' moves, for chrome://tracing or Perfetto.

use std::{
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

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
        }
    }
}

/// A span of the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// What it was spent on.
    pub kind: SpanKind,
    /// The snapshot, if it concerns one.
    pub key: Option<u64>,
    /// Who did it: a handle of the program, or a lane.
    pub track: String,
    /// The start, in nanoseconds since the engine was opened.
    pub start_ns: u64,
    /// The end, likewise.
    pub end_ns: u64,
    /// A remark, such as the reason for a strategy.
    pub note: Option<String>,
}

/// The timeline of a run.
#[derive(Debug, Default)]
pub struct Trace {
    is_on: bool,
    spans: Mutex<Vec<Span>>,
}

impl Trace {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, spans: Mutex::default() }
    }

    /// Whether there is a timeline.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn add(&self, span: Span) {
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
        let mut tracks: Vec<&str> = spans.iter().map(|span| span.track.as_str()).collect();
        tracks.sort_unstable();
        tracks.dedup();
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        for (index, track) in tracks.iter().enumerate() {
            let name = json!({"ph": "M", "pid": 1, "tid": index, "name": "thread_name", "args": {"name": track}});
            writeln!(out, "{name},")?;
        }
        for (id, span) in spans.iter().enumerate() {
            let track = tracks.binary_search(&span.track.as_str()).unwrap_or(0);
            write_span(out, id, track, span)?;
        }
        let name = json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "outcrop"}});
        writeln!(out, "{name}]}}")
    }
}

/// The program does one thing at a time, so its spans are complete events. Moves overlap, so theirs
/// are pairs of begin and end events.
fn write_span(out: &mut dyn Write, id: usize, track: usize, span: &Span) -> io::Result<()> {
    let name = span.kind.name();
    let args = match (&span.key, &span.note) {
        (Some(key), _) => json!({"snapshot": key}),
        (None, Some(note)) => json!({"note": note}),
        (None, None) => json!({}),
    };
    let microseconds = |ns: u64| ns as f64 / 1e3;
    let start = microseconds(span.start_ns);
    match span.kind {
        SpanKind::Strategy => {
            let moment = json!({"ph": "i", "s": "p", "name": name, "pid": 1, "tid": track, "ts": start, "args": args});
            writeln!(out, "{moment},")
        }
        SpanKind::Drain | SpanKind::Prefetch | SpanKind::Fetch => {
            let begin = json!({"ph": "b", "cat": span.track, "id": id, "name": name, "pid": 1, "tid": track,
                "ts": start, "args": args});
            let end = json!({"ph": "e", "cat": span.track, "id": id, "name": name, "pid": 1, "tid": track,
                "ts": microseconds(span.end_ns)});
            writeln!(out, "{begin},\n{end},")
        }
        _ => {
            let whole = json!({"ph": "X", "name": name, "pid": 1, "tid": track, "ts": start,
                "dur": microseconds(span.end_ns) - start, "args": args});
            writeln!(out, "{whole},")
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
