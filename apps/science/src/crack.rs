//! Molecular dynamics of a crack: a hexagonal crystal of Lennard-Jones atoms in two dimensions,
//! with a notch on its left side, whose upper and lower rows are pulled apart.
//!
//! Units are those of the potential: its depth, its length, and the mass of an atom are 1. Forces
//! end smoothly at the cutoff (shifted force), and time goes by velocity Verlet. Every atom sums
//! the forces of its neighbours in an order that positions determine, so nothing depends on
//! threads.

use clap::{Args, value_parser};
use outcrop_pool::Versioned;
use rayon::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Error, Field, Keep, Keeper, Picture, Program, Random, Result, Stepped, Traffic, picture::cold_to_hot};

/// Which crystal, and how it is pulled.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Atoms in a row.
    #[arg(long, value_name = "COUNT", default_value_t = 160, value_parser = value_parser!(u64).range(4..=20_000))]
    pub columns: u64,
    /// Rows of atoms.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = value_parser!(u64).range(8..=20_000))]
    pub rows: u64,
    /// Time steps; each is an iteration.
    #[arg(long, value_name = "COUNT", default_value_t = 4000, value_parser = value_parser!(u64).range(1..=100_000_000))]
    pub steps: u64,
    /// The length of a time step.
    #[arg(long, value_name = "TIME", default_value_t = 0.005)]
    pub dt: f64,
    /// By which part of its height the crystal grows in a unit of time.
    #[arg(long, value_name = "RATE", default_value_t = 0.005)]
    pub strain_rate: f64,
    /// The length of the notch, in parts of a row; 0: none.
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    pub notch: f64,
    /// The temperature at the start.
    #[arg(long, value_name = "ENERGY", default_value_t = 0.002)]
    pub temperature: f64,
    /// The random velocities.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// An atom.
#[derive(Debug, Versioned, FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub struct Atom {
    /// Where it is.
    pub position: [f64; 2],
    /// How fast it moves.
    pub velocity: [f64; 2],
    /// The force on it, in the last step.
    pub force: [f64; 2],
    /// 1 if it is part of a row that is pulled, and moves at a constant velocity; otherwise 0.
    pub is_held: u64,
}

/// A crystal.
pub struct Crack {
    settings: Settings,
    atoms: Field<Atom>,
}

/// The distance of neighbours at rest.
const SPACING: f64 = 1.12;
/// The distance of rows at rest.
const ROW: f64 = SPACING * 0.866_025_403_784_438_6;
/// Forces end at this distance.
const CUTOFF: f64 = 2.5;
/// The rows at each end that are pulled: what the others feel is all inside.
const HELD_ROWS: u64 = 3;

impl Program for Crack {
    const NAME: &'static str = "crack";
    const ABOUT: &'static str = "Molecular dynamics: a Lennard-Jones crystal with a notch is pulled until it cracks";
    const EVERY: u64 = 100;
    type Settings = Settings;

    fn describe(settings: &Settings) -> Result<String> {
        let Settings { columns, rows, steps, dt, strain_rate, notch, temperature, seed } = settings;
        Error::require((1e-6..=0.02).contains(dt), "--dt", || {
            format!("{dt} is not between 0.000001 and 0.02; a longer step is unstable")
        })?;
        Error::require((0.0..=1.0).contains(strain_rate), "--strain-rate", || "from 0 to 1".to_owned())?;
        Error::require((0.0..=0.9).contains(notch), "--notch", || "from 0 to 0.9".to_owned())?;
        Error::require((0.0..=0.4).contains(temperature), "--temperature", || {
            "from 0 to 0.4, where the crystal melts".to_owned()
        })?;
        Ok(format!(
            "--columns {columns} --rows {rows} --steps {steps} --dt {dt} --strain-rate {strain_rate} --notch {notch} \
             --temperature {temperature} --seed {seed}"
        ))
    }

    fn iterations(settings: &Settings) -> u64 {
        settings.steps
    }

    fn open(settings: &Settings, keeper: &mut Keeper) -> Result<Self> {
        let count = lattice(settings).count();
        Ok(Self { settings: settings.clone(), atoms: keeper.array("atoms", count)? })
    }

