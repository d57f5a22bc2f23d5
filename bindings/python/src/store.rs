//! Stores and their sessions, as the Python half of the package uses them.

use std::{collections::BTreeSet, sync::Mutex};

use numpy::{PyArrayDescrMethods, PyUntypedArrayMethods};
use outcrop::{
    Element, MemoryOrder, Part, PartMut, Reached, Shape,
    bindings::{OfProcess, closed},
    store::Watch,
};
use pyo3::prelude::*;

use crate::{
    arrays::{Flat, GlobalBox, box_of},
    errors::{self, number, raise, size, usage},
    waiting::{Turns, lock, waited},
};

/// A place for checkpoints, described by a JSON text; `outcrop.Store` makes it from keyword
/// arguments.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct Store {
    open: OfProcess<Mutex<Option<outcrop::Store>>>,
}

impl Store {
    /// Works with a handle of its own, so that other threads need not wait for it.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&outcrop::Store) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        let call = || {
            let store = lock(self.open.get()?).clone().ok_or_else(|| closed("store"))?;
            call(&store)
        };
        waited(py, call)
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (settings, /))]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let store = waited(py, || outcrop::StoreBuilder::from_json(settings)?.open())?;
        Ok(Self { open: OfProcess::new("store", Mutex::new(Some(store))) })
    }

    /// Whether it is time to save, by the `interval` and what saving has cost until now. With
    /// several ranks, all of them call it.
    fn due(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, outcrop::Store::due)
    }

    /// How many seconds to wait between two saves, by what is known now, for each directory; None
    /// without an `interval`.
    fn interval_seconds(&self, py: Python<'_>) -> PyResult<Vec<Option<f64>>> {
        self.call(py, |store| Ok(store.interval_seconds()))
    }

    /// What has been done until now and what it has cost, as a dictionary.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.call(py, |store| Ok(store.stats()))?;
        let text = serde_json::to_string(&stats).map_err(|error| usage(py, error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Ends this handle; the store itself ends with its last session. A second time, it does
    /// nothing.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || {
            // Dropped when nobody has to wait for the lock any more.
            let store = lock(self.open.get()?).take();
            drop(store);
            Ok(())
        };
        py.detach(close).map_err(|error| raise(py, &error))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_ok_and(|open| lock(open).is_none())
    }

    /// The names of the sessions that its directories have.
    fn _names(&self, py: Python<'_>) -> PyResult<BTreeSet<String>> {
        self.call(py, |store| store.names())
    }
}

/// One series of versions in a store. Values are NumPy arrays here; `outcrop.Session` deals with
/// everything else.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct Session {
    open: OfProcess<Turns<outcrop::Session>>,
    /// To wait while another thread uses the session.
    watch: OfProcess<Mutex<Option<Watch>>>,
}

