//! A droplet in a flow: volume of fluid on an octree that is fine where the surface is.
//!
//! The flow turns in all three planes, is still at the walls, and runs backwards in the second half
//! of its period, so that the droplet should come back. It is the curl of a potential, whose
//! integrals along edges are exact: what flows into a cell flows out of it, also between cells of
//! different sizes. The liquid moves by Weymouth and Yue's method, one axis after the other, with a
//! plane for the surface in each cell, so its volume stays the same but for rounding errors.

mod leaves;
mod mesh;
mod plane;
mod regrid;

use std::f64::consts::PI;

use clap::{Args, value_parser};
use rayon::prelude::*;
use zerocopy::IntoBytes;

pub use self::leaves::Leaf;
use self::{
    leaves::{LEVEL_MAX, Leaves, edge, size},
    mesh::Mesh,
    plane::Plane,
    regrid::Levels,
};
use crate::{Error, Keep, Keeper, Picture, Program, Result, Stepped, Traffic};

/// Which droplet, and how finely it is seen.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// The finest level: cells have an edge of one half to this power.
    #[arg(long, value_name = "LEVEL", default_value_t = 6, value_parser = value_parser!(u64).range(2..=LEVEL_MAX as u64))]
    pub level: u64,
    /// The coarsest level.
    #[arg(long, value_name = "LEVEL", default_value_t = 3, value_parser = value_parser!(u64).range(1..=LEVEL_MAX as u64))]
    pub coarsest: u64,
    /// Time steps; each is an iteration [default: one period of the flow].
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u64).range(1..=100_000_000))]
    pub steps: Option<u64>,
    /// The period of the flow.
    #[arg(long, value_name = "TIME", default_value_t = 2.0)]
    pub period: f64,
    /// The radius of the droplet at the start.
    #[arg(long, value_name = "LENGTH", default_value_t = 0.15)]
    pub radius: f64,
}

/// A droplet.
pub struct Droplet {
    settings: Settings,
    mesh: Mesh,
    flow: Flow,
}

/// Where the droplet starts.
const CENTRE: [f64; 3] = [0.5, 0.32, 0.5];
/// How many of the finest cells the flow moves in a step, at most: a sixth along each axis, where
/// the method is known to keep fractions between 0 and 1.
const COURANT: f64 = 1.0 / 6.0;
/// The flow is not faster than this along any axis.
const SPEED_MAX: f64 = 2.0;
/// Steps between two changes of the mesh: the surface moves less than a cell meanwhile.
const REGRID_EVERY: u64 = 4;

impl Settings {
    fn dt(&self) -> f64 {
        COURANT * edge(self.level) / SPEED_MAX
    }

    fn levels(&self) -> Levels {
        Levels { least: self.coarsest, most: self.level }
    }
}

impl Program for Droplet {
    const NAME: &'static str = "droplet";
    const ABOUT: &'static str = "A droplet in a flow, on an octree that is refined at its surface";
    const EVERY: u64 = 10;
    type Settings = Settings;

    fn describe(settings: &Settings) -> Result<String> {
        let Settings { level, coarsest, period, radius, .. } = settings;
        Error::require(coarsest <= level, "--coarsest", || format!("at most the finest level, {level}"))?;
        Error::require((0.01..=1000.0).contains(period), "--period", || "from 0.01 to 1000".to_owned())?;
        Error::require((0.05..=0.3).contains(radius), "--radius", || {
            "from 0.05 to 0.3: the droplet starts inside of the domain".to_owned()
        })?;
        let steps = Self::iterations(settings);
        Ok(format!("--level {level} --coarsest {coarsest} --steps {steps} --period {period} --radius {radius}"))
    }

    fn iterations(settings: &Settings) -> u64 {
        settings.steps.unwrap_or_else(|| (settings.period / settings.dt()).ceil() as u64)
    }

    fn open(settings: &Settings, keeper: &mut Keeper) -> Result<Self> {
        Ok(Self { settings: settings.clone(), mesh: Mesh::open("mesh", keeper)?, flow: Flow::new() })
    }

    fn begin(&mut self) {
        let Settings { coarsest, radius, .. } = self.settings;
        while self.mesh.leaves()[0].level < coarsest {
            let all: Vec<usize> = (0..self.mesh.leaves().len()).collect();
            self.mesh.refine(&all);
        }
        loop {
            let fractions: Vec<f64> = self.mesh.leaves().par_iter().map(|leaf| inside(leaf, radius)).collect();
            self.mesh.set(&fractions);
            let refined = self.settings.levels().refined(self.mesh.leaves());
            if refined.is_empty() {
                return;
            }
            self.mesh.refine(&refined);
        }
    }

