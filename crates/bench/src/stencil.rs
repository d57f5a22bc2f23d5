//! A stencil in three dimensions, bound by memory, on one core or on several: what most adjoint
//! codes compute.

use std::ops::Range;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::workload::Arithmetic;

/// How far a value sees in each direction.
const REACH: usize = 2;
/// The coefficients of the second derivative in the middle, and one and two points away.
const MIDDLE: f32 = -7.5;
const AWAY: [f32; REACH] = [4.0 / 3.0, -1.0 / 12.0];

/// A field that spreads in a medium.
pub(crate) struct Stencil {
    side: usize,
    /// The threads besides the program's own.
    others: Option<ThreadPool>,
    /// Sweeps over the field between two states.
    pub(crate) sweeps: usize,
    /// How fast it spreads at each point.
    medium: Vec<f32>,
    /// What the backward pass computes.
    image: Vec<f32>,
    between: Vec<f32>,
}

impl Stencil {
    /// A cube with `side` points along each edge.
    ///
    /// # Panics
    /// If the system starts no more threads.
    pub(crate) fn new(side: usize, threads: usize, sweeps: usize) -> Self {
        let len = side.pow(3);
        let others = (threads > 1).then(|| ThreadPoolBuilder::new().num_threads(threads - 1).build());
        let others = others.transpose().expect("a few threads can be started");
        let medium = (0..len).map(|at| 0.01 + 0.01 * ((at / (side * side)) % 7) as f32).collect();
        Self { side, others, sweeps, medium, image: vec![0.0; len], between: vec![0.0; len] }
    }

    /// Starts a new image.
    pub(crate) fn forget(&mut self) {
        self.image.fill(0.0);
    }

    /// Values in a state.
    pub(crate) fn len(&self) -> usize {
        self.medium.len()
    }

    fn sweep(&self, from: &[f32], to: &mut [f32]) {
        in_slabs(self.side, self.others.as_ref(), to, |slab, to| self.sweep_slab(from, to, slab));
    }

    fn sweep_slab(&self, from: &[f32], to: &mut [f32], slab: Range<usize>) {
        let (side, layer) = (self.side, self.side * self.side);
        let inside = REACH..side.saturating_sub(REACH);
        for (z, to) in slab.zip(to.chunks_exact_mut(layer)) {
            for (y, to) in to.chunks_exact_mut(side).enumerate() {
                let row = z * layer + y * side;
                if !inside.contains(&z) || !inside.contains(&y) {
                    to.copy_from_slice(&from[row..][..side]);
                    continue;
                }
                // A small source in every row, so that no state is like the one before.
                to[..REACH].fill(1.0);
                to[side - REACH..].fill(0.5);
                sweep_row(from, &self.medium, &mut to[REACH..side - REACH], row + REACH, [1, side, layer]);
            }
        }
    }
}

/// Has each thread work on the same layers of the cube each time, as OpenMP's static schedule does.
/// The program's own thread computes the first part.
fn in_slabs(
    side: usize,
    others: Option<&ThreadPool>,
    cube: &mut [f32],
    work: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let Some(others) = others else { return work(0..side, cube) };
    let (work, mut rest, threads) = (&work, cube, others.current_num_threads() + 1);
    others.in_place_scope(|scope| {
        for thread in (0..threads).rev() {
            let slab = side * thread / threads..side * (thread + 1) / threads;
            let (before, mine) = std::mem::take(&mut rest).split_at_mut(slab.start * side * side);
            rest = before;
            if thread == 0 {
                work(slab, mine);
            } else {
                scope.spawn(move |_| work(slab, mine));
            }
        }
    });
}

/// Computes the points of a row from `at` on. `strides` lead to the neighbours.
fn sweep_row(from: &[f32], medium: &[f32], to: &mut [f32], at: usize, strides: [usize; 3]) {
    let len = to.len();
    let row = |start: usize| &from[start..][..len];
    let [x, y, z] = strides;
    let middle = row(at);
    let medium = &medium[at..][..len];
    let one = [row(at - x), row(at + x), row(at - y), row(at + y), row(at - z), row(at + z)];
    let two = [row(at - 2 * x), row(at + 2 * x), row(at - 2 * y), row(at + 2 * y), row(at - 2 * z), row(at + 2 * z)];
    for i in 0..len {
        let near = one[0][i] + one[1][i] + one[2][i] + one[3][i] + one[4][i] + one[5][i];
        let far = two[0][i] + two[1][i] + two[2][i] + two[3][i] + two[4][i] + two[5][i];
        to[i] = middle[i] + medium[i] * (MIDDLE * middle[i] + AWAY[0] * near + AWAY[1] * far);
    }
}

impl Arithmetic for Stencil {
    fn advance(&mut self, now: &[f32], next: &mut [f32]) {
        let mut between = std::mem::take(&mut self.between);
        // The last sweep ends in `next`.
        let mut is_next = self.sweeps % 2 == 1;
        for sweep in 0..self.sweeps {
            match (sweep, is_next) {
                (0, true) => self.sweep(now, next),
                (0, false) => self.sweep(now, &mut between),
                (_, true) => self.sweep(&between, next),
                (_, false) => self.sweep(next, &mut between),
            }
            is_next = !is_next;
        }
        self.between = between;
    }

    /// Adds the product of both to the image.
    fn correlate(&mut self, past: &[f32], adjoint: &[f32]) -> f64 {
        let layer = self.side * self.side;
        in_slabs(self.side, self.others.as_ref(), &mut self.image, |slab, image| {
            let values = slab.start * layer..slab.end * layer;
            let products = past[values.clone()].iter().zip(&adjoint[values]);
            image.iter_mut().zip(products).for_each(|(image, (past, adjoint))| *image += past * adjoint);
        });
        // Every state leaves a trace in the image, and a row of it tells.
        self.image[self.image.len() / 2..].iter().take(4096).map(|&value| f64::from(value)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few steps forward and back.
    fn image(threads: usize, sweeps: usize) -> Vec<f32> {
        let mut stencil = Stencil::new(12, threads, sweeps);
        let mut states = vec![vec![0.0; stencil.len()]];
        for step in 0..6 {
            let mut next = vec![f32::NAN; stencil.len()];
            stencil.advance(&states[step], &mut next);
            states.push(next);
        }
        let adjoint = states[3].clone();
        states.iter().for_each(|past| _ = stencil.correlate(past, &adjoint));
        stencil.image
    }

    #[test]
    fn threads_change_nothing_and_sweeps_do() {
        let one = image(1, 3);
        assert!(one.iter().all(|value| value.is_finite()) && one.iter().any(|&value| value != 0.0));
        assert_eq!(image(5, 3), one);
        assert_ne!(image(1, 2), one);
    }
}
