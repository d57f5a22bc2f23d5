//! What was measured: rows of attributes, each with the value that a model is to predict.

use crate::{ATTRIBUTES_MAX, ModelTree};

/// Rows of attributes and their targets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    names: Vec<String>,
    values: Vec<f64>,
    pub(crate) targets: Vec<f64>,
}

impl Samples {
    /// No rows yet, of attributes with these names.
    ///
    /// # Panics
    /// If there are none, or more than 64.
    pub fn new<N: AsRef<str>>(names: &[N]) -> Self {
        assert!((1..=ATTRIBUTES_MAX).contains(&names.len()), "1 to {ATTRIBUTES_MAX} attributes, not {}", names.len());
        let names = names.iter().map(|name| name.as_ref().to_owned()).collect();
        Self { names, values: Vec::new(), targets: Vec::new() }
    }

    /// Adds a row. One with a number that is not finite is left out.
    ///
    /// # Panics
    /// If it has not as many values as there are attributes.
    pub fn push(&mut self, values: &[f64], target: f64) {
        assert_eq!(values.len(), self.names.len(), "a row has a value for each attribute");
        if target.is_finite() && values.iter().all(|value| value.is_finite()) {
            self.values.extend_from_slice(values);
            self.targets.push(target);
        }
    }

    /// The names of the attributes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// The attributes of a row.
    pub fn values(&self, row: usize) -> &[f64] {
        &self.values[row * self.names.len()..(row + 1) * self.names.len()]
    }

    /// What a model is to predict for a row.
    pub fn target(&self, row: usize) -> f64 {
        self.targets[row]
    }

    /// Only these rows.
    pub fn only(&self, rows: &[usize]) -> Self {
        let mut only = Self::new(&self.names);
        rows.iter().for_each(|row| only.push(self.values(*row), self.targets[*row]));
        only
    }

    /// The relative absolute error of a model that was trained with other rows, or with the same:
    /// the sum of its errors, divided by the sum of errors of a model that says the mean of what it
    /// was trained with. Zero is perfect, and one is no better than the mean.
    pub fn relative_absolute_error(&self, model: &ModelTree, trained: &Self) -> f64 {
        let (mine, mean) = self.absolute_errors(model, trained);
        mine / mean
    }

    /// Both sums of which [`relative_absolute_error`](Self::relative_absolute_error) is the ratio.
    pub fn absolute_errors(&self, model: &ModelTree, trained: &Self) -> (f64, f64) {
        let mean = trained.targets.iter().sum::<f64>() / trained.len().max(1) as f64;
        let error = |row: usize| (model.predict(self.values(row)) - self.targets[row]).abs();
        let errors = (0..self.len()).map(error).sum();
        (errors, self.targets.iter().map(|target| (target - mean).abs()).sum())
    }
}
