//! Host memory that is page-locked for a device, each mapping in one piece.

use std::{
    io,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_memory::{Kept, Mapping};

use super::{Device, Registration};
use crate::{Error, Result};

/// The mappings that one layer has registered.
///
/// To register takes long, and to end it too, so that neither is done while the list is locked:
/// transfers look at it.
#[derive(Default)]
pub(super) struct Registered {
    mappings: Mutex<Vec<RegisteredMapping>>,
    /// Held by whoever registers, so that nobody else registers the same.
    registering: Mutex<()>,
}

impl Registered {
    /// Registers a mapping, unless it is.
    pub(super) fn add(&self, device: &dyn Device, mapping: &Arc<Mapping>) -> Result<()> {
        self.tidy();
        let _turn = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.contains(mapping) {
            let registered = RegisteredMapping::new(device, mapping)?;
            self.mappings().push(registered);
        }
        Ok(())
    }

    /// Whether a mapping is registered.
    pub(super) fn contains(&self, mapping: &Arc<Mapping>) -> bool {
        self.mappings().iter().any(|registered| Arc::ptr_eq(registered.mapping(), mapping))
    }

    /// The bytes that are registered.
    pub(super) fn bytes(&self) -> u64 {
        self.mappings().iter().map(|registered| registered.mapping().bytes()).sum()
    }

    /// Gives up mappings that nobody uses any more. No transfer can use one of those.
    pub(super) fn tidy(&self) {
        let orphans: Vec<_> = self.mappings().extract_if(.., |registered| registered.mapping().is_orphan()).collect();
        drop(orphans);
    }

    fn mappings(&self) -> MutexGuard<'_, Vec<RegisteredMapping>> {
        // The list is changed by single calls, so that it is whole also after a panic elsewhere.
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mapping that a device knows. It is kept, and counts as kept, for as long as the device does.
struct RegisteredMapping {
    /// Before the mapping, as values are dropped in this order: the device gives the memory up
    /// before the system may.
    _registration: Registration,
    mapping: Kept,
}

impl RegisteredMapping {
    fn new(device: &dyn Device, mapping: &Arc<Mapping>) -> Result<Self> {
        let no_address = || Error::transfer(device.name(), "register memory", io::ErrorKind::InvalidInput.into());
        let address = NonNull::new(mapping.address(0)).ok_or_else(no_address)?;
        // Before the device knows of it, so that none of its pages is given back any more.
        let kept = mapping.keep_registered();
        // SAFETY: the mapping is kept by the value made here, which ends the registration first.
        let registration = unsafe { device.register(address, mapping.bytes() as usize) }?;
        Ok(Self { _registration: registration, mapping: kept })
    }

    fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
