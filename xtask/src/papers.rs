//! docs/papers.md lists every point of the papers, and every name in it exists: files, tests,
//! commands, and what the code calls things.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};

const PAGE: &str = "docs/papers.md";

/// The letter of each paper, and how many points it has.
const PAPERS: [(char, usize); 5] = [('A', 13), ('B', 11), ('C', 9), ('D', 9), ('E', 15)];

/// What the names of the page can mean.
#[derive(Default)]
struct Known {
    files: BTreeSet<String>,
    /// Functions with `#[test]`, or of Python's tests.
    tests: BTreeSet<String>,
    /// Every word of the sources.
    words: BTreeSet<String>,
    /// Every word of the command line's sources, by which commands and options are told.
    commands: BTreeSet<String>,
}

/// One row of a table.
struct Row<'page> {
    line: usize,
    point: &'page str,
    where_it_lives: &'page str,
    test: &'page str,
}

/// What is wrong with the page.
pub(crate) fn problems(root: &Path, files: &BTreeSet<String>) -> Result<Vec<String>> {
    let mut known = Known { files: files.clone(), ..Known::default() };
    for file in files.iter().filter(|file| file.ends_with(".rs") || file.ends_with(".py")) {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        known.learn(file, &text);
    }
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    Ok(wrong_page(&page, &known))
}

impl Known {
    fn learn(&mut self, file: &str, text: &str) {
        // Between the attribute and the function there may be comments and other attributes.
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            is_test |= line.starts_with("#[test]");
            let function = line
                .strip_prefix("fn ")
                .filter(|_| is_test)
                .or_else(|| line.strip_prefix("def test_").map(|_| &line[4..]));
            if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next()) {
                self.tests.insert(name.to_owned());
                is_test = false;
            }
        }
        let of_commands = ["crates/cli/src/", "crates/sim/src/", "xtask/src/main.rs"];
        let is_of_commands = of_commands.iter().any(|folder| file.starts_with(folder));
        self.words.extend(words(text, "_").map(str::to_owned));
        if is_of_commands {
            self.commands.extend(words(text, "_-").map(command_word));
        }
    }

    /// Whether there is such a file or directory. The beginning of its path may be left out.
    fn has_file(&self, name: &str) -> bool {
        let (end, folder) = (format!("/{name}"), format!("{}/", name.trim_end_matches('/')));
        self.files.iter().any(|file| {
            let below = |file: &str| file.starts_with(&folder) || file.contains(&format!("/{folder}"));
            file == name || file.ends_with(&end) || below(file)
        })
    }

    /// Whether tests are there: a test, a file of tests, or a directory of them.
    fn has_test(&self, name: &str) -> bool {
        self.tests.contains(name) || ((name.contains("tests") || name.ends_with(".rs")) && self.has_file(name))
    }

    /// Whether every part of a command is one.
    fn has_command(&self, command: &str) -> bool {
        let mut words = command.split([' ', ',']).filter(|word| !word.is_empty());
        words.all(|word| {
            // A word in capitals stands for any: `--trace FILE`.
            let is_any = word.chars().all(|one| one.is_ascii_uppercase());
            is_any || self.commands.contains(&command_word(word))
        })
    }

    fn has(&self, name: &str) -> bool {
        if let Some(command) = name.strip_prefix("outcrop ").or_else(|| name.strip_prefix("cargo xtask ")) {
            return self.has_command(command);
        }
        let is_path = name.contains('/') || [".rs", ".md", ".toml", ".c", ".py"].iter().any(|end| name.ends_with(end));
        if is_path && !name.contains('(') {
            return self.has_file(name);
        }
        words(name, "_").all(|word| self.words.contains(word) || self.has_file(&format!("crates/{word}")))
    }
}

/// The words of a text: letters, digits, and these.
fn words<'text>(text: &'text str, others: &'static str) -> impl Iterator<Item = &'text str> {
    let is_between = move |one: char| !one.is_alphanumeric() && !others.contains(one);
    text.split(is_between).filter(|word| !word.is_empty())
}

/// How a word of a command is compared. The variant `PoolProcess` is the command `pool-process`,
/// and the field `as_json` the option `--as-json`.
fn command_word(word: &str) -> String {
    word.replace(['_', '-'], "").to_lowercase()
}

