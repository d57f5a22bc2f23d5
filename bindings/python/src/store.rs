//! A session of a store, as the Python half of the package uses it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use numpy::PyUntypedArrayMethods;
use outcrop::{Error, OfProcess, Part, PartMut, Reached, Store, StoreBuilder, store::Watch};
use pyo3::prelude::*;

use crate::{
    arrays::{Flat, element},
    errors::{number, raise, usage},
};

/// A store and one series of versions in it. Values are NumPy arrays here; `outcrop.Store` deals with everything else.
#[pyclass(frozen, subclass, weakref, module = "outcrop")]
pub(crate) struct Session {
    open: OfProcess<RwLock<Option<Open>>>,
    /// To wait while another thread uses the session.
    watch: OfProcess<Mutex<Option<Watch>>>,
}

struct Open {
    /// Ends before the store does.
    session: outcrop::Session,
    store: Mutex<Store>,
}

impl Session {
    /// Calls the session, which no other thread does meanwhile.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut outcrop::Session) -> outcrop::Result<T> + Send,
    ) -> PyResult<T> {
        let call = || {
            let mut open = self.open.get()?.write().unwrap_or_else(PoisonError::into_inner);
            call(&mut open.as_mut().ok_or(Error::Closed)?.session)
        };
        py.detach(call).map_err(|error| raise(py, &error))
    }

    /// Looks at it, as other threads may at the same time.
    fn look<T: Send>(&self, py: Python<'_>, look: impl FnOnce(&Open) -> outcrop::Result<T> + Send) -> PyResult<T> {
        let look = || {
            let open = self.open.get()?.read().unwrap_or_else(PoisonError::into_inner);
            look(open.as_ref().ok_or(Error::Closed)?)
        };
        py.detach(look).map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (name, settings, /))]
    fn new(py: Python<'_>, name: &str, settings: &str) -> PyResult<Self> {
        let open = || {
            let store = StoreBuilder::from_json(settings)?.open()?;
            let session = store.session(name)?;
            Ok(Open { session, store: Mutex::new(store) })
        };
        let open = py.detach(open).map_err(|error| raise(py, &error))?;
        let watch = OfProcess::new(Mutex::new(Some(open.session.watch())));
        Ok(Self { open: OfProcess::new(RwLock::new(Some(open))), watch })
    }

    /// Saves these arrays, given as pairs of name and array.
    fn _save(
        &self,
        py: Python<'_>,
        version: &Bound<'_, PyAny>,
        values: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let version = number(version)?;
        let flats = values.iter().map(|(name, array)| Ok((name.as_str(), Flat::of(array)?)));
        let flats = flats.collect::<PyResult<Vec<_>>>()?;
        let parts = flats.iter().map(|(name, flat)| Part::of(name, element(&flat.array().dtype()), flat.bytes()));
        let parts: Vec<Part<'_>> = parts.collect();
        self.call(py, |session| session.save(version, &parts))
    }

    /// Restores a version into these arrays, given as pairs of name and array, on all ranks.
    fn _restore(&self, py: Python<'_>, version: u64, targets: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<()> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&mut flats);
        self.call(py, |session| session.restore(version, &mut parts)).map(drop)
    }

    /// Restores the newest version that is whole on all ranks, as `_restore` does. Says which one.
    fn _restore_latest(&self, py: Python<'_>, targets: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Option<u64>> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&mut flats);
        let restored = self.call(py, |session| session.restore_latest(&mut parts))?;
        Ok(restored.map(|restored| restored.version))
    }

    /// Copies values of a version into these arrays, without going on from there, and without other ranks.
    fn _read(&self, py: Python<'_>, version: u64, targets: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<()> {
        let mut flats = flats_mut(&targets)?;
        let mut parts = parts_mut(&mut flats);
        self.call(py, |session| session.read(version, &mut parts))
    }

    /// What this rank has in a version: name, element and bytes of each region.
    fn _regions(&self, py: Python<'_>, version: u64) -> PyResult<Vec<(String, String, u64)>> {
        let regions = self.call(py, |session| session.regions(version))?;
        Ok(regions.into_iter().map(|region| (region.name, region.element, region.bytes)).collect())
    }

    /// The newest version that all ranks have.
    fn _latest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.look(py, |open| open.session.latest())
    }

    /// The versions that can be restored or are on their way, in ascending order.
    #[getter]
    fn versions(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.look(py, |open| Ok(open.session.versions()))
    }

    /// Waits until a version is complete and durable in a directory, 1 being the first, or in all. An error if it never will be.
    #[pyo3(signature = (version, layer=None))]
    fn wait(&self, py: Python<'_>, version: &Bound<'_, PyAny>, layer: Option<usize>) -> PyResult<()> {
        let version = number(version)?;
        let reached = layer.map_or(Reached::All, Reached::Layer);
        let wait = || {
            let watch = lock(self.watch.get()?).clone().ok_or(Error::Closed)?;
            watch.wait(version, reached)
        };
        py.detach(wait).map_err(|error| raise(py, &error))
    }

    /// Waits until everything under way has come to its end. An error if some version has not reached a directory.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, outcrop::Session::flush)
    }

    /// Whether it is time to save, by the `interval` and what saving has cost until now. With several ranks, all of them call it.
    fn due(&self, py: Python<'_>) -> PyResult<bool> {
        self.look(py, |open| lock(&open.store).due())
    }

    /// Forgets all versions above `version`, or all, for good, so that the series can go on from there in another way.
    #[pyo3(signature = (version=None))]
    fn rewind(&self, py: Python<'_>, version: Option<u64>) -> PyResult<()> {
        self.call(py, |session| session.rewind(version))
    }

    /// Says that bytes of a value have changed although this program has not written them: a device or a network card did. All of
    /// them where nothing is said.
    #[pyo3(signature = (name, start=0, stop=None))]
    fn mark_dirty(&self, py: Python<'_>, name: &str, start: usize, stop: Option<usize>) -> PyResult<()> {
        self.call(py, |session| {
            session.mark_dirty(name, start..stop.unwrap_or(usize::MAX));
            Ok(())
        })
    }

    /// What has been done until now and what it has cost, as a dictionary.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.look(py, |open| Ok(lock(&open.store).stats()))?;
        let text = serde_json::to_string(&stats).map_err(|error| usage(py, error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Waits until everything is where it belongs, and ends the store. An error if some version has not reached a directory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let close = || {
            let mut open = self.open.get()?.write().unwrap_or_else(PoisonError::into_inner);
            let Open { session, store } = open.take().ok_or(Error::Closed)?;
            lock(self.watch.get()?).take();
            let outcome = session.finish();
            drop(store);
            outcome
        };
        py.detach(close).map_err(|error| raise(py, &error))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.watch.get().is_ok_and(|watch| lock(watch).is_none())
    }
}

