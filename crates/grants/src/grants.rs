//! The state machine: its parts, and what happens after each event.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use outcrop_format::{JournalRecord, NodeFailure};

use crate::{
    client::Client,
    event::{Action, Answer, ClientId, Event, FileId, JobId, PieceId, Request, Timestamp},
    file::{Extent, Failing, File, Job, Piece},
    hold::{Hold, HoldSettings},
    space::{PAGE_BYTES, Space},
};

/// How the state machine behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most memory that is in use at once.
    pub limit_bytes: u64,
    /// The length of the reserve.
    pub reserve_bytes: u64,
    /// How many drains are under way at once.
    pub drains_max: usize,
    /// How many pieces there may be.
    pub pieces_max: usize,
    /// The longest drain.
    pub drain_bytes_max: u64,
    /// A file that is not drained after this time is marked.
    pub mark_after_ns: u64,
    /// The pause before the first repetition of a drain that failed. It doubles, up to the second.
    pub retry_ns: [u64; 2],
    /// How long draining waits while programs write.
    pub hold: HoldSettings,
}

impl Settings {
    /// The usual settings for a reserve of this length.
    pub fn new(reserve_bytes: u64) -> Self {
        Self {
            limit_bytes: reserve_bytes,
            reserve_bytes,
            drains_max: 2,
            pieces_max: ((reserve_bytes / PAGE_BYTES) as usize * 2).clamp(1 << 12, 1 << 22),
            drain_bytes_max: 16 << 20,
            mark_after_ns: 100_000_000,
            retry_ns: [1_000_000_000, 30_000_000_000],
            hold: HoldSettings::default(),
        }
    }
}

/// Decides who gets memory of the node, what drains next, and what is reported.
#[derive(Debug, Clone)]
pub struct Grants {
    pub(crate) settings: Settings,
    pub(crate) now: Timestamp,
    pub(crate) limit_bytes: u64,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) files: BTreeMap<FileId, File>,
    pub(crate) pieces: BTreeMap<PieceId, Piece>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) space: Space,
    pub(crate) next_piece: PieceId,
    pub(crate) next_job: JobId,
    /// Files with something to drain, the one that has waited longest first.
    pub(crate) queue: BTreeSet<(PieceId, FileId)>,
    pub(crate) hold: Hold,
    /// Clients that wait for memory, by virtual time and arrival.
    pub(crate) asks: BTreeSet<(u64, u64, ClientId)>,
    pub(crate) virtual_time: u64,
    pub(crate) arrivals: u64,
    pub(crate) granted_bytes: u64,
    /// Clients whose fills wait because there are too many pieces.
    pub(crate) stalled: VecDeque<ClientId>,
    /// Clients that wait for all files.
    pub(crate) draining_all: Vec<ClientId>,
    /// When files are marked, and when drains are tried again.
    pub(crate) marks: BTreeSet<(Timestamp, FileId)>,
    pub(crate) retries: BTreeSet<(Timestamp, FileId)>,
    /// Files whose state has changed.
    pub(crate) changed: BTreeSet<FileId>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) drained_total_bytes: u64,
    /// How often a file got a new failure.
    pub(crate) failures: u64,
    /// Records of the journal that made no sense.
    pub(crate) damaged_records: u64,
}

