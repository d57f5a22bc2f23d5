//! Slots of a tape in the hands of a Python program: arrays over them, and slots that are being
//! filled.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{PyArrayDescr, PyUntypedArray};
use outcrop::{Element, ErrorKind, LentRegions, Part, PastRegions, Result, Shape, Tape, bindings::OfProcess};
use pyo3::{ffi, prelude::*, sync::PyOnceLock, types::PyDict};

use crate::{
    arrays::{GlobalBox, box_of, dtype, make_read_only, view},
    errors::{raise, usage},
    threads::Shared,
};

/// One region of a snapshot. Arrays over it have it as their base, so that the snapshot's memory is
/// given back when the last of them is gone.
#[pyclass(frozen, module = "outcrop")]
pub(crate) struct Slot {
    /// Keeps the memory.
    _memory: Arc<Memory>,
    global: Option<GlobalBox>,
}

#[pymethods]
impl Slot {
    /// Which part of a global array it is: the shape of the whole, and the index of the first
    /// element. None if it was not said to be one.
    #[getter]
    fn _box(&self) -> Option<GlobalBox> {
        self.global.clone()
    }
}

/// The memory of one snapshot.
struct Memory {
    content: OfProcess<Mutex<Content>>,
}

enum Content {
    Lent(LentRegions),
    Past { _regions: Arc<PastRegions> },
    GivenBack,
}

impl Memory {
    fn new(content: Content) -> Arc<Self> {
        Arc::new(Self { content: OfProcess::new("lent array", Mutex::new(content)) })
    }

    /// A region of it, as what arrays are based on.
    fn region<'py>(self: &Arc<Self>, py: Python<'py>, shape: &Shape) -> PyResult<Bound<'py, PyAny>> {
        Ok(Bound::new(py, Slot { _memory: Arc::clone(self), global: box_of(shape) })?.into_any())
    }
}

/// A snapshot that was handed over, as an array if it was saved as one, else as a dictionary of
/// arrays.
pub(crate) fn past(py: Python<'_>, regions: PastRegions) -> PyResult<Bound<'_, PyAny>> {
    let mut places = Vec::new();
    for name in regions.names() {
        let part = regions.part(name).map_err(|error| raise(py, &error))?;
        let shape = regions.shape(name).map_err(|error| raise(py, &error))?.clone();
        places.push((name.to_owned(), shape, part.element, part.bytes.as_ptr().cast_mut()));
    }
    let memory = Memory::new(Content::Past { _regions: Arc::new(regions) });
    let array = |shape: &Shape, element: &Element, start| {
        // SAFETY: the base holds the snapshot, which nobody changes. It was saved from such an
        // array.
        unsafe { view(shape, dtype(py, element)?, start, memory.region(py, shape)?, false) }
    };
    match &places[..] {
        [(name, shape, element, start)] if name.is_empty() => Ok(array(shape, element, *start)?.into_any()),
        places => {
            let arrays = PyDict::new(py);
            for (name, shape, element, start) in places {
                arrays.set_item(name, array(shape, element, *start)?)?;
            }
            Ok(arrays.into_any())
        }
    }
}

/// Saves a snapshot that was taken once more, under its key.
pub(crate) fn put_back(tape: &mut Tape, key: u64, regions: PastRegions) -> Result<()> {
    let mut copies = Vec::new();
    for name in regions.names() {
        let part = regions.part(name)?;
        copies.push((name.to_owned(), regions.shape(name)?.clone(), part.element, part.bytes.to_vec()));
    }
    // Its slot is then free for it.
    drop(regions);
    let parts = copies.iter().map(|(name, shape, element, bytes)| Part::of(name, element.clone(), bytes).like(shape));
    tape.save_regions(key, &parts.collect::<Vec<_>>())
}

/// An array that a program wants to fill.
pub(crate) struct Wish<'py> {
    /// Its name; empty where it has none.
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) dtype: Bound<'py, PyArrayDescr>,
}

/// A slot to compute into. In a `with` block it is the array, or a dictionary of them; the end of
/// the block makes it a snapshot, an exception leaves none.
#[pyclass(frozen, module = "outcrop")]
pub(crate) struct Lent {
    tape: Arc<Shared>,
    key: u64,
    memory: Arc<Memory>,
    /// What the program was given, by name.
    given: Vec<(String, Given)>,
    /// Several arrays as the program was given them.
    arrays: Option<Py<PyDict>>,
}

/// An array in the hands of the program. All of its views have the root as their base, so that one
/// can tell whether there are any.
struct Given {
    root: Py<PyUntypedArray>,
    array: Py<PyUntypedArray>,
}

