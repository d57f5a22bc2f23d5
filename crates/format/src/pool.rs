//! The file of a pool: versions of arrays, of which unchanged blocks are shared.
//!
//! The first page is the [`PoolHeader`]. The next [`POOL_SLOTS`] pages are slots, each of which may
//! hold the [`PoolRoot`] of a version. A root refers to the [`PoolContents`] of its version, and
//! these refer to the blocks of each structure through a tree of pages of [`PoolEntry`]s. Every
//! reference includes a checksum of what it refers to, so that no offset is used before the bytes
//! that contain it are known to be right.

use twox_hash::XxHash3_64;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use crate::{
    PAGE_BYTES,
    cursor::{Cursor, check_start},
    error::{Error, Result, Structure},
    hash::checksum,
    mailbox::Nonce,
    names::check_region_name,
};

/// The number of slots for roots. A pool keeps fewer versions than that.
pub const POOL_SLOTS: u64 = 32;
/// The first page after the slots.
pub const POOL_FIRST_PAGE: u64 = 1 + POOL_SLOTS;
/// The number of entries in one page.
pub const POOL_ENTRIES: usize = PAGE_BYTES / size_of::<PoolEntry>();
/// The length of an encoded [`PoolHeader`] and of an encoded [`PoolRoot`].
pub const POOL_HEADER_BYTES: usize = size_of::<RawHeader>();
/// See [`POOL_HEADER_BYTES`].
pub const POOL_ROOT_BYTES: usize = size_of::<RawRoot>();
/// The longest encoded [`PoolContents`].
pub const POOL_CONTENTS_BYTES_MAX: u64 = 16 << 20;
/// The longest state of a structure.
pub const POOL_STATE_BYTES_MAX: usize = 1 << 10;
/// The largest pool, in pages. Offsets in bytes and sums of lengths fit into 64 bits.
pub const POOL_PAGES_MAX: u64 = 1 << 48;

const MAGIC: [u8; 8] = *b"OUTCPOOL";
const ROOT_MAGIC: [u8; 8] = *b"OUTCROOT";
const CONTENTS_MAGIC: [u8; 8] = *b"OUTCLIST";
/// The number of the format.
const FORMAT: u32 = 1;
/// Trees have at most so many levels of pages: 256 to the power of 6 blocks.
const LEVELS_MAX: u8 = 6;

/// The first page of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolHeader {
    /// Chosen at random when the pool was created.
    pub nonce: Nonce,
}

/// A version of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolRoot {
    /// The number in the header of the pool.
    pub nonce: Nonce,
    /// The number of the version, from 1.
    pub version: u64,
    /// Versions below this one no longer exist: their pages may have been used again.
    pub oldest: u64,
    /// When it was persisted, in nanoseconds since 1970.
    pub saved_at_unix_ns: u64,
    /// The page at which its contents begin, and their length.
    pub contents_page: u64,
    /// See `contents_page`.
    pub contents_bytes: u64,
    /// The checksum of the contents.
    pub contents_check: u64,
}

/// The structures of a version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolContents {
    /// In the order of their names.
    pub structures: Vec<PoolStructure>,
}

/// One structure of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStructure {
    /// Its name.
    pub name: String,
    /// A hash of the layout of its elements.
    pub layout: u64,
    /// The length of an element.
    pub element_bytes: u32,
    /// The number of elements in each dimension; 1 beyond the last dimension.
    pub shape: [u64; 3],
    /// The length of a block: a multiple of a page, and of an element.
    pub block_bytes: u64,
    /// Nothing for an array. Otherwise a [`PoolKind`], which part of the structure this is, and
    /// further bytes for its owner.
    pub state: Vec<u8>,
    /// The levels of its tree, and the entry at the top.
    pub levels: u8,
    /// See `levels`.
    pub top: PoolEntry,
}

/// What a structure of a pool is: the first byte of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// An array, whose shape is the same in all versions. It has no state.
    Array = 0,
    /// An array of one dimension, whose length may differ between versions.
    List = 1,
    /// A tree of cells with four children.
    Quadtree = 2,
    /// A tree of cells with eight children.
    Octree = 3,
    /// Nodes, and edges between them.
    Graph = 4,
}

