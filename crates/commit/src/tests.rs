//! Tests of the ledger alone: which steps it asks for, and how many manifests and packs it looks
//! at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use outcrop_format::{
    Held, HeldLayer, Holdings, MARK_RUNS_MAX, Manifest, ManifestPack, Mark, News, PackId, RunId, Tidings,
};
use outcrop_plan::Retention;

use crate::{
    Action, Draft, Event, Everybody, Found, LayerSettings, Ledger, Merge, Outcome, Report, SaveId, Settings, Step,
    listing::LOOKS,
};

const RUN: RunId = RunId(7);

fn pack(number: u64) -> ManifestPack {
    let id = PackId { rank: 0, number };
    ManifestPack { id, file_bytes: 4096, index_check: number.into(), is_borrowed: false }
}

fn manifest(run: RunId, version: u64, packs: &[u64]) -> Arc<Manifest> {
    Arc::new(Manifest {
        run,
        session: "test".to_owned(),
        version,
        rank: 0,
        ranks: 1,
        saved_at_unix_ns: version,
        stored_bytes: 0,
        regions: Vec::new(),
        packs: packs.iter().copied().map(pack).collect(),
    })
}

/// A ledger of rank 0, and the actions that it has asked for.
struct Rig {
    ledger: Ledger,
    layers: usize,
    now: u64,
    /// Steps that are not done yet.
    asked: Vec<(usize, Step)>,
    reports: Vec<Report>,
    /// Messages to other ranks.
    said: Vec<Tidings>,
}

impl Rig {
    /// Finds these files on the first layer, and nothing elsewhere.
    fn new(keep: Retention, (layers, ranks): (usize, u32), found: Found) -> Self {
        Self::shared(keep, (layers, ranks), ranks > 1, found)
    }

    /// The same, with `is_shared` given.
    fn shared(keep: Retention, (layers, ranks): (usize, u32), is_shared: bool, mut found: Found) -> Self {
        found.manifests.values_mut().for_each(|manifest| Arc::make_mut(manifest).ranks = ranks);
        let versions = found.manifests.iter().map(|(version, it)| (*version, Held::of(it))).collect();
        let nothing = Holdings { proposal: RUN, layers: vec![HeldLayer::default(); layers], former: Vec::new() };
        let mut everybody = vec![nothing; ranks as usize];
        everybody[0].layers[0] = HeldLayer { versions, ..HeldLayer::default() };
        let layer = LayerSettings { keep, is_limited: false };
        let settings = Settings { rank: 0, ranks, run: RUN, is_shared, layers: vec![layer; layers] };
        let mut founds = vec![Found::default(); layers];
        founds[0] = found;
        let ledger = Ledger::open(settings, founds, &Everybody::new(everybody));
        Self { ledger, layers, now: 0, asked: Vec::new(), reports: Vec::new(), said: Vec::new() }
    }

    fn tell(&mut self, event: Event) {
        self.now += 1;
        self.ledger.handle(self.now, event);
        while let Some(action) = self.ledger.poll().or_else(|| self.ledger.poll_idle()) {
            match action {
                Action::Do { layer, step } => self.asked.push((layer, step)),
                Action::Report(report) => self.reports.push(report),
                Action::Announce(news) => self.said.push(news.tidings),
                _ => {}
            }
        }
    }

    /// Carries out all steps, successfully, and returns them.
    fn work(&mut self) -> Vec<(usize, Step)> {
        let mut done = Vec::new();
        while let Some((layer, step)) = self.asked.pop() {
            done.push((layer, step.clone()));
            let outcome = if step == Step::Look { Outcome::Borrowed(BTreeSet::new()) } else { Outcome::Done };
            self.tell(Event::Done { layer, outcome });
        }
        done
    }

    fn expect(&mut self, number: u64) {
        self.tell(Event::Expected { key: number, pack: pack(number) });
    }

    fn arrive(&mut self, number: u64, layer: usize) {
        self.tell(Event::Arrived { number, layer, failure: None });
    }

    fn draft(&mut self, version: u64, packs: &[u64], next_number: u64, losses: u64) {
        let save = SaveId { version, attempt: 1 };
        self.tell(Event::Drafted(Draft { save, manifest: manifest(RUN, version, packs), next_number, losses }));
    }
}

