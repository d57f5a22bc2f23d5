//! Hints of `persistent`: DRAM keeps copies of what they name, and values stay the same.

use crate::compiled::{Program, has, root, run, text};

fn source() -> std::path::PathBuf {
    root().join("crates/annotate/tests/programs/hints.c")
}

/// Blocks of which DRAM has copies, and that were written while it had none.
fn blocks(program: &Program, place: &str, what: &str) -> [u64; 2] {
    let said = run(program.command(&program.place(place)).arg(what));
    let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn dram_has_copies_of_what_hints_name_only() {
    let Some(hinted) = Program::translated(&source(), &[]) else { return };
    let unhinted = |text: String| {
        let (before, hints) = text.split_once("persistent(head, 0,").unwrap();
        let (_, after) = hints.split_once("\n  }\n").unwrap();
        format!("{before}persistent(head)\n  }}\n{after}").replace("static int is_busy", "static inline int is_busy")
    };
    let Some(plain) = Program::translated_with(&source(), &[], unhinted) else { return };
    let [others, _] = blocks(&hinted, "nothing", "nothing");
    // By kind: which blocks change, those that a hint names, and those that are there in any case.
    // Lists of objects are described by others, which are not placed: 16 blocks for 2000 items.
    for (what, changed, named, others) in [
        ("array", 64, 4..=4, others),
        ("grid", 64, 3..=3, others),
        ("graph", 1024, 16..=16, others),
        ("list", 251, 24..=28, others),
        ("structs", 9, 7..=7, 0),
    ] {
        let [dram, copied] = blocks(&hinted, what, what);
        let [all, none] = blocks(&plain, what, what);
        let kept = dram - others;
        assert!(named.contains(&kept), "{what}: {kept} of {all} blocks");
        assert!(all >= changed && none == 0, "{what}: {all} without hints, {none} copied");
        // Those that have no copy were written while the medium alone had them.
        assert!(copied > 0 && copied <= all - kept, "{what}: {copied} of {all}");
    }
}

#[test]
fn hints_that_the_runtime_cannot_follow_end_the_program() {
    for (from, to, message) in [
        (
            "numbers[1024 : 2 * 1024]",
            "numbers[1024 : NUMBERS]",
            "32768 elements of numbers from 1024 on, and it has 32768",
        ),
        (
            "degree(ranks, offsets, 10)",
            "degree(ranks, numbers, 10)",
            "numbers is to say where the edges of nodes begin",
        ),
        (
            "degree(ranks, offsets, 10)",
            "degree(offsets, offsets, 10)",
            "not the same number for each of the 1024 nodes",
        ),
        ("items[8 : 16]", "items[-1 : 16]", "elements of items from 18446744073709551615 on, and it has 64"),
    ] {
        let Some(program) = Program::translated_with(&source(), &[], |text| text.replace(from, to)) else { return };
        let output = program.command(&program.place("wrong")).arg("array").output().unwrap();
        let said = text(&output);
        assert!(output.status.code() == Some(10) && said.contains(message) && said.contains("hints.c:5"), "{said}");
    }
    has("gcc");
}
