//! The dot-product test: the backward pass is the exact adjoint of modelling.

use outcrop_rtm::{BuiltIn, Grid, Model, Propagator, Scheme};

/// Numbers between -1 and 1 that look random and are the same in every run.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// `<F s, d>` and `<s, F* d>` for a random source `s` and random recordings `d`.
fn both_sides(points: [usize; 3], scheme: &Scheme, steps: usize) -> (f64, f64) {
    let model = Model::built_in(BuiltIn::Salt, Grid { points, spacing: [12.0, 9.0, 10.0] });
    let propagator = Propagator::<f32>::new(&model, scheme).unwrap();
    let middle = points[1] / 2;
    let source = [points[0] / 3, middle, 4];
    // One of them within the reach of the stencil from the edge.
    let receivers = [[1, middle, 2], [points[0] / 2, middle / 2, points[2] / 2], [points[0] - 4, middle, 1]];
    let signal = noise(7, steps);
    let recording = noise(8, steps * receivers.len());

    let mut wave = propagator.quiet();
    let mut heard = Vec::new();
    for &amplitude in &signal {
        propagator.step(&mut wave);
        propagator.inject(&mut wave, source, amplitude);
        heard.extend(receivers.map(|receiver| propagator.sample(&wave, receiver)));
    }
    let mut wave = propagator.quiet();
    let mut returned = vec![0.0; steps];
    for step in (0..steps).rev() {
        propagator.step(&mut wave);
        for (&receiver, &value) in receivers.iter().zip(&recording[step * receivers.len()..]) {
            propagator.inject(&mut wave, receiver, value);
        }
        returned[step] = propagator.sample(&wave, source);
    }
    (dot(&heard, &recording), dot(&signal, &returned))
}

#[test]
fn forward_and_backward_are_adjoint() {
    for (points, space_order, boundary) in [([70, 1, 60], 8, 20), ([61, 1, 50], 16, 12), ([24, 22, 26], 8, 8)] {
        for time_order in [2, 4] {
            let scheme = Scheme { space_order, time_order, dt: None, boundary };
            let (left, right) = both_sides(points, &scheme, 300);
            let difference = (left - right).abs() / left.abs().max(right.abs());
            println!("{points:?}, orders {space_order} and {time_order}: {left:.7e} {right:.7e}: {difference:.1e}");
            assert!(
                left != 0.0 && difference < 1e-5,
                "{points:?}, orders {space_order} and {time_order}: {difference:e}"
            );
        }
    }
}