/// The number of accesses for the last 100 of so many versions.
fn looks(keep: Retention, versions: u64) -> u64 {
    let mut rig = Rig::new(keep, (2, 1), Found::default());
    let (mut chain, mut next) = (Vec::<(u64, u64)>::new(), 0);
    let mut before = 0;
    for version in 0..versions {
        if version == versions - 100 {
            before = LOOKS.get();
        }
        let mut number = |rig: &mut Rig| {
            rig.expect(next);
            next += 1;
            next - 1
        };
        // Every 50th version is full. Chains are merged as a store merges them.
        if version % 50 == 0 {
            chain.clear();
        }
        let added = number(&mut rig);
        chain.insert(0, (added, 1));
        let packs: Vec<u64> = chain.iter().map(|(number, _)| *number).collect();
        rig.draft(version, &packs, added + 1, 0);
        let bytes: Vec<u64> = chain.iter().map(|(_, bytes)| *bytes).collect();
        let mut arriving = vec![added];
        if let Some(range) = outcrop_plan::merge(&bytes, 8) {
            let merged = number(&mut rig);
            let old = chain.splice(range.clone(), [(merged, bytes[range].iter().sum())]);
            let old = old.map(|(number, _)| number).collect();
            rig.tell(Event::Merged(Merge { old, new: vec![pack(merged)] }));
            arriving.push(merged);
        }
        for number in arriving {
            (0..rig.layers).for_each(|layer| rig.arrive(number, layer));
        }
        rig.work();
        let reached = rig.reports.iter().filter(|it| matches!(it, Report::Reached { .. })).count();
        assert_eq!(reached, 2, "version {version}: {:?}", rig.reports);
        rig.reports.clear();
    }
    LOOKS.get() - before
}

#[test]
fn what_is_looked_at_for_a_version_does_not_grow_with_their_number() {
    let none = Retention::default();
    for keep in [
        none,
        Retention { keep_last: Some(3), ..none },
        Retention { keep_last: Some(1), keep_every: Some(2), ..none },
        Retention { keep_for_ns: Some(500), ..none },
    ] {
        let (few, many) = (looks(keep, 300), looks(keep, 2000));
        assert!(many <= few * 3 / 2, "{keep:?}: {few} for 100 of 300 versions, {many} for 100 of 2000");
    }
}

/// The steps that write the manifest of this version: the layer, and the packs that it lists.
fn written(steps: &[(usize, Step)], wanted: u64) -> Vec<(usize, Vec<u64>)> {
    let of_version = |(layer, step): &(usize, Step)| match step {
        Step::Write { manifest, packs } if manifest.version == wanted => {
            Some((*layer, packs.iter().map(|pack| pack.id.number).collect()))
        }
        _ => None,
    };
    steps.iter().filter_map(of_version).collect()
}

#[test]
fn merged_packs_stay_until_what_lists_the_old_ones_is_written() {
    let mut rig = Rig::new(Retention::default(), (2, 1), Found::default());
    (0..3).for_each(|number| rig.expect(number));
    rig.draft(1, &[0], 1, 0);
    rig.draft(2, &[1, 0], 2, 0);
    rig.tell(Event::Merged(Merge { old: vec![1, 0], new: vec![pack(2)] }));
    // The merged pack arrives before the pack of the first version, and no later version builds
    // upon it.
    rig.arrive(2, 0);
    rig.tell(Event::Arrived { number: 1, layer: 1, failure: Some("full".to_owned()) });
    rig.expect(3);
    rig.draft(3, &[3], 4, 1);
    rig.tell(Event::Reading(false));
    let early = rig.work();
    let is_removal = |(_, step): &(usize, Step)| matches!(step, Step::Remove { .. });
    assert!(!early.iter().any(is_removal), "{early:?}");
    rig.arrive(0, 0);
    let steps = rig.work();
    assert_eq!(written(&steps, 1), [(0, vec![0])]);
    assert_eq!(written(&steps, 2), [(0, vec![2])], "{steps:?}");
}

