//! Arrays that are ordinary memory to a program, and of which one call makes a version durable: a
//! crash at any moment leaves the last version whole.
//!
//! A [`Pool`] is a file, or persistent memory. Its structures are read and written in place. A
//! version is durable when [`Pool::persist`] returns, for all structures at once. Blocks that have
//! not changed are shared between versions. A new version goes to unused pages; then one small
//! record, its root, makes it the newest. See docs/pool.md.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("sim.pool");
//! use outcrop_pool::{Block, Options, Pool, Versioned};
//!
//! #[derive(Versioned, Clone, Copy)]
//! struct Cell { rho: f64, level: u32, flag: u32 }
//!
//! let pool = Pool::open(&path, Options::versions(3))?;
//! let mut grid = pool.array::<Cell>("grid", 1_000_000, Block::elements(4096))?;
//! grid[7].rho += 1.0;
//! let first = pool.persist(&mut [&mut grid])?;
//! grid[7].rho += 1.0;
//! let second = pool.persist(&mut [&mut grid])?;
//!
//! let old = pool.view(first)?;
//! assert_eq!(old.array::<Cell>("grid")?[7].rho, 1.0);
//! pool.restore(first, &mut [&mut grid])?;
//! assert_eq!(grid[7].rho, 1.0);
//! # drop((grid, old, pool));
//! // The next run continues with the newest version.
//! let pool = Pool::open(&path, Options::versions(3))?;
//! let grid = pool.array::<Cell>("grid", 1_000_000, Block::elements(4096))?;
//! assert_eq!(grid[7].rho, 2.0);
//! # assert_eq!(pool.versions(), [first, second]);
//! # Ok::<(), outcrop_pool::Error>(())
//! ```

mod array;
mod error;
mod file;
pub mod layout;
mod medium;
mod open;
mod part;
mod pool;
mod space;
mod table;
mod view;

pub use array::{Array, Shape};
pub use error::{Error, Result};
pub use layout::Versioned;
pub use medium::Medium;
pub use outcrop_pool_derive::Versioned;
pub use part::Part;
pub use pool::{Block, Options, Persisted, Pool, Structure, Usage};
pub use view::{ArrayView, Described, View};

extern crate self as outcrop_pool;
