//! Ranks on a simulated file system that shows names, lengths and bytes late and in another order,
//! with deaths, restarts, timeouts and failing writes. The same seed gives the same run.

mod medium;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use fastrand::Rng;
use outcrop_testing::{amount, covered};

use self::medium::{Kind, Sim, World};
use crate::{pace::Pace, talk::Talk};

/// The number of exchanges of each rank.
const STEPS: usize = 12;
const TOPICS: [&str; 2] = ["a", "b"];
/// The longest time for a run in which no rank dies: on any file system, and on one that guarantees
/// what NFS does.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(30);

/// The number of a process. Each life of a rank has another one.
type Life = u64;

/// A process that takes part.
struct Process {
    life: Life,
    rank: u32,
    talk: Option<Talk<Sim>>,
    pace: Pace,
    /// The time of its next look.
    wakes: Duration,
    /// When its current step began, and its timeout.
    began: Duration,
    patience: Duration,
    step: usize,
    attempt: u32,
    has_said: bool,
    /// By rank: whose messages it got, and how many.
    heard: BTreeMap<u32, (Life, u64)>,
    said: u64,
    end: Option<End>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Finished,
    /// It found another rank gone, or timed out.
    GaveUp(String),
    Killed,
}

/// The simulation of one seed.
struct Trial {
    seed: u64,
    world: Rc<RefCell<World>>,
    count: u32,
    /// For decisions that do not concern the file system.
    rng: Rng,
    lives: Life,
    /// By life of rank 0 and step: the result of the exchange.
    agreed: BTreeMap<(Life, usize), Vec<String>>,
    kind: Kind,
}

/// A contribution: its life, rank, step and attempt, and some bytes.
fn contribution(life: Life, rank: u32, step: usize, attempt: u32, length: usize) -> Vec<u8> {
    let mut bytes = format!("{life}/{rank}/{step}/{attempt}/").into_bytes();
    bytes.resize(bytes.len() + length, b'x');
    bytes
}

/// The numbers in a contribution.
fn numbers(text: &str) -> Vec<u64> {
    text.split('/').map_while(|number| number.parse().ok()).collect()
}