#[test]
fn a_version_that_could_not_be_removed_keeps_all_packs() {
    // Rank 1 does not find its directory. Its part of the version, which is there, borrows pack 1.
    let found = Found {
        manifests: BTreeMap::from([(5, manifest(RunId(1), 5, &[0]))]),
        packs: BTreeMap::from([(0, 4096), (1, 4096)]),
        unreadable: BTreeSet::new(),
    };
    let mut rig = Rig::new(Retention::default(), (1, 2), found);
    rig.tell(Event::Reading(false));
    rig.tell(Event::Rewind(None));
    assert_eq!(rig.asked, [(0, Step::Drop { version: 5 })]);
    rig.asked.clear();
    let (reason, may_be_visible, next_number) = ("read-only".to_owned(), false, 2);
    rig.tell(Event::Done { layer: 0, outcome: Outcome::Failed { reason, may_be_visible, next_number } });
    assert!(matches!(&rig.reports[..], [Report::Stays { .. }, Report::Forgotten(Err(_))]), "{:?}", rig.reports);
    rig.tell(Event::Closed);
    assert_eq!(rig.work(), []);
}

#[test]
fn nothing_is_written_that_lists_a_pack_of_another_length() {
    for bytes in [0, 4095, 4097] {
        let found = Found {
            manifests: BTreeMap::from([(1, manifest(RunId(1), 1, &[0]))]),
            packs: BTreeMap::from([(0, bytes)]),
            unreadable: BTreeSet::new(),
        };
        let mut rig = Rig::new(Retention::default(), (1, 1), found);
        rig.tell(Event::Based { version: 1, packs: vec![0] });
        rig.expect(1);
        rig.draft(2, &[1, 0], 2, 0);
        rig.arrive(1, 0);
        assert_eq!(written(&rig.work(), 2), []);
        assert!(rig.reports.iter().any(|it| matches!(it, Report::Failed { .. })), "{:?}", rig.reports);
    }
}

/// Two versions, a merge of their packs, and a manifest whose rewrite fails.
fn with_a_failed_rewrite(may_be_visible: bool) -> Rig {
    let mut rig = Rig::new(Retention::default(), (1, 1), Found::default());
    (0..3).for_each(|number| rig.expect(number));
    rig.draft(1, &[0], 1, 0);
    rig.draft(2, &[1, 0], 2, 0);
    (0..2).for_each(|number| rig.arrive(number, 0));
    rig.work();
    rig.tell(Event::Merged(Merge { old: vec![1, 0], new: vec![pack(2)] }));
    rig.arrive(2, 0);
    assert_eq!(rig.asked, [(0, Step::Sync)]);
    rig.asked.clear();
    rig.tell(Event::Done { layer: 0, outcome: Outcome::Done });
    assert!(matches!(&rig.asked[..], [(0, Step::Rewrite { version: 2, .. })]), "{:?}", rig.asked);
    rig.asked.clear();
    let (reason, next_number) = ("no room".to_owned(), 3);
    rig.tell(Event::Done { layer: 0, outcome: Outcome::Failed { reason, may_be_visible, next_number } });
    rig
}

#[test]
fn what_could_not_be_rewritten_lists_what_it_did() {
    let mut rig = with_a_failed_rewrite(false);
    // The rewrite is not retried. While a version builds upon the merged pack, neither it nor the
    // old ones are removed.
    rig.expect(3);
    rig.draft(3, &[3, 2], 4, 0);
    rig.arrive(3, 0);
    let steps = rig.work();
    assert_eq!(written(&steps, 3), [(0, vec![3, 2])], "{steps:?}");
    let is_more = |(_, step): &(usize, Step)| matches!(step, Step::Rewrite { .. } | Step::Remove { .. });
    assert!(!steps.iter().any(is_more), "{steps:?}");
}

#[test]
fn what_may_be_rewritten_or_not_keeps_the_packs_of_both() {
    let mut rig = with_a_failed_rewrite(true);
    rig.tell(Event::Reading(false));
    // A later sync proves nothing about the manifest, so it is written again. Until then no pack is
    // removed.
    assert_eq!(rig.work(), [(0, Step::Rewrite { version: 2, merges: Vec::new() })]);
}

