//! A timeline of what the program and the helpers did, for chrome://tracing or Perfetto.

use std::{
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use serde_json::json;

/// After so many spans the timeline ends, so that a long run does not fill memory with it.
const SPANS_MAX: usize = 1 << 20;

/// What a span of time was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanKind {
    /// The program's own work, between two calls.
    Compute,
    /// A save, or the sealing of a lent slot.
    Save,
    /// Waiting for room, inside a save.
    Wait,
    /// A take or a get.
    Take,
    /// Bytes sinking.
    Drain,
    /// Bytes coming up before they are asked for.
    Prefetch,
    /// Bytes coming up while the program waits.
    Fetch,
    /// Memory being made ready.
    Touch,
    /// Memory being pinned, or waiting for its turn to be.
    Pin,
    /// From here on memory is touched at other times than before.
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

/// Something that took time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// On what.
    pub kind: SpanKind,
    /// For which snapshot, if for one.
    pub key: Option<u64>,
    /// Who did it: the program's handle, or the way between two layers.
    pub track: String,
    /// From here, in nanoseconds since the engine started.
    pub start_ns: u64,
    /// To here.
    pub end_ns: u64,
    /// What else there is to say.
    pub note: Option<String>,
}

/// All spans of a run.
#[derive(Debug, Default)]
pub struct Trace {
    is_on: bool,
    spans: Mutex<Vec<Span>>,
}

impl Trace {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, spans: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn add(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_on && spans.len() < SPANS_MAX {
            spans.push(span);
        }
    }

    /// What has been recorded until now.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the timeline in the form that chrome://tracing and Perfetto read.
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

/// The program does one thing at a time, so its spans are plain ones; moves overlap, so theirs have
/// a begin and an end.
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
