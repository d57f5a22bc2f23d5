//! When to save: the best time between two saves, from the cost of a save and the rate of failures.

use crate::{LayerIndex, Timestamp, rates::Average};

/// How to choose the time to compute between two saves.
///
/// `cost` is the time that a save costs, and `mtbf` the mean time between failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// √(2 cost mtbf), after Young. Good if a save costs little compared with the time between
    /// failures.
    Young,
    /// Young's formula with two more terms of the series, after Daly.
    Daly,
    /// The exact optimum for failures that occur at random at a constant rate.
    Exact,
    /// Saves as soon as recomputing the unsaved work would take longer than a save. This ignores
    /// failures, and spends half of the time on saving even if failures are rare. For comparison
    /// only.
    Recompute,
    /// A fixed number of nanoseconds.
    Fixed(u64),
}

impl Rule {
    /// The time to compute between two saves.
    pub fn interval_ns(self, cost_ns: f64, mtbf_ns: f64) -> f64 {
        let ratio = cost_ns / mtbf_ns;
        match self {
            Self::Young => (2.0 * cost_ns * mtbf_ns).sqrt(),
            Self::Daly if ratio >= 2.0 => mtbf_ns,
            Self::Daly => {
                let half = ratio / 2.0;
                (2.0 * cost_ns * mtbf_ns).sqrt() * (1.0 + half.sqrt() / 3.0 + half / 9.0) - cost_ns
            }
            Self::Exact => mtbf_ns * optimum(ratio),
            Self::Recompute => cost_ns,
            Self::Fixed(ns) => ns as f64,
        }
    }
}

/// The best time between two saves that cost `cost`, in units of the mean time between failures:
/// `1 + W₀(-exp(-cost - 1))`, where W₀ is the upper branch of Lambert's function.
///
/// It is the x in (0, 1) with x + ln(1 - x) + cost = 0. Right of the root this function falls more
/// and more steeply, so Newton's method, started there, approaches the root without passing it.
fn optimum(cost: f64) -> f64 {
    let root = (2.0 * cost).sqrt();
    if root < 1e-4 {
        // The logarithm would lose more digits than the series does.
        return root - root * root / 3.0;
    }
    if cost > 30.0 {
        return 1.0;
    }
    let mut x = root.min(1.0 - (-cost - 1.0).exp());
    for _ in 0..64 {
        let step = (x + (-x).ln_1p() + cost) * (1.0 - x) / x;
        x += step;
        if step.abs() <= x * 1e-15 {
            break;
        }
    }
    x
}

/// Tells a program when its next save is due, and which layer it should reach.
///
/// Each layer has its own failures: those that destroy everything above the layer, but not the
/// layer. Only a save that reached the layer helps against them, so each layer has its own
/// interval. A save that reaches a layer also counts for the layers above.
#[derive(Debug, Clone)]
pub struct Interval {
    rule: Rule,
    layers: Vec<LayerInterval>,
}

/// The measurements of the saves that reach one layer.
#[derive(Debug, Clone)]
struct LayerInterval {
    mtbf_ns: Option<u64>,
    cost_ns: Average,
    /// When the program continued to compute after the last of them.
    saved: Timestamp,
}

impl Interval {
    /// `mtbf_ns` has, for each layer, the mean time between the failures that it should survive,
    /// fastest layer first. A layer without one is never due, except by the rules that ignore
    /// failures. The program begins to compute at `now`.
    pub fn new(rule: Rule, mtbf_ns: &[Option<u64>], now: Timestamp) -> Self {
        let layer = |&mtbf_ns| LayerInterval { mtbf_ns, cost_ns: Average::default(), saved: now };
        Self { rule, layers: mtbf_ns.iter().map(layer).collect() }
    }

    /// Records what a save that reached `layer` has cost the program. Recent measurements count
    /// most.
    pub fn measured(&mut self, layer: LayerIndex, cost_ns: u64) {
        if let Some(layer) = self.layers.get_mut(layer) {
            layer.cost_ns.add(cost_ns as f64);
        }
    }

