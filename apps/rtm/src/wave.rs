//! The acoustic wave equation stepped through time.
//!
//! The scheme is `M (p+ - 2 p + p-) / dt^2 + D (p+ - p-) / (2 dt) = L p + s` with `M = 1 / v^2`, a
//! damping `D` that is zero inside and grows towards the edges, the symmetric Laplacian `L` and a
//! source `s`. Because every matrix in it is symmetric, the adjoint of modelling is the same scheme
//! run over reversed time: one propagator serves both passes.

use crate::error::{Error, Result};
use crate::model::{Grid, Model};
use crate::stencil::{Layout, Pass, RADIUS_MAX, Real, Sweep, Taps, spectral_radius};
use rayon::prelude::*;

/// The least points of a task: fewer would not be worth handing to another thread.
const TASK_POINTS: usize = 1 << 14;
/// Tasks that each thread gets, if there are points enough: a few, so that a late thread can be
/// helped out, and not many, because neighbouring planes of one task share what they read.
const TASKS_PER_THREAD: usize = 6;

/// How the equation is discretised.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheme {
    /// Order of accuracy in space: 2, 4, .. 16.
    pub space_order: usize,
    /// Order of accuracy in time: 2 or 4.
    pub time_order: usize,
    /// The time step in seconds; `None` takes 90 % of the largest stable one.
    pub dt: Option<f64>,
    /// Points that are added along every edge to absorb what arrives there; 0 for a rigid edge.
    pub boundary: usize,
}

impl Scheme {
    /// The largest time step, in seconds, that is stable for this fastest velocity on this grid.
    ///
    /// The shortest wave of the grid is the first to grow. Stability asks `v^2 dt^2 a <= 4` of its
    /// eigenvalue `a` for time order 2, and `<= 12` for time order 4.
    pub fn largest_dt(&self, grid: &Grid, velocity_max: f32) -> f64 {
        let per_axis = spectral_radius(self.space_order);
        let eigenvalue: f64 = axis_spacing(grid).into_iter().flatten().map(|s| per_axis / (s * s)).sum();
        let limit: f64 = if self.time_order == 4 { 12.0 } else { 4.0 };
        (limit / eigenvalue).sqrt() / f64::from(velocity_max)
    }

    /// The time step to use with a model: the given one if it is stable, or 90 % of the largest.
    pub fn time_step(&self, model: &Model) -> Result<f64> {
        let velocity_max = model.velocity_max();
        let largest = self.largest_dt(model.grid(), velocity_max);
        match self.dt {
            None => Ok(0.9 * largest),
            Some(dt) if dt > 0.0 && dt <= largest => Ok(dt),
            Some(dt) => Err(Error::Unstable { dt, largest, velocity_max }),
        }
    }

    fn check(&self) -> Result<()> {
        let refuse = |field, value: usize, advice: &str| {
            Err(Error::Setting { field, value: value.to_string(), advice: advice.to_owned() })
        };
        if !(self.space_order.is_multiple_of(2) && (2..=2 * RADIUS_MAX).contains(&self.space_order)) {
            return refuse("space_order", self.space_order, "must be an even number from 2 to 16");
        }
        if ![2, 4].contains(&self.time_order) {
            return refuse("time_order", self.time_order, "must be 2 or 4");
        }
        Ok(())
    }
}

fn axis_spacing(grid: &Grid) -> [Option<f64>; 3] {
    std::array::from_fn(|axis| (axis != 1 || grid.is_3d()).then(|| f64::from(grid.spacing[axis])))
}

/// Steps wave fields through one velocity model.
#[derive(Debug, Clone)]
pub struct Propagator<T = f32> {
    grid: Grid,
    layout: Layout,
    taps: Taps<T>,
    radius: usize,
    /// Points added before the first one of each axis.
    before: [usize; 3],
    dt: f64,
    /// Squared velocity times squared time step, and a twelfth of it if the time order is 4.
    scale: Vec<T>,
    scale_correction: Option<Vec<T>>,
    damping: [Vec<T>; 3],
}

