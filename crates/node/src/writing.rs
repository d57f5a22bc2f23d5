//! One write of a client: bytes are copied to memory that is granted, and the daemon is told of
//! them chunk by chunk. While it deals with one chunk, the next one is copied.

use std::{io, ops::Range, time::SystemTime};

use outcrop_format::{GRANT_BYTES_MAX, NodeFailure, NodeFill, NodePart, NodeReplyKind, NodeRequest};
use outcrop_grants::PAGE_BYTES;

use crate::{
    client::{ClientFile, UNKNOWN, done, nanoseconds, strange},
    line::{Line, Trouble},
};

/// How much the daemon is told of at once. A copy of that takes some ten times as long as a message
/// and its answer, and draining begins with the first one.
const CHUNK_BYTES: u64 = 2 << 20;
/// What is kept for the next write, after a small one and after others: little, because others may
/// need it.
const AHEAD_SMALL_BYTES: u64 = 256 << 10;
const AHEAD_BYTES: u64 = 1 << 20;

pub(crate) struct Writing<'a> {
    file: &'a ClientFile,
    offset: u64,
    bytes: &'a [u8],
    /// How much the daemon knows of.
    written: usize,
    /// A part of the reserve that the daemon was told of last, and has not answered yet.
    told: Option<Range<u64>>,
    /// What had failed before, as the first answer says. Failures to drain what this writes are
    /// reported by the next call.
    failure: Option<NodeFailure>,
    /// How many drains of all files had failed before the daemon was asked.
    failures: u64,
}

/// What was copied, and the daemon is to be told of.
struct Chunk {
    /// Where it begins in the bytes of the write.
    from: usize,
    /// Where it lies in the reserve.
    range: Range<u64>,
    sums: Vec<u64>,
}

impl<'a> Writing<'a> {
    pub(crate) fn new(file: &'a ClientFile, offset: u64, bytes: &'a [u8]) -> Self {
        Self { file, offset, bytes, written: 0, told: None, failure: None, failures: UNKNOWN }
    }

    /// Writes everything, also if daemons die meanwhile.
    pub(crate) fn through(mut self, line: &mut Line) -> io::Result<()> {
        self.failures = line.session.generation.failures();
        while self.written < self.bytes.len() {
            match self.step(line) {
                Ok(()) => {}
                Err(Trouble::Failed(error)) => return Err(error),
                Err(Trouble::Lost) => self.after_loss(line)?,
            }
        }
        self.file.asked(self.failures);
        self.file.report(self.failure.unwrap_or_default())
    }

    /// Copies the next chunk, hears of the one before, and tells of this one.
    fn step(&mut self, line: &mut Line) -> Result<(), Trouble> {
        let file = self.file.id(line)?;
        let from = self.written + self.told.as_ref().map_or(0, |range| (range.end - range.start) as usize);
        let copied = self.copy(line, file, from);
        // Nothing is returned before the answer was read: the next request would get it.
        self.hear(line)?;
        match copied? {
            Some(chunk) => self.tell(line, file, chunk),
            None if from < self.bytes.len() => self.ask(line, file, from),
            None => Ok(()),
        }
    }

    /// Copies a chunk to memory that is granted already, if there is any.
    fn copy(&self, line: &mut Line, file: u64, from: usize) -> Result<Option<Chunk>, Trouble> {
        let rest = &self.bytes[from..];
        if rest.is_empty() {
            return Ok(None);
        }
        let offset = self.offset + from as u64;
        let Some(place) = line.place(file, offset)? else { return Ok(None) };
        let (rest_bytes, room) = (rest.len() as u64, place.end - place.start);
        // If memory is scarce, half of it: the other half is filled while the daemon is asked for
        // more.
        let is_scarce = room < rest_bytes && room > AHEAD_SMALL_BYTES;
        let most = if is_scarce { room.div_ceil(2).next_multiple_of(PAGE_BYTES) } else { room };
        let bytes = rest_bytes.min(CHUNK_BYTES).min(most).min(room);
        let sums = line.session.reserve.fill(place.start, offset, &rest[..bytes as usize])?;
        Ok(Some(Chunk { from, range: place.start..place.start + bytes, sums }))
    }

    fn tell(&mut self, line: &mut Line, file: u64, chunk: Chunk) -> Result<(), Trouble> {
        let Chunk { from, range, sums } = chunk;
        let (offset, bytes) = (self.offset + from as u64, range.end - range.start);
        line.filled(&range, file, offset + bytes);
        let rest = self.bytes.len() as u64 - from as u64 - bytes;
        let is_small = self.bytes.len() as u64 <= AHEAD_SMALL_BYTES / 2;
        let ahead = if is_small { AHEAD_SMALL_BYTES } else { AHEAD_BYTES };
        let wanted = rest.clamp(ahead, GRANT_BYTES_MAX.max(ahead));
        let kept = line.spare_bytes();
        let ask_bytes = if kept < wanted / 2 { wanted - kept } else { 0 };
        let part = NodePart { offset, at: range.start, bytes };
        let fill = NodeFill { file, part, modified_ns: nanoseconds(SystemTime::now()), ask_bytes, sums };
        self.told = Some(range);
        line.say(&NodeRequest::Fill(fill))
    }

    /// Waits for what the daemon says to the last chunk.
    fn hear(&mut self, line: &mut Line) -> Result<(), Trouble> {
        if self.told.is_none() {
            return Ok(());
        }
        let (reply, _) = line.answer()?;
        self.failure.get_or_insert(reply.failure);
        let range = self.told.take().unwrap_or_default();
        match done(reply) {
            Ok(NodeReplyKind::Granted { at, bytes }) => {
                self.written += (range.end - range.start) as usize;
                line.granted(at, bytes);
                Ok(())
            }
            outcome => {
                line.granted(range.start, range.end - range.start);
                Err(outcome.map_or_else(|error| error, |_| strange()).into())
            }
        }
    }

    /// Waits for memory.
    fn ask(&mut self, line: &mut Line, file: u64, from: usize) -> Result<(), Trouble> {
        let in_page = (self.offset + from as u64) % PAGE_BYTES;
        let bytes = (in_page + (self.bytes.len() - from) as u64).min(GRANT_BYTES_MAX);
        let reply = line.call(&NodeRequest::Ask { file, bytes }, None)?;
        self.failure.get_or_insert(reply.failure);
        let NodeReplyKind::Granted { at, bytes } = done(reply)? else { return Err(strange().into()) };
        line.granted(at, bytes);
        Ok(())
    }

    /// The daemon is dead. If the next one does not regard the memory of the last chunk as granted
    /// any more, that is in the journal.
    fn after_loss(&mut self, line: &mut Line) -> io::Result<()> {
        self.failures = UNKNOWN;
        let inner = &self.file.inner;
        let is_same = line.connect_again(&inner.connect, inner.group, &inner.sessions)?;
        if let Some(range) = self.told.take().filter(|range| is_same && !line.holds(range)) {
            self.written += (range.end - range.start) as usize;
        }
        Ok(())
    }
}
