//! What drains next, and what happens when it has ended.

use std::ops::Range;

use outcrop_format::{JournalPart, JournalRecord, NODE_FILE_BYTES_MAX, NodeFailure, NodePart};

use crate::{
    event::{Action, Answer, FileId, JobId, PieceSum, Request},
    file::{Extent, Failing, Job},
    grants::Grants,
};

/// The largest number of extents in one drain.
const EXTENTS_MAX: usize = 1024;

impl Grants {
    /// Starts drains: of the file that has waited longest first.
    pub(crate) fn start_drains(&mut self) {
        if !self.is_released() {
            return;
        }
        while self.jobs.len() < self.settings.drains_max {
            let Some(run) = self.queue.iter().find_map(|(_, file)| self.find_run(*file).map(|run| (*file, run))) else {
                return;
            };
            self.start_drain(run.0, run.1);
        }
    }

    /// The longest run around the oldest extent of a file that may drain now.
    fn find_run(&self, id: FileId) -> Option<Vec<(u64, Extent)>> {
        let file = self.files.get(&id)?;
        let is_free = |start: u64, extent: &Extent| {
            extent.job.is_none()
                && !file.jobs.iter().any(|job| {
                    let range = &self.jobs[job].range;
                    start < range.end && range.start < extent.end
                })
        };
        let oldest = file.dirty.iter().find_map(|(_, piece)| {
            let part = self.pieces[piece].part;
            let own = file.overlapping(&(part.offset..part.offset + part.bytes));
            own.into_iter().find(|(start, extent)| extent.piece == *piece && is_free(*start, extent))
        })?;
        let most = self.settings.drain_bytes_max;
        let (mut run, mut bytes) = (vec![oldest], oldest.1.end - oldest.0);
        let mut first = oldest.0;
        for (&start, extent) in file.view.range(..oldest.0).rev() {
            let is_next = extent.end == first && is_free(start, extent) && run.len() < EXTENTS_MAX / 2;
            if !is_next || bytes + extent.end - start > most / 2 {
                break;
            }
            run.push((start, *extent));
            (first, bytes) = (start, bytes + extent.end - start);
        }
        run.reverse();
        let mut end = oldest.1.end;
        for (&start, extent) in file.view.range(end..) {
            let is_next = start == end && is_free(start, extent) && run.len() < EXTENTS_MAX;
            if !is_next || bytes + extent.end - start > most {
                break;
            }
            run.push((start, *extent));
            (end, bytes) = (extent.end, bytes + extent.end - start);
        }
        Some(run)
    }

    fn start_drain(&mut self, id: FileId, run: Vec<(u64, Extent)>) {
        let job = self.next_job;
        self.next_job += 1;
        let range = run[0].0..run[run.len() - 1].1.end;
        let Some(file) = self.files.get_mut(&id) else { return };
        let (mut parts, mut sums, mut pieces): (Vec<NodePart>, Vec<PieceSum>, Vec<u64>) = Default::default();
        let mut since = u64::MAX;
        for (start, extent) in run {
            file.view.insert(start, Extent { job: Some(job), ..extent });
            let Some(piece) = self.pieces.get_mut(&extent.piece) else { continue };
            since = since.min(piece.since);
            piece.idle -= 1;
            if piece.idle == 0 {
                file.dirty.remove(&(piece.since, extent.piece));
            }
            let at = piece.part.at + start - piece.part.offset;
            parts.push(NodePart { offset: start, at, bytes: extent.end - start });
            if !pieces.contains(&extent.piece) {
                piece.jobs += 1;
                pieces.push(extent.piece);
                let NodePart { offset, at, bytes } = piece.part;
                sums.push(PieceSum { offset, at, bytes, sum: piece.sum });
            }
        }
        file.jobs.push(job);
        self.jobs.insert(job, Job { file: id, range, before: self.next_piece, since, pieces });
        self.actions.push_back(Action::Drain { job, file: id, parts, pieces: sums });
        // Its key in the queue may be another one now.
        let file = &self.files[&id];
        let (old, new) = (file.queued, file.dirty.first().map(|(since, _)| *since).filter(|_| file.may_drain()));
        old.into_iter().for_each(|old| {
            self.queue.remove(&(old, id));
        });
        new.into_iter().for_each(|new| {
            self.queue.insert((new, id));
        });
        self.files.get_mut(&id).into_iter().for_each(|file| file.queued = new);
    }

    pub(crate) fn drained(&mut self, id: JobId, outcome: Result<(), u32>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(file) = self.files.get_mut(&job.file) {
            file.jobs.retain(|other| *other != id);
        }
        match outcome {
            Ok(()) => self.drain_succeeded(id, &job),
            Err(errno) => self.drain_failed(id, &job, errno),
        }
        for piece in job.pieces {
            self.pieces.get_mut(&piece).into_iter().for_each(|it| it.jobs -= 1);
            self.release_piece(piece);
        }
        self.changed.insert(job.file);
    }