impl Lent {
    pub(crate) fn new(
        py: Python<'_>,
        tape: Arc<Shared>,
        key: u64,
        wishes: Vec<Wish<'_>>,
        mut regions: LentRegions,
    ) -> PyResult<Self> {
        let mut starts = Vec::new();
        for wish in &wishes {
            starts.push(regions.bytes_mut(&wish.name).map_err(|error| raise(py, &error))?.as_mut_ptr());
        }
        let memory = Memory::new(Content::Lent(regions));
        let mut given = Vec::new();
        for (wish, start) in wishes.into_iter().zip(starts) {
            let array = |base: Bound<'_, PyAny>| {
                // SAFETY: the base keeps the memory and outlives the array. Regions do not overlap,
                // and Rust does not touch them until `make_read_only` was called.
                unsafe { view(&wish.shape, wish.dtype.clone(), start, base, true) }.map(Bound::unbind)
            };
            let root = array(memory.region(py, &wish.shape)?)?;
            let array = array(root.bind(py).clone().into_any())?;
            given.push((wish.name, Given { root, array }));
        }
        let arrays = match &given[..] {
            [(name, _)] if name.is_empty() => None,
            given => {
                let arrays = PyDict::new(py);
                for (name, given) in given {
                    arrays.set_item(name, &given.array)?;
                }
                Some(arrays.unbind())
            }
        };
        Ok(Self { tape, key, memory, given, arrays })
    }

    /// Ends filling: the slot becomes a snapshot, which the arrays still show, or is forgotten once
    /// they are gone.
    fn end(&self, py: Python<'_>, is_kept: bool) -> PyResult<Arc<PastRegions>> {
        let content = self.memory.content.get().map_err(|error| raise(py, &error))?;
        let mut content = lock(content);
        let regions = match std::mem::replace(&mut *content, Content::GivenBack) {
            Content::Lent(regions) => regions,
            ended => {
                *content = ended;
                return Err(usage(py, format!("the slot of snapshot {} was sealed or abandoned before", self.key)));
            }
        };
        for (_, given) in &self.given {
            make_read_only(given.array.bind(py));
            make_read_only(given.root.bind(py));
        }
        let regions = Arc::new(regions.seal_and_keep());
        *content = Content::Past { _regions: Arc::clone(&regions) };
        drop(content);
        match self.tape.check() {
            // A tape that was closed meanwhile has lost it.
            Err(error) if is_kept => Err(raise(py, &error))?,
            Ok(()) if !is_kept => self.tape.call(py, |tape| match tape.discard(self.key) {
                Err(error) if error.kind() == ErrorKind::Missing => Ok(()), // Another thread was quick enough to take it.
                outcome => outcome,
            })?,
            _ => {}
        }
        Ok(regions)
    }

    /// Makes a snapshot of a copy, in a slot of its own. The one that was lent is the program's as
    /// long as anything shows it.
    fn copy(&self, py: Python<'_>) -> PyResult<()> {
        let regions = self.end(py, false)?;
        self.tape.check().map_err(|error| raise(py, &error))?;
        self.tape.call(py, |tape| {
            let parts = regions.names().into_iter().map(|name| regions.part(name)).collect::<Result<Vec<_>>>()?;
            tape.save_regions(self.key, &parts)
        })
    }

    /// Whether the program has nothing but names for the arrays that it was given. Anything else
    /// that refers to them may be able to write to them: views, iterators, buffers, objects of
    /// other packages.
    fn is_alone(&self, py: Python<'_>) -> PyResult<bool> {
        static NAMES_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        // SAFETY: it is a living object, and this thread is attached to the interpreter.
        let references = |array: &Py<PyUntypedArray>| unsafe { ffi::Py_REFCNT(array.bind(py).as_ptr()) };
        // One is ours, and one that of the array that was given: ordinary views have it as their
        // base.
        if self.given.iter().any(|(_, given)| references(&given.root) > 2) {
            return Ok(false);
        }
        let names_of = NAMES_OF.import(py, "outcrop._arrays", "names_of")?;
        for (name, given) in &self.given {
            let mut others = references(&given.array) - 1;
            if let Some(arrays) = &self.arrays
                && arrays.bind(py).get_item(name)?.is_some_and(|array| array.is(&given.array))
            {
                others -= 1;
            }
            if others != 0 && names_of.call1((&given.array,))?.extract::<isize>()? != others {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[pymethods]
impl Lent {
    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.arrays {
            Some(arrays) => Ok(arrays.bind(py).clone().into_any()),
            None => Ok(self.given[0].1.array.bind(py).clone().into_any()),
        }
    }

    #[pyo3(signature = (kind, _value, _traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() { self.seal(py) } else { self.abandon(py) }
    }

    /// Makes it a snapshot. The arrays can be read on, but not written to any more. If something
    /// else than names refers to them, the snapshot is a copy.
    fn seal(&self, py: Python<'_>) -> PyResult<()> {
        match self.is_alone(py)? {
            true => self.end(py, true).map(drop),
            false => self.copy(py),
        }
    }

    /// Makes no snapshot; the key is free again.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, false).map(drop)
    }

    fn __repr__(&self) -> String {
        format!("<outcrop.Lent of snapshot {}>", self.key)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
