//! LU decomposition of a dense matrix with partial pivoting: PA = LU, blocked, right-looking.
//!
//! An iteration finishes the next few rows: it factorizes a panel of columns, exchanges rows, and
//! updates what is below and to the right. Rows lie one after the other, so that what is finished
//! is one piece that never changes again.

use clap::{Args, value_parser};
use rayon::prelude::*;
use zerocopy::IntoBytes;

use crate::{Error, Field, Keep, Keeper, Picture, Program, Random, Result, Stepped, Traffic};

/// Which matrix, and how.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Rows and columns of the matrix.
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = value_parser!(u64).range(1..=100_000))]
    pub order: u64,
    /// Columns that an iteration factorizes.
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = value_parser!(u64).range(1..=1024))]
    pub block: u64,
    /// The random matrix.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// A matrix, partly factorized.
pub struct Lu {
    order: usize,
    block: usize,
    seed: u64,
    /// L without its diagonal of ones, and U, in the rows that are finished.
    matrix: Field<f64>,
    /// With which row each row was exchanged.
    pivots: Field<u32>,
}

impl Program for Lu {
    const NAME: &'static str = "lu";
    const ABOUT: &'static str = "LU decomposition of a random dense matrix with partial pivoting";
    const EVERY: u64 = 1;
    type Settings = Settings;

    fn describe(Settings { order, block, seed }: &Settings) -> Result<String> {
        Error::require(block <= order, "--block", || format!("at most the order of the matrix, {order}"))?;
        Ok(format!("--order {order} --block {block} --seed {seed}"))
    }

    fn iterations(settings: &Settings) -> u64 {
        settings.order.div_ceil(settings.block)
    }

    fn open(settings: &Settings, keeper: &mut Keeper) -> Result<Self> {
        let (order, block) = (settings.order as usize, settings.block as usize);
        let matrix = keeper.array("matrix", order * order)?;
        let pivots = keeper.array("pivots", order)?;
        Ok(Self { order, block, seed: settings.seed, matrix, pivots })
    }

    fn begin(&mut self) {
        fill(self.seed, self.matrix.all());
    }

    fn step(&mut self, done: u64) -> Stepped {
        let first = done as usize * self.block;
        let width = self.block.min(self.order - first);
        let rows = self.matrix.from(first * self.order);
        factorize(rows, &mut self.pivots.from(first)[..width], self.order, first);
        // What is below and to the right is read and written once, the panel a few times more, one
        // row after the other.
        let left = (self.order - first) as u64;
        let bytes = 8 * left * (left + width as u64);
        let traffic = Traffic { read_bytes: bytes, reads: left, written_bytes: bytes, writes: left };
        Stepped { traffic, is_last: false }
    }

    fn kept(&mut self) -> Vec<&mut dyn Keep> {
        vec![&mut self.matrix, &mut self.pivots]
    }

    fn report(&self) -> String {
        format!("residual |PAx - LUx| / (n eps |A| |x|): {:.3}", self.residual_of_vector())
    }

    /// The logarithm of all elements: fills with structure as rows are finished.
    fn picture(&self) -> Option<Picture> {
        let size = self.order.min(400);
        let mut picture = Picture::new(size, size, [255; 3]);
        for y in 0..size {
            for x in 0..size {
                let at = |pixel: usize| pixel * self.order / size;
                let value = self.matrix[at(y) * self.order + at(x)].abs();
                picture.set(x as i64, y as i64, crate::picture::cold_to_hot(0.5 + value.log10() / 6.0));
            }
        }
        Some(picture)
    }

    fn output(&self) -> Vec<u8> {
        [self.matrix.as_bytes(), self.pivots.as_bytes()].concat()
    }
}

/// A random matrix, each row of which depends on the seed and its number only.
pub fn fill(seed: u64, matrix: &mut [f64]) {
    let order = matrix.len().isqrt();
    let row = |(number, row): (usize, &mut [f64])| fill_row(seed, number, row);
    matrix.par_chunks_mut(order).enumerate().for_each(row);
}

fn fill_row(seed: u64, number: usize, row: &mut [f64]) {
    let mut random = Random::new(seed.wrapping_mul(0x1_0000_01b3).wrapping_add(number as u64) << 20);
    row.fill_with(|| random.unit() - 0.5);
}

/// Rows that are updated together: each tile of the upper rows is read once for all of them.
const ROWS: usize = 16;
/// Columns of a tile: so many of 64 rows fit into the processor's second cache.
const COLUMNS: usize = 256;

