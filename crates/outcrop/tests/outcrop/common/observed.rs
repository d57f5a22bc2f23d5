//! What a reader can see in files that a crash has left.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use outcrop::{catalog::Catalog, layers::files::Files};
use outcrop_crash::{Recording, Tree};
use outcrop_format::{MARK_NAME, Manifest, Mark, PackId, RunId, pack_name, parse_version_name, rank_name};

use super::{
    history::{History, Promises},
    trees::below,
};

/// The directory of one rank on one layer, in a tree.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) layer: usize,
    pub(crate) rank: u32,
    pub(crate) medium: String,
}

/// What can be read of one session, by layer and rank.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) dirs: BTreeMap<(usize, u32), Dir>,
}

/// The directory of one rank.
#[derive(Default)]
pub(crate) struct Dir {
    pub(crate) versions: BTreeMap<u64, Sight>,
    /// The runs that have used it, according to its mark.
    runs: BTreeSet<RunId>,
}

/// What can be seen of a manifest.
pub(crate) enum Sight {
    Unreadable(String),
    Listed {
        manifest: Arc<Manifest>,
        packs: Vec<PackSight>,
        /// The stamp, if the content can be read and is exactly what was saved with that stamp.
        content: Result<u64, String>,
    },
}

/// What can be seen of a pack that a manifest lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PackSight {
    Absent,
    OtherLength,
    There,
}

/// The digests of a manifest and of the packs that it lists, as far as they exist.
type Digests = (u64, Vec<Option<u64>>);

/// Looks at images of one log, and caches what it has read.
pub(crate) struct Observer<'a> {
    history: &'a History,
    places: &'a [Place],
    manifests: HashMap<u64, Result<Arc<Manifest>, String>>,
    contents: HashMap<Digests, Result<u64, String>>,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(history: &'a History, places: &'a [Place]) -> Self {
        Self { history, places, manifests: HashMap::new(), contents: HashMap::new() }
    }

    /// What can be seen of a session.
    pub(crate) fn observe(&mut self, tree: &Tree, session: &str) -> Observed {
        let mut observed = Observed::default();
        for Place { layer, rank, medium } in self.places {
            let prefix = format!("{medium}/{session}/{}/", rank_name(*rank));
            let mut dir = Dir::default();
            for (name, bytes) in tree.files_below(&prefix) {
                let base = &name[prefix.len()..];
                if let Some(version) = parse_version_name(base) {
                    dir.versions.insert(version, self.sight(tree, medium, session, name));
                } else if base == MARK_NAME {
                    dir.runs = Mark::decode(bytes).map_or_else(|_| BTreeSet::new(), |Mark(runs)| runs);
                }
            }
            observed.dirs.insert((*layer, *rank), dir);
        }
        observed
    }

    fn sight(&mut self, tree: &Tree, medium: &str, session: &str, name: &str) -> Sight {
        let digest = tree.digest_of(name).expect("a file");
        let decode = || {
            let bytes = tree.bytes(name).expect("a file");
            Manifest::decode(bytes).map(Arc::new).map_err(|error| format!("{name}: {error}"))
        };
        let manifest = match self.manifests.entry(digest).or_insert_with(decode) {
            Ok(manifest) => Arc::clone(manifest),
            Err(reason) => return Sight::Unreadable(reason.clone()),
        };
        let path = |id: PackId| format!("{medium}/{session}/{}/{}", rank_name(id.rank), pack_name(id.number));
        let look = |pack: &outcrop_format::ManifestPack| match tree.bytes(&path(pack.id)) {
            None => PackSight::Absent,
            Some(bytes) if bytes.len() as u64 != pack.file_bytes => PackSight::OtherLength,
            Some(_) => PackSight::There,
        };
        let packs = manifest.packs.iter().map(look).collect();
        let digests = manifest.packs.iter().map(|pack| tree.digest_of(&path(pack.id))).collect();
        let read = || read(self.history, tree, medium, &manifest);
        let content = self.contents.entry((digest, digests)).or_insert_with(read).clone();
        Sight::Listed { manifest, packs, content }
    }
}

/// Reads one rank's part of a version. Returns its stamp, if it is what was saved.
fn read(history: &History, tree: &Tree, medium: &str, manifest: &Arc<Manifest>) -> Result<u64, String> {
    let files: Arc<dyn Files> = Arc::new(Recording::from_tree(tree.clone()));
    let text = |error: outcrop::catalog::Error| error.to_string();
    let reader = Catalog::new(below(&files, medium)).reader(manifest).map_err(text)?;
    let region = |name| reader.read_region(name).map_err(text);
    let stamp = region("stamp")?.try_into().map_err(|_| "a stamp has 8 bytes".to_owned())?;
    let stamp = u64::from_le_bytes(stamp);
    let (version, rank) = (manifest.version, manifest.rank);
    let state = history.state(&manifest.session, rank, version, stamp)?;
    match (region("field")?, region("tail")?) == (state.field, state.tail) {
        true => Ok(stamp),
        false => Err(format!("version {version} is not what rank {rank} saved")),
    }
}

