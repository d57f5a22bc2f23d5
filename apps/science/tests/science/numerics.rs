//! That results are right, whatever the way and the number of threads.

use std::path::Path;

use outcrop_science::{
    Job, Program, Way,
    crack::{self, Crack},
    droplet::{self, Droplet},
    lu::{self, Lu},
    pagerank::{self, PageRank},
};

fn finished<P: Program>(settings: &P::Settings, way: Way, path: &Path) -> Job<P> {
    let mut job = Job::<P>::open(settings, way, path).unwrap();
    while !job.is_finished() {
        job.step();
    }
    job.persist().unwrap();
    job
}

fn in_memory<P: Program>(settings: &P::Settings) -> Job<P> {
    finished(settings, Way::Memory, Path::new("nowhere"))
}

fn small_lu() -> lu::Settings {
    lu::Settings { order: 130, block: 32, seed: 7 }
}

fn small_crack() -> crack::Settings {
    crack::Settings {
        columns: 24,
        rows: 20,
        steps: 60,
        dt: 0.005,
        strain_rate: 0.01,
        notch: 0.25,
        temperature: 0.01,
        seed: 3,
    }
}

fn small_pagerank() -> pagerank::Settings {
    pagerank::Settings { scale: 9, degree: 8, damping: 0.85, tolerance: 1e-9, iterations: 200, seed: 5 }
}

fn small_droplet() -> droplet::Settings {
    droplet::Settings { level: 4, coarsest: 2, steps: Some(24), period: 1.0, radius: 0.2 }
}

#[test]
fn lu_has_a_small_residual_for_every_size() {
    for (order, block) in [(1, 1), (2, 1), (7, 3), (64, 64), (65, 64), (130, 32), (200, 37), (256, 256)] {
        let job = in_memory::<Lu>(&lu::Settings { order, block, seed: order });
        let (residual, of_vector) = (job.program().residual(), job.program().residual_of_vector());
        // LINPACK accepts 16; partial pivoting leaves much less.
        assert!(residual < 1.0, "order {order}, block {block}: {residual}");
        assert!(of_vector < 1.0, "order {order}, block {block}: {of_vector}");
    }
}

#[test]
fn lu_exchanges_rows_so_that_no_factor_is_larger_than_one() {
    let order = 130;
    let output = in_memory::<Lu>(&small_lu()).program().output();
    let element = |at: usize| f64::from_le_bytes(output[8 * at..8 * at + 8].try_into().unwrap());
    for row in 0..order {
        assert!((0..row).all(|column| element(row * order + column).abs() <= 1.0), "row {row}");
    }
    let pivots = output[8 * order * order..].chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    assert!(pivots.enumerate().filter(|(row, pivot)| *row as u32 != *pivot).count() > order / 2);
}

/// Without pulling and without a notch, nothing takes or gives energy.
#[test]
fn the_energy_of_an_undisturbed_crystal_stays() {
    let still = crack::Settings { strain_rate: 0.0, notch: 0.0, steps: 400, temperature: 0.05, ..small_crack() };
    let mut job = Job::<Crack>::open(&still, Way::Memory, Path::new("nowhere")).unwrap();
    let start = job.program().energy();
    let mut worst: f64 = 0.0;
    while !job.is_finished() {
        job.step();
        worst = worst.max((job.program().energy() - start).abs());
    }
    // Velocity Verlet: the error is bounded, and goes with the square of the step.
    assert!(worst < 1e-4, "{worst} of {start}");
    let finer = crack::Settings { dt: 0.0025, steps: 800, ..still };
    let mut job = Job::<Crack>::open(&finer, Way::Memory, Path::new("nowhere")).unwrap();
    let mut worst_finer: f64 = 0.0;
    while !job.is_finished() {
        job.step();
        worst_finer = worst_finer.max((job.program().energy() - start).abs());
    }
    assert!(worst_finer < worst / 2.5, "{worst_finer} is not a quarter of {worst}");
}