/// One iteration: `rows` are those from `first` on, all of which are changed, and `pivots` of the
/// rows that are finished with this.
pub fn factorize(rows: &mut [f64], pivots: &mut [u32], order: usize, first: usize) {
    let width = pivots.len();
    for column in 0..width {
        let at = |row: usize| row * order + first + column;
        // The first one of the largest, so that the choice is always the same.
        let largest = |best: usize, row: usize| if rows[at(row)].abs() > rows[at(best)].abs() { row } else { best };
        let pivot = (column + 1..rows.len() / order).fold(column, largest);
        pivots[column] = (first + pivot) as u32;
        if pivot != column {
            let (upper, lower) = rows.split_at_mut(pivot * order);
            upper[column * order..][..order].swap_with_slice(&mut lower[..order]);
        }
        let (upper, lower) = rows.split_at_mut((column + 1) * order);
        let upper = &upper[column * order + first..][column..width];
        if upper[0] == 0.0 {
            continue;
        }
        for row in lower.chunks_mut(order) {
            let row = &mut row[first + column..first + width];
            row[0] /= upper[0];
            let factor = row[0];
            row[1..].iter_mut().zip(&upper[1..]).for_each(|(element, above)| *element -= factor * above);
        }
    }
    let (upper, lower) = rows.split_at_mut(width * order);
    for row in 1..width {
        let (above, row) = upper.split_at_mut(row * order);
        let (factors, rest) = row[first..order].split_at_mut(width);
        for (factor, above) in factors.iter().zip(above.chunks(order)) {
            rest.iter_mut().zip(&above[first + width..]).for_each(|(element, above)| *element -= factor * above);
        }
    }
    lower.par_chunks_mut(ROWS * order).for_each(|rows| update(rows, upper, order, first, width));
}

/// Subtracts what the finished rows `upper` contribute to `rows`. The order of operations on an
/// element does not depend on how rows are distributed.
fn update(rows: &mut [f64], upper: &[f64], order: usize, first: usize, width: usize) {
    for start in (first + width..order).step_by(COLUMNS) {
        let end = (start + COLUMNS).min(order);
        for row in rows.chunks_mut(order) {
            let (factors, row) = row.split_at_mut(start);
            let (factors, row) = (&factors[first..first + width], &mut row[..end - start]);
            let above = |number: usize| &upper[number * order + start..number * order + end];
            for (four, factors) in factors.chunks(4).enumerate() {
                if let &[a, b, c, d] = factors {
                    let above = [above(4 * four), above(4 * four + 1), above(4 * four + 2), above(4 * four + 3)];
                    let above = above[0].iter().zip(above[1]).zip(above[2].iter().zip(above[3]));
                    for (element, ((one, two), (three, four))) in row.iter_mut().zip(above) {
                        *element -= a * one + b * two + c * three + d * four;
                    }
                } else {
                    for (number, factor) in factors.iter().enumerate() {
                        let above = above(4 * four + number);
                        row.iter_mut().zip(above).for_each(|(element, above)| *element -= factor * above);
                    }
                }
            }
        }
    }
}

impl Lu {
    /// The row of the random matrix that has come to each row.
    fn permutation(&self) -> Vec<usize> {
        let mut permutation: Vec<usize> = (0..self.order).collect();
        for (row, pivot) in self.pivots.iter().enumerate() {
            permutation.swap(row, *pivot as usize);
        }
        permutation
    }

    /// How wrong the result is for one vector x: the largest element of PAx - LUx, over n, epsilon,
    /// the largest row sum of A, and the largest element of x.
    pub fn residual_of_vector(&self) -> f64 {
        let n = self.order;
        let mut random = Random::new(self.seed ^ 0x5eed);
        let x: Vec<f64> = (0..n).map(|_| random.unit() - 0.5).collect();
        let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
        let upper: Vec<f64> = (0..n).map(|row| dot(&self.matrix[row * n..][row..n], &x[row..])).collect();
        let (mut worst, mut norm, mut original) = (0f64, 0f64, vec![0.0; n]);
        for (row, from) in self.permutation().into_iter().enumerate() {
            fill_row(self.seed, from, &mut original);
            norm = norm.max(original.iter().map(|element| element.abs()).sum());
            let product = dot(&self.matrix[row * n..][..row], &upper) + upper[row];
            worst = worst.max((dot(&original, &x) - product).abs());
        }
        let size = x.iter().fold(0f64, |most, x| most.max(x.abs()));
        worst / (n as f64 * f64::EPSILON * norm * size)
    }

    /// How wrong the result is: |PA - LU| / (n eps |A|), with the largest row sums.
    pub fn residual(&self) -> f64 {
        let n = self.order;
        let (mut worst, mut norm, mut original) = (0f64, 0f64, vec![0.0; n]);
        for (row, from) in self.permutation().into_iter().enumerate() {
            fill_row(self.seed, from, &mut original);
            norm = norm.max(original.iter().map(|element| element.abs()).sum());
            let mut product = vec![0.0; n];
            for above in 0..=row {
                let factor = if above == row { 1.0 } else { self.matrix[row * n + above] };
                let upper = &self.matrix[above * n..][above..n];
                product[above..].iter_mut().zip(upper).for_each(|(sum, upper)| *sum += factor * upper);
            }
            worst = worst.max(original.iter().zip(&product).map(|(a, b)| (a - b).abs()).sum());
        }
        worst / (n as f64 * f64::EPSILON * norm)
    }
}
