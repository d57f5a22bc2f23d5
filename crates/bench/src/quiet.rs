//! Whether a benchmark had the machine for itself.

use serde::Serialize;

use crate::{clock::processor_seconds_with_children, pool::median};

/// Others may take this share of all processors before figures are doubtful.
const OTHERS_MAX: f64 = 0.05;
/// Copies in memory may be this much slower at one end than at the other.
const MEMCPY_MAX: f64 = 1.3;

/// What else has happened on the machine during a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quiet {
    /// The share of all processors' time that other processes took.
    pub others: f64,
    /// The share that the host of a virtual machine took away.
    pub stolen: f64,
    /// How much slower copies in memory were at one end of the benchmark than at the other.
    pub memcpy_changed: f64,
}

impl Quiet {
    /// Why the figures are doubtful, if they are.
    pub fn doubt(&self) -> Option<String> {
        let percent = |share: f64| (share * 100.0).round();
        let mut reasons = Vec::new();
        if self.others > OTHERS_MAX {
            reasons.push(format!("other processes took {} % of the processors", percent(self.others)));
        }
        if self.stolen > OTHERS_MAX {
            reasons.push(format!("the host took {} % of the processors away", percent(self.stolen)));
        }
        if self.memcpy_changed > MEMCPY_MAX {
            reasons.push(format!(
                "copies in memory were {:.1} times as fast at one end as at the other",
                self.memcpy_changed
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}

/// Looks at the machine from the beginning of a benchmark to its end.
#[derive(Debug)]
pub struct Watch {
    before: Times,
    own_seconds: f64,
    memcpy: f64,
}

impl Watch {
    /// Begins to look. Takes some milliseconds.
    pub fn begin() -> Self {
        let memcpy = memcpy_rate();
        Self { before: Times::now(), own_seconds: processor_seconds_with_children(), memcpy }
    }

    /// What has happened since.
    pub fn end(&self) -> Quiet {
        let times = Times::now().since(&self.before);
        let own = processor_seconds_with_children() - self.own_seconds;
        let memcpy = memcpy_rate();
        times.quiet(own, memcpy.max(self.memcpy) / memcpy.min(self.memcpy).max(1.0))
    }
}

/// The times of all processors together, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    busy: f64,
    stolen: f64,
    all: f64,
}

impl Times {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(&text, rustix::param::clock_ticks_per_second() as f64)
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, waiting for input and output,
    /// interrupts, soft interrupts, stolen.
    fn parse(text: &str, ticks_per_second: f64) -> Self {
        let fields = text.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
        let mut times = [0.0; 8];
        for (time, field) in times.iter_mut().zip(fields) {
            *time = field.parse::<f64>().unwrap_or(0.0) / ticks_per_second;
        }
        let [user, nice, system, idle, waiting, interrupts, soft, stolen] = times;
        let busy = user + nice + system + interrupts + soft;
        Self { busy, stolen, all: busy + idle + waiting + stolen }
    }

    fn since(&self, before: &Self) -> Self {
        Self { busy: self.busy - before.busy, stolen: self.stolen - before.stolen, all: self.all - before.all }
    }

    fn quiet(&self, own_seconds: f64, memcpy_changed: f64) -> Quiet {
        let share = |seconds: f64| if self.all > 0.0 { (seconds / self.all).clamp(0.0, 1.0) } else { 0.0 };
        Quiet { others: share(self.busy - own_seconds), stolen: share(self.stolen), memcpy_changed }
    }
}

/// Bytes per second of a copy that does not fit into the caches.
fn memcpy_rate() -> f64 {
    const BYTES: usize = 64 << 20;
    let (source, mut target) = (vec![1_u8; BYTES], vec![2_u8; BYTES]);
    let rates: Vec<f64> = (0..5)
        .map(|_| {
            let start = std::time::Instant::now();
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
            BYTES as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    median(&rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_is_what_is_busy_beyond_oneself() {
        let before = Times::parse("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 2 3\n", 100.0);
        let after = Times::parse("cpu  500 0 200 1300 0 0 0 200 0 0\n", 100.0);
        // Ten seconds have passed, of which processors were busy for five.
        let quiet = after.since(&before).quiet(4.0, 1.0);
        assert!((quiet.others - 0.1).abs() < 1e-9 && (quiet.stolen - 0.2).abs() < 1e-9, "{quiet:?}");
        let doubt = quiet.doubt().unwrap();
        assert!(doubt.contains("10 %") && doubt.contains("20 %"), "{doubt}");
        assert_eq!(Quiet { others: 0.04, stolen: 0.0, memcpy_changed: 1.2 }.doubt(), None);
    }

    #[test]
    fn a_machine_is_looked_at() {
        let quiet = Watch::begin().end();
        assert!((0.0..=1.0).contains(&quiet.others) && quiet.memcpy_changed >= 1.0, "{quiet:?}");
    }
}