fn rows(page: &str) -> impl Iterator<Item = Row<'_>> {
    (1..).zip(page.lines()).filter_map(|(line, text)| {
        let cells: Vec<&str> = text.strip_prefix('|')?.trim_end_matches(['|', ' ']).split('|').map(str::trim).collect();
        let [point, _, where_it_lives, test] = cells[..] else { return None };
        let is_point = point.starts_with(|first: char| PAPERS.iter().any(|(letter, _)| *letter == first));
        is_point.then_some(Row { line, point, where_it_lives, test })
    })
}

/// What stands between back quotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn wrong_page(page: &str, known: &Known) -> Vec<String> {
    let mut problems = Vec::new();
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for Row { line, point, where_it_lives, test } in rows(page) {
        *found.entry(point).or_default() += 1;
        for name in quoted(where_it_lives).chain(quoted(test)) {
            if !known.has(name) && !known.has_test(name) {
                problems.push(format!("{PAGE}:{line}: {point} names what does not exist: {name}"));
            }
        }
        // What is not done says so.
        if !test.starts_with("open") && !quoted(test).any(|name| known.has_test(name)) {
            problems.push(format!("{PAGE}:{line}: {point} has no test, and does not say that it is open"));
        }
    }
    for (letter, count) in PAPERS {
        let missing =
            (1..=count).map(|number| format!("{letter}{number}")).filter(|point| !found.contains_key(&**point));
        problems.extend(missing.map(|point| format!("{PAGE}: there is no row for {point}")));
    }
    let is_known = |point: &str| {
        let (letter, number) = point.split_at(1);
        PAPERS
            .iter()
            .any(|(of, count)| letter.starts_with(*of) && (1..=*count).any(|known| known.to_string() == number))
    };
    let unknown = found.keys().filter(|point| !is_known(point));
    problems.extend(unknown.map(|point| format!("{PAGE}: the papers have no point {point}")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_there_and_every_name_exists() {
        let root = crate::root().unwrap();
        let problems = problems(&root, &crate::links::files(&root).unwrap()).unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    fn known() -> Known {
        let mut known = Known::default();
        known.learn("crates/tape/src/tape.rs", "impl Tape { pub fn save(&self) }\nfn no_test_at_all() {}");
        known
            .learn("crates/tape/tests/all.rs", "#[test]\n#[ignore]\n// Why.\nfn a_save_is_kept() {\n    fn inner() {}");
        known.learn("bindings/tests/test_it.py", "def test_of_python():");
        known.learn("crates/cli/src/bench.rs", "Bench(Increment) { only_hash: bool }");
        known.files = ["crates/tape/src/tape.rs", "crates/tape/tests/all.rs", "docs/tape.md"].map(str::to_owned).into();
        known
    }

    fn page(of_first: &str) -> String {
        let points =
            PAPERS.iter().flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")));
        let others = points.skip(1).map(|point| format!("| {point} | x | | open: not begun |\n"));
        format!("| # | point | where | test |\n|---|---|---|---|\n| A1 | {of_first} |\n{}", others.collect::<String>())
    }

    #[test]
    fn what_exists_is_accepted() {
        for row in [
            "x | `Tape::save`, `tape/src/tape.rs`, `crates/tape` | `a_save_is_kept`",
            "x | `outcrop bench increment --only-hash FILE`, `docs/tape.md` | `crates/tape/tests`",
            "x | nowhere | `test_of_python`",
            "x | nowhere | open",
        ] {
            assert_eq!(wrong_page(&page(row), &known()), [""; 0], "{row}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (row, problem) in [
            ("x | `Tape::load` | `a_save_is_kept`", "names what does not exist: Tape::load"),
            ("x | `tape/src/gone.rs` | `a_save_is_kept`", "names what does not exist: tape/src/gone.rs"),
            ("x | `outcrop bench decrement` | `a_save_is_kept`", "names what does not exist: outcrop bench decrement"),
            ("x | `outcrop bench --color` | `a_save_is_kept`", "names what does not exist: outcrop bench --color"),
            ("x | `Tape` | `no_test_at_all`", "A1 has no test"),
            ("x | `Tape` | the documentation", "A1 has no test"),
            ("x | `Tape` | `a_save_is_kept`, `a_save_is_lost`", "does not exist: a_save_is_lost"),
        ] {
            let problems = wrong_page(&page(row), &known());
            assert!(problems.len() == 1 && problems[0].contains(problem), "{row}: {problems:?}");
        }
        let short = page("x | | open").replace("| E11 |", "| E16 |");
        let problems = wrong_page(&short, &known());
        assert_eq!(
            problems,
            ["docs/papers.md: there is no row for E11", "docs/papers.md: the papers have no point E16"]
        );
    }
}
