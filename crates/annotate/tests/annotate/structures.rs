//! Structs with everything that members can be, through the translator and the runtime.

use std::{fs, path::Path};

use crate::compiled::{Program, has, root, run, text};

fn source() -> std::path::PathBuf {
    root().join("crates/annotate/tests/programs/structures.c")
}

fn comes_back(program: &Program, place: &Path, is_checked: bool) {
    for step in ["make", "check", "change", "check"] {
        let mut command = if is_checked { program.checked(place) } else { program.command(place) };
        let said = run(command.arg(step));
        assert!(said.contains("structures came back"), "{step}: {said}");
    }
}

#[test]
fn every_kind_of_member_comes_back() {
    let Some(program) = Program::translated(&source(), &[]) else { return };
    comes_back(&program, &program.place("plain"), false);
    if has("valgrind") {
        comes_back(&program, &program.place("checked"), true);
    }
}

#[test]
fn sanitizers_find_nothing() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"];
    let Some(program) = Program::translated(&source(), &flags) else { return };
    comes_back(&program, &program.place("plain"), false);
}

#[test]
fn addresses_that_cannot_be_kept_end_the_program_and_leave_the_version() {
    let Some(program) = Program::translated(&source(), &[]) else { return };
    let place = program.place("wrong");
    run(program.command(&place).arg("make"));
    let cases = [
        ("foreign", "Node.parent leads to 0x", "where nothing is kept"),
        ("overlap", "struct Node.values leads to 5 x numbers", "kept as memory of their own"),
        ("negative", "the length of struct Node.neighbours is negative", ""),
    ];
    for (case, one, other) in cases {
        let output = program.command(&place).arg(case).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(10), "{said}");
        assert!(said.contains("structures.c:") && said.contains(one) && said.contains(other), "{said}");
    }
    run(program.command(&place).arg("check"));
}

#[test]
fn a_struct_that_has_changed_is_not_restored() {
    let Some(program) = Program::translated(&source(), &[]) else { return };
    let place = program.place("plain");
    run(program.command(&place).arg("make"));
    let longer = |text: String| text.replace("char letter; // and padding", "char letter; int more;");
    let Some(changed) = Program::translated_with(&source(), &[], longer) else { return };
    let output = changed.command(&place).arg("check").output().unwrap();
    let said = text(&output);
    assert!(output.status.code() == Some(10) && said.contains("its structs have changed since"), "{said}");
}

#[test]
fn a_damaged_version_is_passed_over_for_the_one_before() {
    let Some(program) = Program::translated(&source(), &[]) else { return };
    let place = program.place("damaged");
    run(program.command(&place).arg("make"));
    run(program.command(&place).arg("change"));
    let pool = place.join("structures.pool");
    let mut bytes = fs::read(&pool).unwrap();
    let at = bytes.windows(13).rposition(|text| text == b"a longer name").unwrap();
    bytes[at] = b'A';
    fs::write(&pool, &bytes).unwrap();
    let output = program.command(&place).arg("check").output().unwrap();
    let said = text(&output);
    assert!(said.contains("is passed over") && said.contains("damaged"), "{said}");
}

#[test]
fn unions_with_a_tag_come_back() {
    let source = root().join("crates/annotate/tests/programs/unions.c");
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"];
    for (flags, is_checked) in [(&[][..], false), (&[][..], true), (&sanitized[..], false)] {
        let Some(program) = Program::translated(&source, flags) else { return };
        if is_checked && !has("valgrind") {
            continue;
        }
        let place = program.place("unions");
        for step in ["make", "check", "change", "check"] {
            let mut command = if is_checked { program.checked(&place) } else { program.command(&place) };
            let said = run(command.arg(step));
            assert!(said.contains("unions came back"), "{step}: {said}");
        }
    }
}
