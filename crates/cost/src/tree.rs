//! Model trees (M5P): a tree of thresholds with a linear model in each leaf.
//!
//! The tree is grown so that targets vary little within a leaf. From the leaves up, a linear model
//! of the attributes that are tested below replaces whatever it is as good as. At last the models
//! of all nodes on the way to a leaf are mixed into the leaf's, which smooths the steps between
//! neighbours.

use crate::{Samples, linear::Linear};

/// Fewer rows are not split.
const ROWS_MIN: usize = 4;

/// Rows whose standard deviation is a smaller part of that of all rows are not split.
const DEVIATION_MIN: f64 = 0.05;

/// Splits that differ by less are equally good.
const GAIN_MIN: f64 = 1e-6;

/// A model counts as perfect if its error is a smaller part of the standard deviation of all rows.
const PERFECT: f64 = 1e-5;

/// The model of a node counts as much as so many rows of its child.
const SMOOTHING_ROWS: f64 = 15.0;

/// How a tree is grown. The default prunes and smooths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Replaces subtrees by linear models that are as good.
    pub is_pruned: bool,
    /// Mixes the models of all nodes above a leaf into the leaf's.
    pub is_smoothed: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Self { is_pruned: true, is_smoothed: true }
    }
}

/// A tree of thresholds with linear models in its leaves.
///
/// ```
/// use outcrop_cost::{Growth, ModelTree, Samples};
/// let mut samples = Samples::new(&["size"]);
/// for size in 0..100 {
///     let size = f64::from(size);
///     samples.push(&[size], if size < 50.0 { 1.0 } else { 10.0 * size });
/// }
/// let tree = ModelTree::train(&samples, Growth { is_smoothed: false, ..Growth::default() });
/// assert!((tree.predict(&[80.0]) - 800.0).abs() < 1.0);
/// assert!((tree.predict(&[10.0]) - 1.0).abs() < 1.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTree {
    /// The first is the root; children come after their parents.
    pub(crate) nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Split { attribute: usize, threshold: f64, low: usize, high: usize },
    Leaf(Linear),
}

impl ModelTree {
    /// Grows a tree. Without rows it predicts zero.
    pub fn train(samples: &Samples, growth: Growth) -> Self {
        let rows: Vec<usize> = (0..samples.len()).collect();
        let deviation = deviation(samples, &rows);
        let mut root = grow(samples, rows, deviation);
        root.fit(samples, growth.is_pruned, deviation);
        let mut tree = Self { nodes: Vec::new() };
        tree.add(&root, &mut Vec::new(), growth.is_smoothed);
        tree
    }

    /// What it predicts for a row of attributes.
    pub fn predict(&self, values: &[f64]) -> f64 {
        let mut at = 0;
        loop {
            match &self.nodes[at] {
                Node::Leaf(linear) => return linear.value(values),
                Node::Split { attribute, threshold, low, high } => {
                    at = if values[*attribute] <= *threshold { *low } else { *high };
                }
            }
        }
    }

    /// How many linear models it has.
    pub fn leaves(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node, Node::Leaf(_))).count()
    }

    /// Adds a node and all below it, and says where it is.
    fn add<'a>(&mut self, branch: &'a Branch, above: &mut Vec<&'a Branch>, is_smoothed: bool) -> usize {
        let at = self.nodes.len();
        match &branch.split {
            None => {
                let mut linear = branch.linear.clone();
                let mut child = branch;
                for parent in above.iter().rev().filter(|_| is_smoothed) {
                    linear = linear.mixed(child.rows.len() as f64, &parent.linear, SMOOTHING_ROWS);
                    child = parent;
                }
                self.nodes.push(Node::Leaf(linear));
            }
            Some(split) => {
                self.nodes.push(Node::Leaf(Linear::default()));
                above.push(branch);
                let (low, high) = (self.add(&split.low, above, is_smoothed), self.add(&split.high, above, is_smoothed));
                above.pop();
                self.nodes[at] = Node::Split { attribute: split.attribute, threshold: split.threshold, low, high };
            }
        }
        at
    }
}

/// A node of a tree that is being grown.
struct Branch {
    rows: Vec<usize>,
    linear: Linear,
    split: Option<Box<Split>>,
}

