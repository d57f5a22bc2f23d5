//! What no linter knows: which crate may use which, how long files are, how they begin, how prose
//! wraps, and where threads may sleep.

mod directions;
mod prose;
mod waiting;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// A file that is longer wants to be two.
const LINES_MAX: usize = 800;

/// All checks.
pub(crate) fn check() -> Result<()> {
    let root = crate::root()?;
    let mut problems = directions::wrong_dependencies(&metadata(&root)?);
    for file in sources(&root)? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        problems.extend(unmerged(&name, &text));
        problems.extend(if name.ends_with(".rs") { wrong_file(&name, &text) } else { prose::wrong_page(&name, &text) });
    }
    problems.extend(crate::links::problems(&root)?);
    crate::report(&problems)
}

fn metadata(root: &Path) -> Result<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Every Rust file and every page that git knows or would know.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.md"])
        .current_dir(root)
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    Ok(listed.lines().map(|line| root.join(line)).filter(|path| path.exists()).collect())
}

/// What an unfinished merge has left.
fn unmerged(name: &str, text: &str) -> Option<String> {
    let marks = ["<".repeat(7), ">".repeat(7)];
    let nth = text.lines().position(|line| marks.iter().any(|mark| line.starts_with(mark)))?;
    Some(format!("{name}:{} is where a merge was not finished", nth + 1))
}

/// What is wrong with one file.
fn wrong_file(name: &str, text: &str) -> Vec<String> {
    let mut problems = prose::wrong_paths(name, text);
    problems.extend(prose::wrong_comments(name, text));
    problems.extend(waiting::wrong_sleep(name, text));
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
    fn unfinished_merges_are_found() {
        let text = format!("one\n{} ours\ntwo\n", "<".repeat(7));
        assert_eq!(unmerged("a.md", &text).unwrap(), "a.md:2 is where a merge was not finished");
        assert!(unmerged("a.md", "one <<<<<<< two\n").is_none());
    }

    #[test]
    fn long_and_nameless_files_are_found() {
        assert_eq!(wrong_file("a.rs", &"\n".repeat(801)).len(), 2);
        assert!(wrong_file("b.rs", "//! Something.\n").is_empty());
    }
}
