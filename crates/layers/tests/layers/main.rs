//! Integration tests of layers. One program, so that only one has to be linked.

// Most transfers have lists of one extent.
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
