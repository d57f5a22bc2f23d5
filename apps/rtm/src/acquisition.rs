//! The survey: the wavelet of the source, and where shots and receivers are.

use crate::config::{Config, Shots};
use crate::error::{Error, Result};
use crate::model::Grid;

/// A Ricker wavelet of a peak frequency in hertz, one value per time step, delayed so that it
/// starts from nothing.
pub fn ricker(frequency: f32, dt: f64, steps: usize) -> Vec<f32> {
    let delay = 1.4 / f64::from(frequency);
    (0..steps)
        .map(|n| {
            let phase = std::f64::consts::PI * f64::from(frequency) * (n as f64 * dt - delay);
            ((1.0 - 2.0 * phase * phase) * (-phase * phase).exp()) as f32
        })
        .collect()
}

/// Where shots are fired and where every one of them is heard, as points of the grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// One point per shot.
    pub shots: Vec<[usize; 3]>,
    /// One point per receiver; all listen to all shots.
    pub receivers: Vec<[usize; 3]>,
}

impl Survey {
    /// Lays the survey of a configuration out on a grid.
    pub fn new(config: &Config, grid: &Grid) -> Result<Self> {
        let shot_z = nearest(config.shot_depth, grid, 2, "shot_depth")?;
        let receiver_z = nearest(config.receiver_depth, grid, 2, "receiver_depth")?;
        let middle_y = grid.points[1] / 2;
        let shots = match &config.shots {
            Shots::Count(count) => (0..*count)
                .map(|i| {
                    let x = (i as f32 + 0.5) / *count as f32 * grid.extent(0);
                    Ok([nearest(x, grid, 0, "shots")?, middle_y, shot_z])
                })
                .collect::<Result<Vec<_>>>()?,
            Shots::Along(positions) => positions
                .iter()
                .map(|&x| Ok([nearest(x, grid, 0, "shots")?, middle_y, shot_z]))
                .collect::<Result<Vec<_>>>()?,
            Shots::At(positions) => positions
                .iter()
                .map(|&[x, y]| Ok([nearest(x, grid, 0, "shots")?, nearest(y, grid, 1, "shots")?, shot_z]))
                .collect::<Result<Vec<_>>>()?,
        };
        let apart = |axis: usize| ((config.receiver_spacing / grid.spacing[axis]).round() as usize).max(1);
        let receivers = (0..grid.points[0])
            .step_by(apart(0))
            .flat_map(|x| (0..grid.points[1]).step_by(apart(1)).map(move |y| [x, y, receiver_z]))
            .collect();
        Ok(Survey { shots, receivers })
    }
}

/// The grid point nearest to a position in metres along an axis.
fn nearest(metres: f32, grid: &Grid, axis: usize, field: &'static str) -> Result<usize> {
    let point = (metres / grid.spacing[axis]).round();
    if (0.0..grid.points[axis] as f32).contains(&point) {
        return Ok(point as usize);
    }
    let name = ["x", "y", "depth"][axis];
    Err(Error::Setting {
        field,
        value: metres.to_string(),
        advice: format!("lies outside of the model, whose {name} goes from 0 to {} metres", grid.extent(axis)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wavelet_starts_and_ends_at_nothing() {
        let wavelet = ricker(10.0, 0.001, 300);
        assert!(wavelet[0].abs() < 1e-6 && wavelet[299].abs() < 1e-6);
        assert_eq!(wavelet[140], 1.0);
        // A source that pushes as much as it pulls leaves no static pressure behind.
        assert!(wavelet.iter().sum::<f32>().abs() < 1e-3);
    }

    #[test]
    fn shots_by_count_and_by_position() {
        let grid = Grid { points: [101, 1, 51], spacing: [10.0; 3] };
        let mut config = Config { shots: Shots::Count(2), shot_depth: 20.0, ..Config::default() };
        assert_eq!(Survey::new(&config, &grid).unwrap().shots, [[25, 0, 2], [75, 0, 2]]);
        config.shots = Shots::Along(vec![0.0, 1000.0]);
        assert_eq!(Survey::new(&config, &grid).unwrap().shots, [[0, 0, 2], [100, 0, 2]]);
        config.shots = Shots::Along(vec![1010.0]);
        let message = Survey::new(&config, &grid).unwrap_err().to_string();
        assert!(message.contains("shots = 1010") && message.contains("0 to 1000 metres"), "{message}");
    }
}
