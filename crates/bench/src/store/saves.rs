//! Incremental, live and compressed checkpoints.

use std::path::Path;

use anyhow::Result;
use outcrop::{Store, StoreBuilder, store::Compression};
use serde_json::Value;

use super::{Options, Saves, WARM_UP, row};
use crate::workload::write_pages;

/// One kind of save after the other, each in its own store. Returns the rows of the table.
pub(super) fn other_saves(
    options: &Options,
    directory: &Path,
    mut state: Vec<f32>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for percent in [1.0, 10.0] {
        let way = format!("incremental, {percent}% of the pages written");
        progress(&way);
        rows.extend(measure(options, directory, &way, |builder| builder, &mut state, percent)?);
    }
    progress("live");
    let live = |builder: StoreBuilder| builder.incremental(false).live(2 * options.state_bytes);
    rows.extend(measure(options, directory, "live, full", live, &mut state, 0.0)?);
    state.iter_mut().zip(0u32..).for_each(|(value, number)| *value = (number as f32 / 1000.0).sin());
    for (name, compression) in [("lz4", Compression::Lz4), ("zstd 1", Compression::Zstd(1))] {
        let way = format!("a smooth wave, {name} where it pays");
        progress(&way);
        let compressed = |builder: StoreBuilder| builder.incremental(false).compression(compression);
        rows.extend(measure(options, directory, &way, compressed, &mut state, 0.0)?);
    }
    Ok(rows)
}

/// Writes to `percent` of the pages, saves, and measures until the save returns and until the
/// version is durable.
fn measure(
    options: &Options,
    directory: &Path,
    way: &str,
    settings: impl FnOnce(StoreBuilder) -> StoreBuilder,
    state: &mut [f32],
    percent: f64,
) -> Result<[Value; 2]> {
    let scratch = tempfile::tempdir_in(directory)?;
    let store = settings(options.builder(scratch.path())).open()?;
    let mut session = store.session("bench")?;
    let written_bytes = |store: &Store| store.stats().layers[1].written_bytes;
    let (mut saves, mut written_before) = (Saves::default(), 0);
    for version in 0..options.versions() {
        if percent > 0.0 {
            write_pages(state, percent, version as usize);
        }
        if version == WARM_UP {
            saves = Saves::default();
            written_before = written_bytes(&store);
        }
        saves.time(&mut session, version, state)?;
    }
    session.finish()?;
    let written = (written_bytes(&store) - written_before) as f64 / saves.blocked.count() as f64;
    let mut blocked = row("other saves", &format!("{way}: save returns"), &saves.blocked);
    let mut durable = row("other saves", &format!("{way}: durable"), &saves.durable);
    for row in [&mut blocked, &mut durable] {
        row["written_mib"] = (written / (1 << 20) as f64).into();
    }
    Ok([blocked, durable])
}
