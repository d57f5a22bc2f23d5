//! Host memory that is page-locked for a device, each mapping in one piece.

use std::{io, ptr::NonNull, sync::Arc};

use super::{Device, Registration};
use crate::{Error, Result, host::Mapping};

/// The mappings that one layer has registered.
#[derive(Default)]
pub(super) struct Registered {
    mappings: Vec<RegisteredMapping>,
}

impl Registered {
    /// Registers a mapping, unless it is.
    pub(super) fn add(&mut self, device: &dyn Device, mapping: &Arc<Mapping>) -> Result<()> {
        self.tidy();
        if self.contains(mapping) {
            return Ok(());
        }
        let no_address = || Error::transfer(device.name(), "register memory", io::ErrorKind::InvalidInput.into());
        let address = NonNull::new(mapping.address(0)).ok_or_else(no_address)?;
        // SAFETY: the mapping lives as long as the value made here, which ends the registration first.
        let registration = unsafe { device.register(address, mapping.bytes()) }?;
        let mapping = Some(mapping.keep_registered());
        self.mappings.push(RegisteredMapping { registration: Some(registration), mapping });
        Ok(())
    }

    /// Whether a mapping is registered.
    pub(super) fn contains(&self, mapping: &Arc<Mapping>) -> bool {
        self.mappings.iter().any(|registered| registered.is_of(mapping))
    }

    /// The bytes that are registered.
    pub(super) fn bytes(&self) -> u64 {
        self.mappings.iter().flat_map(|registered| &registered.mapping).map(|mapping| mapping.bytes() as u64).sum()
    }

    /// Gives up mappings that nobody uses any more. No transfer can use one of those.
    pub(super) fn tidy(&mut self) {
        self.mappings.retain(|registered| registered.mapping.as_ref().is_some_and(|mapping| !mapping.is_orphan()));
    }
}

/// Both are there until it is dropped.
struct RegisteredMapping {
    registration: Option<Registration>,
    mapping: Option<Arc<Mapping>>,
}

impl RegisteredMapping {
    fn is_of(&self, mapping: &Arc<Mapping>) -> bool {
        self.mapping.as_ref().is_some_and(|own| Arc::ptr_eq(own, mapping))
    }
}

impl Drop for RegisteredMapping {
    fn drop(&mut self) {
        // In this order: the device gives the memory up before the system may.
        drop(self.registration.take());
        if let Some(mapping) = self.mapping.take() {
            mapping.release_registered();
        }
    }
}
