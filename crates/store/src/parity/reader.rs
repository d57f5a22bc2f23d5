//! Reads a file from its shards.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use outcrop_format::{PeerPlace, PeerReply, PeerRequest, SHARD_CHECK_BYTES, ShardedFile, shard_name};
use outcrop_layers::files::File;
use outcrop_parity::{Coder, Kept, Part};

use super::{
    line::Line,
    peers::{Peers, of_rank},
};

/// How many stripes are read at once.
pub(super) const WINDOW: u64 = 8;

/// A file that others keep.
pub(super) struct ShardReader {
    peers: Arc<Peers>,
    place: PeerPlace,
    name: String,
    kept: Kept,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    coder: Coder,
    /// The last bytes that were read, and from which stripe on.
    first: u64,
    window: Vec<u8>,
    /// Ranks that could not be reached.
    unreachable: BTreeSet<u32>,
}

impl ShardReader {
    /// The file `name`, of which enough is kept.
    pub(super) fn new(peers: &Arc<Peers>, place: PeerPlace, name: &str, kept: Kept) -> Self {
        Self { peers: Arc::clone(peers), place, name: name.to_owned(), kept, state: Mutex::default() }
    }

    /// The bytes of these stripes, at most [`WINDOW`]. Chunks that are damaged or cannot be had are
    /// replaced by others.
    fn fetch(&self, state: &mut State, stripes: Range<u64>) -> io::Result<Vec<u8>> {
        let file = &self.kept.file;
        let needed = usize::from(file.data);
        let mut left: Vec<Part> = self.kept.all().filter(|part| !state.unreachable.contains(&part.holder)).collect();
        // The file's own bytes first: they need no decoding.
        left.reverse();
        let mut whole: Vec<(Part, Vec<u8>)> = Vec::with_capacity(needed);
        let mut problem: Option<io::Error> = None;
        while whole.len() < needed {
            let mut asked: Vec<(Part, Line)> = Vec::new();
            while whole.len() + asked.len() < needed {
                let Some(part) = left.pop() else { return Err(self.too_few(whole.len(), problem)) };
                let has = |other: &Part| other.index == part.index;
                if whole.iter().any(|(other, _)| has(other)) || asked.iter().any(|(other, _)| has(other)) {
                    continue;
                }
                match self.ask(part, &stripes) {
                    Ok(line) => asked.push((part, line)),
                    Err(error) => {
                        state.unreachable.insert(part.holder);
                        problem = Some(error);
                    }
                }
            }
            for (part, mut line) in asked {
                let heard = match line.reply() {
                    Ok(PeerReply::Bytes(bytes)) => Ok(bytes.to_vec()),
                    Ok(_) => Err(io::Error::other("another reply than bytes")),
                    Err(error) => Err(error),
                };
                match heard.and_then(|bytes| checked(file, &stripes, part.index, bytes)) {
                    Ok(bytes) => {
                        self.peers.give_back(part.holder, line);
                        whole.push((part, bytes));
                    }
                    Err(error) => {
                        let (rank, name) = (part.holder, shard_name(&self.name, part.index));
                        tracing::warn!(rank, name, %error, "a shard cannot be used");
                        problem = Some(of_rank(rank, &error));
                    }
                }
            }
        }
        let mut bytes = Vec::new();
        for stripe in stripes.clone() {
            let from = (file.chunk_at(stripe) - file.chunk_at(stripes.start)) as usize;
            let chunk = file.chunk_bytes(stripe);
            let chunks: Vec<(u16, &[u8])> =
                whole.iter().map(|(part, all)| (part.index, &all[from..from + chunk])).collect();
            let decoded = state.coder.decode(file, stripe, &chunks);
            bytes.extend(decoded.ok_or_else(|| self.too_few(chunks.len(), None))?);
        }
        Ok(bytes)
    }

    /// Asks for a part of these stripes.
    fn ask(&self, part: Part, stripes: &Range<u64>) -> io::Result<Line> {
        let range = range(&self.kept.file, stripes);
        let request = PeerRequest::Read {
            place: self.place.clone(),
            name: shard_name(&self.name, part.index),
            at: range.start,
            bytes: (range.end - range.start) as u32,
        };
        let request = request.encode();
        let say = |line: &mut Line| line.send(&[&request]).and_then(|()| line.flush());
        let mut line = self.peers.line(part.holder)?;
        if say(&mut line).is_err() {
            line = self.peers.call(part.holder)?;
            say(&mut line).map_err(|error| of_rank(part.holder, &error))?;
        }
        Ok(line)
    }

    fn too_few(&self, found: usize, problem: Option<io::Error>) -> io::Error {
        too_few(&self.name, &self.kept, found, problem.as_ref())
    }
}

/// The error if a file cannot be put together again.
pub(super) fn too_few(name: &str, kept: &Kept, found: usize, problem: Option<&io::Error>) -> io::Error {
    let (needed, count) = (kept.file.data, kept.file.count);
    let detail = problem.map_or_else(String::new, |problem| format!("; {problem}"));
    let text = format!(
        "of the {count} shards of {name}, {needed} are needed and {found} can be read: more nodes are lost than parity covers; \
         bring one of them back, or use another version{detail}"
    );
    // Whoever could not be reached may have it.
    let is_damage = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
    };
    match problem {
        Some(problem) if !is_damage(problem) => io::Error::other(text),
        _ => io::Error::new(io::ErrorKind::InvalidData, text),
    }
}

/// Where the chunks of these stripes are in a shard, with their checksums.
fn range(file: &ShardedFile, stripes: &Range<u64>) -> Range<u64> {
    let last = stripes.end - 1;
    let end = file.chunk_at(last) + file.chunk_bytes(last) as u64 + u64::from(SHARD_CHECK_BYTES);
    file.chunk_at(stripes.start)..end
}

/// Compares all chunks of a part with their checksums.
fn checked(file: &ShardedFile, stripes: &Range<u64>, index: u16, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let start = file.chunk_at(stripes.start);
    for stripe in stripes.clone() {
        let (at, chunk) = ((file.chunk_at(stripe) - start) as usize, file.chunk_bytes(stripe));
        let (Some(content), Some(check)) = (bytes.get(at..at + chunk), bytes.get(at + chunk..at + chunk + 16)) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if file.chunk_check(stripe, index, content).to_le_bytes() != check {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("chunk {stripe} is damaged")));
        }
    }
    Ok(bytes)
}

impl File for ShardReader {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.kept.file.bytes)
    }

    fn write_at(&self, _at: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn read_at(&self, at: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let file = &self.kept.file;
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > file.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut at, stripe_bytes) = (at, file.stripe_bytes());
        while !bytes.is_empty() {
            let stripe = at / stripe_bytes;
            let known = state.first * stripe_bytes..state.first * stripe_bytes + state.window.len() as u64;
            if !known.contains(&at) {
                let last = (at + bytes.len() as u64 - 1) / stripe_bytes;
                let stripes = stripe..(last + 1).min(stripe + WINDOW);
                let window = self.fetch(&mut state, stripes)?;
                (state.first, state.window) = (stripe, window);
                continue;
            }
            let from = (at - known.start) as usize;
            let count = bytes.len().min(state.window.len() - from);
            let (first, others) = bytes.split_at_mut(count);
            first.copy_from_slice(&state.window[from..from + count]);
            at += count as u64;
            bytes = others;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