    /// Records that the program continues to compute at `now`, after a save that reached `layer`.
    pub fn saved(&mut self, layer: LayerIndex, now: Timestamp) {
        for layer in self.layers.iter_mut().take(layer + 1) {
            layer.saved = now;
        }
    }

    /// The time to compute between two saves that reach `layer`, or `None` if it is never due. Zero
    /// until the cost of a save is known: the first save measures it, and before it nothing is
    /// safe.
    pub fn interval_ns(&self, layer: LayerIndex) -> Option<u64> {
        let layer = self.layers.get(layer)?;
        let cost_ns = layer.cost_ns.get();
        match (self.rule, layer.mtbf_ns) {
            (Rule::Fixed(ns), _) => Some(ns),
            (Rule::Recompute, _) => Some(cost_ns.unwrap_or(0.0) as u64),
            (_, None) => None,
            (rule, Some(mtbf_ns)) => {
                Some(cost_ns.map_or(0.0, |cost_ns| rule.interval_ns(cost_ns, mtbf_ns.max(1) as f64)) as u64)
            }
        }
    }

    /// The deepest layer for which a save is due at `now`, if any.
    pub fn due(&self, now: Timestamp) -> Option<LayerIndex> {
        let is_due = |&layer: &LayerIndex| {
            let elapsed_ns = now.0.saturating_sub(self.layers[layer].saved.0);
            self.interval_ns(layer).is_some_and(|interval_ns| elapsed_ns >= interval_ns)
        };
        (0..self.layers.len()).rev().find(is_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;

    fn minutes(rule: Rule, cost_ns: u64, mtbf_ns: u64) -> f64 {
        rule.interval_ns(cost_ns as f64, mtbf_ns as f64) / MINUTE as f64
    }

    #[test]
    fn the_rules_give_the_known_values() {
        let cost = 5 * MINUTE;
        for (mtbf, expected) in [(24 * HOUR, 116.7), (6 * HOUR, 56.7), (15 * MINUTE, 9.15)] {
            assert!((minutes(Rule::Exact, cost, mtbf) - expected).abs() < 0.06, "{mtbf}");
            assert!((minutes(Rule::Daly, cost, mtbf) - expected).abs() < 0.1, "{mtbf}");
        }
        assert_eq!(minutes(Rule::Young, cost, 24 * HOUR), 120.0);
        assert_eq!(minutes(Rule::Daly, 5 * HOUR, 2 * HOUR), 120.0);
        assert_eq!(minutes(Rule::Recompute, cost, HOUR), 5.0);
        assert_eq!(minutes(Rule::Fixed(HOUR), cost, HOUR), 60.0);
    }

    #[test]
    fn the_optimum_solves_its_equation_at_every_scale() {
        let mut last = 0.0;
        for exponent in -150..20 {
            let cost = 10f64.powf(f64::from(exponent) / 10.0);
            let x = optimum(cost);
            assert!(x > last || x == 1.0, "it grows with the cost: {cost} gives {x}");
            last = x;
            // For small x the left side is x²/2 + x³/3 + ..., a form that loses no digits.
            let left = if x < 1e-3 { x * x / 2.0 + x * x * x / 3.0 } else { -x - (-x).ln_1p() };
            assert!(x == 1.0 || (left / cost - 1.0).abs() < 1e-5, "{cost} gives {x}, and that {left}");
        }
    }

    #[test]
    fn every_layer_is_due_in_its_own_time_and_the_deepest_goes_first() {
        let mtbf = [Some(HOUR), Some(100 * HOUR), None];
        let mut interval = Interval::new(Rule::Young, &mtbf, Timestamp(0));
        assert_eq!(interval.due(Timestamp(0)), Some(1), "nothing is known: one save tells");
        for layer in 0..3 {
            interval.measured(layer, 2 * SECOND);
        }
        interval.saved(1, Timestamp(0));
        let short = interval.interval_ns(0).unwrap();
        let long = interval.interval_ns(1).unwrap();
        assert_eq!((short, long), (120 * SECOND, 1200 * SECOND));
        assert_eq!(interval.interval_ns(2), None);
        assert_eq!(interval.due(Timestamp(short - 1)), None);
        assert_eq!(interval.due(Timestamp(short)), Some(0));
        interval.saved(0, Timestamp(short));
        assert_eq!(interval.due(Timestamp(short + 1)), None);
        assert_eq!(interval.due(Timestamp(long)), Some(1));
        interval.saved(1, Timestamp(long));
        assert_eq!(interval.due(Timestamp(long + short - 1)), None, "it counts for the layer above as well");
    }

    #[test]
    fn costs_are_smoothed_and_follow_what_is_measured() {
        let mut interval = Interval::new(Rule::Young, &[Some(HOUR)], Timestamp(0));
        interval.measured(0, 2 * SECOND);
        interval.measured(0, 200 * SECOND);
        let after_one = interval.interval_ns(0).unwrap();
        assert!(after_one > 120 * SECOND && after_one < 1200 * SECOND);
        for _ in 0..30 {
            interval.measured(0, 200 * SECOND);
        }
        assert!(interval.interval_ns(0).unwrap().abs_diff(1200 * SECOND) < SECOND);
    }

    #[test]
    fn odd_settings_are_harmless() {
        for rule in [Rule::Young, Rule::Daly, Rule::Exact, Rule::Recompute, Rule::Fixed(7)] {
            let mut interval = Interval::new(rule, &[Some(0), Some(u64::MAX), None], Timestamp(5));
            for cost in [0, u64::MAX, 1] {
                for layer in 0..4 {
                    interval.measured(layer, cost);
                    interval.saved(layer, Timestamp(6));
                    let _ =
                        (interval.interval_ns(layer), interval.due(Timestamp(0)), interval.due(Timestamp(u64::MAX)));
                }
            }
        }
        assert_eq!(Interval::new(Rule::Exact, &[], Timestamp(0)).due(Timestamp(1)), None);
    }

    /// Simulates a run that computes for `work_ns`, saves when told to, and returns to its last
    /// save after each failure. Returns its duration, relative to a run without failures and saves.
    fn simulated(rule: Rule, cost_ns: u64, mtbf_ns: u64, work_ns: u64, seed: u64) -> f64 {
        let mut random = seed;
        let mut next_failure = move |now: u64| {
            // SplitMix64.
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
            now + (-(1.0 - unit).ln() * mtbf_ns as f64) as u64
        };
        let step_ns = 20 * SECOND;
        let (mut now, mut done, mut safe) = (0, 0, 0);
        let mut failure = next_failure(0);
        let mut interval = Interval::new(rule, &[Some(mtbf_ns)], Timestamp(0));
        interval.measured(0, cost_ns);
        while safe < work_ns {
            let is_save = interval.due(Timestamp(now)).is_some();
            now += if is_save { cost_ns } else { step_ns };
            if now >= failure {
                (now, done) = (failure, safe);
                failure = next_failure(now);
                interval.saved(0, Timestamp(now));
            } else if is_save {
                safe = done;
                interval.saved(0, Timestamp(now));
            } else {
                done += step_ns;
            }
        }
        now as f64 / safe as f64
    }

    #[test]
    fn no_other_interval_beats_the_exact_optimum_and_recomputing_is_worse_where_failures_are_rare() {
        let cost = 5 * MINUTE;
        for mtbf in [24 * HOUR, 6 * HOUR, HOUR] {
            let mean = |rule| (1..=4).map(|seed| simulated(rule, cost, mtbf, 2_000 * HOUR, seed)).sum::<f64>() / 4.0;
            let exact = mean(Rule::Exact);
            let best_ns = Rule::Exact.interval_ns(cost as f64, mtbf as f64);
            for factor in [0.25, 0.5, 0.75, 1.35, 2.0, 4.0] {
                let other = mean(Rule::Fixed((best_ns * factor) as u64));
                assert!(exact <= other * 1.01, "{factor} of the optimum: {other} against {exact}");
            }
            for rule in [Rule::Young, Rule::Daly] {
                assert!(exact <= mean(rule) * 1.01, "{rule:?}");
            }
            assert!((mean(Rule::Fixed((best_ns * 4.0) as u64))) > exact * 1.05, "the simulation can tell them apart");
            if mtbf == 24 * HOUR {
                assert!(mean(Rule::Recompute) > exact * 1.5, "it saves all the time");
            }
        }
    }
}
