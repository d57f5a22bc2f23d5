//! The surface in a cell: a plane that cuts off a given part of a cube.

/// A plane in the unit cube. What has `normal . x <= offset` is liquid; components of the normal
/// are not negative and add up to 1. `is_mirrored` axes run backwards.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    normal: [f64; 3],
    offset: f64,
    is_mirrored: [bool; 3],
}

/// Components of normals are at least this: the formula for volumes divides by all of them.
const LEAST: f64 = 1e-4;

impl Plane {
    /// The plane with liquid against the direction of `outwards` that cuts off this part of the
    /// cube.
    pub(super) fn new(outwards: [f64; 3], part: f64) -> Self {
        let sizes = outwards.map(f64::abs);
        let sum: f64 = sizes.iter().sum();
        let normal = if sum > 0.0 { sizes.map(|size| (size / sum).max(LEAST)) } else { [1.0, LEAST, LEAST] };
        let sum: f64 = normal.iter().sum();
        let normal = normal.map(|size| size / sum);
        // The volume grows with the offset. Halving 50 times leaves nothing to gain.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if volume(normal, middle) < part { low = middle } else { high = middle }
        }
        Self { normal, offset: 0.5 * (low + high), is_mirrored: outwards.map(|size| size < 0.0) }
    }

    /// The liquid in a slab of the cube: the part `width` along `axis`, at its upper or lower end.
    pub(super) fn slab(&self, axis: usize, is_upper: bool, width: f64) -> f64 {
        // In mirrored coordinates it is the other end.
        let start = if is_upper == self.is_mirrored[axis] { 0.0 } else { 1.0 - width };
        let mut normal = self.normal;
        let offset = self.offset - normal[axis] * start;
        normal[axis] = (normal[axis] * width).max(LEAST * 1e-4);
        let sum: f64 = normal.iter().sum();
        width * volume(normal.map(|size| size / sum), offset / sum)
    }
}

/// The part of the unit cube in which `normal . x <= offset`. The normal adds up to 1.
fn volume(normal: [f64; 3], offset: f64) -> f64 {
    if offset > 0.5 {
        return 1.0 - volume(normal, 1.0 - offset);
    }
    let cube = |edge: f64| if edge > 0.0 { edge * edge * edge } else { 0.0 };
    let beyond: f64 = normal.iter().map(|size| cube(offset - size) - cube(offset - 1.0 + size)).sum();
    ((cube(offset) - beyond) / (6.0 * normal[0] * normal[1] * normal[2])).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn a_plane_cuts_off_what_it_is_asked_to() {
        let mut random = Random::new(7);
        for case in 0..200 {
            let outwards = [0; 3].map(|_| random.unit() - 0.5);
            let part = random.unit();
            let plane = Plane::new(outwards, part);
            // All slabs together, in both directions.
            for axis in 0..3 {
                for is_upper in [false, true] {
                    let whole = plane.slab(axis, is_upper, 1.0);
                    assert!((whole - part).abs() < 1e-7, "case {case}: {whole} is not {part}");
                    let (width, other) = (0.3, 0.7);
                    let sum = plane.slab(axis, is_upper, width) + plane.slab(axis, !is_upper, other);
                    assert!((sum - part).abs() < 1e-7, "case {case}: {sum} is not {part}");
                }
            }
            // Against a count of points.
            let points = 24;
            let at = |number: usize| (number as f64 + 0.5) / points as f64;
            let mut inside = 0;
            for point in 0..points * points * points {
                let x = [at(point % points), at(point / points % points), at(point / points / points)];
                let seen = |axis: usize| if outwards[axis] < 0.0 { 1.0 - x[axis] } else { x[axis] };
                let sum: f64 = (0..3).map(|axis| plane.normal[axis] * seen(axis)).sum();
                inside += usize::from(sum <= plane.offset);
            }
            let counted = inside as f64 / points.pow(3) as f64;
            assert!((counted - part).abs() < 0.03, "case {case}: {counted} is not {part}");
        }
    }
}