impl Trial {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let count = rng.u32(1..=7);
        let (world, agreed) = (World::new(kind, seed), BTreeMap::new());
        Self { seed, world, count, rng, lives: 0, agreed, kind }
    }

    fn now(&self) -> Duration {
        self.world.borrow().now
    }

    fn process(&mut self, rank: u32) -> Process {
        self.lives += 1;
        let wakes = self.now() + Duration::from_millis(self.rng.u64(..3000));
        Process {
            life: self.lives,
            rank,
            talk: None,
            pace: Pace::default(),
            wakes,
            began: wakes,
            patience: LONG,
            step: 0,
            attempt: 0,
            has_said: false,
            heard: BTreeMap::new(),
            said: 0,
            end: None,
        }
    }

    /// One run of all ranks. Some may be killed and started again. Returns how each has ended.
    fn run(&mut self, kills: usize) -> Vec<End> {
        let mut processes: Vec<Process> = (0..self.count).map(|rank| self.process(rank)).collect();
        let start = self.now();
        let mut kills: Vec<Duration> =
            (0..kills).map(|_| start + Duration::from_millis(self.rng.u64(..12_000))).collect();
        while let Some(next) = (0..processes.len())
            .filter(|&index| processes[index].end.is_none())
            .min_by_key(|&index| processes[index].wakes)
        {
            let now = processes[next].wakes.max(self.now());
            self.world.borrow_mut().now = now;
            assert!(now < start + 3 * LONG, "seed {}: somebody waits for ever", self.seed);
            if kills.iter().any(|&at| at <= now) {
                kills.retain(|&at| at > now);
                let victim = self.rng.usize(..processes.len());
                processes[victim].talk = None;
                processes[victim].end = Some(End::Killed);
                if self.rng.bool() {
                    // It is started again alone. The others must not take it for the process
                    // before.
                    let rank = processes[victim].rank;
                    processes[victim] = Process { patience: 2 * LONG / 3, ..self.process(rank) };
                }
                continue;
            }
            self.advance(&mut processes[next]);
        }
        processes.into_iter().filter_map(|process| process.end).collect()
    }

    /// Lets a process look once, and act on the result.
    fn advance(&mut self, process: &mut Process) {
        let now = self.now();
        let Some(talk) = &mut process.talk else {
            let medium = Sim { world: Rc::clone(&self.world), client: process.rank };
            let nonce = u128::from(process.life).to_le_bytes();
            match Talk::begin(medium, process.rank, self.count, nonce) {
                Ok(Some(talk)) => (process.talk, process.began) = (Some(talk), now),
                // The lock of the process before is still held, or the disk is full.
                Ok(None) | Err(_) => process.wakes = now + Duration::from_millis(500),
            }
            return;
        };
        let has_news = talk.look(now).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        process.pace.looked(now, now, has_news);
        process.wakes = process.pace.next() + Duration::from_micros(self.rng.u64(..500));
        self.listen(process);
        if process.step == 0 && !process.talk.as_ref().unwrap().has_met() {
            return self.check_patience(process);
        }
        self.exchange(process);
    }

    /// Messages of each rank arrive in order, without gaps, and from one life only.
    fn listen(&self, process: &mut Process) {
        for (from, message) in process.talk.as_mut().unwrap().heard() {
            let [life, rank, number] = numbers(std::str::from_utf8(&message).unwrap())[..] else {
                panic!("{message:?}")
            };
            let (known, count) = process.heard.entry(from).or_insert((life, 0));
            // Messages that could not be sent may be missing.
            let expected = if self.kind == Kind::Failing { number.max(*count) } else { *count };
            let expected = (u64::from(from), *known, expected);
            assert_eq!((rank, life, number), expected, "seed {}: what {} heard", self.seed, process.rank);
            *count = number + 1;
        }
    }

    /// The current step: sends a message, and takes part in an exchange.
    fn exchange(&mut self, process: &mut Process) {
        let (now, step) = (self.now(), process.step);
        // The same on all ranks.
        let topic = TOPICS[Rng::with_seed(self.seed * 1000 + step as u64).usize(..2)];
        let talk = process.talk.as_mut().unwrap();
        if !process.has_said {
            (process.began, process.has_said) = (now, true);
            // Some time out early, and try again.
            process.patience = if self.rng.u8(..6) == 0 { Duration::from_millis(30) } else { LONG };
            process.pace.hurry(now);
            if process.attempt == 0 && self.rng.bool() {
                let message = format!("{}/{}/{}/", process.life, process.rank, process.said);
                let said = talk.announce(message.as_bytes());
                assert!(said.is_ok() || self.kind == Kind::Failing, "seed {}: {said:?}", self.seed);
                process.said += 1;
            }
            let length = if self.rng.u8(..5) == 0 { self.rng.usize(..20_000) } else { self.rng.usize(..300) };
            let mine = contribution(process.life, process.rank, step, process.attempt, length);
            process.has_said = talk.contribute(topic, &mine).is_ok();
        }
        if let Some(everybody) = talk.complete(topic) {
            self.check(process, &everybody);
            (process.step, process.attempt, process.has_said) = (step + 1, 0, false);
            if process.step == STEPS {
                process.end = Some(End::Finished);
                if self.kind == Kind::CloseToOpen {
                    // The others must still get its last messages.
                    process.talk = None;
                }
            }
            return;
        }
        if let Some(gone) = talk.gone() {
            process.end = Some(End::GaveUp(format!("{gone:?}")));
            process.talk = None;
            return;
        }
        if process.patience < LONG && now > process.began + process.patience {
            (process.attempt, process.has_said) = (process.attempt + 1, false);
            return;
        }
        self.check_patience(process);
    }

    fn check_patience(&self, process: &mut Process) {
        if self.now() > process.began + process.patience {
            let has_met = process.talk.as_ref().is_some_and(Talk::has_met);
            let is_unsure = self.kind != Kind::CloseToOpen || !has_met;
            assert!(is_unsure, "seed {}: rank {} did not find out who is gone", self.seed, process.rank);
            let doubt = process.talk.as_ref().and_then(|talk| talk.doubt().map(|(_, doubt)| doubt.to_owned()));
            process.end = Some(End::GaveUp(format!("patience in step {}: {doubt:?}", process.step)));
            process.talk = None;
        }
    }

    /// All contributions belong to this exchange and to one life of each rank, and all ranks get
    /// the same.
    fn check(&mut self, process: &Process, everybody: &[Vec<u8>]) {
        let (seed, step) = (self.seed, process.step);
        let texts: Vec<String> =
            everybody.iter().map(|bytes| String::from_utf8_lossy(bytes).trim_end_matches('x').to_owned()).collect();
        let lives: Vec<Life> = texts.iter().map(|text| numbers(text)[0]).collect();
        for (rank, text) in texts.iter().enumerate() {
            let numbers = numbers(text);
            assert_eq!((numbers[1], numbers[2]), (rank as u64, step as u64), "seed {seed}: {texts:?}");
        }
        assert_eq!(lives[process.rank as usize], process.life, "seed {seed}: an earlier life of its own");
        let agreed = self.agreed.entry((lives[0], step)).or_insert_with(|| texts.clone());
        assert_eq!(*agreed, texts, "seed {seed}: ranks disagree in step {step}");
        if let Some(first) = self.agreed.get(&(lives[0], 0)) {
            let first: Vec<Life> = first.iter().map(|text| numbers(text)[0]).collect();
            assert_eq!(first, lives, "seed {seed}: another life in step {step}");
        }
    }
}

fn sweep(kind: Kind, seeds: u64) {
    let seeds = amount(seeds, seeds * 100);
    for seed in 0..seeds {
        let mut trial = Trial::new(kind, seed);
        for _ in 0..trial.rng.usize(..3) {
            let kills = trial.rng.usize(1..=2);
            trial.run(kills);
        }
        let before = trial.now();
        let ends = trial.run(0);
        assert!(ends.iter().all(|end| *end == End::Finished), "seed {seed}: {ends:?}");
        let took = trial.now() - before;
        assert!(kind != Kind::CloseToOpen || took < SHORT, "seed {seed}: {took:?}");
        let bytes = trial.world.borrow().bytes();
        // One and a half parts per rank, and what the slowest has not read.
        assert!(bytes < 400_000, "seed {seed}: {bytes} bytes are left");
    }
    covered(&format!("seeds of ranks, {kind:?}"), seeds);
}

#[test]
fn ranks_agree_where_opening_a_file_shows_what_was_synced() {
    sweep(Kind::CloseToOpen, 500);
}

#[test]
fn ranks_agree_where_everything_is_seen_late() {
    sweep(Kind::Late, 300);
}

#[test]
fn ranks_agree_where_writes_fail() {
    sweep(Kind::Failing, 300);
}
