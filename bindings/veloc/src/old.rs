//! Files that VELOC has written: found and read, never changed.
//!
//! A file is the number of regions (u64), for each its number (i32) and length (u64), and then
//! their bytes in that order, all as the machine has them. With a checksum, 32 bytes of SHA-256 lie
//! beside, in the directory of metadata. An aggregated file has those of all ranks one after the
//! other, and where each begins is beside too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{
    config::Config,
    failure::{Failure, Result},
};

/// More regions than any program has: what says so is no such file.
const REGIONS_MAX: u64 = 1 << 20;

/// How many bytes are read at once to be checked.
const PIECE_BYTES: usize = 1 << 20;

/// What one rank has in a checkpoint of VELOC.
#[derive(Debug)]
pub(crate) struct OldFile {
    file: File,
    pub(crate) path: PathBuf,
    start: u64,
    bytes: u64,
    /// Where each region begins, and its length. Nothing if it is a file of the program's own.
    pub(crate) regions: BTreeMap<i32, (u64, u64)>,
}

/// The versions of a checkpoint that VELOC has left for a rank.
pub(crate) fn versions(config: &Config, name: &str, rank: u32) -> Result<BTreeSet<u32>> {
    let mut versions = BTreeSet::new();
    for dir in places(config) {
        let failed = |error: io::Error| Failure::new(format!("{} cannot be listed: {error}", dir.display()));
        let entries = match fs::read_dir(dir) {
            // A directory that is not there has none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let file = entry.map_err(failed)?.file_name();
            let version = |owner: &str| {
                let stem = file.to_str()?.strip_suffix(".dat")?.strip_prefix(name)?;
                let version = stem.strip_prefix('-')?.strip_prefix(owner)?.strip_prefix('-')?.parse::<i32>().ok()?;
                u32::try_from(version).ok()
            };
            let aggregated = || version("agg").filter(|version| offsets(config, name, *version).is_some());
            versions.extend(version(&rank.to_string()).or_else(aggregated));
        }
    }
    Ok(versions)
}

/// Opens what a rank has in a version. With `has_regions`, it must be of VELOC's own making, and
/// not a file of the program's.
pub(crate) fn open(config: &Config, name: &str, rank: u32, version: u32, has_regions: bool) -> Result<OldFile> {
    let mut problems = Vec::new();
    for dir in places(config) {
        let own = dir.join(format!("{name}-{rank}-{version}.dat"));
        let aggregated = dir.join(format!("{name}-agg-{version}.dat"));
        for path in [own, aggregated].into_iter().filter(|path| path.exists()) {
            match open_at(config, name, rank, version, &path) {
                Ok(old) if has_regions && old.regions.is_empty() => problems.push(format!(
                    "{} is damaged: it is not as long as the regions that it should have",
                    path.display()
                )),
                Ok(old) => return Ok(old),
                Err(error) => problems.push(format!("{} cannot be used: {error}", path.display())),
            }
        }
    }
    if problems.is_empty() {
        problems.push(format!("there is no file of VELOC for version {version} of {name}"));
    }
    Err(Failure::new(problems.join("; ")))
}

/// Where VELOC puts files, the nearest first.
fn places(config: &Config) -> impl Iterator<Item = &Path> {
    std::iter::once(config.scratch.as_path()).chain(config.persistent.as_deref())
}

fn open_at(config: &Config, name: &str, rank: u32, version: u32, path: &Path) -> io::Result<OldFile> {
    let file = File::open(path)?;
    let end = file.metadata()?.len();
    let is_aggregated = path.file_name().is_some_and(|it| it.to_string_lossy().contains("-agg-"));
    let (start, end) = match is_aggregated {
        false => (0, end),
        true => {
            let offsets = offsets(config, name, version).ok_or_else(|| wrong("its list of offsets is missing"))?;
            let start = *offsets.get(rank as usize).ok_or_else(|| wrong("it was written by fewer ranks"))?;
            (start, offsets.get(rank as usize + 1).copied().unwrap_or(end))
        }
    };
    let bytes = end.checked_sub(start).ok_or_else(|| wrong("it is shorter than its list of offsets says"))?;
    let mut old = OldFile { file, path: path.to_owned(), start, bytes, regions: BTreeMap::new() };
    if let Some(meta) = &config.meta
        && let Ok(expected) = fs::read(meta.join(format!("{name}-{rank}-{version}.dat.chksum")))
        && old.checksum()? != expected
    {
        return Err(wrong("its checksum is not the one that VELOC has noted"));
    }
    old.regions = old.header().unwrap_or_default();
    Ok(old)
}

/// Where the part of each rank begins in an aggregated file.
fn offsets(config: &Config, name: &str, version: u32) -> Option<Vec<u64>> {
    let bytes = fs::read(config.meta.as_ref()?.join(format!("{name}-agg-{version}.dat"))).ok()?;
    let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|number| u64::from_ne_bytes(*number)).collect();
    let (count, offsets) = numbers.split_first()?;
    (*count == offsets.len() as u64).then(|| offsets.to_vec())
}

