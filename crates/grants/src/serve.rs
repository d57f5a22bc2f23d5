//! Requests of clients.

use std::ops::Range;

use outcrop_format::{
    GRANT_BYTES_MAX, JournalFill, JournalRecord, NODE_FILE_BYTES_MAX, NODE_RANGES_MAX, NodeFill, NodePart,
    PIECE_BYTES_MAX, node_pieces,
};

use crate::{
    client::Pending,
    event::{Action, Answer, ClientId, FileId, PieceId, Request},
    file::{Cut, Extent, Piece},
    grants::Grants,
    space::PAGE_BYTES,
};

/// Less than this is granted only if there is no hope for more.
const GRANT_BYTES_MIN: u64 = 256 << 10;
/// What clients may hold for writes that they have not begun: this fraction of all.
const AHEAD_SHARE: u64 = 4;
/// How many separate grants a client may hold before it gets none ahead.
const GRANTS_AHEAD_MAX: usize = 4;

/// EIO, EBADF.
const NO_SUCH_FILE: u32 = 9;
const DAMAGED: u32 = 5;

impl Grants {
    pub(crate) fn requested(&mut self, id: ClientId, request: Request) {
        let (mark, now) = (self.next_piece, self.arrivals);
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.pending.is_some() {
            return self.drop_client(id, "it asked again before it had an answer".to_owned());
        }
        let file = request.file();
        let is_all = request == Request::DrainAll;
        let ask = matches!(request, Request::Ask { .. }).then(|| self.virtual_time.max(client.served_to));
        client.pending = Some(Pending { request, mark, is_running: false, tag: ask.map(|tag| (tag, now)) });
        self.arrivals += 1;
        if file.is_some_and(|file| !self.files.contains_key(&file)) {
            return self.answer(id, Answer::Failed(NO_SUCH_FILE));
        }
        if let Some(tag) = ask {
            self.asks.insert((tag, now, id));
        } else if is_all {
            self.draining_all.push(id);
            let failing: Vec<FileId> =
                self.files.iter().filter(|(_, it)| it.failing.is_some()).map(|it| *it.0).collect();
            failing.into_iter().for_each(|file| self.try_again(file));
        } else if let Some(file) = file {
            self.begin(id, file);
            if !self.try_request(id) {
                self.files.get_mut(&file).into_iter().for_each(|it| it.waiting.push(id));
                self.press();
            }
            self.changed.insert(file);
        }
    }

    /// What a request does once, when it arrives.
    fn begin(&mut self, id: ClientId, file: FileId) {
        let Some(pending) = self.clients.get(&id).and_then(|it| it.pending.as_ref()) else { return };
        if matches!(pending.request, Request::Drain { .. } | Request::Sync { .. }) {
            self.try_again(file);
        }
    }

    /// Answers the request of a client, if that is possible now. Returns whether it was.
    pub(crate) fn try_request(&mut self, id: ClientId) -> bool {
        let Some(pending) = self.clients.get(&id).and_then(|it| it.pending.clone()) else { return true };
        let Some(file) = pending.request.file() else { return false };
        let Some(found) = self.files.get(&file) else {
            self.answer(id, Answer::Failed(NO_SUCH_FILE));
            return true;
        };
        // Nothing overtakes a change of the length.
        let is_cut = found.cut.is_some();
        match pending.request {
            Request::Ask { .. } | Request::DrainAll => false,
            Request::Length { .. } => {
                let (end, is_clean) = (found.end(), found.is_settled());
                self.answer(id, Answer::Length { end, is_clean });
                true
            }
            _ if is_cut && !pending.is_running => false,
            Request::Fill(fill) => self.fill(id, fill),
            Request::Read { offset, bytes, .. } => {
                self.read(id, file, offset..offset + bytes);
                true
            }
            Request::SetBytes { bytes, .. } => self.set_bytes(id, file, bytes, pending.is_running),
            Request::SetTimes { accessed_ns, modified_ns, .. } => {
                self.set_times(id, file, accessed_ns, modified_ns, pending.is_running)
            }
            Request::Drain { .. } | Request::Sync { .. } => self.wait_for_drain(id, file, &pending),
            Request::Discard { .. } => {
                self.discard(file);
                self.answer(id, Answer::Done);
                true
            }
        }
    }