impl Session {
    /// Calls the session, which no other thread does meanwhile.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut outcrop::Session) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        waited(py, || self.open.get()?.with(call))
    }

    /// Asks how far a version has got, as other threads may use the session meanwhile.
    fn watch<T: Send>(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        layer: Option<&Bound<'_, PyAny>>,
        ask: impl FnOnce(&Watch, u64, Reached) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        let version = number(version)?;
        let layer = layer.map(|layer| size("layer", layer)).transpose()?;
        let reached = layer.map_or(Reached::All, Reached::Layer);
        let ask = || {
            let watch = lock(self.watch.get()?).clone().ok_or_else(|| closed("session"))?;
            ask(&watch, version, reached)
        };
        waited(py, ask)
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (store, name, /))]
    fn new(py: Python<'_>, store: &Store, name: &Bound<'_, PyAny>) -> PyResult<Self> {
        let name = errors::name(name)?;
        let mut session = store.call(py, |store| store.session(&name))?;
        // Who catches the exception of a failed restore goes on with arrays that must be as before.
        session.verify_before_restore(true);
        let watch = OfProcess::new("session", Mutex::new(Some(session.watch())));
        Ok(Self { open: OfProcess::new("session", Turns::new("session", session)), watch })
    }

    /// Saves these values.
    fn _save(&self, py: Python<'_>, version: &Bound<'_, PyAny>, values: Vec<Value<'_>>) -> PyResult<()> {
        let version = number(version)?;
        let flats = values.iter().map(|(_, _, array, _)| Flat::of(array)).collect::<PyResult<Vec<_>>>()?;
        let mut parts = Vec::with_capacity(flats.len());
        for ((name, made_of, _, global), flat) in values.iter().zip(&flats) {
            let element = element(made_of.as_deref(), flat)?;
            parts.push(Part::of(name, element, flat.bytes()).like(&flat.shape(global.as_ref())?));
        }
        self.call(py, |session| session.save(version, &parts))
    }

    /// Restores a version into these values, on all ranks.
    fn _restore(&self, py: Python<'_>, version: u64, targets: Vec<Value<'_>>) -> PyResult<Restored> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&targets, &mut flats, true)?;
        Ok(restored(self.call(py, |session| session.restore(version, &mut parts))?))
    }

    /// Restores the newest version that is whole on all ranks, as `_restore` does, whatever the
    /// memory order of values without a box is.
    fn _restore_latest(&self, py: Python<'_>, targets: Vec<Value<'_>>) -> PyResult<Option<Restored>> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&targets, &mut flats, false)?;
        Ok(self.call(py, |session| session.restore_latest(&mut parts))?.map(restored))
    }

    /// Copies a version into these values, without going on from there, and without other ranks.
    fn _read(&self, py: Python<'_>, version: u64, targets: Vec<Value<'_>>) -> PyResult<()> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&targets, &mut flats, true)?;
        self.call(py, |session| session.read(version, &mut parts))
    }

    /// What this rank has in a version: name, element, dimensions, memory order and box of each
    /// region.
    fn _regions(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<Vec<Described>> {
        let version = number(version)?;
        let regions = self.call(py, |session| session.regions(version))?;
        Ok(regions.into_iter().map(|region| described(region.name, region.element, &region.shape)).collect())
    }

    /// The newest version that all ranks have.
    fn _latest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.call(py, |session| session.latest())
    }

    /// The versions that can be restored or are on their way, in ascending order.
    #[getter]
    fn versions(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.call(py, |session| Ok(session.versions()))
    }

    /// Waits until a version is complete and durable in a directory, 1 being the first, or in all.
    /// An error if it never will be.
    #[pyo3(signature = (version, layer=None))]
    fn wait(&self, py: Python<'_>, version: &Bound<'_, PyAny>, layer: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.watch(py, version, layer, Watch::wait)
    }

    /// Whether a version is complete and durable in a directory, 1 being the first, or in all. An
    /// error if it never will be.
    #[pyo3(signature = (version, layer=None))]
    fn has_reached(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        layer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        self.watch(py, version, layer, Watch::has_reached)
    }

    /// Waits until everything under way is done. An error if some version has not
    /// reached a directory.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::Session::flush)
    }

    /// Forgets all versions above `version`, or all, for good, so that the series can go on from
    /// there in another way.
    #[pyo3(signature = (version=None))]
    fn rewind(&self, py: Python<'_>, version: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let version = version.map(number).transpose()?;
        self.call(py, |session| session.rewind(version))
    }

    /// Forgets versions that were found when the session was opened and that not all ranks have,
    /// for good: also those that would be whole again if a directory of some rank came back. With
    /// several ranks, all of them call it.
    fn forget_incomplete(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::Session::forget_incomplete)
    }

    /// Takes note that bytes of a value have changed.
    fn _mark_dirty(
        &self,
        py: Python<'_>,
        name: &str,
        start: &Bound<'_, PyAny>,
        stop: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let start = size("start", start)?;
        let stop = stop.map_or(Ok(usize::MAX), |stop| size("stop", stop))?;
        if stop < start {
            return Err(usage(
                py,
                format!("{start} to {stop} are no bytes of {name}: the first must not be above the last"),
            ));
        }
        self.call(py, |session| {
            session.mark_dirty(name, start..stop);
            Ok(())
        })
    }

    /// Waits until everything is where it belongs, and ends the session. An error if some version
    /// has not reached a directory. A second time, it does nothing. Interrupted while it waits, it
    /// leaves the session open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let flushed = waited(py, || self.open.get()?.with_open(|session| Ok(session.flush())))?;
        let close = || {
            let session = self.open.get()?.close()?;
            lock(self.watch.get()?).take();
            drop(session);
            flushed.unwrap_or(Ok(()))
        };
        waited(py, close)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_ok_and(Turns::is_closed)
    }
}

