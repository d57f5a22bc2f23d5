//! Finite differences: the coefficients of the second derivative, and the sweep that applies the
//! Laplacian and the time step to every point of a slab of the grid.
//!
//! The sweep is the inner loop of the whole crate. It works on blocks of [`LANES`] neighbouring
//! depths; rows are padded to whole blocks, so that there is no remainder loop and every point sees
//! the same sequence of operations whatever the number of threads. There is no fused multiply-add
//! either, so all instruction sets give the same bits.

use std::ops::{Add, Mul, Range, Sub};

/// A floating-point type that fields are made of: `f32` for work, `f64` where a test needs the
/// digits.
pub trait Real:
    Copy + Default + Send + Sync + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + 'static
{
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// The same value in double precision.
    fn to_f64(self) -> f64;
    /// Zero if the value is so small that products with it become subnormal numbers, which
    /// processors compute in microcode: just ahead of a wave front they would slow a step down
    /// several times.
    fn without_dust(self) -> Self;
}

/// Anything smaller is dust: far below the rounding of a wave, far above the subnormal numbers.
const DUST: f32 = 1e-25;

impl Real for f32 {
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn without_dust(self) -> Self {
        if self.abs() < DUST { 0.0 } else { self }
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn without_dust(self) -> Self {
        if self.abs() < f64::from(DUST) { 0.0 } else { self }
    }
}

/// How many neighbouring depths are computed together: one AVX-512 register of `f32`, two of AVX2.
pub(crate) const LANES: usize = 16;

/// The largest stencil radius: 16th order in space.
pub(crate) const RADIUS_MAX: usize = 8;

/// Rows of the lateral axis that are swept before moving on to the next plane, so that the planes
/// which the stencil reaches stay in the cache.
const TILE_ROWS: usize = 16;

/// The central coefficients of the second derivative on a grid of unit spacing:
/// `[c0, c1, .., c(order/2)]`.
///
/// They are the unique symmetric stencil of that width which is exact for polynomials up to
/// `order + 1`: `c(k) = 2 (-1)^(k+1) (r!)^2 / (k^2 (r-k)! (r+k)!)` with `r = order / 2`.
///
/// ```
/// assert_eq!(outcrop_rtm::second_derivative(2), [-2.0, 1.0]);
/// ```
pub fn second_derivative(order: usize) -> Vec<f64> {
    let radius = order / 2;
    let mut coefficients = vec![0.0; radius + 1];
    // (r!)^2 / ((r-k)! (r+k)!) grows from 1 by the factor (r-k+1)/(r+k) with each k.
    let mut ratio = 1.0;
    for (k, coefficient) in coefficients.iter_mut().enumerate().skip(1) {
        ratio *= (radius - k + 1) as f64 / (radius + k) as f64;
        let sign = if k % 2 == 1 { 1.0 } else { -1.0 };
        *coefficient = 2.0 * sign * ratio / (k * k) as f64;
    }
    coefficients[0] = -2.0 * coefficients[1..].iter().sum::<f64>();
    coefficients
}

/// The largest eigenvalue of minus the second derivative on a grid of unit spacing: that of the
/// shortest wave, which changes sign from point to point.
pub(crate) fn spectral_radius(order: usize) -> f64 {
    let coefficients = second_derivative(order);
    coefficients[0].abs() + 2.0 * coefficients[1..].iter().map(|c| c.abs()).sum::<f64>()
}

/// The Laplacian as numbers: one centre and the weights of the neighbours along each axis.
#[derive(Debug, Clone)]
pub(crate) struct Taps<T> {
    centre: T,
    x: [T; RADIUS_MAX],
    y: [T; RADIUS_MAX],
    z: [T; RADIUS_MAX],
}

impl<T: Real> Taps<T> {
    /// The taps for a space order and the spacing of each axis; `None` leaves the axis out.
    pub(crate) fn new(order: usize, spacing: [Option<f64>; 3]) -> Self {
        let coefficients = second_derivative(order);
        let inverse_square = spacing.map(|s| s.map_or(0.0, |s| 1.0 / (s * s)));
        let axis = |scale: f64| {
            let mut taps = [T::default(); RADIUS_MAX];
            for (tap, c) in taps.iter_mut().zip(&coefficients[1..]) {
                *tap = T::from_f64(c * scale);
            }
            taps
        };
        Taps {
            centre: T::from_f64(coefficients[0] * inverse_square.iter().sum::<f64>()),
            x: axis(inverse_square[0]),
            y: axis(inverse_square[1]),
            z: axis(inverse_square[2]),
        }
    }
}

/// Where the points of a field lie in memory: `x` slowest, depth fastest, with a halo of zeros all
/// around so that the stencil never leaves the array. Neighbouring rows share the halo in depth.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Points that are computed along x, y and z; a multiple of [`LANES`] along z.
    pub(crate) points: [usize; 3],
    halo_x: usize,
    halo_y: usize,
    pub(crate) stride_x: usize,
    pub(crate) stride_y: usize,
}

