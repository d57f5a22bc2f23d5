//! The discretisation against exact solutions: the order of accuracy in space and in time, and the
//! absorbing boundary.
//!
//! Orders are observed with the `f64` instance of the very kernel that migrations run in `f32`,
//! because the errors of high orders are below the rounding of `f32`.

use outcrop_rtm::{Grid, Model, Propagator, Scheme};
use std::f64::consts::TAU;

const VELOCITY: f64 = 2000.0;

fn homogeneous(points: [usize; 3], spacing: f64) -> Model {
    let grid = Grid { points, spacing: [spacing as f32; 3] };
    let velocity = vec![VELOCITY as f32; grid.len()];
    Model::new(grid, velocity).unwrap()
}

/// A standing wave and how it is sampled.
struct Standing {
    space_order: usize,
    time_order: usize,
    spacing: f64,
    dt: f64,
    steps: usize,
    is_3d: bool,
}

impl Standing {
    const WAVELENGTH: f64 = 512.0;

    /// Wavenumbers along x, y and z.
    fn wavenumbers(&self) -> [f64; 3] {
        let k = TAU / Self::WAVELENGTH;
        [k, if self.is_3d { 0.5 * k } else { 0.0 }, 0.8 * k]
    }

    /// The angular frequency of the wave.
    fn omega(&self) -> f64 {
        VELOCITY * self.wavenumbers().iter().map(|k| k * k).sum::<f64>().sqrt()
    }

    /// The angular frequency at which the time-stepping scheme would let it oscillate if space were
    /// exact.
    fn omega_stepped(&self) -> f64 {
        let l = (self.omega() * self.dt).powi(2);
        let change = if self.time_order == 4 { l - l * l / 12.0 } else { l };
        (1.0 - 0.5 * change).acos() / self.dt
    }

    /// The difference at the middle of the grid from `cos(omega t)` times the standing wave.
    ///
    /// The grid ends somewhere, the wave does not. What the end does wrong travels one stencil
    /// radius per application of the Laplacian, so the grid is made just large enough for the
    /// middle not to hear of it.
    fn error(&self, omega: f64) -> f64 {
        let applications = if self.time_order == 4 { 2 } else { 1 };
        let reach = self.space_order / 2 * self.steps * applications;
        let middle = reach + 2;
        let across = 2 * middle + 1;
        let points = [across, if self.is_3d { across } else { 1 }, across];
        let scheme =
            Scheme { space_order: self.space_order, time_order: self.time_order, dt: Some(self.dt), boundary: 0 };
        let propagator = Propagator::<f64>::new(&homogeneous(points, self.spacing), &scheme).unwrap();
        let k = self.wavenumbers();
        let shape = |point: [isize; 3]| {
            // Counted from the middle, so that grids of any spacing have the same wave there.
            let phase = |axis: usize| k[axis] * (point[axis] - middle as isize) as f64 * self.spacing;
            (phase(0) + 0.3).sin() * phase(1).cos() * (phase(2) + 0.9).sin()
        };
        let mut wave = propagator.starting_from(|p| shape(p) * (omega * self.dt).cos(), shape);
        for _ in 0..self.steps {
            propagator.step(&mut wave);
        }
        let point = [middle, if self.is_3d { middle } else { 0 }, middle];
        let exact = shape(point.map(|i| i as isize)) * (omega * self.dt * self.steps as f64).cos();
        (propagator.sample(&wave, point) - exact).abs()
    }
}

