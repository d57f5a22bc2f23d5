//! The node daemon: files whose bytes go to spare memory of the machine first.

use std::{
    ptr, slice,
    sync::{Arc, Mutex},
};

use numpy::PyUntypedArray;
use outcrop::{
    bindings::{OfProcess, closed},
    settings::{NodeSettings, Settings},
};
use pyo3::{prelude::*, sync::PyOnceLock, types::PyBytes};

use crate::{
    arrays::Flat,
    errors::{self, size},
    waiting::{lock, waited},
};

/// A connection to the node daemon, described by a JSON text; `outcrop.Node` makes it from keyword
/// arguments.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct Node {
    open: OfProcess<Mutex<Option<outcrop::node::Node>>>,
}

impl Node {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outcrop::node::Node) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        waited(py, || call(&lock(self.open.get()?).clone().ok_or_else(|| closed("node"))?))
    }
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (settings, /))]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let node = waited(py, || outcrop::node::Node::connect(NodeSettings::from_json(settings)?))?;
        Ok(Self { open: OfProcess::new("node", Mutex::new(Some(node))) })
    }

    /// Drains all files of all programs of this user on this machine. Those that could not be
    /// drained are tried again.
    fn drain_all(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::node::Node::drain_all)
    }

    /// What the daemon holds, for whom, and what it could not drain, as a dictionary.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = self.call(py, outcrop::node::Node::status_json)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_ok_and(|open| lock(open).is_none())
    }

    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        waited(py, || {
            let node = lock(self.open.get()?).take();
            drop(node);
            Ok(())
        })
    }
}

/// A file of which the newest bytes may be in memory of the node.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct NodeFile {
    open: OfProcess<Mutex<Option<Arc<outcrop::node::NodeFile>>>>,
}

impl NodeFile {
    /// Calls the file, of which several threads may have calls at once.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outcrop::node::NodeFile) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        waited(py, || call(&*lock(self.open.get()?).clone().ok_or_else(|| closed("file"))?))
    }

    fn begin(
        &self,
        py: Python<'_>,
        offset: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<outcrop::node::Pending> {
        let offset = size("the offset", offset)? as u64;
        let bytes = Kept::of(data)?;
        self.call(py, move |file| file.write_async(offset, bytes))
    }
}

/// The bytes of an array, which lives as long as they are needed. No copy.
struct Kept {
    _array: Py<PyAny>,
    start: usize,
    len: usize,
}

impl Kept {
    fn of(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        static BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let flat = match data.is_exact_instance_of::<PyUntypedArray>() {
            true => Flat::of(data)?,
            false => Flat::of(&BUFFER.import(data.py(), "outcrop._arrays", "buffer")?.call1((data,))?)?,
        };
        let (start, len) = (flat.bytes().as_ptr().expose_provenance(), flat.bytes().len());
        Ok(Self { _array: flat.array().clone().into_any().unbind(), start, len })
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the array is contiguous and has so many bytes there, and lives as long as `self`.
        // If the program writes to it meanwhile, it gets what it deserves, as everywhere in NumPy.
        unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.start), self.len) }
    }
}

#[pymethods]
impl NodeFile {
    #[new]
    #[pyo3(signature = (node, path, /))]
    fn new(py: Python<'_>, node: &Bound<'_, Node>, path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let path = errors::path(path)?;
        let file = node.get().call(py, |node| node.open(&path))?;
        Ok(Self { open: OfProcess::new("file", Mutex::new(Some(Arc::new(file)))) })
    }

    /// Writes an array, or what has a buffer, at an offset in bytes. Returns when it is in memory
    /// of the node, which is when it may change again.
    #[pyo3(signature = (offset, data, /))]
    fn write(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        // The array outlives the call if Ctrl-C ends it.
        let pending = self.begin(py, offset, data)?;
        waited(py, || pending.wait())
    }

    /// Begins to write, and returns at once. The array must not change until that is done.
    #[pyo3(signature = (offset, data, /))]
    fn write_async(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<Pending> {
        Ok(Pending { pending: OfProcess::new("pending write", self.begin(py, offset, data)?) })
    }

    /// So many bytes from an offset, the newest, wherever they are; fewer at the end of the file.
    #[pyo3(signature = (offset, bytes, /))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: &Bound<'_, PyAny>,
        bytes: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (offset, bytes) = (size("the offset", offset)? as u64, size("the number of bytes", bytes)?);
        let there = self.call(py, outcrop::node::NodeFile::size)?.saturating_sub(offset);
        let mut count = 0;
        let read = PyBytes::new_with(py, bytes.min(there as usize), |into| {
            count = self.call(py, |file| file.read(offset, into))?;
            Ok(())
        })?;
        // It may have become shorter meanwhile.
        Ok(if count == read.as_bytes().len() { read } else { PyBytes::new(py, &read.as_bytes()[..count]) })
    }

    /// Fills an array from an offset. Returns how many bytes there were: fewer at the end of the
    /// file.
    #[pyo3(signature = (offset, into, /))]
    fn read_into(&self, py: Python<'_>, offset: &Bound<'_, PyAny>, into: &Bound<'_, PyAny>) -> PyResult<usize> {
        let offset = size("the offset", offset)? as u64;
        let mut into = Flat::of_mut(into)?;
        let into = into.bytes_mut();
        self.call(py, |file| file.read(offset, into))
    }

    /// How many bytes the file has.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, outcrop::node::NodeFile::size)
    }

    /// Cuts the file off, or extends it with zeros.
    #[pyo3(signature = (bytes, /))]
    fn resize(&self, py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = size("the number of bytes", bytes)? as u64;
        self.call(py, |file| file.resize(bytes))
    }

    /// Waits until everything that was written is in the file.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::node::NodeFile::drain)
    }

    /// Drains, and makes the file durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::node::NodeFile::sync)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_ok_and(|open| lock(open).is_none())
    }

    /// Waits for pending writes, and reports a failure to drain that was not reported. What was
    /// written is drained after it. A second time, it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        waited(py, || {
            let file = lock(self.open.get()?).take();
            file.map_or(Ok(()), |file| file.check())
        })
    }
}

/// A write that was begun.
#[pyclass(frozen, module = "outcrop")]
pub(crate) struct Pending {
    pending: OfProcess<outcrop::node::Pending>,
}

#[pymethods]
impl Pending {
    /// Whether it is done, well or not: then the array may change again.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let pending = self.pending.get().map_err(|error| errors::raise(py, &error))?;
        Ok(pending.is_done())
    }

    /// Waits until it is done, and raises what `write` would have raised.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        waited(py, || self.pending.get()?.wait())
    }
}
