//! The files that the daemon has open, and checksums of what was drained to them.

use std::{collections::BTreeMap, sync::Arc};

use outcrop_format::NodePart;
use outcrop_grants::{FileId, JobId, PieceSum};

use crate::target::Target;

/// How many checksums of drained pieces are kept for each file, at most.
const SUMS_MAX: usize = 1 << 20;

/// An open file.
struct OpenFile {
    target: Arc<Target>,
    identity: (u64, u64),
    /// What was drained and not written since, by offset: each piece was drained as a whole.
    sums: BTreeMap<u64, PieceSum>,
}

#[derive(Default)]
pub(crate) struct Files {
    open: BTreeMap<FileId, OpenFile>,
    by_identity: BTreeMap<(u64, u64), FileId>,
    /// The whole pieces of drains under way, and the ranges that they write.
    draining: BTreeMap<JobId, (FileId, u64, u64, Vec<PieceSum>)>,
    next: FileId,
}

impl Files {
    pub(crate) fn find(&self, identity: (u64, u64)) -> Option<FileId> {
        self.by_identity.get(&identity).copied()
    }

    pub(crate) fn target(&self, file: FileId) -> Option<Arc<Target>> {
        self.open.get(&file).map(|open| Arc::clone(&open.target))
    }

    /// A number that no file has.
    pub(crate) fn new_id(&mut self) -> FileId {
        self.next += 1;
        self.next
    }

    /// Numbers up to this one are in use.
    pub(crate) fn in_use(&mut self, file: FileId) {
        self.next = self.next.max(file);
    }

    /// A file of a dead daemon, which is not open yet.
    pub(crate) fn expect(&mut self, file: FileId, identity: (u64, u64)) {
        self.in_use(file);
        self.by_identity.insert(identity, file);
    }

    pub(crate) fn insert(&mut self, file: FileId, identity: (u64, u64), target: Target) {
        self.in_use(file);
        self.by_identity.insert(identity, file);
        let sums = BTreeMap::new();
        self.open.insert(file, OpenFile { target: Arc::new(target), identity, sums });
    }

    pub(crate) fn forget(&mut self, file: FileId) {
        if let Some(open) = self.open.remove(&file) {
            self.by_identity.remove(&open.identity);
        }
        self.by_identity.retain(|_, other| *other != file);
    }

    /// A drain begins: what it writes is not as it was verified before.
    pub(crate) fn keep_draining(
        &mut self,
        is_wanted: bool,
        job: JobId,
        file: FileId,
        parts: &[NodePart],
        pieces: &[PieceSum],
    ) {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return };
        let (start, end) = (first.offset, last.offset + last.bytes);
        self.forget_range(file, start, end);
        if is_wanted {
            let is_whole = |piece: &&PieceSum| start <= piece.offset && piece.offset + piece.bytes <= end;
            // Only pieces of which nothing was replaced.
            let is_alone = |piece: &&PieceSum| {
                let own = parts.iter().filter(|part| piece.at <= part.at && part.at < piece.at + piece.bytes);
                own.map(|part| part.bytes).sum::<u64>() == piece.bytes
            };
            let whole = pieces.iter().filter(is_whole).filter(is_alone).copied().collect();
            self.draining.insert(job, (file, start, end, whole));
        }
    }

    pub(crate) fn drained(&mut self, job: JobId, is_done: bool) {
        let Some((file, _, _, pieces)) = self.draining.remove(&job) else { return };
        let Some(open) = self.open.get_mut(&file).filter(|_| is_done) else { return };
        open.sums.extend(pieces.into_iter().map(|piece| (piece.offset, piece)));
        while open.sums.len() > SUMS_MAX {
            open.sums.pop_first();
        }
    }

    /// The file is cut off.
    pub(crate) fn forget_sums(&mut self, file: FileId, from: u64) {
        self.forget_range(file, from, u64::MAX);
    }

    fn forget_range(&mut self, file: FileId, start: u64, end: u64) {
        let Some(open) = self.open.get_mut(&file) else { return };
        let before =
            open.sums.range(..start).next_back().filter(|(_, it)| it.offset + it.bytes > start).map(|it| *it.0);
        let inside: Vec<u64> = open.sums.range(start..end).map(|it| *it.0).collect();
        for offset in before.into_iter().chain(inside) {
            open.sums.remove(&offset);
        }
    }

    /// The checksums of what was drained to a file.
    pub(crate) fn sums(&self, file: FileId) -> Vec<PieceSum> {
        self.open.get(&file).map(|open| open.sums.values().copied().collect()).unwrap_or_default()
    }
}
