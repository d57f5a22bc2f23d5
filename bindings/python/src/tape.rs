//! A tape, as Python sees it.

use std::sync::Arc;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray};
use outcrop::{Blank, ErrorKind, MemoryOrder, Part, TapeBuilder, bindings::huge};
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyIterator, PyTuple, PyType},
};

use crate::{
    arrays::{Flat, GlobalBox, element, shape_of},
    errors::{self, number, raise, shown, usage, wrong_type},
    slot::{self, Lent, Wish},
    threads::Shared,
};

/// How `lend` is called.
const LEND: &str = "call it as lend(step, shape, dtype), or for several arrays as lend(step, u=(shape, dtype), v=(shape, dtype)); \
     a box is lend(step, shape, dtype, box=box), or (shape, dtype, box)";

/// Snapshots that sink and come back up. Described by a JSON text; `outcrop.Tape` makes it from
/// keyword arguments.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct Tape {
    shared: Arc<Shared>,
}

impl Tape {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnMut(&mut outcrop::Tape) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        self.shared.call(py, call)
    }

    /// What is to be saved: one array without a name, or several with one.
    fn flats<'py>(
        py: Python<'py>,
        array: Option<&Bound<'py, PyAny>>,
        regions: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<(String, Flat<'py>, Option<GlobalBox>)>> {
        let flat = |name, array: Bound<'py, PyAny>| {
            let (array, global) = boxed(array)?;
            Ok((name, Flat::of(&array)?, global))
        };
        match (array, regions) {
            (Some(array), None) => Ok(vec![flat(String::new(), array.clone())?]),
            (None, Some(regions)) => {
                regions.iter().map(|(name, array)| flat(name.extract::<String>()?, array)).collect()
            }
            _ => Err(usage(py, "give one array, or several by name: save(step, u) or save(step, u=u, v=v)")),
        }
    }
}

