//! Persisting when it is worth it, and loops that do so.

use std::{fs, time::Duration};

use outcrop_pool::{Array, Block, Error, Kind, Options, Outcome, Pool, Result, Rule, Structure, persistent};

use crate::medium::Recorded;

/// Persists whenever it is asked, and never.
const ALWAYS: Rule = Rule::Fixed(0);
const NEVER: Rule = Rule::Fixed(u64::MAX);

fn pool(rule: Rule) -> Pool {
    Pool::on(Recorded::new(Vec::new()), Options::versions(31).rule(rule)).unwrap()
}

#[test]
fn rules_decide_and_what_is_skipped_is_said() {
    let pool = pool(NEVER);
    let mut grid = pool.array::<u64>("grid", 1000, Block::default()).unwrap();
    grid[5] = 7;
    std::thread::sleep(Duration::from_millis(2));
    let Outcome::Skipped { predicted, at_risk } = pool.persist_if_worth_it(&mut [&mut grid]).unwrap() else {
        panic!("it is never due");
    };
    assert!(predicted > Duration::ZERO && at_risk >= Duration::from_millis(2), "{predicted:?} {at_risk:?}");
    assert_eq!(pool.versions(), []);
    assert_eq!(pool.persist(&mut [&mut grid]).unwrap(), 1);
    let always = self::pool(ALWAYS);
    let mut grid = always.array::<u64>("grid", 1000, Block::default()).unwrap();
    for version in 1..=3 {
        grid[0] = version;
        assert_eq!(always.persist_if_worth_it(&mut [&mut grid]).unwrap(), Outcome::Persisted(version));
        assert_eq!(always.view(version).unwrap().array::<u64>("grid").unwrap()[0], version);
    }
}

#[test]
fn work_is_at_risk_from_the_last_durable_version_on() {
    let at_risk = |pool: &Pool, grid: &mut Array<u64>| match pool.persist_if_worth_it(&mut [grid]).unwrap() {
        Outcome::Skipped { at_risk, .. } => at_risk,
        Outcome::Persisted(version) => panic!("version {version}"),
    };
    let pool = pool(NEVER);
    let mut grid = pool.array::<u64>("grid", 1000, Block::default()).unwrap();
    let long = Duration::from_millis(50);
    std::thread::sleep(long);
    let before = at_risk(&pool, &mut grid);
    assert!(before >= long, "{before:?}");
    let persisting = std::time::Instant::now();
    let version = pool.persist(&mut [&mut grid]).unwrap();
    let after = at_risk(&pool, &mut grid);
    assert!(after <= persisting.elapsed(), "{after:?}: the clock begins anew");
    std::thread::sleep(long);
    assert!(at_risk(&pool, &mut grid) >= long);
    let restoring = std::time::Instant::now();
    pool.restore(version, &mut [&mut grid]).unwrap();
    let after = at_risk(&pool, &mut grid);
    assert!(after <= restoring.elapsed(), "{after:?}: nothing is lost that was restored");
}

#[test]
fn mistakes_and_failures_show_also_in_calls_that_would_skip() {
    let medium = Recorded::new(Vec::new());
    let pool = Pool::on(medium.clone(), Options::versions(2).rule(NEVER)).unwrap();
    let mut grid = pool.array::<u64>("grid", 1000, Block::default()).unwrap();
    let mut heat = pool.array::<f64>("heat", 1000, Block::default()).unwrap();
    let error = pool.persist_if_worth_it(&mut [&mut grid]).unwrap_err();
    assert!(error.to_string().contains("\"heat\" is open and was not named"), "{error}");
    grid[0] = 1;
    // The flush of the blocks fails: what the medium holds is unknown from then on.
    let failed = (0..40).any(|calls| {
        medium.fail_after(calls);
        heat[0] += 1.0;
        pool.persist(&mut [&mut grid, &mut heat])
            .is_err_and(|error| matches!(error, Error::File { attempt: "flush", .. }))
            || matches!(pool.persist_if_worth_it(&mut [&mut grid, &mut heat]), Err(Error::Poisoned { .. }))
    });
    assert!(failed);
    let error = pool.persist_if_worth_it(&mut [&mut grid, &mut heat]).unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
}

