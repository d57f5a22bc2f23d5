//! Samples in files, and how they are parted for a test.

use outcrop_cost::{Growth, ModelTree, Samples};

/// Rows of numbers, the last of which is the target, below a line of names.
pub(crate) fn read(text: &str) -> Samples {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut samples = Samples::new(&names[..names.len() - 1]);
    for line in lines {
        let row: Vec<f64> = line.split(',').map(|value| value.parse().unwrap()).collect();
        samples.push(&row[..row.len() - 1], row[row.len() - 1]);
    }
    samples
}

/// Predicts each of ten parts with what was learned from the other nine. The relative absolute
/// error of all.
pub(crate) fn ten_fold(samples: &Samples, growth: Growth) -> f64 {
    let order = shuffled(samples.len(), 1);
    let (mut errors, mut mean_errors) = (0.0, 0.0);
    for fold in folds(samples.len()) {
        let train: Vec<usize> = (0..samples.len()).filter(|at| !fold.contains(at)).map(|at| order[at]).collect();
        let (train, test) = (samples.only(&train), samples.only(&order[fold]));
        let tree = ModelTree::train(&train, growth);
        let (error, mean_error) = test.absolute_errors(&tree, &train);
        errors += error;
        mean_errors += mean_error;
    }
    errors / mean_errors
}

/// Ten ranges of about the same length.
fn folds(count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let start = move |fold: usize| fold * (count / 10) + fold.min(count % 10);
    (0..10).map(move |fold| start(fold)..start(fold + 1))
}

/// The order in which Weka takes rows: shuffled with Java's generator of random numbers, which its
/// documentation describes.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (seed ^ MULTIPLIER) & MASK;
    let mut next = move || {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        (state >> 17) as i32
    };
    let mut below = move |bound: i32| {
        if bound & -bound == bound {
            return ((i64::from(bound) * i64::from(next())) >> 31) as i32;
        }
        loop {
            let bits = next();
            let value = bits % bound;
            if bits.wrapping_sub(value).wrapping_add(bound - 1) >= 0 {
                return value;
            }
        }
    };
    let mut order: Vec<usize> = (0..count).collect();
    (1..count).rev().for_each(|at| order.swap(at, below(at as i32 + 1) as usize));
    order
}
