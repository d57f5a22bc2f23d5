//! The pages that are made from the table of settings and committed: the reference, and the types
//! for Python.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// A file, and what makes it.
type Page = (&'static str, fn() -> String);

const PAGES: &[Page] = &[
    ("docs/settings.md", outcrop_settings::reference),
    ("bindings/python/python/outcrop/settings.py", outcrop_settings::python),
];

/// Writes them.
pub(crate) fn write(root: &Path) -> Result<()> {
    for (file, make) in PAGES {
        fs::write(root.join(file), make()).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(())
}

/// An error if one of them is not what would be written.
pub(crate) fn check(root: &Path) -> Result<()> {
    for (file, make) in PAGES {
        let committed = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        ensure!(committed == make(), "{file} is not what the table of settings makes: cargo xtask settings");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_up_to_date() {
        check(&crate::root().unwrap()).unwrap();
    }
}
