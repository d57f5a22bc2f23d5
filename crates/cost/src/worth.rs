//! Whether it is worth it to persist now: what that costs, against the work that a failure would
//! cost.

use outcrop_plan::{Rule, Timestamp};

use crate::{Features, Kind, Model};

/// The weight of what is known is multiplied by this with every call that was measured.
const DECAY: f64 = 0.7;

/// One call counts as at most so many times slower or faster than predicted.
const RATIO_MAX: f64 = 1e4;

/// What to do, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// The work at risk is worth what it costs to persist it.
    Persist,
    /// It is not worth it yet.
    Skip {
        /// What persisting would take.
        predicted_ns: f64,
        /// The work since the last durable version, which a failure would cost.
        at_risk_ns: u64,
    },
}

/// Decides whether to persist, and learns from what that really takes.
///
/// It is told the time. What the structures are is asked only if it could matter: changes only add
/// up until they are persisted, so nothing is due before it was due by what was known last.
#[derive(Debug, Clone)]
pub struct Worth {
    rule: Rule,
    mtbf_ns: f64,
    model: Model,
    corrections: [Correction; 3],
    /// When the program went on after the last durable version.
    safe: Timestamp,
    last_look: Option<Look>,
}

/// What was known when the structures were last looked at.
#[derive(Debug, Clone, Copy)]
struct Look {
    predicted_ns: f64,
    interval_ns: f64,
}

/// The logarithm of how many times slower calls were than predicted, the latest counting most.
#[derive(Debug, Clone, Copy, Default)]
struct Correction {
    /// 0 while nothing is known.
    log: f64,
    is_known: bool,
}

impl Worth {
    /// The program begins to compute at `now`. Failures come every `mtbf_ns` on average.
    pub fn new(rule: Rule, mtbf_ns: u64, model: Model, now: Timestamp) -> Self {
        let corrections = [Correction::default(); 3];
        Self { rule, mtbf_ns: mtbf_ns.max(1) as f64, model, corrections, safe: now, last_look: None }
    }

    /// Whether to persist at `now` what has these features.
    pub fn judge(&mut self, now: Timestamp, features: impl FnOnce() -> Features) -> Verdict {
        let at_risk_ns = now.0.saturating_sub(self.safe.0);
        let look = match self.last_look.filter(|look| (at_risk_ns as f64) < look.interval_ns) {
            Some(look) => look,
            None => {
                let predicted_ns = self.predicted_ns(&features());
                Look { predicted_ns, interval_ns: self.rule.interval_ns(predicted_ns, self.mtbf_ns) }
            }
        };
        self.last_look = Some(look);
        match at_risk_ns as f64 >= look.interval_ns {
            true => Verdict::Persist,
            false => Verdict::Skip { predicted_ns: look.predicted_ns, at_risk_ns },
        }
    }

    /// What had these features is durable, and the program goes on at `now`.
    pub fn persisted(&mut self, now: Timestamp, features: &Features, took_ns: u64) {
        let ratio = took_ns.max(1) as f64 / (self.model.seconds(features) * 1e9);
        self.corrections[features.kind.index()].add(ratio);
        self.restored(now);
    }

    /// The program goes on at `now` with what is durable.
    pub fn restored(&mut self, now: Timestamp) {
        (self.safe, self.last_look) = (now, None);
    }

    /// What persisting would take, corrected by what calls took.
    pub fn predicted_ns(&self, features: &Features) -> f64 {
        self.model.seconds(features) * 1e9 * self.correction(features.kind)
    }

    /// How many times slower calls were than the model predicts.
    pub fn correction(&self, kind: Kind) -> f64 {
        // What was seen of other kinds is a better guess than nothing.
        let own = &self.corrections[kind.index()];
        let others = || self.corrections.iter().find(|it| it.is_known).unwrap_or(own);
        if own.is_known { own.log.exp() } else { others().log.exp() }
    }
}

