//! What a crash leaves of the pools of translated programs. A program is watched while it runs:
//! every write and flush of its pool becomes a store and a flush of [`Stores`]. Whatever of the
//! stores that were not flushed is lost, the pool has the version before or the one after, whole,
//! and the program goes on from it to the same result.

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
};

use outcrop_crash::Stores;
use outcrop_pool::{Options, Pool};
use outcrop_testing::{covered, say};

use crate::{
    compiled::{Program, example, has, root, run},
    medium::Recorded,
};

/// A page of a pool; the first one describes it, and these have roots.
const PAGE: usize = 4096;
const ROOTS: Range<usize> = PAGE..33 * PAGE;

/// What a program did to its pool, and how many versions were durable at which moment.
struct Watched {
    stores: Stores,
    durable: Vec<usize>,
}

/// Runs a program that makes a pool, and records what it does to it.
fn watch(program: &Program, place: &Path, arguments: &[&str]) -> Watched {
    let log = place.join("calls");
    let calls = "trace=mmap,fallocate,pwrite64,msync";
    let mut command = Command::new("strace");
    command.current_dir(place).args(["-f", "-qq", "-xx", "-s", "100000000", "-e", calls, "-o"]).arg(&log);
    run(command.arg(&program.path).args(arguments));
    let (stores, mut pool, mut durable, mut has_root) = (Stores::new(Vec::new()), None, vec![0], false);
    for line in fs::read_to_string(&log).unwrap().lines() {
        // The number of the process comes first.
        let Some((call, arguments)) = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('('))
        else {
            continue;
        };
        let (arguments, result) = arguments.rsplit_once(") ").unwrap_or((arguments, ""));
        let arguments: Vec<&str> = arguments.split(", ").collect();
        match (call, &pool) {
            // The only file that is mapped to be written.
            ("mmap", _) if arguments[3].starts_with("MAP_SHARED|") && arguments[5] == "0" => {
                pool = Some((arguments[4].to_owned(), number(result.trim_start().trim_start_matches("= "))));
            }
            ("fallocate", Some((file, _))) if arguments[0] == file => {
                stores.grow(number(arguments[2]) + number(arguments[3]));
            }
            ("pwrite64", Some((file, _))) if arguments[0] == file => {
                let at = number(arguments[3]);
                stores.store(at, &bytes(arguments[1]));
                has_root |= ROOTS.contains(&at);
            }
            ("msync", Some((_, base))) => {
                let start = (number(arguments[0]) - base) as u64;
                stores.flush(std::slice::from_ref(&(start..start + number(arguments[1]) as u64)));
                let made = usize::from(std::mem::take(&mut has_root));
                durable.resize(stores.moment(), *durable.last().unwrap());
                durable.push(durable.last().unwrap() + made);
            }
            _ => {}
        }
    }
    durable.resize(stores.moment() + 1, *durable.last().unwrap());
    Watched { stores, durable }
}

/// A number of a call.
fn number(text: &str) -> usize {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| usize::from_str_radix(hex, 16)).unwrap()
}

/// Bytes, each of which is written as in `\x4f`.
fn bytes(text: &str) -> Vec<u8> {
    let digits = text.trim_matches('"').split("\\x").skip(1);
    digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The bytes of what a version has, by name.
type Parts = Vec<(String, Vec<u8>)>;

/// All that a reader can tell of a pool.
fn seen(pool: &Pool) -> Vec<(u64, Parts)> {
    let of = |version: u64| {
        let view = pool.view(version).unwrap();
        view.verify().unwrap();
        let parts = view.structures().map(|part| (part.name.clone(), view.bytes(&part.name).unwrap().to_vec()));
        (version, parts.collect())
    };
    pool.versions().into_iter().map(of).collect()
}

/// Looks at everything that a crash can leave of a program, and gives the number of images.
fn survives(name: &str, source: &Path, change: impl Fn(String) -> String, arguments: &[&str], result: &str) -> u64 {
    let Some(program) = Program::translated_with(source, &[], change) else { return 0 };
    if !has("strace") {
        return 0;
    }
    // Not in memory: there, writes are stores that nobody sees.
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("annotate-crash-{name}"));
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap();
    let watched = watch(&program, &place, arguments);
    let expected = fs::read(place.join(result)).unwrap();
    let path = place.join(format!("{name}.pool"));
    let made = *watched.durable.last().unwrap();
    assert!(made > 2 && watched.stores.bytes() == fs::read(&path).unwrap(), "{name}: not all was seen");
    let (mut images, mut known, end) = (0, BTreeSet::new(), watched.stores.moment());
    // How roots are torn word by word does not depend on the version.
    let first = watched.durable.iter().position(|durable| *durable == 2).unwrap();
    for (moments, words_max) in [(1..first, 12), (first..end + 1, 0)] {
        watched.stores.every_image(moments, words_max, |moment, image| {
            images += 1;
            let pool = Pool::on(Recorded::new(image.clone()), Options::versions(2)).unwrap();
            let seen = seen(&pool);
            let newest = seen.last().map_or(0, |(version, _)| *version as usize);
            let least = watched.durable[moment];
            assert!((least..=least + 1).contains(&newest), "{name}: version {newest} of {least} at {moment} of {end}");
            // One of each class goes on.
            if known.insert(seen) {
                fs::write(&path, &image).unwrap();
                fs::remove_file(place.join(result)).unwrap();
                let said = run(program.command(&place).args(arguments));
                assert_eq!(said.contains("goes on"), newest > 0, "{name}: {said}");
                assert!(fs::read(place.join(result)).unwrap() == expected, "{name}: another result after {newest}");
            }
        });
    }
    assert!(known.len() > made, "{name}: {} classes of images for {made} versions", known.len());
    say(format_args!("all crash images of {name}, translated: {images}, observable: {}, lost: 0", known.len()));
    fs::remove_dir_all(&place).unwrap();
    images
}

#[test]
fn small_programs_go_on_from_everything_that_a_crash_can_leave() {
    let smaller = |from: &'static str, to: &'static str| {
        move |text: String| {
            assert!(text.contains(from), "there is no {from}");
            text.replace(from, to)
        }
    };
    // After each iteration.
    let often = smaller("mtbf(21600)", "mtbf(0.000001)");
    let mut images = survives("lu", &example("lu.c"), |text| text, &["64", "result"], "result");
    images += survives("amr", &example("amr.c"), smaller("LEVEL_MAX = 5", "LEVEL_MAX = 2"), &["4", "result"], "result");
    images += survives(
        "pagerank",
        &example("pagerank.c"),
        move |text| often(text.replace("ITERATIONS = 60", "ITERATIONS = 4")),
        &["300", "result"],
        "result",
    );
    images += survives("crack", &example("crack.c"), often, &["4", "result"], "result");
    let lists = root().join("crates/annotate/tests/programs/lists.c");
    images += survives("lists", &lists, |text| text, &["result"], "result");
    covered("all crash images of small translated programs", images);
}
