//! `cargo xtask mutants`: whether the tests notice when the code is wrong.
//!
//! Faults are put into a copy of the tree, a git worktree below `target`, one at a time, and tests
//! that should find them are run there. Some are made by hand (`list.rs`), for what matters most;
//! the others are made by cargo-mutants. What was found by which test goes to docs/testing.md.

mod list;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use list::{HAND_MADE, Mutant, Tests};

/// What `cargo install` gets, if it is missing.
const TOOL: &str = "cargo-mutants";
const TOOL_VERSION: &str = "27.1.0";

/// The crates that cargo-mutants tries by default, each with the packages whose tests should
/// notice, and with words that are in the names of these tests.
const CRATES: &[(&str, &[&str], &[&str])] = &[
    // Without the fuzzing of another crate.
    ("plan", &["outcrop-plan", "outcrop-sim"], &["--skip", "no_world"]),
    ("format", &["outcrop-format", "outcrop-catalog"], &[]),
    (
        "catalog",
        &["outcrop-catalog", "outcrop"],
        &[
            "tests::",
            "changes",
            "golden",
            "listing",
            "read",
            "store::",
            "store_damage",
            "store_faults",
            "store_merge",
            "store_open",
        ],
    ),
    ("commit", &["outcrop-commit", "outcrop-sim"], &["tests::", "fuzz::no_world"]),
    (
        "store",
        &["outcrop-store", "outcrop"],
        // Without crash images, kills and random histories, which take minutes.
        &[
            "tests::",
            "shapes::",
            "store::",
            "store_damage",
            "store_faults",
            "store_ledger",
            "store_merge",
            "store_open",
            "store_ra",
            "store_re",
            "store_track",
        ],
    ),
    ("pool", &["outcrop-pool"], &[]),
];

/// Tests that take longer hang, which is one way to notice.
const PATIENCE: Duration = Duration::from_secs(900);

const PAGE: &str = "docs/testing.md";

/// Carries out `cargo xtask mutants` with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (arguments, of_tool) = match arguments.iter().position(|argument| *argument == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    let root = crate::root()?;
    let tree = Tree::make(&root)?;
    match arguments {
        [] => hand_made(&root, &tree, &[]).and_then(|()| generated(&root, &tree, &all_crates(), of_tool)),
        ["hand", words @ ..] => hand_made(&root, &tree, words),
        crates => generated(&root, &tree, crates, of_tool),
    }
}

/// The names of all crates that can be tried.
fn all_crates() -> Vec<&'static str> {
    CRATES.iter().map(|(name, ..)| *name).collect()
}

/// A copy of what is committed, which may be changed. It stays: what has not changed when the
/// command is called again is not compiled again.
struct Tree {
    /// Where everything of this command is, and what it compiles: compiled files of two trees have
    /// the same names.
    all: PathBuf,
    path: PathBuf,
}

impl Tree {
    fn make(root: &Path) -> Result<Self> {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let all = target.join("mutants");
        let tree = Self { path: all.join("tree"), all };
        let changed = output(Command::new("git").args(["status", "--porcelain"]).current_dir(root))?;
        if !changed.is_empty() {
            println!("what is not committed is not looked at:\n{changed}");
        }
        let head = output(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root))?;
        let mut git = Command::new("git");
        if tree.path.exists() {
            git.args(["checkout", "--quiet", "--force", "--detach", head.trim()]).current_dir(&tree.path);
        } else {
            git.args(["worktree", "add", "--quiet", "--force", "--detach"]).arg(&tree.path).arg(head.trim());
            git.current_dir(root);
        }
        output(&mut git)?;
        Ok(tree)
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(&self.path).env("CARGO_TARGET_DIR", self.build());
        command
    }

    fn build(&self) -> PathBuf {
        self.all.join("build")
    }

    /// Runs tests until one fails. Says which.
    fn test(&self, (package, program, names): Tests) -> Result<Tested> {
        // Compiled as for all tests of the workspace, so that they share what they stand on.
        // Without a program: the tests inside the library.
        let what = if program.is_empty() { ["-p", package, "--lib"] } else { ["--workspace", "--test", program] };
        let compiled = self.cargo().args(["test", "--quiet", "--no-run"]).args(what).output()?;
        if !compiled.status.success() {
            let errors = String::from_utf8_lossy(&compiled.stderr);
            bail!("it does not compile:\n{errors}");
        }
        let told = self.all.join("told");
        let mut command = self.cargo();
        command.args(["test", "--quiet"]).args(what).args([names, "--", "--format=pretty"]);
        command.stdout(fs::File::create(&told)?).stderr(Stdio::null());
        // A group of its own: what the tests have started ends with them.
        let mut child = command.process_group(0).spawn()?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if let Some(name) = failed(&fs::read_to_string(&told)?) {
                end(&mut child)?;
                return Ok(Tested::Failed(name));
            }
            if start.elapsed() > PATIENCE {
                end(&mut child)?;
                return Ok(Tested::Failed(format!("{names}, which hangs")));
            }
            thread::sleep(Duration::from_millis(100));
        };
        let text = fs::read_to_string(told)?;
        ensure!(!text.contains("\nrunning 0 tests"), "{package} has no tests {names}");
        Ok(match status.success() {
            true => Tested::Passed,
            false => Tested::Failed(failed(&text).unwrap_or_else(|| format!("{names}, which ends"))),
        })
    }
}

