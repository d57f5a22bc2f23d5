//! Arrays, lists, trees and graphs that are ordinary memory to a program, and of which one call
//! makes a version durable: a crash at any moment leaves the last version whole.
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
mod copy;
mod error;
mod file;
mod foreign;
mod graph;
pub mod layout;
mod list;
mod medium;
mod mirror;
mod nvm;
mod open;
mod part;
mod place;
mod pool;
mod space;
mod spill;
mod table;
mod tree;
mod view;
mod whole;
mod worth;
mod write;

pub use array::{Array, Shape};
pub use error::{Error, Result};
#[doc(hidden)]
pub use foreign::Foreign;
pub use graph::{Graph, GraphView};
pub use layout::Versioned;
pub use list::List;
pub use medium::Medium;
#[doc(hidden)]
pub use mirror::Mirror;
pub use nvm::{Charged, Emulator, Nvm};
pub use outcrop_cost::{Features, Kind};
pub use outcrop_plan::Rule;
pub use outcrop_pool_derive::{Versioned, persistent};
use part::Part;
pub use part::Parts;
pub use place::Home;
pub use pool::{Block, Options, Persisted, Pool, Structure, Usage};
pub use spill::Spill;
pub use tree::{Cell, Children, Face, LEVEL_MAX, Octree, Place, Quadtree, Tree, TreeView};
pub use view::{ArrayView, Described, View};
pub use worth::Outcome;

extern crate self as outcrop_pool;