    fn begin(&mut self) {
        let settings = &self.settings;
        let mut random = Random::new(settings.seed);
        let middle = 0.5 * (settings.rows - 1) as f64 * ROW;
        // Twelve even numbers make a nearly normal one of variance 1.
        let mut thermal = || {
            let normal = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            normal * settings.temperature.sqrt()
        };
        for (atom, (row, position)) in self.atoms.all().iter_mut().zip(lattice(settings)) {
            let is_held = settings.strain_rate > 0.0 && (row < HELD_ROWS || row >= settings.rows - HELD_ROWS);
            // All rows start with the velocity that pulling gives them, so that no shock runs
            // through the crystal.
            let pulled = settings.strain_rate * (position[1] - middle);
            let velocity = if is_held { [0.0, pulled] } else { [thermal(), pulled + thermal()] };
            *atom = Atom { position, velocity, force: [0.0; 2], is_held: u64::from(is_held) };
        }
        let atoms = self.atoms.all();
        let forces = forces(atoms);
        atoms.par_iter_mut().zip(&forces).for_each(|(atom, felt)| atom.force = felt.force);
    }

    fn step(&mut self, _done: u64) -> Stepped {
        let dt = self.settings.dt;
        let atoms = self.atoms.all();
        atoms.par_iter_mut().for_each(|atom| {
            for axis in 0..2 {
                if atom.is_held == 0 {
                    atom.velocity[axis] += 0.5 * dt * atom.force[axis];
                }
                atom.position[axis] += dt * atom.velocity[axis];
            }
        });
        let forces = forces(atoms);
        atoms.par_iter_mut().zip(&forces).for_each(|(atom, felt)| {
            atom.force = felt.force;
            for axis in 0..2 {
                if atom.is_held == 0 {
                    atom.velocity[axis] += 0.5 * dt * atom.force[axis];
                }
            }
        });
        // Two sweeps over the atoms, and one over positions in the order of cells: a random read
        // each.
        let (count, bytes) = (self.atoms.len() as u64, size_of_val(&*self.atoms) as u64);
        let traffic = Traffic { read_bytes: 2 * bytes + 16 * count, reads: count, written_bytes: 2 * bytes, writes: 0 };
        Stepped { traffic, is_last: false }
    }

    fn kept(&mut self) -> Vec<&mut dyn Keep> {
        vec![&mut self.atoms]
    }

    fn report(&self) -> String {
        let broken = forces(&self.atoms).iter().filter(|felt| felt.neighbours < 5).count();
        format!("{} atoms, energy {:.6} each, {broken} at a surface", self.atoms.len(), self.energy())
    }

    /// Atoms, coloured by their potential energy: surfaces are red.
    fn picture(&self) -> Option<Picture> {
        let felt = forces(&self.atoms);
        let bounds = Bounds::of(&self.atoms);
        let scale = 720.0 / (bounds.size[0] + 2.0);
        let mut picture = Picture::new(720, ((bounds.size[1] + 2.0) * scale) as usize, [255; 3]);
        let (least, most) = (-3.3, -1.7);
        for (atom, felt) in self.atoms.iter().zip(&felt) {
            let at = [0, 1].map(|axis| (atom.position[axis] - bounds.least[axis] + 1.0) * scale);
            let at = [at[0], (bounds.size[1] + 2.0) * scale - at[1]];
            picture.disc(at, 0.48 * SPACING * scale, cold_to_hot((felt.energy - least) / (most - least)));
        }
        Some(picture)
    }

    fn output(&self) -> Vec<u8> {
        self.atoms.as_bytes().to_vec()
    }
}

impl Crack {
    /// The energy of an atom, on average.
    pub fn energy(&self) -> f64 {
        let kinetic = |atom: &Atom| 0.5 * (atom.velocity[0].powi(2) + atom.velocity[1].powi(2));
        let felt = forces(&self.atoms);
        let sum: f64 = self.atoms.iter().zip(&felt).map(|(atom, felt)| kinetic(atom) + felt.energy).sum();
        sum / self.atoms.len() as f64
    }

    /// The atoms.
    pub fn atoms(&self) -> &[Atom] {
        &self.atoms
    }
}

/// Row and position of every atom of the crystal at rest. Two rows are missing at the notch, so its
/// sides do not feel each other.
fn lattice(settings: &Settings) -> impl Iterator<Item = (u64, [f64; 2])> {
    let Settings { columns, rows, notch, .. } = *settings;
    let all = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
    let is_there = move |&(row, column): &(u64, u64)| {
        let is_middle = row == rows / 2 || row + 1 == rows / 2;
        !is_middle || column as f64 >= notch * columns as f64
    };
    all.filter(is_there).map(|(row, column)| {
        let shift = if row % 2 == 0 { 0.0 } else { 0.5 };
        (row, [(column as f64 + shift) * SPACING, row as f64 * ROW])
    })
}

/// What an atom feels of its neighbours.
#[derive(Debug, Clone, Copy)]
struct Felt {
    force: [f64; 2],
    /// Its half of the potential energy of all pairs.
    energy: f64,
    /// Those at about the distance of rest.
    neighbours: u32,
}