/// Arrays to be filled, by name. No two of them may share memory.
fn flats_mut<'a, 'py>(targets: &'a [(String, Bound<'py, PyAny>)]) -> PyResult<Vec<(&'a str, Flat<'py>)>> {
    let flats = targets.iter().map(|(name, array)| Ok((name.as_str(), Flat::of_mut(array)?)));
    let flats = flats.collect::<PyResult<Vec<_>>>()?;
    let mut places: Vec<_> = flats.iter().map(|(name, flat)| (flat.bytes().as_ptr_range(), *name)).collect();
    places.sort_by_key(|(place, _)| place.start);
    match places.iter().zip(places.iter().skip(1)).find(|((one, _), (other, _))| one.end > other.start) {
        None => Ok(flats),
        Some(((_, one), (_, other))) => {
            let problem =
                format!("{one} and {other} are to be restored into the same memory; give each an array of its own");
            Err(usage(targets[0].1.py(), problem))
        }
    }
}

fn parts_mut<'a>(flats: &'a mut [(&str, Flat<'_>)]) -> Vec<PartMut<'a>> {
    let part = |(name, flat): &'a mut (&str, Flat<'_>)| {
        let element = element(&flat.array().dtype());
        PartMut::of(name, element, flat.bytes_mut())
    };
    flats.iter_mut().map(part).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
