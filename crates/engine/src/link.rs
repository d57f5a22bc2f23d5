//! References to an engine's state that do not keep it alive, and the wait for their users when the
//! engine closes.

use std::{
    ops::Deref,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::core::Shared;

/// Leads to the state of an engine as long as it is open.
pub(crate) struct Link {
    shared: Weak<Shared>,
    exits: Arc<Exits>,
}

/// Where visits begin and end.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    is_closed: Mutex<bool>,
    left: Condvar,
}

/// The use of an engine's state through a link. Closing waits for its end.
pub(crate) struct Visit {
    shared: Option<Arc<Shared>>,
    exits: Arc<Exits>,
}

impl Link {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared), exits: Arc::clone(&shared.exits) }
    }

    /// The state, if the engine is still open.
    pub(crate) fn visit(&self) -> Option<Visit> {
        // Checked before the state is taken up even for a moment: whoever closes must be the last
        // to have it.
        let is_closed = self.exits.lock();
        let shared = if *is_closed { None } else { self.shared.upgrade() }?;
        Some(Visit { shared: Some(shared), exits: Arc::clone(&self.exits) })
    }
}

impl Exits {
    /// Lets no visit begin any more, and waits until nobody but the caller has the state.
    pub(crate) fn close(shared: &Arc<Shared>) {
        let mut is_closed = shared.exits.lock();
        *is_closed = true;
        // A visit gives the state up before it takes the lock to say so: it cannot leave unnoticed.
        drop(shared.exits.left.wait_while(is_closed, |_| Arc::strong_count(shared) > 1));
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Visit {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        self.shared.as_ref().expect("it is there until the end")
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        drop(self.shared.take());
        let _lock = self.exits.lock();
        self.exits.left.notify_all();
    }
}
