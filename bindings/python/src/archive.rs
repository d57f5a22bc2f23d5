//! Versions in a directory, read without opening the store, so that its program may go on with it.

use outcrop::{
    ErrorKind,
    catalog::{Error, Reader, catalog_at},
};
use pyo3::prelude::*;

use crate::{
    arrays::Flat,
    errors::{self, number, raise, size, usage},
    store::{Described, Value, described, element, flats_mut},
};

/// A version that one rank has saved in a directory.
#[pyclass(frozen, module = "outcrop")]
pub(crate) struct Archive {
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    number: u64,
    reader: Reader,
}

/// The numbers of the complete versions of a session in a directory, ascending; none if there is no
/// such session. Fails if a manifest could not be read, as its version may be complete.
#[pyfunction]
pub(crate) fn _versions(py: Python<'_>, dir: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let (dir, name) = (errors::path(dir)?, errors::name(name)?);
    match py.detach(|| catalog_at(&dir)?.complete_versions(&name)) {
        Ok(versions) => Ok(versions.iter().map(|version| version.version).collect()),
        Err(error) => {
            let error = outcrop::Error::from(error);
            if error.kind() == ErrorKind::Missing { Ok(Vec::new()) } else { Err(raise(py, &error)) }
        }
    }
}

#[pymethods]
impl Archive {
    #[new]
    fn new(
        py: Python<'_>,
        dir: &Bound<'_, PyAny>,
        name: &Bound<'_, PyAny>,
        version: Option<&Bound<'_, PyAny>>,
        rank: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (name, dir, version) = (errors::name(name)?, errors::path(dir)?, version.map(number).transpose()?);
        let rank = u32::try_from(size("rank", rank)?).unwrap_or(u32::MAX);
        let open = || {
            let catalog = catalog_at(&dir)?;
            let version = catalog.version(&name, version)?;
            let manifest = version.manifests.get(&rank);
            let reader = manifest.map(|manifest| catalog.reader(manifest)).transpose()?;
            Ok((version.version, version.ranks, reader))
        };
        let (number, ranks, reader) = py.detach(open).map_err(|error: Error| raise(py, &error.into()))?;
        let reader = reader.ok_or_else(|| {
            usage(
                py,
                format!("version {number} of {name} was saved by {ranks} ranks, from 0 on; there is no rank {rank}"),
            )
        })?;
        Ok(Self { name, number, reader })
    }

    /// Name, element, dimensions, memory order and box of each region.
    fn _regions(&self, _version: u64) -> Vec<Described> {
        let regions = self.reader.manifest().regions.iter();
        regions.map(|region| described(region.name.clone(), region.element.clone(), &region.shape)).collect()
    }

    /// Copies values into these arrays, given by name.
    fn _read(&self, py: Python<'_>, _version: u64, targets: Vec<Value<'_>>) -> PyResult<()> {
        self.fill(py, &targets, |reader, regions| reader.read_regions(regions, &|_| {}))
    }

    /// Restores values into these arrays, given by name, if nothing of the version is damaged.
    fn _restore(&self, py: Python<'_>, _version: u64, targets: Vec<Value<'_>>) -> PyResult<()> {
        self.fill(py, &targets, Reader::restore)
    }
}

impl Archive {
    fn fill(
        &self,
        py: Python<'_>,
        targets: &[Value<'_>],
        read: impl FnOnce(&Reader, Vec<(&str, &mut [u8])>) -> Result<(), Error> + Send,
    ) -> PyResult<()> {
        let mut flats = flats_mut(targets)?;
        for ((name, made_of, _, global), flat) in targets.iter().zip(&flats) {
            let asked = element(made_of.as_deref(), flat)?;
            if let Some(saved) = self.reader.manifest().region(name) {
                if saved.element != asked.name() {
                    return Err(usage(py, format!("{name} holds {} and not {}", saved.element, asked.name())));
                }
                saved
                    .shape
                    .fits(&flat.shape(global.as_ref())?)
                    .map_err(|error| usage(py, format!("{name} {error}")))?;
            }
        }
        let names = targets.iter().map(|(name, ..)| name.as_str());
        let regions: Vec<_> = names.zip(flats.iter_mut().map(Flat::bytes_mut)).collect();
        py.detach(|| read(&self.reader, regions)).map_err(|error| raise(py, &error.into()))
    }
}
