//! Ranks that communicate in memory. A test can end or kill a rank, and lose or repeat messages.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outcrop::store::{Ranks, RanksError, RanksResult};

/// Longer than any call takes here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of this many messages is repeated later.
const REPEATED_EVERY: usize = 5;

/// Where ranks communicate, once in each round.
pub(crate) struct Meeting {
    count: u32,
    /// The number of the message that is lost, counted from the first.
    lost: Option<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A message: the sender, and the bytes.
type Said = (u32, Vec<u8>);

#[derive(Default)]
struct State {
    /// By round, topic and number: what each rank has contributed.
    gathered: HashMap<(usize, String, usize), BTreeMap<u32, Vec<u8>>>,
    /// By round, topic and rank: the number of completed exchanges.
    exchanges: HashMap<(usize, String, u32), usize>,
    /// By round and rank: the messages that it has not received yet.
    queues: HashMap<(usize, u32), Vec<Said>>,
    said: Vec<(usize, u32, Vec<u8>)>,
    /// Ranks that have left a round, and ranks that will not join any more.
    left: BTreeSet<(usize, u32)>,
    ended: BTreeSet<u32>,
}

impl Meeting {
    pub(crate) fn new(count: u32, lost: Option<usize>) -> Arc<Self> {
        Arc::new(Self { count, lost, state: Mutex::default(), changed: Condvar::new() })
    }

    /// A rank in a round.
    pub(crate) fn seat(self: &Arc<Self>, round: usize, rank: u32) -> Seat {
        Seat { meeting: Arc::clone(self), round, rank }
    }

    /// A rank has ended, or was killed: it sends nothing from now on.
    pub(crate) fn end(&self, rank: u32) {
        self.state().ended.insert(rank);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn gone(&self, round: usize, count: u32) -> Option<u32> {
        (0..count).find(|rank| self.left.contains(&(round, *rank)) || self.ended.contains(rank))
    }
}

/// One rank of a round.
pub(crate) struct Seat {
    meeting: Arc<Meeting>,
    round: usize,
    rank: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.meeting.state().left.insert((self.round, self.rank));
        self.meeting.changed.notify_all();
    }
}

fn apart(detail: String) -> RanksError {
    RanksError::apart(detail)
}

impl Ranks for Seat {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn count(&self) -> u32 {
        self.meeting.count
    }

    fn gather(&self, topic: &str, mine: &[u8]) -> RanksResult<Vec<Vec<u8>>> {
        let Self { meeting, round, rank } = self;
        let mut state = meeting.state();
        let number = *state.exchanges.entry((*round, topic.to_owned(), *rank)).or_default();
        let exchange = (*round, topic.to_owned(), number);
        // The first contribution counts.
        state.gathered.entry(exchange.clone()).or_default().entry(*rank).or_insert_with(|| mine.to_vec());
        meeting.changed.notify_all();
        loop {
            let everybody = &state.gathered[&exchange];
            if everybody.len() == meeting.count as usize {
                let everybody = everybody.values().cloned().collect();
                *state.exchanges.entry((*round, topic.to_owned(), *rank)).or_default() += 1;
                return Ok(everybody);
            }
            let is_missing = |rank: &u32| !everybody.contains_key(rank);
            if let Some(rank) = state.gone(*round, meeting.count).filter(is_missing) {
                return Err(apart(format!("rank {rank} is gone, and this one waits for it")));
            }
            let waited = meeting.changed.wait_timeout(state, PATIENCE);
            let (waited, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if timeout.timed_out() {
                return Err(apart(format!("not all ranks came to {topic} in time")));
            }
        }
    }

    fn announce(&self, message: &[u8]) -> RanksResult<()> {
        let Self { meeting, round, rank } = self;
        let mut state = meeting.state();
        if state.ended.contains(rank) {
            return Err(apart(format!("rank {rank} has ended")));
        }
        let nth = state.said.len();
        state.said.push((*round, *rank, message.to_vec()));
        let mut messages = Vec::new();
        if meeting.lost != Some(nth) {
            messages.push(message.to_vec());
        }
        if nth % REPEATED_EVERY == 0 {
            let mine = state.said.iter().filter(|said| (said.0, said.1) == (*round, *rank));
            messages.extend(mine.take(nth / 2).last().map(|said| said.2.clone()));
        }
        for other in (0..meeting.count).filter(|other| other != rank) {
            let queue = state.queues.entry((*round, other)).or_default();
            queue.extend(messages.iter().map(|message| (*rank, message.clone())));
        }
        Ok(())
    }

    fn heard(&self) -> RanksResult<Vec<(u32, Vec<u8>)>> {
        let Self { meeting, round, rank } = self;
        let mut state = meeting.state();
        let messages = state.queues.remove(&(*round, *rank)).unwrap_or_default();
        match state.gone(*round, meeting.count) {
            Some(gone) if messages.is_empty() => Err(apart(format!("rank {gone} is gone"))),
            _ => Ok(messages),
        }
    }
}
