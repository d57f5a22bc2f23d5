//! The ledger: everything that is known about a session of one rank, and what to do next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outcrop_format::{ManifestPack, News, RunId, Tidings};
use outcrop_plan::Retention;

use crate::{
    Action, Event, LayerIndex, Report,
    drafts::Drafted,
    layer::{Base, Layer, Standing},
    listing::Visible,
    merges::Merge,
};

/// What does not change while a session is open.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The number of this rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// The identifier of the run, which all ranks agreed upon when they opened the session.
    pub run: RunId,
    /// Whether ranks refer to each other's packs.
    pub is_shared: bool,
    /// The directories.
    pub layers: Vec<LayerSettings>,
}

/// What does not change about one layer.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerSettings {
    /// Which versions are kept.
    pub keep: Retention,
    /// Whether its bytes are limited. If so, files that nobody needs are removed before the program
    /// is told that a version is complete, so there is room for the next one. Otherwise they are
    /// removed when there is nothing else to do.
    pub is_limited: bool,
}

/// A session of one rank. See the documentation of the crate.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) settings: Settings,
    pub(crate) layers: Vec<Layer>,
    pub(crate) now_unix_ns: u64,
    /// Versions in flight, in ascending order.
    pub(crate) drafts: VecDeque<Drafted>,
    /// Packs from this number on may belong to a version that has not been drafted yet.
    pub(crate) drafted_below: u64,
    /// The newest version that was drafted.
    pub(crate) newest_draft: Option<u64>,
    /// The newest version that was drafted since the session was last rewound. Lower versions that
    /// were not drafted are left out.
    pub(crate) passed: Option<u64>,
    /// Packs of this rank that the next version builds upon.
    pub(crate) chain: BTreeSet<u64>,
    /// How often packs were lost. A draft carries the value of its time.
    pub(crate) losses: u64,
    /// Packs that the engine has, by number.
    pub(crate) in_flight: BTreeMap<u64, InFlight>,
    pub(crate) merges: Vec<Merge>,
    /// How often the session was rewound.
    pub(crate) era: u64,
    /// The number of messages that this rank has sent, and the number received from each other
    /// rank.
    said: u64,
    pub(crate) heard_of: BTreeMap<u32, u64>,
    /// Messages of ranks that have been rewound already, while this one has not.
    pub(crate) early: Vec<(u32, News)>,
    /// Whether another rank is gone.
    pub(crate) is_alone: bool,
    pub(crate) is_reading: bool,
    /// Set while the program waits until versions are removed: the first failure so far.
    pub(crate) forgetting: Option<Result<(), String>>,
    pub(crate) is_closing: bool,
    has_ended: bool,
    actions: VecDeque<Action>,
}

/// A pack that the engine has.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) key: u64,
    pub(crate) file_bytes: u64,
    /// Layers that it has reached, or never will reach.
    pub(crate) settled_on: BTreeSet<LayerIndex>,
    pub(crate) failed_on: BTreeSet<LayerIndex>,
}

impl Ledger {
    /// A ledger of what was found. See [`open`](Self::open).
    pub(crate) fn new(settings: Settings, layers: Vec<Layer>, next_number: u64) -> Self {
        Self {
            settings,
            layers,
            now_unix_ns: 0,
            drafts: VecDeque::new(),
            drafted_below: next_number,
            newest_draft: None,
            passed: None,
            chain: BTreeSet::new(),
            losses: 0,
            in_flight: BTreeMap::new(),
            merges: Vec::new(),
            era: 0,
            said: 0,
            heard_of: BTreeMap::new(),
            early: Vec::new(),
            is_alone: false,
            is_reading: false,
            forgetting: None,
            is_closing: false,
            has_ended: false,
            actions: VecDeque::new(),
        }
    }

