//! Prose in Markdown and in comments: short lines, a short README, and no paths of somebody's
//! machine.

/// Prose wraps here.
const COLUMNS_MAX: usize = 100;

/// A README that is longer wants to be a page of `docs`.
const README_LINES_MAX: usize = 160;

/// Directories at the root that differ from machine to machine.
const PRIVATE: &[&str] = &["home", "root", "Users", "work"];

/// What is wrong with a page.
pub(super) fn wrong_page(name: &str, text: &str) -> Vec<String> {
    let mut problems = wrong_paths(name, text);
    let lines = text.lines().count();
    if name == "README.md" && lines > README_LINES_MAX {
        problems.push(format!("{name} has {lines} lines; {README_LINES_MAX} are enough"));
    }
    problems.extend(wrong_lines(name, text.lines().enumerate()));
    problems
}

/// Comments of a source that are too wide.
pub(super) fn wrong_comments(name: &str, text: &str) -> Vec<String> {
    wrong_lines(name, text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//")))
}

fn wrong_lines<'a>(name: &str, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<String> {
    let mut is_code = false;
    let mut problems = Vec::new();
    for (nth, line) in lines {
        let start = line.trim_start_matches([' ', '/', '!']);
        is_code ^= start.starts_with("```");
        let columns = line.chars().count();
        // Tables, headings, formulas and words that cannot be broken may be longer.
        let can_break = start.split_whitespace().all(|word| word.chars().count() < COLUMNS_MAX);
        if columns > COLUMNS_MAX
            && !is_code
            && !start.starts_with(['|', '<', '#'])
            && (!line.starts_with("    ") || line.contains("//"))
            && can_break
        {
            problems.push(format!("{name}:{} has {columns} columns; prose wraps at {COLUMNS_MAX}", nth + 1));
        }
    }
    problems
}

/// Paths that mean something on one machine only.
pub(super) fn wrong_paths(name: &str, text: &str) -> Vec<String> {
    let is_in_path = |before: char| before.is_alphanumeric() || "._-}$~/".contains(before);
    let is_private = |line: &str| {
        PRIVATE.iter().any(|name| {
            let start = format!("/{name}/");
            // In the middle of a path it is a name like any other.
            line.match_indices(&start).any(|(at, _)| !line[..at].ends_with(is_in_path))
        })
    };
    let found = text.lines().enumerate().filter(|(_, line)| is_private(line));
    found.map(|(nth, _)| format!("{name}:{} names a path of somebody's machine", nth + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_found_and_tables_and_code_are_not() {
        let long = "word ".repeat(30);
        assert_eq!(wrong_page("a.md", &format!("short\n\n{long}\n")).len(), 1);
        let fine = format!("| {long} |\n```\n{long}\n```\n[{}]\n", "x".repeat(200));
        assert!(wrong_page("a.md", &fine).is_empty());
        assert_eq!(wrong_page("README.md", &"line\n".repeat(161)).len(), 1);
        assert!(wrong_page("docs/a.md", &"line\n".repeat(161)).is_empty());
    }

    #[test]
    fn wide_comments_are_found_and_wide_code_is_not() {
        let long = "word ".repeat(30);
        assert_eq!(wrong_comments("a.rs", &format!("    /// {long}\n")).len(), 1);
        assert!(wrong_comments("a.rs", &format!("let x = \"{long}\";\n/// ```\n/// {long}\n")).is_empty());
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let home = format!("run it in `/{}/me/outcrop`", "home");
        assert_eq!(wrong_paths("a.md", &home).len(), 1);
        assert!(wrong_paths("a.md", "a path like `target/home/x` or https://example.org/home/x").is_empty());
    }
}
