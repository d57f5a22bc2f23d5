//! Grids and velocity models: the built-in ones, the checks that every model passes, and smoothing.

use crate::error::{Error, Result};
use serde::Deserialize;

/// A regular grid of points along x (the line), y (across, one point in 2D) and z (depth).
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Points along x, y and z; one along y means a 2D grid.
    pub points: [usize; 3],
    /// Distance between points along x, y and z, in metres.
    pub spacing: [f32; 3],
}

impl Grid {
    /// Points in all.
    pub fn len(&self) -> usize {
        self.points.iter().product()
    }

    /// True if there is no point.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the grid has a y axis.
    pub fn is_3d(&self) -> bool {
        self.points[1] > 1
    }

    /// Where a point is in an array of this grid: x slowest, depth fastest.
    pub fn index(&self, [x, y, z]: [usize; 3]) -> usize {
        (x * self.points[1] + y) * self.points[2] + z
    }

    /// The distance between the first and the last point of an axis, in metres.
    pub fn extent(&self, axis: usize) -> f32 {
        self.points[axis].saturating_sub(1) as f32 * self.spacing[axis]
    }
}

/// The models that need no file; each exists in 2D and 3D and fits itself to the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuiltIn {
    /// Gently folded layers under water.
    Layers,
    /// A salt body in layered sediments under water.
    Salt,
    /// Layers displaced by a fault.
    Fault,
}

/// The velocity of sound at every point of a grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    grid: Grid,
    velocity: Vec<f32>,
}

/// Velocities outside of this range, in metres per second, are not of this earth: most likely
/// another unit.
const VELOCITY_RANGE: std::ops::RangeInclusive<f32> = 50.0..=20_000.0;

const WATER: f32 = 1500.0;
const SALT: f32 = 4500.0;
/// Depth of the interfaces as a fraction of the model, and the velocity below each.
const INTERFACES: [(f32, f32); 7] =
    [(0.13, 1800.0), (0.24, 2050.0), (0.35, 2300.0), (0.47, 2600.0), (0.60, 2900.0), (0.73, 3250.0), (0.87, 3600.0)];

impl Model {
    /// A model from velocities in metres per second, x slowest and depth fastest.
    pub fn new(grid: Grid, velocity: Vec<f32>) -> Result<Self> {
        if velocity.len() != grid.len() {
            let [x, y, z] = grid.points;
            return Err(Error::Model(format!(
                "{} velocities for a grid of {x} x {y} x {z} = {} points",
                velocity.len(),
                grid.len()
            )));
        }
        if let Some(at) = velocity.iter().position(|v| !VELOCITY_RANGE.contains(v)) {
            let [_, ny, nz] = grid.points;
            return Err(Error::Model(format!(
                "the velocity at x = {}, y = {}, z = {} (in points) is {}; every velocity must be a number between {} and \
                 {} metres per second",
                at / (ny * nz),
                at / nz % ny,
                at % nz,
                velocity[at],
                VELOCITY_RANGE.start(),
                VELOCITY_RANGE.end()
            )));
        }
        Ok(Model { grid, velocity })
    }

    /// One of the built-in models on a grid.
    pub fn built_in(name: BuiltIn, grid: Grid) -> Self {
        let at = match name {
            BuiltIn::Layers => layers,
            BuiltIn::Salt => salt,
            BuiltIn::Fault => fault,
        };
        let [nx, ny, nz] = grid.points;
        // A 2D model is the section through the middle of the 3D one.
        let unit = |i: usize, n: usize| if n > 1 { i as f32 / (n - 1) as f32 } else { 0.5 };
        let mut velocity = Vec::with_capacity(grid.len());
        for x in 0..nx {
            for y in 0..ny {
                velocity.extend((0..nz).map(|z| at(unit(x, nx), unit(y, ny), unit(z, nz))));
            }
        }
        Model { grid, velocity }
    }

    /// The grid of the model.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The velocities in metres per second, x slowest and depth fastest.
    pub fn velocity(&self) -> &[f32] {
        &self.velocity
    }

