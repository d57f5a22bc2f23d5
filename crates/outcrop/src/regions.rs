//! Snapshots of several named regions, each with an element type of its own.

use outcrop_engine::{Held, Layout, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{
    Element, Error, Result, Tape,
    tape::{Key, check_element, elements, elements_mut},
};

/// A named region to be saved.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) element: Element,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// `values` under `name`.
    pub fn new<T: IntoBytes + Immutable>(name: &'a str, values: &'a [T]) -> Self {
        Self { name, element: Element::of::<T>(), bytes: values.as_bytes() }
    }

    /// The bytes of some elements under `name`.
    pub fn of(name: &'a str, element: Element, bytes: &'a [u8]) -> Self {
        Self { name, element, bytes }
    }

    /// One value under `name`.
    pub fn one<T: IntoBytes + Immutable>(name: &'a str, value: &'a T) -> Self {
        Self::new(name, std::slice::from_ref(value))
    }
}

/// A named region to be restored.
#[derive(Debug)]
pub struct PartMut<'a> {
    pub(crate) name: &'a str,
    pub(crate) element: Element,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> PartMut<'a> {
    /// The region `name`, to be put into `values`.
    pub fn new<T: FromBytes + IntoBytes>(name: &'a str, values: &'a mut [T]) -> Self {
        Self { name, element: Element::of::<T>(), bytes: values.as_mut_bytes() }
    }

    /// The region `name`, to be put into the bytes of some elements.
    pub fn of(name: &'a str, element: Element, bytes: &'a mut [u8]) -> Self {
        Self { name, element, bytes }
    }

    /// The region `name`, to be put into one value.
    pub fn one<T: FromBytes + IntoBytes>(name: &'a str, value: &'a mut T) -> Self {
        Self::new(name, std::slice::from_mut(value))
    }
}

/// A named region to be lent.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    name: &'a str,
    element: Element,
    bytes: Option<usize>,
}

impl<'a> Shape<'a> {
    /// `len` values of `T` under `name`.
    pub fn new<T: FromBytes + IntoBytes>(name: &'a str, len: usize) -> Self {
        Self::of(name, Element::of::<T>(), len)
    }

    /// `len` of these elements under `name`.
    pub fn of(name: &'a str, element: Element, len: usize) -> Self {
        Self { name, element, bytes: len.checked_mul(element.bytes()) }
    }
}

impl Tape {
    /// Saves several regions as one snapshot.
    pub fn save_regions(&mut self, key: impl Key, parts: &[Part<'_>]) -> Result<()> {
        let key = key.number()?;
        let layout = layout(key, parts.iter().map(|part| (part.name, part.element.name(), Some(part.bytes.len()))))?;
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
        Ok(self.handle.save(key, layout, &bytes)?)
    }

    /// Lends the slot of a new snapshot of several regions.
    pub fn lend_regions(&mut self, key: impl Key, shapes: &[Shape<'_>]) -> Result<LentRegions> {
        let key = key.number()?;
        let layout = layout(key, shapes.iter().map(|shape| (shape.name, shape.element.name(), shape.bytes)))?;
        Ok(LentRegions { lent: self.handle.lend(key, layout)?, key })
    }

    /// Hands over a snapshot of several regions for the last time.
    pub fn take_regions(&mut self, key: impl Key) -> Result<PastRegions> {
        self.read_regions(key.number()?, true)
    }

    /// Hands over a snapshot of several regions and keeps it.
    pub fn get_regions(&mut self, key: impl Key) -> Result<PastRegions> {
        self.read_regions(key.number()?, false)
    }

    fn read_regions(&mut self, key: u64, consume: bool) -> Result<PastRegions> {
        Ok(PastRegions { held: self.handle.read(key, consume, |_| Ok::<(), Error>(()))? })
    }
}

/// Lays regions out; each name may come once.
fn layout<'a>(key: u64, regions: impl Iterator<Item = (&'a str, &'static str, Option<usize>)>) -> Result<Layout> {
    let mut layout = Layout::default();
    for (name, element, bytes) in regions {
        if layout.region(name).is_some() {
            let remedy = format!("give each a name of its own: {name} comes twice");
            return Err(Error::Region { key, names: names(&layout), remedy });
        }
        layout = bytes.and_then(|bytes| layout.with(name, element, bytes)).ok_or(Error::Huge { key })?;
    }
    Ok(layout)
}

fn names(layout: &Layout) -> Vec<String> {
    layout.regions().iter().map(|region| region.name.clone()).collect()
}

/// The region of this name.
fn region<'a>(key: u64, layout: &'a Layout, name: &str) -> Result<&'a Region> {
    layout.region(name).ok_or_else(|| Error::Region {
        key,
        names: names(layout),
        remedy: format!("ask for one of them instead of {name}"),
    })
}

