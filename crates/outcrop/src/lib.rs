//! Keeps the states that a simulation passes through.
//!
//! A [`Tape`] stores snapshots during a forward pass and returns them during the backward pass.
//! Saving one costs a memory copy or less. In the background the bytes sink through slower and
//! larger layers, and they are prefetched before the program asks for them.
//!
//! ```
//! use outcrop::{Order, Tape};
//! # fn forward(field: &mut [f32]) { field.iter_mut().for_each(|value| *value += 1.0); }
//! # fn correlate(past: &[f32]) { assert!(past.len() == 1000); }
//! # fn main() -> outcrop::Result<()> {
//! # let (n, mut field) = (100, vec![0f32; 1000]);
//! # let directory = tempfile::tempdir().unwrap();
//! # let scratch = directory.path().join("scratch");
//! let mut tape = Tape::builder().host("2 GiB").dir(scratch, "200 GiB").order(Order::Reverse).open()?;
//! for step in 0..n {
//!     forward(&mut field);
//!     tape.save(step, &field)?;
//! }
//! for step in (0..n).rev() {
//!     let past = tape.take(step)?; // derefs to the slice, no copy
//!     correlate(&past);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod builder;
mod error;
pub mod node;
mod process;
mod regions;
mod spill;
mod tape;

/// For bindings to other languages only. It may change at any time.
#[doc(hidden)]
pub mod bindings {
    pub use outcrop_error::patience;
    pub use outcrop_format::check_region_name;

    pub use crate::{
        error::{closed, forked, huge, no_key},
        process::OfProcess,
        tape::Anchor,
    };
}

/// Reads stores without opening them. The program that writes may keep running.
///
/// ```
/// use outcrop::{Part, Store, catalog};
/// # fn main() -> outcrop::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// let store = Store::builder().host("1 MiB").dir(directory, None).pin(false).open()?;
/// let mut session = store.session("heat")?;
/// session.save(7, &[Part::new("field", &[1.0, 2.0])])?;
/// session.finish()?;
///
/// let catalog = catalog::Catalog::open(directory)?;
/// let version = catalog.version("heat", None)?; // the newest
/// assert_eq!((version.version, version.is_complete()), (7, true));
/// let reader = catalog.reader(&version.manifests[&0])?;
/// assert_eq!(reader.read_region("field")?.len(), 16);
/// assert!(catalog::verify(&catalog, None, None, &|_, _| {})?.findings.is_empty());
/// # Ok(())
/// # }
/// ```
pub mod catalog {
    pub use outcrop_catalog::{
        Catalog, Change, Error, Finding, FindingKind, Harm, Reader, RegionDiff, Removal, Result, Scattered, Sessions,
        Usage, Verified, Version, diff, lock_session, verify,
    };
    pub use outcrop_store::catalog_at;
}

/// Layers and devices, for programs that build a stack themselves.
///
/// [`TapeBuilder::host`], [`dir`](TapeBuilder::dir) and [`device_at`](TapeBuilder::device_at) are
/// enough for most programs.
pub mod layers {
    pub use outcrop_layers::{
        ALIGN, Abilities, Buffer, Cuda, Device, DeviceHash, DeviceHasher, DeviceKind, DeviceLayer, Dir, DirOptions,
        Error, Event, Extents, Fault, Faulty, Feed, FoundDevice, Front, HashBlocks, Host, Kept, Layer, Memory, Method,
        OpenCl, Place, Registration, Reservation, Result, Room, Sealed, Slot, Stream, Throttled, Transfer, aligned,
        devices, open_device,
    };

    /// The files of a store, for programs that keep them elsewhere than in a directory.
    pub mod files {
        pub use outcrop_layers::files::{DiskFiles, File, FileLock, Files, read_whole};
    }
}

/// Arrays, lists, trees and graphs that are ordinary memory, and of which one call makes a version
/// durable: see docs/pool.md.
///
/// ```
/// use outcrop::pool::{Block, Options, Pool, Versioned};
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("sim.pool");
///
/// #[derive(Versioned, Clone, Copy)]
/// struct Cell { rho: f64, level: u32, flag: u32 }
///
/// let pool = Pool::open(path, Options::versions(3))?;
/// let mut grid = pool.array::<Cell>("grid", 1_000_000, Block::elements(4096))?;
/// grid[7].rho += 1.0;
/// let version = pool.persist(&mut [&mut grid])?; // durable, for all structures at once
/// assert_eq!(pool.view(version)?.array::<Cell>("grid")?[7].rho, 1.0);
/// # Ok::<(), outcrop::pool::Error>(())
/// ```
pub mod pool {
    pub use outcrop_pool::{
        Array, ArrayView, Block, Cell, Charged, Children, Described, Emulator, Error, Face, Features, Graph, GraphView,
        Home, Kind, LEVEL_MAX, List, Medium, Nvm, Octree, Options, Outcome, Parts, Persisted, Place, Pool, Quadtree,
        Result, Rule, Shape, Spill, Structure, Tree, TreeView, Usage, Versioned, View, persistent,
    };
    #[doc(hidden)]
    pub use outcrop_pool::{Foreign, Mirror, layout};

