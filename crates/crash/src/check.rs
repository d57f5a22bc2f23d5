//! Trying recovery on every image of a log.

use std::{
    collections::HashSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    Log,
    images::{Image, Options},
    pick::ImageId,
};

/// Tries `recover` on every image of a log, with the marks that lie before the crash, and stops at
/// the first that it finds fault with; a panic is a fault too. Of images that are equal, with the
/// same marks, one is tried.
pub fn check(
    log: &Log,
    options: &Options,
    mut recover: impl FnMut(&Image<'_>, &[String]) -> Result<(), String>,
) -> Report {
    let mut report = Report { images: 0, distinct: 0, failure: None };
    let mut seen = HashSet::new();
    for image in log.images(options) {
        report.images += 1;
        if !seen.insert((image.tree().digest(), image.marks().len())) {
            continue;
        }
        report.distinct += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| recover(&image, image.marks())));
        if let Err(reason) = outcome.unwrap_or_else(|panic| Err(words_of(&*panic))) {
            let story = log.story(image.id()).unwrap_or_else(|error| error.to_string());
            report.failure = Some(Failure { id: image.id(), reason, story });
            break;
        }
    }
    report
}

/// What a panic said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", words.unwrap_or("without a word"))
}

/// What became of a check. Its text is the line `crash images: N, lost: 0`, where N counts those
/// that were tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Images that were built.
    pub images: u64,
    /// Those among them that differ from all others, or have other marks: these were tried.
    pub distinct: u64,
    /// The first that was not recovered from, if there was one: none was tried after it.
    pub failure: Option<Failure>,
}

impl Report {
    /// Panics, with the name of the image and its story, if one was not recovered from.
    #[track_caller]
    pub fn expect_none_lost(&self) {
        if let Some(failure) = &self.failure {
            panic!("{self}\n{failure}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash images: {}, lost: {}", self.distinct, u32::from(self.failure.is_some()))
    }
}

/// An image that was not recovered from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its name, for [`Log::image`].
    pub id: ImageId,
    /// What was wrong.
    pub reason: String,
    /// The crash in words.
    pub story: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {}: {}\n{}", self.id, self.reason, self.story)
    }
}
