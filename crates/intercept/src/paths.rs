//! Which files are cached: those below some directories, with patterns that include or exclude.

use std::{
    fmt, fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use outcrop_error::{Error, ErrorKind, Result};

/// Which files are cached.
#[derive(Debug, Clone)]
pub struct Paths {
    under: Vec<PathBuf>,
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl Paths {
    /// Files below one of the directories `under` that match a pattern to include, if there is any,
    /// and none to exclude. A directory inside another one of the list is left out.
    pub fn new(under: &[PathBuf], include: Vec<Pattern>, exclude: Vec<Pattern>) -> Result<Self> {
        let mut found = Vec::new();
        for given in under {
            found.push(existing_directory(given)?);
        }
        if found.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "no directory is named; name one with --under DIRECTORY"));
        }
        found.sort();
        // A directory sorts directly before everything that is inside it.
        found.dedup_by(|inner, outer| inner.starts_with(&*outer));
        Ok(Self { under: found, include, exclude })
    }

    /// The directories, absolute, without symbolic links, none inside another one.
    pub fn under(&self) -> &[PathBuf] {
        &self.under
    }

    /// Whether the file at this absolute path is cached.
    pub fn has(&self, path: &Path) -> bool {
        self.under.iter().any(|under| path.strip_prefix(under).is_ok_and(|relative| self.selects(relative)))
    }

    /// Whether the patterns select this path, which is relative to one of the directories.
    pub fn selects(&self, relative: &Path) -> bool {
        let is_included = self.include.is_empty() || self.include.iter().any(|pattern| pattern.matches(relative));
        is_included && !self.exclude.iter().any(|pattern| pattern.matches(relative))
    }
}

fn existing_directory(given: &Path) -> Result<PathBuf> {
    let caused = |error| Error::caused(ErrorKind::Usage, format_args!("cannot use {}", given.display()), error);
    let path = given.canonicalize().map_err(caused)?;
    if !fs::metadata(&path).map_err(caused)?.is_dir() {
        let message = format!("{} is not a directory; name the directory that it is in", given.display());
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(path)
}

/// A pattern of paths: `*` stands for any part of a name, `?` for one byte of it, `**` for any
/// number of directories. A pattern without a slash matches the name of a file in any directory, or
/// of a directory with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Vec<u8>>,
    text: String,
}

impl Pattern {
    /// Whether it matches this relative path.
    pub fn matches(&self, path: &Path) -> bool {
        let names: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
        match &self.parts[..] {
            [name] if name != b"**" => names.iter().any(|given| matches_name(name, given)),
            parts => matches_parts(parts, &names),
        }
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<_> = text.split('/').map(|part| part.as_bytes().to_vec()).collect();
        let is_path = |part: &Vec<u8>| !part.is_empty() && part != b"." && part != b"..";
        if !parts.iter().all(is_path) {
            let message = format!(
                "the pattern {text:?} does not fit any file; it is relative to the directory of --under, \
                 as in '*.h5' or 'output/**'"
            );
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(Self { parts, text: text.to_owned() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether the parts of a pattern match these names. What is below a directory that matches does
/// too.
fn matches_parts(parts: &[Vec<u8>], names: &[&[u8]]) -> bool {
    match (parts, names) {
        ([], _) => true,
        ([first, rest @ ..], _) if first == b"**" => {
            // At least one name has to be there for a `**` at the end.
            let skipped = if rest.is_empty() { 1 } else { 0 };
            (skipped..=names.len()).any(|skipped| matches_parts(rest, &names[skipped..]))
        }
        ([first, rest @ ..], [name, names @ ..]) => matches_name(first, name) && matches_parts(rest, names),
        (_, []) => false,
    }
}

/// Whether a pattern of `*`, `?` and bytes matches a whole name. Takes at most the product of their
/// lengths, whatever the pattern.
fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The last star, and how much of the name it stands for.
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((star_at, until)) = star else { return false };
                star = Some((star_at, until + 1));
                at = star_at + 1;
                from = until + 1;
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(Path::new(path))
    }

    #[test]
    fn a_pattern_matches_names_directories_and_what_is_below_them() {
        for (pattern, path, expected) in [
            ("*.h5", "a.h5", true),
            ("*.h5", "deep/inside/a.h5", true),
            ("*.h5", "a.h5.tmp", false),
            ("*.h5", "a.nc", false),
            ("tmp", "tmp/a", true),
            ("tmp", "a/tmp/b/c", true),
            ("tmp", "tmpfile", false),
            ("out/*.nc", "out/a.nc", true),
            ("out/*.nc", "out/deep/a.nc", false),
            ("out/*.nc", "other/out/a.nc", false),
            ("out/**", "out/a/b/c", true),
            ("out/**", "out", false),
            ("**/a", "a", true),
            ("**/a", "b/c/a", true),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/x/y/c", false),
            ("**", "anything/at/all", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*", "x", true),
            ("a*", "a", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_that_fits_no_file_is_refused() {
        for text in ["", "/absolute", "a//b", "../a", "a/", "./a"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("does not fit any file"), "{text}: {error}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_is_quick_to_refuse_a_name() {
        let name = "a".repeat(200);
        assert!(!matches(&"*a".repeat(60), &format!("{name}b")));
    }

    #[test]
    fn patterns_select_below_the_directories() {
        let given = tempfile::tempdir().unwrap();
        let root = given.path().canonicalize().unwrap();
        for name in ["a", "a/inner", "a-b"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let under = [root.join("a/inner"), root.join("a-b"), root.join("a"), root.join("a/../a")];
        let paths = Paths::new(&under, vec![], vec!["*.log".parse().unwrap()]).unwrap();
        assert_eq!(paths.under(), [root.join("a"), root.join("a-b")]);
        assert!(paths.has(&root.join("a/inner/x")));
        assert!(!paths.has(&root.join("a/inner/x.log")));
        assert!(!paths.has(&root.join("ab")));

        let only = Paths::new(&under, vec!["*.h5".parse().unwrap()], vec!["old".parse().unwrap()]).unwrap();
        assert!(only.has(&root.join("a/x.h5")));
        assert!(!only.has(&root.join("a/x")));
        assert!(!only.has(&root.join("a/old/x.h5")));
    }

    #[test]
    fn a_directory_that_is_none_is_refused() {
        let given = tempfile::tempdir().unwrap();
        let file = given.path().join("file");
        fs::write(&file, "x").unwrap();
        for (under, reason) in [
            (vec![], "name one with --under"),
            (vec![file], "is not a directory"),
            (vec![given.path().join("missing")], "No such file"),
        ] {
            let error = Paths::new(&under, vec![], vec![]).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
    }
}
