//! Decides which contributions belong to the same exchange. No files, no clock, no waiting.
//!
//! The exchanges of each topic are numbered. A rank moves on to the next number only when it has
//! the contributions of all ranks to the current one. So if it times out and tries again, it
//! repeats the same exchange. Its first contribution counts, because others may have continued with
//! it.

use std::collections::{BTreeMap, HashMap};

/// The contributions of this rank and of others to exchanges that are not complete.
#[derive(Debug)]
pub(crate) struct Exchanges {
    rank: u32,
    /// By topic: the exchange that is under way or comes next.
    present: HashMap<String, Present>,
    /// By rank, topic and number: contributions of other ranks to exchanges that are not complete.
    heard: Vec<HashMap<String, BTreeMap<u64, Vec<u8>>>>,
}

#[derive(Debug, Default)]
struct Present {
    number: u64,
    /// The contribution of this rank, if it has made one.
    mine: Option<Vec<u8>>,
}

impl Exchanges {
    /// The exchanges of `rank` out of `count`.
    pub(crate) fn new(rank: u32, count: u32) -> Self {
        Self { rank, present: HashMap::new(), heard: (0..count).map(|_| HashMap::new()).collect() }
    }

    /// The number under which this rank must contribute to the current exchange; `None` if it has
    /// contributed.
    pub(crate) fn due(&self, topic: &str) -> Option<u64> {
        match self.present.get(topic) {
            None => Some(0),
            Some(Present { number, mine: None }) => Some(*number),
            Some(_) => None,
        }
    }

    /// This rank has contributed.
    pub(crate) fn contributed(&mut self, topic: &str, mine: &[u8]) {
        self.present.entry(topic.to_owned()).or_default().mine = Some(mine.to_vec());
    }

    /// Another rank has contributed. Contributions to complete exchanges are discarded.
    pub(crate) fn heard(&mut self, rank: u32, topic: &str, number: u64, contribution: &[u8]) {
        let next = self.present.get(topic).map_or(0, |present| present.number);
        if number < next || rank == self.rank {
            return;
        }
        if let Some(heard) = self.heard.get_mut(rank as usize) {
            let of_topic = heard.entry(topic.to_owned()).or_default();
            // The first contribution counts, because somebody may have continued with it.
            of_topic.entry(number).or_insert_with(|| contribution.to_vec());
        }
    }

    /// The contributions of all ranks to the current exchange, by rank, if all are there. Then
    /// moves on to the next exchange.
    pub(crate) fn complete(&mut self, topic: &str) -> Option<Vec<Vec<u8>>> {
        let present = self.present.get_mut(topic)?;
        let (rank, number) = (self.rank, present.number);
        let is_there = |(other, heard): (u32, &HashMap<String, BTreeMap<u64, Vec<u8>>>)| {
            other == rank || heard.get(topic).is_some_and(|of_topic| of_topic.contains_key(&number))
        };
        if present.mine.is_none() || !(0..).zip(&self.heard).all(is_there) {
            return None;
        }
        let mut mine = present.mine.take();
        present.number += 1;
        let everybody = (0..).zip(&mut self.heard).map(|(other, heard)| {
            if other == rank {
                return mine.take().unwrap_or_default();
            }
            let Some(of_topic) = heard.get_mut(topic) else { return Vec::new() };
            let contribution = of_topic.remove(&number).unwrap_or_default();
            of_topic.retain(|&later, _| later > number);
            if of_topic.is_empty() {
                heard.remove(topic);
            }
            contribution
        });
        Some(everybody.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(exchanges: &mut Exchanges, topic: &str, mine: &[u8]) -> Option<u64> {
        let due = exchanges.due(topic);
        if due.is_some() {
            exchanges.contributed(topic, mine);
        }
        due
    }

    #[test]
    fn an_exchange_that_is_tried_again_is_the_same_one() {
        let mut exchanges = Exchanges::new(1, 2);
        assert_eq!(begin(&mut exchanges, "a", b"first"), Some(0));
        assert_eq!(exchanges.complete("a"), None, "the other has said nothing");
        assert_eq!(begin(&mut exchanges, "a", b"second"), None, "it has been said");
        exchanges.heard(0, "a", 0, b"zero");
        exchanges.heard(0, "a", 1, b"next");
        assert_eq!(exchanges.complete("a"), Some(vec![b"zero".to_vec(), b"first".to_vec()]));
        assert_eq!(exchanges.complete("a"), None, "this rank has not contributed to the next");
        assert_eq!(begin(&mut exchanges, "a", b"third"), Some(1));
        assert_eq!(exchanges.complete("a"), Some(vec![b"next".to_vec(), b"third".to_vec()]));
    }

    #[test]
    fn what_is_stale_or_repeated_or_of_nobody_is_discarded() {
        let mut exchanges = Exchanges::new(0, 2);
        exchanges.heard(1, "a", 0, b"one");
        exchanges.heard(1, "a", 0, b"again");
        exchanges.heard(0, "a", 0, b"forged");
        exchanges.heard(7, "a", 0, b"nobody");
        assert_eq!(begin(&mut exchanges, "a", b"zero"), Some(0));
        assert_eq!(exchanges.complete("a"), Some(vec![b"zero".to_vec(), b"one".to_vec()]));
        exchanges.heard(1, "a", 0, b"late");
        assert!(exchanges.heard.iter().all(HashMap::is_empty), "nothing is kept of it");
        assert_eq!(begin(&mut exchanges, "a", b"zero"), Some(1));
        assert_eq!(exchanges.complete("a"), None);
        assert_eq!(begin(&mut exchanges, "b", b"zero"), Some(0), "another topic has numbers of its own");
    }

    /// Ranks that give up and try again, in any order, and get messages with any delay, agree on
    /// every exchange.
    #[test]
    fn whoever_gives_up_and_tries_again_agrees_with_the_others() {
        const RANKS: u32 = 3;
        const ROUNDS: usize = 5;
        for seed in 0..2000_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut below = |limit: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % limit
            };
            let mut ranks: Vec<_> = (0..RANKS).map(|rank| Exchanges::new(rank, RANKS)).collect();
            let mut said: Vec<Vec<(u64, Vec<u8>)>> = vec![Vec::new(); RANKS as usize];
            let mut read = vec![vec![0; RANKS as usize]; RANKS as usize];
            let mut results: Vec<Vec<Vec<Vec<u8>>>> = vec![Vec::new(); RANKS as usize];
            for attempt in 0.. {
                if results.iter().all(|results| results.len() == ROUNDS) {
                    break;
                }
                assert!(attempt < 100_000, "seed {seed}: they never agree");
                let me = below(RANKS.into()) as usize;
                let other = below(RANKS.into()) as usize;
                if below(2) == 0 {
                    if let Some((number, contribution)) = said[other].get(read[me][other]) {
                        ranks[me].heard(other as u32, "a", *number, contribution);
                        read[me][other] += 1;
                    }
                } else if results[me].len() < ROUNDS {
                    // A different contribution at each attempt.
                    let mine = vec![me as u8, attempt as u8];
                    if let Some(number) = begin(&mut ranks[me], "a", &mine) {
                        said[me].push((number, mine));
                    }
                    results[me].extend(ranks[me].complete("a"));
                }
            }
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {results:?}");
        }
    }
}
