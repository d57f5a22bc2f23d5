//! The 209 machines on which Weka's M5P is known.

use outcrop_cost::{Growth, ModelTree};

use crate::data::{read, ten_fold};

#[test]
fn the_tree_is_as_good_as_wekas_on_known_machines() {
    let machines = read(include_str!("data/cpu.csv"));
    assert_eq!(machines.len(), 209);
    // What Weka 3.6.14 says, in percent: on the rows it learned from, and on others (ten folds).
    for (is_pruned, is_smoothed, trained, held_out) in
        [(true, true, 22.8582, 30.9967), (true, false, 22.0954, 34.727), (false, true, 20.7717, 28.9047)]
    {
        let growth = Growth { is_pruned, is_smoothed };
        let tree = ModelTree::train(&machines, growth);
        let error = 100.0 * machines.relative_absolute_error(&tree, &machines);
        let folds = 100.0 * ten_fold(&machines, growth);
        assert!((error - trained).abs() < 0.0001, "{growth:?}: {error}, not what Weka says");
        assert!((folds - held_out).abs() < 2.0, "{growth:?}: {folds}");
    }
}
