//! A store in an object store, against uploads and ranged reads of the same bytes by the same
//! client with as many requests under way.

#[cfg(feature = "object")]
mod client;

use anyhow::Result;
use serde_json::Value;

/// The variable that says where: a bucket of a local server, such as `s3://bucket/bench`.
const ADDRESS: &str = "OUTCROP_BENCH_OBJECT";

/// What was measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Rows of a report.
    pub runs: Vec<Value>,
    /// Bytes per second until a version is durable, over those of uploads.
    pub durable_over_plain: f64,
    /// Bytes per second of a verified restore, over those of ranged reads.
    pub restore_over_plain: f64,
}

/// Measures `bytes` in `rounds`, in which the ways take turns. `None`, and a line why, if it cannot
/// be measured here.
pub fn run(bytes: usize, rounds: usize, progress: &mut dyn FnMut(&str)) -> Result<Option<Measured>> {
    let Ok(address) = std::env::var(ADDRESS) else {
        progress(&format!("{ADDRESS} names no bucket such as s3://bucket/bench, so object stores are not measured"));
        return Ok(None);
    };
    progress(&format!("a store in {address}, and uploads of the same bytes"));
    measure(&address, bytes, rounds).map(Some)
}

#[cfg(feature = "object")]
use client::run as measure;

#[cfg(not(feature = "object"))]
fn measure(address: &str, _bytes: usize, _rounds: usize) -> Result<Measured> {
    anyhow::bail!("{address} cannot be measured: build with `--features object`")
}