/// A value of a version: its name, what it is made of if that is not the array's dtype, the array,
/// and which part of a global array it is, if it is one.
pub(crate) type Value<'py> = (String, Option<String>, Bound<'py, PyAny>, Option<GlobalBox>);

/// What a value is made of.
pub(crate) fn element(made_of: Option<&str>, flat: &Flat<'_>) -> PyResult<Element> {
    match made_of {
        Some(made_of) => Ok(Element::other(made_of.to_owned(), flat.array().dtype().itemsize())),
        None => flat.element(),
    }
}

/// Arrays to be filled. No two of them may share memory.
pub(crate) fn flats_mut<'py>(targets: &[Value<'py>]) -> PyResult<Vec<Flat<'py>>> {
    let flats = targets.iter().map(|(_, _, array, _)| Flat::of_mut(array)).collect::<PyResult<Vec<_>>>()?;
    let mut places: Vec<_> =
        flats.iter().zip(targets).map(|(flat, (name, ..))| (flat.bytes().as_ptr_range(), name)).collect();
    places.sort_by_key(|(place, _)| place.start);
    match places.iter().zip(places.iter().skip(1)).find(|((one, _), (other, _))| one.end > other.start) {
        None => Ok(flats),
        Some(((_, one), (_, other))) => {
            let problem =
                format!("{one} and {other} are to be restored into the same memory; give each an array of its own");
            Err(usage(targets[0].2.py(), problem))
        }
    }
}

/// Which version was restored, and what was passed over: newer ones, and copies of it.
type Restored = (u64, Vec<String>);

fn restored(restored: outcrop::store::Restored) -> Restored {
    (restored.version, restored.skipped.iter().map(ToString::to_string).collect())
}

/// Arrays as what is to be restored, with their memory orders or with whatever they were saved. One
/// with a box always has an order.
fn parts_mut<'a>(targets: &'a [Value<'_>], flats: &'a mut [Flat<'_>], with_orders: bool) -> PyResult<Vec<PartMut<'a>>> {
    let part = |((name, made_of, _, global), flat): (&'a Value<'_>, &'a mut Flat<'_>)| {
        let (element, shape) = (element(made_of.as_deref(), flat)?, flat.shape(global.as_ref())?);
        let part = PartMut::of(name, element, flat.bytes_mut());
        let has_order = with_orders || global.is_some();
        Ok(if has_order { part.like(&shape) } else { part.of_dimensions(shape.dimensions()) })
    };
    targets.iter().zip(flats).map(part).collect()
}

/// Name, element, dimensions, memory order and box of a region, as Python has them.
pub(crate) type Described = (String, String, Vec<usize>, &'static str, Option<GlobalBox>);

pub(crate) fn described(name: String, element: String, shape: &Shape) -> Described {
    let order = match shape.order() {
        MemoryOrder::RowMajor => "C",
        MemoryOrder::ColumnMajor => "F",
    };
    (name, element, shape.dimensions().to_vec(), order, box_of(shape))
}
