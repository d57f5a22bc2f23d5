//! A pack, after its header and, if needed, its index have been read and verified.

use std::{collections::BTreeMap, io, sync::Arc};

use outcrop_format::{HashKind, Index, ManifestPack, PAGE_BYTES, PackHeader, PackId, pack_name, rank_name};
use outcrop_layers::files::File;

use crate::{Error, Result, buffer::Buffer, open::OpenFiles};

/// A pack.
pub(crate) struct Pack {
    pub(crate) id: PackId,
    /// Its file, for messages.
    pub(crate) path: String,
    open: Arc<OpenFiles>,
    name: String,
    pub(crate) header: PackHeader,
    index: Option<Index>,
}

/// The name of the file of a pack.
pub(crate) fn file_name(session: &str, id: PackId) -> String {
    format!("{session}/{}/{}", rank_name(id.rank), pack_name(id.number))
}

/// Whether a file that cannot be read is damaged, as opposed to a failure of the medium or the
/// system.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | UnexpectedEof | InvalidData | IsADirectory | NotADirectory)
}

/// The error for a file that cannot be read: damage, or what the medium reports.
pub(crate) fn unreadable(path: String, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::Damaged { path, reason: "it is missing".to_owned() },
        io::ErrorKind::UnexpectedEof => Error::Damaged { path, reason: "it is cut off".to_owned() },
        _ if is_damage(&source) => Error::Damaged { path, reason: source.to_string() },
        _ => Error::Storage { attempt: "read", path, source },
    }
}

impl Pack {
    /// Opens a pack, and verifies everything except its blocks.
    pub(crate) fn open(open: &Arc<OpenFiles>, session: &str, id: PackId, with_index: bool) -> Result<Self> {
        let name = file_name(session, id);
        let path = format!("{}/{name}", open.files.location());
        let failed = |source| unreadable(path.clone(), source);
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        let file = open.get(&name).map_err(failed)?;
        let file_bytes = file.bytes().map_err(failed)?;
        if file_bytes < PAGE_BYTES as u64 {
            return Err(damaged(format!("it is cut off: {file_bytes} bytes are less than its header")));
        }
        let mut page = [0; PAGE_BYTES];
        file.read_at(0, &mut page).map_err(failed)?;
        let header = PackHeader::decode(&page).map_err(|error| damaged(error.to_string()))?;
        if header.origin().id != id {
            return Err(damaged(format!("its header says that it is {}", header.origin().id)));
        }
        if header.file_bytes() != file_bytes {
            let reason = format!("it is {file_bytes} bytes long, and should be {}", header.file_bytes());
            return Err(damaged(reason));
        }
        let index = if with_index {
            let mut buffer = Buffer::default();
            let bytes = buffer.read(&*file, header.index_range()).map_err(failed)?;
            Some(header.decode_index(bytes).map_err(|error| damaged(error.to_string()))?)
        } else {
            None
        };
        Ok(Self { id, path, open: Arc::clone(open), name, header, index })
    }

    /// Its file, opened if necessary.
    pub(crate) fn file(&self) -> io::Result<Arc<dyn File>> {
        self.open.get(&self.name)
    }

    /// Checks that it is the pack that a manifest names.
    pub(crate) fn check_named(&self, named: &ManifestPack) -> Result<()> {
        if (self.header.file_bytes(), self.header.index_check()) == (named.file_bytes, named.index_check) {
            return Ok(());
        }
        let reason = "it is not the pack that the manifest lists: its index is another one".to_owned();
        Err(Error::Damaged { path: self.path.clone(), reason })
    }

    /// Its header and index.
    pub(crate) fn into_index(self) -> Option<(PackHeader, Index)> {
        Some((self.header, self.index?))
    }

    pub(crate) fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// How its blocks are hashed.
    pub(crate) fn hash_kind(&self) -> HashKind {
        self.header.origin().hash_kind
    }
}

/// Packs that have been opened, for reading several versions that share most of their packs.
#[derive(Default)]
pub(crate) struct KnownPacks(BTreeMap<PackId, Arc<Pack>>);

impl KnownPacks {
    /// A pack, opened unless it is known.
    pub(crate) fn get(
        &mut self,
        open: &Arc<OpenFiles>,
        session: &str,
        id: PackId,
        with_index: bool,
    ) -> Result<Arc<Pack>> {
        if let Some(pack) = self.0.get(&id).filter(|pack| pack.index.is_some() || !with_index) {
            return Ok(Arc::clone(pack));
        }
        let pack = Arc::new(Pack::open(open, session, id, with_index)?);
        self.0.insert(id, Arc::clone(&pack));
        Ok(pack)
    }

    /// Forgets all packs but these, so that only the indexes of one version are in memory.
    pub(crate) fn keep(&mut self, is_kept: impl Fn(PackId) -> bool) {
        self.0.retain(|&id, _| is_kept(id));
    }
}
