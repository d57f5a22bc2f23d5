//! Decides how often a rank looks for messages. It is told the time.

use std::time::Duration;

/// The shortest and the longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The pause is this fraction of the time waited so far. So a message is late by at most this
/// fraction.
const SHARE_OF_WAIT: u32 = 8;

/// The pause is at least this many times as long as the last look. So looking at the files of many
/// ranks, or on a slow file system, does not use up all the time.
const TIMES_OF_LOOK: u32 = 4;

/// When to look next.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The time of the last message.
    since: Duration,
    next: Duration,
}

impl Pace {
    /// A message is likely to come soon.
    pub(crate) fn hurry(&mut self, now: Duration) {
        (self.since, self.next) = (now, now);
    }

    pub(crate) fn is_time(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// When the next look is due.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// A look has ended, and has found something or not.
    pub(crate) fn looked(&mut self, begun: Duration, ended: Duration, has_news: bool) {
        if has_news {
            self.since = ended;
        }
        let waited = ended.saturating_sub(self.since) / SHARE_OF_WAIT;
        let pause = waited.max(ended.saturating_sub(begun) * TIMES_OF_LOOK);
        self.next = ended + pause.clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare_while_nothing_comes_and_slow_ones_take_a_fifth_of_the_time() {
        let (mut pace, mut now, mut looks) = (Pace::default(), Duration::ZERO, 0);
        while now < Duration::from_secs(10) {
            now = pace.next();
            pace.looked(now, now, false);
            looks += 1;
        }
        assert!(looks < 150, "{looks} looks in ten seconds");
        let before = pace.next();
        pace.looked(before, before, true);
        assert_eq!(pace.next(), before + PAUSE_MIN, "who speaks may say more");
        pace.hurry(Duration::from_secs(20));
        assert!(pace.is_time(Duration::from_secs(20)) && !pace.is_time(Duration::from_secs(19)));
        let (begun, ended) = (Duration::from_secs(20), Duration::from_millis(20_010));
        pace.looked(begun, ended, true);
        assert_eq!(pace.next(), ended + Duration::from_millis(40));
    }
}