    fn wait_for_drain(&mut self, id: ClientId, file: FileId, pending: &Pending) -> bool {
        if pending.is_running {
            return false;
        }
        let found = &self.files[&file];
        if !found.is_reached
            && let Some(failing) = found.failing
        {
            self.answer(id, Answer::Failed(failing.errno));
            return true;
        }
        if self.is_waiting_for(file, pending.mark) {
            return false;
        }
        if matches!(pending.request, Request::Drain { .. }) {
            self.answer(id, Answer::Done);
            return true;
        }
        self.clients.get_mut(&id).and_then(|it| it.pending.as_mut()).into_iter().for_each(|it| it.is_running = true);
        self.actions.push_back(Action::Sync { file, client: id });
        // The answer comes when that has ended; nothing of the file has to change for it.
        true
    }

    /// Whether something that was written before `mark` is not in the file yet.
    pub(crate) fn is_waiting_for(&self, file: FileId, mark: PieceId) -> bool {
        let Some(found) = self.files.get(&file) else { return false };
        let is_dirty = found.dirty.first().is_some_and(|(since, _)| *since < mark);
        let is_moving = found.jobs.iter().any(|job| self.jobs[job].since < mark);
        let is_unsettled = found.is_clean() && !found.is_settled();
        is_dirty || is_moving || found.cut.is_some() || is_unsettled
    }

    fn set_bytes(&mut self, id: ClientId, file: FileId, bytes: u64, is_running: bool) -> bool {
        if is_running {
            return false;
        }
        self.clients.get_mut(&id).and_then(|it| it.pending.as_mut()).into_iter().for_each(|it| it.is_running = true);
        self.journal_file(file);
        self.journal(JournalRecord::Cut { file, bytes });
        self.remove_view(file, &(bytes..NODE_FILE_BYTES_MAX), |_| true);
        self.files.get_mut(&file).into_iter().for_each(|it| it.cut = Some(Cut { bytes, is_running: false }));
        false
    }

    fn set_times(
        &mut self,
        id: ClientId,
        file: FileId,
        accessed_ns: Option<i64>,
        modified_ns: Option<i64>,
        is_running: bool,
    ) -> bool {
        if !is_running {
            self.journal_file(file);
            self.journal(JournalRecord::Times { file, accessed_ns, modified_ns });
            self.clients
                .get_mut(&id)
                .and_then(|it| it.pending.as_mut())
                .into_iter()
                .for_each(|it| it.is_running = true);
            let Some(found) = self.files.get_mut(&file) else { return true };
            found.accessed_ns = accessed_ns.or(found.accessed_ns);
            found.modified_ns = modified_ns.or(found.modified_ns);
            self.start_settling(file);
        }
        // They are set when everything is drained. If it is, wait for that.
        let found = &self.files[&file];
        if found.is_clean() && !found.is_settled() && found.is_reached {
            return false;
        }
        self.answer(id, Answer::Done);
        true
    }

    fn discard(&mut self, file: FileId) {
        let found = &self.files[&file];
        let before = self.next_piece;
        let (offset, bytes) = (0, found.end());
        if found.jobs.is_empty() && bytes > 0 {
            self.remove_view(file, &(offset..bytes), |_| true);
            self.journal(JournalRecord::Drained(outcrop_format::JournalPart { file, offset, bytes, before }));
        }
        self.try_again(file);
    }

    fn read(&mut self, id: ClientId, file: FileId, range: Range<u64>) {
        let end = self.files[&file].end();
        let mut parts = Vec::new();
        let mut pinned = Vec::new();
        let mut known_to = range.end;
        for (start, extent) in self.files[&file].overlapping(&range) {
            if parts.len() == NODE_RANGES_MAX {
                known_to = start;
                break;
            }
            let Some(piece) = self.pieces.get_mut(&extent.piece) else { continue };
            let (start, end) = (start.max(range.start), extent.end.min(range.end));
            parts.push(NodePart { offset: start, at: piece.part.at + start - piece.part.offset, bytes: end - start });
            piece.pins += 1;
            pinned.push(extent.piece);
        }
        self.answer(id, Answer::Cached { end, known_to, parts });
        // Only now: an earlier answer that was not released is released by this request.
        let Some(client) = self.clients.get_mut(&id) else { return };
        let earlier = std::mem::replace(&mut client.pinned, pinned);
        for piece in earlier {
            self.pieces.get_mut(&piece).into_iter().for_each(|it| it.pins -= 1);
            self.release_piece(piece);
        }
    }

