//! Writes one file of a region whose boxes make up a global array, or of a list.

use std::{collections::BTreeMap, sync::Mutex};

use anyhow::{Context, Result, bail, ensure};
use outcrop::{
    Shape,
    boxes::{Moves, Placed, Placement, Uncovered, place, whole},
    catalog::{Catalog, Reader, Scattered, Version},
    layers::files::{DiskFiles, Files},
};

/// How much of an array is in memory at a time, unless one row is larger.
const SLAB_BYTES: u64 = 64 << 20;

/// A region of which all ranks have boxes.
pub(super) struct Whole {
    region: String,
    pub(super) element: String,
    pub(super) element_bytes: u32,
    /// The shape of the whole.
    pub(super) shape: Shape,
    /// The ranks that have a part, in the order of `placement.saved`.
    ranks: Vec<u32>,
    placement: Placement,
    allows_holes: bool,
}

impl Whole {
    /// Puts the boxes of a region together. `None` if it has none.
    pub(super) fn new(version: &Version, region: &str, allows_holes: bool) -> Result<Option<Self>> {
        let found = version
            .manifests
            .values()
            .filter_map(|manifest| Some((manifest.rank, manifest.regions.iter().find(|it| it.name == region)?)));
        let found: Vec<_> = found.collect();
        let shapes: Vec<&Shape> = found.iter().map(|(_, region)| &region.shape).collect();
        let Some((shape, (_, first))) = whole(&shapes).zip(found.first()) else { return Ok(None) };
        let (element, element_bytes) = (first.element.clone(), first.element_bytes);
        ensure!(
            found.iter().all(|(_, it)| (&it.element, it.element_bytes) == (&element, element_bytes)),
            "region {region} has other elements on some ranks; export the ranks one by one, with --rank"
        );
        let placement = place(&shapes, &shape).with_context(|| format!("region {region} cannot be put together"))?;
        let ranks = found.iter().map(|(rank, _)| *rank).collect();
        let it = Self { region: region.to_owned(), element, element_bytes, shape, ranks, placement, allows_holes };
        it.groups(&it.placement.asked)?;
        Ok(Some(it))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shape.count() as u64 * u64::from(self.element_bytes)
    }

    /// The boxes that a part of the array consists of.
    fn groups(&self, part: &Placed) -> Result<Vec<Vec<usize>>> {
        let region = &self.region;
        let groups = match self.allows_holes {
            true => part.touching(&self.placement.saved),
            false => part.cover(&self.placement.saved),
        };
        match groups {
            Ok(groups) => Ok(groups),
            Err(Uncovered::Overlap { saved: [one, other], at }) => bail!(
                "region {region}: the boxes of ranks {} and {} overlap, at {}; export the ranks one by one, with --rank",
                self.ranks[one],
                self.ranks[other],
                self.placement.index(&at)
            ),
            Err(Uncovered::Hole { at }) => bail!(
                "region {region}: no rank has saved the element {}; use --allow-holes to write zeros there, or --rank",
                self.placement.index(&at)
            ),
        }
    }

    /// Writes the array to a file, after its head.
    pub(super) fn write(
        &self,
        catalog: &Catalog,
        version: &Version,
        (files, name, head): (&DiskFiles, &str, &[u8]),
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let file = files.create(name, 0)?;
        file.write_at(0, head)?;
        let mut readers: BTreeMap<u32, Reader> = BTreeMap::new();
        for group in self.groups(&self.placement.asked)? {
            for nth in group {
                let rank = self.ranks[nth];
                let manifest = version.manifests.get(&rank).with_context(|| format!("there is no rank {rank}"))?;
                readers.insert(rank, catalog.reader(manifest)?);
            }
        }
        let asked = &self.placement.asked;
        let rows = asked.dimensions.first().copied().unwrap_or(1);
        let row_bytes = self.bytes().checked_div(rows as u64).unwrap_or(0);
        let step = usize::try_from(SLAB_BYTES.checked_div(row_bytes).unwrap_or(0)).unwrap_or(1).max(1);
        for start in (0..rows).step_by(step) {
            let mut slab = asked.clone();
            if let (Some(offset), Some(length)) = (slab.offset.first_mut(), slab.dimensions.first_mut()) {
                (*offset, *length) = (start, step.min(rows - start));
            }
            let bytes = self.read(&slab, &readers)?;
            file.write_at(head.len() as u64 + start as u64 * row_bytes, &bytes)?;
            progress(bytes.len() as u64);
        }
        Ok(file.sync()?)
    }

    /// Reads some rows.
    fn read(&self, slab: &Placed, readers: &BTreeMap<u32, Reader>) -> Result<Vec<u8>> {
        let element_bytes = self.element_bytes as usize;
        let mut bytes = vec![0; slab.dimensions.iter().product::<usize>() * element_bytes];
        let into = Mutex::new(&mut bytes[..]);
        for group in self.groups(slab)? {
            let reader = &readers[&self.ranks[group[0]]];
            for other in &group[1..] {
                let rank = self.ranks[*other];
                ensure!(
                    reader.is_same(&self.region, &readers[&rank])?,
                    "region {}: ranks {} and {rank} have saved the same box with different content; export the ranks one by \
                     one, with --rank",
                    self.region,
                    self.ranks[group[0]]
                );
            }
            if let Some(moves) = Moves::new(&self.placement.saved[group[0]], slab, element_bytes) {
                reader.read_scattered(&[Scattered { region: &self.region, moves: &moves, into: Some(&into) }])?;
            }
        }
        Ok(bytes)
    }
}
