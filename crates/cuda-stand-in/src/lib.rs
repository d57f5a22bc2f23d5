//! A stand-in for the CUDA driver library, for tests on machines without a device.
//!
//! It exports the `cu*` functions that Outcrop calls, keeps device memory in host memory, and checks the rules that a real
//! driver has: started and current before anything else, reserved before mapped, mapped with access before used,
//! registered before copied asynchronously, freed exactly once and not used after. A call that breaks one fails as the
//! driver's would, and is counted as a violation, so that a test can demand that there were none.
//!
//! Copies on streams are carried out only when somebody waits for them, and copies from pageable memory arrive only when
//! the default stream is waited for, which a real driver also allows itself: who reads too early sees old bytes.
//!
//! It can be told to have little memory, to refuse allocations, and to be lost after some calls.

pub mod calls;
pub mod controls;
mod driver;
mod kernels;
mod memory;
mod streams;
