//! A version that can be restored, of this library or of VELOC, with every byte checked.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use outcrop::catalog::{Catalog, Reader};
use outcrop_format::rank_name;

use crate::{
    failure::{Failure, Result},
    number,
    old::OldFile,
};

/// The region that holds a file of the program's own; the others are called after the program's
/// numbers.
pub(crate) const FILE_REGION: &str = "file";

/// How many bytes are read at once to be checked or copied: enough for several threads.
const PIECE_BYTES: u64 = 32 << 20;

/// Whose versions, where.
#[derive(Clone)]
pub(crate) struct Shelves {
    /// The nearest first.
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) session: String,
    pub(crate) rank: u32,
}

/// What one rank has in a version.
pub(crate) enum Saved {
    Here(Reader),
    Old(OldFile),
}

impl Shelves {
    /// The numbers of versions that there is anything of, ascending.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let rank = Path::new(&self.session).join(rank_name(self.rank));
        // A directory that is not there has none.
        let may_have = |directory: &&PathBuf| !matches!(directory.join(&rank).try_exists(), Ok(false));
        for directory in self.directories.iter().filter(may_have) {
            numbers.extend(Catalog::open(directory)?.numbers(&self.session, self.rank)?);
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// A version from the nearest directory that has it undamaged: every byte has been read once.
    pub(crate) fn whole(&self, number: u64) -> Result<Saved> {
        let mut problems: Vec<Failure> = Vec::new();
        for directory in &self.directories {
            match self.reader(directory, number).and_then(|reader| verify(&reader).map(|()| reader)) {
                Ok(reader) => return Ok(Saved::Here(reader)),
                Err(failure) => problems.push(failure.at(directory.display())),
            }
        }
        Err(Failure::all(&problems))
    }

    fn reader(&self, directory: &Path, number: u64) -> Result<Reader> {
        let catalog = Catalog::open(directory)?;
        let missing = || Failure::new(format!("it has no version {} of {}", number::version(number), self.session));
        let manifest = catalog.manifest(&self.session, self.rank, number)?.ok_or_else(missing)?;
        Ok(catalog.reader(&manifest)?)
    }
}

/// Reads everything, so that what is damaged is found before anything of the program is
/// overwritten.
fn verify(reader: &Reader) -> Result<()> {
    for region in &reader.manifest().regions {
        pieces(reader, &region.name, |_| Ok(()))?;
    }
    Ok(())
}

/// Hands out a region piece by piece.
fn pieces(reader: &Reader, region: &str, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let bytes = reader.manifest().region(region).map_or(0, |region| region.blocks.bytes());
    let mut piece = vec![0; PIECE_BYTES.min(bytes) as usize];
    let mut at = 0;
    while at < bytes {
        let piece = &mut piece[..PIECE_BYTES.min(bytes - at) as usize];
        reader.read(region, at, piece, &|_| {})?;
        take(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

impl Saved {
    /// The lengths of the regions, by the program's numbers.
    pub(crate) fn regions(&self) -> BTreeMap<i32, u64> {
        match self {
            Self::Here(reader) => {
                let regions = reader.manifest().regions.iter();
                regions.filter_map(|region| Some((region.name.parse().ok()?, region.blocks.bytes()))).collect()
            }
            Self::Old(old) => old.regions.iter().map(|(id, (_, bytes))| (*id, *bytes)).collect(),
        }
    }

    /// Puts a region into memory of the same length.
    pub(crate) fn read(&self, id: i32, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Here(reader) => Ok(reader.read(&id.to_string(), 0, into, &|_| {})?),
            Self::Old(old) => {
                let missing = || Failure::new(format!("{} has no region {id}", old.path.display()));
                let (at, _) = *old.regions.get(&id).ok_or_else(missing)?;
                old.read_at(at, into)
            }
        }
    }

    /// Whether it has a file of the program's own.
    pub(crate) fn has_file(&self) -> bool {
        match self {
            Self::Here(reader) => reader.manifest().region(FILE_REGION).is_some(),
            Self::Old(_) => true,
        }
    }

    /// Writes the program's own file to `path`.
    pub(crate) fn write_file(&self, path: &Path) -> Result<()> {
        let failed = |error| Failure::new(format!("{} cannot be written: {error}", path.display()));
        let mut file = File::create(path).map_err(failed)?;
        match self {
            Self::Here(reader) => pieces(reader, FILE_REGION, |piece| file.write_all(piece).map_err(failed)),
            Self::Old(old) => {
                let mut piece = vec![0; PIECE_BYTES.min(old.bytes()) as usize];
                let mut at = 0;
                while at < old.bytes() {
                    let piece = &mut piece[..PIECE_BYTES.min(old.bytes() - at) as usize];
                    old.read_at(at, piece)?;
                    file.write_all(piece).map_err(failed)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
        }
    }
}