impl Grants {
    /// Nothing is granted or cached, and nothing of the reserve is touched.
    pub fn new(settings: Settings) -> Self {
        Self {
            limit_bytes: settings.limit_bytes,
            settings,
            now: Timestamp::default(),
            clients: BTreeMap::new(),
            files: BTreeMap::new(),
            pieces: BTreeMap::new(),
            jobs: BTreeMap::new(),
            space: Space::default(),
            next_piece: 1,
            next_job: 1,
            queue: BTreeSet::new(),
            hold: Hold::default(),
            asks: BTreeSet::new(),
            virtual_time: 0,
            arrivals: 0,
            granted_bytes: 0,
            stalled: VecDeque::new(),
            draining_all: Vec::new(),
            marks: BTreeSet::new(),
            retries: BTreeSet::new(),
            changed: BTreeSet::new(),
            actions: VecDeque::new(),
            drained_total_bytes: 0,
            failures: 0,
            damaged_records: 0,
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When an [`Event::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let first = |times: &BTreeSet<(Timestamp, FileId)>| times.first().map(|(at, _)| *at);
        first(&self.marks).into_iter().chain(first(&self.retries)).chain(self.held_until()).min()
    }

    /// What has happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Joined { client, process } => {
                let client = self.clients.entry(client).or_default();
                client.process = process;
                client.is_present = true;
            }
            Event::Left { client } => self.left(client),
            Event::Requested { client, request } => self.requested(client, request),
            Event::Released { client } => self.unpin(client),
            Event::Returned { client, range } => self.returned(client, &range),
            Event::Opened { file, device, inode, path } => {
                let file = self.files.entry(file).or_insert_with(|| File { device, inode, path, ..File::default() });
                file.users += 1;
                file.is_reached = true;
            }
            Event::Closed { file } => {
                if let Some(found) = self.files.get_mut(&file) {
                    found.users = found.users.saturating_sub(1);
                    self.changed.insert(file);
                }
            }
            Event::Reached { file } => self.reached(file),
            Event::Unreached { file, errno } => self.unreached(file, errno),
            Event::Drained { job, outcome } => self.drained(job, outcome),
            Event::Truncated { file, outcome } => self.truncated(file, outcome),
            Event::Synced { client, outcome } => {
                let answer = outcome.map_or_else(Answer::Failed, |()| Answer::Done);
                let pending = self.clients.get(&client).and_then(|it| it.pending.as_ref());
                if pending.is_some_and(|it| it.is_running && matches!(it.request, Request::Sync { .. })) {
                    self.answer(client, answer);
                }
            }
            Event::Settled { file } => self.settled(file),
            Event::Touched { to } => {
                self.space.grow(to.min(self.settings.reserve_bytes));
                // The limit may have been lowered while that was being touched.
                self.keep_limit();
            }
            Event::Limit { bytes } => {
                self.limit_bytes = bytes.min(self.settings.reserve_bytes);
                self.press();
                self.keep_limit();
            }
            Event::Short => {
                self.press();
                self.give_back();
            }
            Event::Tick => {}
        }
        self.tick();
        self.progress();
    }

    /// Returns memory to the system if more is touched than may be used.
    fn keep_limit(&mut self) {
        if self.space.end() > self.limit_bytes {
            self.give_back();
        }
    }

    /// Returns all free memory to the system. What is between used pages stays part of the reserve.
    fn give_back(&mut self) {
        let end = self.space.shrink();
        let free: Vec<_> = self.space.free().collect();
        let ranges = free.into_iter().chain([end]).filter(|range| !range.is_empty());
        self.actions.extend(ranges.map(|range| Action::GiveBack { range }));
    }

    /// What is due by now.
    fn tick(&mut self) {
        while let Some(&(at, id)) = self.marks.first().filter(|(at, _)| *at <= self.now) {
            self.marks.remove(&(at, id));
            if let Some(file) = self.files.get_mut(&id) {
                file.mark_at = None;
                file.is_marked = true;
                self.actions.push_back(Action::Mark { file: id });
            }
        }
        while let Some(&(at, id)) = self.retries.first().filter(|(at, _)| *at <= self.now) {
            self.retries.remove(&(at, id));
            self.try_again(id);
        }
    }

    /// Does everything that has become possible.
    fn progress(&mut self) {
        loop {
            while let Some(file) = self.changed.pop_first() {
                self.update(file);
            }
            self.start_drains();
            self.serve_stalled();
            if self.changed.is_empty() {
                break;
            }
        }
        self.serve_asks();
        if !self.asks.is_empty() && self.press() {
            self.start_drains();
        }
        self.serve_draining_all();
    }

    /// The state of a file has changed.
    fn update(&mut self, id: FileId) {
        self.start_truncating(id);
        let waiting = self.files.get(&id).map(|file| file.waiting.clone()).unwrap_or_default();
        for client in waiting {
            if self.try_request(client) {
                self.files.get_mut(&id).into_iter().for_each(|file| file.waiting.retain(|other| *other != client));
            }
        }
        // A request may have changed it again.
        self.start_truncating(id);
        self.start_settling(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.is_clean() {
            if let Some(at) = file.mark_at.take() {
                self.marks.remove(&(at, id));
            }
            // What could not be drained was cut off, or given up.
            if file.is_reached {
                file.failure.errno = 0;
                if let Some(failing) = file.failing.take() {
                    self.retries.remove(&(failing.retry_at, id));
                }
            }
        }
        if file.users == 0 && file.is_settled() && file.waiting.is_empty() {
            self.forget(id);
            return;
        }
        let key = file.dirty.first().map(|(since, _)| *since).filter(|_| file.may_drain());
        if file.queued != key {
            file.queued.into_iter().for_each(|old| {
                self.queue.remove(&(old, id));
            });
            key.into_iter().for_each(|new| {
                self.queue.insert((new, id));
            });
            file.queued = key;
        }
    }

    fn forget(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else { return };
        file.queued.into_iter().for_each(|old| {
            self.queue.remove(&(old, id));
        });
        file.failing.into_iter().for_each(|failing| {
            self.retries.remove(&(failing.retry_at, id));
        });
        if file.is_journaled {
            self.journal(JournalRecord::Forgotten { file: id });
        }
        self.actions.push_back(Action::Forget { file: id });
    }

    pub(crate) fn journal(&mut self, record: JournalRecord) {
        self.actions.push_back(Action::Journal(record));
    }

    /// The journal learns of a file before anything else about it.
    pub(crate) fn journal_file(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.is_journaled) else { return };
        file.is_journaled = true;
        let (device, inode, path) = (file.device, file.inode, file.path.clone());
        self.journal(JournalRecord::File { file: id, device, inode, path });
    }

    /// Answers the request of a client.
    pub(crate) fn answer(&mut self, client: ClientId, answer: Answer) {
        let Some(pending) = self.clients.get_mut(&client).and_then(|it| it.pending.take()) else { return };
        let file = pending.request.file().and_then(|file| self.files.get(&file));
        let failure = file.map_or(NodeFailure::default(), |file| file.failure);
        if let Some((tag, arrival)) = pending.tag {
            self.asks.remove(&(tag, arrival, client));
        }
        self.actions.push_back(Action::Reply { client, failure, answer });
    }

    pub(crate) fn drop_client(&mut self, client: ClientId, reason: String) {
        self.clients.get_mut(&client).into_iter().for_each(|it| it.pending = None);
        self.actions.push_back(Action::Drop { client, reason });
    }

    fn left(&mut self, id: ClientId) {
        self.unpin(id);
        let Some(client) = self.clients.remove(&id) else { return };
        for range in client.granted {
            self.free_granted(id, range);
        }
        if let Some(pending) = client.pending {
            pending.tag.into_iter().for_each(|(tag, arrival)| {
                self.asks.remove(&(tag, arrival, id));
            });
            if let Some(file) = pending.request.file().and_then(|file| self.files.get_mut(&file)) {
                file.waiting.retain(|other| *other != id);
                self.changed.extend(pending.request.file());
            }
        }
        self.stalled.retain(|other| *other != id);
        self.draining_all.retain(|other| *other != id);
    }

    fn returned(&mut self, id: ClientId, range: &Range<u64>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(position) = client.find(range).filter(|_| !range.is_empty()) else {
            self.drop_client(id, format!("it returned memory that it does not have: {range:?}"));
            return;
        };
        let granted = client.granted.swap_remove(position);
        for rest in [granted.start..range.start, range.end..granted.end] {
            if !rest.is_empty() {
                client.granted.push(rest);
            }
        }
        if granted.start < range.start {
            self.space.divide(range.start);
        }
        if range.end < granted.end {
            self.space.divide(range.end);
        }
        self.free_granted(id, range.clone());
    }

    /// Memory that was granted and not filled is free.
    pub(crate) fn free_granted(&mut self, client: ClientId, range: Range<u64>) {
        self.granted_bytes -= range.end - range.start;
        self.space.release(&range);
        self.journal(JournalRecord::Returned { line: client, at: range.start, bytes: range.end - range.start });
    }

    fn unpin(&mut self, client: ClientId) {
        let Some(client) = self.clients.get_mut(&client) else { return };
        for piece in std::mem::take(&mut client.pinned) {
            if let Some(found) = self.pieces.get_mut(&piece) {
                found.pins -= 1;
            }
            self.release_piece(piece);
        }
    }

    /// Frees the memory of a piece that nobody needs.
    pub(crate) fn release_piece(&mut self, id: PieceId) {
        let Some(piece) = self.pieces.get(&id).filter(|piece| !piece.is_needed()) else { return };
        self.space.release(&piece.memory());
        if let Some(client) = self.clients.get_mut(&piece.client) {
            client.filled_bytes = client.filled_bytes.saturating_sub(piece.part.bytes);
        }
        self.pieces.remove(&id);
    }

    fn reached(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.is_reached = true;
        self.try_again(id);
        self.changed.insert(id);
    }

    fn unreached(&mut self, id: FileId, errno: u32) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.is_reached = false;
        file.failure = NodeFailure { serial: file.failure.serial + 1, errno };
        self.failures += 1;
        // Only an open file ends this.
        let retry_at = Timestamp(u64::MAX);
        file.failing = Some(Failing { errno, retry_at, pause_ns: self.settings.retry_ns[0] });
        self.changed.insert(id);
    }

    /// A file that could not be drained is tried again.
    pub(crate) fn try_again(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.is_reached) else { return };
        if let Some(failing) = file.failing.take() {
            self.retries.remove(&(failing.retry_at, id));
            // The pause grows until a drain succeeds.
            file.failure.errno = failing.errno;
        }
        self.changed.insert(id);
    }

    /// Removes from the view of a file what overlaps `range` and is wanted. Returns the number of
    /// the oldest piece that was removed before a drain has begun to write it.
    pub(crate) fn remove_view(
        &mut self,
        id: FileId,
        range: &Range<u64>,
        is_wanted: impl Fn(&Extent) -> bool,
    ) -> Option<PieceId> {
        let file = self.files.get_mut(&id)?;
        let (mut oldest, mut gone) = (None, Vec::new());
        for (start, extent) in file.overlapping(range) {
            if !is_wanted(&extent) {
                continue;
            }
            file.view.remove(&start);
            let Some(piece) = self.pieces.get_mut(&extent.piece) else { continue };
            let is_idle = u32::from(extent.job.is_none());
            piece.extents -= 1;
            piece.idle -= is_idle;
            if extent.job.is_none() {
                oldest = Some(oldest.unwrap_or(piece.since).min(piece.since));
            }
            for (start, end) in [(start, extent.end.min(range.start)), (start.max(range.end), extent.end)] {
                if start < end {
                    file.view.insert(start, Extent { end, ..extent });
                    piece.extents += 1;
                    piece.idle += is_idle;
                }
            }
            if piece.idle == 0 {
                file.dirty.remove(&(piece.since, extent.piece));
            }
            gone.push(extent.piece);
        }
        gone.into_iter().for_each(|piece| self.release_piece(piece));
        self.changed.insert(id);
        oldest
    }

    /// What a client holds: offsets and lengths.
    pub fn granted_to(&self, client: ClientId) -> Vec<(u64, u64)> {
        let granted = self.clients.get(&client).map(|client| client.granted.as_slice()).unwrap_or_default();
        granted.iter().map(|range| (range.start, range.end - range.start)).collect()
    }

    /// The latest failure to drain a file.
    pub fn failure_of(&self, file: FileId) -> NodeFailure {
        self.files.get(&file).map_or(NodeFailure::default(), |file| file.failure)
    }

    /// How many failures there were, of all files. While it does not change, no client has to be
    /// told of any.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Clients of a dead daemon that have not come back, and their processes.
    pub fn absent(&self) -> Vec<(ClientId, u32)> {
        let absent = self.clients.iter().filter(|(_, client)| !client.is_present);
        absent.map(|(id, client)| (*id, client.process)).collect()
    }

    /// Whether nothing is cached or being drained.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.jobs.is_empty()
    }

    /// Whether nothing is cached or under way, and all files are as they shall be.
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.files.values().all(File::is_settled)
    }

    /// How much of the reserve is in use, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        self.space.used_bytes()
    }

    /// How far the reserve is touched.
    pub fn touched_bytes(&self) -> u64 {
        self.space.end()
    }

    /// Whether clients wait for memory.
    pub fn is_short(&self) -> bool {
        !self.asks.is_empty()
    }

    /// The present limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }
}
