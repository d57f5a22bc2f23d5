//! The state as records of a journal, and back.

use std::ops::Range;

use outcrop_format::{JournalKept, JournalRecord, NODE_FILE_BYTES_MAX};

use crate::{
    event::ClientId,
    file::{Cut, Extent, File, Piece},
    grants::{Grants, Settings},
};

impl Grants {
    /// The state after a daemon has died, from the records of its journal. Clients are absent until
    /// they come back, and files have to be opened again. Records that make no sense are counted
    /// and ignored.
    pub fn recover(settings: Settings, records: impl IntoIterator<Item = JournalRecord>) -> Self {
        let mut grants = Self::new(settings);
        for record in records {
            if grants.replay(record).is_none() {
                grants.damaged_records += 1;
            }
        }
        // The journal does not say which of them the other daemon has marked.
        grants.files.values_mut().for_each(|file| file.is_marked = true);
        grants
    }

    /// How many records of the journal made no sense.
    pub fn damaged_records(&self) -> u64 {
        self.damaged_records
    }

    /// `None` if the record makes no sense.
    fn replay(&mut self, record: JournalRecord) -> Option<()> {
        match record {
            JournalRecord::File { file, device, inode, path } => {
                let found = File { device, inode, path, is_journaled: true, ..File::default() };
                self.files.insert(file, found);
                self.changed.insert(file);
            }
            JournalRecord::Forgotten { file } => {
                self.remove_view(file, &Self::EVERYTHING, |_| true);
                self.files.remove(&file)?;
            }
            JournalRecord::Granted { line, process, at, bytes } => {
                let range = self.inside(at, bytes)?;
                self.space.claim(&range);
                self.granted_bytes += bytes;
                let client = self.clients.entry(line).or_default();
                client.process = process;
                client.granted.push(range);
            }
            JournalRecord::Returned { line, at, bytes } => self.replay_returned(line, self.inside(at, bytes)?)?,
            JournalRecord::Filled(fill) => {
                let range = self.inside(fill.part.at, fill.part.bytes)?;
                let position = self.clients.get(&fill.line)?.find(&range)?;
                self.files.get(&fill.file)?;
                self.take_filled(fill.line, position, &range);
                self.apply_fill(&fill);
            }
            JournalRecord::Kept(kept) => self.replay_kept(&kept)?,
            JournalRecord::Drained(part) => {
                self.files.get(&part.file)?;
                let range = part.offset..part.offset + part.bytes;
                self.remove_view(part.file, &range, |extent| extent.piece < part.before);
            }
            JournalRecord::Cut { file, bytes } => {
                self.files.get_mut(&file)?.cut = Some(Cut { bytes, is_running: false });
                self.remove_view(file, &(bytes..NODE_FILE_BYTES_MAX), |_| true);
            }
            JournalRecord::Truncated { file } => self.files.get_mut(&file)?.cut = None,
            JournalRecord::Times { file, accessed_ns, modified_ns } => {
                let file = self.files.get_mut(&file)?;
                file.accessed_ns = accessed_ns.or(file.accessed_ns);
                file.modified_ns = modified_ns.or(file.modified_ns);
            }
            JournalRecord::Settled { file } => {
                let file = self.files.get_mut(&file)?;
                (file.accessed_ns, file.modified_ns) = (None, None);
            }
        }
        Some(())
    }

    /// A range of the reserve.
    fn inside(&self, at: u64, bytes: u64) -> Option<Range<u64>> {
        let end = at.checked_add(bytes)?;
        (bytes > 0 && end <= self.settings.reserve_bytes).then_some(at..end)
    }

    fn replay_returned(&mut self, line: ClientId, range: Range<u64>) -> Option<()> {
        let client = self.clients.get_mut(&line)?;
        let position = client.find(&range)?;
        let granted = client.granted.swap_remove(position);
        for rest in [granted.start..range.start, range.end..granted.end] {
            if !rest.is_empty() {
                client.granted.push(rest);
            }
        }
        for at in [range.start, range.end] {
            if granted.start < at && at < granted.end {
                self.space.divide(at);
            }
        }
        self.granted_bytes -= range.end - range.start;
        self.space.release(&range);
        Some(())
    }

    fn replay_kept(&mut self, kept: &JournalKept) -> Option<()> {
        let range = self.inside(kept.part.at, kept.part.bytes)?;
        let whole = kept.part.offset..kept.part.offset + kept.part.bytes;
        let file = self.files.get_mut(&kept.file)?;
        let is_right = |(offset, bytes): &(u64, u64)| {
            let live = *offset..*offset + *bytes;
            *bytes > 0 && whole.start <= live.start && live.end <= whole.end && file.overlapping(&live).is_empty()
        };
        if self.pieces.contains_key(&kept.piece) || kept.live.is_empty() || !kept.live.iter().all(is_right) {
            return None;
        }
        let extents = kept.live.len() as u32;
        for &(offset, bytes) in &kept.live {
            file.view.insert(offset, Extent { end: offset + bytes, piece: kept.piece, job: None });
        }
        file.dirty.insert((kept.since, kept.piece));
        self.space.claim(&range);
        let (file, part, sum, since) = (kept.file, kept.part, kept.sum, kept.since);
        let piece = Piece { file, client: 0, part, sum, since, extents, idle: extents, jobs: 0, pins: 0 };
        self.pieces.insert(kept.piece, piece);
        self.next_piece = self.next_piece.max(kept.piece + 1);
        self.changed.insert(kept.file);
        Some(())
    }

    /// The files that are known, for a new daemon to open: number, device, number there, path.
    pub fn known_files(&self) -> Vec<(u64, u64, u64, Vec<u8>)> {
        self.files.iter().map(|(id, file)| (*id, file.device, file.inode, file.path.clone())).collect()
    }

    /// The present state as records, with which a half of the journal begins.
    pub fn records(&self) -> Vec<JournalRecord> {
        let mut records = Vec::new();
        for (&id, file) in self.files.iter().filter(|(_, file)| file.is_journaled) {
            let (device, inode, path) = (file.device, file.inode, file.path.clone());
            records.push(JournalRecord::File { file: id, device, inode, path });
            if let Some(cut) = file.cut {
                records.push(JournalRecord::Cut { file: id, bytes: cut.bytes });
            }
            if file.accessed_ns.is_some() || file.modified_ns.is_some() {
                let (accessed_ns, modified_ns) = (file.accessed_ns, file.modified_ns);
                records.push(JournalRecord::Times { file: id, accessed_ns, modified_ns });
            }
        }
        for (&id, piece) in self.pieces.iter().filter(|(_, piece)| piece.extents > 0) {
            let whole = piece.part.offset..piece.part.offset + piece.part.bytes;
            let extents = self.files[&piece.file].overlapping(&whole).into_iter();
            let live = extents.filter(|(_, extent)| extent.piece == id).map(|(start, it)| (start, it.end - start));
            let (file, part, sum, since) = (piece.file, piece.part, piece.sum, piece.since);
            records.push(JournalRecord::Kept(JournalKept { piece: id, since, file, part, sum, live: live.collect() }));
        }
        for (&line, client) in &self.clients {
            let granted = |range: &Range<u64>| {
                let (process, at, bytes) = (client.process, range.start, range.end - range.start);
                JournalRecord::Granted { line, process, at, bytes }
            };
            records.extend(client.granted.iter().map(granted));
        }
        records
    }
}