impl Correction {
    fn add(&mut self, ratio: f64) {
        let now = ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX).ln();
        self.log = if self.is_known { self.log * DECAY + now * (1.0 - DECAY) } else { now };
        self.is_known = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Measured, features::tests::array};

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;
    const HOUR: u64 = 3600 * SECOND;

    /// Every call takes ten milliseconds for each hundred blocks.
    fn seconds(features: &Features) -> f64 {
        1e-4 * features.changed_blocks.max(1) as f64
    }

    fn model() -> Model {
        let changed = (1..400).map(|nth| array(nth * 5));
        Model::train(&changed.map(|features| Measured { features, seconds: seconds(&features) }).collect::<Vec<_>>())
    }

    fn skipped(verdict: Verdict) -> (f64, u64) {
        match verdict {
            Verdict::Skip { predicted_ns, at_risk_ns } => (predicted_ns, at_risk_ns),
            Verdict::Persist => panic!("it is not worth it yet"),
        }
    }

    #[test]
    fn the_papers_rule_persists_when_recomputing_takes_longer() {
        let mut worth = Worth::new(Rule::Recompute, HOUR, model(), Timestamp(5 * SECOND));
        let at = |ms: u64| Timestamp(5 * SECOND + ms * MS);
        // A hundred blocks take ten milliseconds.
        let (predicted, at_risk) = skipped(worth.judge(at(5), || array(100)));
        assert!((predicted / MS as f64 - 10.0).abs() < 1.0, "{predicted}");
        assert_eq!(at_risk, 5 * MS);
        assert_eq!(worth.judge(at(12), || array(100)), Verdict::Persist);
        worth.persisted(at(22), &array(100), 10 * MS);
        assert_eq!(skipped(worth.judge(at(27), || array(100))).1, 5 * MS, "counted from when it was durable");
    }

    #[test]
    fn our_rule_persists_less_often_the_rarer_failures_are() {
        let due_ms = |mtbf_ns| {
            let mut worth = Worth::new(Rule::Exact, mtbf_ns, model(), Timestamp(0));
            (0..).find(|ms| worth.judge(Timestamp(ms * MS), || array(100)) == Verdict::Persist).unwrap()
        };
        // The square root of twice 10 ms times the time between failures, and a little less.
        let (minute, hour) = (due_ms(60 * SECOND), due_ms(HOUR));
        assert!((950..1150).contains(&minute), "{minute}");
        assert!((7700..8900).contains(&hour), "{hour}");
    }

    #[test]
    fn structures_are_looked_at_only_when_it_could_matter() {
        let mut worth = Worth::new(Rule::Recompute, HOUR, model(), Timestamp(0));
        let mut looks = 0;
        for step in 0..1000u64 {
            // Ever more changes, so that what is known is soon too little.
            let judged = worth.judge(Timestamp(step * MS / 10), || {
                looks += 1;
                array(100 + step / 4)
            });
            if judged == Verdict::Persist {
                break;
            }
        }
        assert!((2..10).contains(&looks), "{looks}");
        worth.restored(Timestamp(100 * MS));
        let before = looks;
        let judged = worth.judge(Timestamp(101 * MS), || {
            looks += 1;
            array(1)
        });
        assert_eq!((judged, looks), (Verdict::Persist, before + 1), "less has changed: what was known is forgotten");
    }

    #[test]
    fn what_calls_really_take_corrects_the_model() {
        let mut worth = Worth::new(Rule::Exact, HOUR, model(), Timestamp(0));
        let predicted = worth.predicted_ns(&array(100));
        // This machine is fifty times slower.
        worth.persisted(Timestamp(1), &array(100), (predicted * 50.0) as u64);
        assert!((worth.predicted_ns(&array(100)) / predicted / 50.0 - 1.0).abs() < 0.01, "at once");
        assert!(worth.predicted_ns(&array(1000)) / model().seconds(&array(1000)) > 40e9, "for other sizes, too");
        let tree = Features { kind: Kind::Tree { depth: 5, fanout: 8 }, ..array(100) };
        assert!((worth.correction(tree.kind) / 50.0 - 1.0).abs() < 0.01, "and as a guess for other kinds");
        // Trees are not.
        let of_trees = model().seconds(&tree) * 1e9;
        worth.persisted(Timestamp(2), &tree, of_trees as u64);
        assert!((worth.correction(tree.kind) - 1.0).abs() < 0.01);
        assert!((worth.correction(array(1).kind) / 50.0 - 1.0).abs() < 0.01);
        // One call that took very long counts, and is forgotten.
        worth.persisted(Timestamp(3), &tree, HOUR);
        let shocked = worth.correction(tree.kind);
        assert!((2.0..RATIO_MAX).contains(&shocked), "{shocked}");
        (0..40).for_each(|_| worth.persisted(Timestamp(4), &tree, of_trees as u64));
        assert!((worth.correction(tree.kind) - 1.0).abs() < 0.01);
    }

    #[test]
    fn odd_times_and_settings_are_harmless() {
        for rule in [Rule::Young, Rule::Daly, Rule::Exact, Rule::Recompute, Rule::Fixed(u64::MAX)] {
            for mtbf_ns in [0, 1, u64::MAX] {
                let mut worth = Worth::new(rule, mtbf_ns, model(), Timestamp(SECOND));
                for now in [0, SECOND, u64::MAX, 5] {
                    let _ = worth.judge(Timestamp(now), || array(1));
                    worth.persisted(Timestamp(now), &array(u64::MAX >> 20), now);
                    assert!(worth.predicted_ns(&array(1)).is_finite());
                }
            }
        }
    }

    /// Runs a program on a virtual clock: steps that change blocks, calls that persist when it is
    /// worth it, and failures at random. Returns its duration over that of the steps alone.
    fn simulated(rule: Option<Rule>, mtbf_ns: u64, seed: u64) -> f64 {
        const STEPS: u64 = 20_000;
        let mut random = fastrand::Rng::with_seed(seed);
        // The model is of a machine that is three times faster.
        let real_ns = |features: &Features| (seconds(features) * 3e9) as u64;
        let mut failure_after = move || (-(1.0 - random.f64()).ln() * mtbf_ns as f64) as u64;
        let step_ns = |step: u64| 5 * MS + step * 7919 % 11 * 2 * MS;
        let mut worth = rule.map(|rule| Worth::new(rule, mtbf_ns, model(), Timestamp(0)));
        let (mut now, mut done, mut durable, mut failure) = (0, 0, 0, failure_after());
        while done < STEPS {
            now += step_ns(done);
            done += 1;
            let changed = array((100 * (done - durable)).min(1000));
            let judged = worth.as_mut().map_or(Verdict::Persist, |it| it.judge(Timestamp(now), || changed));
            if judged == Verdict::Persist {
                now += real_ns(&changed);
            }
            if now >= failure {
                (now, done) = (failure, durable);
                failure = now + failure_after();
                worth.iter_mut().for_each(|it| it.restored(Timestamp(now)));
            } else if judged == Verdict::Persist {
                durable = done;
                worth.iter_mut().for_each(|it| it.persisted(Timestamp(now), &changed, real_ns(&changed)));
            }
        }
        now as f64 / (0..STEPS).map(step_ns).sum::<u64>() as f64
    }

    #[test]
    fn under_failures_the_papers_rule_beats_persisting_always_and_ours_beats_both() {
        for mtbf_ns in [10 * SECOND, 60 * SECOND, 600 * SECOND] {
            let mean = |rule| (1..=4).map(|seed| simulated(rule, mtbf_ns, seed)).sum::<f64>() / 4.0;
            let (always, theirs, ours) = (mean(None), mean(Some(Rule::Recompute)), mean(Some(Rule::Exact)));
            assert!(ours < theirs && ours < always, "{mtbf_ns}: {always} {theirs} {ours}");
            assert!(theirs <= always * 1.02, "{mtbf_ns}: {always} {theirs} {ours}");
        }
    }
}
