//! The settings of a migration, as they are written in a TOML file, and the checks that they pass.

use crate::error::{Error, Result};
use crate::model::{BuiltIn, Grid, Model};
use crate::model_file;
use crate::wave::Scheme;
use serde::Deserialize;
use std::path::PathBuf;

/// More points than this are a slip of the pen: their fields alone would take hundreds of
/// gigabytes.
const POINTS_MAX: usize = 1 << 34;
/// More steps than this are too.
pub(crate) const STEPS_MAX: f64 = 1e7;

/// Everything that a migration can be told; an empty file is a small salt model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The built-in model: `layers`, `salt` or `fault`. Not used when there is a `file`.
    pub model: BuiltIn,
    /// A file of velocities in metres per second: `.npy`, or anything else as raw little-endian
    /// 32-bit floats. In both, depth varies fastest and x slowest: an array of shape (x, z) or (x,
    /// y, z).
    pub file: Option<PathBuf>,
    /// Points of the grid: `[x, z]` or `[x, y, z]`. An `.npy` file knows its own.
    pub points: Option<Vec<usize>>,
    /// Metres between points: one number, or one for each axis.
    pub spacing: Spacing,
    /// How much the velocity that the migration knows is smoothed: standard deviation in metres.
    pub smoothing: f32,
    /// Order of accuracy in space: 2, 4, .. 16.
    pub space_order: usize,
    /// Order of accuracy in time: 2 or 4.
    pub time_order: usize,
    /// The time step in seconds; left out, it is 90 % of the largest stable one.
    pub dt: Option<f64>,
    /// How long each shot is listened to, in seconds.
    pub duration: f64,
    /// Points that are added along every edge to absorb waves.
    pub boundary: usize,
    /// Peak frequency of the source, in hertz.
    pub frequency: f32,
    /// How many shots, or where: `[x, ..]` or `[[x, y], ..]` in metres.
    pub shots: Shots,
    /// Depth of the source in metres.
    pub shot_depth: f32,
    /// Metres between receivers.
    pub receiver_spacing: f32,
    /// Depth of the receivers in metres.
    pub receiver_depth: f32,
    /// Time steps between two snapshots.
    pub snapshot_every: usize,
    /// Whether long waves, which are not reflections, are filtered out of the image.
    pub laplacian_filter: bool,
    /// Compute threads; 0 for one per core.
    pub threads: usize,
}

/// Metres between points.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "spacing must be a number of metres, or a list of one number for each axis")]
pub enum Spacing {
    /// The same along all axes.
    Same(f32),
    /// One for each axis: `[x, z]` or `[x, y, z]`.
    Each(Vec<f32>),
}

/// Where the shots are.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "shots must be a number of shots, or a list of positions [x, ..] or [[x, y], ..] in metres"
)]
pub enum Shots {
    /// This many, spread evenly along x.
    Count(usize),
    /// At these x, in metres.
    Along(Vec<f32>),
    /// At these x and y, in metres.
    At(Vec<[f32; 2]>),
}

impl Shots {
    fn len(&self) -> usize {
        match self {
            Shots::Count(count) => *count,
            Shots::Along(positions) => positions.len(),
            Shots::At(positions) => positions.len(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            model: BuiltIn::Salt,
            file: None,
            points: None,
            spacing: Spacing::Same(20.0),
            smoothing: 120.0,
            space_order: 8,
            time_order: 2,
            dt: None,
            duration: 3.5,
            boundary: 40,
            frequency: 8.0,
            shots: Shots::Count(3),
            shot_depth: 20.0,
            receiver_spacing: 20.0,
            receiver_depth: 20.0,
            snapshot_every: 4,
            laplacian_filter: true,
            threads: 0,
        }
    }
}

impl Config {
    /// The demonstration: a 2D salt model whose snapshots take about 1.5 GiB per shot.
    pub fn demo() -> Self {
        Config {
            points: Some(vec![800, 440]),
            spacing: Spacing::Same(10.0),
            smoothing: 60.0,
            duration: 3.9,
            boundary: 44,
            frequency: 13.0,
            shots: Shots::Count(5),
            receiver_spacing: 10.0,
            receiver_depth: 20.0,
            snapshot_every: 3,
            ..Config::default()
        }
    }

    /// Reads settings from TOML text and validates them.
    ///
    /// ```
    /// use outcrop_rtm::Config;
    /// let config = Config::from_toml("model = 'fault'\nfrequency = 12")?;
    /// assert_eq!(config.frequency, 12.0);
    /// let error = Config::from_toml("frequencey = 12").unwrap_err();
    /// assert!(error.to_string().contains("did you mean frequency?"));
    /// # Ok::<(), outcrop_rtm::Error>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self> {
        let config: Config = toml::from_str(text).map_err(|error| Error::Syntax(explain(text, &error)))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every setting that can be judged without the model; the error names the field and
    /// what would work.
    pub fn validate(&self) -> Result<()> {
        self.check_grid()?;
        let positive = |field, value: f64, unit: &str| {
            require(value.is_finite() && value > 0.0, field, value, || format!("must be a positive number of {unit}"))
        };
        positive("duration", self.duration, "seconds")?;
        positive("frequency", self.frequency.into(), "hertz")?;
        positive("receiver_spacing", self.receiver_spacing.into(), "metres")?;
        if let Some(dt) = self.dt {
            positive("dt", dt, "seconds")?;
            require(self.duration / dt <= STEPS_MAX, "dt", dt, || {
                format!("makes more than {STEPS_MAX} steps; use a longer step or a shorter duration")
            })?;
        }
        let not_negative = |field, value: f32| {
            require(value.is_finite() && value >= 0.0, field, value, || "must be 0 or more metres".to_owned())
        };
        not_negative("smoothing", self.smoothing)?;
        not_negative("shot_depth", self.shot_depth)?;
        not_negative("receiver_depth", self.receiver_depth)?;
        let even = self.space_order.is_multiple_of(2) && (2..=16).contains(&self.space_order);
        require(even, "space_order", self.space_order, || "must be an even number from 2 to 16".to_owned())?;
        let known = [2, 4].contains(&self.time_order);
        require(known, "time_order", self.time_order, || "must be 2 or 4".to_owned())?;
        require(self.boundary <= 1000, "boundary", self.boundary, || {
            "must be at most 1000 points; 40 to 60 absorb well".to_owned()
        })?;
        require(self.snapshot_every > 0, "snapshot_every", self.snapshot_every, || {
            "must be at least 1: a snapshot at every step".to_owned()
        })?;
        require((1..=100_000).contains(&self.shots.len()), "shots", self.shots.len(), || {
            "must be between 1 and 100000 shots".to_owned()
        })?;
        require(self.threads <= 4096, "threads", self.threads, || "must be at most 4096, or 0 for all cores".to_owned())
    }