/// Two successive states of the pressure; made by [`Propagator::quiet`].
#[derive(Debug, Clone)]
pub struct Wavefield<T = f32> {
    current: Vec<T>,
    previous: Vec<T>,
    corrected: Vec<T>,
}

impl<T: Real> Propagator<T> {
    /// Prepares to step waves through a model. The velocities at the edge go on through the
    /// absorbing points.
    pub fn new(model: &Model, scheme: &Scheme) -> Result<Self> {
        scheme.check()?;
        let dt = scheme.time_step(model)?;
        let grid = model.grid().clone();
        let pad = scheme.boundary;
        let before = [pad, if grid.is_3d() { pad } else { 0 }, pad];
        let padded = std::array::from_fn(|axis| grid.points[axis] + 2 * before[axis]);
        let layout = Layout::new(padded, scheme.space_order / 2);
        let damping = std::array::from_fn(|axis| {
            if before[axis] == 0 {
                return vec![T::from_f64(1.0); layout.points[axis]];
            }
            let width = pad as f64 * f64::from(grid.spacing[axis]);
            let rate = damping_rate_max(f64::from(model.velocity_max()), width);
            damping_profile(layout.points[axis], grid.points[axis], pad, rate * dt)
        });
        let mut propagator = Propagator {
            taps: Taps::new(scheme.space_order, axis_spacing(&grid)),
            radius: scheme.space_order / 2,
            scale: Vec::new(),
            scale_correction: None,
            grid,
            layout,
            before,
            dt,
            damping,
        };
        propagator.scale = propagator.field(|point| {
            let inside = std::array::from_fn(|a| point[a].clamp(0, model.grid().points[a] as isize - 1) as usize);
            let distance = f64::from(model.velocity()[model.grid().index(inside)]) * dt;
            T::from_f64(distance * distance)
        });
        if scheme.time_order == 4 {
            let twelfth = |s: &T| T::from_f64(s.to_f64() / 12.0);
            propagator.scale_correction = Some(propagator.scale.iter().map(twelfth).collect());
        }
        Ok(propagator)
    }

    /// The time step in seconds.
    pub fn dt(&self) -> f64 {
        self.dt
    }

    /// Points that a step computes, the absorbing ones included.
    pub fn points_per_step(&self) -> usize {
        self.layout.points.iter().product()
    }

    /// A wave field at rest.
    pub fn quiet(&self) -> Wavefield<T> {
        self.starting_from(|_| T::default(), |_| T::default())
    }

    /// A wave field from its last two states, as functions of the grid point (negative within the
    /// boundary).
    pub fn starting_from(&self, previous: impl Fn([isize; 3]) -> T, current: impl Fn([isize; 3]) -> T) -> Wavefield<T> {
        let corrected =
            if self.scale_correction.is_some() { vec![T::default(); self.layout.len()] } else { Vec::new() };
        Wavefield { current: self.field(current), previous: self.field(previous), corrected }
    }

    /// Steps the field on by one time step, with all threads of the rayon pool that it is called
    /// in.
    pub fn step(&self, wave: &mut Wavefield<T>) {
        let sweep = |source, current, scale| Sweep {
            layout: &self.layout,
            taps: &self.taps,
            source,
            current,
            scale,
            damping: std::array::from_fn(|axis| self.damping[axis].as_slice()),
        };
        let mut source = &wave.current;
        if let Some(scale) = &self.scale_correction {
            self.sweep(&sweep(&wave.current, &wave.current, scale), Pass::Correct, &mut wave.corrected);
            source = &wave.corrected;
        }
        self.sweep(&sweep(source, &wave.current, &self.scale), Pass::Advance, &mut wave.previous);
        std::mem::swap(&mut wave.current, &mut wave.previous);
    }

