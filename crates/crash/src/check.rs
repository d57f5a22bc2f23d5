//! Trying recovery on what a crash could leave: one image of each class that a reader can tell
//! apart.

use std::{
    collections::HashSet,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

use crate::{
    Log,
    images::{Image, Options},
    pick::ImageId,
};

/// The classes of images that were met so far, in any number of logs. Threads share it.
#[derive(Default)]
pub struct Classes(Mutex<HashSet<u64>>);

impl Classes {
    /// Takes note of a class; whether it is a new one.
    fn meet(&self, class: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(class)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

/// Tries `recover` on every image of a log, with the marks that lie before the crash, and stops at
/// the first that it finds fault with; a panic is a fault too. Of images that are equal, with the
/// same marks, one is tried.
pub fn check(
    log: &Log,
    options: &Options,
    mut recover: impl FnMut(&Image<'_>, &[String]) -> Result<(), String>,
) -> Report {
    // Equal ones are gone by then, so that every one is a class by itself.
    let mut nth = 0;
    let every_one = |_: &Image<'_>| {
        nth += 1;
        Ok(nth)
    };
    check_classes(log, options, &Classes::default(), every_one, |image| recover(image, image.marks()))
}

/// Looks at every image of a log, and opens one of each class.
///
/// `look` judges an image by what can be read of it, and returns a number that is the same for
/// images which a reader cannot tell apart. `open` gets those whose class was not met before, and
/// is to do with them what a program would. It ends at the first image that either finds fault
/// with; a panic is a fault too. Of images that are equal, with the same marks, one is looked at.
pub fn check_classes(
    log: &Log,
    options: &Options,
    classes: &Classes,
    mut look: impl FnMut(&Image<'_>) -> Result<u64, String>,
    mut open: impl FnMut(&Image<'_>) -> Result<(), String>,
) -> Report {
    let mut report = Report::default();
    let mut seen = HashSet::new();
    for image in log.images(options) {
        if !seen.insert((image.tree().digest(), image.marks().len())) {
            continue;
        }
        report.images += 1;
        let tried = catch_unwind(AssertUnwindSafe(|| {
            if classes.meet(look(&image)?) {
                report.observable += 1;
                open(&image)?;
                report.opened += 1;
            }
            Ok(())
        }));
        if let Err(reason) = tried.unwrap_or_else(|panic| Err(words_of(&*panic))) {
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

/// What became of a check. Its text is the line
/// `crash images: N, observable: M, opened: K, lost: 0`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Images that differ from all others of their log, in a byte or in what was said before.
    pub images: u64,
    /// Classes among them that had not been met before.
    pub observable: u64,
    /// Those of which one was opened, and found to be right.
    pub opened: u64,
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

    /// Counts what another check has found as well.
    pub fn add(&mut self, other: Self) {
        self.images += other.images;
        self.observable += other.observable;
        self.opened += other.opened;
        self.failure = self.failure.take().or(other.failure);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, observable, opened, failure } = self;
        let lost = u32::from(failure.is_some());
        write!(f, "crash images: {images}, observable: {observable}, opened: {opened}, lost: {lost}")
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