    pub use crate::spill::SpillStore;
}

/// The settings of tapes, stores and nodes, as plain data and as tables: see docs/settings.md.
///
/// ```
/// use outcrop::{Tape, TapeBuilder, settings::{Settings, TapeSettings}};
/// let builder = TapeBuilder::from_toml("host = '2 GiB'\norder = 'forward'")?;
/// assert_eq!(builder.settings(), Tape::builder().host("2 GiB").order(outcrop::Order::Forward).settings());
/// assert!(TapeSettings::TABLE.iter().any(|setting| setting.name == "host"));
/// # Ok::<(), outcrop::Error>(())
/// ```
pub mod settings {
    pub use outcrop_settings::{
        DeviceSettings, HashDevice, NodeSettings, RanksSettings, RegionSettings, Setting, Settings,
        SharedDirectorySettings, SharedHostSettings, StoreDir, StoreFiles, StoreObject, StoreSettings, TapeDir,
        TapeLayer, TapeSettings, misspelt,
    };
}

/// Checkpoints that survive: named, numbered versions that are complete or absent, written in the
/// background.
///
/// ```
/// use outcrop::{Part, PartMut, Reached, Store};
/// # fn main() -> outcrop::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// let store = Store::builder().host("1 MiB").dir(directory.join("near"), None).dir(directory.join("far"), None).open()?;
/// let mut session = store.session("heat")?;
/// let (mut field, mut step) = (vec![0.0; 1000], 0u64);
/// while step < 3 {
///     step += 1;
///     field.fill(step as f64);
///     // Returns when the program may change the arrays again.
///     session.save(step, &[Part::new("field", &field), Part::one("step", &step)])?;
/// }
/// session.wait(3, Reached::All)?; // durable in both directories
///
/// // After a crash: restore the newest complete version.
/// field.fill(0.0);
/// let restored = session.restore_latest(&mut [PartMut::new("field", &mut field), PartMut::one("step", &mut step)])?;
/// assert_eq!((restored.map(|restored| restored.version), step, field[999]), (Some(3), 3, 3.0));
///
/// // Go back to an older version, and continue from there.
/// session.rewind(Some(2))?;
/// session.restore(2, &mut [PartMut::new("field", &mut field)])?;
/// assert_eq!((session.versions(), field[0]), (vec![1, 2], 2.0));
/// session.finish()?;
/// # Ok(())
/// # }
/// ```
pub mod store {
    pub use outcrop_ranks::{
        Alone, Error as RanksError, Gathered, Ranks, Rendezvous, Result as RanksResult, SharedDirectory,
    };
    pub use outcrop_settings::{Communicator, Compression, Dedup};
    pub use outcrop_store::{
        Code, Reached, RegionOptions, Restored, SavedRegion, Session, Skipped, Store, StoreBuilder, Watch,
    };
}

/// Boxes of global arrays: which of them make up another one, and which bytes go where.
pub mod boxes {
    pub use outcrop_region::{Moves, Placed, Placement, Uncovered, place, whole};
}

/// Measures a machine's memory, directories and devices, so that tapes can start with the results.
///
/// ```no_run
/// use outcrop::{Tape, survey::{Options, Survey}};
/// # fn main() -> outcrop::Result<()> {
/// let profile = Survey::run(&["/scratch".into()], &Options::default(), &mut |what| println!("measures {what}"))?;
/// profile.store("machine.toml".as_ref())?;
/// let tape = Tape::builder().host("2 GiB").dir("/scratch", "90%").profile("machine.toml").open()?;
/// # drop(tape);
/// # Ok(())
/// # }
/// ```
pub mod survey {
    pub use outcrop_survey::{
        DeviceRates, DirectoryRates, Error, FILE, FileRates, Location, MemoryProfile, Options, PinnedRates, Profile,
        Rates, Result, SharedMemoryRates, Survey, TouchedRates, UntouchedRates, VERSION,
    };
}

pub use builder::TapeBuilder;
pub use outcrop_engine::{LayerStats, Span, SpanKind, Stats, Trace};
pub use outcrop_error::{Error, ErrorKind, Result};
pub use outcrop_format::HashKind;
pub use outcrop_layers::{DeviceKind, DirOptions};
pub use outcrop_plan::{MemoryState, Order, Pinning, Preference, Reason, Retention, Rule, Strategy, Touching};
pub use outcrop_region::{
    Blank, DIMENSIONS_MAX, Element, GlobalBox, LIST, MemoryOrder, Part, PartMut, Shape, ShapeError,
};
pub use outcrop_settings::Size;
pub use outcrop_store::{Reached, Session, Store, StoreBuilder};
pub use outcrop_track::{HashRate, TrackStats, Way};
pub use regions::{LentRegions, PastRegions};
pub use tape::{Lent, Past, Tape};
