//! Host memory that is page-locked for a device, one registration per mapping.

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
/// Registering and unregistering take long, so neither is done while the list is locked: transfers
/// need the list.
#[derive(Default)]
pub(super) struct Registered {
    mappings: Mutex<Vec<RegisteredMapping>>,
    /// Held while registering, so that no other thread registers the same mapping.
    registering: Mutex<()>,
}

impl Registered {
    /// Registers a mapping, unless it is registered already.
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

    /// How many bytes are registered.
    pub(super) fn bytes(&self) -> u64 {
        self.mappings().iter().map(|registered| registered.mapping().bytes()).sum()
    }

    /// Unregisters mappings that nobody uses any more. No transfer can use one of those.
    pub(super) fn tidy(&self) {
        let orphans: Vec<_> = self.mappings().extract_if(.., |registered| registered.mapping().is_orphan()).collect();
        drop(orphans);
    }

    fn mappings(&self) -> MutexGuard<'_, Vec<RegisteredMapping>> {
        // The list is changed by single calls, so it is consistent even after a panic elsewhere.
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mapping that is registered with a device. It keeps the mapping alive as long as it is
/// registered.
struct RegisteredMapping {
    /// Before the mapping, because fields are dropped in this order: the device must release the
    /// memory before the system may.
    _registration: Registration,
    mapping: Kept,
}

impl RegisteredMapping {
    fn new(device: &dyn Device, mapping: &Arc<Mapping>) -> Result<Self> {
        let no_address = || Error::transfer(device.name(), "register memory", io::ErrorKind::InvalidInput.into());
        let address = NonNull::new(mapping.address(0)).ok_or_else(no_address)?;
        // Before the device knows the memory, so that none of its pages is released from now on.
        let kept = mapping.keep_registered();
        // SAFETY: the value created here keeps the mapping, and drops the registration first.
        let registration = unsafe { device.register(address, mapping.bytes() as usize) }?;
        Ok(Self { _registration: registration, mapping: kept })
    }

    fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
