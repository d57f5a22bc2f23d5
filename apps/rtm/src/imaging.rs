//! The imaging condition: what a shot adds up while it runs backwards, the stack over all shots,
//! and its filter.

use crate::model::Grid;
use crate::wave::{Propagator, Wavefield};
use rayon::prelude::*;

/// What one shot has to say about every point of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct ShotImage {
    /// The sum over snapshots of source field times receiver field: large where both met, which is
    /// at reflectors.
    pub correlation: Vec<f32>,
    /// The sum over snapshots of the squared source field: how much light fell there.
    pub illumination: Vec<f32>,
}

impl ShotImage {
    /// A shot that has seen nothing yet.
    pub fn new(grid: &Grid) -> Self {
        ShotImage { correlation: vec![0.0; grid.len()], illumination: vec![0.0; grid.len()] }
    }

    /// Adds one moment: the snapshot of the source field, and the receiver field at the same time.
    ///
    /// Every point is summed by one thread in the order of the calls, so the sum does not depend on
    /// their number.
    pub(crate) fn correlate(&mut self, grid: &Grid, source: &[f32], propagator: &Propagator, receivers: &Wavefield) {
        let [_, ny, nz] = grid.points;
        let rows = self.correlation.par_chunks_mut(nz).zip(self.illumination.par_chunks_mut(nz));
        rows.zip(source.par_chunks(nz)).enumerate().with_min_len(16).for_each(|(row, ((image, light), source))| {
            let receivers = propagator.row(receivers, row / ny, row % ny);
            for i in 0..nz {
                image[i] += source[i] * receivers[i];
                light[i] += source[i] * source[i];
            }
        });
    }
}

/// The sum of shots, in the order in which they are added.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    grid: Grid,
    sum: ShotImage,
}

/// The least light, as a fraction of the average, that a point is taken to have: keeps the division
/// from blowing up what little noise there is in the dark.
const ILLUMINATION_MIN: f64 = 0.01;

impl Stack {
    /// A stack without shots.
    pub fn new(grid: &Grid) -> Self {
        Stack { grid: grid.clone(), sum: ShotImage::new(grid) }
    }

    /// Adds a shot.
    pub fn add(&mut self, shot: &ShotImage) {
        let pairs = [(&mut self.sum.correlation, &shot.correlation), (&mut self.sum.illumination, &shot.illumination)];
        for (sum, values) in pairs {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += value;
            }
        }
    }

    /// The image: correlation divided by illumination; with `laplacian_filter` without its long
    /// waves.
    ///
    /// Where the two fields travel along the same path, as they do between a source and a strong
    /// contrast, they correlate all along it. That smear has long wavelengths; the Laplacian
    /// weights each wave with its squared wavenumber and so leaves the reflectors.
    pub fn image(&self, laplacian_filter: bool) -> Vec<f32> {
        let light = &self.sum.illumination;
        let mean = light.iter().map(|&l| f64::from(l)).sum::<f64>() / light.len().max(1) as f64;
        let least = (ILLUMINATION_MIN * mean) as f32 + f32::MIN_POSITIVE;
        let image: Vec<f32> = self.sum.correlation.iter().zip(light).map(|(c, l)| c / (l + least)).collect();
        if laplacian_filter { minus_laplacian(&self.grid, &image) } else { image }
    }
}

/// Minus the second-order Laplacian; the image goes on beyond its edges with its last value.
fn minus_laplacian(grid: &Grid, image: &[f32]) -> Vec<f32> {
    let mut filtered = vec![0.0; image.len()];
    let [_, ny, nz] = grid.points;
    filtered.par_chunks_mut(ny * nz).enumerate().for_each(|(x, plane)| {
        for (i, value) in plane.iter_mut().enumerate() {
            let point = [x, i / nz, i % nz];
            let centre = image[grid.index(point)];
            for axis in [0, 1, 2] {
                let mut before = point;
                before[axis] = point[axis].saturating_sub(1);
                let mut after = point;
                after[axis] = (point[axis] + 1).min(grid.points[axis] - 1);
                let second = image[grid.index(before)] + image[grid.index(after)] - 2.0 * centre;
                *value -= second / (grid.spacing[axis] * grid.spacing[axis]);
            }
        }
    });
    filtered
}