#[test]
fn order_in_space() {
    for (space_order, is_3d) in [(2, false), (4, false), (8, false), (16, false), (2, true), (4, true), (8, true)] {
        // The higher the order, the coarser the grid must be for its error to stand out from the
        // rounding of f64.
        let (coarse, fine): (f64, f64) = match space_order {
            2 => (16.0, 8.0),
            4 => (32.0, 16.0),
            8 => (48.0, 32.0),
            _ => (72.0, 48.0),
        };
        let error = |spacing: f64| {
            let dt = 0.3 * fine / VELOCITY;
            let steps = if is_3d { 6 } else { 16 };
            let standing = Standing { space_order, time_order: 2, spacing, dt, steps, is_3d };
            standing.error(standing.omega_stepped())
        };
        let (before, after) = (error(coarse), error(fine));
        let order = (before / after).ln() / (coarse / fine).ln();
        println!("space order {space_order}, 3D {is_3d}: {before:.2e} {after:.2e}: observed {order:.2}");
        let tolerance = 0.05 * space_order as f64;
        assert!((order - space_order as f64).abs() < tolerance, "space order {space_order}: observed {order:.2}");
    }
}

#[test]
fn order_in_time() {
    for time_order in [2, 4] {
        let error = |steps: usize| {
            let duration = 0.09;
            let dt = duration / steps as f64;
            let standing = Standing { space_order: 16, time_order, spacing: 32.0, dt, steps, is_3d: false };
            standing.error(standing.omega())
        };
        let errors = [error(12), error(24), error(48)];
        for pair in errors.windows(2) {
            let order = (pair[0] / pair[1]).log2();
            println!("time order {time_order}: {:.2e} {:.2e}: observed {order:.2}", pair[0], pair[1]);
            assert!((order - time_order as f64).abs() < 0.25, "time order {time_order}: observed {order:.2}");
        }
    }
}

#[test]
fn the_largest_step_is_just_stable() {
    for (points, space_order, time_order) in
        [([60, 1, 64], 2, 2), ([60, 1, 64], 8, 4), ([40, 1, 48], 16, 2), ([32, 33, 32], 4, 2), ([32, 33, 32], 8, 4)]
    {
        let model = homogeneous(points, 10.0);
        let mut scheme = Scheme { space_order, time_order, dt: None, boundary: 0 };
        let largest = scheme.largest_dt(model.grid(), VELOCITY as f32);
        let mut loudest = |dt: f64| {
            scheme.dt = Some(dt);
            let propagator = Propagator::<f64>::new(&model, &scheme).unwrap();
            let mut wave = propagator.quiet();
            for step in 0..1500 {
                propagator.step(&mut wave);
                if step == 0 {
                    propagator.inject(&mut wave, points.map(|n| n / 2), 1.0);
                }
            }
            (0..points[2]).map(|z| propagator.sample(&wave, [10, points[1] / 2, z]).abs()).fold(0.0, f64::max)
        };
        assert!(loudest(0.999 * largest) < 10.0, "order {space_order}/{time_order} grows below the limit");
        let refused = Scheme { dt: Some(1.001 * largest), ..scheme.clone() };
        let message = Propagator::<f64>::new(&model, &refused).unwrap_err().to_string();
        assert!(message.contains("unstable") && message.contains(&largest.to_string()), "{message}");
    }
}

#[test]
fn the_boundary_absorbs() {
    // The energy that is left inside after the wave had time to cross the grid and come back from
    // its edges.
    for points in [[120, 1, 120], [48, 48, 48]] {
        let model = homogeneous(points, 10.0);
        let left = |boundary: usize| {
            let scheme = Scheme { space_order: 8, time_order: 2, dt: Some(0.0015), boundary };
            let propagator = Propagator::<f32>::new(&model, &scheme).unwrap();
            let mut wave = propagator.quiet();
            let steps = 700;
            for (step, amplitude) in outcrop_rtm::ricker(18.0, 0.0015, steps).into_iter().enumerate() {
                propagator.step(&mut wave);
                propagator.inject(&mut wave, points.map(|n| n / 2), amplitude);
                assert!(step < steps);
            }
            let mut field = vec![0.0; model.grid().len()];
            propagator.gather(&wave, &mut field);
            field.iter().map(|&p| f64::from(p).powi(2)).sum::<f64>()
        };
        let (rigid, absorbing) = (left(0), left(40));
        println!("{points:?}: {:.1e} of the energy of rigid edges", absorbing / rigid);
        assert!(absorbing < 1e-3 * rigid, "{points:?}: {absorbing:e} of {rigid:e}");
    }
}
