//! Old versions that leave a pool that is full.

use std::{error::Error as StdError, sync::Arc};

use crate::{Error, Pool, Result, View};

/// Where old versions go when a pool is full. `outcrop::pool::SpillStore` is a store.
pub trait Spill: Send + Sync {
    /// Keeps a version, whose pages may be freed afterwards. When this returns, it is durable
    /// there. Versions come in ascending order. After a crash, or a failure, the same one may come
    /// again.
    ///
    /// # Errors
    ///
    /// If it is not: then the pool keeps the version, and `persist` fails.
    fn spill(&self, version: &View) -> std::result::Result<(), Box<dyn StdError + Send + Sync>>;
}

impl<S: Spill + ?Sized> Spill for Arc<S> {
    fn spill(&self, version: &View) -> std::result::Result<(), Box<dyn StdError + Send + Sync>> {
        (**self).spill(version)
    }
}

impl Pool {
    /// Has old versions leave for elsewhere when the pool, or its file system, is full: the oldest
    /// first, and as many as needed for the next one. The newest version, the one that was
    /// restored, and those that are being read never leave.
    pub fn spill_to(&self, spill: impl Spill + 'static) {
        self.0.state().spill = Some(Arc::new(spill));
    }

    /// Has the oldest version leave that may. An error if there is none, or nowhere to go.
    pub(crate) fn make_room(&self, full: Error) -> Result<()> {
        let state = self.0.state();
        let (Some(spill), Some(leaving)) = (state.spill.clone(), state.spillable()) else { return Err(full) };
        let location = state.file.location.clone();
        // Older ones that cannot leave yet are spilled as well: later they would be out of order.
        let ones = state.versions.iter().map(|held| held.root.version);
        let ones: Vec<u64> = ones.filter(|one| (state.spilled + 1..=leaving).contains(one)).collect();
        // Whoever spills reads the version, for which the pool must not be locked.
        drop(state);
        for version in ones {
            let spilled = spill.spill(&self.view(version)?);
            spilled.map_err(|source| Error::Spill { location: location.clone(), version, source })?;
            self.0.state().spilled = version;
        }
        self.0.state().remove(leaving)
    }
}