    fn check_grid(&self) -> Result<()> {
        if let Some(points) = &self.points {
            let shown = format!("{points:?}");
            require(matches!(points.len(), 2 | 3), "points", &shown, || {
                "must be two numbers [x, z] or three [x, y, z]".to_owned()
            })?;
            require(points.iter().all(|&n| n >= 2), "points", &shown, || {
                "every axis needs at least 2 points; leave y out for a 2D model".to_owned()
            })?;
            let total = points.iter().try_fold(1_usize, |product, &n| product.checked_mul(n));
            require(total.is_some_and(|n| n <= POINTS_MAX), "points", &shown, || {
                format!("must be at most {POINTS_MAX} points in all")
            })?;
        }
        let spacings = match &self.spacing {
            Spacing::Same(metres) => std::slice::from_ref(metres),
            Spacing::Each(metres) => {
                require(matches!(metres.len(), 2 | 3), "spacing", format!("{metres:?}"), || {
                    "must be one number, two for [x, z] or three for [x, y, z]".to_owned()
                })?;
                metres
            }
        };
        let usable = spacings.iter().all(|s| s.is_finite() && (1e-3..=1e5).contains(s));
        require(usable, "spacing", format!("{spacings:?}"), || "must be between 0.001 and 100000 metres".to_owned())
    }

    /// The scheme that these settings ask for.
    pub fn scheme(&self) -> Scheme {
        Scheme { space_order: self.space_order, time_order: self.time_order, dt: self.dt, boundary: self.boundary }
    }

    /// Builds the true velocity model, or reads it from its file.
    pub fn true_model(&self) -> Result<Model> {
        let points = self.points.as_deref().map(with_y);
        match &self.file {
            None => {
                let points = points.unwrap_or([400, 1, 200]);
                Ok(Model::built_in(self.model, Grid { points, spacing: self.spacing_for(points)? }))
            }
            Some(path) => {
                let (points, velocity) = model_file::read(path, points)?;
                if points[0] < 2 || points[2] < 2 {
                    let [x, _, z] = points;
                    return Err(Error::Model(format!(
                        "{x} points along x and {z} in depth; it needs at least 2 of both"
                    )));
                }
                Model::new(Grid { points, spacing: self.spacing_for(points)? }, velocity)
            }
        }
    }

    fn spacing_for(&self, points: [usize; 3]) -> Result<[f32; 3]> {
        match &self.spacing {
            Spacing::Same(metres) => Ok([*metres; 3]),
            Spacing::Each(metres) => match (metres.as_slice(), points[1] > 1) {
                (&[x, z], false) => Ok([x, x, z]),
                (&[x, y, z], true) => Ok([x, y, z]),
                _ => Err(Error::Setting {
                    field: "spacing",
                    value: format!("{metres:?}"),
                    advice: format!(
                        "the model has {} axes; give one number for each",
                        if points[1] > 1 { 3 } else { 2 }
                    ),
                }),
            },
        }
    }
}

/// `[x, z]` as `[x, 1, z]`.
fn with_y(points: &[usize]) -> [usize; 3] {
    match *points {
        [x, z] => [x, 1, z],
        [x, y, z] => [x, y, z],
        _ => unreachable!("validated to have two or three axes"),
    }
}

fn require(
    fine: bool,
    field: &'static str,
    value: impl std::fmt::Display,
    advice: impl FnOnce() -> String,
) -> Result<()> {
    if fine { Ok(()) } else { Err(Error::Setting { field, value: value.to_string(), advice: advice() }) }
}

/// The line and the message of a TOML error, and for an unknown key the nearest known one.
fn explain(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = 1 + before.matches('\n').count();
    // serde writes "unknown field `x`, expected one of `a`, `b`"; the names are every other part
    // between backticks.
    let mut names = error.message().split('`').skip(1).step_by(2);
    if error.message().starts_with("unknown field")
        && let Some(unknown) = names.next()
        && let Some(nearest) = names.min_by_key(|known| edits(unknown, known))
    {
        return format!("line {line}: unknown key {unknown}; did you mean {nearest}?");
    }
    format!("line {line}: {}", error.message())
}

/// How many letters must be put in, taken out or changed to make `a` of `b`.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for j in 0..b.len() {
            let changed = diagonal + usize::from(letter != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("points", "points"), 0);
    }
}