/// Where atoms are.
struct Bounds {
    least: [f64; 2],
    size: [f64; 2],
}

impl Bounds {
    fn of(atoms: &[Atom]) -> Self {
        let end = |pick: fn(f64, f64) -> f64, start: f64| {
            [0, 1].map(|axis| atoms.iter().map(|atom| atom.position[axis]).fold(start, pick))
        };
        let (least, most) = (end(f64::min, f64::INFINITY), end(f64::max, f64::NEG_INFINITY));
        Self { least, size: [most[0] - least[0], most[1] - least[1]] }
    }
}

/// Atoms by cells that are as large as the cutoff.
struct Cells {
    bounds: Bounds,
    counts: [usize; 2],
    /// Where the atoms of each cell start, row by row.
    starts: Vec<u32>,
    /// Number and position of the atoms, by cell and then by number.
    atoms: Vec<(u32, [f64; 2])>,
}

/// At most so many cells along an axis, however far a lost atom flies.
const CELLS_MAX: f64 = 10_000.0;

impl Cells {
    fn new(atoms: &[Atom]) -> Self {
        let bounds = Bounds::of(atoms);
        let counts = bounds.size.map(|size| (size / CUTOFF).clamp(1.0, CELLS_MAX) as usize);
        let mut cells = Self { bounds, counts, starts: vec![0; counts[0] * counts[1] + 1], atoms: Vec::new() };
        let cell_of: Vec<usize> = atoms.iter().map(|atom| cells.index(cells.cell(atom.position))).collect();
        for cell in &cell_of {
            cells.starts[cell + 1] += 1;
        }
        for cell in 1..cells.starts.len() {
            cells.starts[cell] += cells.starts[cell - 1];
        }
        let mut next = cells.starts.clone();
        cells.atoms = vec![(0, [0.0; 2]); atoms.len()];
        for (number, (atom, cell)) in atoms.iter().zip(cell_of).enumerate() {
            cells.atoms[next[cell] as usize] = (number as u32, atom.position);
            next[cell] += 1;
        }
        cells
    }

    fn cell(&self, position: [f64; 2]) -> [usize; 2] {
        [0, 1].map(|axis| {
            let part = (position[axis] - self.bounds.least[axis]) / self.bounds.size[axis].max(CUTOFF);
            // A cast makes 0 of what is negative or not a number.
            ((part * self.counts[axis] as f64) as usize).min(self.counts[axis] - 1)
        })
    }

    fn index(&self, [x, y]: [usize; 2]) -> usize {
        y * self.counts[0] + x
    }

    /// The atoms of the cells around a position, in three pieces.
    fn around(&self, position: [f64; 2]) -> impl Iterator<Item = &[(u32, [f64; 2])]> {
        let [x, y] = self.cell(position);
        (y.saturating_sub(1)..(y + 2).min(self.counts[1])).map(move |y| {
            let (first, last) = (x.saturating_sub(1), (x + 1).min(self.counts[0] - 1));
            let start = self.starts[self.index([first, y])] as usize;
            &self.atoms[start..self.starts[self.index([last, y]) + 1] as usize]
        })
    }
}

/// Energy and force over distance of two atoms at the square of a distance.
fn pair(square: f64) -> (f64, f64) {
    let plain = |square: f64| {
        let sixth = 1.0 / (square * square * square);
        (4.0 * sixth * (sixth - 1.0), 24.0 * sixth * (2.0 * sixth - 1.0) / square)
    };
    let (end_energy, end_force) = plain(CUTOFF * CUTOFF);
    let end_force = end_force * CUTOFF;
    let ((energy, force), distance) = (plain(square), square.sqrt());
    (energy - end_energy + (distance - CUTOFF) * end_force, force - end_force / distance)
}

/// What every atom feels.
fn forces(atoms: &[Atom]) -> Vec<Felt> {
    let cells = Cells::new(atoms);
    let felt = |(number, atom): (usize, &Atom)| {
        let mut felt = Felt { force: [0.0; 2], energy: 0.0, neighbours: 0 };
        for &(other, position) in cells.around(atom.position).flatten() {
            let away = [atom.position[0] - position[0], atom.position[1] - position[1]];
            let square = away[0] * away[0] + away[1] * away[1];
            if square < CUTOFF * CUTOFF && other as usize != number {
                let (energy, force) = pair(square);
                felt.force[0] += force * away[0];
                felt.force[1] += force * away[1];
                felt.energy += 0.5 * energy;
                felt.neighbours += u32::from(square < (1.4 * SPACING).powi(2));
            }
        }
        felt
    };
    atoms.par_iter().enumerate().map(felt).collect()
}
