//! A stand-in for the CUDA driver library, for tests on machines without a device.
//!
//! It exports the `cu*` functions that Outcrop calls, keeps device memory in host memory, and
//! checks the rules that a real driver has: started and current before anything else, reserved
//! before mapped, mapped with access before used, registered before copied asynchronously, freed
//! exactly once and not used after; memory used by the device that has access to it, events and
//! kernels in streams of their own device. A call that breaks one fails as the driver's would, and
//! is counted as a violation, so that a test can demand that there were none.
//!
//! Where drivers differ it is the strict one: asynchronous copies from and to pageable memory,
//! which a real driver carries out slowly, and what was not given back when a context is released,
//! are violations too.
//!
//! Copies on streams are carried out only when somebody waits for them, and copies from pageable
//! memory arrive only when the default stream is waited for, which a real driver also allows
//! itself: who reads too early sees old bytes.
//!
//! It can be told to have little memory, to refuse allocations, to be lost after some calls, and to
//! have its contexts broken by a kernel that ran astray.

pub mod calls;
pub mod controls;
mod driver;
mod kernels;
mod memory;
mod streams;
