//! A timeline that is written to a file as it goes.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{END, Events, HEAD, SPANS_MAX, Span, SpanKind};

/// So much is kept in memory, at most.
const BUFFER_BYTES: usize = 64 << 10;

/// A timeline in a file. The file is complete after each write, so that it can be read while the
/// timeline goes on, and after whoever writes it was killed.
#[derive(Debug)]
pub struct TraceFile(Mutex<Written>);

#[derive(Debug)]
struct Written {
    file: File,
    /// Where the end of the JSON is, which the next write replaces.
    end: u64,
    /// What is not written yet.
    buffer: Vec<u8>,
    events: Events,
    is_over: bool,
}

impl TraceFile {
    /// A timeline in an empty file.
    pub fn new(file: File) -> io::Result<Self> {
        let buffer = HEAD.to_vec();
        let mut written = Written { file, end: 0, buffer, events: Events::default(), is_over: false };
        written.write()?;
        Ok(Self(Mutex::new(written)))
    }

    /// Adds a span. After a million of them, and after a failed write, the timeline is over.
    pub fn add(&self, span: &Span) {
        let mut written = self.lock();
        if written.is_over {
            return;
        }
        written.append(span);
        if written.events.count >= SPANS_MAX {
            let note = Some(format!("the timeline ends here: it has {SPANS_MAX} spans"));
            written.append(&Span { kind: SpanKind::Failed, key: None, note, ..span.clone() });
            written.flush();
            written.is_over = true;
        } else if written.buffer.len() >= BUFFER_BYTES {
            written.flush();
        }
    }

    /// Writes what is not written yet.
    pub fn flush(&self) {
        self.lock().flush();
    }

    /// Whether something is not written yet.
    pub fn has_more(&self) -> bool {
        !self.lock().buffer.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Written {
    fn append(&mut self, span: &Span) {
        // Memory takes everything.
        let _ = self.events.write(&mut self.buffer, span);
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty()
            && let Err(error) = self.write()
        {
            tracing::warn!(%error, "the timeline cannot be written and ends");
            self.is_over = true;
        }
        self.buffer.clear();
    }

    fn write(&mut self) -> io::Result<()> {
        let length = self.buffer.len() as u64;
        self.buffer.extend_from_slice(END);
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += length;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn span(nth: u64) -> Span {
        let track = format!("track {}", nth % 3);
        Span { kind: SpanKind::Drained, key: None, track, start_ns: nth, end_ns: nth + 1, note: None }
    }

    #[test]
    fn the_file_is_complete_at_any_time_and_memory_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        let trace = TraceFile::new(File::create(&path).unwrap()).unwrap();
        let events = || -> usize {
            let value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            value["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count()
        };
        assert_eq!(events(), 0);
        for nth in 0..5000 {
            trace.add(&span(nth));
            assert!(trace.lock().buffer.capacity() < 4 * BUFFER_BYTES);
            if nth % 500 == 0 {
                let seen = events();
                assert!(seen > nth as usize - nth as usize / 2 || nth < 1000, "{seen} of {nth}");
            }
        }
        trace.flush();
        assert!(!trace.has_more());
        assert_eq!(events(), 5000);
    }

    #[test]
    fn a_timeline_that_is_too_long_ends_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        let trace = TraceFile::new(File::create(&path).unwrap()).unwrap();
        trace.lock().events.count = SPANS_MAX - 2;
        for nth in 0..10 {
            trace.add(&span(nth));
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!((text.matches("\"X\"").count(), text.matches("ends here").count()), (2, 1), "{text}");
    }

    #[test]
    fn a_full_disk_ends_the_timeline_and_nothing_else() {
        let trace = TraceFile::new(File::options().write(true).open("/dev/full").unwrap());
        assert!(trace.is_err(), "it cannot even begin");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        let trace = TraceFile::new(File::create(&path).unwrap()).unwrap();
        trace.lock().file = File::open(&path).unwrap(); // It cannot be written to.
        trace.add(&span(1));
        trace.flush();
        assert!(trace.lock().is_over && !trace.has_more());
    }
}