#[test]
fn packs_of_a_version_that_is_gone_stay_until_that_is_durable() {
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    let mut rig = Rig::new(keep, (1, 1), Found::default());
    rig.tell(Event::Reading(false));
    let save = |rig: &mut Rig, number: u64, losses| {
        rig.expect(number);
        rig.draft(number, &[number], number + 1, losses);
        rig.arrive(number, 0);
    };
    save(&mut rig, 0, 0);
    rig.work();
    save(&mut rig, 1, 0);
    let mut steps = Vec::new();
    while let Some((layer, step)) = rig.asked.pop() {
        // The removed manifest could not be read before, so it cannot be written again.
        let is_removed = step == Step::Sync && steps.contains(&Step::Drop { version: 0 });
        let (reason, may_be_visible, next_number) = ("it fails".to_owned(), false, 2);
        let failed = Outcome::Failed { reason, may_be_visible, next_number };
        steps.push(step);
        rig.tell(Event::Done { layer, outcome: if is_removed { failed } else { Outcome::Done } });
    }
    assert_eq!(steps.last(), Some(&Step::Sync), "nothing goes after what has failed: {steps:?}");
    save(&mut rig, 2, 1);
    let steps = rig.work();
    assert!(steps.contains(&(0, Step::Remove { number: 0, bytes: 4096 })), "{steps:?}");
}

/// How often a rank looks at the manifests of other ranks, while it saves full versions and keeps
/// the last `keep_last`.
fn looks_at_others(ranks: u32, is_shared: bool, keep_last: u32, versions: u64) -> usize {
    let keep = Retention { keep_last: Some(keep_last), ..Retention::default() };
    let mut rig = Rig::shared(keep, (1, ranks), is_shared, Found::default());
    rig.tell(Event::Reading(false));
    let mut steps = Vec::new();
    for version in 0..versions {
        rig.expect(version);
        rig.draft(version, &[version], version + 1, 0);
        rig.arrive(version, 0);
        steps.extend(rig.work());
        for rank in 1..ranks {
            let tidings = Tidings::Here { layer: 0, version };
            rig.tell(Event::Heard { rank, news: News { run: RUN, era: 0, number: version, tidings } });
        }
        steps.extend(rig.work());
    }
    let looks = steps.iter().filter(|(_, step)| *step == Step::Look).count();
    rig.tell(Event::Closed);
    steps.extend(rig.work());
    let removed = steps.iter().filter(|(_, step)| matches!(step, Step::Remove { .. })).count();
    assert_eq!(removed as u64, versions - u64::from(keep_last), "{steps:?}");
    looks
}

#[test]
fn a_rank_looks_at_others_only_if_they_may_need_something() {
    assert_eq!(looks_at_others(1, false, 1, 5), 0, "there are no others");
    assert_eq!(looks_at_others(2, false, 1, 5), 1, "what an earlier run has left");
    assert_eq!(looks_at_others(2, true, 1, 5), 4, "before anything is removed");
}

#[test]
fn a_look_at_others_waits_until_enough_may_go() {
    // Each look reads all versions of all ranks, so the number of looks must fall as more are kept.
    assert_eq!(looks_at_others(2, true, 100, 400), 20);
    assert_eq!(looks_at_others(2, true, 1000, 1400), 2);
}

/// The versions that have failed, as the program was told.
fn failed(rig: &Rig) -> Vec<u64> {
    let of = |report: &Report| match report {
        Report::Failed { save, reason, .. } if reason == "full" => Some(save.version),
        _ => None,
    };
    rig.reports.iter().filter_map(of).collect()
}

#[test]
fn versions_that_need_a_failed_pack_fail_at_once_and_later_ones_do_not() {
    for is_shared in [false, true] {
        let mut rig = Rig::shared(Retention::default(), (1, 2), is_shared, Found::default());
        rig.tell(Event::Reading(false));
        (0..2).for_each(|number| rig.expect(number));
        rig.draft(1, &[0], 1, 0);
        rig.draft(2, &[1], 2, 0);
        rig.tell(Event::Arrived { number: 0, layer: 0, failure: Some("full".to_owned()) });
        // Other ranks may refer to the pack in their parts of the second version, if they share
        // blocks.
        assert_eq!(failed(&rig), if is_shared { vec![1, 2] } else { vec![1] });
        // The next version knows of the loss, and is full.
        rig.expect(2);
        rig.draft(3, &[2], 3, 1);
        (1..3).for_each(|number| rig.arrive(number, 0));
        let steps = rig.work();
        assert_eq!(written(&steps, 1), []);
        assert_eq!(written(&steps, 2), if is_shared { vec![] } else { vec![(0, vec![1])] });
        assert_eq!(written(&steps, 3), [(0, vec![2])], "{steps:?}");
    }
}