fn wrong(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl OldFile {
    /// How long it is, as a file of the program's own.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads bytes of it.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(into, self.start + at);
        read.map_err(|error| Failure::new(format!("{} cannot be read: {error}", self.path.display())))
    }

    /// The regions; nothing if it is no file of regions, or is not complete.
    fn header(&self) -> Option<BTreeMap<i32, (u64, u64)>> {
        let mut count = [0; 8];
        self.read_at(0, &mut count).ok()?;
        let count = Some(u64::from_ne_bytes(count)).filter(|count| (1..=REGIONS_MAX).contains(count))?;
        let mut at = 8 + 12 * count;
        if at > self.bytes {
            return None;
        }
        let mut table = vec![0; 12 * count as usize];
        self.read_at(8, &mut table).ok()?;
        let mut regions = BTreeMap::new();
        for entry in table.as_chunks::<12>().0 {
            let (id, bytes) = entry.split_at(4);
            let (id, bytes) = (i32::from_ne_bytes(id.try_into().ok()?), u64::from_ne_bytes(bytes.try_into().ok()?));
            regions.insert(id, (at, bytes));
            at = at.checked_add(bytes)?;
        }
        (at == self.bytes).then_some(regions)
    }

    fn checksum(&self) -> io::Result<Vec<u8>> {
        let mut hasher = Sha256::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < self.bytes {
            let len = PIECE_BYTES.min((self.bytes - at) as usize);
            self.file.read_exact_at(&mut piece[..len], self.start + at)?;
            hasher.update(&piece[..len]);
            at += len as u64;
        }
        Ok(hasher.finalize().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(regions: &[(i32, &[u8])]) -> Vec<u8> {
        let mut bytes = (regions.len() as u64).to_ne_bytes().to_vec();
        for (id, region) in regions {
            bytes.extend(id.to_ne_bytes());
            bytes.extend((region.len() as u64).to_ne_bytes());
        }
        regions.iter().for_each(|(_, region)| bytes.extend(*region));
        bytes
    }

    fn config(dir: &Path) -> Config {
        let text = |name: &str| {
            fs::create_dir_all(dir.join(name)).unwrap();
            dir.join(name).to_str().unwrap().to_owned()
        };
        let variable = |name: &str| match name {
            "VELOC_MODE" => Some("sync".to_owned()),
            "VELOC_SCRATCH" => Some(text("scratch")),
            "VELOC_PERSISTENT" => Some(text("persistent")),
            "VELOC_META" => Some(text("meta")),
            _ => None,
        };
        Config::read("", variable).unwrap()
    }

    #[test]
    fn regions_are_found_in_either_place() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        fs::write(config.scratch.join("heat-2-7.dat"), file(&[(1, b"one"), (5, b"fifth")])).unwrap();
        fs::write(config.persistent.as_ref().unwrap().join("heat-2-5.dat"), file(&[(1, b"old")])).unwrap();
        for other in
            ["heat-1-9.dat", "heat-2-9.txt", "heat-ec-9.dat", "heat-2-x.dat", "heat2-2-9.dat", "heat-2-3-9.dat"]
        {
            fs::write(config.scratch.join(other), b"").unwrap();
        }
        assert_eq!(versions(&config, "heat", 2).unwrap(), BTreeSet::from([5, 7]));
        assert_eq!(versions(&config, "heat", 3).unwrap(), BTreeSet::new());
        let old = open(&config, "heat", 2, 7, true).unwrap();
        assert_eq!(old.regions.iter().map(|(id, (_, bytes))| (*id, *bytes)).collect::<Vec<_>>(), [(1, 3), (5, 5)]);
        let mut fifth = [0; 5];
        old.read_at(old.regions[&5].0, &mut fifth).unwrap();
        assert_eq!(&fifth, b"fifth");
        assert!(open(&config, "heat", 2, 6, true).unwrap_err().to_string().contains("no file of VELOC"));
    }

    #[test]
    fn a_torn_or_changed_file_is_refused_and_another_copy_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let whole = file(&[(1, b"precious bytes")]);
        let (near, far) =
            (config.scratch.join("heat-0-1.dat"), config.persistent.as_ref().unwrap().join("heat-0-1.dat"));
        fs::write(&near, &whole[..whole.len() - 1]).unwrap();
        assert!(open(&config, "heat", 0, 1, true).unwrap_err().to_string().contains("damaged"));
        assert!(
            open(&config, "heat", 0, 1, false).unwrap().regions.is_empty(),
            "it may be a file of the program's own"
        );
        fs::write(&far, &whole).unwrap();
        assert_eq!(open(&config, "heat", 0, 1, true).unwrap().path, far);
        let note = config.meta.as_ref().unwrap().join("heat-0-1.dat.chksum");
        fs::write(&note, Sha256::digest(&whole)).unwrap();
        assert_eq!(open(&config, "heat", 0, 1, true).unwrap().path, far);
        fs::write(&note, [0; 32]).unwrap();
        assert!(open(&config, "heat", 0, 1, true).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn each_rank_finds_its_part_of_an_aggregated_file() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let parts = [file(&[(0, b"zero")]), file(&[(0, b"the second rank")]), file(&[(0, b"last")])];
        let mut offsets = vec![3u64];
        parts.iter().fold(0, |at, part| {
            offsets.push(at);
            at + part.len() as u64
        });
        fs::write(config.persistent.as_ref().unwrap().join("heat-agg-4.dat"), parts.concat()).unwrap();
        assert!(versions(&config, "heat", 1).unwrap().is_empty(), "without the offsets it is of no use");
        let list: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
        fs::write(config.meta.as_ref().unwrap().join("heat-agg-4.dat"), list).unwrap();
        assert_eq!(versions(&config, "heat", 1).unwrap(), BTreeSet::from([4]));
        for (rank, bytes) in [(0, 4), (1, 15), (2, 4)] {
            let old = open(&config, "heat", rank, 4, true).unwrap();
            assert_eq!(old.regions[&0].1, bytes);
        }
        assert!(open(&config, "heat", 3, 4, true).unwrap_err().to_string().contains("fewer ranks"));
    }
}
