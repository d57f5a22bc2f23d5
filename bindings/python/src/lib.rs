//! The native half of the Python package `outcrop`: tapes, stores, pools and the node daemon,
//! over NumPy arrays. The
//! other half is in `python/outcrop`.

mod archive;
mod arrays;
mod errors;
mod exit;
mod node;
mod pool;
mod slot;
mod store;
mod tape;
mod threads;
mod waiting;

use pyo3::prelude::*;

/// Tapes, stores, pools and files of a node for NumPy arrays; use the package `outcrop`.
#[pymodule]
mod _outcrop {
    #[pymodule_export]
    use crate::{
        archive::{_versions, Archive},
        exit::_end_badly,
        node::{Node, NodeFile, Pending},
        pool::{Pool, PoolMemory},
        slot::{Lent, Slot},
        store::{Session, Store},
        tape::Tape,
    };

    /// The length of a list, in the box of a part of it.
    #[pymodule_export]
    const LIST: usize = outcrop::LIST;

    /// The version of the package, which is that of the crates.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
