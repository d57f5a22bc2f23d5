//! The directories of all ranks: which are mounted where, and what the test has damaged in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use outcrop_format::{Manifest, pack_name, parse_pack_name, parse_version_name, rank_name, version_name};

use super::{
    SESSION,
    case::{Damage, LAYERS_MAX, RANKS_MAX},
    model::{DiskId, Model},
};

/// The names of directories, by layer and rank. If the ranks share a directory, the first name is
/// used.
pub(super) const NAMES: [[&str; RANKS_MAX as usize]; LAYERS_MAX] = [
    ["first", "first-1", "first-2", "first-3"],
    ["second", "second-1", "second-2", "second-3"],
    ["third", "third-1", "third-2", "third-3"],
];

/// The place of directories that are not mounted.
const AWAY: &str = "away";

/// A file in a directory of a rank.
pub(super) type FileId = (DiskId, u32, String);

/// The directories of a case.
pub(super) struct Disks {
    root: PathBuf,
    is_local: bool,
    /// The content of damaged files, until the store replaces them; `None` for files that were
    /// removed.
    damaged: BTreeMap<FileId, Option<Vec<u8>>>,
    /// Those among them that have another length, or were removed.
    lost: BTreeSet<FileId>,
    /// The layer and rank for which each directory was made.
    homes: BTreeMap<DiskId, (usize, u32)>,
    /// Directories that are not mounted.
    away: Vec<DiskId>,
}

impl Disks {
    pub(super) fn new(root: &Path, is_local: bool, model: &Model) -> Self {
        fs::create_dir_all(root.join(AWAY)).unwrap();
        let mut homes = BTreeMap::new();
        for (layer, disks) in model.mounts.iter().enumerate() {
            homes.extend(disks.iter().zip(0..).map(|(disk, rank)| (*disk, (layer, rank))));
        }
        Self {
            root: root.to_owned(),
            is_local,
            damaged: BTreeMap::new(),
            lost: BTreeSet::new(),
            homes,
            away: Vec::new(),
        }
    }

