//! The C header, which is made from the crate `outcrop-c` and committed.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

/// Where it is, and what it is made from.
const CRATE: &str = "bindings/c";
const HEADER: &str = "bindings/c/include/outcrop.h";
const SOURCES: &[&str] = &[
    "border.rs",
    "tape.rs",
    "store.rs",
    "session.rs",
    "versions.rs",
    "pool.rs",
    "head.rs",
    "head/hints.rs",
    "node.rs",
];

/// Writes it.
pub(crate) fn write(root: &Path) -> Result<()> {
    fs::write(root.join(HEADER), make(root)?).with_context(|| format!("cannot write {HEADER}"))
}

/// An error if it is not what would be written.
pub(crate) fn check(root: &Path) -> Result<()> {
    let committed = fs::read_to_string(root.join(HEADER)).with_context(|| format!("cannot read {HEADER}"))?;
    ensure!(committed == make(root)?, "{HEADER} is not what its source makes: cargo xtask header");
    Ok(())
}

fn make(root: &Path) -> Result<String> {
    let config = root.join(CRATE).join("cbindgen.toml");
    let config = cbindgen::Config::from_file(&config).map_err(anyhow::Error::msg)?;
    let sources = SOURCES.iter().map(|file| root.join(CRATE).join("src").join(file));
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().context("cannot make the header")?.write(&mut text);
    Ok(String::from_utf8(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_up_to_date() {
        let root = crate::root().unwrap();
        check(&root).unwrap();
        let header = make(&root).unwrap();
        assert!(header.contains("outcrop_status outcrop_tape_save(") && header.contains("OUTCROP_USAGE = 10"));
    }
}
