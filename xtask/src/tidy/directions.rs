//! Which crate of this workspace may use which. Dependencies point one way; tests may use more than
//! what they test.

use std::collections::BTreeMap;

/// The crates, from the ground up, each with those that it may use. `outcrop-` is left out of the
/// names.
const MAY_USE: &[(&str, &[&str])] = &[
    // Everybody may use it.
    (EVERYBODYS, &[]),
    // What decides is pure, and so is what describes bytes: no files, clocks or threads.
    ("plan", &[]),
    ("region", &[]),
    ("format", &["region"]),
    ("commit", &["plan", "format"]),
    ("parity", &["format"]),
    ("cost", &["plan"]),
    ("grants", &["format"]),
    // What touches the system, one concern each.
    ("trace", &[]),
    ("memory", &[]),
    ("io", &["memory"]),
    ("local", &["format"]),
    ("layers", &["memory", "io", "local"]),
    ("track", &["format", "memory", "layers"]),
    ("object", &["layers"]),
    // What a tape or store can be told, in the words of those that are told.
    ("settings", &["plan", "parity", "format", "layers", "track"]),
    // Arrays in persistent memory; no planner belongs on their hot path.
    ("pool-derive", &[]),
    ("pool", &["pool-derive", "cost", "plan", "format", "local", "memory"]),
    // Processes of one job.
    ("ranks", &["format", "local"]),
    ("mpi", &["ranks", "local"]),
    // The reader of what survives, measurements, and what carries out the plan.
    ("catalog", &["region", "format", "memory", "layers"]),
    ("survey", &["memory", "layers"]),
    ("engine", &["region", "plan", "memory", "local", "trace", "layers"]),
    (
        "store",
        &[
            "commit", "parity", "region", "ranks", "mpi", "settings", "plan", "format", "memory", "layers", "track",
            "catalog", "engine", "survey", "object",
        ],
    ),
    // The node daemon, its client, and programs that nobody changes.
    ("node", &["grants", "format", "memory", "io", "local", "trace"]),
    ("intercept", &["node", "format", "memory", "io", "local"]),
    // What users import.
    (
        "outcrop",
        &[
            "region", "ranks", "settings", "store", "pool", "node", "plan", "format", "layers", "track", "catalog",
            "engine", "survey",
        ],
    ),
    // Sources in C, translated.
    ("annotate", &[]),
    // Programs and other languages.
    ("rtm", &["outcrop"]),
    ("science", &["pool"]),
    ("sim", &["plan", "commit", "format", "grants"]),
    (
        "bench",
        &["outcrop", "ranks", "mpi", "node", "intercept", "cost", "layers", "memory", "rtm", "science", "sim", "track"],
    ),
    ("cli", &["outcrop", "annotate", "mpi", "node", "intercept", "bench", "rtm", "survey", "sim"]),
    ("c", &["outcrop", "memory"]),
    ("veloc", &["outcrop", "memory", "format"]),
    ("preload", &[]),
    ("python", &["outcrop"]),
    ("xtask", &["settings"]),
    // For tests.
    ("cuda-stand-in", &["format", "memory"]),
    ("crash", &["layers"]),
    ("testing", &["memory", "layers"]),
];

/// What every crate may use.
const EVERYBODYS: &str = "error";

/// Only tests may use these, and any test may.
const FOR_TESTS: &[&str] = &["testing", "crash", "cuda-stand-in"];

/// What tests may use besides what their crate may use.
const TESTS_MAY_USE: &[(&str, &[&str])] = &[
    ("layers", &["format"]),
    ("object", &["catalog", "plan", "region", "store"]),
    ("outcrop", &["local"]),
    ("intercept", &["preload"]),
    ("annotate", &["c", "pool"]),
    ("cli", &["c"]),
    ("c", &["mpi", "node"]),
    ("python", &["node"]),
];

/// Uses of a crate by one that may not.
pub(super) fn wrong_dependencies(metadata: &serde_json::Value) -> Vec<String> {
    let may_use: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let tests_may_use: BTreeMap<_, _> = TESTS_MAY_USE.iter().copied().collect();
    let mut problems = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = short(&package["name"]);
        let Some(allowed) = may_use.get(name) else {
            problems.push(format!("{name} is not in xtask's list of who may use whom"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = short(&dependency["name"]);
            if !may_use.contains_key(used) || used == EVERYBODYS || dependency["path"].is_null() {
                continue;
            }
            let is_of_tests = dependency["kind"] == "dev";
            let is_for_tests = FOR_TESTS.contains(&used);
            let more = tests_may_use.get(name).copied().unwrap_or_default();
            let is_right = match is_of_tests {
                true => is_for_tests || allowed.contains(&used) || more.contains(&used),
                false => allowed.contains(&used) && (!is_for_tests || FOR_TESTS.contains(&name)),
            };
            match (is_right, is_of_tests) {
                (true, _) => {}
                (false, true) => problems.push(format!("the tests of {name} must not use {used}")),
                (false, false) if is_for_tests => problems.push(format!("{name} must not use {used}: it is for tests")),
                (false, false) => problems.push(format!("{name} must not use {used}")),
            }
        }
    }
    problems
}

fn short(name: &serde_json::Value) -> &str {
    let name = name.as_str().unwrap_or_default();
    name.strip_prefix("outcrop-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_directions_are_found() {
        let of = |name: &str, kind: Option<&str>| json!({"name": name, "kind": kind, "path": "somewhere"});
        let metadata = json!({"packages": [
            {"name": "outcrop-plan", "dependencies": [of("serde", None), of("outcrop-layers", None)]},
            {"name": "outcrop-track", "dependencies": [of("outcrop-testing", Some("dev")), of("outcrop-format", None)]},
            {"name": "outcrop-engine", "dependencies": [of("outcrop-testing", None), of("outcrop-cli", Some("dev"))]},
            {"name": "stranger", "dependencies": []},
        ]});
        assert_eq!(
            wrong_dependencies(&metadata),
            [
                "plan must not use layers",
                "engine must not use testing: it is for tests",
                "the tests of engine must not use cli",
                "stranger is not in xtask's list of who may use whom",
            ]
        );
    }

    #[test]
    fn the_list_goes_from_the_ground_up() {
        for (nth, (name, used)) in MAY_USE.iter().enumerate() {
            let before: Vec<_> = MAY_USE[..nth].iter().map(|(name, _)| *name).collect();
            assert!(used.iter().all(|used| before.contains(used)), "{name} stands before something that it uses");
        }
    }
}
