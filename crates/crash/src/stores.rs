//! Memory that survives, and what a crash leaves of it: stores that were flushed, and any part of
//! those that were not, 8 bytes at a time.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fastrand::Rng;

/// A processor writes so many bytes at once, and a cache so many.
const WORD: u64 = 8;
const LINE: u64 = 64;

/// Persistent memory, or a mapped file, that records what is done to it. Clones are the same
/// memory.
#[derive(Debug, Clone, Default)]
pub struct Stores(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    /// The bytes before anything was done, if something was.
    begun: Option<Vec<u8>>,
    now: Vec<u8>,
    log: Vec<Event>,
}

#[derive(Debug, Clone)]
enum Event {
    Grow(usize),
    Store { at: usize, bytes: Vec<u8> },
    Flush(Vec<Range<u64>>),
}

impl Stores {
    /// With these bytes, all of which are durable.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Content { now: bytes, begun: None, log: Vec::new() })))
    }

    /// The bytes as the program sees them.
    pub fn bytes(&self) -> Vec<u8> {
        self.content().now.clone()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.content().now.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds zeros, which are durable at once.
    pub fn grow(&self, len: usize) {
        let mut content = self.content();
        if len > content.now.len() {
            content.begin();
            content.now.resize(len, 0);
            content.log.push(Event::Grow(len));
        }
    }

    /// Reads bytes; `false` if they are not all there.
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let content = self.content();
        let found = at.checked_add(into.len()).and_then(|end| content.now.get(at..end));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }

    /// Writes bytes that are there.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        let mut content = self.content();
        content.begin();
        content.now[at..at + bytes.len()].copy_from_slice(bytes);
        content.log.push(Event::Store { at, bytes: bytes.to_vec() });
    }

    /// Makes what was stored in these ranges durable.
    pub fn flush(&self, ranges: &[Range<u64>]) {
        self.content().log.push(Event::Flush(ranges.to_vec()));
    }

    /// How many things were done: a moment between them is numbered by how many came before.
    pub fn moment(&self) -> usize {
        self.content().log.len()
    }

    /// Builds what a crash can leave after each of these moments, several for each, and gives them
    /// to `look` with the moment.
    pub fn images(&self, moments: Range<usize>, rng: &mut Rng, mut look: impl FnMut(usize, Vec<u8>)) {
        let content = self.content();
        content.replay(moments, |moment, durable, pending| {
            // In the middle of many stores, a few of the choices will do.
            let is_calm = matches!(content.log.get(moment), Some(Event::Store { bytes, .. }) if bytes.len() > 128);
            let choices = Choice::all(rng).into_iter().filter(|_| !is_calm || rng.u8(..40) == 0);
            for choice in choices.collect::<Vec<_>>() {
                let mut image = durable.to_vec();
                apply(&mut image, pending, |store, word| choice.takes(store, pending.len(), word));
                look(moment, image);
                if pending.is_empty() {
                    break;
                }
            }
        });
    }

    /// Builds everything that a crash can leave after each of these moments, and gives it to `look`
    /// with the moment: any subset of the words that were not flushed, or of stores if there are
    /// more than `words_max` words.
    ///
    /// # Panics
    ///
    /// If there are more than 16 of either: these are too many subsets.
    pub fn every_image(&self, moments: Range<usize>, words_max: usize, mut look: impl FnMut(usize, Vec<u8>)) {
        let content = self.content();
        content.replay(moments, |moment, durable, pending| {
            let left = |store: &Pending<'_>| store.is_left.iter().filter(|is_left| **is_left).count();
            let words: usize = pending.iter().map(left).sum();
            let count = if words <= words_max { words } else { pending.len() };
            assert!(count <= 16, "{count} are too many to try all subsets");
            for subset in 0..1u32 << count {
                let mut image = durable.to_vec();
                let mut number = 0;
                apply(&mut image, pending, |store, _| {
                    let bit = if words <= words_max { number } else { store };
                    number += 1;
                    subset >> bit & 1 == 1
                });
                look(moment, image);
            }
        });
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// Before the first change.
    fn begin(&mut self) {
        if self.begun.is_none() {
            self.begun = Some(self.now.clone());
        }
    }

    /// Goes through what was done, and gives what is durable at these moments, and what is not yet.
    fn replay(&self, moments: Range<usize>, mut at: impl FnMut(usize, &[u8], &[Pending<'_>])) {
        let mut durable = self.begun.as_ref().unwrap_or(&self.now).clone();
        let mut pending: Vec<Pending<'_>> = Vec::new();
        for moment in 0..=self.log.len().min(moments.end.saturating_sub(1)) {
            if moments.contains(&moment) {
                at(moment, &durable, &pending);
            }
            match self.log.get(moment) {
                Some(Event::Grow(len)) => durable.resize(*len, 0),
                Some(Event::Store { at, bytes }) => pending.push(Pending::new(*at, bytes)),
                Some(Event::Flush(ranges)) => {
                    // A cache writes back whole lines.
                    let covers = |word: usize| {
                        let line = word as u64 / LINE * LINE;
                        ranges.iter().any(|range| line < range.end && range.start < line + LINE)
                    };
                    apply(&mut durable, &pending, |_, word| covers(word));
                    pending.retain_mut(|store| store.forget(covers));
                }
                None => {}
            }
        }
    }
}

/// A store of which some words were not flushed.
struct Pending<'a> {
    at: usize,
    bytes: &'a [u8],
    /// By word.
    is_left: Vec<bool>,
}

impl<'a> Pending<'a> {
    fn new(at: usize, bytes: &'a [u8]) -> Self {
        let mut store = Self { at, bytes, is_left: Vec::new() };
        store.is_left = store.words().map(|_| true).collect();
        store
    }

    /// Where its words begin.
    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        let word = WORD as usize;
        (self.at / word * word..self.at + self.bytes.len()).step_by(word)
    }

    /// Forgets words that were flushed. Whether some are left.
    fn forget(&mut self, is_flushed: impl Fn(usize) -> bool) -> bool {
        self.words().zip(&mut self.is_left).for_each(|(word, is_left)| *is_left &= !is_flushed(word));
        self.is_left.contains(&true)
    }
}

