//! Translations of small sources, as they are committed.

use std::{fs, process::Command};

use outcrop_annotate::translate;

use crate::compiled::{WARNINGS, example, has, prefix, root, run};

/// Each source below `tests/golden` with its translation. `OUTCROP_GOLDEN=write` writes these anew.
#[test]
fn translations_are_as_committed() {
    let directory = root().join("crates/annotate/tests/golden");
    let mut sources: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|it| it == "c"));
    assert!(sources.len() >= 3);
    for path in sources {
        let translation = translate(&path, &fs::read(&path).unwrap());
        let translation = translation.unwrap_or_else(|refusals| panic!("{}", refusals[0]));
        let expected = path.with_extension("translated");
        // No path of this machine is committed.
        let found = String::from_utf8(translation.text).unwrap().replace(&format!("{}/", directory.display()), "");
        if std::env::var_os("OUTCROP_GOLDEN").is_some_and(|it| it == "write") {
            fs::write(&expected, &found).unwrap();
        }
        assert_eq!(found, fs::read_to_string(&expected).unwrap_or_default(), "{}", path.display());
        if has("gcc") {
            let mut command = Command::new("gcc");
            command.args(WARNINGS).args([
                "-std=c11",
                "-fsyntax-only",
                "-Wno-unknown-pragmas",
                "-Wno-unused-label",
                "-x",
                "c",
            ]);
            run(command.arg(&expected).arg("-I").arg(prefix().join("include")));
        }
    }
}

/// As in table 3 of the paper, directives before structs not counted.
#[test]
fn each_program_has_four_directives() {
    for (name, lines_added) in [("lu.c", 6), ("amr.c", 31), ("pagerank.c", 6), ("crack.c", 34)] {
        let path = example(name);
        let translation = translate(&path, &fs::read(&path).unwrap()).unwrap();
        assert_eq!((translation.directives, translation.lines_added), (4, lines_added), "{name}");
    }
}