    /// The fastest velocity.
    pub fn velocity_max(&self) -> f32 {
        self.velocity.iter().copied().fold(0.0, f32::max)
    }

    /// The slowest velocity.
    pub fn velocity_min(&self) -> f32 {
        self.velocity.iter().copied().fold(f32::INFINITY, f32::min)
    }

    /// The model as a migration knows it: without its sharp edges.
    ///
    /// Slowness, not velocity, is averaged, because that keeps travel times. The average is close
    /// to a Gaussian whose standard deviation is `metres`, made of three moving averages along each
    /// axis.
    pub fn smoothed(&self, metres: f32) -> Self {
        let mut slowness: Vec<f64> = self.velocity.iter().map(|&v| 1.0 / f64::from(v)).collect();
        let [nx, ny, nz] = self.grid.points;
        let axes = [(nx, ny * nz), (ny, nz), (nz, 1)];
        for (axis, (points, stride)) in axes.into_iter().enumerate() {
            let deviation = f64::from(metres / self.grid.spacing[axis]);
            // Three averages over 2r+1 points have the variance ((2r+1)^2 - 1) / 4.
            let radius = (((4.0 * deviation * deviation + 1.0).sqrt() - 1.0) / 2.0).round();
            let radius = (radius as usize).min(points);
            if radius == 0 || points == 1 {
                continue;
            }
            let mut line = vec![0.0; points];
            for first in 0..slowness.len() {
                if first / stride % points != 0 {
                    continue;
                }
                for (i, value) in line.iter_mut().enumerate() {
                    *value = slowness[first + i * stride];
                }
                for _ in 0..3 {
                    line = moving_average(&line, radius);
                }
                for (i, value) in line.iter().enumerate() {
                    slowness[first + i * stride] = *value;
                }
            }
        }
        // An average lies between its values; rounding must not put it beyond, or a stable time
        // step might not be.
        let (slowest, fastest) = (self.velocity_min(), self.velocity_max());
        let velocity = slowness.into_iter().map(|s| ((1.0 / s) as f32).clamp(slowest, fastest)).collect();
        Model { grid: self.grid.clone(), velocity }
    }
}

/// The average over `2 radius + 1` points; beyond its ends the line goes on with its last value.
fn moving_average(line: &[f64], radius: usize) -> Vec<f64> {
    let last = line.len() - 1;
    let at = |i: isize| line[i.clamp(0, last as isize) as usize];
    let reach = radius as isize;
    let width = (2 * radius + 1) as f64;
    let mut sum: f64 = (-reach..=reach).map(at).sum();
    (0..line.len() as isize)
        .map(|i| {
            let average = sum / width;
            sum += at(i + 1 + reach) - at(i - reach);
            average
        })
        .collect()
}

/// How far the layers are folded down at a place, as a fraction of the depth of the model.
fn fold(x: f32, y: f32) -> f32 {
    let wave = |t: f32| (std::f32::consts::TAU * t).sin();
    0.022 * wave(1.1 * x + 0.1) + 0.010 * wave(2.3 * x + 0.4 * y) + 0.012 * wave(0.8 * y + 0.1)
}

fn layers(x: f32, y: f32, z: f32) -> f32 {
    sediments(z, fold(x, y), 0.25 * fold(0.7 * x + 0.3, y))
}

/// Velocity at depth `z` where sediments are folded by `fold` and the sea floor by `sea_floor`.
fn sediments(z: f32, fold: f32, sea_floor: f32) -> f32 {
    INTERFACES.iter().enumerate().fold(WATER, |velocity, (i, &(depth, below))| {
        // Folding grows with depth: young layers lie flatter.
        let shift = if i == 0 { sea_floor } else { fold * (0.5 + depth) };
        if z >= depth + shift { below } else { velocity }
    })
}

