//! Shared by the tests of the program.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Runs the program in a directory.
pub(crate) fn outcrop(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outcrop")).args(arguments).current_dir(directory).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The names in a directory, sorted.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