    fn step(&mut self, done: u64) -> Stepped {
        let dt = self.settings.dt();
        let now = (done as f64 + 0.5) * dt;
        let swept = dt * (PI * now / self.settings.period).cos();
        let before: Vec<f64> = self.mesh.leaves().iter().map(|leaf| leaf.fraction).collect();
        let mut leaves = self.mesh.leaves().to_vec();
        for turn in 0..3 {
            // Each axis is the first one in its turn.
            move_along((turn + done as usize) % 3, &self.flow, swept, &mut leaves, &before);
        }
        self.mesh.set(&leaves.iter().map(|leaf| leaf.fraction).collect::<Vec<_>>());
        if (done + 1).is_multiple_of(REGRID_EVERY) {
            self.regrid();
        }
        // Three sweeps; the neighbours of a leaf are found in the tree.
        let (count, bytes) = (leaves.len() as u64, 3 * size_of_val(&*leaves) as u64);
        let traffic = Traffic { read_bytes: 2 * bytes, reads: 6 * count, written_bytes: bytes, writes: 0 };
        Stepped { traffic, is_last: false }
    }

    fn kept(&mut self) -> Vec<&mut dyn Keep> {
        vec![&mut self.mesh]
    }

    fn report(&self) -> String {
        let leaves = self.mesh.leaves();
        let at_surface = leaves.iter().filter(|leaf| leaf.is_mixed()).count();
        format!("{} cells, {at_surface} at the surface, volume {:.15}", leaves.len(), self.volume())
    }

    /// A slice through the middle of the droplet: liquid is blue, and cells have edges.
    fn picture(&self) -> Option<Picture> {
        const PIXELS: i64 = 640;
        let leaves = self.mesh.leaves();
        let all = Leaves(leaves);
        let height = |leaf: &Leaf| leaf.fraction * leaf.volume() * (leaf.corner()[2] + leaf.size() / 2) as f64;
        let middle = (leaves.iter().map(height).sum::<f64>() / self.volume()) as i64;
        let at = |x: i64, y: i64| {
            let scaled = |pixel: i64| (pixel.clamp(0, PIXELS - 1) * size(0)) / PIXELS;
            all.at([scaled(x), scaled(PIXELS - 1 - y), middle])
        };
        let mut picture = Picture::new(PIXELS as usize, PIXELS as usize, [255; 3]);
        for y in 0..PIXELS {
            for x in 0..PIXELS {
                let here = at(x, y)?;
                let is_edge = at(x + 1, y) != Some(here) || at(x, y + 1) != Some(here);
                let liquid = leaves[here].fraction.clamp(0.0, 1.0);
                let mixed =
                    |dry: f64, wet: f64| ((dry + (wet - dry) * liquid) * if is_edge { 0.72 } else { 1.0 }) as u8;
                picture.set(x, y, [mixed(250.0, 40.0), mixed(250.0, 110.0), mixed(250.0, 210.0)]);
            }
        }
        Some(picture)
    }

    fn output(&self) -> Vec<u8> {
        self.mesh.leaves().as_bytes().to_vec()
    }
}

impl Droplet {
    /// The volume of the liquid.
    pub fn volume(&self) -> f64 {
        self.mesh.leaves().iter().map(|leaf| leaf.fraction * leaf.volume()).sum()
    }

    /// The leaves, in Morton order.
    pub fn leaves(&self) -> &[Leaf] {
        self.mesh.leaves()
    }

    /// That the mesh is a tree whose neighbours differ by at most one level.
    pub fn check(&self) -> std::result::Result<(), String> {
        regrid::check(self.mesh.leaves())
    }

    fn regrid(&mut self) {
        let levels = self.settings.levels();
        let coarsened = levels.coarsened(self.mesh.leaves());
        if !coarsened.is_empty() {
            self.mesh.coarsen(&coarsened);
        }
        loop {
            let refined = levels.refined(self.mesh.leaves());
            if refined.is_empty() {
                return;
            }
            self.mesh.refine(&refined);
        }
    }
}

/// The part of a leaf that is inside of the droplet at the start.
fn inside(leaf: &Leaf, radius: f64) -> f64 {
    const POINTS: usize = 8;
    let unit = edge(u64::from(LEVEL_MAX));
    let (corner, edge) = (leaf.corner().map(|at| at as f64 * unit), leaf.size() as f64 * unit);
    let away = |point: [f64; 3]| (0..3).map(|axis| (point[axis] - CENTRE[axis]).powi(2)).sum::<f64>().sqrt();
    let distance = away(corner.map(|at| at + 0.5 * edge)) - radius;
    if distance.abs() > edge {
        return f64::from(u8::from(distance < 0.0));
    }
    let at = |corner: f64, number: usize| corner + (number as f64 + 0.5) / POINTS as f64 * edge;
    let points = (0..POINTS.pow(3)).map(|number| {
        let numbers = [number % POINTS, number / POINTS % POINTS, number / POINTS / POINTS];
        [0, 1, 2].map(|axis| at(corner[axis], numbers[axis]))
    });
    points.filter(|point| away(*point) < radius).count() as f64 / POINTS.pow(3) as f64
}