/// Refers to a block, or to a page of entries. All zeros: a block of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PoolEntry {
    page: U64,
    check: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    format: U32,
    page_bytes: U32,
    slots: U32,
    nonce: Nonce,
    check: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRoot {
    magic: [u8; 8],
    format: U32,
    nonce: Nonce,
    version: U64,
    oldest: U64,
    saved_at_unix_ns: U64,
    contents_page: U64,
    contents_bytes: U64,
    contents_check: U64,
    check: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawContents {
    magic: [u8; 8],
    format: U32,
    count: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStructure {
    name_bytes: U32,
    state_bytes: U32,
    layout: U64,
    element_bytes: U32,
    levels: U32,
    shape: [U64; 3],
    block_bytes: U64,
    top: PoolEntry,
}

/// The checksum of a block, of a page of entries, or of contents.
pub fn pool_check(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

impl PoolHeader {
    /// The first bytes of the pool.
    pub fn encode(&self) -> [u8; POOL_HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC,
            format: FORMAT.into(),
            page_bytes: (PAGE_BYTES as u32).into(),
            slots: (POOL_SLOTS as u32).into(),
            nonce: self.nonce,
            check: 0.into(),
        };
        raw.check = checksum(&raw.as_bytes()[..POOL_HEADER_BYTES - 16]).into();
        zerocopy::transmute!(raw)
    }

    /// Reads the first bytes of a pool.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Pool;
        check_start(structure, MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &RawHeader = cursor.value()?;
        check(structure, raw.check.get(), &raw.as_bytes()[..POOL_HEADER_BYTES - 16])?;
        if (raw.page_bytes.get() as usize, u64::from(raw.slots.get())) != (PAGE_BYTES, POOL_SLOTS) {
            return Err(cursor.wrong_at(12, "pages of another length, or another number of slots"));
        }
        Ok(Self { nonce: raw.nonce })
    }
}

impl PoolRoot {
    /// The bytes of the root in its slot.
    pub fn encode(&self) -> [u8; POOL_ROOT_BYTES] {
        let mut raw = RawRoot {
            magic: ROOT_MAGIC,
            format: FORMAT.into(),
            nonce: self.nonce,
            version: self.version.into(),
            oldest: self.oldest.into(),
            saved_at_unix_ns: self.saved_at_unix_ns.into(),
            contents_page: self.contents_page.into(),
            contents_bytes: self.contents_bytes.into(),
            contents_check: self.contents_check.into(),
            check: 0.into(),
        };
        raw.check = checksum(&raw.as_bytes()[..POOL_ROOT_BYTES - 16]).into();
        zerocopy::transmute!(raw)
    }

    /// Reads the root at the beginning of a slot.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::PoolRoot;
        check_start(structure, ROOT_MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &RawRoot = cursor.value()?;
        check(structure, raw.check.get(), &raw.as_bytes()[..POOL_ROOT_BYTES - 16])?;
        let root = Self {
            nonce: raw.nonce,
            version: raw.version.get(),
            oldest: raw.oldest.get(),
            saved_at_unix_ns: raw.saved_at_unix_ns.get(),
            contents_page: raw.contents_page.get(),
            contents_bytes: raw.contents_bytes.get(),
            contents_check: raw.contents_check.get(),
        };
        let is_plausible = (1..=root.version).contains(&root.oldest)
            && (POOL_FIRST_PAGE..POOL_PAGES_MAX).contains(&root.contents_page)
            && root.contents_bytes <= POOL_CONTENTS_BYTES_MAX;
        if is_plausible { Ok(root) } else { Err(cursor.wrong_at(28, format!("{root:?} cannot be"))) }
    }
}

impl PoolContents {
    /// The contents as bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let structure = Structure::PoolContents;
        let count = self.structures.len() as u32;
        let mut bytes =
            RawContents { magic: CONTENTS_MAGIC, format: FORMAT.into(), count: count.into() }.as_bytes().to_vec();
        for it in &self.structures {
            it.check().map_err(|problem| Error::Unfit { structure, problem: problem.into() })?;
            let raw = RawStructure {
                name_bytes: (it.name.len() as u32).into(),
                state_bytes: (it.state.len() as u32).into(),
                layout: it.layout.into(),
                element_bytes: it.element_bytes.into(),
                levels: u32::from(it.levels).into(),
                shape: it.shape.map(U64::new),
                block_bytes: it.block_bytes.into(),
                top: it.top,
            };
            bytes.extend_from_slice(raw.as_bytes());
            bytes.extend_from_slice(it.name.as_bytes());
            bytes.extend_from_slice(&it.state);
        }
        if !self.is_sorted() || bytes.len() as u64 > POOL_CONTENTS_BYTES_MAX {
            let problem = "structures are not in the order of their names, or too many".into();
            return Err(Error::Unfit { structure, problem });
        }
        Ok(bytes)
    }

    /// Reads contents, of which the checksum was compared.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::PoolContents;
        check_start(structure, CONTENTS_MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let head: &RawContents = cursor.value()?;
        let mut contents = Self::default();
        for _ in 0..head.count.get() {
            let at = cursor.at();
            let raw: &RawStructure = cursor.value()?;
            let name = cursor.text(u64::from(raw.name_bytes.get()))?.to_owned();
            let state = cursor.slice::<u8>(u64::from(raw.state_bytes.get()))?.to_vec();
            let it = PoolStructure {
                name,
                layout: raw.layout.get(),
                element_bytes: raw.element_bytes.get(),
                shape: raw.shape.map(U64::get),
                block_bytes: raw.block_bytes.get(),
                state,
                levels: u8::try_from(raw.levels.get()).unwrap_or(u8::MAX),
                top: raw.top,
            };
            it.check().map_err(|problem| cursor.wrong_at(at, problem))?;
            contents.structures.push(it);
        }
        cursor.end()?;
        if contents.is_sorted() { Ok(contents) } else { Err(cursor.wrong_at(12, "names out of order")) }
    }

    /// The structure with this name.
    pub fn find(&self, name: &str) -> Option<&PoolStructure> {
        let at = self.structures.binary_search_by(|it| it.name.as_str().cmp(name)).ok()?;
        self.structures.get(at)
    }

    fn is_sorted(&self) -> bool {
        self.structures.is_sorted_by(|a, b| a.name < b.name)
    }
}

impl PoolKind {
    /// In the order of their numbers.
    const ALL: [Self; 5] = [Self::Array, Self::List, Self::Quadtree, Self::Octree, Self::Graph];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::List => "list",
            Self::Quadtree => "quadtree",
            Self::Octree => "octree",
            Self::Graph => "graph",
        }
    }
}

