//! Shrinks a failing case until nothing more can be left out.

use super::case::{Case, Operation, Settings};

/// The largest number of smaller cases to try.
const TRIES_MAX: usize = 400;

/// The smallest case found that fails, and its failure. `run` returns how a case fails.
pub(super) fn shrink(mut case: Case, mut why: String, run: impl Fn(&Case) -> Option<String>) -> (Case, String) {
    let mut tries = 0;
    let mut attempt = |case: &mut Case, smaller: Case, why: &mut String| {
        tries += 1;
        if tries > TRIES_MAX || smaller == *case {
            return false;
        }
        let Some(failure) = run(&smaller) else { return false };
        (*case, *why) = (smaller, failure);
        true
    };
    loop {
        let before = case.clone();
        let mut length = case.operations.len() / 2;
        while length > 0 {
            let mut start = 0;
            while start < case.operations.len() {
                let mut smaller = case.clone();
                smaller.operations.drain(start..(start + length).min(case.operations.len()));
                if !attempt(&mut case, smaller, &mut why) {
                    start += length;
                }
            }
            length /= 2;
        }
        for smaller in plainer(&case) {
            // Each change is applied on top of the successful ones before it.
            let merged = Case { operations: smaller.operations, ..case.clone() };
            attempt(&mut case, merged, &mut why);
        }
        for ranks in 1..case.ranks {
            let smaller = Case { ranks, is_local: case.is_local && ranks > 1, ..case.clone() };
            if attempt(&mut case, smaller, &mut why) {
                break;
            }
        }
        if case == before {
            return (case, why);
        }
    }
}

/// The same case with plain settings: all sessions at once first, then one at a time.
fn plainer(case: &Case) -> Vec<Case> {
    let is_open = |operation: &Operation| matches!(operation, Operation::Open(_));
    let places: Vec<usize> = (0..case.operations.len()).filter(|nth| is_open(&case.operations[*nth])).collect();
    let plain = |places: &[usize]| {
        let mut plainer = case.clone();
        for nth in places {
            plainer.operations[*nth] = Operation::Open(Settings::plain(case.layers));
        }
        plainer
    };
    std::iter::once(plain(&places)).chain(places.iter().map(|nth| plain(&[*nth]))).collect()
}
