//! `cargo xtask model`: measures this machine, and makes the built-in cost model and its test data
//! again.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{cargo, root};

/// So many calls, as the test data has them.
const CALLS: &str = "2000";

/// More runnable threads than this disturb the measurement.
const LOAD_MAX: f64 = 1.0;

/// The model that is part of Outcrop, and the calls that tests compare it with others by.
const MODEL: &str = "crates/cost/src/built_in.model";
const DATA: &str = "crates/cost/tests/cost/data/calls.csv";

pub(crate) fn write() -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg").context("cannot read the load of this machine")?;
    let busy = load.split(' ').next().and_then(|word| word.parse::<f64>().ok()).context("no load average")?;
    ensure!(
        busy <= LOAD_MAX,
        "this machine is busy (load {busy}): what is measured would be noise; wait until it is idle, and call this again"
    );
    let root = root()?;
    cargo(&["build", "--release", "-p", "outcrop-cli"])?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let samples = target.join("calls.csv");
    let mut train = Command::new(target.join("release/outcrop"));
    train.args(["model", "train", "--force", "--calls", CALLS]).arg("--dir").arg(target.join("model-scratch"));
    train.arg("--output").arg(root.join(MODEL)).arg("--samples").arg(&samples);
    ensure!(train.status().context("cannot start outcrop")?.success(), "the training has failed");
    write_data(&samples, &root.join(DATA))?;
    // Weka is the oracle: it must be there.
    let mut test = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.args(["test", "-p", "outcrop-cost"]).env("OUTCROP_SOAK", "1").env("OUTCROP_TEST_ALL", "1").current_dir(&root);
    ensure!(test.status().context("cannot start cargo")?.success(), "the new model, or its data, fails a test");
    println!("wrote {MODEL} and {DATA}; docs/pool.md says what its errors are");
    Ok(())
}

fn write_data(samples: &Path, data: &Path) -> Result<()> {
    let calls = fs::read_to_string(samples).context("the training has left no samples")?;
    let head = format!(
        "# Calls of outcrop model train --calls {CALLS} --samples FILE, which `cargo xtask model` has run on an\n\
         # idle machine. The last quarter are of other pools than the rest.\n"
    );
    fs::write(data, head + &calls).with_context(|| format!("cannot write {}", data.display()))
}
