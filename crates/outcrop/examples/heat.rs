//! Heat spreads in a plate. Stop the program at any time, with Ctrl-C or kill -9, and start it
//! again: it continues where it was.
//!
//! cargo run --release -p outcrop --example heat [DIRECTORY]

use std::time::Duration;

use outcrop::{Part, PartMut, Retention, Rule, Store};

const SIDE: usize = 1500;
const STEPS: u64 = 2000;

fn main() -> outcrop::Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "heat-checkpoints".to_owned());
    let store = Store::builder()
        .host("256 MiB")
        .dir(&directory, None)
        .keep(Retention { keep_last: Some(3), ..Retention::default() })
        // The expected time between failures is ten minutes. A save costs some milliseconds.
        .interval(Rule::Exact, &[Duration::from_secs(600)])
        .open()?;
    let mut session = store.session("heat")?;

    let mut plate = vec![0f32; SIDE * SIDE];
    let mut step = 0u64;
    plate[SIDE / 2 * SIDE + SIDE / 2] = 1e6;
    match session.restore_latest(&mut [PartMut::new("plate", &mut plate), PartMut::one("step", &mut step)])? {
        Some(restored) => println!("goes on after step {step} ({restored})"),
        None => println!("begins; checkpoints go to {directory}"),
    }

    while step < STEPS {
        spread(&mut plate);
        step += 1;
        if store.due()? || step == STEPS {
            session.save(step, &[Part::new("plate", &plate), Part::one("step", &step)])?;
            println!("step {step} of {STEPS} is saved; the next one in {:.1} s", seconds(&store));
        }
    }
    session.finish()?;
    println!("done: the sum of all heat is {:.1}; remove {directory} to start over", plate.iter().sum::<f32>());
    Ok(())
}

fn seconds(store: &Store) -> f64 {
    store.interval_seconds().into_iter().flatten().fold(f64::INFINITY, f64::min)
}

/// One step: every point moves towards the mean of its neighbours.
fn spread(plate: &mut [f32]) {
    let before = plate.to_vec();
    for row in 1..SIDE - 1 {
        for at in row * SIDE + 1..row * SIDE + SIDE - 1 {
            let around = before[at - 1] + before[at + 1] + before[at - SIDE] + before[at + SIDE];
            plate[at] = before[at] + 0.2 * (around - 4.0 * before[at]);
        }
    }
}