fn salt(x: f32, y: f32, z: f32) -> f32 {
    // A rugged dome on a flat base.
    let (dx, dy) = ((x - 0.5) / 0.27, (y - 0.5) / 0.32);
    let distance = (dx * dx + dy * dy).sqrt();
    let rugged = 0.016 * (std::f32::consts::TAU * (5.0 * x + 0.3 * y)).sin();
    let top = 0.30 + rugged + 0.21 * distance.powf(2.2);
    let base = 0.66 - 0.15 * distance.powf(7.0);
    if z >= top && z < base {
        return SALT;
    }
    // The rising salt has bent the sediments above and beside it upwards.
    let lift = 0.045 * (-1.6 * distance * distance).exp() * (-((z - 0.28) / 0.16).powi(2)).exp();
    sediments(z + lift, fold(x, y), 0.25 * fold(0.7 * x + 0.3, y))
}

fn fault(x: f32, y: f32, z: f32) -> f32 {
    let plane = 0.42 + 0.30 * z + 0.08 * (y - 0.5);
    let fallen = x > plane;
    // The sea floor is younger than the fault and lies undisturbed.
    let throw = if fallen { 0.075 } else { 0.0 };
    sediments(z, fold(x, y) + throw, 0.25 * fold(0.7 * x + 0.3, y))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(points: [usize; 3]) -> Grid {
        Grid { points, spacing: [10.0; 3] }
    }

    #[test]
    fn built_in_models_fit_any_grid() {
        for points in [[90, 1, 50], [30, 20, 25], [1, 1, 1], [2, 3, 2]] {
            for name in [BuiltIn::Layers, BuiltIn::Salt, BuiltIn::Fault] {
                let model = Model::built_in(name, grid(points));
                let checked = Model::new(grid(points), model.velocity().to_vec()).unwrap();
                assert_eq!(checked, model);
            }
        }
        let salt = Model::built_in(BuiltIn::Salt, grid([90, 1, 50]));
        assert_eq!((salt.velocity_min(), salt.velocity_max()), (WATER, SALT));
    }

    #[test]
    fn a_2d_model_is_the_middle_of_the_3d_one() {
        let flat = Model::built_in(BuiltIn::Salt, grid([40, 1, 30]));
        let full = Model::built_in(BuiltIn::Salt, grid([40, 21, 30]));
        for x in 0..40 {
            for z in 0..30 {
                let middle = full.velocity()[full.grid().index([x, 10, z])];
                assert_eq!(middle, flat.velocity()[flat.grid().index([x, 0, z])]);
            }
        }
    }

    #[test]
    fn smoothing_keeps_constants_and_mean_slowness() {
        let constant = Model::new(grid([20, 3, 20]), vec![2000.0; 1200]).unwrap();
        assert!(constant.smoothed(50.0).velocity().iter().all(|v| (v - 2000.0).abs() < 0.01));

        let mut velocity = vec![2000.0; 41];
        velocity[20] = 4000.0;
        let spike = Model::new(grid([1, 1, 41]), velocity).unwrap();
        let total = |m: &Model| m.velocity().iter().map(|&v| 1.0 / f64::from(v)).sum::<f64>();
        let smooth = spike.smoothed(30.0);
        assert!((total(&spike) / total(&smooth) - 1.0).abs() < 1e-6);
        assert!(smooth.velocity_max() < 2200.0);
        assert_eq!(spike.smoothed(0.0).velocity_max(), 4000.0);
    }

    #[test]
    fn impossible_velocities_are_named() {
        let mut velocity = vec![2000.0; 24];
        for bad in [f32::NAN, 0.0, -1500.0, f32::INFINITY, 2.0] {
            velocity[23] = bad;
            let message = Model::new(grid([2, 3, 4]), velocity.clone()).unwrap_err().to_string();
            assert!(message.contains("x = 1, y = 2, z = 3"), "{message}");
        }
        let message = Model::new(grid([2, 3, 5]), velocity).unwrap_err().to_string();
        assert!(message.contains("24 velocities") && message.contains("30 points"), "{message}");
    }
}
