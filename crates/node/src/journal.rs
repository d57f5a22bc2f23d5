//! Writes and reads the journal. The formats are in `outcrop_format`.

use std::{fs::File, io, os::unix::fs::FileExt};

use outcrop_format::{JOURNAL_RECORD_BYTES_MAX, JournalHeader, JournalRecord};

/// Room for records in each half, besides what the state takes.
const HALF_BYTES_MIN: u64 = 8 << 20;
/// How much room each piece takes at most, on average.
const PIECE_RECORD_BYTES: u64 = 160;

pub(crate) struct Journal {
    file: File,
    header: JournalHeader,
    half: usize,
    epoch: u64,
    /// Where the next record goes in the half.
    at: u64,
    /// Records before that which are not in the file yet.
    pending: Vec<u8>,
}

/// The length of a journal.
pub(crate) fn journal_bytes(pieces_max: usize) -> (u64, u64) {
    let half = (HALF_BYTES_MIN + pieces_max as u64 * PIECE_RECORD_BYTES).next_multiple_of(4096);
    (half, outcrop_format::JOURNAL_HEADER_BYTES + 2 * half)
}

impl Journal {
    /// Begins a new journal in a file of the right length.
    pub(crate) fn create(file: File, header: JournalHeader) -> io::Result<Self> {
        file.write_all_at(&header.encode(), 0)?;
        let mut journal = Self { file, header, half: 1, epoch: 0, at: 0, pending: Vec::new() };
        journal.begin_half(&[])?;
        journal.next_generation()?;
        Ok(journal)
    }

    /// Opens the journal of a dead daemon. Returns it with its records.
    pub(crate) fn open(file: File) -> io::Result<(Self, Vec<JournalRecord>)> {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 0)?;
        let header = JournalHeader::decode(&bytes).map_err(io::Error::other)?;
        let epochs = JournalHeader::EPOCHS_AT.map(|at| JournalHeader::decode_epoch(&bytes[at as usize..]));
        let newest = (0..2).max_by_key(|half| epochs[*half]).unwrap_or(0);
        let epoch = epochs[newest].ok_or_else(|| io::Error::other("the journal has no valid half"))?;
        let mut journal = Self { file, header, half: newest, epoch, at: 0, pending: Vec::new() };
        let records = journal.read()?;
        Ok((journal, records))
    }

    fn read(&mut self) -> io::Result<Vec<JournalRecord>> {
        let start = self.header.half_at(self.half);
        let mut records = Vec::new();
        let mut window = Vec::new();
        let (mut window_at, mut used) = (0, 0);
        loop {
            if window.len() - used < JOURNAL_RECORD_BYTES_MAX {
                window_at += used as u64;
                let length = (self.header.half_bytes - window_at).min(16 * JOURNAL_RECORD_BYTES_MAX as u64);
                window.resize(length as usize, 0);
                self.file.read_exact_at(&mut window, start + window_at)?;
                used = 0;
            }
            match JournalRecord::decode(self.epoch, &window[used..]) {
                Ok((record, bytes)) => {
                    records.push(record);
                    used += bytes.next_multiple_of(8).min(window.len() - used);
                }
                // The first record that was not written, or not completely.
                Err(_) => break,
            }
        }
        self.at = window_at + used as u64;
        Ok(records)
    }

    /// Another daemon serves the reserve from now on. What clients read before that is not valid
    /// any more.
    pub(crate) fn next_generation(&mut self) -> io::Result<u64> {
        let next = self.generation()?.wrapping_add(1);
        self.publish_failures(0)?;
        self.file.write_all_at(&next.to_le_bytes(), JournalHeader::GENERATION_AT)?;
        Ok(next)
    }

    /// Lets clients see how many drains have failed.
    pub(crate) fn publish_failures(&self, count: u64) -> io::Result<()> {
        self.file.write_all_at(&count.to_le_bytes(), JournalHeader::FAILURES_AT)
    }

    /// Appends a record, which counts after the next `flush`. If the half is full, another one
    /// begins with all records of `state`, which contain this one. Returns whether it did.
    pub(crate) fn append(
        &mut self,
        record: &JournalRecord,
        state: impl FnOnce() -> Vec<JournalRecord>,
    ) -> io::Result<bool> {
        let bytes = record.encode(self.epoch).map_err(io::Error::other)?;
        if self.at + (self.pending.len() + bytes.len()) as u64 > self.header.half_bytes {
            self.begin_half(&state())?;
            return Ok(true);
        }
        self.pending.extend_from_slice(&bytes);
        self.pending.resize(self.pending.len().next_multiple_of(8), 0);
        Ok(false)
    }

    /// Writes what was appended, with one call.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.file.write_all_at(&self.pending, self.header.half_at(self.half) + self.at)?;
            self.at += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// Writes all records to the other half, and then uses that.
    pub(crate) fn begin_half(&mut self, records: &[JournalRecord]) -> io::Result<()> {
        let old = (self.half, self.epoch, self.at);
        (self.half, self.epoch, self.at) = (1 - self.half, self.epoch + 1, 0);
        // What is pending is part of the state.
        let pending = std::mem::take(&mut self.pending);
        let written = self.write_state(records);
        if written.is_err() {
            (self.half, self.epoch, self.at) = old;
            self.pending = pending;
        }
        written
    }

    fn write_state(&mut self, records: &[JournalRecord]) -> io::Result<()> {
        for record in records {
            self.pending.extend_from_slice(&record.encode(self.epoch).map_err(io::Error::other)?);
            self.pending.resize(self.pending.len().next_multiple_of(8), 0);
        }
        if self.pending.len() as u64 > self.header.half_bytes {
            return Err(io::Error::other("the journal is too short for what is cached"));
        }
        self.flush()?;
        let at = JournalHeader::EPOCHS_AT[self.half];
        self.file.write_all_at(&JournalHeader::encode_epoch(self.epoch), at)
    }

    /// How many daemons have served the reserve.
    pub(crate) fn generation(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, JournalHeader::GENERATION_AT)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn header(&self) -> JournalHeader {
        self.header
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}
