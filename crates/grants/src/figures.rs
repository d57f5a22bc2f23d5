//! What goes on, as numbers; and checks of what must always hold.

use std::collections::BTreeMap;

use crate::{
    event::{ClientId, FileId},
    grants::Grants,
};

/// The numbers of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientFigures {
    /// Its process.
    pub process: u32,
    /// Granted and not filled.
    pub granted_bytes: u64,
    /// Filled and not drained.
    pub filled_bytes: u64,
    /// Being drained.
    pub draining_bytes: u64,
    /// Filled since it has connected.
    pub filled_total_bytes: u64,
    /// Drained since it has connected.
    pub drained_total_bytes: u64,
    /// Whether it waits for memory.
    pub is_waiting: bool,
}

/// The numbers of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileFigures {
    /// Its path.
    pub path: Vec<u8>,
    /// Filled and not drained.
    pub filled_bytes: u64,
    /// The system's error number, if it cannot be drained.
    pub errno: Option<u32>,
    /// How often draining has failed.
    pub failures: u64,
}

/// All numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figures {
    /// The clients.
    pub clients: BTreeMap<ClientId, ClientFigures>,
    /// The files of which something is cached, or that cannot be drained.
    pub files: BTreeMap<FileId, FileFigures>,
    /// In whole pages.
    pub used_bytes: u64,
    /// What the system has provided.
    pub touched_bytes: u64,
    /// The most that may be used.
    pub limit_bytes: u64,
    /// Filled and not drained.
    pub filled_bytes: u64,
    /// Being drained.
    pub draining_bytes: u64,
    /// Drained since the start.
    pub drained_total_bytes: u64,
}

impl Grants {
    /// The present numbers.
    pub fn figures(&self) -> Figures {
        let mut clients: BTreeMap<ClientId, ClientFigures> = BTreeMap::new();
        for (&id, client) in &self.clients {
            let (process, granted_bytes) = (client.process, client.granted_bytes());
            let (filled_total_bytes, drained_total_bytes) = (client.filled_total_bytes, client.drained_total_bytes);
            let is_waiting = client.is_asking();
            let figures = ClientFigures {
                process,
                granted_bytes,
                filled_total_bytes,
                drained_total_bytes,
                is_waiting,
                ..ClientFigures::default()
            };
            clients.insert(id, figures);
        }
        let (mut files, mut filled_bytes, mut draining_bytes) = (BTreeMap::new(), 0, 0);
        for (&id, file) in &self.files {
            let mut figures = FileFigures { path: file.path.clone(), ..FileFigures::default() };
            for (start, extent) in &file.view {
                let bytes = extent.end - start;
                figures.filled_bytes += bytes;
                filled_bytes += bytes;
                let client = self.pieces.get(&extent.piece).and_then(|piece| clients.get_mut(&piece.client));
                let is_draining = extent.job.is_some();
                draining_bytes += if is_draining { bytes } else { 0 };
                if let Some(client) = client {
                    client.filled_bytes += bytes;
                    client.draining_bytes += if is_draining { bytes } else { 0 };
                }
            }
            figures.errno = file.failing.map(|failing| failing.errno);
            figures.failures = file.failure.serial;
            if figures.filled_bytes > 0 || figures.errno.is_some() {
                files.insert(id, figures);
            }
        }
        Figures {
            clients,
            files,
            used_bytes: self.space.used_bytes(),
            touched_bytes: self.space.end(),
            limit_bytes: self.limit_bytes,
            filled_bytes,
            draining_bytes,
            drained_total_bytes: self.drained_total_bytes,
        }
    }