/// Carries out those words of stores that are taken.
fn apply(image: &mut [u8], stores: &[Pending<'_>], mut takes: impl FnMut(usize, usize) -> bool) {
    for (number, store) in stores.iter().enumerate() {
        let left = store.words().zip(&store.is_left).filter(|(_, is_left)| **is_left);
        for (word, _) in left.filter(|(word, _)| takes(number, *word)) {
            let (from, to) = (word.max(store.at), (word + WORD as usize).min(store.at + store.bytes.len()));
            image[from..to].copy_from_slice(&store.bytes[from - store.at..to - store.at]);
        }
    }
}

/// Which words of stores that were not flushed reach the medium.
#[derive(Debug, Clone, Copy)]
enum Choice {
    All,
    None,
    AllButLast,
    OnlyLast,
    AllButOne(u64),
    Lines(u64),
    Words(u64),
    WordsOfLast(u64),
}

impl Choice {
    /// One of each. The first is taken where nothing is pending.
    fn all(rng: &mut Rng) -> [Self; 10] {
        let mut seed = || rng.u64(..);
        [
            Self::All,
            Self::None,
            Self::AllButLast,
            Self::OnlyLast,
            Self::AllButOne(seed()),
            Self::Lines(seed()),
            Self::Words(seed()),
            Self::WordsOfLast(seed()),
            Self::WordsOfLast(seed()),
            Self::WordsOfLast(seed()),
        ]
    }

    fn takes(self, store: usize, stores: usize, word: usize) -> bool {
        // The same question has the same answer.
        let is_heads = |seed: u64, of: u64| Rng::with_seed(seed ^ of.wrapping_mul(0x9e37_79b9_7f4a_7c15)).bool();
        match self {
            Self::All => true,
            Self::None => false,
            Self::AllButLast => store + 1 < stores,
            Self::OnlyLast => store + 1 == stores,
            Self::AllButOne(seed) => store as u64 != seed % stores as u64,
            Self::Lines(seed) => is_heads(seed, word as u64 / LINE),
            Self::Words(seed) => is_heads(seed, word as u64 / WORD),
            Self::WordsOfLast(seed) => store + 1 < stores || is_heads(seed, word as u64 / WORD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subset_of_what_was_not_flushed_is_in_an_image() {
        let stores = Stores::new(vec![0; 256]);
        stores.store(0, &[1; 8]);
        stores.flush(std::slice::from_ref(&(0..64)));
        stores.store(64, &[2; 16]);
        stores.store(128, &[3; 8]);
        let subsets = |words_max| {
            let mut seen = std::collections::BTreeSet::new();
            stores.every_image(4..5, words_max, |moment, image| {
                assert_eq!((moment, image[0]), (4, 1));
                assert!(seen.insert((image[64], image[72], image[128])));
            });
            seen
        };
        let by_word = [0, 2].into_iter().flat_map(|a| [0, 2].map(|b| [(a, b, 0), (a, b, 3)])).flatten();
        assert_eq!(subsets(3), by_word.collect());
        assert_eq!(subsets(2), [(0, 0, 0), (0, 0, 3), (2, 2, 0), (2, 2, 3)].into());
    }

    #[test]
    fn what_was_flushed_is_in_every_image_and_the_rest_is_in_some() {
        let stores = Stores::new(vec![0; 256]);
        stores.store(8, &[1; 16]);
        stores.flush(std::slice::from_ref(&(0..64)));
        stores.store(64, &[2; 16]);
        stores.store(3, &[3; 2]);
        let mut seen = std::collections::BTreeSet::new();
        let mut rng = Rng::with_seed(1);
        stores.images(stores.moment()..stores.moment() + 1, &mut rng, |moment, image| {
            assert_eq!((moment, image.len()), (4, 256));
            assert_eq!(image[8..24], [1; 16]);
            seen.insert((image[64], image[72], image[3]));
        });
        assert!(seen.contains(&(0, 0, 0)) && seen.contains(&(2, 2, 3)) && seen.contains(&(2, 2, 0)), "{seen:?}");
        let mut first = Vec::new();
        stores.images(1..2, &mut rng, |_, image| first.push((image[8], image[16])));
        assert!(first.contains(&(0, 0)) && first.contains(&(1, 1)), "{first:?}");
    }
}