    /// The name of the directory of a rank on a layer.
    pub(super) fn name(&self, layer: usize, rank: u32) -> &'static str {
        NAMES[layer][if self.is_local { rank as usize } else { 0 }]
    }

    /// The directory of a rank on a layer.
    pub(super) fn layer(&self, layer: usize, rank: u32) -> PathBuf {
        self.root.join(self.name(layer, rank))
    }

    /// The directory in which a rank keeps its files.
    pub(super) fn rank_dir(&self, layer: usize, rank: u32) -> PathBuf {
        self.layer(layer, rank).join(SESSION).join(rank_name(rank))
    }

    /// The directory that is moved when the disk of a rank is moved.
    fn disk_dir(&self, layer: usize, rank: u32) -> PathBuf {
        if self.is_local { self.layer(layer, rank) } else { self.rank_dir(layer, rank) }
    }

    fn id(&self, model: &Model, layer: usize, rank: u32, name: &str) -> FileId {
        (model.mounts[layer][rank as usize], if self.is_local { rank } else { 0 }, name.to_owned())
    }

    /// Takes the directory of a rank away. The store makes another one.
    pub(super) fn take_away(&mut self, model: &mut Model, layer: usize, rank: u32) {
        let disk = model.mounts[layer][rank as usize];
        if fs::rename(self.disk_dir(layer, rank), self.root.join(AWAY).join(disk.to_string())).is_ok() {
            let new = model.new_disk();
            self.homes.insert(new, (layer, rank));
            self.away.push(disk);
            model.mounts[layer][rank as usize] = new;
        }
    }

    /// Brings a directory back, in place of what is there now. Returns its layer.
    pub(super) fn bring_back(&mut self, model: &mut Model, nth: usize) -> Option<usize> {
        let disk = *self.away.get(nth % self.away.len().max(1))?;
        let (layer, rank) = self.homes[&disk];
        let present = model.mounts[layer][rank as usize];
        let place = self.disk_dir(layer, rank);
        if fs::rename(&place, self.root.join(AWAY).join(present.to_string())).is_ok() {
            self.away.push(present);
        }
        self.away.retain(|away| *away != disk);
        fs::rename(self.root.join(AWAY).join(disk.to_string()), place).unwrap();
        model.mounts[layer][rank as usize] = disk;
        Some(layer)
    }

    /// Swaps the directories of two ranks.
    pub(super) fn swap(&mut self, model: &mut Model, layer: usize, (one, other): (u32, u32)) -> bool {
        let (one_dir, other_dir) = (self.disk_dir(layer, one), self.disk_dir(layer, other));
        let between = self.root.join(AWAY).join("between");
        if one == other || !one_dir.exists() || !other_dir.exists() {
            return false;
        }
        fs::rename(&one_dir, &between).unwrap();
        fs::rename(&other_dir, &one_dir).unwrap();
        fs::rename(&between, &other_dir).unwrap();
        model.mounts[layer].swap(one as usize, other as usize);
        true
    }

    /// The files of a rank that belong to versions.
    fn files(&self, layer: usize, rank: u32) -> Vec<String> {
        let mut listed = BTreeSet::new();
        for version in self.versions(layer, rank) {
            listed.insert(version_name(version));
            if let Some(manifest) = self.manifest(layer, rank, version) {
                let own = manifest.packs.iter().filter(|pack| pack.id.rank == rank);
                listed.extend(own.map(|pack| pack_name(pack.id.number)));
            }
        }
        let is_there = |name: &String| self.rank_dir(layer, rank).join(name).exists();
        listed.into_iter().filter(is_there).collect()
    }

    /// The versions of which a rank has a manifest, readable or not.
    pub(super) fn versions(&self, layer: usize, rank: u32) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.rank_dir(layer, rank)) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut versions: Vec<u64> = names.filter_map(|name| parse_version_name(&name)).collect();
        versions.sort_unstable();
        versions
    }

    /// The manifest of a rank, if it can be read.
    pub(super) fn manifest(&self, layer: usize, rank: u32, version: u64) -> Option<Manifest> {
        let bytes = fs::read(self.rank_dir(layer, rank).join(version_name(version))).ok()?;
        Manifest::decode(&bytes).ok().filter(|manifest| manifest.rank == rank)
    }

    /// Damages a file of a rank, in place. Returns its name.
    pub(super) fn damage(
        &mut self,
        model: &Model,
        (layer, rank): (usize, u32),
        nth: usize,
        damage: Damage,
    ) -> Option<String> {
        let files = self.files(layer, rank);
        let name = files.get(nth % files.len().max(1))?.clone();
        let path = self.rank_dir(layer, rank).join(&name);
        let mut bytes = fs::read(&path).ok()?;
        let length = bytes.len() as u64;
        match damage {
            Damage::Flip { at, bit } => bytes[(at % length) as usize] ^= 1 << bit,
            Damage::Cut { at } => bytes.truncate((at % length) as usize),
            Damage::Longer { by } => bytes.resize((length + by) as usize, 0),
            // If a manifest is removed, this rank does not have the version. That is not damage.
            Damage::Remove if parse_pack_name(&name).is_none() => return None,
            Damage::Remove => {
                fs::remove_file(&path).ok()?;
                self.damaged.insert(self.id(model, layer, rank, &name), None);
                self.lost.insert(self.id(model, layer, rank, &name));
                return Some(name);
            }
        }
        let file = fs::File::options().write(true).open(&path).ok()?;
        file.set_len(bytes.len() as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        if bytes.len() as u64 != length {
            self.lost.insert(self.id(model, layer, rank, &name));
        }
        self.damaged.insert(self.id(model, layer, rank, &name), Some(bytes));
        Some(name)
    }

    /// Whether a file of a rank is still as the damage has left it.
    pub(super) fn is_damaged(&self, model: &Model, layer: usize, rank: u32, name: &str) -> bool {
        let Some(left) = self.damaged.get(&self.id(model, layer, rank, name)) else { return false };
        fs::read(self.rank_dir(layer, rank).join(name)).ok() == *left
    }

    /// Whether a manifest of a rank is damaged.
    pub(super) fn is_manifest_damaged(&self, model: &Model, layer: usize, rank: u32, version: u64) -> bool {
        self.is_damaged(model, layer, rank, &version_name(version))
    }

    /// Whether a rank's part of a version is damaged: its manifest, or a pack that it lists.
    pub(super) fn is_tainted(&self, model: &Model, layer: usize, rank: u32, version: u64) -> bool {
        if self.is_manifest_damaged(model, layer, rank, version) {
            return true;
        }
        let is_bad = |id: outcrop_format::PackId| self.is_damaged(model, layer, id.rank, &pack_name(id.number));
        self.manifest(layer, rank, version).is_some_and(|it| it.packs.iter().any(|pack| is_bad(pack.id)))
    }

    /// The packs that a rank's manifest of a version lists.
    pub(super) fn packs(&self, model: &Model, layer: usize, rank: u32, version: u64) -> Vec<FileId> {
        let packs = self.manifest(layer, rank, version).map(|manifest| manifest.packs).unwrap_or_default();
        packs.iter().map(|pack| self.id(model, layer, pack.id.rank, &pack_name(pack.id.number))).collect()
    }

    /// Files that are missing, or have another length.
    pub(super) fn lost(&self) -> Vec<FileId> {
        self.lost.iter().cloned().collect()
    }

    /// The names of all damaged files of a rank.
    pub(super) fn damaged_files(&self, model: &Model, layer: usize, rank: u32) -> Vec<String> {
        let (disk, of, _) = self.id(model, layer, rank, "");
        let here = self.damaged.keys().filter(|(other, rank, _)| (*other, *rank) == (disk, of));
        let names = here.map(|(_, _, name)| name.clone());
        names.filter(|name| self.is_damaged(model, layer, rank, name)).collect()
    }
}
