//! Weak references to an engine's state, and the wait for their users when the engine closes.

use std::{
    ops::Deref,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::core::Shared;

/// A reference to the state of an engine that does not keep the engine open.
pub(crate) struct Link {
    shared: Weak<Shared>,
    exits: Arc<Exits>,
}

/// Synchronises the users of links with the closing of the engine.
#[derive(Debug, Default)]
pub(crate) struct Exits {
    is_closed: Mutex<bool>,
    left: Condvar,
}

/// The use of an engine's state through a link. Closing waits until it is dropped.
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
        // Check before `upgrade`: after closing, nobody may hold the state even for a moment.
        let is_closed = self.exits.lock();
        let shared = if *is_closed { None } else { self.shared.upgrade() }?;
        Some(Visit { shared: Some(shared), exits: Arc::clone(&self.exits) })
    }
}

impl Exits {
    /// Refuses new visits, and waits until the caller is the only one who holds the state.
    pub(crate) fn close(shared: &Arc<Shared>) {
        let mut is_closed = shared.exits.lock();
        *is_closed = true;
        // A visit drops its reference before it takes the lock to notify: the wait cannot miss it.
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
