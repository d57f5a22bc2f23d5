//! Generates pages from the tables: the reference for people, and the types for Python.

use std::fmt::Write;

use crate::{
    DeviceSettings, NodeSettings, RegionSettings, Settings, SharedDirectorySettings, SharedHostSettings, StoreDir,
    StoreSettings, TapeDir, TapeSettings, store::ObjectDir, tape::AnyLayer,
};

/// Environment variables that are not settings.
pub(crate) const OTHER_VARIABLES: &[(&str, &str)] = &[
    ("OUTCROP_LOG", "What the program `outcrop` and the C library report to standard error: `warn`, `info`, `debug`."),
    ("OUTCROP_IO", "How directories are read and written if their `method` is not given: `uring` or `blocking`."),
    ("OUTCROP_MEETING_DIR", "Where processes of this machine meet. Default: `/dev/shm`."),
    ("OUTCROP_MPICC", "The compiler of the MPI that a program uses ([MPI](mpi.md)). Default: `mpicc`."),
    ("OUTCROP_MPI_DIR", "Where `liboutcrop-mpi.so` is kept, for each MPI. Default: `~/.cache/outcrop/mpi`."),
    ("OUTCROP_MPI_LIBRARY", "The `liboutcrop-mpi.so` to use, instead of one that Outcrop compiles."),
    (
        "OUTCROP_POOL",
        "The pool of a C program with `#pragma nvcp`. Default: named after the source, in the working directory.",
    ),
];

const INTRODUCTION: &str = "\
# Settings

Tapes, stores and clients of the node daemon have the same settings in every language. Rust has a
builder call for each of a tape or store. C, C++ and Fortran read a TOML text with a setting on each
line, Python has a keyword argument for each. The values on this page are written as in TOML; in
Python, `true` is `True` and a table is a dictionary.

A variable of the environment overrides what the program says: `OUTCROP_` and the name in
capitals, such as `OUTCROP_HOST=\"8 GiB\"`, `OUTCROP_PIN=false` or `OUTCROP_DIR='[{path =
\"/scratch\", limit = \"1 TiB\"}]'`. Those of a node begin with `OUTCROP_NODE_`. It holds when the
tape, store or node is opened. Objects that a Rust program has made itself (layers, devices, files,
ranks) stay.

An unknown setting is an error that names the nearest known one, and a variable that is probably
misspelt causes a warning. To describe a tape or a store opens and creates nothing: that happens
when it is opened.

A *size* is a text such as `\"2 GiB\"` or `\"500 MB\"`, or a number of bytes. The layers of a tape
are, from the fastest: `device`, `host`, `shared_host`, `dir`. Any other stack is written as a list:
`layers = [{ host = \"1 GiB\" }, { dir = \"/nvme\" }, { host = \"8 GiB\" }, { dir = \"/scratch\" }]`.

This page is made by `cargo xtask settings`.
";

/// The reference: docs/settings.md.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    section::<TapeSettings>(&mut page, "Tape");
    section::<AnyLayer>(&mut page, "Layers in any order");
    section::<TapeDir>(&mut page, "Directories of a tape");
    section::<DeviceSettings>(&mut page, "Devices");
    section::<SharedHostSettings>(&mut page, "Shared host memory");
    section::<StoreSettings>(&mut page, "Store");
    section::<StoreDir>(&mut page, "Directories of a store");
    section::<ObjectDir>(&mut page, "Object stores of a store");
    section::<SharedDirectorySettings>(&mut page, "Ranks");
    section::<RegionSettings>(&mut page, "Regions of a session");
    section::<NodeSettings>(&mut page, "Node");
    page.push_str("\n## Other variables\n\n| variable | meaning |\n|---|---|\n");
    for (name, about) in OTHER_VARIABLES {
        let _ = writeln!(page, "| `{name}` | {about} |");
    }
    page
}