impl Layout {
    /// A layout for at least these points; one point along y means a grid without that axis.
    pub(crate) fn new(points: [usize; 3], radius: usize) -> Self {
        let depth = points[2].next_multiple_of(LANES);
        let halo_y = if points[1] == 1 { 0 } else { radius };
        let stride_y = depth + LANES;
        Layout {
            points: [points[0], points[1], depth],
            halo_x: radius,
            halo_y,
            stride_x: (points[1] + 2 * halo_y) * stride_y,
            stride_y,
        }
    }

    /// Values in a field, halo included.
    pub(crate) fn len(&self) -> usize {
        (self.points[0] + 2 * self.halo_x) * self.stride_x
    }

    /// Where the row of depths at `x`, `y` starts.
    pub(crate) fn row(&self, x: usize, y: usize) -> usize {
        (x + self.halo_x) * self.stride_x + (y + self.halo_y) * self.stride_y
    }

    /// The part of a field that is computed: all planes of constant x without the halo planes.
    pub(crate) fn planes(&self) -> Range<usize> {
        self.halo_x * self.stride_x..(self.points[0] + self.halo_x) * self.stride_x
    }

    pub(crate) fn is_3d(&self) -> bool {
        self.halo_y > 0
    }
}

/// What a sweep computes at every point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// `out = current + (scale / 12) L current`: the field whose Laplacian makes the time step
    /// fourth order.
    Correct,
    /// `out = out + damping (2 (current - out) + scale L source)`: the time step itself, in place
    /// over the previous field.
    Advance,
}

/// Everything that a sweep reads.
pub(crate) struct Sweep<'a, T> {
    pub(crate) layout: &'a Layout,
    pub(crate) taps: &'a Taps<T>,
    /// The field whose Laplacian is taken.
    pub(crate) source: &'a [T],
    /// The field at the present time.
    pub(crate) current: &'a [T],
    /// Squared velocity times squared time step (a twelfth of it for [`Pass::Correct`]).
    pub(crate) scale: &'a [T],
    /// Damping factors along each axis; a point has the product of its three.
    pub(crate) damping: [&'a [T]; 3],
}

impl<T: Real> Sweep<'_, T> {
    /// Computes the planes from `first_x` on into `out`, which holds whole planes of constant x.
    pub(crate) fn run(&self, radius: usize, pass: Pass, first_x: usize, out: &mut [T]) {
        match radius {
            1 => self.run_radius::<1>(pass, first_x, out),
            2 => self.run_radius::<2>(pass, first_x, out),
            3 => self.run_radius::<3>(pass, first_x, out),
            4 => self.run_radius::<4>(pass, first_x, out),
            5 => self.run_radius::<5>(pass, first_x, out),
            6 => self.run_radius::<6>(pass, first_x, out),
            7 => self.run_radius::<7>(pass, first_x, out),
            8 => self.run_radius::<8>(pass, first_x, out),
            _ => unreachable!("the space order is checked when the propagator is made"),
        }
    }

    fn run_radius<const R: usize>(&self, pass: Pass, first_x: usize, out: &mut [T]) {
        match (self.layout.is_3d(), pass) {
            (false, Pass::Correct) => dispatch::<T, R, false, false>(self, first_x, out),
            (false, Pass::Advance) => dispatch::<T, R, false, true>(self, first_x, out),
            (true, Pass::Correct) => dispatch::<T, R, true, false>(self, first_x, out),
            (true, Pass::Advance) => dispatch::<T, R, true, true>(self, first_x, out),
        }
    }
}