#[test]
fn a_model_file_is_read_when_the_pool_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cost.model");
    let open = || Pool::on(Recorded::new(Vec::new()), Options::versions(2).model(&path));
    let refused = || open().unwrap_err().to_string();
    assert!(refused().contains("No such file"), "{}", refused());
    for (content, why) in [("", "not a model"), ("{}", "not a model"), ("\u{0}", "not a model")] {
        fs::write(&path, content).unwrap();
        assert!(refused().contains(why) && refused().contains("cost.model"), "{}", refused());
    }
    fs::write(&path, [0xff; 10]).unwrap();
    assert!(refused().contains("UTF-8"), "{}", refused());
    let long = Pool::on(Recorded::new(Vec::new()), Options::versions(2).model("/dev/zero")).unwrap_err();
    assert!(long.to_string().contains("at most"), "{long}");
    // One that says always a thousand seconds.
    let attributes = "structures bytes element_bytes blocks changed_blocks changed_bytes changed_from_file memory_share \
                      levels kind dimensions depth fanout degree";
    fs::write(&path, format!("outcrop model 1\nattributes {attributes}\nleaf 6.907755279\n")).unwrap();
    let pool = open().unwrap();
    let mut grid = pool.array::<u64>("grid", 1000, Block::default()).unwrap();
    let predicted = |grid: &mut Array<u64>| match pool.persist_if_worth_it(&mut [grid]).unwrap() {
        Outcome::Skipped { predicted, .. } => predicted.as_secs_f64(),
        Outcome::Persisted(version) => panic!("version {version}"),
    };
    assert!((predicted(&mut grid) - 1000.0).abs() < 1.0);
    pool.persist(&mut [&mut grid]).unwrap();
    assert!(predicted(&mut grid) < 500.0, "what it took corrects the model");
}

/// A structure of two arrays.
struct Pair(Array<u64>, Array<u8>);

impl Structure for Pair {
    fn parts(&mut self) -> outcrop_pool::Parts<'_> {
        self.0.parts().and(self.1.parts())
    }

    fn kind(&self) -> Kind {
        Kind::Tree { depth: 3, fanout: 8 }
    }
}

/// What a program holds by value, by reference and in fields.
struct Program<'a> {
    pool: &'a Pool,
    grid: Array<u64>,
    pair: Pair,
}

impl Program<'_> {
    #[persistent(self.pool, self.grid, self.pair)]
    fn run(&mut self, steps: u64) -> Result<u64> {
        #[persist]
        for step in 0..steps {
            self.grid[0] = step;
            self.pair.1[0] = step as u8;
        }
        Ok(self.grid[0])
    }
}

#[test]
fn marked_loops_persist_at_the_end_of_each_iteration() {
    let pool = pool(ALWAYS);
    let grid = pool.array("grid", 10, Block::default()).unwrap();
    let pair = Pair(pool.array("a", 10, Block::default()).unwrap(), pool.array("b", 10, Block::default()).unwrap());
    let mut program = Program { pool: &pool, grid, pair };
    assert_eq!(program.run(5).unwrap(), 4);
    assert_eq!(pool.versions(), [1, 2, 3, 4, 5]);
    for version in 1..=5 {
        assert_eq!(pool.view(version).unwrap().array::<u8>("b").unwrap()[0], version as u8 - 1);
    }
}

/// Iterations that end in every way that there is, and loops of every kind.
#[persistent(pool, grid)]
fn jumps(pool: &Pool, grid: &mut Array<u64>, log: &mut Vec<u64>) -> Result<&'static str> {
    let mut step = 0;
    #[persist]
    while step < 6 {
        step += 1;
        grid[0] = step;
        for inner in 0.. {
            if inner == step {
                break;
            }
            if inner < 2 {
                continue;
            }
            grid[1] += 1;
        }
        let Some(even) = (step % 2 == 0).then_some(step) else { continue };
        log.push(even);
        let odd = |it: u64| loop {
            if it > 0 {
                break it;
            }
        };
        if odd(step) == 4 {
            break;
        }
    }
    #[persist]
    'outer: for _ in 0..9 {
        grid[0] += 100;
        for inner in 0..3 {
            if grid[0] > 250 {
                break 'outer;
            }
            if inner == 1 {
                continue 'outer;
            }
        }
    }
    let found = {
        #[persist]
        loop {
            grid[0] += 1000;
            if grid[0] < 3000 {
                continue;
            }
            break "found";
        }
    };
    Ok(found)
}

#[test]
fn iterations_that_are_continued_persist_and_those_that_are_broken_off_do_not() {
    let pool = pool(ALWAYS);
    let mut grid = pool.array("grid", 10, Block::default()).unwrap();
    let mut log = Vec::new();
    assert_eq!(jumps(&pool, &mut grid, &mut log).unwrap(), "found");
    assert_eq!(log, [2, 4]);
    let of = |version| pool.view(version).unwrap().array::<u64>("grid").unwrap()[0];
    // Steps 1 to 3, 104 and 204, and 1304 and 2304: the others were broken off.
    let kept: Vec<u64> = pool.versions().into_iter().map(of).collect();
    assert_eq!(kept, [1, 2, 3, 104, 204, 1304, 2304]);
    assert_eq!(grid[0], 3304);
}

#[test]
fn a_loop_that_fails_to_persist_ends_the_function() {
    let pool = pool(ALWAYS);
    let mut grid = pool.array("grid", 10, Block::default()).unwrap();
    let other = pool.array::<u64>("other", 10, Block::default()).unwrap();
    let error = jumps(&pool, &mut grid, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("\"other\" is open"), "{error}");
    assert_eq!(grid[0], 1);
    drop(other);
}
