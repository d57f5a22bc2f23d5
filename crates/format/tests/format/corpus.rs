//! Runs every decoder on the corpus of its fuzz target, and on many changed copies of it.

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use fastrand::Rng;
use outcrop_testing::{amount, covered};

use crate::{
    decoders,
    samples::{self, Sample},
};

/// The number of changed inputs for each decoder.
fn changed_count() -> u64 {
    amount(8_000, 400_000)
}

fn folder(decoder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(decoder)
}

fn corpus(decoder: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(decoder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Checks that a file of the corpus has these bytes. `OUTCROP_GOLDEN=write` writes it.
pub(crate) fn assert_in_corpus(decoder: &str, name: &str, bytes: &[u8]) {
    let path = folder(decoder).join(name);
    if env::var("OUTCROP_GOLDEN").is_ok_and(|wish| wish == "write") {
        fs::create_dir_all(folder(decoder)).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "{}", path.display());
}

/// An input with one to four changes, of the kinds that are hardest for decoders.
fn changed(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    const NUMBERS: [u64; 9] =
        [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];
    let mut bytes = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.u8(1..=4) {
        let at = rng.usize(..=bytes.len());
        let end = (at + rng.usize(..=40)).min(bytes.len());
        match rng.u8(..8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            2 if at < bytes.len() => bytes[at] = rng.u8(..),
            3 | 4 => {
                let number = NUMBERS[rng.usize(..NUMBERS.len())].to_le_bytes();
                let count = [1, 2, 4, 8][rng.usize(..4)].min(bytes.len() - at);
                bytes[at..at + count].copy_from_slice(&number[..count]);
            }
            5 => bytes.truncate(at),
            6 => bytes.extend_from_within(at..end),
            _ => {
                let other = &corpus[rng.usize(..corpus.len())];
                let start = rng.usize(..=other.len());
                let piece = &other[start..(start + rng.usize(..=64)).min(other.len())];
                bytes.splice(at..end, piece.iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn no_input_makes_a_decoder_panic() {
    let mut total = 0;
    for (name, decode) in decoders::ALL {
        let corpus = corpus(name);
        // How often there was an error and a value. Both must occur, or half of a decoder was not
        // reached.
        let mut outcomes = [0; 2];
        for seed in 0..changed_count() + corpus.len() as u64 {
            // The corpus itself comes first.
            let input = match corpus.get(seed as usize) {
                Some(input) => input.clone(),
                None => changed(&mut Rng::with_seed(seed), &corpus),
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| decode(&input)));
            let is_value = outcome.unwrap_or_else(|_| panic!("decoder {name}, seed {seed}: {input:02x?}"));
            outcomes[usize::from(is_value)] += 1;
        }
        assert!(outcomes.iter().all(|&count| count > changed_count() / 100), "{name}: {outcomes:?}");
        total += outcomes.iter().sum::<u64>();
        println!("{name}: {} values, {} errors", outcomes[1], outcomes[0]);
    }
    covered("inputs of decoders", format_args!("{total}, panics: 0"));
}

#[test]
fn valid_samples_are_in_the_corpus() {
    for (nth, Sample { file, header, manifest, .. }) in [samples::small(), samples::full()].into_iter().enumerate() {
        let index = header.index_range();
        let manifest = manifest.encode().unwrap();
        let inputs = [
            // The rest of the page is zero.
            ("header", file[..89].to_vec()),
            ("index", file[index.start as usize..index.end as usize].to_vec()),
            ("manifest", manifest[..manifest.len() - 16].to_vec()),
        ];
        for (decoder, input) in inputs {
            assert_in_corpus(decoder, &format!("sample-{nth}"), &input);
        }
    }
}
