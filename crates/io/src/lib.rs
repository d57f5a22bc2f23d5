//! Transfers between memory and files.
//!
//! A [`Transfer`] has memory, a direction, and the places in files where the bytes go to or come
//! from. It owns its memory until it has ended. A [`Carrier`] carries transfers out: it pulls them
//! from a [`Feed`], and returns each with its result. It keeps many requests in flight through
//! io_uring, with memory that is registered with the kernel. Without io_uring, it makes one
//! blocking call after the other.
//!
//! This crate knows nothing about the contents of the files.

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