#[test]
fn packs_of_a_version_that_another_rank_refused_stay_for_the_next_one() {
    let mut rig = Rig::shared(Retention::default(), (1, 2), false, Found::default());
    rig.tell(Event::Reading(false));
    rig.expect(0);
    rig.draft(1, &[0], 1, 0);
    let tidings = Tidings::Failed { layer: 0, version: 1, reason: "full".to_owned() };
    rig.tell(Event::Heard { rank: 1, news: News { run: RUN, era: 0, number: 0, tidings } });
    rig.arrive(0, 0);
    rig.tell(Event::Reading(false));
    let steps = rig.work();
    assert!(!steps.iter().any(|(_, step)| matches!(step, Step::Remove { .. })), "{steps:?}");
    rig.expect(1);
    rig.draft(2, &[1, 0], 2, 0);
    rig.arrive(1, 0);
    let steps = rig.work();
    assert_eq!(written(&steps, 2), [(0, vec![1, 0])], "{steps:?}");
}

#[test]
fn a_pack_that_arrives_while_the_session_ends_and_that_nothing_needs_is_removed() {
    let mut rig = Rig::new(Retention::default(), (1, 1), Found::default());
    rig.tell(Event::Reading(false));
    rig.expect(0);
    // Its version could not be packed.
    rig.tell(Event::Failed { save: SaveId { version: 1, attempt: 1 }, reason: "full".to_owned() });
    rig.tell(Event::Closed);
    rig.work();
    rig.arrive(0, 0);
    let steps = rig.work();
    assert!(steps.contains(&(0, Step::Remove { number: 0, bytes: 4096 })), "{steps:?}");
}

#[test]
fn nothing_is_said_after_the_end() {
    let mut rig = Rig::new(Retention::default(), (1, 2), Found::default());
    rig.expect(0);
    rig.draft(0, &[0], 1, 0);
    rig.arrive(0, 0);
    assert_eq!(rig.asked.pop(), Some((0, Step::Sync)));
    rig.tell(Event::Done { layer: 0, outcome: Outcome::Done });
    assert!(matches!(&rig.asked[..], [(0, Step::Write { .. })]), "{:?}", rig.asked);
    // The program does not wait for a version that cannot become complete. After the announcement
    // of its end, others rely on this rank having nothing that it has not announced.
    rig.tell(Event::Alone { reason: "a rank is gone".to_owned() });
    rig.tell(Event::Closed);
    rig.work();
    assert_eq!(rig.said, [Tidings::Over]);
}

/// What a rank finds that has taken part in so many runs, each of which left a version.
fn many_runs(count: u64) -> (Ledger, Everybody) {
    let run = |version: u64| RunId(u128::from(version) + 100);
    let held = |version: u64| (version, Held { run: run(version), saved_at_unix_ns: version, ranks: 2 });
    let versions: BTreeMap<u64, Held> = (0..count).map(held).collect();
    let layer = HeldLayer { versions, ..HeldLayer::default() };
    let everybody = Everybody::new(vec![Holdings { proposal: RUN, layers: vec![layer], former: Vec::new() }; 2]);
    let layers = vec![LayerSettings::default()];
    let settings = Settings { rank: 0, ranks: 2, run: RUN, is_shared: false, layers };
    let manifests = (0..count).map(|version| (version, manifest(run(version), version, &[]))).collect();
    let found = Found { manifests, ..Found::default() };
    (Ledger::open(settings, vec![found], &everybody), everybody)
}

#[test]
fn a_mark_never_lists_more_runs_than_it_may() {
    for (count, listed) in [(5, 6), (MARK_RUNS_MAX as u64 + 5, MARK_RUNS_MAX)] {
        let (ledger, everybody) = many_runs(count);
        let runs = ledger.marks(0, &everybody);
        assert_eq!(runs.len(), listed);
        assert!(runs.contains(&RUN), "the run that begins is always there");
        assert!(Mark(runs).encode().is_ok());
    }
}
