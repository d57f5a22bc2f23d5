//! Packs that are still in host memory, as [`Files`]: they are read in the same way as packs in
//! directories.

use std::{collections::HashMap, io, sync::Arc};

use outcrop_engine::{Handle, Held};
use outcrop_format::{PackId, pack_name, rank_name};
use outcrop_layers::files::{File, FileLock, Files};

use super::{chain::Link, state::SessionCore};
use crate::Error;

/// Packs in host memory.
pub(crate) struct HostFiles {
    packs: HashMap<String, Arc<dyn File>>,
}

struct HostFile(Held);

impl HostFiles {
    /// Those packs of `chain` that are in host memory.
    pub(crate) fn new(handle: &mut Handle, session: &SessionCore, chain: &[Link]) -> Self {
        let mut packs: HashMap<String, Arc<dyn File>> = HashMap::new();
        for link in chain {
            let Some(key) = link.key.filter(|key| handle.is_in_front(*key)) else { continue };
            // A pack that was evicted in the meantime is read from a directory.
            if let Ok(held) = handle.read::<Error>(key, false, |_| Ok(())) {
                packs.insert(path(session, link.pack.id), Arc::new(HostFile(held)));
            }
        }
        Self { packs }
    }

    /// Whether a pack is in host memory.
    pub(crate) fn has(&self, id: PackId, session: &SessionCore) -> bool {
        self.packs.contains_key(&path(session, id))
    }
}

/// The file of a pack.
pub(crate) fn path(session: &SessionCore, id: PackId) -> String {
    format!("{}/{}/{}", session.name, rank_name(id.rank), pack_name(id.number))
}

impl File for HostFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn write_at(&self, _at: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(bytes.len()));
        let source = end.and_then(|end| self.0.get(at as usize..end)).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(source);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Files for HostFiles {
    fn location(&self) -> String {
        "host memory".to_owned()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.packs.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, _dir: &str) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn create(&self, _name: &str, _bytes: u64) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove_dir(&self, _dir: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Option<FileLock>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
