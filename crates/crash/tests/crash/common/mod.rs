//! A small protocol that saves versions, correctly or with a planted bug, and what must be left of
//! them.

use std::io;

use outcrop_layers::files::{Files, read_whole};

/// The planted bugs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The pack is never synced.
    NoSyncOfPack,
    /// Another file is synced instead of the pack.
    SyncsWrongFile,
    /// The manifest is written before the pack that it lists.
    ManifestBeforePack,
    /// The manifest is not synced before it is renamed.
    NoSyncOfManifest,
    /// The manifest is overwritten in place.
    InPlace,
    /// The directory is not synced after the rename.
    NoSyncOfDir,
    /// The parent of the run's directory is not synced.
    NoSyncOfParent,
    /// The previous manifest is removed while the new one may still be lost.
    RemovesTooEarly,
    /// A pack is removed while the manifest that lists it may still be there.
    RemovesPackFirst,
    /// A failed sync is retried, and its success is trusted.
    SyncsAgain,
}

const DIR: &str = "run";
const PACK_BYTES: usize = 1500;
const MANIFEST_BYTES: usize = 600;

/// Makes the directory.
pub(crate) fn open(files: &dyn Files, bug: Option<Bug>) -> io::Result<()> {
    files.make_dir(DIR)?;
    match bug {
        Some(Bug::NoSyncOfParent) => Ok(()),
        _ => files.sync_dir(""),
    }
}

/// Saves a version, and removes the one before the previous one. The version is durable when this
/// returns.
pub(crate) fn save(files: &dyn Files, version: u8, bug: Option<Bug>) -> io::Result<()> {
    let pack = files.create(&pack_name(version), PACK_BYTES as u64)?;
    pack.write_at(0, &pattern(version, PACK_BYTES)[..700])?;
    pack.write_at(700, &pattern(version, PACK_BYTES)[700..])?;
    match bug {
        Some(Bug::NoSyncOfPack | Bug::ManifestBeforePack) => {}
        Some(Bug::SyncsWrongFile) => files.create(&format!("{DIR}/another"), 0)?.sync()?,
        Some(Bug::SyncsAgain) => pack.sync().or_else(|_| pack.sync())?,
        _ => pack.sync()?,
    }
    files.sync_dir(DIR)?;

    let draft = match bug {
        Some(Bug::InPlace) => manifest_name(0),
        _ => format!("{DIR}/draft"),
    };
    let manifest = files.create(&draft, MANIFEST_BYTES as u64)?;
    manifest.write_at(0, &pattern(version, MANIFEST_BYTES))?;
    if bug != Some(Bug::NoSyncOfManifest) {
        manifest.sync()?;
    }
    if bug != Some(Bug::InPlace) {
        files.rename(&draft, &manifest_name(version))?;
    }
    if bug == Some(Bug::RemovesTooEarly) && version > 1 {
        files.remove(&manifest_name(version - 1))?;
    }
    if bug != Some(Bug::NoSyncOfDir) {
        files.sync_dir(DIR)?;
    }
    if bug == Some(Bug::ManifestBeforePack) {
        pack.sync()?;
    }
    match bug {
        Some(Bug::InPlace | Bug::RemovesTooEarly) => Ok(()),
        _ if version < 3 => Ok(()),
        Some(Bug::RemovesPackFirst) => {
            files.remove(&pack_name(version - 2))?;
            files.remove(&manifest_name(version - 2))
        }
        _ => {
            files.remove(&manifest_name(version - 2))?;
            files.sync_dir(DIR)?;
            files.remove(&pack_name(version - 2))
        }
    }
}

/// The newest version; 0 if there is none. Every version that has a manifest must be complete.
pub(crate) fn recover(files: &dyn Files) -> Result<u8, String> {
    let names = match files.list(DIR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        names => names.map_err(|error| error.to_string())?,
    };
    let mut newest = 0;
    for name in names.iter().filter(|name| name.starts_with("version-")) {
        let read = |name: &str| read_whole(files, name, 1 << 20).map_err(|error| format!("{name}: {error}"));
        let manifest = read(&format!("{DIR}/{name}"))?;
        let version = manifest.first().copied().unwrap_or(0);
        if manifest != pattern(version, MANIFEST_BYTES) {
            return Err(format!("{name} is damaged"));
        }
        if read(&pack_name(version))? != pattern(version, PACK_BYTES) {
            return Err(format!("the pack of version {version} is damaged"));
        }
        newest = newest.max(version);
    }
    Ok(newest)
}

/// Removes what a crash has left: drafts, and packs without a manifest.
pub(crate) fn clean(files: &dyn Files) -> io::Result<()> {
    let names = match files.list(DIR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in &names {
        let manifest = name.replace("pack-", "version-");
        if name == "draft" || (name.starts_with("pack-") && !names.contains(&manifest)) {
            files.remove(&format!("{DIR}/{name}"))?;
        }
    }
    files.sync_dir(DIR)
}

pub(crate) fn pack_name(version: u8) -> String {
    format!("{DIR}/pack-{version:03}")
}

fn manifest_name(version: u8) -> String {
    format!("{DIR}/version-{version:03}")
}

/// Bytes that depend on the seed, and start with it.
pub(crate) fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| seed.wrapping_add((index as u8).wrapping_mul(31)) ^ (index >> 8) as u8).collect()
}
