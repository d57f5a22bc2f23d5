//! What documents refer to must exist: links, and files of the project.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// References that begin so are files of the project.
const FOLDERS: &[&str] = &["apps/", "bindings/", "crates/", "docs/", "fuzz/", "xtask/"];

/// What is wrong with the documents of the project.
pub(crate) fn problems(root: &Path) -> Result<Vec<String>> {
    let files = files(root)?;
    let mut problems = crate::papers::problems(root, &files)?;
    for file in files.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        problems.extend(wrong_page(file, &text, &files));
    }
    Ok(problems)
}

/// Every file that git knows or would know, by its path from the root.
pub(crate) fn files(root: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    Ok(listed.lines().filter(|line| root.join(line).exists()).map(str::to_owned).collect())
}

/// Broken links and references to files that are not there.
fn wrong_page(page: &str, text: &str, files: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for target in links(line).filter(|target| !exists(&beside(page, target), files)) {
            problems.push(format!("{page}:{number}: the link leads nowhere: {target}"));
        }
        for name in quoted(line).filter(|name| is_file_name(name) && !is_known(name, files)) {
            problems.push(format!("{page}:{number}: there is no such file: {name}"));
        }
    }
    problems
}

/// The targets of links to other files.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with('#'))
}

/// What stands between back quotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A link's target as a path from the root.
fn beside(page: &str, target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap_or(Path::new("")).join(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path.display().to_string()
}

/// Whether there is such a file, or a directory with files.
fn exists(path: &str, files: &BTreeSet<String>) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    files.contains(path) || files.range(folder.clone()..).next().is_some_and(|file| file.starts_with(&folder))
}

fn is_file_name(name: &str) -> bool {
    let is_plain = name.chars().all(|one| one.is_ascii_alphanumeric() || "/._-".contains(one));
    // A part in capitals stands for any name: `crates/NAME/src`.
    let is_pattern = name.split('/').any(|part| part.chars().all(|one| one.is_ascii_uppercase()) && !part.is_empty());
    is_plain && !is_pattern && (name.ends_with(".rs") || FOLDERS.iter().any(|folder| name.starts_with(folder)))
}

/// Whether it is a path from the root, or the end of one: `plan/src/order.rs`, `order.rs`.
fn is_known(name: &str, files: &BTreeSet<String>) -> bool {
    let end = format!("/{name}");
    exists(name, files) || files.iter().any(|file| file.ends_with(&end) || file.contains(&format!("{end}/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_files() -> BTreeSet<String> {
        ["README.md", "docs/a.md", "docs/b.md", "crates/plan/src/order.rs"].map(str::to_owned).into()
    }

    #[test]
    fn references_must_lead_somewhere() {
        let good = "[b](b.md#there) `crates/plan` `plan/src/order.rs` `order.rs` [x](https://x.y) ![p](../README.md) `crates/NAME/x.rs`";
        assert_eq!(wrong_page("docs/a.md", good, &some_files()), [""; 0]);
        for bad in ["[c](c.md)", "[up](../docs.md)", "`crates/gone`", "`rank.rs`", "see `docs/c.md` there"] {
            assert_eq!(wrong_page("docs/a.md", bad, &some_files()).len(), 1, "{bad}");
        }
        assert_eq!(wrong_page("docs/a.md", "```\n`crates/gone`\n```", &some_files()), [""; 0], "code is not prose");
    }
}
