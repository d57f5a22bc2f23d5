//! A connection between two ranks: frames in both directions, and the greeting.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use outcrop_format::{
    PEER_FRAME_BYTES_MAX, PEER_HELLO_BYTES, PeerFailure, PeerHello, PeerNonce, PeerProof, PeerReply, PeerRequest,
    PeerSecret, PeerSide,
};
use outcrop_ranks::rand_bytes;

/// How long the other side may take for the greeting. Whoever does not know the secret cannot keep
/// a connection for longer.
const GREETING: Duration = Duration::from_secs(10);
/// How long the other side may take for anything else, such as making a shard durable.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to another rank.
pub(super) struct Line {
    reader: BufReader<TcpStream>,
    writer: BufWriter<TcpStream>,
    frame: Vec<u8>,
    /// When the greeting must be over.
    greeting_ends: Option<Instant>,
}

impl Line {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(GREETING))?;
        let greeting_ends = Instant::now().checked_add(GREETING);
        let reader = BufReader::with_capacity(4 << 10, stream.try_clone()?);
        Ok(Self { reader, writer: BufWriter::with_capacity(4 << 10, stream), frame: Vec::new(), greeting_ends })
    }

    /// Greets the rank `to`, which was connected to.
    pub(super) fn call(stream: TcpStream, secret: &PeerSecret, (from, to): (u32, u32)) -> io::Result<Self> {
        let mut line = Self::new(stream)?;
        let hello = PeerHello { from, to, nonce: nonce()? };
        line.say(&hello.encode())?;
        let theirs: PeerNonce = line.hear()?;
        let proof = PeerProof::from(line.hear::<32>()?);
        if proof != hello.proof(secret, &theirs, PeerSide::Server) {
            return Err(denied("somebody answers there who is not of this run"));
        }
        line.say(&hello.proof(secret, &theirs, PeerSide::Client).bytes())?;
        line.greeted(Some(PATIENCE))?;
        Ok(line)
    }

    /// Lets somebody in who knows the secret and wants this rank. Returns the rank that has called.
    pub(super) fn answer(stream: TcpStream, secret: &PeerSecret, me: u32) -> io::Result<(Self, u32)> {
        let mut line = Self::new(stream)?;
        let hello = PeerHello::decode(&line.hear::<PEER_HELLO_BYTES>()?).map_err(|error| denied(&error.to_string()))?;
        if hello.to != me {
            return Err(denied("it wants another rank"));
        }
        let mine = nonce()?;
        line.say(&mine)?;
        line.say(&hello.proof(secret, &mine, PeerSide::Server).bytes())?;
        let proof = PeerProof::from(line.hear::<32>()?);
        if proof != hello.proof(secret, &mine, PeerSide::Client) {
            return Err(denied("it does not know the secret of this run"));
        }
        // A rank may be silent for as long as it computes.
        line.greeted(None)?;
        Ok((line, hello.from))
    }

    fn greeted(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.greeting_ends = None;
        self.reader.get_ref().set_read_timeout(patience)?;
        self.reader.get_ref().set_write_timeout(Some(PATIENCE))
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.writer.flush()
    }

    fn hear<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        let Some(end) = self.greeting_ends else {
            self.reader.read_exact(&mut bytes)?;
            return Ok(bytes);
        };
        // Also somebody who sends a byte from time to time must be done by then.
        let mut at = 0;
        while at < COUNT {
            let rest = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero());
            self.reader.get_ref().set_read_timeout(Some(rest.ok_or(io::ErrorKind::TimedOut)?))?;
            match self.reader.read(&mut bytes[at..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Sends a frame that consists of these parts, sooner or later.
    pub(super) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.writer.write_all(&(bytes as u32).to_le_bytes())?;
        parts.iter().try_for_each(|part| self.writer.write_all(part))
    }

    /// Sends what is not sent yet.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// The next frame.
    pub(super) fn receive(&mut self) -> io::Result<&[u8]> {
        let bytes = u32::from_le_bytes(self.hear()?);
        if bytes > PEER_FRAME_BYTES_MAX {
            return Err(denied("a message that is too long"));
        }
        self.frame.resize(bytes as usize, 0);
        self.reader.read_exact(&mut self.frame)?;
        Ok(&self.frame)
    }

    /// Asks for something, and waits for the reply.
    pub(super) fn ask(&mut self, request: &PeerRequest<'_>) -> io::Result<PeerReply<'_>> {
        self.send(&[&request.encode()])?;
        self.flush()?;
        self.reply()
    }

    /// The reply to a request. What failed on the other side is an error.
    pub(super) fn reply(&mut self) -> io::Result<PeerReply<'_>> {
        match PeerReply::decode(self.receive()?).map_err(|error| denied(&error.to_string()))? {
            PeerReply::Failed(failure, reason) => Err(io::Error::new(kind(failure), reason)),
            reply => Ok(reply),
        }
    }

    /// The reply to a request that was carried out, or not.
    pub(super) fn done(&mut self) -> io::Result<()> {
        match self.reply()? {
            PeerReply::Done => Ok(()),
            _ => Err(denied("another reply than the one that was expected")),
        }
    }

    /// A handle by which another thread can end the connection.
    pub(super) fn stream(&self) -> io::Result<TcpStream> {
        self.reader.get_ref().try_clone()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The other side must not wait for a thread here that still has a handle.
        let _ = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}

fn nonce() -> io::Result<PeerNonce> {
    let mut nonce = PeerNonce::default();
    let (first, second) = nonce.split_at_mut(16);
    first.copy_from_slice(&rand_bytes()?);
    second.copy_from_slice(&rand_bytes()?);
    Ok(nonce)
}

/// A secret for a new run.
pub(super) fn secret() -> io::Result<PeerSecret> {
    nonce()
}

/// The error if the other side does not keep to the protocol.
fn denied(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, problem)
}

fn kind(failure: PeerFailure) -> io::ErrorKind {
    match failure {
        PeerFailure::Missing => io::ErrorKind::NotFound,
        PeerFailure::Full => io::ErrorKind::StorageFull,
        PeerFailure::Other => io::ErrorKind::Other,
    }
}

/// What of a failure the other side must know.
pub(super) fn failure(error: &io::Error) -> PeerFailure {
    match error.kind() {
        io::ErrorKind::NotFound => PeerFailure::Missing,
        io::ErrorKind::StorageFull => PeerFailure::Full,
        _ => PeerFailure::Other,
    }
}
