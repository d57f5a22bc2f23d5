//! What programs written for VELOC link with, on top of Outcrop.
//!
//! The symbols of `veloc.h` are in `c`; what they do is in [`client`], which knows no pointers but
//! those of `regions`. `cpp/veloc.cpp` has what only C++ can have: the class of `veloc.hpp`, and
//! the one call of MPI.

mod c;
mod checkpoint;
mod client;
mod config;
mod failure;
mod number;
mod old;
mod ranks;
mod regions;
mod restart;
mod routed;
mod saved;
