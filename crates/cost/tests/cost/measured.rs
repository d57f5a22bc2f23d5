//! Calls that were measured: our tree beside Weka's, and beside a forest and a tree of others.

use std::{fmt::Write as _, path::PathBuf, process::Command};

use outcrop_cost::{Growth, ModelTree, Samples};
use outcrop_testing::{say, skip, soak};
use smartcore::{
    ensemble::random_forest_regressor::{RandomForestRegressor, RandomForestRegressorParameters},
    linalg::basic::matrix::DenseMatrix,
    tree::decision_tree_regressor::{DecisionTreeRegressor, DecisionTreeRegressorParameters},
};

use crate::data::{read, ten_fold};

/// What `outcrop model train --samples` has written: the logarithm of the seconds of each call.
fn calls() -> Samples {
    read(include_str!("data/calls.csv"))
}

/// The relative absolute error, of seconds and in percent, of predicted logarithms.
fn error_percent(test: &Samples, predicted: impl Fn(usize) -> f64) -> f64 {
    let seconds = |row: usize| test.target(row).exp();
    let mean = (0..test.len()).map(seconds).sum::<f64>() / test.len() as f64;
    let off = (0..test.len()).map(|row| (predicted(row).exp() - seconds(row)).abs()).sum::<f64>();
    100.0 * off / (0..test.len()).map(|row| (mean - seconds(row)).abs()).sum::<f64>()
}

fn matrix(samples: &Samples) -> (DenseMatrix<f64>, Vec<f64>) {
    let rows: Vec<Vec<f64>> = (0..samples.len()).map(|row| samples.values(row).to_vec()).collect();
    (DenseMatrix::from_2d_vec(&rows).unwrap(), (0..samples.len()).map(|row| samples.target(row)).collect())
}

/// The last quarter of the calls are of other pools than the others.
fn parted(all: &Samples) -> (Samples, Samples) {
    let learned = all.len() * 3 / 4;
    (all.only(&(0..learned).collect::<Vec<_>>()), all.only(&(learned..all.len()).collect::<Vec<_>>()))
}

#[test]
fn trees_and_forests_of_others_are_no_better() {
    let (train, test) = parted(&calls());
    let ours = ModelTree::train(&train, Growth::default());
    let ours = error_percent(&test, |row| ours.predict(test.values(row)));
    let ((inputs, targets), (others, _)) = (matrix(&train), matrix(&test));
    let settings = RandomForestRegressorParameters { n_trees: 50, seed: 1, ..Default::default() };
    let forest = RandomForestRegressor::fit(&inputs, &targets, settings).unwrap().predict(&others).unwrap();
    let forest = error_percent(&test, |row| forest[row]);
    let settings = DecisionTreeRegressorParameters { min_samples_leaf: 4, seed: Some(1), ..Default::default() };
    let tree = DecisionTreeRegressor::fit(&inputs, &targets, settings).unwrap().predict(&others).unwrap();
    let tree = error_percent(&test, |row| tree[row]);
    say(format_args!("relative absolute error: M5P {ours:.1} %, forest {forest:.1} %, regression tree {tree:.1} %"));
    assert!(ours < 1.1 * forest, "{ours} {forest}");
    assert!(ours < tree, "{ours} {tree}");
}

#[test]
fn our_tree_is_as_good_as_wekas_on_what_was_measured_here() {
    let calls = calls();
    let tree = ModelTree::train(&calls, Growth::default());
    let ours = (100.0 * calls.relative_absolute_error(&tree, &calls), 100.0 * ten_fold(&calls, Growth::default()));
    assert!(ours.0 < ours.1 && ours.1 < 80.0, "it has learned something: {ours:?}");
    if !soak() {
        return;
    }
    let Some(wekas) = weka(&calls) else { return };
    say(format_args!("relative absolute error, trained and ten folds: ours {ours:.2?} %, Weka's {wekas:.2?} %"));
    assert!((ours.0 - wekas.0).abs() < 2.0 && (ours.1 - wekas.1).abs() < 2.0, "{ours:?} {wekas:?}");
}

/// The relative absolute errors of Weka's M5P, on the rows it learned from and in ten folds.
fn weka(samples: &Samples) -> Option<(f64, f64)> {
    let jar = std::env::var_os("OUTCROP_WEKA").map_or_else(|| PathBuf::from("/usr/share/java/weka.jar"), PathBuf::from);
    if !jar.exists() || Command::new("java").arg("-version").output().is_err() {
        skip(format_args!(
            "there is no Weka: install weka and default-jre-headless, or set OUTCROP_WEKA to a weka.jar"
        ));
        return None;
    }
    let mut text = "@relation calls\n".to_owned();
    samples.names().iter().for_each(|name| writeln!(text, "@attribute {name} numeric").unwrap());
    text += "@attribute class numeric\n@data\n";
    for row in 0..samples.len() {
        samples.values(row).iter().for_each(|value| write!(text, "{value},").unwrap());
        writeln!(text, "{}", samples.target(row)).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calls.arff");
    std::fs::write(&path, text).unwrap();
    let mut java = Command::new("java");
    let output = java.arg("-cp").arg(jar).args(["weka.classifiers.trees.M5P", "-t"]).arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    let percent =
        |line: &str| line.strip_prefix("Relative absolute error")?.trim().trim_end_matches('%').trim().parse().ok();
    let percents: Vec<f64> = said.lines().filter_map(percent).collect();
    assert_eq!(percents.len(), 2, "{said}");
    Some((percents[0], percents[1]))
}
