//! The numbers of versions.
//!
//! A program may save a version again, or go back to lower ones. A session of Outcrop has ascending
//! numbers. So the upper half of its number counts how often the program has gone back, and the
//! lower half is the program's version: what was saved last has the highest number.

/// What a version of the program is called when `newest` is the newest that there is.
pub(crate) fn next(newest: Option<u64>, version: u32) -> u64 {
    let Some(newest) = newest else { return u64::from(version) };
    let round = newest >> 32;
    let same_round = round << 32 | u64::from(version);
    if same_round > newest { same_round } else { (round + 1) << 32 | u64::from(version) }
}

/// The program's version.
pub(crate) fn version(number: u64) -> u32 {
    (number & u64::from(u32::MAX)) as u32
}

/// A sentence of Outcrop with the program's versions in place of its own numbers. Names of files
/// stay as they are.
pub(crate) fn in_sentence(sentence: &str) -> String {
    const BEFORE: &str = "version ";
    let mut pieces = sentence.split(BEFORE);
    let mut told = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (digits, rest) = piece.split_at(piece.find(|it: char| !it.is_ascii_digit()).unwrap_or(piece.len()));
        told.push_str(BEFORE);
        match digits.parse() {
            Ok(number) => told.push_str(&version(number).to_string()),
            Err(_) => told.push_str(digits),
        }
        told.push_str(rest);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_the_versions_of_the_program() {
        let told = in_sentence("no version of x: version 4294967300: bad; version 7 in version-00000004294967300");
        assert_eq!(told, "no version of x: version 4: bad; version 7 in version-00000004294967300");
        let other = "a version 99999999999999999999 is no number; 5000000000 bytes; version ";
        assert_eq!(in_sentence(other), other);
    }

    #[test]
    fn what_is_saved_last_has_the_highest_number() {
        let mut newest = None;
        for expected in [3, 7, 7, 2, 0, 9, u32::MAX, 1] {
            let number = next(newest, expected);
            assert!(newest.is_none_or(|newest| newest < number), "{newest:?} {number}");
            assert_eq!(version(number), expected);
            newest = Some(number);
        }
        assert_eq!(next(None, 5), 5);
        assert_eq!(next(Some(5), 6), 6, "a program that only goes up sees its own numbers");
    }
}
