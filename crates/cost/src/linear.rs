//! Linear models with few terms: least squares, from which terms that do not pay are dropped.

use crate::Samples;

/// Keeps equations solvable whose attributes depend on each other.
const RIDGE: f64 = 1e-8;

/// A larger standardised coefficient means that two attributes fight each other.
const COEFFICIENT_MAX: f64 = 1.5;

/// A constant, and a coefficient for some of the attributes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Linear {
    pub(crate) constant: f64,
    /// Attributes, ascending, with their coefficients.
    pub(crate) terms: Vec<(usize, f64)>,
}

/// A model that was fitted, in units in which its coefficients can be compared.
struct Fitted {
    linear: Linear,
    /// By term: the coefficient if attribute and target had a standard deviation of one.
    standardised: Vec<f64>,
    squares: f64,
}

impl Linear {
    /// The mean of the targets.
    pub(crate) fn mean(samples: &Samples, rows: &[usize]) -> Self {
        let constant = rows.iter().map(|row| samples.targets[*row]).sum::<f64>() / rows.len().max(1) as f64;
        Self { constant, terms: Vec::new() }
    }

    /// Fits these attributes, and drops those that do not pay.
    pub(crate) fn fit(samples: &Samples, rows: &[usize], attributes: &[usize]) -> Self {
        let mut attributes = attributes.to_vec();
        let mut best = fitted(samples, rows, &attributes);
        while let Some(worst) = largest(&best.standardised).filter(|at| best.standardised[*at].abs() > COEFFICIENT_MAX)
        {
            attributes = best.attributes();
            attributes.remove(worst);
            best = fitted(samples, rows, &attributes);
        }
        // A model is judged by its error and by what it has to know (Akaike).
        let (all_squares, all) = (best.squares, best.linear.parameters());
        let judged = |it: &Fitted| {
            let ratio = if all_squares > 0.0 { it.squares / all_squares } else { 1.0 };
            ratio * (rows.len() as f64 - all) + 2.0 * it.linear.parameters()
        };
        while let Some(least) = smallest(&best.standardised) {
            let mut fewer = best.attributes();
            fewer.remove(least);
            let simpler = fitted(samples, rows, &fewer);
            if judged(&simpler) >= judged(&best) || (all_squares <= 0.0 && simpler.squares > 0.0) {
                break;
            }
            best = simpler;
        }
        best.linear
    }

    pub(crate) fn value(&self, values: &[f64]) -> f64 {
        self.terms.iter().fold(self.constant, |sum, (attribute, coefficient)| sum + coefficient * values[*attribute])
    }

    /// How many numbers it has.
    pub(crate) fn parameters(&self) -> f64 {
        self.terms.len() as f64 + 1.0
    }

    /// The average of two models, weighted.
    pub(crate) fn mixed(&self, weight: f64, other: &Self, other_weight: f64) -> Self {
        let (mine, theirs) = (weight / (weight + other_weight), other_weight / (weight + other_weight));
        let mut terms: Vec<(usize, f64)> = self.terms.iter().map(|(at, by)| (*at, by * mine)).collect();
        for (attribute, coefficient) in &other.terms {
            match terms.binary_search_by_key(attribute, |term| term.0) {
                Ok(at) => terms[at].1 += coefficient * theirs,
                Err(at) => terms.insert(at, (*attribute, coefficient * theirs)),
            }
        }
        Self { constant: self.constant * mine + other.constant * theirs, terms }
    }
}

impl Fitted {
    fn attributes(&self) -> Vec<usize> {
        self.linear.terms.iter().map(|term| term.0).collect()
    }
}

/// Least squares with all of these attributes, except those that do not vary.
fn fitted(samples: &Samples, rows: &[usize], attributes: &[usize]) -> Fitted {
    let count = rows.len().max(1) as f64;
    let moments = |value: &dyn Fn(usize) -> f64| {
        let mean = rows.iter().map(|row| value(*row)).sum::<f64>() / count;
        let variance = rows.iter().map(|row| (value(*row) - mean).powi(2)).sum::<f64>() / count;
        (mean, variance.sqrt())
    };
    let (target_mean, target_deviation) = moments(&|row| samples.targets[row]);
    let scaled: Vec<(usize, f64, f64)> = attributes
        .iter()
        .map(|&attribute| (attribute, moments(&|row| samples.values(row)[attribute])))
        .filter(|(_, (mean, deviation))| *deviation > mean.abs() * 1e-12)
        .map(|(attribute, (mean, deviation))| (attribute, mean, deviation))
        .collect();
    let size = scaled.len();
    let (mut gram, mut right) = (vec![0.0; size * size], vec![0.0; size]);
    let mut inputs = vec![0.0; size];
    for &row in rows {
        let values = samples.values(row);
        for (input, (attribute, mean, deviation)) in inputs.iter_mut().zip(&scaled) {
            *input = (values[*attribute] - mean) / deviation;
        }
        let target = samples.targets[row] - target_mean;
        for (one, input) in inputs.iter().enumerate() {
            right[one] += input * target;
            for other in 0..=one {
                gram[one * size + other] += input * inputs[other];
            }
        }
    }
    let solution = solved(&gram, &right, size);
    let terms = solution.iter().zip(&scaled).map(|(by, (attribute, _, deviation))| (*attribute, by / deviation));
    let terms: Vec<(usize, f64)> = terms.collect();
    let constant = target_mean - terms.iter().zip(&scaled).map(|((_, by), (_, mean, _))| by * mean).sum::<f64>();
    let linear = Linear { constant, terms };
    let squares = rows.iter().map(|row| (samples.targets[*row] - linear.value(samples.values(*row))).powi(2)).sum();
    let standardised = match target_deviation > 0.0 {
        true => solution.iter().map(|by| by / target_deviation).collect(),
        false => vec![0.0; size],
    };
    Fitted { linear, standardised, squares }
}