struct Split {
    attribute: usize,
    threshold: f64,
    low: Branch,
    high: Branch,
}

/// The error that is expected of a part of a tree, and how many numbers the part has.
#[derive(Clone, Copy)]
struct Expected {
    squares: f64,
    parameters: f64,
}

impl Expected {
    /// The root of the mean square, and more the fewer rows there are for each number.
    fn error(self, rows: usize) -> f64 {
        let rows = rows as f64;
        let factor =
            if rows > self.parameters { (rows + 2.0 * self.parameters) / (rows - self.parameters) } else { 10.0 };
        (self.squares / rows.max(1.0)).sqrt() * factor
    }
}

impl Branch {
    fn leaf(samples: &Samples, rows: Vec<usize>) -> Self {
        Self { linear: Linear::mean(samples, &rows), rows, split: None }
    }

    /// Fits the linear models from the leaves up, and prunes. Gives what is expected of it.
    fn fit(&mut self, samples: &Samples, is_pruned: bool, deviation: f64) -> Expected {
        let attributes = self.attributes();
        let Some(split) = &mut self.split else { return self.expected(samples) };
        let low = split.low.fit(samples, is_pruned, deviation);
        let high = split.high.fit(samples, is_pruned, deviation);
        let below =
            Expected { squares: low.squares + high.squares, parameters: low.parameters + high.parameters + 1.0 };
        self.linear = Linear::fit(samples, &self.rows, &attributes);
        let own = self.expected(samples);
        let (own_error, below_error) = (own.error(self.rows.len()), below.error(self.rows.len()));
        if is_pruned && (own_error <= below_error || own_error < deviation * PERFECT) {
            self.split = None;
            return own;
        }
        below
    }

    /// What is expected of its linear model.
    fn expected(&self, samples: &Samples) -> Expected {
        let error = |row: &usize| samples.targets[*row] - self.linear.value(samples.values(*row));
        let squares = self.rows.iter().map(|row| error(row).powi(2)).sum();
        Expected { squares, parameters: self.linear.parameters() }
    }

    /// The attributes that are tested here or below, ascending.
    fn attributes(&self) -> Vec<usize> {
        let Some(split) = &self.split else { return Vec::new() };
        let mut attributes = split.low.attributes();
        attributes.extend(split.high.attributes());
        attributes.push(split.attribute);
        attributes.sort_unstable();
        attributes.dedup();
        attributes
    }
}

fn grow(samples: &Samples, rows: Vec<usize>, all_deviation: f64) -> Branch {
    let is_small = rows.len() < ROWS_MIN || deviation(samples, &rows) < all_deviation * DEVIATION_MIN;
    let Some((attribute, threshold)) = (if is_small { None } else { best_split(samples, &rows) }) else {
        return Branch::leaf(samples, rows);
    };
    let (low, high): (Vec<usize>, Vec<usize>) =
        rows.iter().partition(|row| samples.values(**row)[attribute] <= threshold);
    let (low, high) = (grow(samples, low, all_deviation), grow(samples, high, all_deviation));
    Branch { rows, linear: Linear::default(), split: Some(Box::new(Split { attribute, threshold, low, high })) }
}

/// The attribute and threshold after which targets vary least.
fn best_split(samples: &Samples, rows: &[usize]) -> Option<(usize, f64)> {
    let attributes = 0..samples.names().len();
    let mut best: Option<(f64, usize, f64)> = None;
    for attribute in attributes {
        let found = best_threshold(samples, rows, attribute);
        let least = best.map_or(0.0, |best| best.0) + GAIN_MIN;
        best = found.filter(|(gain, _)| *gain > least).map(|(gain, at)| (gain, attribute, at)).or(best);
    }
    best.map(|(_, attribute, threshold)| (attribute, threshold))
}

