//! The settings of tapes, stores and clients of the node daemon.
//!
//! The settings are plain data: [`TapeSettings`], [`StoreSettings`] and [`NodeSettings`].
//! Describing one has no effects: nothing is opened, created or waited for. Builders fill them in,
//! and so do texts in TOML or JSON ([`Settings::from_toml`]). When a tape or store is opened,
//! environment variables override them ([`Settings::override_by`]).
//!
//! Each kind of settings has one [table](Settings::TABLE) with name, type, default and meaning.
//! Parsing, the environment, the [reference](reference()) and the Python stubs all use it.

#![forbid(unsafe_code)]

mod node;
mod parity;
mod reference;
mod region;
mod size;
mod store;
mod table;
mod tape;
mod value;
mod variables;

pub use node::NodeSettings;
pub use parity::ParitySettings;
pub use reference::{python, reference};
pub use region::RegionSettings;
pub use size::Size;
pub use store::{
    Communicator, Compression, Dedup, HashDevice, RanksSettings, SharedDirectorySettings, StoreDir, StoreFiles,
    StoreObject, StoreSettings, is_address,
};
pub use table::{Setting, Settings, Variables};
pub use tape::{DeviceSettings, SharedHostSettings, TapeDir, TapeLayer, TapeSettings};
pub use variables::misspelt;
