//! Memory in a small control group: every backing stops at the limit, and nobody is killed.

use outcrop_memory::{Access, Error, Mapping, Pages};
use outcrop_testing::{Companion, Group, answer, child_directory, listen, skip};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// In a child process: touches each mapping until there is no more memory.
#[test]
fn child_touches_all_that_it_may() {
    let Some(directory) = child_directory() else { return };
    answer("ready");
    listen();
    for pages in [Some(Pages::Small), Some(Pages::Huge), None] {
        let mapping = pages.map_or_else(|| Mapping::memfd("test", 1 << 30), |pages| Mapping::anonymous(1 << 30, pages));
        let mapping = mapping.unwrap();
        let error = mapping.touch(0..1 << 30).unwrap_err();
        assert!(matches!(&error, Error::Exhausted { limit, .. } if limit.contains("the control group")), "{error}");
        let missing = mapping.missing_bytes(&(0..1 << 30));
        assert!(missing > 896 * MIB && missing < 1024 * MIB, "{mapping:?}: {missing}");
        assert!(matches!(mapping.pin(), Err(Error::Exhausted { .. })), "pinning would touch the rest");
        assert!(matches!(mapping.may_take(128 * MIB), Err(Error::Exhausted { .. })), "{mapping:?}");
    }
    // The page cache can be reclaimed: touching a file takes no memory permanently.
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(directory.join("file")).unwrap();
    let mapping = Mapping::file(&file, Access::ReadWrite, 192 * MIB).unwrap();
    mapping.grow(192 * MIB).unwrap();
    mapping.touch(0..192 * MIB).unwrap();
    answer("alive");
}

#[test]
fn a_small_control_group_is_respected_and_kills_nobody() {
    let group = match Group::new(128 * MIB) {
        Ok(group) => group,
        Err(reason) => return skip(format_args!("no control group can be made here: {reason}")),
    };
    let given = tempdir().unwrap();
    let mut companion = Companion::start("limits::child_touches_all_that_it_may", given.path());
    companion.expect("ready");
    group.add(companion.id());
    assert_eq!(companion.ask("go on"), "alive");
    companion.end();
}