    fn drain_succeeded(&mut self, id: JobId, job: &Job) {
        for piece in &job.pieces {
            let Some((client, bytes)) = self.pieces.get(piece).map(|it| (it.client, it.part.bytes)) else { continue };
            self.clients.get_mut(&client).into_iter().for_each(|it| it.drained_total_bytes += bytes);
        }
        self.drained_total_bytes += job.range.end - job.range.start;
        self.remove_view(job.file, &job.range, |extent| extent.job == Some(id));
        if let Some(file) = self.files.get_mut(&job.file)
            && file.failing.is_none()
        {
            file.failure.errno = 0;
        }
        let (file, before) = (job.file, job.before);
        let Range { start, end } = job.range;
        self.journal(JournalRecord::Drained(JournalPart { file, offset: start, bytes: end - start, before }));
    }

    /// The bytes stay, and who waits for the file is told.
    fn drain_failed(&mut self, id: JobId, job: &Job, errno: u32) {
        let Some(file) = self.files.get_mut(&job.file) else { return };
        for (start, extent) in file.overlapping(&job.range) {
            let Some(piece) = self.pieces.get_mut(&extent.piece) else { continue };
            if extent.job == Some(id) {
                file.view.insert(start, Extent { job: None, ..extent });
                piece.idle += 1;
            } else {
                // What it has replaced is not in the file: who waits for that waits for this.
                file.dirty.remove(&(piece.since, extent.piece));
                piece.since = piece.since.min(job.since);
            }
            file.dirty.insert((piece.since, extent.piece));
        }
        // Of several drains that were under way, the first failure counts; clients hear of it once.
        let is_known = file.failing.is_some_and(|failing| failing.errno == errno);
        let [first, most] = self.settings.retry_ns;
        let pause_ns = match file.failing {
            Some(failing) => failing.pause_ns,
            None if file.failure.errno != 0 => most.min(first << file.failure.serial.min(16)),
            None => first,
        };
        file.failing.into_iter().for_each(|old| {
            self.retries.remove(&(old.retry_at, job.file));
        });
        let retry_at = self.now.plus(pause_ns);
        file.failing = Some(Failing { errno, retry_at, pause_ns });
        self.retries.insert((retry_at, job.file));
        if !is_known {
            file.failure = NodeFailure { serial: file.failure.serial + 1, errno };
            self.failures += 1;
        }
        for client in file.waiting.clone() {
            let pending = self.clients.get(&client).and_then(|it| it.pending.as_ref());
            let is_told = pending.is_some_and(|it| matches!(it.request, Request::Drain { .. } | Request::Sync { .. }));
            if is_told {
                self.files.get_mut(&job.file).into_iter().for_each(|it| it.waiting.retain(|other| *other != client));
                self.answer(client, Answer::Failed(errno));
            }
        }
    }

    /// Cuts a file off when nothing beyond its new end is being written.
    pub(crate) fn start_truncating(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.is_reached && file.settling.is_none()) else {
            return;
        };
        let Some(cut) = file.cut.as_mut().filter(|cut| !cut.is_running) else { return };
        if file.jobs.iter().all(|job| self.jobs[job].range.end <= cut.bytes) {
            cut.is_running = true;
            self.actions.push_back(Action::Truncate { file: id, bytes: cut.bytes });
        }
    }

    pub(crate) fn truncated(&mut self, id: FileId, outcome: Result<(), u32>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.cut.take_if(|cut| cut.is_running).is_none() {
            return;
        }
        let waiting = file.waiting.clone();
        self.journal(JournalRecord::Truncated { file: id });
        for client in waiting {
            let pending = self.clients.get(&client).and_then(|it| it.pending.as_ref());
            if pending.is_some_and(|it| it.is_running && matches!(it.request, Request::SetBytes { .. })) {
                self.files.get_mut(&id).into_iter().for_each(|it| it.waiting.retain(|other| *other != client));
                self.answer(client, outcome.map_or_else(Answer::Failed, |()| Answer::Done));
            }
        }
        self.changed.insert(id);
    }

    /// Sets the times of a file of which everything is drained.
    pub(crate) fn start_settling(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let is_time = file.is_clean() && file.cut.is_none() && file.settling.is_none() && file.is_reached;
        if is_time && file.needs_settling() {
            let times = (file.accessed_ns, file.modified_ns);
            file.settling = Some(times);
            // A mark that comes while it settles is one for what is written meanwhile.
            let is_marked = std::mem::take(&mut file.is_marked);
            let (accessed_ns, modified_ns) = times;
            self.actions.push_back(Action::Settle { file: id, accessed_ns, modified_ns, is_marked });
        }
    }

    pub(crate) fn settled(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let Some((accessed, modified)) = file.settling.take() else { return };
        // What was asked for in the meantime is still to be done.
        file.accessed_ns = file.accessed_ns.filter(|now| Some(*now) != accessed);
        file.modified_ns = file.modified_ns.filter(|now| Some(*now) != modified);
        if !file.is_clean() && !file.is_marked && file.mark_at.is_none() {
            let at = self.now.plus(self.settings.mark_after_ns);
            file.mark_at = Some(at);
            self.marks.insert((at, id));
        }
        if file.is_journaled {
            self.journal(JournalRecord::Settled { file: id });
        }
        self.changed.insert(id);
    }

    /// The end of every file.
    pub(crate) const EVERYTHING: Range<u64> = 0..NODE_FILE_BYTES_MAX;
}
