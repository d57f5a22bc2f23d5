//! The copier copies correctly for all lengths, addresses and numbers of threads.

use outcrop_memory::Copier;
use proptest::prelude::*;

fn check(copier: &Copier, bytes: usize, from: usize, to: usize) {
    let source: Vec<u8> = (0..from + bytes).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect();
    let mut target = vec![0xEE; to + bytes + 100];
    copier.copy(&mut target[to..to + bytes], &source[from..]);
    assert!(target[to..to + bytes] == source[from..], "{bytes} bytes from {from} to {to}");
    assert!(target[..to].iter().chain(&target[to + bytes..]).all(|&byte| byte == 0xEE), "outside of {bytes} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lengths_around_the_first_threshold(bytes in 0_usize..200_000, from in 0_usize..100, to in 0_usize..100) {
        check(&Copier::new(2), bytes, from, to);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn lengths_that_are_shared_between_threads(
        extra in 0_usize..3_000_000, from in 0_usize..100, to in 0_usize..100, threads in 1_usize..5,
    ) {
        let copier = Copier::new(threads);
        // The first four copies use all threads, the fifth uses one, and later ones whichever is
        // faster.
        for expected in [Some(threads), Some(threads), Some(threads), Some(threads), Some(1), None] {
            check(&copier, (8 << 20) + extra, from, to);
            prop_assert!(expected.is_none_or(|expected| copier.threads_used() == expected));
        }
    }
}

#[test]
fn one_copier_serves_many_threads() {
    let copier = Copier::default();
    std::thread::scope(|scope| {
        for shift in 0..3 {
            let copier = &copier;
            scope.spawn(move || (0..3).for_each(|_| check(copier, (9 << 20) + shift, shift, 7)));
        }
    });
}

#[test]
#[should_panic(expected = "as much room")]
fn unequal_lengths_are_refused() {
    Copier::new(1).copy(&mut [0; 3], &[0; 4]);
}

#[test]
fn a_copy_by_shares_gives_each_of_them_once() {
    let bytes = 5 * outcrop_memory::SHARE_BYTES + 100;
    let source: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    for threads in [1, 3] {
        let (mut target, seen) = (vec![0; bytes], std::sync::Mutex::new(Vec::new()));
        Copier::new(threads).copy_shares(&mut target, &source, &|number, target, source| {
            seen.lock().unwrap().push((number, source.len(), source[0]));
            target.copy_from_slice(source);
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        let expected = |number: usize| {
            let start = number * outcrop_memory::SHARE_BYTES;
            (number, (bytes - start).min(outcrop_memory::SHARE_BYTES), source[start])
        };
        assert_eq!(seen, (0..6).map(expected).collect::<Vec<_>>());
        assert!(target == source, "{threads} threads");
    }
}

#[test]
fn a_copy_whose_share_fails_does_not_look_complete() {
    let copier = Copier::new(3);
    let source = vec![1; 8 * outcrop_memory::SHARE_BYTES];
    for round in 0..4 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut target = vec![0; source.len()];
            copier.copy_shares(&mut target, &source, &|number, _, _| assert!(number != 5, "on purpose"));
        }));
        assert!(failed.is_err(), "round {round}");
    }
}

#[test]
fn a_copy_shows_every_byte_once_and_in_order() {
    for bytes in [0, 1, 8191, 8192, 8193, 100_000] {
        let source: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let (mut target, mut seen) = (vec![0; bytes], Vec::new());
        outcrop_memory::copy_and_see(&mut target, &source, |block| seen.extend_from_slice(block));
        assert!(target == source && seen == source, "{bytes}");
    }
}
