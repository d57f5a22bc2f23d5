//! The figures of the papers, simulated: what each shows, the paper's result, and the simulated
//! result.

mod buffers;
mod caches;
mod here;
mod traces;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

pub use here::here;

use crate::{Error, Machine, chart::Chart, error::Result};

/// A row of a figure's table: columns with their values, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row(pub Vec<(String, Value)>);

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(column, value)| (column, value)))
    }
}

impl Row {
    /// The number in a column.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| name == column).and_then(|(_, value)| value.as_f64())
    }
}

/// Ratios by name, from the paper or from the simulation.
pub type Ratios = BTreeMap<&'static str, f64>;

/// A figure of a paper, simulated.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name here.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Its numbers.
    pub rows: Vec<Row>,
    /// The paper's main results as ratios, and the same ratios from these numbers.
    pub headline: Headline,
    /// What to draw.
    pub chart: Chart,
}

/// The same ratios, from the paper and from the simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Headline {
    /// From the paper.
    pub paper: Ratios,
    /// From the simulation.
    pub ours: Ratios,
}

impl Headline {
    fn new(ratios: &[(&'static str, f64, f64)]) -> Self {
        Self {
            paper: ratios.iter().map(|&(name, paper, _)| (name, paper)).collect(),
            ours: ratios.iter().map(|&(name, _, ours)| (name, ours)).collect(),
        }
    }
}

/// A figure as one JSON object: `figure`, `rows`, `headline`.
impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut object = serializer.serialize_struct("Figure", 3)?;
        object.serialize_field("figure", self.name)?;
        object.serialize_field("rows", &self.rows)?;
        object.serialize_field("headline", &self.headline)?;
        object.end()
    }
}

/// A figure that can be simulated.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The machine of the paper.
    pub machine: &'static str,
    run: fn(&Machine, bool) -> Result<Figure>,
}

impl Entry {
    const fn new(
        name: &'static str,
        machine: &'static str,
        title: &'static str,
        run: fn(&Machine, bool) -> Result<Figure>,
    ) -> Self {
        Self { name, title, machine, run }
    }

    /// Simulates it on the paper's machine. `is_quick` omits every other point.
    ///
    /// # Errors
    /// If a simulation fails, which none of the built-in ones does.
    pub fn run(&self, is_quick: bool) -> Result<Figure> {
        self.run_on(&Machine::named(self.machine)?, is_quick)
    }

    /// Simulates it on another machine.
    ///
    /// # Errors
    /// If that machine lacks something that the figure needs.
    pub fn run_on(&self, machine: &Machine, is_quick: bool) -> Result<Figure> {
        let figure = (self.run)(machine, is_quick)?;
        Ok(Figure { name: self.name, title: self.title, ..figure })
    }
}

const ENTRIES: &[Entry] = &[
    Entry::new("3b", "dgx-a100", "Variable sizes: waiting in saves", caches::variable_saves),
    Entry::new("3c", "dgx-a100", "Variable sizes: waiting in saves and takes", caches::variable_total),
    Entry::new("4a", "dgx-a100", "Rate of allocating device memory", caches::allocation_rate),
    Entry::new("4b", "dgx-a100", "Large device cache: waiting in saves", caches::large_device_saves),
    Entry::new("4c", "dgx-a100", "Large device cache: waiting in saves and takes", caches::large_device_total),
    Entry::new("5a", "dgx-a100", "Large host buffer: waiting in saves", caches::large_host_saves),
    Entry::new("5b", "dgx-a100", "Large host buffer: waiting in saves and takes", caches::large_host_total),
    Entry::new("5c", "dgx-a100", "Touching and pinning: waiting in saves and takes", caches::strategies),
    Entry::new("6a", "dgx-a100", "1 to 8 processes: waiting in saves", caches::processes_saves),
    Entry::new("6b", "dgx-a100", "1 to 8 processes: waiting in saves and takes", caches::processes_total),
    Entry::new("6c", "dgx-a100", "Host buffers of 8 to 64 GiB: waiting in saves and takes", caches::buffer_sizes),
    Entry::new("mlbs-2", "shaheen-2", "A shot on Shaheen-2: computing and I/O", buffers::timeline),
    Entry::new("mlbs-3", "shaheen-2", "Shaheen-2: throughput as the program sees it", buffers::shaheen),
    Entry::new("mlbs-4", "summit", "Summit: throughput as the program sees it", buffers::summit),
    Entry::new("mlbs-5", "summit", "One GPU of Summit: where the time goes", buffers::breakdown),
];

/// All figures, in the order of the papers.
pub fn figures() -> &'static [Entry] {
    ENTRIES
}

/// The figure of that name.
///
/// # Errors
/// If there is none.
pub fn figure(name: &str) -> Result<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name).ok_or_else(|| Error::Unknown {
        kind: "figure",
        name: name.to_owned(),
        known: ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
    })
}

/// If `is_quick`, every other point, but always the first and the last, which headlines use.
fn thinned<T: Copy>(points: &[T], is_quick: bool) -> Vec<T> {
    let is_kept = |&(index, _): &(usize, &T)| !is_quick || index.is_multiple_of(2) || index + 1 == points.len();
    points.iter().enumerate().filter(is_kept).map(|(_, point)| *point).collect()
}

/// A row: descriptive columns, then numbers under these heads.
fn row<'a>(
    about: impl IntoIterator<Item = (&'a str, Value)>,
    numbers: impl IntoIterator<Item = (&'a str, f64)>,
) -> Row {
    let numbers = numbers.into_iter().map(|(name, number)| (name, Value::from(round(number))));
    Row(about.into_iter().chain(numbers).map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Rounds to six digits: more would be noise in a table.
fn round(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(5 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}