#[pymethods]
impl Tape {
    #[new]
    #[pyo3(signature = (settings, /))]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let open = || Ok(Shared::new(&TapeBuilder::from_json(settings)?.open()?));
        let shared = py.detach(open).map_err(|error| raise(py, &error))?;
        Ok(Self { shared })
    }

    /// Saves an array under a key, or several by name, by copying them. Returns when they may be
    /// changed again.
    #[pyo3(signature = (key, array=None, /, **regions))]
    fn save<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        array: Option<&Bound<'py, PyAny>>,
        regions: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<()> {
        let key = number(key)?;
        let flats = Self::flats(py, array, regions)?;
        let mut parts = Vec::with_capacity(flats.len());
        for (name, flat, global) in &flats {
            parts.push(Part::of(name, flat.element()?, flat.bytes()).like(&flat.shape(global.as_ref())?));
        }
        self.call(py, |tape| tape.save_regions(key, &parts))
    }

    /// Lends the slot of a new snapshot, to compute into:
    /// `with tape.lend(step, shape, dtype) as u`. What it holds at first is whatever was there
    /// before. The end of the block makes it a snapshot, an exception leaves none. Several arrays:
    /// `with tape.lend(step, u=(shape, dtype), v=(shape, dtype)) as arrays`. An array that is a
    /// part of a global one has a `box`, or is (shape, dtype, box).
    #[pyo3(signature = (key, shape=None, dtype=None, *, order="C", r#box=None, **regions))]
    #[allow(clippy::too_many_arguments)]
    fn lend<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        shape: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        order: &str,
        r#box: Option<GlobalBox>,
        regions: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Lent> {
        let key = number(key)?;
        if !matches!(order, "C" | "F") {
            return Err(usage(py, format!("order can be \"C\" or \"F\", and not {order:?}")));
        }
        let mut wishes = Vec::new();
        match (shape, regions) {
            (Some(shape), None) => wishes.push((String::new(), shape.clone(), dtype.cloned(), r#box)),
            (None, Some(regions)) if dtype.is_none() && r#box.is_none() => {
                for (name, wish) in regions {
                    let (shape, dtype, global) = wished(&wish).map_err(|_: PyErr| usage(py, LEND))?;
                    wishes.push((name.extract()?, shape, Some(dtype), global));
                }
            }
            _ => return Err(usage(py, LEND)),
        }
        let order = if order == "F" { MemoryOrder::ColumnMajor } else { MemoryOrder::RowMajor };
        let mut lent = Vec::new();
        let mut elements = Vec::new();
        for (name, wished, dtype, global) in wishes {
            let extents = extents(&wished)?;
            let dtype = match dtype {
                Some(dtype) => PyArrayDescr::new(py, dtype.clone())
                    .map_err(|_| wrong_type(py, format!("{} is no dtype", shown(&dtype))))?,
                None => numpy::dtype::<f64>(py),
            };
            if dtype.has_object() {
                return Err(usage(py, "arrays of Python objects cannot be lent; choose a dtype of numbers"));
            }
            let bytes = extents.iter().try_fold(dtype.itemsize(), |bytes, extent| bytes.checked_mul(*extent));
            bytes.ok_or_else(|| raise(py, &huge(key)))?;
            elements.push(element(&dtype)?);
            lent.push(Wish { name, shape: shape_of(py, &extents, order, global.as_ref())?, dtype });
        }
        let mut blanks = Vec::with_capacity(lent.len());
        for (wish, element) in lent.iter().zip(elements) {
            blanks.push(Blank::of(&wish.name, element, wish.shape.count()).like(&wish.shape));
        }
        let regions = self.call(py, |tape| tape.lend_regions(key, &blanks))?;
        Lent::new(py, Arc::clone(&self.shared), key, lent, regions)
    }

    /// Hands over a snapshot for the last time: a read-only array over the slot, or a dictionary of
    /// them, without a copy. The key is free again, and the slot when the last array over it is
    /// gone.
    #[pyo3(signature = (key, /))]
    fn take<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let key = number(key)?;
        let take = |tape: &mut outcrop::Tape| tape.take_regions(key);
        let regions = self.shared.call_or_undo(py, take, |tape, regions| slot::put_back(tape, key, regions))?;
        slot::past(py, regions)
    }

    /// Hands over a snapshot as `take` does, and keeps it. If there is none, gives `default` if one
    /// is given, and else an error.
    #[pyo3(signature = (key, /, *default))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let default = match default.len() {
            0 => None,
            1 => Some(default.get_item(0)?),
            _ => return Err(usage(py, "call it as get(step), or get(step, default)")),
        };
        let number = number(key)?;
        let found = self.call(py, |tape| match tape.get_regions(number) {
            Err(error) if error.kind() == ErrorKind::Missing => Ok(Err(error)),
            found => found.map(Ok),
        })?;
        match (found, default) {
            (Ok(regions), _) => slot::past(py, regions),
            (Err(_), Some(default)) => Ok(default),
            (Err(error), None) => Err(raise(py, &error)),
        }
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, key, &PyTuple::empty(py))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.into_pyobject(py)?.try_iter()
    }

    /// Forgets a snapshot without reading it.
    #[pyo3(signature = (key, /))]
    fn discard(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = number(key)?;
        self.call(py, |tape| tape.discard(key))
    }

    /// The keys of all snapshots that can be read, in ascending order.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.shared.look(py, |tape| Ok(tape.keys()))
    }

    /// What the tape has done until now and what it has cost, as a dictionary.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.shared.look(py, |tape| Ok(tape.stats()))?;
        let text = serde_json::to_string(&stats).map_err(|error| usage(py, error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Writes the timeline to a file that Perfetto and chrome://tracing open. The tape needs
    /// `trace=True`.
    fn write_trace(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = errors::path(path)?;
        self.shared.look(py, |tape| tape.write_trace(&path))
    }

    /// Ends the tape; nothing is left of it but arrays that are still in use. A second time, it
    /// does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.shared.close()).map_err(|error| raise(py, &error))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.shared.look(py, |tape| Ok(tape.count()))
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        // Nothing but a number can be a key.
        let Ok(key) = key.extract::<u64>() else { return Ok(false) };
        self.call(py, |tape| Ok(tape.has(key)))
    }
}

/// An array, and which part of a global one it is, if it is an `outcrop.Boxed`.
fn boxed(value: Bound<'_, PyAny>) -> PyResult<(Bound<'_, PyAny>, Option<GlobalBox>)> {
    static BOXED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = value.py();
    if value.is_exact_instance_of::<PyUntypedArray>() {
        return Ok((value, None));
    }
    match value.is_instance(BOXED.import(py, "outcrop._arrays", "Boxed")?)? {
        true => Ok((value.getattr(intern!(py, "array"))?, Some(value.getattr(intern!(py, "box"))?.extract()?))),
        false => Ok((value, None)),
    }
}

/// One of several arrays that are to be lent: shape, dtype, and perhaps a box.
fn wished<'py>(wish: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Option<GlobalBox>)> {
    wish.extract().or_else(|_: PyErr| wish.extract().map(|(shape, dtype)| (shape, dtype, None)))
}

/// A shape: some whole numbers, or one.
fn extents(shape: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let several = shape.extract::<Vec<usize>>();
    several.or_else(|_| shape.extract::<usize>().map(|extent| vec![extent])).map_err(|_: PyErr| {
        usage(shape.py(), format!("{shape} is no shape: it must be a whole number from 0 upwards, or several"))
    })
}
