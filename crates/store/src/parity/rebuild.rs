//! What is made again when a session is opened: the files of this rank, if its node was lost, and
//! shards that their holders lack.
//!
//! A version is made again as it is written: packs, then its manifest, then the mark of the
//! directory. Until the mark is there, the directory counts as lost, and the next session goes on
//! where this one was interrupted.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::{Duration, Instant},
};

use outcrop_format::{
    MANIFEST_BYTES_MAX, MARK_BYTES_MAX, MARK_NAME, Manifest, PAGE_BYTES, PackHeader, draft_name, is_copied, pack_name,
    parse_pack_name, parse_version_name, rank_name, version_name,
};
use outcrop_layers::files::{File, Files, read_whole, write_whole};
use outcrop_parity::{Kept, Part};
use twox_hash::XxHash3_128;

use super::{
    peers::of_rank,
    reader::WINDOW,
    spread::{Spread, SpreadFiles},
    writer::{Committed, ShardWriter},
};

/// How long a rank works before it tells the others that it is not done yet: they would lose
/// patience.
const ROUND: Duration = Duration::from_secs(20);

/// What was made again.
#[derive(Debug, Default)]
pub(crate) struct Rebuilt {
    /// Versions of this rank, in its first directory.
    pub(crate) versions: Vec<u64>,
    bytes: u64,
    shards: u64,
}

/// Something to be made again.
enum Task {
    Pack(String, Vec<u64>),
    /// The directory: all packs are there.
    Packs,
    Version(u64),
    Mark,
    Shards(String),
}

/// Everything that is to be made again in one session.
pub(super) struct Rebuild<'a> {
    spread: &'a Arc<Spread>,
    near: &'a dyn Files,
    session: &'a str,
    tasks: VecDeque<Task>,
    /// Versions that cannot be made again, and why.
    lost: BTreeMap<u64, String>,
    rebuilt: Rebuilt,
    manifests: BTreeMap<u64, Manifest>,
}

impl<'a> Rebuild<'a> {
    /// Finds out what is missing.
    pub(super) fn plan(spread: &'a Arc<Spread>, near: &'a dyn Files, session: &'a str) -> io::Result<Self> {
        let (tasks, lost, manifests) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        let mut rebuild = Self { spread, near, session, tasks, lost, rebuilt: Rebuilt::default(), manifests };
        let files: Vec<(String, Kept)> = {
            let sessions = spread.sessions();
            let known = sessions.get(session).into_iter().flat_map(|known| &known.files);
            known.map(|(name, kept)| (name.clone(), kept.clone())).collect()
        };
        let is_lost = match near.open(&rebuild.path(MARK_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            opened => opened.map(|_| false)?,
        };
        if is_lost && !files.is_empty() {
            rebuild.plan_files(&files)?;
        }
        for (name, kept) in &files {
            let data = if is_copied(name) { 1 } else { spread.code.data() };
            let is_complete = kept.missing(&spread.holders).is_empty() && kept.surplus(&spread.holders).is_empty();
            if kept.is_other(data, &spread.holders) || !is_complete || !kept.stale.is_empty() {
                rebuild.tasks.push_back(Task::Shards(name.clone()));
            }
        }
        Ok(rebuild)
    }

    /// Plans to make all files of this rank again.
    fn plan_files(&mut self, files: &[(String, Kept)]) -> io::Result<()> {
        let whole: BTreeSet<u64> =
            files.iter().filter(|(_, kept)| kept.is_whole()).filter_map(|(name, _)| parse_pack_name(name)).collect();
        let mut packs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let layer = SpreadFiles(Arc::clone(self.spread));
        for version in files.iter().filter_map(|(name, _)| parse_version_name(name)) {
            let read = read_whole(&layer, &self.path(&version_name(version)), MANIFEST_BYTES_MAX);
            let decoded = read.and_then(|bytes| Manifest::decode(&bytes).map_err(invalid));
            let manifest = match decoded {
                Ok(manifest) if manifest.version == version && manifest.rank == self.spread.rank => manifest,
                Ok(_) => {
                    self.lost.insert(version, "its manifest is another one".to_owned());
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.lost.insert(version, error.to_string());
                    continue;
                }
                // Another attempt may succeed.
                Err(error) => return Err(error),
            };
            let own: Vec<u64> = manifest
                .packs
                .iter()
                .filter(|pack| pack.id.rank == self.spread.rank)
                .map(|pack| pack.id.number)
                .collect();
            if let Some(missing) = own.iter().find(|number| !whole.contains(number)) {
                let reason =
                    format!("too few shards of pack {missing} are left: more nodes are lost than parity covers");
                self.lost.insert(version, reason);
                continue;
            }
            own.iter().for_each(|number| packs.entry(*number).or_default().push(version));
            self.manifests.insert(version, manifest);
        }
        self.tasks.extend(packs.into_iter().map(|(number, versions)| Task::Pack(pack_name(number), versions)));
        self.tasks.push_back(Task::Packs);
        self.tasks.extend(self.manifests.keys().map(|version| Task::Version(*version)));
        self.tasks.extend(files.iter().any(|(name, _)| name == MARK_NAME).then_some(Task::Mark));
        Ok(())
    }

    /// Works for a while. Returns whether everything is done.
    pub(super) fn work(&mut self) -> io::Result<bool> {
        let end = Instant::now() + ROUND;
        while let Some(task) = self.tasks.pop_front() {
            match task {
                Task::Pack(name, versions) => self.pack(&name, &versions)?,
                Task::Packs => self.near.sync_dir(&self.dir())?,
                Task::Version(version) => self.version(version)?,
                Task::Mark => {
                    let layer = SpreadFiles(Arc::clone(self.spread));
                    let mark = read_whole(&layer, &self.path(MARK_NAME), MARK_BYTES_MAX as u64)?;
                    write_whole(self.near, &self.dir(), MARK_NAME, &mark)?;
                }
                Task::Shards(name) => {
                    if let Err(error) = self.shards(&name) {
                        let session = self.session;
                        tracing::warn!(session, name, %error, "shards of a file cannot be made again: fewer nodes may be lost");
                    }
                }
            }
            if Instant::now() > end {
                break;
            }
        }
        Ok(self.tasks.is_empty())
    }

    /// Says what was done.
    pub(super) fn end(self) -> Rebuilt {
        let (session, rank, location) = (self.session, self.spread.rank, self.near.location());
        for (version, reason) in &self.lost {
            tracing::warn!(session, rank, version, reason, "a version of a lost node cannot be made again");
        }
        if !self.rebuilt.versions.is_empty() {
            let (versions, bytes) = (&self.rebuilt.versions, self.rebuilt.bytes);
            tracing::warn!(
                session,
                rank,
                location,
                ?versions,
                bytes,
                "versions of a lost node were made again from parity"
            );
        }
        if self.rebuilt.shards > 0 {
            tracing::warn!(session, rank, shards = self.rebuilt.shards, "shards that were lost were made again");
        }
        self.rebuilt
    }

    fn dir(&self) -> String {
        format!("{}/{}", self.session, rank_name(self.spread.rank))
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir())
    }