/// Ends a process and its group.
fn end(child: &mut Child) -> Result<ExitStatus> {
    output(Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]))?;
    Ok(child.wait()?)
}

enum Tested {
    Passed,
    /// And which test it was.
    Failed(String),
}

/// The first test that failed.
fn failed(text: &str) -> Option<String> {
    let name = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    // What a test prints may come in between.
    text.lines().find_map(name).or_else(|| {
        let list = text.split_once("\nfailures:\n    ")?.1;
        list.lines().next().map(|line| line.trim().to_owned())
    })
}

/// Tries the mutants made by hand whose names have all these words.
fn hand_made(root: &Path, tree: &Tree, words: &[&str]) -> Result<()> {
    let is_chosen = |mutant: &&Mutant| words.iter().all(|word| mutant.name.contains(word));
    let chosen: Vec<&Mutant> = HAND_MADE.iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no mutant has {} in its name", words.join(" "));
    let (mut survived, mut problems) = (Vec::new(), Vec::new());
    let mut sound = BTreeSet::new();
    for mutant in chosen {
        let found = match tried(tree, mutant, &mut sound) {
            Ok(found) => found,
            Err(error) => {
                // The others can be tried all the same.
                problems.push(format!("{}: {error:#}", mutant.name));
                continue;
            }
        };
        let by = found.as_ref().map_or("**survived**".to_owned(), |test| format!("`{test}`"));
        println!("{}: {by}", mutant.name);
        let row = format!("| {} | `{}` | {by} | {} |", mutant.name, mutant.file, today()?);
        let names = HAND_MADE.iter().map(|mutant| mutant.name);
        let head = "| mutant | where | found by | tried on |\n|---|---|---|---|";
        // At once: it takes long until all are tried.
        change(root, "by hand", |before| table(head, names, &BTreeMap::from([(mutant.name, row)]), before))?;
        survived.extend(found.is_none().then_some(mutant.name));
    }
    ensure!(problems.is_empty(), "not all could be tried:\n{}", problems.join("\n"));
    ensure!(survived.is_empty(), "no test has noticed: {}", survived.join("; "));
    Ok(())
}

/// A table with one row for each of these names: a new one, or that of the table before.
fn table<'a>(head: &str, names: impl Iterator<Item = &'a str>, rows: &BTreeMap<&str, String>, before: &str) -> String {
    let row = |name: &str| {
        let earlier = || before.lines().find(|line| line.starts_with(&format!("| {name} | "))).map(str::to_owned);
        rows.get(name).cloned().or_else(earlier).unwrap_or_else(|| format!("| {name} | not tried yet |"))
    };
    format!("{head}\n{}", names.map(row).collect::<Vec<_>>().join("\n"))
}

/// Puts a mutant in, runs the tests that should find it, and takes it out. Says which has. Those
/// that are not known to be `sound` then have to pass without it.
fn tried(tree: &Tree, mutant: &Mutant, sound: &mut BTreeSet<Tests>) -> Result<Option<String>> {
    let path = tree.path.join(mutant.file);
    let text = fs::read_to_string(&path)?;
    fs::write(&path, mutated(mutant, &text)?)?;
    let find = || -> Result<_> {
        for tests in mutant.tests {
            if let Tested::Failed(name) = tree.test(*tests)? {
                return Ok(Some((name, *tests)));
            }
        }
        Ok(None)
    };
    let found = find();
    fs::write(&path, text)?;
    let Some((name, tests)) = found? else { return Ok(None) };
    if !sound.contains(&tests) {
        if let Tested::Failed(name) = tree.test(tests)? {
            bail!("{name} fails without a mutant too, and tells nothing");
        }
        sound.insert(tests);
    }
    Ok(Some(name))
}

/// A text with a mutant in it.
fn mutated(mutant: &Mutant, text: &str) -> Result<String> {
    let count = text.matches(mutant.old).count();
    ensure!(count == 1, "{}: what is to be replaced occurs {count} times in {}", mutant.name, mutant.file);
    Ok(text.replace(mutant.old, mutant.new))
}