/// The flow: how much passes a face in a unit of time.
struct Flow {
    /// The squared sine of pi times every coordinate there can be.
    squares: Vec<f64>,
}

impl Flow {
    fn new() -> Self {
        let square = |at: i64| (PI * at as f64 * edge(u64::from(LEVEL_MAX))).sin().powi(2);
        Self { squares: (0..=size(0)).map(square).collect() }
    }

    /// A component of the potential, which depends on the two other coordinates.
    fn potential(&self, one: i64, other: i64) -> f64 {
        self.squares[one as usize] * self.squares[other as usize] / PI
    }

    /// The integral of the potential around a face is what passes it.
    fn through(&self, axis: usize, corner: [i64; 3], size: i64) -> f64 {
        let (next, last, here) = ((axis + 1) % 3, (axis + 2) % 3, corner[axis]);
        // The component along `last` does not depend on `last`, nor that along `next` on `next`.
        let along_last = self.potential(here, corner[next] + size) - self.potential(here, corner[next]);
        let along_next = self.potential(corner[last] + size, here) - self.potential(corner[last], here);
        (along_last - along_next) * size as f64 * edge(u64::from(LEVEL_MAX))
    }
}

/// What passes a face: from which leaf to which, and how much of it is liquid.
#[derive(Clone, Copy)]
struct Passed {
    low: usize,
    high: usize,
    all: f64,
    liquid: f64,
}

/// Moves the liquid along one axis. `before` is what leaves had before the first axis.
fn move_along(axis: usize, flow: &Flow, swept: f64, leaves: &mut [Leaf], before: &[f64]) {
    let all = Leaves(leaves);
    let planes: Vec<Option<Plane>> = leaves.par_iter().map(|leaf| surface(&all, leaf)).collect();
    let faces = |number: usize| {
        [false, true].map(|is_upper| {
            let leaf = &leaves[number];
            let other = all.beyond(leaf, axis, is_upper)?;
            // The finer of both has the face; of equals, the lower one.
            let is_mine = leaves[other].level < leaf.level || (leaves[other].level == leaf.level && is_upper);
            is_mine.then(|| {
                let mut corner = leaf.corner();
                corner[axis] += if is_upper { leaf.size() } else { 0 };
                let passes = swept * flow.through(axis, corner, leaf.size());
                let (low, high) = if is_upper { (number, other) } else { (other, number) };
                let giver = if passes > 0.0 { low } else { high };
                let liquid = match planes[giver].as_ref().filter(|_| leaves[giver].level == leaf.level) {
                    Some(plane) => {
                        let volume = leaves[giver].volume();
                        passes.signum() * volume * plane.slab(axis, passes > 0.0, passes.abs() / volume)
                    }
                    None => passes * leaves[giver].fraction,
                };
                Passed { low, high, all: passes, liquid }
            })
        })
    };
    let passed: Vec<[Option<Passed>; 2]> = (0..leaves.len()).into_par_iter().map(faces).collect();
    // One after the other, so that sums do not depend on threads.
    let mut changes = vec![(0.0, 0.0); leaves.len()];
    for face in passed.into_iter().flatten().flatten() {
        changes[face.low].0 -= face.liquid;
        changes[face.high].0 += face.liquid;
        changes[face.low].1 += face.all;
        changes[face.high].1 -= face.all;
    }
    for ((leaf, (liquid, lost)), before) in leaves.iter_mut().zip(changes).zip(before) {
        let was_liquid = f64::from(u8::from(*before > 0.5));
        leaf.fraction += (liquid + was_liquid * lost) / leaf.volume();
    }
}

/// The plane of the surface in a leaf, if it has one: its normal is the gradient of what cells
/// around it have (Youngs).
fn surface(all: &Leaves<'_>, leaf: &Leaf) -> Option<Plane> {
    if !leaf.is_mixed() {
        return None;
    }
    let (corner, edge) = (leaf.corner(), leaf.size());
    let mut outwards = [0.0; 3];
    for number in 0..27i64 {
        let steps = [number % 3 - 1, number / 3 % 3 - 1, number / 9 - 1];
        let point = [0, 1, 2].map(|axis| (corner[axis] + steps[axis] * edge).clamp(0, size(0) - 1));
        let fraction = all.at(point).map_or(0.0, |other| all.0[other].fraction);
        for axis in 0..3 {
            let weights = (0..3).filter(|other| *other != axis).map(|other| 2.0 - steps[other].abs() as f64);
            outwards[axis] -= steps[axis] as f64 * weights.product::<f64>() * fraction;
        }
    }
    Some(Plane::new(outwards, leaf.fraction))
}