    /// Checks what must hold after every event.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        self.check_memory()?;
        for (&id, file) in &self.files {
            let mut end = 0;
            for (&start, extent) in &file.view {
                if start < end || extent.end <= start {
                    return Err(format!("file {id}: extents of the view overlap at {start}"));
                }
                end = extent.end;
                let piece = self.pieces.get(&extent.piece).ok_or(format!("file {id}: a piece is gone"))?;
                if start < piece.part.offset || extent.end > piece.part.offset + piece.part.bytes || piece.file != id {
                    return Err(format!("file {id}: an extent is outside of its piece"));
                }
            }
            for (nth, job) in file.jobs.iter().enumerate() {
                let range = &self.jobs[job].range;
                let overlaps = |other: &u64| {
                    let other = &self.jobs[other].range;
                    range.start < other.end && other.start < range.end
                };
                if file.jobs[nth + 1..].iter().any(overlaps) {
                    return Err(format!("file {id}: two drains overlap"));
                }
                if file.cut.is_some_and(|cut| cut.is_running && range.end > cut.bytes) {
                    return Err(format!("file {id}: it is cut off while what is beyond is written"));
                }
            }
        }
        self.check_counts()
    }

    /// No byte of the reserve has two owners, and the space knows all of them.
    fn check_memory(&self) -> Result<(), String> {
        let granted = self.clients.values().flat_map(|client| client.granted.iter().cloned());
        let pieces = self.pieces.values().map(|piece| piece.memory());
        let mut owned: Vec<_> = granted.clone().chain(pieces).collect();
        owned.sort_by_key(|range| (range.start, range.end));
        if let Some(pair) = owned.windows(2).find(|pair| pair[0].end > pair[1].start) {
            return Err(format!("{:?} and {:?} of the reserve overlap", pair[0], pair[1]));
        }
        let page = crate::PAGE_BYTES;
        let (mut used, mut end) = (0, 0);
        for range in &owned {
            let (from, to) = ((range.start / page * page).max(end), range.end.next_multiple_of(page));
            used += to.saturating_sub(from);
            end = end.max(to);
        }
        if used != self.space.used_bytes() {
            return Err(format!("{used} bytes have owners, and {} are not free", self.space.used_bytes()));
        }
        if end > self.settings.reserve_bytes {
            return Err("memory beyond the reserve is in use".to_owned());
        }
        let total: u64 = granted.map(|range| range.end - range.start).sum();
        if total != self.granted_bytes {
            return Err(format!("{total} bytes are granted, and {} are counted", self.granted_bytes));
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), String> {
        let mut counts: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for extent in self.files.values().flat_map(|file| file.view.values()) {
            let (extents, idle) = counts.entry(extent.piece).or_default();
            *extents += 1;
            *idle += u32::from(extent.job.is_none());
        }
        for (&id, piece) in &self.pieces {
            let file = self.files.get(&piece.file).ok_or(format!("the file of piece {id} is gone"))?;
            let (extents, idle) = counts.get(&id).copied().unwrap_or_default();
            if (extents, idle) != (piece.extents, piece.idle) {
                return Err(format!("piece {id} counts {}/{} extents of {extents}/{idle}", piece.extents, piece.idle));
            }
            if !piece.is_needed() {
                return Err(format!("piece {id} keeps memory that nobody needs"));
            }
            if file.dirty.contains(&(piece.since, id)) != (idle > 0) {
                return Err(format!("piece {id} with {idle} extents to drain is queued wrongly"));
            }
        }
        let mut filled: BTreeMap<ClientId, u64> = BTreeMap::new();
        for piece in self.pieces.values() {
            *filled.entry(piece.client).or_default() += piece.part.bytes;
        }
        for (id, client) in &self.clients {
            let bytes = filled.get(id).copied().unwrap_or_default();
            if bytes != client.filled_bytes {
                return Err(format!("client {id} has {bytes} bytes, and {} are counted", client.filled_bytes));
            }
        }
        let pinned: usize = self.clients.values().map(|client| client.pinned.len()).sum();
        let pins: usize = self.pieces.values().map(|piece| piece.pins as usize).sum();
        if pinned != pins {
            return Err(format!("{pinned} pieces are being read, and {pins} are kept for that"));
        }
        Ok(())
    }
}