/// Has cargo-mutants try crates.
fn generated(root: &Path, tree: &Tree, crates: &[&str], arguments: &[&str]) -> Result<()> {
    let tool = tool(tree)?;
    let mut rows = BTreeMap::new();
    for name in crates {
        let Some((_, packages, words)) = CRATES.iter().find(|(known, ..)| known == name) else {
            bail!("no crate {name}; there are {}", all_crates().join(", "));
        };
        let into = tree.all.join(name);
        let mut command = Command::new(&tool);
        command.args(["mutants", "--in-place", "--package", &format!("outcrop-{name}"), "--output"]).arg(&into);
        // Tests that take five times as long as without a mutant hang.
        command.args(["--minimum-test-timeout", "60", "--timeout-multiplier", "5"]);
        command.args(["--test-package", &packages.join(",")]).args(arguments);
        command.args(["--", "--"]).args(*words).current_dir(&tree.path).env("CARGO_TARGET_DIR", tree.build());
        // It fails if one survives; the lists say which.
        let status = command.status()?;
        let list = |which: &str| fs::read_to_string(into.join("mutants.out").join(which)).unwrap_or_default();
        let [caught, missed, late] = ["caught.txt", "missed.txt", "timeout.txt"].map(list);
        ensure!(status.success() || !missed.is_empty() || !late.is_empty(), "cargo-mutants ended with {status}");
        let count = |text: &str| text.lines().count();
        let found = count(&caught) + count(&late);
        println!("{name}: {found} found, {} survived\n{missed}", count(&missed));
        let what = if arguments.is_empty() { "all".to_owned() } else { format!("`{}`", arguments.join(" ")) };
        rows.insert(*name, format!("| {name} | {what} | {found} | {} | {} |", count(&missed), today()?));
    }
    let head = "| crate | what | found | survived | tried on |\n|---|---|---:|---:|---|";
    change(root, "by cargo-mutants", |before| table(head, all_crates().into_iter(), &rows, before))
}

/// The program cargo-mutants, which is installed below `target` if it is missing.
fn tool(tree: &Tree) -> Result<PathBuf> {
    let own = tree.all.join("tools");
    for place in [PathBuf::from(TOOL), own.join("bin").join(TOOL)] {
        let asked = Command::new(&place).args(["mutants", "--version"]).stdout(Stdio::null()).status();
        if asked.is_ok_and(|status| status.success()) {
            return Ok(place);
        }
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["install", TOOL, "--version", TOOL_VERSION, "--locked", "--root"]).arg(&own);
    ensure!(command.status()?.success(), "{TOOL} cannot be installed");
    Ok(own.join("bin").join(TOOL))
}

/// Changes a table of the page on testing, between its marks.
fn change(root: &Path, which: &str, table: impl FnOnce(&str) -> String) -> Result<()> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path)?;
    fs::write(&path, changed(&text, which, table)?)?;
    Ok(())
}

fn changed(text: &str, which: &str, table: impl FnOnce(&str) -> String) -> Result<String> {
    let marks = (format!("<!-- mutants {which} -->\n"), format!("\n<!-- end of mutants {which} -->"));
    let (before, rest) = text.split_once(&marks.0).with_context(|| format!("{PAGE} has no {}", marks.0))?;
    let (old, after) = rest.split_once(&marks.1).with_context(|| format!("{PAGE} has no {}", marks.1))?;
    Ok(format!("{before}{}\n{}\n{}{after}", marks.0, table(old), marks.1))
}

fn today() -> Result<String> {
    Ok(output(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned())
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mutated_by_hand_is_there_once() {
        let root = crate::root().unwrap();
        for mutant in HAND_MADE {
            let text = fs::read_to_string(root.join(mutant.file)).unwrap();
            mutated(mutant, &text).unwrap();
        }
    }

    #[test]
    fn tables_go_between_their_marks() {
        let page = "a\n<!-- mutants x -->\nold\n<!-- end of mutants x -->\nb\n";
        let expected = "a\n<!-- mutants x -->\n\nnew\n\n<!-- end of mutants x -->\nb\n";
        assert_eq!(changed(page, "x", |_| "new".to_owned()).unwrap(), expected);
        assert_eq!(changed(expected, "x", |old| old.trim().to_owned()).unwrap(), expected);
        assert!(changed("no marks", "x", str::to_owned).is_err());
    }

    #[test]
    fn what_is_not_tried_again_keeps_its_row() {
        let rows = BTreeMap::from([("a", "| a | new |".to_owned())]);
        let table = table("head", ["a", "b", "c"].into_iter(), &rows, "| a | old |\n| b | old |");
        assert_eq!(table, "head\n| a | new |\n| b | old |\n| c | not tried yet |");
    }

    #[test]
    fn the_test_that_failed_is_named() {
        let text = "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n";
        assert_eq!(failed(text).unwrap(), "a::c");
        let mixed = "test a::c ... a line\nFAILED\n\nfailures:\n\n---- a::c stdout ----\n\nfailures:\n    a::c\n";
        assert_eq!(failed(mixed).unwrap(), "a::c");
        assert_eq!(failed("killed"), None);
    }
}