    /// Makes a pack again, unless an interrupted attempt has done so.
    fn pack(&mut self, name: &str, versions: &[u64]) -> io::Result<()> {
        let reader = match self.spread.reader(self.session, name) {
            Ok(reader) => reader,
            Err(error) => return self.give_up(versions, &error),
        };
        let check = self.check_of(name);
        let (path, bytes) = (self.path(name), reader.bytes()?);
        if self.near.bytes_of(&path).is_ok_and(|there| there == bytes)
            && self.near.open(&path).and_then(|file| checksum(&*file)).ok() == check
        {
            return Ok(());
        }
        let draft = self.path(&draft_name(name));
        let file = self.near.create(&draft, bytes)?;
        let copied = copy(&reader, bytes, |at, part| file.write_at(at, part));
        let copied = match copied {
            Ok(found) if Some(found) == check => file.sync().and_then(|()| self.near.rename(&draft, &path)),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "its bytes are not those that were written")),
            Err(error) => Err(error),
        };
        match copied {
            Ok(()) => self.rebuilt.bytes += bytes,
            Err(error) => {
                let _ = self.near.remove(&draft);
                match error.kind() {
                    io::ErrorKind::InvalidData => self.give_up(versions, &error)?,
                    _ => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// These versions cannot be made again.
    fn give_up(&mut self, versions: &[u64], error: &io::Error) -> io::Result<()> {
        self.lost.extend(versions.iter().map(|version| (*version, error.to_string())));
        Ok(())
    }

    fn check_of(&self, name: &str) -> Option<u128> {
        let sessions = self.spread.sessions();
        sessions.get(self.session).and_then(|known| known.files.get(name)).map(|kept| kept.file.check)
    }

    /// Makes a version visible whose packs are durable, and are those that it lists.
    fn version(&mut self, version: u64) -> io::Result<()> {
        let Some(manifest) = self.manifests.get(&version).filter(|_| !self.lost.contains_key(&version)) else {
            return Ok(());
        };
        for pack in manifest.packs.iter().filter(|pack| pack.id.rank == self.spread.rank) {
            let mut page = [0; PAGE_BYTES];
            self.near.open(&self.path(&pack_name(pack.id.number)))?.read_at(0, &mut page)?;
            let header = PackHeader::decode(&page).ok();
            if header.map(|it| (it.file_bytes(), it.index_check())) != Some((pack.file_bytes, pack.index_check)) {
                let problem = format!("pack {} is not the one that its manifest lists", pack.id.number);
                self.lost.insert(version, problem);
                return Ok(());
            }
        }
        let bytes = manifest.encode().map_err(io::Error::other)?;
        write_whole(self.near, &self.dir(), &version_name(version), &bytes)?;
        self.rebuilt.versions.push(version);
        Ok(())
    }

    /// Gives every holder its shard of a file, and removes shards that others have of it.
    fn shards(&mut self, name: &str) -> io::Result<()> {
        let spread = self.spread;
        let place = spread.place(self.session);
        let kept = spread.sessions().get(self.session).and_then(|known| known.files.get(name)).cloned();
        let Some(mut kept) = kept else { return Ok(()) };
        let data = if is_copied(name) { 1 } else { spread.code.data() };
        let missing = kept.missing(&spread.holders);
        let mut made = Vec::new();
        if kept.is_other(data, &spread.holders) {
            let (known, file) = (kept.file, spread.new_file(name)?);
            let mut writer = ShardWriter::begin(&spread.peers, &place, name, file, &spread.parts(), known.bytes)?;
            self.source(name, &kept, |part| writer.write(part))?;
            let (file, committed) = writer.finish(|file| (file.bytes, file.check) == (known.bytes, known.check))?;
            made = parts_of(committed)?;
            let old: Vec<Part> = kept.all().chain(kept.stale.iter().copied()).collect();
            kept = Kept::written(file, &spread.holders);
            // The new shards have replaced the old ones of the same name.
            kept.stale = old.into_iter().filter(|part| !made.contains(part)).collect();
        } else if !missing.is_empty() {
            let known = kept.file;
            let mut writer = ShardWriter::begin(&spread.peers, &place, name, known, &missing, known.bytes)?;
            self.source(name, &kept, |part| writer.write(part))?;
            let (_, committed) = writer.finish(|file| *file == known)?;
            made = parts_of(committed)?;
            made.iter().for_each(|part| kept.made(*part));
        }
        let holders: BTreeSet<u32> = made.iter().map(|part| part.holder).collect();
        holders.iter().try_for_each(|rank| spread.peers.sync(&place, *rank))?;
        // Only now.
        for part in kept.surplus(&spread.holders).into_iter().chain(std::mem::take(&mut kept.stale)) {
            spread.peers.remove(&place, name, part)?;
            kept.lost(part);
        }
        self.rebuilt.shards += made.len() as u64;
        if let Some(known) = spread.sessions().get_mut(self.session) {
            known.files.insert(name.to_owned(), kept);
        }
        Ok(())
    }

    /// Reads a file of this rank: from its first directory if it is there undamaged, else from
    /// shards.
    fn source(&self, name: &str, kept: &Kept, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let near = self.near.open(&self.path(name)).ok();
        let bytes = kept.file.bytes;
        // A manifest there may list other packs.
        let near = near.filter(|file| !is_copied(name) && file.bytes().ok() == Some(bytes));
        if let Some(near) = near.filter(|file| checksum(&**file).ok() == Some(kept.file.check)) {
            return copy(&*near, bytes, |_, part| each(part)).map(drop);
        }
        let reader = self.spread.reader(self.session, name)?;
        copy(&reader, bytes, |_, part| each(part)).map(drop)
    }
}

fn invalid(error: outcrop_format::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// The parts, if all of them could be made.
fn parts_of(committed: Vec<Committed>) -> io::Result<Vec<Part>> {
    committed
        .into_iter()
        .map(|(part, done)| done.map(|()| part).map_err(|error| of_rank(part.holder, &error)))
        .collect()
}

/// The checksum of a file.
fn checksum(file: &dyn File) -> io::Result<u128> {
    copy(file, file.bytes()?, |_, _| Ok(()))
}

/// Passes the bytes of a file on while the next ones are read. Returns their checksum.
fn copy(file: &dyn File, bytes: u64, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<u128> {
    /// As much as a reader of shards reads at once, if a stripe is that of a small group.
    const PIECE_BYTES: u64 = WINDOW * (256 << 10);
    let (sender, receiver) = sync_channel::<io::Result<Vec<u8>>>(2);
    thread::scope(|scope| {
        scope.spawn(move || {
            for at in (0..bytes).step_by(PIECE_BYTES as usize) {
                let mut piece = vec![0; PIECE_BYTES.min(bytes - at) as usize];
                let read = file.read_at(at, &mut piece).map(|()| piece);
                let is_over = read.is_err();
                if sender.send(read).is_err() || is_over {
                    return;
                }
            }
        });
        let (mut hash, mut at) = (XxHash3_128::new(), 0);
        for piece in receiver {
            let piece = piece?;
            hash.write(&piece);
            each(at, &piece)?;
            at += piece.len() as u64;
        }
        Ok(hash.finish_128())
    })
}
