//! What no linter knows: which crate may use which, how long files are, and how they begin.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// A file that is longer wants to be two.
const LINES_MAX: usize = 800;

/// Which crates of this workspace each of them may use. Dependencies point one way: plan and layers know nobody, the
/// engine drives the one against the other, programs use `outcrop`, and the command line uses all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("outcrop-plan", &[]),
    ("outcrop-cuda-stand-in", &[]),
    ("outcrop-format", &[]),
    ("outcrop-track", &["outcrop-format"]),
    ("outcrop-layers", &["outcrop-cuda-stand-in"]),
    ("outcrop-catalog", &["outcrop-format", "outcrop-layers"]),
    ("outcrop-engine", &["outcrop-plan", "outcrop-layers"]),
    ("outcrop-survey", &["outcrop-layers"]),
    ("outcrop-crash", &["outcrop-layers"]),
    (
        "outcrop",
        &[
            "outcrop-plan",
            "outcrop-format",
            "outcrop-layers",
            "outcrop-track",
            "outcrop-catalog",
            "outcrop-engine",
            "outcrop-survey",
            "outcrop-crash",
            "outcrop-cuda-stand-in",
        ],
    ),
    ("outcrop-rtm", &["outcrop"]),
    ("outcrop-sim", &["outcrop-plan"]),
    ("outcrop-bench", &["outcrop", "outcrop-rtm", "outcrop-sim", "outcrop-track"]),
    ("outcrop-cli", &["outcrop", "outcrop-bench", "outcrop-rtm", "outcrop-survey", "outcrop-sim"]),
    ("outcrop-c", &["outcrop"]),
    ("outcrop-veloc", &["outcrop", "outcrop-format"]),
    ("outcrop-python", &["outcrop"]),
    ("xtask", &[]),
];

/// All checks.
pub(crate) fn check() -> Result<()> {
    let root = crate::root()?;
    let mut problems = wrong_dependencies(&metadata(&root)?);
    for file in sources(&root)? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        problems.extend(wrong_file(&name, &text));
    }
    crate::report(&problems)
}

fn metadata(root: &Path) -> Result<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Uses of a crate by one that may not.
fn wrong_dependencies(metadata: &serde_json::Value) -> Vec<String> {
    let may_use: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut problems = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = may_use.get(name) else {
            problems.push(format!("{name} is not in xtask's list of who may use whom"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            if may_use.contains_key(used) && !allowed.contains(&used) {
                problems.push(format!("{name} must not use {used}"));
            }
        }
    }
    problems
}

/// Every Rust file that git knows or would know.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root)
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    Ok(listed.lines().map(|line| root.join(line)).filter(|path| path.exists()).collect())
}

/// What is wrong with one file.
fn wrong_file(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        problems.push(format!("{name} has {lines} lines; {LINES_MAX} are enough"));
    }
    if !text.starts_with("//!") {
        problems.push(format!("{name} does not say in its first line what lives there"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        check().unwrap();
    }

    #[test]
    fn a_wrong_direction_is_found() {
        let metadata = serde_json::json!({"packages": [
            {"name": "outcrop-plan", "dependencies": [{"name": "serde"}, {"name": "outcrop-layers"}]},
            {"name": "stranger", "dependencies": []},
        ]});
        assert_eq!(wrong_dependencies(&metadata).len(), 2);
    }

    #[test]
    fn long_and_nameless_files_are_found() {
        assert_eq!(wrong_file("a.rs", &"\n".repeat(801)).len(), 2);
        assert!(wrong_file("b.rs", "//! Something.\n").is_empty());
    }
}