    /// Tells the ledger what has happened, and the time in nanoseconds since 1970.
    pub fn handle(&mut self, now_unix_ns: u64, event: Event) {
        self.now_unix_ns = now_unix_ns;
        match event {
            Event::Expected { key, pack } => self.expect(key, &pack),
            Event::Arrived { number, layer, failure } => self.arrived(number, layer, failure),
            Event::Drafted(draft) => self.drafted(draft),
            Event::Failed { save, reason } => {
                self.chain.clear();
                (0..self.layers.len()).for_each(|layer| self.fail(layer, save, &reason));
            }
            Event::Merged(merge) => self.merged(merge),
            Event::Based { version, packs } => {
                let base = (!packs.is_empty()).then_some(Base { version, drafted: self.newest_draft });
                self.layers.iter_mut().for_each(|layer| layer.build_upon(base));
                self.chain = packs.into_iter().collect();
            }
            Event::Reading(is_reading) => {
                self.is_reading = is_reading;
                self.layers.iter_mut().for_each(|layer| layer.wants_collection |= !is_reading);
            }
            Event::Rewind(version) => self.rewind(version),
            Event::ForgetIncomplete => self.forget_incomplete(),
            Event::Closed => {
                self.announce(Tidings::Over);
                self.is_closing = true;
                // No version builds upon these packs any more.
                self.chain.clear();
                self.drafted_below = u64::MAX;
                for layer in &mut self.layers {
                    layer.wants_collection = true;
                    layer.wants_clearing = layer.has_former;
                }
            }
            Event::Heard { rank, news } => self.heard(rank, news),
            Event::Unsaid { news, reason } => self.unsaid(&news, &reason),
            Event::Alone { reason } => self.be_alone(reason),
            Event::Done { layer, outcome } => self.done(layer, outcome),
        }
        (0..self.layers.len()).for_each(|layer| self.advance(layer));
        self.release();
        self.check_forgotten();
        self.check_end();
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to do when nothing else is: removing a pack. Removing a large file can take
    /// as long as writing it.
    pub fn poll_idle(&mut self) -> Option<Action> {
        let layer = (0..self.layers.len()).find(|layer| self.has_garbage_on(*layer))?;
        let (number, bytes) = self.layers[layer].garbage.pop_front()?;
        self.start(layer, crate::Step::Remove { number, bytes });
        self.actions.pop_front()
    }

    /// Whether [`poll_idle`](Self::poll_idle) has something.
    pub fn has_garbage(&self) -> bool {
        (0..self.layers.len()).any(|layer| self.has_garbage_on(layer))
    }

    fn has_garbage_on(&self, layer: LayerIndex) -> bool {
        let layer = &self.layers[layer];
        !layer.garbage.is_empty() && layer.busy.is_none() && !self.is_reading
    }

    /// Whether other ranks have yet to announce a version.
    pub fn is_waiting_for_others(&self) -> bool {
        self.settings.ranks > 1 && !self.is_alone && self.layers.iter().any(|layer| !layer.holders.is_empty())
    }

    /// The run in which the session was opened.
    pub fn run(&self) -> RunId {
        self.settings.run
    }

    /// The lowest number that no pack of this rank has, as far as the ledger knows.
    pub fn next_number(&self) -> u64 {
        self.drafted_below
    }

    pub(crate) fn ask(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.ask(Action::Report(report));
    }

    /// Sends a message to the other ranks, unless this rank has announced its end. After that
    /// message the others have given up everything that it had not announced, even if it is written
    /// in the end.
    pub(crate) fn announce(&mut self, tidings: Tidings) {
        if self.settings.ranks > 1 && !self.is_closing {
            let news = News { run: self.settings.run, number: self.said, era: self.era, tidings };
            self.said += 1;
            self.ask(Action::Announce(news));
        }
    }

    /// The engine is about to get a pack.
    fn expect(&mut self, key: u64, pack: &ManifestPack) {
        let (settled_on, failed_on) = (BTreeSet::new(), BTreeSet::new());
        let in_flight = InFlight { key, file_bytes: pack.file_bytes, settled_on, failed_on };
        self.in_flight.insert(pack.id.number, in_flight);
    }

    /// Frees the host memory of packs that are settled on every layer and that no version will
    /// build upon, or that failed on every layer.
    fn release(&mut self) {
        let layers = self.layers.len();
        let is_gone = |(number, pack): (&u64, &InFlight)| {
            let is_nowhere = pack.failed_on.len() == layers;
            (pack.settled_on.len() == layers && (is_nowhere || !self.is_wanted(*number))).then_some(*number)
        };
        let gone: Vec<u64> = self.in_flight.iter().filter_map(is_gone).collect();
        for number in gone {
            if let Some(pack) = self.in_flight.remove(&number) {
                self.ask(Action::Release { key: pack.key });
            }
        }
    }

    /// Whether a draft of this rank lists a pack, or a later version may list it.
    pub(crate) fn is_wanted(&self, number: u64) -> bool {
        let is_listed = |it: &Drafted| it.lists(self.settings.rank, number);
        number >= self.drafted_below
            || self.chain.contains(&number)
            || self.drafts.iter().any(is_listed)
            || self.merges.iter().any(|merge| merge.makes(number))
    }

    /// Forgets all versions above `version`, the newest first.
    fn rewind(&mut self, version: Option<u64>) {
        if self.is_alone {
            // The other ranks may be completing what this rank would forget, and removing what it
            // would go back to.
            return self.report(Report::Forgotten(Err("another rank is gone".to_owned())));
        }
        // Other ranks may wait for a version that this rank has left out, and no later one will
        // tell them.
        self.announce(Tidings::Over);
        self.ask(Action::Reset);
        self.chain.clear();
        self.merges.clear();
        self.era += 1;
        self.passed = None;
        self.forgetting = Some(Ok(()));
        for layer in &mut self.layers {
            let is_above = |other: &u64| version.is_none_or(|version| *other > version);
            let above: Vec<u64> = layer.listing.manifests().map(|(version, _)| version).filter(is_above).collect();
            for version in above {
                layer.listing.stand(version, Standing::Doubtful);
                layer.doomed.insert(version);
            }
            // Also manifests that cannot be read now: they may be readable at the next opening.
            layer.doomed.extend(layer.unreadable.iter().copied().filter(is_above));
            layer.awaited.retain(|version| !is_above(version));
            layer.stuck.clear();
            layer.pending.clear();
            layer.refused.clear();
            layer.newest.clear();
            layer.holders.clear();
            layer.base = None;
        }
        let (now, later) = std::mem::take(&mut self.early).into_iter().partition(|(_, news)| news.era == self.era);
        self.early = later;
        let now: Vec<(u32, News)> = now;
        now.into_iter().for_each(|(rank, news)| self.believe(rank, news.tidings));
    }

    /// Forgets versions that were found and that not all ranks have.
    fn forget_incomplete(&mut self) {
        if self.is_alone {
            return self.report(Report::Forgotten(Err("another rank is gone".to_owned())));
        }
        self.forgetting = Some(Ok(()));
        for layer in &mut self.layers {
            let is_found = |visible: &Visible| matches!(visible.standing, Standing::Kept { .. } | Standing::Unread);
            let found = layer.listing.manifests().filter(|(_, visible)| is_found(visible));
            layer.doomed.extend(found.map(|(version, _)| version));
            let awaited = std::mem::take(&mut layer.awaited);
            layer.doomed.extend(layer.unreadable.intersection(&awaited));
        }
    }

    /// Reports that versions are removed, when that is durable on every layer or has failed.
    fn check_forgotten(&mut self) {
        let is_done = |layer: &Layer| {
            layer.busy.is_none() && layer.doomed.is_empty() && (!layer.is_dirty || layer.is_sync_blocked)
        };
        if self.forgetting.is_some() && self.layers.iter().all(is_done) {
            let result = self.forgetting.take().unwrap_or(Ok(()));
            self.report(Report::Forgotten(result));
        }
    }

    /// Ends when the session is closed and nothing is in flight any more.
    fn check_end(&mut self) {
        let is_idle = |layer: &Layer| {
            layer.busy.is_none()
                && layer.garbage.is_empty()
                && layer.doomed.is_empty()
                && (layer.is_retry_blocked || layer.unsure.is_empty() && layer.revived.is_empty())
                && layer.withheld.is_empty()
        };
        let has_settled = |pack: &InFlight| pack.settled_on.len() == self.layers.len();
        let is_over = self.is_closing
            && !self.has_ended
            && self.forgetting.is_none()
            && self.layers.iter().all(is_idle)
            && self.in_flight.values().all(has_settled);
        if is_over {
            self.has_ended = true;
            self.ask(Action::End);
        }
    }
}
