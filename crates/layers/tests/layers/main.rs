//! All tests of this crate from outside: one program, so that there is one to link.

// Lists of one extent are what most transfers have.
#![allow(clippy::single_range_in_vec_init)]

mod common;
mod contract;
mod device_checks;
mod device_cuda;
mod device_kernels;
mod device_opencl;
mod dir_life;
mod dir_media;
mod faults;
mod files;
mod host;
mod shared;
mod shelf;
