//! Transfers between memory and files.
//!
//! A [`Transfer`] has memory, a direction, and the places in files that the memory goes to or comes
//! from. It owns its memory until it has ended. A [`Carrier`] carries transfers out: it asks a
//! [`Feed`] for the next one and gives each back with its outcome. It keeps many requests in flight
//! through io_uring, with memory that is registered with the kernel, or makes one blocking call
//! after the other where there is no io_uring.
//!
//! What the files mean, and what lies where in them, is for others to know.

mod blocking;
mod carrier;
mod file;
mod flight;
mod registered;
mod request;
mod ring;
mod transfer;

pub use carrier::{Carrier, CarrierOptions, Method, SetupError};
pub use file::{ALIGN, File};
pub use transfer::{Direction, Feed, Memory, Piece, Pieces, Transfer};
