//! The figures agree with the papers: the same order of the ways, the same crossovers, and
//! headlines that are at most a quarter worse.

use outcrop_sim::{Figure, figure, figures};

/// How much worse than the paper a ratio may be.
const TOLERANCE: f64 = 0.75;

fn run(name: &str) -> Figure {
    figure(name).unwrap().run(false).unwrap()
}

/// One column of a figure.
fn column(figure: &Figure, name: &str) -> Vec<f64> {
    figure.rows.iter().map(|row| row.number(name).unwrap()).collect()
}

/// The rows of one way.
fn of_way(figure: &Figure, way: &str, column: &str) -> Vec<f64> {
    let is_way = |row: &&outcrop_sim::Row| row.0.iter().any(|(name, value)| name == "way" && value == way);
    figure.rows.iter().filter(is_way).map(|row| row.number(column).unwrap()).collect()
}

fn is_below(lower: &[f64], upper: &[f64]) -> bool {
    !lower.is_empty() && lower.len() == upper.len() && lower.iter().zip(upper).all(|(lower, upper)| lower < upper)
}

#[test]
fn headlines_are_as_good_as_the_papers() {
    for entry in figures() {
        let figure = entry.run(true).unwrap();
        for (name, paper) in &figure.headline.paper {
            let ours = figure.headline.ours[name];
            assert!(ours >= paper * TOLERANCE, "{}: {name}: paper {paper}, here {ours}", figure.name);
        }
    }
}

#[test]
fn of_every_figure_the_json_has_exactly_three_keys() {
    let figure = run("4b");
    let json = serde_json::to_value(&figure).unwrap();
    let keys: Vec<_> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["figure", "headline", "rows"]);
    assert_eq!(
        json["headline"]["paper"].as_object().unwrap().len(),
        json["headline"]["ours"].as_object().unwrap().len()
    );
    assert_eq!(json["rows"][0].as_object().unwrap().len(), 3);
}

#[test]
fn simulations_repeat_exactly() {
    assert_eq!(run("6b").rows, run("6b").rows);
}

#[test]
fn in_saves_paging_beats_preparing_first_and_ours_beats_all() {
    let figure = run("5a");
    let [direct, paging, memset, ours] =
        ["direct pin", "on demand", "incremental memset", "ours"].map(|way| column(&figure, way));
    assert!(is_below(&ours, &paging) && is_below(&paging, &memset) && is_below(&memset, &direct), "{figure:?}");
    // The longer the program computes, the less paging costs.
    assert!(paging.is_sorted_by(|one, other| one > other), "{paging:?}");
}

#[test]
fn with_takes_what_was_prepared_pays_and_paging_does_not() {
    let figure = run("5b");
    let [direct, paging, memset, ours] =
        ["direct pin", "on demand", "incremental memset", "ours"].map(|way| column(&figure, way));
    assert!(is_below(&ours, &memset) && is_below(&memset, &direct), "{figure:?}");
    // For short gaps, paging is no better than pinning first. For long ones, it is better than
    // filling pages.
    assert!(memset[0] < paging[0] && paging[0] > direct[0] * 0.9, "{paging:?} {direct:?}");
    assert!(paging.last() < memset.last(), "{paging:?} {memset:?}");
}

#[test]
fn variable_sizes_have_the_same_order() {
    for (name, is_total) in [("3b", false), ("3c", true)] {
        let figure = run(name);
        let [direct, paging, memset, ours] =
            ["direct pin", "on demand", "incremental memset", "ours"].map(|way| column(&figure, way));
        assert!(is_below(&ours, &paging) && is_below(&ours, &memset) && is_below(&paging, &direct), "{figure:?}");
        assert!(is_total || is_below(&memset, &direct), "{figure:?}");
    }
}

#[test]
fn allocation_is_slower_in_proportion_to_who_asks() {
    let rates = column(&run("4a"), "gb_per_second");
    for (index, rate) in rates.iter().enumerate() {
        assert!((rate * (index + 1) as f64 / rates[0] - 1.0).abs() < 0.01, "{rates:?}");
    }
}

#[test]
fn device_memory_that_is_mapped_bit_by_bit_costs_its_first_piece_at_most() {
    let (saves, total) = (run("4b"), run("4c"));
    assert!(is_below(&column(&saves, "ours"), &column(&saves, "direct allocation")));
    assert!(is_below(&column(&total, "ours"), &column(&total, "direct allocation")));
}

