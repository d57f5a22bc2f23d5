//! Which versions of a session to keep.

/// Which versions to keep. A version stays if at least one rule keeps it. Without any rule, all
/// stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Keep this many of the newest versions.
    pub keep_last: Option<u32>,
    /// Keep versions whose number is a multiple of this.
    pub keep_every: Option<u64>,
    /// Keep versions that are at most this old.
    pub keep_for_ns: Option<u64>,
}

impl Retention {
    /// The versions to drop, in ascending order. `complete` has the number of every complete
    /// version, and when it was saved. The newest, which is the one with the highest number, always
    /// stays.
    pub fn dropped(&self, now_unix_ns: u64, complete: &[(u64, u64)]) -> Vec<u64> {
        if *self == Self::default() {
            return Vec::new();
        }
        let mut newest_first = complete.to_vec();
        newest_first.sort_unstable_by(|a, b| b.cmp(a));
        newest_first.dedup_by_key(|&mut (version, _)| version);
        let last = self.keep_last.map_or(1, |count| count.max(1) as usize);
        let is_kept = |&(version, saved_at_unix_ns): &(u64, u64)| {
            // If the clock was set back, a version can be from the future: its age is then 0.
            let age_ns = now_unix_ns.saturating_sub(saved_at_unix_ns);
            self.keep_every.is_some_and(|every| version.is_multiple_of(every))
                || self.keep_for_ns.is_some_and(|keep_for_ns| age_ns <= keep_for_ns)
        };
        let older = newest_first.into_iter().skip(last);
        let mut dropped: Vec<_> = older.filter(|version| !is_kept(version)).map(|(version, _)| version).collect();
        dropped.reverse();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Versions 0 to 9, saved at 0, 10, ... 90.
    fn ten() -> Vec<(u64, u64)> {
        (0..10).map(|version| (version, version * 10)).collect()
    }

    #[test]
    fn each_rule_keeps_what_it_says() {
        let dropped = |retention: Retention| retention.dropped(90, &ten());
        let none = Retention::default();
        assert!(dropped(none).is_empty());
        assert_eq!(dropped(Retention { keep_last: Some(3), ..none }), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(dropped(Retention { keep_every: Some(4), ..none }), [1, 2, 3, 5, 6, 7]);
        assert_eq!(dropped(Retention { keep_for_ns: Some(20), ..none }), [0, 1, 2, 3, 4, 5, 6]);
        let all = Retention { keep_last: Some(2), keep_every: Some(5), keep_for_ns: Some(20) };
        assert_eq!(dropped(all), [1, 2, 3, 4, 6]);
    }

    #[test]
    fn the_newest_stays_whatever_is_asked_for() {
        let nothing = Retention { keep_last: Some(0), keep_every: Some(0), keep_for_ns: Some(0) };
        assert_eq!(nothing.dropped(u64::MAX, &[(7, 1)]), []);
        assert_eq!(nothing.dropped(u64::MAX, &[(9, 1), (7, 2), (8, 3)]), [7, 8]);
        assert_eq!(nothing.dropped(0, &[]), []);
    }

    prop_compose! {
        fn retentions()(
            keep_last in prop::option::of(0u32..6),
            keep_every in prop::option::of(0u64..6),
            keep_for_ns in prop::option::of(0u64..100),
        ) -> Retention {
            Retention { keep_last, keep_every, keep_for_ns }
        }
    }

    proptest! {
        /// Compares with the definition, one version at a time. A second call right after the first
        /// drops nothing more.
        #[test]
        fn a_version_is_dropped_if_and_only_if_no_rule_keeps_it(
            retention in retentions(),
            saved in prop::collection::btree_map(0u64..40, 0u64..100, 0..20),
            now in 0u64..150,
        ) {
            let complete: Vec<_> = saved.iter().map(|(&version, &at)| (version, at)).collect();
            let dropped = retention.dropped(now, &complete);
            prop_assert!(dropped.is_sorted());
            for &(version, at) in &complete {
                let newer = complete.iter().filter(|other| other.0 > version).count();
                let is_kept = retention == Retention::default()
                    || newer == 0
                    || retention.keep_last.is_some_and(|count| newer < count as usize)
                    || retention.keep_every.is_some_and(|every| every > 0 && version % every == 0 || version == 0)
                    || retention.keep_for_ns.is_some_and(|ns| now.saturating_sub(at) <= ns);
                prop_assert_eq!(dropped.contains(&version), !is_kept, "version {}", version);
            }
            let left: Vec<_> = complete.into_iter().filter(|(version, _)| !dropped.contains(version)).collect();
            prop_assert_eq!(retention.dropped(now, &left), Vec::<u64>::new());
        }
    }
}
