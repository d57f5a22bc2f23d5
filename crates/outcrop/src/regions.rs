//! Snapshots of several named regions, each with an element type of its own.

use std::fmt;

use outcrop_engine::{Held, Layout, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{
    Blank, Element, Error, Part, Result, Shape, ShapeError, Tape,
    error::Problem,
    tape::{Key, check_element, elements, elements_mut},
};

impl Tape {
    /// Saves several regions as one snapshot.
    ///
    /// ```
    /// use outcrop::{Part, Tape};
    /// let mut tape = Tape::builder().host("1 MiB").open()?;
    /// tape.save_regions(1, &[Part::new("u", &[1.0f32, 2.0]), Part::one("step", &1u64)])?;
    /// let past = tape.take_regions(1)?;
    /// assert_eq!((past.region::<f32>("u")?, past.region::<u64>("step")?), (&[1.0, 2.0][..], &[1][..]));
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn save_regions(&mut self, key: impl Key, parts: &[Part<'_>]) -> Result<()> {
        let key = key.number()?;
        let layout = layout(key, parts.iter().map(|part| (part.name, &part.element, part.shape())))?;
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
        Ok(self.handle.save(key, layout, &bytes)?)
    }

    /// Lends the slot of a new snapshot of several regions.
    ///
    /// ```
    /// use outcrop::{Blank, Tape};
    /// let mut tape = Tape::builder().host("1 MiB").open()?;
    /// let mut lent = tape.lend_regions(1, &[Blank::new::<f32>("u", 100), Blank::new::<u8>("mask", 9)])?;
    /// lent.region_mut::<f32>("u")?.fill(0.5);
    /// lent.region_mut::<u8>("mask")?.fill(1);
    /// lent.seal();
    /// assert_eq!(tape.get_regions(1)?.names(), ["u", "mask"]);
    /// # Ok::<(), outcrop::Error>(())
    /// ```
    pub fn lend_regions(&mut self, key: impl Key, blanks: &[Blank<'_>]) -> Result<LentRegions> {
        let key = key.number()?;
        if blanks.iter().any(|blank| blank.bytes().is_none()) {
            return Err(Problem::Huge { key }.into());
        }
        let layout = layout(key, blanks.iter().map(|blank| (blank.name, &blank.element, blank.shape())))?;
        Ok(LentRegions { lent: self.handle.lend(key, layout)?, key })
    }

    /// Hands over a snapshot of several regions, and removes it from the tape.
    pub fn take_regions(&mut self, key: impl Key) -> Result<PastRegions> {
        self.read_regions(key.number()?, true)
    }

    /// Hands over a snapshot of several regions, and keeps it on the tape.
    pub fn get_regions(&mut self, key: impl Key) -> Result<PastRegions> {
        self.read_regions(key.number()?, false)
    }

    fn read_regions(&mut self, key: u64, consume: bool) -> Result<PastRegions> {
        Ok(PastRegions { held: self.handle.read(key, consume, |_| Ok::<(), Error>(()))? })
    }
}

/// The layout of these regions. Fails if a name occurs twice.
fn layout<'a>(
    key: u64,
    regions: impl Iterator<Item = (&'a str, &'a Element, std::result::Result<Shape, ShapeError>)>,
) -> Result<Layout> {
    let mut layout = Layout::default();
    for (name, element, shape) in regions {
        if layout.region(name).is_some() {
            let remedy = format!("give each a name of its own: {name} comes twice");
            return Err(Problem::Region { key, names: names(&layout), remedy }.into());
        }
        if element.bytes() == 0 {
            return Err(Problem::NoBytes { key, name: name.to_owned() }.into());
        }
        layout = layout.with(name, element.clone(), shape.map_err(Problem::Shape)?).ok_or(Problem::Huge { key })?;
    }
    Ok(layout)
}

fn names(layout: &Layout) -> Vec<String> {
    layout.regions().iter().map(|region| region.name.clone()).collect()
}

/// The region of this name.
fn region<'a>(key: u64, layout: &'a Layout, name: &str) -> Result<&'a Region> {
    let missing =
        || Problem::Region { key, names: names(layout), remedy: format!("ask for one of them instead of {name}") };
    Ok(layout.region(name).ok_or_else(missing)?)
}

/// The range of the region with this name and type.
fn find<T>(key: u64, layout: &Layout, name: &str) -> Result<std::ops::Range<usize>> {
    let region = region(key, layout, name)?;
    check_element::<T>(key, &region.element)?;
    Ok(region.range.clone())
}

/// A lent slot of several regions that the program computes into. If it is dropped without
/// [`seal`](Self::seal), there is no snapshot.
#[must_use = "a slot that is not sealed leaves no snapshot"]
pub struct LentRegions {
    lent: outcrop_engine::Lent,
    key: u64,
}

impl LentRegions {
    /// One region, for writing.
    pub fn region_mut<T: FromBytes + IntoBytes>(&mut self, name: &str) -> Result<&mut [T]> {
        let range = find::<T>(self.key, self.lent.layout(), name)?;
        Ok(elements_mut(&mut self.lent[range]))
    }

    /// The bytes of one region of any type, for writing.
    pub fn bytes_mut(&mut self, name: &str) -> Result<&mut [u8]> {
        let range = region(self.key, self.lent.layout(), name)?.range.clone();
        Ok(&mut self.lent[range])
    }

    /// All regions at once, in the order of the request. All must have elements of type `T`.
    pub fn all_mut<T: FromBytes + IntoBytes>(&mut self) -> Result<Vec<&mut [T]>> {
        let regions = self.lent.layout().regions().to_vec();
        let mut rest = &mut self.lent[..];
        let mut start = 0;
        let mut all = Vec::with_capacity(regions.len());
        for region in regions {
            check_element::<T>(self.key, &region.element)?;
            let (_, from_here) = rest.split_at_mut(region.range.start - start);
            let (this, after) = from_here.split_at_mut(region.range.len());
            all.push(elements_mut(this));
            rest = after;
            start = region.range.end;
        }
        Ok(all)
    }

    /// Turns the slot into a snapshot.
    pub fn seal(self) {
        self.lent.seal();
    }

    /// Turns the slot into a snapshot, and keeps it readable here.
    pub fn seal_and_keep(self) -> PastRegions {
        PastRegions { held: self.lent.seal_and_keep() }
    }
}

impl fmt::Debug for LentRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentRegions")
            .field("key", &self.key)
            .field("regions", &names(self.lent.layout()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PastRegions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PastRegions").field("key", &self.key()).field("regions", &self.names()).finish_non_exhaustive()
    }
}

/// A snapshot of several regions that was handed over, read in place. Dropping it frees its slot.
pub struct PastRegions {
    held: Held,
}

impl PastRegions {
    /// One region.
    pub fn region<T: FromBytes + Immutable>(&self, name: &str) -> Result<&[T]> {
        let range = find::<T>(self.held.key(), self.held.layout(), name)?;
        Ok(elements(&self.held[range]))
    }

    /// One region with its bytes, element type and shape.
    pub fn part<'a>(&'a self, name: &'a str) -> Result<Part<'a>> {
        let region = region(self.held.key(), self.held.layout(), name)?;
        Ok(Part::of(name, region.element.clone(), &self.held[region.range.clone()]).like(&region.shape))
    }

    /// The shape of one region.
    pub fn shape(&self, name: &str) -> Result<&Shape> {
        Ok(&region(self.held.key(), self.held.layout(), name)?.shape)
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
