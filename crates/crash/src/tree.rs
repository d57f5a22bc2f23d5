//! The files of a directory at one moment. Trees share the bytes of files until these are changed.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, OnceLock},
};

use outcrop_layers::files::{Files, read_whole};
use twox_hash::XxHash3_64;

/// Files and directories by name, relative to the root, with `/` between the parts of a name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// `None` is a directory.
    pub(crate) nodes: BTreeMap<String, Option<Arc<Content>>>,
}

impl Tree {
    /// A copy of all files of another tree.
    pub fn copy_of(files: &dyn Files) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.copy_dir(files, "")?;
        Ok(tree)
    }

    fn copy_dir(&mut self, files: &dyn Files, dir: &str) -> io::Result<()> {
        for name in files.list(dir)? {
            let name = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let content = match files.list(&name) {
                Ok(_) => None,
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    Some(Arc::new(Content::from(read_whole(files, &name, BYTES_MAX)?)))
                }
                Err(error) => return Err(error),
            };
            let is_dir = content.is_none();
            self.nodes.insert(name.clone(), content);
            if is_dir {
                self.copy_dir(files, &name)?;
            }
        }
        Ok(())
    }

    /// The names of all files, and their bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.nodes.iter().filter_map(|(name, content)| Some((name.as_str(), content.as_ref()?.bytes())))
    }

    /// Those whose names start with `prefix`.
    pub fn files_below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let from_here = self.nodes.range(prefix.to_owned()..).take_while(move |(name, _)| name.starts_with(prefix));
        from_here.filter_map(|(name, content)| Some((name.as_str(), content.as_ref()?.bytes())))
    }

    /// The bytes of a file.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        Some(self.nodes.get(name)?.as_ref()?.bytes())
    }

    /// The digest of a file, which is equal for equal bytes.
    pub fn digest_of(&self, name: &str) -> Option<u64> {
        Some(self.nodes.get(name)?.as_ref()?.digest())
    }

    /// Replaces the bytes of a file, as damage or another program would do. Creates the file and
    /// its directories if necessary.
    pub fn put(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        for (end, _) in name.match_indices('/') {
            self.nodes.entry(name[..end].to_owned()).or_default();
        }
        self.nodes.insert(name.to_owned(), Some(Arc::new(Content::from(bytes.into()))));
    }

    /// A digest that is equal for equal trees.
    pub(crate) fn digest(&self) -> u64 {
        let mut listed = Vec::with_capacity(64 * self.nodes.len());
        for (name, content) in &self.nodes {
            listed.extend_from_slice(name.as_bytes());
            // No name contains these bytes.
            match content {
                None => listed.extend([0xFF, 0]),
                Some(content) => {
                    listed.extend([0xFF, 1]);
                    listed.extend(content.digest().to_le_bytes());
                }
            }
        }
        XxHash3_64::oneshot(&listed)
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let brief = self.nodes.iter().map(|(name, content)| match content {
            None => (name, "directory".to_owned()),
            Some(content) => (name, format!("{} bytes, digest {:016x}", content.bytes().len(), content.digest())),
        });
        f.debug_map().entries(brief).finish()
    }
}

/// The largest file that is held in memory.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// The bytes of a file, and their digest once it has been computed.
#[derive(Clone, Default)]
pub(crate) struct Content {
    bytes: Vec<u8>,
    digest: OnceLock<u64>,
}

impl Content {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, for changing them. Drops the digest.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        self.digest.take();
        &mut self.bytes
    }

    /// Writes at an offset, which may be beyond the end. The gap is filled with zeros.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let whole = self.bytes_mut();
        let end = at + bytes.len();
        if whole.len() < end {
            whole.resize(end, 0);
        }
        whole[at..end].copy_from_slice(bytes);
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| XxHash3_64::oneshot(&self.bytes))
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, digest: OnceLock::new() }
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Content {}
