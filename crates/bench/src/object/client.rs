//! What needs a client of object stores.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    ObjectStore, ObjectStoreExt, WriteMultipart,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use outcrop::{Part, PartMut, Reached, Store};
use serde_json::json;

use super::Measured;
use crate::pool::median;

/// As Outcrop has them.
const PART_BYTES: usize = 8 << 20;
const AT_ONCE: usize = 8;

/// Measures `bytes` in `rounds`, in which the ways take turns.
pub(super) fn run(address: &str, bytes: usize, rounds: usize) -> Result<Measured> {
    let (bucket, prefix) = address
        .strip_prefix("s3://")
        .and_then(|rest| rest.split_once('/'))
        .with_context(|| format!("{} is {address:?}; write an address such as s3://bucket/bench", super::ADDRESS))?;
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_allow_http(true);
    let client = Arc::new(builder.with_config(AmazonS3ConfigKey::DisableBulkDelete, "true").build()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let state: Vec<u64> = (0..bytes as u64 / 8).map(|nth| nth.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let plain: Vec<u8> = state.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (plain_at, run_at) = (Path::from(format!("{prefix}/plain")), format!("{address}/{}", std::process::id()));
    let mut seconds: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds as u64 {
        seconds[0].push(timed(|| runtime.block_on(upload(&client, &plain_at, &plain)))?);
        seconds[1].push(save(&run_at, round, &state)?);
        seconds[2].push(timed(|| runtime.block_on(download(&client, &plain_at, &plain)))?);
        seconds[3].push(restore(&run_at, &state)?);
    }
    let store: Arc<dyn ObjectStore> = client;
    runtime.block_on(async {
        let left = store.list(Some(&Path::from(prefix))).map_ok(|found| found.location).boxed();
        store.delete_stream(left).try_collect::<Vec<_>>().await
    })?;
    let medians = seconds.each_ref().map(|seconds| median(seconds));
    let ways = ["uploads in parts", "store: durable", "ranged reads", "store: restore, verified"];
    let rows = ways
        .iter()
        .zip(medians)
        .map(|(way, takes)| json!({ "part": "object store", "way": way, "takes_seconds": takes, "bytes": bytes }));
    let [upload, durable, download, restore] = medians;
    Ok(Measured { runs: rows.collect(), durable_over_plain: upload / durable, restore_over_plain: download / restore })
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

async fn upload(client: &AmazonS3, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut upload = WriteMultipart::new_with_chunk_size(client.put_multipart(path).await?, PART_BYTES);
    for part in bytes.chunks(PART_BYTES) {
        upload.wait_for_capacity(AT_ONCE).await?;
        upload.write(part);
    }
    upload.finish().await?;
    Ok(())
}

async fn download(client: &AmazonS3, path: &Path, wanted: &[u8]) -> Result<()> {
    let starts = (0..wanted.len()).step_by(PART_BYTES);
    let reads = starts.map(|start| async move {
        let end = wanted.len().min(start + PART_BYTES);
        Ok::<_, anyhow::Error>((start, client.get_range(path, start as u64..end as u64).await?))
    });
    let mut found = vec![0; wanted.len()];
    let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
    while let Some((start, bytes)) = reads.try_next().await? {
        found[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    ensure!(found == wanted, "the server has other bytes");
    Ok(())
}

fn open(address: &str) -> Result<Store> {
    Ok(Store::builder().host("256 MiB").object(address, None).incremental(false).open()?)
}

fn save(address: &str, version: u64, state: &[u64]) -> Result<f64> {
    let store = open(address)?;
    let mut session = store.session("bench")?;
    let begun = Instant::now();
    session.save(version, &[Part::new("state", state)])?;
    session.wait(version, Reached::Layer(1))?;
    let seconds = begun.elapsed().as_secs_f64();
    session.finish()?;
    Ok(seconds)
}

fn restore(address: &str, wanted: &[u64]) -> Result<f64> {
    let store = open(address)?;
    let mut session = store.session("bench")?;
    let mut found = vec![0; wanted.len()];
    let begun = Instant::now();
    session.restore_latest(&mut [PartMut::new("state", &mut found)])?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(found == wanted, "the store has other bytes");
    Ok(seconds)
}