/// Runs the sweep compiled for the widest vectors that this processor has.
fn dispatch<T: Real, const R: usize, const IS_3D: bool, const ADVANCE: bool>(
    sweep: &Sweep<T>,
    first_x: usize,
    out: &mut [T],
) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F, as was asked just above; the function has no
            // other demand.
            return unsafe { sweep_avx512::<T, R, IS_3D, ADVANCE>(sweep, first_x, out) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as was asked just above; the function has no other
            // demand.
            return unsafe { sweep_avx2::<T, R, IS_3D, ADVANCE>(sweep, first_x, out) };
        }
    }
    sweep_slab::<T, R, IS_3D, ADVANCE>(sweep, first_x, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sweep_avx512<T: Real, const R: usize, const IS_3D: bool, const ADVANCE: bool>(
    sweep: &Sweep<T>,
    first_x: usize,
    out: &mut [T],
) {
    sweep_slab::<T, R, IS_3D, ADVANCE>(sweep, first_x, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sweep_avx2<T: Real, const R: usize, const IS_3D: bool, const ADVANCE: bool>(
    sweep: &Sweep<T>,
    first_x: usize,
    out: &mut [T],
) {
    sweep_slab::<T, R, IS_3D, ADVANCE>(sweep, first_x, out);
}

/// The sweep itself; always inlined, so that it is compiled once for each instruction set.
#[inline(always)]
fn sweep_slab<T: Real, const R: usize, const IS_3D: bool, const ADVANCE: bool>(
    sweep: &Sweep<T>,
    first_x: usize,
    out: &mut [T],
) {
    let layout = sweep.layout;
    let [_, rows, depths] = layout.points;
    for tile in (0..rows).step_by(TILE_ROWS) {
        for (plane_index, plane) in out.chunks_exact_mut(layout.stride_x).enumerate() {
            let x = first_x + plane_index;
            for y in tile..rows.min(tile + TILE_ROWS) {
                let row = layout.row(x, y);
                let row_in_plane = row - layout.row(x, 0) + layout.halo_y * layout.stride_y;
                let out = &mut plane[row_in_plane..][..depths];
                let damping_xy = sweep.damping[0][x] * sweep.damping[1][y];
                let (out_blocks, _) = out.as_chunks_mut::<LANES>();
                let (damping_blocks, _) = sweep.damping[2].as_chunks::<LANES>();
                for (b, (out, damping_z)) in out_blocks.iter_mut().zip(damping_blocks).enumerate() {
                    let at = row + b * LANES;
                    let laplacian = laplacian_block::<T, R, IS_3D>(sweep, at);
                    let current = block(sweep.current, at);
                    let scale = block(sweep.scale, at);
                    for i in 0..LANES {
                        let value = if ADVANCE {
                            let half = current[i] - out[i];
                            let change = half + half + scale[i] * laplacian[i];
                            out[i] + damping_xy * damping_z[i] * change
                        } else {
                            current[i] + scale[i] * laplacian[i]
                        };
                        out[i] = value.without_dust();
                    }
                }
            }
        }
    }
}

/// The Laplacian of the `LANES` points from `at` on.
#[inline(always)]
fn laplacian_block<T: Real, const R: usize, const IS_3D: bool>(sweep: &Sweep<T>, at: usize) -> [T; LANES] {
    let taps = sweep.taps;
    let mut sum = *block(sweep.source, at);
    for value in &mut sum {
        *value = taps.centre * *value;
    }
    let along_z = axis_block::<T, R>(sweep.source, at, 1, &taps.z);
    let along_x = axis_block::<T, R>(sweep.source, at, sweep.layout.stride_x, &taps.x);
    for i in 0..LANES {
        sum[i] = sum[i] + (along_x[i] + along_z[i]);
    }
    if IS_3D {
        let along_y = axis_block::<T, R>(sweep.source, at, sweep.layout.stride_y, &taps.y);
        for i in 0..LANES {
            sum[i] = sum[i] + along_y[i];
        }
    }
    sum
}

/// The weighted neighbours along one axis, nearest last: the small far weights are added first.
#[inline(always)]
fn axis_block<T: Real, const R: usize>(field: &[T], at: usize, stride: usize, taps: &[T; RADIUS_MAX]) -> [T; LANES] {
    let mut sum = [T::default(); LANES];
    for k in (1..=R).rev() {
        let before = block(field, at - k * stride);
        let after = block(field, at + k * stride);
        for i in 0..LANES {
            sum[i] = sum[i] + taps[k - 1] * (before[i] + after[i]);
        }
    }
    sum
}

#[inline(always)]
fn block<T>(field: &[T], at: usize) -> &[T; LANES] {
    field[at..].first_chunk().expect("the halo is as wide as the stencil")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_coefficients() {
        let fourth = second_derivative(4);
        for (found, expected) in fourth.iter().zip([-2.5, 4.0 / 3.0, -1.0 / 12.0]) {
            assert!((found - expected).abs() < 1e-14, "{fourth:?}");
        }
    }

    #[test]
    fn exact_for_polynomials() {
        // The second derivative of t^n at 0 is 2 for n = 2 and 0 for all others that the order
        // covers.
        for order in (2..=16).step_by(2) {
            let c = second_derivative(order);
            for n in (2..=order + 1).step_by(2) {
                let value: f64 = (1..c.len()).map(|k| 2.0 * c[k] * (k as f64).powi(n as i32)).sum();
                let expected = if n == 2 { 2.0 } else { 0.0 };
                let size: f64 = (1..c.len()).map(|k| 2.0 * c[k].abs() * (k as f64).powi(n as i32)).sum();
                assert!((value - expected).abs() < 1e-13 * size.max(1.0), "order {order}, power {n}: {value}");
            }
        }
    }
}
