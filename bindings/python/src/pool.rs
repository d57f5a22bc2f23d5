//! Pools: NumPy arrays that are the pool's own memory.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use numpy::{PyArrayDescr, PyUntypedArray};
use outcrop::{
    Element, Error, MemoryOrder,
    bindings::{OfProcess, closed},
    pool::{ArrayView, Block, Foreign, Options, Structure, layout},
};
use pyo3::{prelude::*, types::PyDict};

use crate::{
    arrays::{dtype, element, shape_of, view},
    errors::{number, raise, size},
    waiting::lock,
};

/// A file with arrays of which versions are durable.
#[pyclass(frozen, subclass, module = "outcrop")]
pub(crate) struct Pool {
    open: OfProcess<Mutex<Option<Open>>>,
}

struct Open {
    pool: outcrop::pool::Pool,
    arrays: BTreeMap<String, Arc<Mutex<Foreign>>>,
}

/// The memory of an array. NumPy's arrays have it as their base.
#[pyclass(frozen, module = "outcrop")]
pub(crate) struct PoolMemory {
    _memory: OfProcess<Memory>,
}

enum Memory {
    Working { _array: Arc<Mutex<Foreign>> },
    Past { _array: ArrayView<u8> },
}

impl Pool {
    /// Calls the pool, without the interpreter.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Open) -> Result<T, outcrop::pool::Error> + Send,
    ) -> PyResult<T> {
        let call = || {
            let mut open = lock(self.open.get()?);
            Ok(call(open.as_mut().ok_or_else(|| closed("pool"))?)?)
        };
        py.detach(call).map_err(|error: Error| raise(py, &error))
    }
}

impl Open {
    /// Calls something with all arrays.
    fn with_all<T>(
        &self,
        work: impl FnOnce(&outcrop::pool::Pool, &mut [&mut dyn Structure]) -> Result<T, outcrop::pool::Error>,
    ) -> Result<T, outcrop::pool::Error> {
        let mut arrays: Vec<_> = self.arrays.values().map(|array| lock(array)).collect();
        let mut structures: Vec<&mut dyn Structure> =
            arrays.iter_mut().map(|array| &mut **array as &mut dyn Structure).collect();
        work(&self.pool, &mut structures)
    }
}

#[pymethods]
impl Pool {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, versions: &Bound<'_, PyAny>) -> PyResult<Self> {
        let versions = number(versions)?;
        let pool = py.detach(|| outcrop::pool::Pool::open(path, Options::versions(versions)));
        let pool = pool.map_err(|error| raise(py, &error.into()))?;
        Ok(Self { open: OfProcess::new("pool", Mutex::new(Some(Open { pool, arrays: BTreeMap::new() }))) })
    }

    fn _array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        shape: Vec<Bound<'py, PyAny>>,
        of: Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let elements = element(&of)?;
        let shape = shape.iter().map(|count| size("a number of elements", count)).collect::<PyResult<Vec<usize>>>()?;
        let shape = shape_of(py, &shape, MemoryOrder::RowMajor, None)?;
        // A pool knows three dimensions: the first ones count as one.
        let (folded, rest) = shape.dimensions().split_at(shape.dimensions().len().saturating_sub(3));
        let mut counts = [1; 3];
        counts[..rest.len()].copy_from_slice(rest);
        counts[0] *= folded.iter().product::<usize>();
        let (array, start) = self.call(py, |open| {
            let mut array = open.pool.foreign(name, elements.name(), counts, Block::default())?;
            let start = array.address().addr();
            let array = Arc::new(Mutex::new(array));
            open.arrays.insert(name.to_owned(), Arc::clone(&array));
            Ok((array, start))
        })?;
        let memory = Memory::Working { _array: array };
        let base = Bound::new(py, PoolMemory { _memory: OfProcess::new("array", memory) })?.into_any();
        // SAFETY: the base keeps the array, which stays where it is. The program does not write
        // while the pool is called, as everywhere in NumPy.
        unsafe { view(&shape, of, std::ptr::with_exposed_provenance_mut(start), base, true) }
    }

    /// Makes a version of all arrays durable, and returns its number.
    fn persist(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |open| open.with_all(|pool, arrays| pool.persist(arrays)))
    }

    /// Has all arrays be as in a version. What was not persisted is lost.
    fn restore(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<()> {
        let version = number(version)?;
        self.call(py, |open| open.with_all(|pool, arrays| pool.restore(version, arrays)))
    }

    /// The arrays of a version, read-only, by name. They are read from the file as they are used.
    fn view<'py>(&self, py: Python<'py>, version: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let version = number(version)?;
        let found = self.call(py, |open| {
            let view = open.pool.view(version)?;
            let arrays = view.structures().map(|it| view.bytes(&it.name).map(|array| (it, array)));
            arrays.collect::<Result<Vec<_>, _>>()
        })?;
        let arrays = PyDict::new(py);
        for (described, array) in found {
            let is_same = |name: &&str| layout::named(name).is_some_and(|(layout, _)| layout == described.layout);
            let mut counts = described.shape.map(|count| count as usize);
            let element = match ["c64", "c128"].into_iter().find(is_same) {
                Some(name) => {
                    // Not as pairs of numbers.
                    counts = array.shape();
                    Element::named(name)
                }
                None => described.element.and_then(Element::named),
            };
            let mut counts = counts.to_vec();
            while counts.len() > 1 && counts.last() == Some(&1) {
                counts.pop();
            }
            // Elements that other languages have are shown as their bytes.
            let element = element.unwrap_or_else(|| {
                counts.push(described.element_bytes as usize);
                Element::BYTE
            });
            let shape = shape_of(py, &counts, MemoryOrder::RowMajor, None)?;
            let start = array.as_ptr().cast_mut();
            let memory = Memory::Past { _array: array };
            let base = Bound::new(py, PoolMemory { _memory: OfProcess::new("array", memory) })?.into_any();
            // SAFETY: the base keeps the pages, which nobody changes, and has so many bytes.
            let array = unsafe { view(&shape, dtype(py, &element)?, start, base, false) }?;
            arrays.set_item(described.name, array)?;
        }
        Ok(arrays)
    }

    /// The versions that there are, in ascending order.
    #[getter]
    fn versions(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.call(py, |open| Ok(open.pool.versions()))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_ok_and(|open| lock(open).is_none())
    }

    /// Closes the pool. What was not persisted is lost. Arrays can be read and written on, and keep
    /// the file locked until the last of them is gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open.get().map_err(|error| raise(py, &error))?;
        py.detach(|| drop(lock(open).take()));
        Ok(())
    }
}
