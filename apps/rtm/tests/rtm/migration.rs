//! Whole migrations: the image does not depend on threads or histories, and a reflector is where it
//! should be.

use outcrop_rtm::{
    Config, Error, Files, History, HistoryError, InMemory, Migrated, Migration, Phase, Progress, Shots, Spacing, Stack,
};

fn small() -> Config {
    Config {
        points: Some(vec![90, 60]),
        spacing: Spacing::Same(20.0),
        duration: 0.9,
        boundary: 20,
        frequency: 10.0,
        shots: Shots::Count(2),
        snapshot_every: 3,
        threads: 2,
        ..Config::default()
    }
}

fn small_3d() -> Config {
    Config { points: Some(vec![30, 25, 28]), duration: 0.4, boundary: 10, time_order: 4, ..small() }
}

fn migrate(config: &Config, history: &mut dyn History) -> Migrated {
    Migration::new(config).unwrap().run(history, &mut |_| {}).unwrap()
}

fn bits(image: &[f32]) -> Vec<u32> {
    image.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_history_and_thread_count_gives_the_same_bits() {
    for config in [small(), small_3d()] {
        let reference = migrate(&config, &mut InMemory::new());
        assert!(reference.image.iter().any(|v| *v != 0.0) && reference.image.iter().all(|v| v.is_finite()));

        let directory = tempfile::tempdir().unwrap();
        let mut files = Files::new(directory.path(), false).unwrap();
        assert_eq!(bits(&migrate(&config, &mut files).image), bits(&reference.image));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

        for threads in [1, 3] {
            let config = Config { threads, ..config.clone() };
            let image = migrate(&config, &mut InMemory::new()).image;
            assert_eq!(bits(&image), bits(&reference.image), "{threads} threads");
        }
    }
}

#[test]
fn shots_at_once_stack_to_the_same_bits() {
    let migration = Migration::new(&small()).unwrap();
    let in_turn = migration.run(&mut InMemory::new(), &mut |_| {}).unwrap();
    let shots: Vec<_> = std::thread::scope(|scope| {
        let run = |shot| migration.shot(shot, &mut InMemory::new(), &mut |_| {}).unwrap().0;
        let started = [0, 1].map(|shot| scope.spawn(move || run(shot)));
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut stack = Stack::new(migration.model().grid());
    for shot in &shots {
        stack.add(shot);
    }
    assert_eq!(bits(&migration.finish(&stack)), bits(&in_turn.image));
}

#[test]
fn a_flat_reflector_is_imaged_at_its_depth() {
    // One interface between 2000 and 2600 m/s; the file is what a user would bring.
    let (nx, nz, interface) = (160, 100, 55);
    let velocity = (0..nx * nz).map(|i| if i % nz < interface { 2000.0_f32 } else { 2600.0 });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("interface.raw");
    std::fs::write(&file, velocity.flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let config = Config {
        file: Some(file),
        points: Some(vec![nx, nz]),
        spacing: Spacing::Same(10.0),
        smoothing: 40.0,
        duration: 1.3,
        boundary: 30,
        frequency: 15.0,
        shots: Shots::Along(vec![500.0, 800.0, 1100.0]),
        shot_depth: 20.0,
        receiver_depth: 20.0,
        receiver_spacing: 10.0,
        ..Config::default()
    };
    let image = migrate(&config, &mut InMemory::new()).image;
    for x in [60, 80, 100] {
        let column = &image[x * nz..][..nz];
        let peak = (25..nz).max_by(|&a, &b| column[a].abs().total_cmp(&column[b].abs())).unwrap();
        println!("column {x}: peak at {peak}");
        // The velocity changes half a point above the first point of the lower layer.
        assert!(peak.abs_diff(interface) <= 1, "column {x}: the peak is at {peak}, the interface at {interface}");
        assert!(column[peak] > 0.0, "an increase of velocity is a positive reflector");
    }
}

#[test]
fn progress_and_report_add_up() {
    let migration = Migration::new(&small()).unwrap();
    let mut told: Vec<Progress> = Vec::new();
    let report = migration.run(&mut InMemory::new(), &mut |progress| told.push(progress)).unwrap().report;
    let steps = migration.steps();
    assert_eq!(told.len(), 2 * 3 * steps);
    let last = Progress { shot: 1, shots: 2, phase: Phase::Backward, step: steps, steps };
    assert_eq!(told.last(), Some(&last));
    assert_eq!(report.snapshots, 2 * migration.snapshots());
    assert_eq!(report.snapshot_bytes, (2 * migration.snapshots() * 90 * 60 * 4) as u64);
    assert!(report.points_per_second() > 0.0 && report.compute_seconds() > 0.0);
}

/// Fails at one step.
struct Failing {
    inner: InMemory,
    record_at: usize,
    replay_at: usize,
}

impl History for Failing {
    fn record(&mut self, step: usize, len: usize, fill: &mut dyn FnMut(&mut [f32])) -> Result<(), HistoryError> {
        if step == self.record_at { Err("the disk is full".into()) } else { self.inner.record(step, len, fill) }
    }
    fn replay(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<(), HistoryError> {
        if step == self.replay_at { Err("the disk is gone".into()) } else { self.inner.replay(step, read) }
    }
}

#[test]
fn a_failing_history_ends_the_migration_with_its_reason() {
    let migration = Migration::new(&small()).unwrap();
    for (record_at, replay_at, reason) in [(9, usize::MAX, "full"), (usize::MAX, 6, "gone")] {
        let mut history = Failing { inner: InMemory::new(), record_at, replay_at };
        match migration.run(&mut history, &mut |_| {}).unwrap_err() {
            Error::History { step, source, .. } => {
                assert_eq!(step, record_at.min(replay_at));
                assert!(source.to_string().contains(reason));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_picture_is_a_png() {
    let directory = tempfile::tempdir().unwrap();
    for (name, config) in [("flat.png", small()), ("full.png", small_3d())] {
        let migration = Migration::new(&Config { shots: Shots::Count(1), ..config }).unwrap();
        let path = directory.path().join(name);
        let image = vec![0.0; migration.snapshot_len()];
        outcrop_rtm::plot::write(&path, &migration, &image).unwrap();
        let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&path).unwrap()));
        let info = decoder.read_info().unwrap();
        assert!(info.info().width > 400 && info.info().height > 200);
    }
}

#[test]
fn an_image_on_a_tape_is_the_same_to_the_last_bit() {
    let directory = tempfile::tempdir().unwrap();
    for config in [small(), small_3d()] {
        let migration = Migration::new(&config).unwrap();
        let expected = migration.run(&mut InMemory::new(), &mut |_| {}).unwrap().image;
        // Host memory for a few snapshots only, so that nearly all of them go to the disk and back.
        let host = 4 * 4 * migration.snapshot_len() as u64;
        let mut tape = outcrop::Tape::builder().host(host).dir(directory.path(), "4 GiB").open().unwrap();
        let image = migration.run(&mut tape, &mut |_| {}).unwrap().image;
        assert!(tape.stats().layers[1].read_bytes > 0);
        assert!(image.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn an_image_can_be_written_as_an_array_and_read_as_a_model() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.npy");
    let migration = Migration::new(&small()).unwrap();
    outcrop_rtm::write_npy(&path, migration.model().grid(), migration.model().velocity()).unwrap();
    let config = Config { file: Some(path), points: None, ..small() };
    assert_eq!(config.true_model().unwrap().velocity(), migration.model().velocity());
}
