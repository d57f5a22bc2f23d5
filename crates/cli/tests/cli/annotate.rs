//! `outcrop annotate` and `outcrop cc`, installed as users have them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use outcrop_testing::skip;
use tempfile::TempDir;

use crate::common::{outcrop, text};

pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where the program and the library are installed for these tests.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cc-prefix");
        let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        crate::install::put_library(root(), &built, &prefix).unwrap();
        crate::install::put_program(env!("CARGO_BIN_EXE_outcrop").as_ref(), &prefix).unwrap();
        prefix
    })
}

/// A shell in a directory, which finds the installed program; nothing if there is no compiler.
fn shell(directory: &Path, commands: &str) -> Option<Output> {
    if !Command::new("gcc").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skip("there is no gcc");
        return None;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-e", "-c", commands]).current_dir(directory);
    shell.env("PATH", format!("{}:{path}", prefix().join("bin").display()));
    Some(shell.output().unwrap())
}

/// What a shell says. It must succeed.
fn say(directory: &Path, commands: &str) -> Option<String> {
    let output = shell(directory, commands)?;
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{commands}\n{said}");
    Some(said)
}

/// The text of the first code block of a language in a page.
pub(crate) fn block(page: &str, language: &str) -> String {
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_tutorial_works_as_written() {
    let page = fs::read_to_string(root().join("docs/annotate.md")).unwrap();
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("heat.c"), block(&page, "c")).unwrap();
    let Some(_) = say(directory.path(), &block(&page, "sh")) else { return };
    // It has ended by now.
    let again = say(directory.path(), "./heat 2>&1 > again; cmp again expected").unwrap();
    assert!(again.contains("goes on after step 1000"), "{again}");
    let shown = say(directory.path(), "outcrop pool show heat.pool").unwrap();
    assert!(shown.contains("heat") && shown.contains("f64") && shown.contains("step"), "{shown}");
}

const MAIN: &str = "
#include \"cell.h\"
#include <stdio.h>
#pragma nvcp init(graph, 2)
void save(void);
int main(void) {
  struct Cell *first = NULL;
  int runs = 0;
#pragma nvcp add_head(first, runs)
#pragma nvcp restore(head)
  if (first == NULL) first = new_cell(1);
  first->value += 1;
  runs++;
  save();
  printf(\"%d runs, value %g\\n\", runs, first->value);
  free(first);
  return 0;
}
";

#[test]
fn makefiles_and_several_files_work_with_the_wrapper() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "src/cell.h",
        "#include <stdlib.h>\n#pragma nvcp\nstruct Cell { double value; struct Cell *next; };\nstruct Cell *new_cell(double);\n",
    );
    write("src/main.c", MAIN);
    write("src/save.c", "void save(void);\nvoid save(void) {\n#pragma nvcp persistent(head)\n}\n");
    write(
        "src/cell.c",
        "#include \"cell.h\"\nstruct Cell *new_cell(double value) {\n  struct Cell *cell = calloc(1, sizeof *cell);\n  \
         cell->value = value;\n  return cell;\n}\n",
    );
    write(
        "Makefile",
        "CFLAGS = -Wall -Wextra -Werror -g\nprogram: main.o save.o cell.o\n\t$(CC) -o $@ $^\n%.o: src/%.c\n\t$(CC) \
         $(CFLAGS) -Wno-unknown-pragmas -MMD -c $< -o $@\n-include *.d\n",
    );
    let Some(_) = say(directory.path(), "make CC='outcrop cc -- gcc'") else { return };
    let depends = fs::read_to_string(directory.path().join("main.d")).unwrap();
    assert!(depends.contains(": src/main.c src/cell.h") && !depends.contains("/0/main.c"), "{depends}");
    assert!(say(directory.path(), "./program").unwrap().contains("1 runs, value 2"));
    assert!(say(directory.path(), "./program").unwrap().contains("2 runs, value 3"));
    assert!(directory.path().join("main.pool").exists());
    // What has not changed is not compiled again, and what has is.
    assert!(say(directory.path(), "make CC='outcrop cc -- gcc'").unwrap().contains("up to date"));
    let touched = say(directory.path(), "sleep 0.01; touch src/cell.h; make CC='outcrop cc -- gcc'").unwrap();
    assert!(touched.contains("main.c") && !touched.contains("save.c"), "{touched}");
    // Debuggers are told of the original.
    let lines = say(directory.path(), "strings -a main.o | grep main.c").unwrap();
    assert!(lines.contains("src/main.c"), "{lines}");
    // A program that does not call the library is not linked with it.
    write("other.c", "int main(void) { return 0; }\n");
    let needed = "outcrop cc -- gcc other.c -o other && ./other && readelf -d other program";
    let needed = say(directory.path(), needed).unwrap();
    assert_eq!(needed.matches("liboutcrop.so").count(), 1, "{needed}");
}

#[test]
fn what_cannot_be_translated_is_said_by_both_commands() {
    let directory = TempDir::new().unwrap();
    let source = "#pragma nvcp init(array)\nvoid f(double *a) {\n#pragma nvcp add_head(a)\n}\n";
    fs::write(directory.path().join("a.c"), source).unwrap();
    let output = outcrop(directory.path(), &["annotate", "a.c", "-o", "b.c"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains("a.c:3:23: error: `a` is a pointer") && said.contains("^"), "{said}");
    assert!(said.contains("1 error in annotations; nothing was written") && !directory.path().join("b.c").exists());
    let output = outcrop(directory.path(), &["cc", "--", "gcc", "-c", "a.c"]);
    assert_eq!(output.status.code(), Some(10));
    let mended = source.replace("head(a)", "head(a[3])");
    fs::write(directory.path().join("a.c"), mended).unwrap();
    let output = outcrop(directory.path(), &["annotate", "a.c", "-o", "b.c"]);
    assert!(output.status.success() && text(&output.stderr).contains("2 directives"), "{}", text(&output.stderr));
    let output = outcrop(directory.path(), &["annotate", "missing.c", "-o", "b.c"]);
    assert!(text(&output.stderr).contains("cannot read missing.c"));
}