    fn sweep(&self, sweep: &Sweep<T>, pass: Pass, out: &mut [T]) {
        let share = self.layout.points[0].div_ceil(TASKS_PER_THREAD * rayon::current_num_threads());
        let planes = TASK_POINTS.div_ceil(self.layout.stride_x).max(share);
        out[self.layout.planes()]
            .par_chunks_mut(planes * self.layout.stride_x)
            .enumerate()
            .for_each(|(task, slab)| sweep.run(self.radius, pass, task * planes, slab));
    }

    /// Adds the source `amplitude` at a grid point to the field that a step has just computed.
    pub fn inject(&self, wave: &mut Wavefield<T>, point: [usize; 3], amplitude: T) {
        let [x, y, z] = std::array::from_fn(|axis| point[axis] + self.before[axis]);
        let at = self.layout.row(x, y) + z;
        let damping = self.damping[0][x] * self.damping[1][y] * self.damping[2][z];
        wave.current[at] = wave.current[at] + damping * self.scale[at] * amplitude;
    }

    /// The pressure at a grid point.
    pub fn sample(&self, wave: &Wavefield<T>, point: [usize; 3]) -> T {
        let [x, y, z] = std::array::from_fn(|axis| point[axis] + self.before[axis]);
        wave.current[self.layout.row(x, y) + z]
    }

    /// The row of depths of the current field at `x`, `y`, without the absorbing points.
    pub fn row<'a>(&self, wave: &'a Wavefield<T>, x: usize, y: usize) -> &'a [T] {
        let row = self.layout.row(x + self.before[0], y + self.before[1]);
        &wave.current[row + self.before[2]..][..self.grid.points[2]]
    }

    /// Copies the field without its absorbing points into `out`, one value per point of the grid.
    pub fn gather(&self, wave: &Wavefield<T>, out: &mut [T]) {
        let [_, ny, nz] = self.grid.points;
        out.par_chunks_mut(ny * nz).enumerate().for_each(|(x, plane)| {
            for (y, row) in plane.chunks_exact_mut(nz).enumerate() {
                row.copy_from_slice(self.row(wave, x, y));
            }
        });
    }

    /// A field, zero in the halo and a function of the grid point elsewhere.
    fn field(&self, value: impl Fn([isize; 3]) -> T) -> Vec<T> {
        let mut field = vec![T::default(); self.layout.len()];
        let [nx, ny, nz] = self.layout.points;
        let point = |i: usize, axis: usize| i as isize - self.before[axis] as isize;
        for x in 0..nx {
            for y in 0..ny {
                let row = self.layout.row(x, y);
                for z in 0..nz {
                    field[row + z] = value([point(x, 0), point(y, 1), point(z, 2)]);
                }
            }
        }
        field
    }
}

/// The damping rate at the outer edge, per second, with which a wave that crosses the boundary, is
/// reflected by the rigid edge and crosses it again has lost all but one part in ten thousand.
///
/// A wave at velocity `v` in a damping `d` decays as `exp(-d t / 2)`; a cubic profile has a quarter
/// of its maximum on average, so the loss on the way there and back is `exp(-d w / (4 v))`.
fn damping_rate_max(velocity: f64, width: f64) -> f64 {
    4.0 * velocity / width * 1e4_f64.ln()
}

/// The factors `1 / (1 + d dt / 2)` along an axis, for a damping `d` that grows with the cube of
/// the distance into the boundary. Points beyond it, which only fill up a row, are damped like its
/// edge.
fn damping_profile<T: Real>(points: usize, inside: usize, pad: usize, rate_dt: f64) -> Vec<T> {
    (0..points)
        .map(|i| {
            let beyond = pad.saturating_sub(i).max((i + 1).saturating_sub(pad + inside));
            let depth = (beyond as f64 / pad as f64).min(1.0);
            T::from_f64(1.0 / (1.0 + 0.5 * rate_dt * depth.powi(3)))
        })
        .collect()
}