fn section<S: Settings>(page: &mut String, title: &str) {
    let _ = write!(page, "\n## {title}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n");
    for setting in S::TABLE {
        let (name, kind, about) = (setting.name, (setting.kind)(), setting.about);
        let kind = if kind.contains('"') { code(&kind) } else { kind };
        let default =
            if is_literal(setting.default) { format!("`{}`", setting.default) } else { setting.default.to_owned() };
        let _ = writeln!(page, "| `{name}` | {kind} | {default} | {about} |");
    }
}

/// Formats quoted text as code.
fn code(kind: &str) -> String {
    let mut inside = false;
    let mut text = String::new();
    for part in kind.split('"') {
        text.push_str(&if inside { format!("`\"{part}\"`") } else { part.to_owned() });
        inside = !inside;
    }
    text
}

/// Whether a default is a literal value, as it would be written in TOML.
pub(crate) fn is_literal(default: &str) -> bool {
    format!("value = {default}").parse::<toml::Table>().is_ok()
}

/// The types for Python: outcrop/settings.py.
pub fn python() -> String {
    let mut module = "\
\"\"\"The settings of tapes, stores and nodes: keyword arguments and their types. Made by `cargo xtask settings`; see docs/settings.md.\"\"\"

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal, TypedDict, Union

# A size such as \"2 GiB\", or a number of bytes.
Size = Union[str, int]
Path = Union[str, \"os.PathLike[str]\"]
"
    .to_owned();
    class::<TapeDir>(&mut module, "TapeDir", "");
    class::<DeviceSettings>(&mut module, "Device", "");
    class::<SharedHostSettings>(&mut module, "SharedHost", "");
    class::<AnyLayer>(&mut module, "Layer", "");
    class::<StoreDir>(&mut module, "StoreDir", "");
    class::<ObjectDir>(&mut module, "StoreObject", "");
    class::<SharedDirectorySettings>(&mut module, "Ranks", "");
    class::<TapeSettings>(&mut module, "TapeSettings", " | None");
    class::<StoreSettings>(&mut module, "StoreSettings", " | None");
    class::<NodeSettings>(&mut module, "NodeSettings", " | None");
    module
}

/// A class of settings. Values may also have the type `or`.
fn class<S: Settings>(module: &mut String, name: &str, or: &str) {
    let _ = write!(module, "\n\nclass {name}(TypedDict, total=False):\n    \"\"\"Settings of {}.\"\"\"\n\n", S::OF);
    for setting in S::TABLE {
        let (name, kind, about) = (setting.name, (setting.python)(), setting.about);
        let _ = writeln!(module, "    {name}: {kind}{or}\n    \"\"\"{about}\"\"\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the defaults in a table are the actual ones.
    fn check_defaults<S: Settings + PartialEq + std::fmt::Debug>() {
        for setting in S::TABLE {
            assert!(setting.about.ends_with('.'), "{}: one sentence", setting.name);
            if is_literal(setting.default) {
                let table: toml::Table = format!("value = {}", setting.default).parse().unwrap();
                let mut settings = S::default();
                (setting.set)(&mut settings, table["value"].clone()).unwrap();
                assert_eq!(settings, S::default(), "{} of {}", setting.name, S::OF);
            }
        }
    }

    #[test]
    fn the_defaults_of_the_tables_are_those_that_hold() {
        check_defaults::<TapeSettings>();
        check_defaults::<AnyLayer>();
        check_defaults::<TapeDir>();
        check_defaults::<DeviceSettings>();
        check_defaults::<SharedHostSettings>();
        check_defaults::<StoreSettings>();
        check_defaults::<StoreDir>();
        check_defaults::<ObjectDir>();
        check_defaults::<SharedDirectorySettings>();
        check_defaults::<NodeSettings>();
        assert!(is_literal("\"reverse\"") && is_literal("30") && is_literal("[]") && !is_literal("none"));
    }

    #[test]
    fn the_pages_name_every_setting() {
        for (page, fence) in [(reference(), "| `"), (python(), "    ")] {
            for name in TapeSettings::TABLE.iter().map(|s| s.name).chain(StoreSettings::TABLE.iter().map(|s| s.name)) {
                assert!(page.contains(&format!("{fence}{name}")), "{name}");
            }
        }
    }
}