/// Where the region of this name and type lies.
fn find<T>(key: u64, layout: &Layout, name: &str) -> Result<std::ops::Range<usize>> {
    let region = region(key, layout, name)?;
    check_element::<T>(key, region.element)?;
    Ok(region.range.clone())
}

/// A slot of several regions in the program's hands, to compute into.
pub struct LentRegions {
    lent: outcrop_engine::Lent,
    key: u64,
}

impl LentRegions {
    /// One region, to be filled.
    pub fn region_mut<T: FromBytes + IntoBytes>(&mut self, name: &str) -> Result<&mut [T]> {
        let range = find::<T>(self.key, self.lent.layout(), name)?;
        Ok(elements_mut(&mut self.lent[range]))
    }

    /// The bytes of one region, to be filled, whatever they are.
    pub fn bytes_mut(&mut self, name: &str) -> Result<&mut [u8]> {
        let range = region(self.key, self.lent.layout(), name)?.range.clone();
        Ok(&mut self.lent[range])
    }

    /// All regions at once, in the order in which they were asked for; all must hold `T`.
    pub fn all_mut<T: FromBytes + IntoBytes>(&mut self) -> Result<Vec<&mut [T]>> {
        let regions = self.lent.layout().regions().to_vec();
        let mut rest = &mut self.lent[..];
        let mut start = 0;
        let mut all = Vec::with_capacity(regions.len());
        for region in regions {
            check_element::<T>(self.key, region.element)?;
            let (_, from_here) = rest.split_at_mut(region.range.start - start);
            let (this, after) = from_here.split_at_mut(region.range.len());
            all.push(elements_mut(this));
            rest = after;
            start = region.range.end;
        }
        Ok(all)
    }

    /// Makes it a snapshot.
    pub fn seal(self) {
        self.lent.seal();
    }

    /// Makes it a snapshot and goes on reading it.
    pub fn seal_and_keep(self) -> PastRegions {
        PastRegions { held: self.lent.seal_and_keep() }
    }
}

/// A snapshot of several regions in the program's hands, read in place. Dropping it frees its slot.
pub struct PastRegions {
    held: Held,
}

impl PastRegions {
    /// One region.
    pub fn region<T: FromBytes + Immutable>(&self, name: &str) -> Result<&[T]> {
        let range = find::<T>(self.held.key(), self.held.layout(), name)?;
        Ok(elements(&self.held[range]))
    }

    /// The bytes of one region, and the name of what they are.
    pub fn bytes(&self, name: &str) -> Result<(&[u8], &'static str)> {
        let region = region(self.held.key(), self.held.layout(), name)?;
        Ok((&self.held[region.range.clone()], region.element))
    }

    /// The names of its regions, in the order in which they were saved.
    pub fn names(&self) -> Vec<&str> {
        self.held.layout().regions().iter().map(|region| region.name.as_str()).collect()
    }

    /// Its key.
    pub fn key(&self) -> u64 {
        self.held.key()
    }
}