/// Nobody pulls: all forces cancel.
#[test]
fn the_momentum_of_a_free_crystal_stays() {
    let free = crack::Settings { strain_rate: 0.0, temperature: 0.1, steps: 20, ..small_crack() };
    let start = Job::<Crack>::open(&free, Way::Memory, Path::new("nowhere")).unwrap();
    let end = in_memory::<Crack>(&free);
    let momentum =
        |job: &Job<Crack>, axis: usize| job.program().atoms().iter().map(|atom| atom.velocity[axis]).sum::<f64>();
    for axis in 0..2 {
        assert!((momentum(&end, axis) - momentum(&start, axis)).abs() < 1e-9);
    }
}

#[test]
fn a_pulled_crystal_grows_as_it_is_pulled() {
    let job = in_memory::<Crack>(&small_crack());
    let height = |job: &Job<Crack>| {
        let ys = || job.program().atoms().iter().map(|atom| atom.position[1]);
        ys().fold(f64::MIN, f64::max) - ys().fold(f64::MAX, f64::min)
    };
    let start = Job::<Crack>::open(&small_crack(), Way::Memory, Path::new("nowhere")).unwrap();
    let strain = height(&job) / height(&start) - 1.0;
    assert!((strain - 0.01 * 60.0 * 0.005).abs() < 1e-9, "{strain}");
}

