//! Writes the shards of a file, as its bytes come.

use std::{io, sync::Arc};

use outcrop_format::{PeerPlace, PeerRequest, ShardHeader, ShardedFile, shard_name};
use outcrop_parity::{Coder, Part};
use twox_hash::XxHash3_128;

use super::{
    line::Line,
    peers::{Peers, of_rank},
};

/// A part of a file, and whether it is durable and has its name.
pub(super) type Committed = (Part, io::Result<()>);

/// The shards of a file that are being written. If it is dropped, they are removed again.
pub(super) struct ShardWriter {
    peers: Arc<Peers>,
    /// With as many bytes as have come so far.
    file: ShardedFile,
    coder: Coder,
    hash: XxHash3_128,
    /// Bytes of a stripe that is not full yet.
    rest: Vec<u8>,
    /// The stripes that are written.
    stripes: u64,
    targets: Vec<(Part, Line)>,
}

impl ShardWriter {
    /// Begins these parts of a file that will have about `bytes` bytes. What is known of `file` in
    /// advance are its name, code and owner.
    pub(super) fn begin(
        peers: &Arc<Peers>,
        place: &PeerPlace,
        name: &str,
        file: ShardedFile,
        parts: &[Part],
        bytes: u64,
    ) -> io::Result<Self> {
        let bytes = ShardedFile { bytes, ..file }.shard_bytes();
        let mut targets = Vec::with_capacity(parts.len());
        for part in parts {
            let name = shard_name(name, part.index);
            let request = PeerRequest::Begin { place: place.clone(), name, bytes };
            targets.push((*part, begin(peers, part.holder, &request.encode())?));
        }
        let file = ShardedFile { bytes: 0, ..file };
        let (coder, rest) = (Coder::default(), Vec::new());
        let peers = Arc::clone(peers);
        Ok(Self { peers, file, coder, hash: XxHash3_128::new(), rest, stripes: 0, targets })
    }

    /// How many bytes have come.
    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes
    }

    /// The next bytes of the file.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.hash.write(bytes);
        let stripe = self.file.stripe_bytes() as usize;
        while !bytes.is_empty() {
            if self.rest.is_empty() && bytes.len() >= stripe {
                let (first, others) = bytes.split_at(stripe);
                self.file.bytes += first.len() as u64;
                self.stripe(first)?;
                bytes = others;
                continue;
            }
            let (part, others) = bytes.split_at(bytes.len().min(stripe - self.rest.len()));
            self.rest.extend_from_slice(part);
            self.file.bytes += part.len() as u64;
            bytes = others;
            if self.rest.len() == stripe {
                let rest = std::mem::take(&mut self.rest);
                self.stripe(&rest)?;
                self.rest = rest;
                self.rest.clear();
            }
        }
        Ok(())
    }

    fn stripe(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self { coder, file, targets, stripes, .. } = self;
        coder.encode(file, *stripes, bytes, |index, chunk| {
            let mut check = None;
            for (part, line) in targets.iter_mut().filter(|(part, _)| part.index == index) {
                let check = check.get_or_insert_with(|| file.chunk_check(*stripes, index, chunk).to_le_bytes());
                let sent = line.send(&[&[PeerRequest::APPEND], chunk, &*check]);
                sent.map_err(|error| of_rank(part.holder, &error))?;
            }
            Ok::<_, io::Error>(())
        })?;
        *stripes += 1;
        Ok(())
    }

    /// Makes all parts durable and gives them their names; their directories are still to be
    /// synced. Returns what happened to each part, and the file. `is_right` says whether it is the
    /// one that it should be; if not, there are no parts.
    pub(super) fn finish(
        mut self,
        is_right: impl FnOnce(&ShardedFile) -> bool,
    ) -> io::Result<(ShardedFile, Vec<Committed>)> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            self.stripe(&rest)?;
        }
        self.file.check = self.hash.finish_128();
        let file = self.file;
        if !is_right(&file) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its bytes are not those that were written"));
        }
        // All of them sync at the same time.
        for (part, line) in &mut self.targets {
            let commit = PeerRequest::Commit(ShardHeader { file, index: part.index }).encode();
            line.send(&[&commit]).and_then(|()| line.flush()).map_err(|error| of_rank(part.holder, &error))?;
        }
        let mut committed = Vec::with_capacity(self.targets.len());
        for (part, mut line) in self.targets {
            let done = line.done();
            if done.is_ok() {
                self.peers.give_back(part.holder, line);
            }
            committed.push((part, done.map_err(|error| of_rank(part.holder, &error))));
        }
        Ok((file, committed))
    }
}

/// Begins a shard, on a connection that is alive.
fn begin(peers: &Peers, holder: u32, request: &[u8]) -> io::Result<Line> {
    let say = |line: &mut Line| line.send(&[request]).and_then(|()| line.flush());
    let mut line = peers.line(holder)?;
    if say(&mut line).is_err() {
        line = peers.call(holder)?;
        say(&mut line).map_err(|error| of_rank(holder, &error))?;
    }
    Ok(line)
}
