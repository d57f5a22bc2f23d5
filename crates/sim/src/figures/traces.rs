//! Snapshot sizes of a program that compresses.

/// The number of snapshots of a shot.
pub(super) const SNAPSHOTS: usize = 256;

/// The size of a snapshot before compression.
const RAW_BYTES: f64 = 192.0 * 1024.0 * 1024.0;

/// From the paper: "as high as 30x compression".
const COMPRESSION_MAX: f64 = 30.0;

/// The snapshot sizes of one shot: small at first, then growing as the wave spreads, with noise.
/// The paper has eight shots with 20 to 24 GB each; these are similar.
pub(super) fn shot(process: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(0x5107 + process as u64);
    // The wave fills the model sooner in some shots than in others.
    let filled_at = 0.90 + 0.18 * random.f64();
    let size = |index: usize| {
        let progress = (index as f64 / (SNAPSHOTS as f64 * filled_at)).min(1.0);
        let noise = 0.9 + 0.2 * random.f64();
        let fraction = (progress * (1.6 - 0.6 * progress) * 0.72 * noise).clamp(1.0 / COMPRESSION_MAX, 1.0);
        (RAW_BYTES * fraction) as u64 / 4096 * 4096
    };
    (0..SNAPSHOTS).map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shots_are_as_large_as_those_of_the_paper() {
        for process in 0..8 {
            let sizes = shot(process);
            let total = sizes.iter().sum::<u64>() as f64;
            assert!((20e9..24e9).contains(&total), "shot {process} has {total}");
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most / least > 20, "{least} to {most}");
            assert_eq!(sizes, shot(process));
        }
    }
}