/// The same by a dense matrix, as the definition has it.
#[test]
fn ranks_are_those_of_a_dense_matrix() {
    let job = in_memory::<PageRank>(&small_pagerank());
    let pages = job.program().pages();
    let n = pages.len();
    let mut matrix = vec![0.0; n * n];
    let links = job.program().all_links();
    assert_eq!(links.len() as u64, pages.iter().map(|page| page.degree).sum::<u64>());
    for page in 0..n {
        for to in 0..n {
            let walk = if pages[page].degree == 0 { 1.0 / n as f64 } else { 0.0 };
            matrix[to * n + page] = 0.15 / n as f64 + 0.85 * walk;
        }
    }
    for (from, to) in links {
        matrix[to as usize * n + from as usize] += 0.85 / pages[from as usize].degree as f64;
    }
    let mut ranks = vec![1.0 / n as f64; n];
    for _ in 0..200 {
        ranks = matrix.chunks(n).map(|row| row.iter().zip(&ranks).map(|(a, b)| a * b).sum()).collect();
    }
    assert!((ranks.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let worst = pages.iter().zip(&ranks).map(|(page, rank)| (page.rank - rank).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-9, "{worst}");
}

/// Few pages have many links: the largest degrees are far above the mean.
#[test]
fn degrees_of_the_graph_follow_a_power_law() {
    let settings = pagerank::Settings { scale: 12, iterations: 1, ..small_pagerank() };
    let job = in_memory::<PageRank>(&settings);
    let mut degrees: Vec<f64> = job.program().pages().iter().map(|page| page.degree as f64).collect();
    degrees.sort_by(|a, b| b.total_cmp(a));
    let mean = degrees.iter().sum::<f64>() / degrees.len() as f64;
    assert!(degrees[0] > 20.0 * mean, "{} of {mean}", degrees[0]);
    // On logarithmic axes, the degree falls with the rank of a page about as a line.
    let slope = (degrees[400] / degrees[4]).ln() / 100f64.ln();
    assert!((-1.2..=-0.3).contains(&slope), "{slope}");
}

#[test]
fn the_volume_of_a_droplet_stays_and_its_mesh_is_balanced() {
    let mut job = Job::<Droplet>::open(&small_droplet(), Way::Memory, Path::new("nowhere")).unwrap();
    let start = job.program().volume();
    let middle = |job: &Job<Droplet>| {
        let leaves = job.program().leaves();
        leaves.iter().filter(|leaf| leaf.fraction > 0.5).map(|leaf| leaf.code as f64).sum::<f64>()
    };
    let was = middle(&job);
    while !job.is_finished() {
        job.step();
        job.program().check().unwrap();
        let change = (job.program().volume() - start).abs() / start;
        assert!(change < 1e-12, "iteration {}: {change}", job.done());
        let leaves = job.program().leaves();
        assert!(leaves.iter().all(|leaf| (-1e-6..=1.0 + 1e-6).contains(&leaf.fraction)));
        // The surface is seen as finely as can be.
        let is_fine = |leaf: &droplet::Leaf| !(0.01..=0.99).contains(&leaf.fraction) || leaf.level == 4;
        assert!(leaves.iter().all(is_fine));
    }
    assert!((middle(&job) - was).abs() > 0.0, "it did not move");
}

/// The flow runs backwards in the second half of its period.
#[test]
fn a_droplet_comes_back() {
    let settings = droplet::Settings { level: 5, coarsest: 3, steps: None, period: 0.5, radius: 0.2 };
    let start = Job::<Droplet>::open(&settings, Way::Memory, Path::new("nowhere")).unwrap();
    let mut job = Job::<Droplet>::open(&settings, Way::Memory, Path::new("nowhere")).unwrap();
    let iterations = job.iterations();
    let mut farthest: f64 = 0.0;
    while !job.is_finished() {
        job.step();
        if job.done().is_multiple_of(iterations / 4) {
            farthest = farthest.max(difference(start.program().leaves(), job.program().leaves()));
        }
    }
    let back = difference(start.program().leaves(), job.program().leaves());
    let volume = start.program().volume();
    assert!(farthest > 0.3 * volume, "it hardly moved: {farthest} of {volume}");
    assert!(back < 0.1 * volume, "{back} of {volume} is elsewhere");
}

/// The volume that is liquid in one of two meshes only, seen on the grid of the finest cells.
fn difference(one: &[droplet::Leaf], other: &[droplet::Leaf]) -> f64 {
    let finest = |leaves: &[droplet::Leaf]| -> Vec<f64> {
        leaves.iter().flat_map(|leaf| vec![leaf.fraction; 8usize.pow(5 - leaf.level as u32)]).collect()
    };
    let (one, other) = (finest(one), finest(other));
    assert_eq!(one.len(), other.len());
    0.5 * one.iter().zip(&other).map(|(a, b)| (a - b).abs()).sum::<f64>() / one.len() as f64
}

/// All ways give the same bytes, with any number of threads.
fn same_in_all_ways<P: Program>(settings: &P::Settings) {
    let dir = tempfile::tempdir().unwrap();
    let expected = in_memory::<P>(settings).program().output();
    for way in Way::ALL {
        let path = dir.path().join(way.name());
        let job = finished::<P>(settings, way, &path);
        assert!(job.program().output() == expected, "{} {}", P::NAME, way.name());
        drop(job);
        if way.ending().is_some() {
            let again = Job::<P>::open(settings, way, &path).unwrap();
            assert!(again.is_finished() && again.program().output() == expected, "{} {}", P::NAME, way.name());
        }
    }
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let output = pool.install(|| in_memory::<P>(settings).program().output());
        assert!(output == expected, "{} with {threads} threads", P::NAME);
    }
}

#[test]
fn lu_is_the_same_in_all_ways() {
    same_in_all_ways::<Lu>(&small_lu());
}

#[test]
fn crack_is_the_same_in_all_ways() {
    same_in_all_ways::<Crack>(&small_crack());
}

#[test]
fn pagerank_is_the_same_in_all_ways() {
    same_in_all_ways::<PageRank>(&small_pagerank());
}

#[test]
fn droplet_is_the_same_in_all_ways() {
    same_in_all_ways::<Droplet>(&small_droplet());
}

#[test]
fn programs_draw_their_state() {
    let dir = tempfile::tempdir().unwrap();
    let pictures = [
        in_memory::<Lu>(&small_lu()).program().picture(),
        in_memory::<Crack>(&small_crack()).program().picture(),
        in_memory::<PageRank>(&small_pagerank()).program().picture(),
        in_memory::<Droplet>(&small_droplet()).program().picture(),
    ];
    for (number, picture) in pictures.into_iter().enumerate() {
        let path = dir.path().join(format!("{number}.png"));
        picture.unwrap().save(&path).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
    }
}
