//! The settings of tapes and stores.
//!
//! What a tape or a store can be told is plain data: [`TapeSettings`] and [`StoreSettings`]. To
//! describe one has no effects: nothing is opened, created or waited for. Builders fill them in,
//! and so do texts in TOML or JSON ([`Settings::from_toml`]). When a tape or store is opened,
//! variables of the environment override them ([`Settings::override_by`]).
//!
//! Each kind of settings has one [table](Settings::TABLE) with name, type, default and meaning.
//! Parsing, the environment, the [reference](reference()) and the Python stubs all follow from it.

#![forbid(unsafe_code)]

mod reference;
mod size;
mod store;
mod table;
mod tape;
mod value;

pub use reference::{python, reference};
pub use size::Size;
pub use store::{Compression, Dedup, RanksSettings, SharedDirectorySettings, StoreDir, StoreFiles, StoreSettings};
pub use table::{Setting, Settings, Variables};
pub use tape::{DeviceSettings, SharedHostSettings, TapeDir, TapeLayer, TapeSettings};