impl Observed {
    /// The manifests of a layer, by rank.
    fn on(&self, layer: usize) -> impl Iterator<Item = &Dir> {
        self.dirs.range((layer, 0)..=(layer, u32::MAX)).map(|(_, dir)| dir)
    }

    /// The versions that all ranks have on a layer, and when each was saved; with its stamp, or
    /// with what is wrong.
    pub(crate) fn complete(&self, layer: usize) -> BTreeMap<u64, (u64, Result<u64, String>)> {
        let mut complete = BTreeMap::new();
        let Some(first) = self.on(layer).next() else { return complete };
        for &version in first.versions.keys() {
            let listed = |dir: &Dir| match dir.versions.get(&version) {
                Some(Sight::Listed { manifest, content, .. }) => {
                    Some((manifest.run, manifest.saved_at_unix_ns, content.clone()))
                }
                _ => None,
            };
            let Some(ranks) = self.on(layer).map(listed).collect::<Option<Vec<_>>>() else { continue };
            if ranks.iter().any(|(run, ..)| *run != ranks[0].0) {
                continue;
            }
            let stamps: Result<BTreeSet<u64>, String> = ranks.iter().map(|(_, _, content)| content.clone()).collect();
            let stamp = stamps.and_then(|stamps| match stamps.len() {
                1 => Ok(*stamps.first().expect("one stamp")),
                _ => Err(format!("version {version} was put together from {stamps:?}")),
            });
            complete.insert(version, (ranks[0].1, stamp));
        }
        complete
    }

    /// A number that is equal for images that differ only in values: in the numbers of versions,
    /// runs and packs, in bytes, and in files that no manifest lists.
    pub(crate) fn class(&self, promised: &[BTreeSet<u64>]) -> u64 {
        let versions = self.dirs.values().flat_map(|dir| dir.versions.keys()).chain(promised.iter().flatten());
        let versions: BTreeSet<u64> = versions.copied().collect();
        let nth = |version: &u64| versions.range(..version).count();
        let lists = self.dirs.values().flat_map(|dir| dir.versions.values());
        let ids: BTreeSet<PackId> = lists.clone().flat_map(Sight::ids).collect();
        let mut runs = Vec::new();
        for run in lists.filter_map(Sight::run).chain(self.dirs.values().flat_map(|dir| dir.runs.iter().copied())) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        let nth_run = |run: RunId| runs.iter().position(|other| *other == run);
        let mut class = DefaultHasher::new();
        for (place, dir) in &self.dirs {
            place.hash(&mut class);
            dir.runs.iter().map(|run| nth_run(*run)).collect::<BTreeSet<_>>().hash(&mut class);
            for (version, sight) in &dir.versions {
                nth(version).hash(&mut class);
                match sight {
                    Sight::Unreadable(_) => u64::MAX.hash(&mut class),
                    Sight::Listed { manifest, packs, content } => {
                        (nth_run(manifest.run), content.is_ok(), packs).hash(&mut class);
                        for pack in &manifest.packs {
                            let of_rank = ids.range(PackId { rank: pack.id.rank, number: 0 }..pack.id);
                            (pack.id.rank, of_rank.count(), pack.is_borrowed).hash(&mut class);
                        }
                    }
                }
            }
        }
        for promised in promised {
            promised.iter().map(nth).collect::<Vec<_>>().hash(&mut class);
        }
        class.finish()
    }
}

impl Sight {
    fn ids(&self) -> Vec<PackId> {
        match self {
            Self::Unreadable(_) => Vec::new(),
            Self::Listed { manifest, .. } => manifest.packs.iter().map(|pack| pack.id).collect(),
        }
    }

    fn run(&self) -> Option<RunId> {
        match self {
            Self::Unreadable(_) => None,
            Self::Listed { manifest, .. } => Some(manifest.run),
        }
    }
}

/// Checks all sessions of a tree, and returns its class.
pub(crate) fn judge(
    observer: &mut Observer<'_>,
    tree: &Tree,
    sessions: &[&str],
    promises: &Promises,
    keep: &[outcrop::Retention],
) -> Result<u64, String> {
    let mut class = DefaultHasher::new();
    for session in sessions {
        let observed = observer.observe(tree, session);
        promises.judge(session, &observed, keep).map_err(|reason| format!("{session}: {reason}"))?;
        let promised: Vec<_> = (0..keep.len()).map(|layer| promises.on_layer(session, layer)).collect();
        observed.class(&promised).hash(&mut class);
    }
    Ok(class.finish())
}
