//! Names of files, sessions and regions.

use crate::error::{Error, Result};

/// The lock file of a rank.
pub const LOCK_NAME: &str = "lock";
/// The mark of a rank, which lists the runs that have used its directory.
pub const MARK_NAME: &str = "runs";
/// The longest name of a session, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 128;
/// The longest name of a region, in bytes: short enough for a file name.
pub const REGION_NAME_BYTES_MAX: usize = 240;
/// The longest name of an element type, in bytes.
pub const ELEMENT_NAME_BYTES_MAX: usize = 65_535;

const DRAFT: &str = ".draft";

/// The file name of a pack.
pub fn pack_name(number: u64) -> String {
    format!("pack-{number:020}")
}

/// The number of the pack with this file name.
pub fn parse_pack_name(name: &str) -> Option<u64> {
    digits(name.strip_prefix("pack-")?, 20..=20)
}

/// The file name of the manifest of a version.
pub fn version_name(version: u64) -> String {
    format!("version-{version:020}")
}

/// The version whose manifest has this file name.
pub fn parse_version_name(name: &str) -> Option<u64> {
    digits(name.strip_prefix("version-")?, 20..=20)
}

/// The name of the directory of a rank.
pub fn rank_name(rank: u32) -> String {
    format!("rank-{rank:05}")
}

/// The rank whose directory has this name.
pub fn parse_rank_name(name: &str) -> Option<u32> {
    let text = name.strip_prefix("rank-")?;
    // Numbers above 99,999 have more than five digits, and no leading zeros.
    let is_padded = text.len() > 5 && text.starts_with('0');
    digits(text, 5..=10).filter(|_| !is_padded)?.try_into().ok()
}

/// The name under which a file is written before it is renamed to `name`.
pub fn draft_name(name: &str) -> String {
    format!("{name}{DRAFT}")
}

/// The final name of a file with this draft name.
pub fn parse_draft_name(name: &str) -> Option<&str> {
    name.strip_suffix(DRAFT)
}

fn digits(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<u64> {
    let is_number = count.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Checks the name of a session: 1 to 128 ASCII letters, digits, `-`, `_` and `.`. It must not
/// start with a dot, and must not be `lock`.
pub fn check_session_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let problem = if name.is_empty() {
        "it is empty; give it at least one letter"
    } else if name.len() > SESSION_NAME_BYTES_MAX {
        "it has more than 128 characters; shorten it"
    } else if !name.bytes().all(is_allowed) {
        "only the letters a to z and A to Z, digits, `-`, `_` and `.` are allowed"
    } else if name.starts_with('.') {
        "it begins with a dot, as hidden files do; begin with a letter"
    } else if name == LOCK_NAME {
        "that is what lock files are called; choose another one"
    } else {
        return Ok(());
    };
    Err(Error::Name { what: "session", name: name.to_owned(), problem })
}

/// Checks the name of a region: at most 240 bytes, without `/` and control characters, and not `.`
/// or `..`. It may be empty.
pub fn check_region_name(name: &str) -> Result<()> {
    match region_name_problem(name) {
        None => Ok(()),
        Some(problem) => Err(Error::Name { what: "region", name: name.to_owned(), problem }),
    }
}

pub(crate) fn region_name_problem(name: &str) -> Option<&'static str> {
    if name.len() > REGION_NAME_BYTES_MAX {
        Some("it has more than 240 bytes; shorten it")
    } else if name.contains('/') {
        Some("it has a `/`, and files are named after regions; use another character")
    } else if name.chars().any(char::is_control) {
        Some("it has a control character; remove it")
    } else if name == "." || name == ".." {
        Some("that is a directory; choose another one")
    } else {
        None
    }
}

pub(crate) fn element_name_problem(name: &str) -> Option<&'static str> {
    if name.len() > ELEMENT_NAME_BYTES_MAX {
        Some("the name of an element type has more than 65,535 bytes")
    } else if name.chars().any(char::is_control) {
        Some("the name of an element type has a control character")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_can_be_read_back_and_sort_like_their_numbers() {
        for number in [0, 7, 99_999, 100_000, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(parse_pack_name(&pack_name(number)), Some(number));
            assert_eq!(parse_version_name(&version_name(number)), Some(number));
            assert_eq!(parse_draft_name(&draft_name(&version_name(number))), Some(&*version_name(number)));
            let rank = number as u32;
            assert_eq!(parse_rank_name(&rank_name(rank)), Some(rank));
        }
        assert_eq!(pack_name(7), "pack-00000000000000000007");
        assert_eq!(version_name(42), "version-00000000000000000042");
        assert_eq!(draft_name("version-1"), "version-1.draft");
        assert_eq!(rank_name(1), "rank-00001");
        assert!(version_name(9) < version_name(10));
    }

    #[test]
    fn other_names_mean_nothing() {
        let names = [
            "",
            "pack-",
            "pack-7",
            "pack-+0000000000000000007",
            "pack-99999999999999999999",
            "Pack-00000000000000000007",
        ];
        assert!(names.iter().all(|name| parse_pack_name(name).is_none()));
        assert_eq!(parse_pack_name(&draft_name(&pack_name(7))), None);
        assert_eq!(parse_version_name(&pack_name(7)), None);
        let names = ["rank-1", "rank-0001", "rank-000001", "rank-4294967296", "rank-00000000001", "rank-0000x"];
        assert!(names.iter().all(|name| parse_rank_name(name).is_none()));
    }

    #[test]
    fn sessions_have_plain_names() {
        for name in ["a", "heat", "Heat_2.5-b", "lock.2", "-", &"x".repeat(128)] {
            check_session_name(name).unwrap();
        }
        let wrong = ["", ".", "..", ".heat", "a/b", "a b", "ä", "lock", "a\0", &"x".repeat(129)];
        for name in wrong {
            let error = check_session_name(name).unwrap_err();
            assert!(matches!(error, Error::Name { what: "session", .. }));
        }
        let error = check_session_name("two words").unwrap_err().to_string();
        assert_eq!(
            error,
            "\"two words\" cannot be the name of a session: only the letters a to z and A to Z, digits, `-`, `_` and `.` are allowed"
        );
    }

    #[test]
    fn files_can_be_named_after_regions() {
        for name in ["", "field", "Feld ö (2)", ".x", &"x".repeat(240)] {
            check_region_name(name).unwrap();
        }
        for name in ["a/b", "..", ".", "a\nb", "a\0b", &"x".repeat(241), &"ö".repeat(121)] {
            assert!(check_region_name(name).is_err(), "{name:?}");
        }
    }
}
