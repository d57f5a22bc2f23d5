//! Checkpoint files, as programs have always written them: all of the state, fsync, rename.
//!
//! A file is a magic number, the number of parts, and of each part its name, the layout of its
//! elements and its bytes; then a checksum of all. Numbers have 64 bits, little-endian.

use std::{
    fs::{self, File, TryLockError},
    hash::Hasher,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use twox_hash::XxHash3_64;

use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"OCSTATE1";

/// A part of the state.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) layout: u64,
    pub(crate) bytes: &'a [u8],
}

/// A checkpoint file that only this process writes.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    /// What was found: name, layout, bytes.
    found: Vec<(String, u64, Vec<u8>)>,
    /// Locked while this lives.
    _lock: File,
}

impl Checkpoint {
    /// Reads what is there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let lock_path = beside(path, "lock");
        let lock =
            File::options().create(true).append(true).open(&lock_path).map_err(Error::file("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(Error::file("lock", &lock_path)(source)),
        }
        let found = match fs::read(path) {
            Ok(bytes) => decode(&bytes).map_err(|problem| Error::Checkpoint { path: path.to_owned(), problem })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        Ok(Self { path: path.to_owned(), found, _lock: lock })
    }

    /// The bytes of a part, if the file has it.
    pub(crate) fn take(&mut self, name: &str, layout: u64) -> Result<Option<Vec<u8>>> {
        let Some(at) = self.found.iter().position(|(found, ..)| found == name) else { return Ok(None) };
        let (_, found, bytes) = self.found.swap_remove(at);
        if found != layout {
            let problem = format!("the elements of \"{name}\" have another layout than this program's");
            return Err(Error::Checkpoint { path: self.path.clone(), problem });
        }
        Ok(Some(bytes))
    }

    /// Replaces the file. When this returns, it survives a crash; before, the old one does.
    pub(crate) fn write(&self, parts: &[Part<'_>]) -> Result<u64> {
        let draft = beside(&self.path, "draft");
        let failed = || Error::file("write", &draft);
        let file = File::create(&draft).map_err(failed())?;
        let mut out = Hashed { out: BufWriter::with_capacity(1 << 20, file), hash: XxHash3_64::new(), bytes: 0 };
        encode(&mut out, parts).map_err(failed())?;
        let (hash, bytes) = (out.hash.finish(), out.bytes + 8);
        let mut file = out.out;
        file.write_all(&hash.to_le_bytes()).map_err(failed())?;
        let file = file.into_inner().map_err(|error| failed()(error.into_error()))?;
        file.sync_all().map_err(Error::file("sync", &draft))?;
        fs::rename(&draft, &self.path).map_err(Error::file("replace", &self.path))?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(Error::file("sync", parent))?;
        Ok(bytes)
    }
}

/// A file in the same directory, with an ending more.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Hashes what it passes on.
struct Hashed<W> {
    out: W,
    hash: XxHash3_64,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.write(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn encode(out: &mut impl Write, parts: &[Part<'_>]) -> io::Result<()> {
    out.write_all(MAGIC)?;
    out.write_all(&(parts.len() as u64).to_le_bytes())?;
    for part in parts {
        for bytes in [part.name.as_bytes(), part.bytes] {
            out.write_all(&(bytes.len() as u64).to_le_bytes())?;
        }
        out.write_all(&part.layout.to_le_bytes())?;
        out.write_all(part.name.as_bytes())?;
        out.write_all(part.bytes)?;
    }
    Ok(())
}

fn decode(bytes: &[u8]) -> std::result::Result<Vec<(String, u64, Vec<u8>)>, String> {
    let damaged = || "it is damaged".to_owned();
    let (content, hash) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
    let Some(mut rest) = content.strip_prefix(MAGIC) else {
        return Err("it is not a checkpoint of these programs".to_owned());
    };
    if XxHash3_64::oneshot(content) != u64::from_le_bytes(*hash) {
        return Err(damaged());
    }
    let mut take = |count: u64| {
        let (taken, left) = rest.split_at_checked(usize::try_from(count).ok()?)?;
        rest = left;
        Some(taken)
    };
    let mut parts = Vec::new();
    let mut decode = || {
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        for _ in 0..number(take(8)?)? {
            let (name_bytes, bytes, layout) = (number(take(8)?)?, number(take(8)?)?, number(take(8)?)?);
            let name = String::from_utf8(take(name_bytes)?.to_vec()).ok()?;
            parts.push((name, layout, take(bytes)?.to_vec()));
        }
        Some(())
    };
    decode().ok_or_else(damaged)?;
    Ok(parts)
}