impl PoolStructure {
    /// What it is, and which part of that. `None` if no program writes such a state.
    pub fn kind(&self) -> Option<(PoolKind, u8)> {
        match self.state[..] {
            [] => Some((PoolKind::Array, 0)),
            [kind @ 1..=u8::MAX, part, ..] => PoolKind::ALL.get(usize::from(kind)).map(|kind| (*kind, part)),
            _ => None,
        }
    }

    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The length of all elements.
    pub fn bytes(&self) -> u64 {
        self.elements() * u64::from(self.element_bytes)
    }

    /// The number of its blocks. The last may extend beyond the last element.
    pub fn blocks(&self) -> u64 {
        self.bytes().div_ceil(self.block_bytes)
    }

    /// The number of pages of one block.
    pub fn block_pages(&self) -> u64 {
        self.block_bytes / PAGE_BYTES as u64
    }

    /// The levels that a tree over so many blocks has.
    pub fn levels_of(blocks: u64) -> u8 {
        let (mut levels, mut reach) = (0, 1u64);
        while reach < blocks {
            reach = reach.saturating_mul(POOL_ENTRIES as u64);
            levels += 1;
        }
        levels
    }

    fn check(&self) -> std::result::Result<(), String> {
        check_region_name(&self.name).map_err(|error| error.to_string())?;
        let element = u64::from(self.element_bytes);
        let elements = self.shape.iter().try_fold(1u64, |all, count| all.checked_mul(*count));
        let bytes = elements.and_then(|elements| elements.checked_mul(element));
        let pages = bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(PAGE_BYTES as u64));
        let is_block = self.block_bytes > 0
            && self.block_bytes.is_multiple_of(PAGE_BYTES as u64)
            && element > 0
            && self.block_bytes.is_multiple_of(element)
            && self.block_bytes / PAGE_BYTES as u64 <= POOL_PAGES_MAX;
        if pages > POOL_PAGES_MAX || !is_block || self.state.len() > POOL_STATE_BYTES_MAX {
            return Err(format!("the lengths of \"{}\" cannot be", self.name));
        }
        let levels = Self::levels_of(self.blocks());
        if levels != self.levels || levels > LEVELS_MAX {
            return Err(format!("\"{}\" has {} levels and needs {levels}", self.name, self.levels));
        }
        if !self.top.is_zeros() && !self.top.is_plausible() {
            return Err(format!("\"{}\" lies at page {}", self.name, self.top.page()));
        }
        Ok(())
    }
}

impl PoolEntry {
    /// A block of zeros.
    pub const ZEROS: Self = Self { page: U64::ZERO, check: U64::ZERO };

    /// What lies at a page, with this checksum.
    pub fn new(page: u64, check: u64) -> Self {
        Self { page: page.into(), check: check.into() }
    }

    /// The first page.
    pub fn page(&self) -> u64 {
        self.page.get()
    }

    /// The checksum of what is there.
    pub fn check(&self) -> u64 {
        self.check.get()
    }

    /// Whether it is a block of zeros, which takes no room.
    pub fn is_zeros(&self) -> bool {
        *self == Self::ZEROS
    }

    /// Whether something can lie there.
    pub fn is_plausible(&self) -> bool {
        (POOL_FIRST_PAGE..POOL_PAGES_MAX).contains(&self.page())
    }

    /// Reads a page of entries, of which the checksum was compared.
    pub fn decode_page(bytes: &[u8]) -> Result<&[Self]> {
        let mut cursor = Cursor::new(Structure::PoolEntries, bytes);
        let entries: &[Self] = cursor.slice(POOL_ENTRIES as u64)?;
        match entries.iter().position(|entry| !entry.is_zeros() && !entry.is_plausible()) {
            None => Ok(entries),
            Some(at) => {
                let problem = format!("an entry refers to page {}", entries[at].page());
                Err(cursor.wrong_at((at * size_of::<Self>()) as u64, problem))
            }
        }
    }

    /// A page of entries as bytes; `entries` may be fewer than fit.
    pub fn encode_page(entries: &[Self]) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        let bytes = entries.as_bytes();
        page[..bytes.len()].copy_from_slice(bytes);
        page
    }
}

fn check(structure: Structure, written: u128, bytes: &[u8]) -> Result<()> {
    let computed = checksum(bytes);
    if written == computed { Ok(()) } else { Err(Error::Changed { structure, written, computed }) }
}
