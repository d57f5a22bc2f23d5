//! What a pool has when it is opened: the versions that are whole.

use std::{fs::File, io::Read, sync::Arc};

use outcrop_format::{
    PAGE_BYTES, POOL_FIRST_PAGE, POOL_HEADER_BYTES, POOL_PAGES_MAX, POOL_ROOT_BYTES, POOL_SLOTS, PoolContents,
    PoolEntry, PoolHeader, PoolRoot, PoolStructure,
};

use crate::{
    Error, Medium, Result,
    file::PoolFile,
    pool::Held,
    space::Space,
    table::{count, walk},
};

/// The length of a new pool.
const NEW_BYTES: u64 = POOL_FIRST_PAGE * PAGE_BYTES as u64;

pub(crate) struct Found {
    pub(crate) file: PoolFile,
    pub(crate) nonce: [u8; 16],
    /// Oldest first.
    pub(crate) versions: Vec<Held>,
    /// The highest number that a version has had, and the `oldest` that it named.
    pub(crate) newest: u64,
    pub(crate) oldest: u64,
    /// Versions that are damaged, and why.
    pub(crate) skipped: Vec<(u64, String)>,
}

/// Where the root of a version is.
pub(crate) fn slot(version: u64) -> u64 {
    (1 + version % POOL_SLOTS) * PAGE_BYTES as u64
}

/// Finds the versions of a pool, or makes a new pool if there is nothing.
pub(crate) fn open(medium: Box<dyn Medium>, location: String, bytes_max: Option<u64>) -> Result<Found> {
    let pages = medium.bytes() / PAGE_BYTES as u64;
    let space = Space::new(POOL_FIRST_PAGE, pages);
    let pages_max = bytes_max.map_or(POOL_PAGES_MAX, |bytes| bytes / PAGE_BYTES as u64);
    let mut file =
        PoolFile { medium: medium.into(), location, space, pages_max, expected_pages: 0, is_poisoned: false };
    if is_new(&file)? {
        create(&mut file)?;
    }
    let mut bytes = vec![0; POOL_HEADER_BYTES.min(file.medium.bytes() as usize)];
    file.read(0, &mut bytes)?;
    let damaged = |source| Error::Damaged { location: file.location.clone(), source };
    let nonce = PoolHeader::decode(&bytes).map_err(damaged)?.nonce;
    if file.medium.bytes() < NEW_BYTES {
        return Err(Error::Wrong { location: file.location, problem: "it is cut off".to_owned() });
    }
    let (roots, is_doubtful) = roots(&file, nonce)?;
    let newest = roots.last().map_or(0, |root| root.version);
    let oldest = roots.last().map_or(1, |root| root.oldest);
    let mut found = Found { file, nonce, versions: Vec::new(), newest, oldest, skipped: Vec::new() };
    for root in roots.into_iter().filter(|root| root.version >= oldest) {
        match read(&found.file, &root, is_doubtful) {
            Ok(contents) => found.versions.push(Held { root, contents: Arc::new(contents), pin: Arc::default() }),
            Err(error) => found.skipped.push((root.version, error.to_string())),
        }
    }
    for held in found.versions.clone() {
        claim(&mut found.file, &held)?;
    }
    Ok(found)
}

/// The roots in the slots, oldest first, and whether a slot has something else: then a root was
/// damaged or torn, and the rest is not trusted without looking at all of it.
fn roots(file: &PoolFile, nonce: [u8; 16]) -> Result<(Vec<PoolRoot>, bool)> {
    let mut roots = Vec::new();
    let mut is_doubtful = false;
    for number in 0..POOL_SLOTS {
        let mut bytes = [0; POOL_ROOT_BYTES];
        file.read(slot(number), &mut bytes)?;
        match PoolRoot::decode(&bytes) {
            Ok(root) if root.nonce == nonce && root.version % POOL_SLOTS == number => roots.push(root),
            _ => is_doubtful |= bytes.iter().any(|byte| *byte != 0),
        }
    }
    roots.sort_by_key(|root| root.version);
    Ok((roots, is_doubtful))
}

/// The structures of a version, if all that leads to their blocks is as it was written.
fn read(file: &PoolFile, root: &PoolRoot, with_blocks: bool) -> Result<PoolContents> {
    let mut bytes = vec![0; root.contents_bytes as usize];
    file.read_checked(PoolEntry::new(root.contents_page, root.contents_check), &mut bytes)?;
    let damaged = |source| Error::Damaged { location: file.location.clone(), source };
    let contents = PoolContents::decode(&bytes).map_err(damaged)?;
    for structure in &contents.structures {
        match with_blocks {
            true => verify(file, structure)?,
            false => walk(file, structure, &mut |_| Ok(()))?,
        }
    }
    Ok(contents)
}

/// Compares every block of a structure with its checksum.
pub(crate) fn verify(file: &PoolFile, structure: &PoolStructure) -> Result<()> {
    let mut block = Vec::new();
    walk(file, structure, &mut |entry| {
        // Only now: a block that is there is no longer than the file.
        block.resize(structure.block_bytes as usize, 0);
        file.read_checked(entry, &mut block)
    })
}

/// Counts what a version refers to.
fn claim(file: &mut PoolFile, held: &Held) -> Result<()> {
    let pages = held.root.contents_bytes.div_ceil(PAGE_BYTES as u64);
    let claimed = file.space.refer(held.root.contents_page, pages);
    claimed.map_err(|()| {
        let problem = format!("the list of structures of version {} lies on other pages", held.root.version);
        Error::Wrong { location: file.location.clone(), problem }
    })?;
    for structure in &held.contents.structures {
        count(file, structure.top, structure.levels, structure.block_pages())?;
    }
    Ok(())
}

/// Whether there is nothing yet, or a pool whose creation was interrupted. Anything else is left
/// alone.
fn is_new(file: &PoolFile) -> Result<bool> {
    let bytes = file.medium.bytes();
    if bytes == 0 {
        return Ok(true);
    }
    if bytes > NEW_BYTES {
        return Ok(false);
    }
    let mut all = vec![0; bytes as usize];
    file.read(0, &mut all)?;
    let (header, rest) = all.split_at(POOL_HEADER_BYTES.min(all.len()));
    let is_torn =
        PoolHeader::decode(header).is_err() && (header.starts_with(&[0; 8]) || header.starts_with(b"OUTCPOOL"));
    Ok(is_torn && rest.iter().all(|byte| *byte == 0))
}

fn create(file: &mut PoolFile) -> Result<()> {
    let mut nonce = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut nonce));
    random.map_err(|source| file.failed("create", source))?;
    file.medium.grow(NEW_BYTES).map_err(|source| file.failed("create", source))?;
    file.space.grow(POOL_FIRST_PAGE);
    file.write(0, &PoolHeader { nonce }.encode())?;
    file.flush(std::slice::from_ref(&(0..POOL_HEADER_BYTES as u64)))
}