    fn fill(&mut self, id: ClientId, fill: NodeFill) -> bool {
        let range = fill.part.at..fill.part.at.saturating_add(fill.part.bytes);
        let Some(position) = self.clients[&id].find(&range) else {
            self.drop_client(id, format!("it filled memory that it does not have: {range:?}"));
            return true;
        };
        let is_congruent = fill.part.at % PAGE_BYTES == fill.part.offset % PAGE_BYTES;
        let is_right = (1..=GRANT_BYTES_MAX).contains(&fill.part.bytes)
            && is_congruent
            && fill.sums.len() as u64 == node_pieces(fill.part.offset, fill.part.bytes);
        if !is_right {
            self.drop_client(id, "it filled memory in a way that cannot be drained".to_owned());
            return true;
        }
        if self.pieces.len() + fill.sums.len() > self.settings.pieces_max && !self.pieces.is_empty() {
            if !self.stalled.contains(&id) {
                self.stalled.push_back(id);
            }
            return false;
        }
        self.take_filled(id, position, &range);
        self.journal_file(fill.file);
        let (piece, line, modified_ns) = (self.next_piece, id, fill.modified_ns);
        let record = JournalFill { piece, file: fill.file, part: fill.part, modified_ns, line, sums: fill.sums };
        self.apply_fill(&record);
        self.journal(JournalRecord::Filled(record));
        self.hold();
        let client = self.clients.get_mut(&id).expect("it has just been found");
        client.filled_total_bytes += fill.part.bytes;
        let ahead = self.ahead(id, fill.ask_bytes);
        self.answer(id, Answer::Granted(ahead));
        true
    }

    /// Takes what was filled out of a grant. What lies before it is free: clients fill upwards.
    pub(crate) fn take_filled(&mut self, id: ClientId, position: usize, range: &Range<u64>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let granted = client.granted.swap_remove(position);
        if range.end < granted.end {
            client.granted.push(range.end..granted.end);
            self.space.divide(range.end);
        }
        self.granted_bytes -= granted.end.min(range.end) - granted.start;
        if granted.start < range.start {
            self.space.divide(range.start);
            self.space.release(&(granted.start..range.start));
        }
    }

    /// The view of a file after a fill.
    pub(crate) fn apply_fill(&mut self, fill: &JournalFill) {
        let (start, end) = (fill.part.offset, fill.part.offset + fill.part.bytes);
        let (mut at, mut offset, mut id) = (fill.part.at, start, fill.piece);
        for &sum in &fill.sums {
            let to = ((offset / PIECE_BYTES_MAX + 1) * PIECE_BYTES_MAX).min(end);
            let part = NodePart { offset, at, bytes: to - offset };
            if to < end {
                self.space.divide(at + part.bytes);
            }
            let replaced = self.remove_view(fill.file, &(offset..to), |_| true);
            let since = replaced.unwrap_or(id).min(id);
            let (file, client) = (fill.file, fill.line);
            let piece = Piece { file, client, part, sum, since, extents: 1, idle: 1, jobs: 0, pins: 0 };
            self.pieces.insert(id, piece);
            if let Some(client) = self.clients.get_mut(&client) {
                client.filled_bytes += part.bytes;
            }
            if let Some(file) = self.files.get_mut(&fill.file) {
                file.view.insert(offset, Extent { end: to, piece: id, job: None });
                file.dirty.insert((since, id));
            }
            (at, offset, id) = (at + part.bytes, to, id + 1);
        }
        self.next_piece = self.next_piece.max(id);
        let mark_at = self.now.plus(self.settings.mark_after_ns);
        if let Some(file) = self.files.get_mut(&fill.file) {
            file.modified_ns = Some(fill.modified_ns);
            if !file.is_marked && file.mark_at.is_none() {
                file.mark_at = Some(mark_at);
                self.marks.insert((mark_at, fill.file));
            }
        }
        self.changed.insert(fill.file);
    }

    /// Memory for the next write of a client, if there is plenty.
    fn ahead(&mut self, id: ClientId, bytes: u64) -> Range<u64> {
        let most = (self.limit_bytes / AHEAD_SHARE).saturating_sub(self.granted_bytes);
        let free = self.limit_bytes.saturating_sub(self.space.used_bytes()) / 2;
        let wanted = bytes.min(GRANT_BYTES_MAX).next_multiple_of(PAGE_BYTES);
        let bytes = wanted.min(most).min(free) / PAGE_BYTES * PAGE_BYTES;
        let is_apt = bytes > 0 && self.asks.is_empty() && self.clients[&id].granted.len() < GRANTS_AHEAD_MAX;
        let start = self.virtual_time.max(self.clients[&id].served_to);
        match is_apt.then(|| self.space.take(bytes)).flatten() {
            Some(range) => {
                self.virtual_time = start;
                self.grant(id, start, range.clone());
                range
            }
            None => 0..0,
        }
    }

