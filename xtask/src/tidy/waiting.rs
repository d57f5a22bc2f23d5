//! Which files may let a thread sleep for a time, instead of until it is woken.

/// Where threads poll with a pause, and why. ARCHITECTURE.md names the same reasons.
const MAY_SLEEP: &[(&str, &str)] = &[
    ("crates/intercept/src/run.rs", "nobody says when the last process leaves a directory"),
    ("crates/intercept/src/seccomp/nudge.rs", "a program that is traced must not be waited for without end"),
    ("crates/intercept/src/stage/bound.rs", "nobody says when the machine runs short of memory"),
    ("crates/io/src/ring.rs", "the kernel has no memory for a ring"),
    ("crates/layers/src/throttled.rs", "it is there to be slow"),
    ("crates/local/src/alive.rs", "another process has a lock for a moment"),
    ("crates/pool/src/nvm.rs", "it is there to be slow"),
    ("crates/ranks/src/directory.rs", "ranks read each other's files"),
    ("crates/ranks/src/rendezvous.rs", "ranks read each other's files"),
    ("crates/store/src/parity/peers.rs", "another node does not answer yet"),
];

/// Crates that measure, or stand in for something in tests.
const OTHERS: &[&str] = &["crates/bench/", "crates/crash/", "crates/cuda-stand-in/", "crates/testing/"];

/// A thread of a library that sleeps in a loop, in a file that is not listed.
pub(super) fn wrong_sleep(name: &str, text: &str) -> Option<String> {
    let is_library = (name.starts_with("crates/") || name.starts_with("bindings/")) && name.contains("/src/");
    let is_listed =
        MAY_SLEEP.iter().any(|(file, _)| *file == name) || OTHERS.iter().any(|other| name.starts_with(other));
    if !is_library || is_listed {
        return None;
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let nth = code.lines().position(|line| line.contains("thread::sleep(") && !line.trim_start().starts_with("//"))?;
    Some(format!("{name}:{}: a thread sleeps for a time; wait until it is woken, or list the reason", nth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_is_found_except_in_tests_and_where_it_is_listed() {
        let text = "//! One.\nfn f() {\n    thread::sleep(PAUSE);\n}\n";
        assert!(wrong_sleep("crates/engine/src/a.rs", text).unwrap().starts_with("crates/engine/src/a.rs:3"));
        for name in ["crates/io/src/ring.rs", "crates/engine/tests/a.rs", "crates/bench/src/a.rs", "xtask/src/a.rs"] {
            assert_eq!(wrong_sleep(name, text), None, "{name}");
        }
        let in_test = "//! One.\n#[cfg(test)]\nmod tests {\n    thread::sleep(PAUSE);\n}\n";
        assert_eq!(wrong_sleep("crates/engine/src/a.rs", in_test), None);
    }
}
