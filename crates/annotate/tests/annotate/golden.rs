//! Translations of small sources, as they are committed.

use std::fs;

use outcrop_annotate::translate;

use crate::compiled::root;

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
    }
}