    fn grant(&mut self, id: ClientId, start: u64, range: Range<u64>) {
        let bytes = range.end - range.start;
        let client = self.clients.get_mut(&id).expect("only clients get memory");
        client.served_to = start + bytes;
        client.granted_total_bytes += bytes;
        client.granted.push(range.clone());
        self.granted_bytes += bytes;
        let process = client.process;
        self.journal(JournalRecord::Granted { line: id, process, at: range.start, bytes });
    }

    /// Grants memory to those who wait, the one that has got least first. While memory is short,
    /// nobody fills more than his share of it: others find room when they come, and as what is
    /// filled is drained in its order, all drain equally fast.
    pub(crate) fn serve_asks(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        let is_hopeful = !self.jobs.is_empty() || !self.queue.is_empty();
        let active = self.clients.values().filter(|it| it.filled_bytes > 0 || it.is_asking()).count() as u64;
        let share = self.limit_bytes / active.max(1);
        for (start, _, id) in self.asks.clone() {
            let client = &self.clients[&id];
            let Some(Request::Ask { bytes, .. }) = client.pending.as_ref().map(|it| &it.request) else { continue };
            let needed = (*bytes).clamp(1, GRANT_BYTES_MAX).next_multiple_of(PAGE_BYTES);
            let room = self.limit_bytes.saturating_sub(self.space.used_bytes());
            let own = share.saturating_sub(client.filled_bytes + client.granted_bytes());
            let is_short = room < self.limit_bytes / 2;
            let most = if is_short && is_hopeful { room.min(own) } else { room };
            let wanted = needed.min(most / PAGE_BYTES * PAGE_BYTES);
            let is_little = wanted < needed.min(GRANT_BYTES_MIN).min(share / 2);
            if wanted == 0 || (is_little && is_hopeful) {
                continue;
            }
            let Some(range) = self.space.take(wanted) else { break };
            self.virtual_time = self.virtual_time.max(start);
            self.grant(id, start, range.clone());
            self.answer(id, Answer::Granted(range));
        }
        self.fail_hopeless();
    }

    /// If nothing can ever free memory because files cannot be drained, who waits is told.
    fn fail_hopeless(&mut self) {
        let room = self.limit_bytes.saturating_sub(self.space.used_bytes());
        let is_full = room < PAGE_BYTES || self.space.end() >= self.settings.reserve_bytes;
        if self.asks.is_empty() || !is_full {
            return;
        }
        let may_change = !self.jobs.is_empty()
            || !self.queue.is_empty()
            || self.pieces.values().any(|piece| piece.pins > 0)
            || self.files.values().any(|file| file.cut.is_some() || file.settling.is_some());
        if may_change {
            return;
        }
        let Some(errno) = self.files.values().find_map(|file| file.failing.map(|it| it.errno)) else { return };
        for (_, _, id) in self.asks.clone() {
            let file = self.clients[&id].pending.as_ref().and_then(|it| it.request.file());
            let own = file.and_then(|file| self.files.get(&file)?.failing).map(|it| it.errno);
            self.answer(id, Answer::Failed(own.unwrap_or(errno)));
        }
    }

    /// Fills that waited because there were too many pieces.
    pub(crate) fn serve_stalled(&mut self) {
        while let Some(id) = self.stalled.pop_front() {
            let file = self.clients.get(&id).and_then(|it| it.pending.as_ref()).and_then(|it| it.request.file());
            let before = self.stalled.len();
            if !self.try_request(id) {
                // It is the first one again.
                self.stalled.truncate(before);
                self.stalled.push_front(id);
                return;
            }
            file.and_then(|file| self.files.get_mut(&file)).into_iter().for_each(|it| it.waiting.retain(|x| *x != id));
        }
    }

    /// Answers who waits for all files.
    pub(crate) fn serve_draining_all(&mut self) {
        for id in self.draining_all.clone() {
            let Some(pending) = self.clients.get(&id).and_then(|it| it.pending.clone()) else { continue };
            let waited: Vec<_> =
                self.files.iter().filter(|(file, _)| self.is_waiting_for(**file, pending.mark)).collect();
            if waited.iter().any(|(_, file)| file.failing.is_none() || !file.jobs.is_empty()) {
                continue;
            }
            let errno = waited.first().map(|(_, file)| file.failing.map_or(DAMAGED, |it| it.errno));
            self.draining_all.retain(|other| *other != id);
            self.answer(id, errno.map_or(Answer::Done, Answer::Failed));
        }
    }
}