#[test]
fn concurrent_touching_wins_short_gaps_and_sequential_touching_long_ones() {
    let figure = run("5c");
    let sequential = column(&figure, "sequential, serial pinning");
    let concurrent = column(&figure, "concurrent, serial pinning");
    assert!(concurrent[0] < sequential[0], "{figure:?}");
    let gap_40 = 3;
    assert!(sequential[gap_40] * 1.4 < concurrent[gap_40], "{figure:?}");
    // The choice between them is as good as the better one.
    let chosen = column(&figure, "ours (chosen, serial)");
    for ((chosen, sequential), concurrent) in chosen.iter().zip(&sequential).zip(&concurrent) {
        assert!(*chosen < sequential.min(*concurrent) * 1.1, "{figure:?}");
    }
    for touching in ["sequential", "concurrent"] {
        let serial = column(&figure, &format!("{touching}, serial pinning"));
        let parallel = column(&figure, &format!("{touching}, parallel pinning"));
        assert!(is_below(&serial, &parallel), "{figure:?}");
    }
}

#[test]
fn more_processes_and_more_memory_hurt_who_pins_first_most() {
    for (name, way) in [("6a", "direct pin"), ("6b", "direct pin"), ("6c", "direct pin")] {
        let figure = run(name);
        let (direct, ours) = (column(&figure, way), column(&figure, "ours"));
        assert!(is_below(&ours, &direct), "{figure:?}");
        assert!(direct.is_sorted_by(|one, other| one < other), "{direct:?}");
    }
}

#[test]
fn without_buffers_most_of_the_time_is_input_and_output() {
    let figure = run("mlbs-2");
    let wall = column(&figure, "wall_seconds");
    let reads = column(&figure, "waiting_for_reads_seconds");
    assert!(wall[1] * 2.0 < wall[0] && reads[1] * 20.0 < reads[0], "{figure:?}");
}

#[test]
fn shaheen_prefers_the_burst_buffer_and_buffers_hide_it() {
    let figure = run("mlbs-3");
    for column in ["write_gib_per_second", "read_gib_per_second"] {
        let plain = of_way(&figure, "file system", column);
        let burst = of_way(&figure, "burst buffer", column);
        let buffered = of_way(&figure, "ours + file system", column);
        let both = of_way(&figure, "ours + both", column);
        assert!(is_below(&plain, &burst) && is_below(&plain, &buffered) && is_below(&burst, &both), "{figure:?}");
        // From the paper: reads always come from memory.
        assert!(both.iter().all(|rate| *rate > 30.0), "{both:?}");
    }
}

#[test]
fn on_summit_the_burst_buffer_wins_only_on_many_nodes_and_for_reading_sooner() {
    let figure = run("mlbs-4");
    let faster = |column: &str| {
        let plain = of_way(&figure, "file system", column);
        let burst = of_way(&figure, "burst buffer", column);
        plain.iter().zip(&burst).map(|(plain, burst)| burst > plain).collect::<Vec<_>>()
    };
    // 1, 4, 16, 64, 256, 1024 and 2048 nodes.
    assert_eq!(faster("write_gib_per_second"), [false, false, false, false, false, false, true]);
    assert_eq!(faster("read_gib_per_second"), [false, false, false, false, true, true, true]);
    // With both, the plan finds out which one pays: it is never much worse than the better one, and
    // better than either on few nodes.
    let walls = |way| of_way(&figure, way, "wall_seconds");
    let better =
        walls("ours + file system").into_iter().zip(walls("ours + burst buffer")).map(|(one, other)| one.min(other));
    let shares: Vec<_> = walls("ours + both").into_iter().zip(better).map(|(both, better)| both / better).collect();
    assert!(shares.iter().all(|&share| share < 1.2), "{shares:?}");
    assert!(shares[..4].iter().all(|&share| share < 0.96), "{shares:?}");
}

#[test]
fn a_grid_that_fits_into_device_memory_costs_nothing() {
    let figure = run("mlbs-5");
    let waiting: Vec<_> =
        column(&figure, "writing").iter().zip(column(&figure, "reading")).map(|(w, r)| w + r).collect();
    let computing = column(&figure, "computing forward");
    assert!(waiting[1] < computing[1] * 0.02 && waiting[3] < computing[3] * 0.4, "{figure:?}");
    assert!(waiting[0] > computing[0] * 3.0 && waiting[2] > computing[2] * 3.0, "{figure:?}");
}

#[test]
fn plots_are_drawn() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["4b", "mlbs-2", "mlbs-5"] {
        let figure = run(name);
        outcrop_sim::draw(&figure.chart, name, figure.title, &directory.path().join("plots")).unwrap();
        let png = std::fs::read(directory.path().join(format!("plots/{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    }
    std::fs::write(directory.path().join("file"), "").unwrap();
    let figure = run("4b");
    let error = outcrop_sim::draw(&figure.chart, "4b", "", &directory.path().join("file")).unwrap_err();
    assert!(error.to_string().contains("choose another --output"), "{error}");
}

#[test]
fn an_unknown_figure_is_named_with_those_that_there_are() {
    let error = figure("7z").unwrap_err().to_string();
    assert!(error.contains("7z") && error.contains("5a") && error.contains("mlbs-4"), "{error}");
}
