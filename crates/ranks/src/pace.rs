//! How often a rank looks for what others say. Decides only: it is told the time.

use std::time::Duration;

/// Between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The longer nothing comes, the longer is the pause: at most so much of the time waited is lost.
const SHARE_OF_WAIT: u32 = 8;

/// A pause is so many times as long as the look before it, so that looking at the files of many
/// ranks, or at those of a slow file system, does not take all the time.
const TIMES_OF_LOOK: u32 = 4;

/// When to look next.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Since when nothing has come.
    since: Duration,
    next: Duration,
}

impl Pace {
    /// Something is likely to come soon.
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

    /// A look has taken so long, and has found something or not.
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
