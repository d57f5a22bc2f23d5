//! Where the files of a store are: a directory, or an address of an object store.

use std::{io, path::Path, sync::Arc};

use outcrop_catalog::{Catalog, Error};
use outcrop_layers::files::{DiskFiles, Files};
use outcrop_settings::{StoreObject, is_address};

/// The catalog of an existing directory, or of an address such as `s3://bucket/prefix`.
pub fn catalog_at(place: &Path) -> Result<Catalog, Error> {
    let opened = match place.to_str().filter(|text| is_address(text)) {
        Some(address) => object_files(&StoreObject::new(address)),
        None => DiskFiles::open(place).map(|files| Arc::new(files) as Arc<dyn Files>),
    };
    opened.map(Catalog::new).map_err(|source| Error::Open { path: location_of(&place.display().to_string()), source })
}

/// The files below an address.
#[cfg(feature = "object")]
pub(crate) fn object_files(told: &StoreObject) -> io::Result<Arc<dyn Files>> {
    let mut options = outcrop_object::Options::default();
    if let Some(patience) = told.patience {
        options.patience = patience;
    }
    Ok(Arc::new(outcrop_object::ObjectFiles::open(&told.url, options)?))
}

/// The files below an address.
#[cfg(not(feature = "object"))]
pub(crate) fn object_files(_told: &StoreObject) -> io::Result<Arc<dyn Files>> {
    let reason = "this Outcrop was built without object stores; build it with `--features object`, or install it with \
                  `cargo xtask install`";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// An address for messages: without what may be a password in it.
pub(crate) fn location_of(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.split_once('@').map_or(rest, |(_, place)| place)),
        None => url.to_owned(),
    }
}
