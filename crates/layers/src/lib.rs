//! Layers, which hold bytes.
//!
//! A [`Layer`] is a range of bytes with a hard limit. Its user decides what lies where; the layer
//! only reads and writes. [`Host`] is memory that the program can address, handed out as [`Slot`]s.
//! [`Dir`] is a directory of segment files. [`DeviceLayer`] is memory of a device. [`Throttled`]
//! and [`Faulty`] wrap other layers, to simulate slow hardware and faults. All of them pass the
//! [`contract`].

pub mod contract;
mod device;
mod dir;
mod error;
mod faulty;
pub mod files;
mod front;
mod host;
mod layer;
mod places;
mod shelf;
mod throttled;

pub use device::{
    Buffer, Cuda, Device, DeviceHash, DeviceHasher, DeviceKind, DeviceLayer, Event, FoundDevice, HashBlocks, OpenCl,
    Place, Registration, Reservation, Stream, checksum, devices, open_device,
};
pub use dir::{Dir, DirOptions};
pub use error::{Error, Result};
pub use faulty::{Fault, Faulty};
pub use front::{Abilities, Front, Kept, Room};
pub use host::{Host, Sealed, Slot};
pub use layer::{ALIGN, Extents, Feed, Layer, Memory, Transfer, aligned};
pub use outcrop_io::Method;
pub use shelf::Shelf;
pub use throttled::Throttled;
