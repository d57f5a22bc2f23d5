//! What is refused, and whether the message says what to do.

use outcrop_rtm::{Config, Migration};

/// The whole message of the error, with its causes.
fn refusal(text: &str) -> String {
    let error = match Config::from_toml(text) {
        Err(error) => error,
        Ok(config) => Migration::new(&config).expect_err(text),
    };
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        message += &format!(": {error}");
        cause = error.source();
    }
    message
}

#[test]
fn an_empty_file_and_the_demo_work() {
    assert_eq!(Config::from_toml("").unwrap(), Config::default());
    Config::demo().validate().unwrap();
    let migration = Migration::new(&Config::demo()).unwrap();
    let gib = (migration.snapshots() * migration.snapshot_len() * 4) as f64 / f64::from(1 << 30);
    assert!((1.2..2.0).contains(&gib), "{gib} GiB of snapshots per shot");
}

#[test]
fn every_setting_can_be_written() {
    let text = "
        model = 'layers'
        points = [60, 40, 50]
        spacing = [20, 20.0, 10]
        smoothing = 80
        space_order = 16
        time_order = 4
        dt = 0.001
        duration = 0.5
        boundary = 20
        frequency = 9
        shots = [[300, 400], [600.0, 400]]
        shot_depth = 10
        receiver_spacing = 40
        receiver_depth = 10
        snapshot_every = 5
        laplacian_filter = false
        threads = 1
    ";
    let migration = Migration::new(&Config::from_toml(text).unwrap()).unwrap();
    assert_eq!(migration.survey().shots, [[15, 20, 1], [30, 20, 1]]);
    assert_eq!(migration.steps(), 500);
    assert_eq!(migration.threads(), 1);
}

#[test]
fn settings_that_cannot_work_are_named() {
    for (text, parts) in [
        ("frequencey = 10", ["line 1", "unknown key frequencey", "did you mean frequency?"]),
        ("\n\nsnapshots_every = 2", ["line 3", "unknown key snapshots_every", "did you mean snapshot_every?"]),
        ("model = 'granite'", ["granite", "layers", "salt"]),
        ("points = [100]", ["points = [100]", "[x, z]", "[x, y, z]"]),
        ("points = [100, 1, 100]", ["points", "at least 2", "leave y out"]),
        ("points = [4294967296, 4294967296, 4294967296]", ["points", "at most", "in all"]),
        ("spacing = 0", ["spacing", "[0.0]", "between"]),
        ("spacing = nan", ["spacing", "NaN", "between"]),
        ("spacing = [10, 10, 10]", ["spacing", "2 axes", "one number for each"]),
        ("spacing = 'wide'", ["line 1", "spacing must be", "metres"]),
        ("space_order = 5", ["space_order = 5", "even", "2 to 16"]),
        ("space_order = 18", ["space_order = 18", "even", "2 to 16"]),
        ("time_order = 3", ["time_order = 3", "2", "4"]),
        ("duration = -1", ["duration = -1", "positive", "seconds"]),
        ("frequency = 0", ["frequency = 0", "positive", "hertz"]),
        ("frequency = 100", ["frequency = 100", "too short", "at most 12.0 hertz"]),
        ("dt = 0.01", ["0.01 s is unstable", "largest stable one is 0.0024", "leave it out"]),
        ("dt = 1e-12", ["dt = 0.000000000001", "steps", "longer step"]),
        ("boundary = 100000", ["boundary = 100000", "at most", "points"]),
        ("shots = 0", ["shots = 0", "between 1", "shots"]),
        ("shots = []", ["shots = 0", "between 1", "shots"]),
        ("shots = 'many'", ["line 1", "shots must be", "positions"]),
        ("shots = [1e9]", ["shots = 1000000000", "outside", "0 to 7980 metres"]),
        ("shot_depth = 5000", ["shot_depth = 5000", "outside", "depth"]),
        ("snapshot_every = 0", ["snapshot_every = 0", "at least 1", "step"]),
        ("smoothing = -5", ["smoothing = -5", "0 or more", "metres"]),
        ("receiver_spacing = 0", ["receiver_spacing = 0", "positive", "metres"]),
        ("threads = 99999", ["threads = 99999", "4096", "cores"]),
        ("duration = 1e9", ["duration = 1000000000", "steps", "possible"]),
        ("points = [", ["configuration", "line 1", ""]),
    ] {
        let message = refusal(text);
        for part in parts {
            assert!(message.contains(part), "{text}: {message:?} should mention {part:?}");
        }
    }
}

#[test]
fn model_files_that_cannot_be_right_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let with = |name: &str, bytes: &[u8], settings: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        refusal(&format!("file = '{}'\nfrequency = 5\n{settings}", path.display()))
    };
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let npy = |shape: &str, body: &[u8]| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    };
    let good = floats(&[2000.0; 12]);
    let cases = [
        (with("short.raw", &good[..47], "points = [4, 3]"), ["short.raw", "47 bytes", "48 bytes"]),
        (with("shapeless.raw", &good, ""), ["shapeless.raw", "does not know", "points"]),
        (with("cut.npy", &npy("(4, 3)", &good[..40]), ""), ["cut.npy", "40 bytes", "cut short"]),
        (with("other.npy", &npy("(4, 3)", &good), "points = [3, 4]"), ["other.npy", "(4, 3)", "(3, 4)"]),
        (with("not.npy", b"hello", ""), ["not.npy", "not a .npy file", "NUMPY"]),
        (with("nan.npy", &npy("(2, 2)", &floats(&[2000.0, f32::NAN, 2000.0, 2000.0])), ""), ["x = 0", "z = 1", "NaN"]),
        (with("water.raw", &floats(&[1.5; 12]), "points = [4, 3]"), ["velocity model", "1.5", "metres per second"]),
        (with("thin.npy", &npy("(1, 12)", &good), ""), ["velocity model", "1 points along x", "at least 2"]),
        (refusal("file = 'no/such/file.npy'"), ["cannot read", "no/such/file.npy", "No such file"]),
    ];
    for (message, parts) in cases {
        for part in parts {
            assert!(message.contains(part), "{message:?} should mention {part:?}");
        }
    }
}