/// Solves symmetric equations (Cholesky) of which the lower half is given. More is added to the
/// diagonal if they cannot be solved otherwise.
fn solved(gram: &[f64], right: &[f64], size: usize) -> Vec<f64> {
    let mut ridge = RIDGE;
    loop {
        if let Some(solution) = cholesky(gram, right, size, ridge) {
            return solution;
        }
        ridge *= 10.0;
        if !ridge.is_finite() {
            return vec![0.0; size];
        }
    }
}

fn cholesky(gram: &[f64], right: &[f64], size: usize, ridge: f64) -> Option<Vec<f64>> {
    let mut root = vec![0.0; size * size];
    for row in 0..size {
        for column in 0..=row {
            let known: f64 = (0..column).map(|at| root[row * size + at] * root[column * size + at]).sum();
            let left = gram[row * size + column] - known;
            root[row * size + column] = match row == column {
                true => Some(left + ridge).filter(|pivot| *pivot > 0.0)?.sqrt(),
                false => left / root[column * size + column],
            };
        }
    }
    let mut solution = right.to_vec();
    for row in 0..size {
        let known: f64 = (0..row).map(|at| root[row * size + at] * solution[at]).sum();
        solution[row] = (solution[row] - known) / root[row * size + row];
    }
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|at| root[at * size + row] * solution[at]).sum();
        solution[row] = (solution[row] - known) / root[row * size + row];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

fn largest(coefficients: &[f64]) -> Option<usize> {
    (0..coefficients.len()).max_by(|a, b| coefficients[*a].abs().total_cmp(&coefficients[*b].abs()))
}

fn smallest(coefficients: &[f64]) -> Option<usize> {
    (0..coefficients.len()).min_by(|a, b| coefficients[*a].abs().total_cmp(&coefficients[*b].abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// y = 3 + 2 a - b, and an attribute that has nothing to do with it.
    fn samples() -> Samples {
        let mut samples = Samples::new(&["a", "b", "noise", "fixed"]);
        for row in 0..40 {
            let (a, b) = (f64::from(row % 7), f64::from(row * row % 11));
            samples.push(&[a, b, f64::from(row * 5 % 3), 4.0], 3.0 + 2.0 * a - b);
        }
        samples
    }

    #[test]
    fn what_is_linear_is_found_and_what_does_not_matter_is_dropped() {
        let (samples, rows) = (samples(), (0..40).collect::<Vec<_>>());
        let model = Linear::fit(&samples, &rows, &[0, 1, 2, 3]);
        assert!((model.value(&[10.0, 20.0, 1.0, 4.0]) - 3.0).abs() < 1e-6, "{model:?}");
        assert!(model.terms.iter().filter(|(_, by)| by.abs() > 1e-6).all(|(at, _)| *at < 2), "{model:?}");
        assert!(model.terms.iter().all(|(at, _)| *at != 3), "what does not vary has no coefficient: {model:?}");
    }

    #[test]
    fn attributes_that_are_almost_the_same_do_not_fight_each_other() {
        let mut twice = Samples::new(&["a", "b"]);
        for row in 0..50 {
            // A hundred times b minus 99 times a would fit, and err wildly elsewhere.
            let (a, noise) = (f64::from(row), f64::from(row % 5) - 2.0);
            twice.push(&[a, a + 0.01 * noise], a + noise);
        }
        let rows: Vec<usize> = (0..50).collect();
        let model = Linear::fit(&twice, &rows, &[0, 1]);
        assert!(model.terms.iter().all(|(_, by)| by.abs() < 1.2), "{model:?}");
        assert!((model.value(&[100.0, 99.0]) - 100.0).abs() < 2.0, "{model:?}");
    }

    #[test]
    fn a_mean_has_no_terms_and_a_mixture_has_those_of_both() {
        let samples = samples();
        let mean = Linear::mean(&samples, &[0, 1]);
        assert_eq!(mean.terms, []);
        let one = Linear { constant: 1.0, terms: vec![(0, 2.0), (3, 4.0)] };
        let other = Linear { constant: 5.0, terms: vec![(1, 8.0), (3, 8.0)] };
        assert_eq!(one.mixed(3.0, &other, 1.0), Linear { constant: 2.0, terms: vec![(0, 1.5), (1, 2.0), (3, 5.0)] });
    }
}