/// The best threshold of an attribute, and what it gains.
fn best_threshold(samples: &Samples, rows: &[usize], attribute: usize) -> Option<(f64, f64)> {
    let value = |row: usize| samples.values(row)[attribute];
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
    let count = rows.len();
    let least = if count < 5 { 1 } else { count / 5 };
    let mean = rows.iter().map(|row| samples.targets[*row]).sum::<f64>() / count as f64;
    let target = |row: usize| samples.targets[row] - mean;
    let all = rows.iter().fold((0.0, 0.0), |sums, row| (sums.0 + target(*row), sums.1 + target(*row).powi(2)));
    let whole = spread(all, count);
    let mut low = (0.0, 0.0);
    let mut best: Option<(f64, f64)> = None;
    for at in 1..count {
        let before = target(rows[at - 1]);
        low = (low.0 + before, low.1 + before * before);
        let (below, above) = (value(rows[at - 1]), value(rows[at]));
        if at <= least || count - at <= least || below >= above {
            continue;
        }
        let high = (all.0 - low.0, all.1 - low.1);
        let part = at as f64 / count as f64;
        let gain = whole - part * spread(low, at) - (1.0 - part) * spread(high, count - at);
        if best.is_none_or(|best| gain > best.0) {
            // Between two neighbouring numbers there may be none: the lower one is below then.
            let middle = below + (above - below) / 2.0;
            best = Some((gain, if middle < above { middle } else { below }));
        }
    }
    best
}

/// How far targets are from each other: the fifth root of their variance, by which a split into
/// unequal parts is not preferred as much as by their standard deviation.
fn spread((sum, squares): (f64, f64), count: usize) -> f64 {
    let count = count as f64;
    ((squares - sum * sum / count) / count).max(0.0).powf(0.2)
}

fn deviation(samples: &Samples, rows: &[usize]) -> f64 {
    let count = rows.len().max(1) as f64;
    let mean = rows.iter().map(|row| samples.targets[*row]).sum::<f64>() / count;
    (rows.iter().map(|row| (samples.targets[*row] - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Samples {
        let mut samples = Samples::new(&["noise", "size"]);
        for row in 0..200 {
            let (noise, size) = (f64::from(row * 37 % 11), f64::from(row));
            samples.push(&[noise, size], if row < 80 { 5.0 } else { 3.0 * size + 100.0 });
        }
        samples
    }

    #[test]
    fn steps_and_slopes_are_found() {
        let samples = steps();
        let tree = ModelTree::train(&samples, Growth { is_smoothed: false, ..Growth::default() });
        for row in 0..samples.len() {
            let error = tree.predict(samples.values(row)) - samples.target(row);
            assert!(error.abs() < 3.0, "row {row}: {error}");
        }
        assert!(tree.leaves() <= 6, "{tree:?}");
        assert!((tree.predict(&[0.0, 400.0]) - 1300.0).abs() < 10.0, "beyond what was measured");
    }

    #[test]
    fn pruning_makes_trees_smaller_and_smoothing_changes_them_little() {
        let samples = steps();
        let grown = |is_pruned, is_smoothed| ModelTree::train(&samples, Growth { is_pruned, is_smoothed });
        let (pruned, whole) = (grown(true, false), grown(false, false));
        assert!(pruned.leaves() < whole.leaves() / 2, "{} of {}", pruned.leaves(), whole.leaves());
        let smooth = grown(true, true);
        assert_eq!(smooth.leaves(), pruned.leaves());
        assert_ne!(smooth, pruned);
        assert!(samples.relative_absolute_error(&smooth, &samples) < 0.2);
    }

    #[test]
    fn little_and_odd_input_gives_a_tree_as_well() {
        let names = ["a", "b"];
        assert_eq!(ModelTree::train(&Samples::new(&names), Growth::default()).predict(&[1.0, 2.0]), 0.0);
        let mut one = Samples::new(&names);
        one.push(&[1.0, 2.0], 7.0);
        one.push(&[f64::NAN, 2.0], 9.0);
        one.push(&[1.0, 2.0], f64::INFINITY);
        assert_eq!(one.len(), 1, "what is not a number is not learned");
        assert_eq!(ModelTree::train(&one, Growth::default()).predict(&[5.0, 5.0]), 7.0);
        let mut same = Samples::new(&names);
        (0..50).for_each(|_| same.push(&[1.0, 1.0], 3.0));
        assert_eq!(ModelTree::train(&same, Growth::default()).leaves(), 1);
        let mut huge = Samples::new(&names);
        (0..50).for_each(|row| huge.push(&[f64::from(row) * 1e300, f64::MIN_POSITIVE], f64::from(row) * 1e-300));
        assert!(ModelTree::train(&huge, Growth::default()).predict(&[1e300, 0.0]).is_finite());
    }
}
