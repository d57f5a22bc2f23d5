//! Tries recovery on the images that a crash could leave: one image of each class that a reader can
//! distinguish.

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

/// The classes of images seen so far, in any number of logs. Threads can share it.
#[derive(Default)]
pub struct Classes(Mutex<HashSet<u64>>);

impl Classes {
    /// Adds a class. Returns whether it is new.
    fn meet(&self, class: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(class)
    }

    /// The number of classes.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

/// Tries `recover` on every image of a log, with the marks before the crash. Stops at the first
/// failure; a panic is a failure too. Of equal images with the same marks, only one is tried.
pub fn check(
    log: &Log,
    options: &Options,
    mut recover: impl FnMut(&Image<'_>, &[String]) -> Result<(), String>,
) -> Report {
    // Equal images are removed before, so every image is a class of its own.
    let mut nth = 0;
    let every_one = |_: &Image<'_>| {
        nth += 1;
        Ok(nth)
    };
    check_classes(log, options, &Classes::default(), every_one, |image| recover(image, image.marks()))
}

/// Looks at every image of a log, and opens one of each class.
///
/// `look` checks what can be read of an image, and returns a number that is equal for images which
/// a reader cannot distinguish. `open` gets the images whose class is new, and does with them what
/// a program would do. It stops at the first failure of either; a panic is a failure too. Of equal
/// images with the same marks, only one is looked at.
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

/// The message of a panic.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", words.unwrap_or("without a word"))
}

/// The result of a check. It is displayed as the line
/// `crash images: N, observable: M, opened: K, lost: 0`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of different images, by their bytes and marks.
    pub images: u64,
    /// The number of new classes among them.
    pub observable: u64,
    /// The number of images that were opened and recovered correctly.
    pub opened: u64,
    /// The first image that could not be recovered, if any. None was tried after it.
    pub failure: Option<Failure>,
}

impl Report {
    /// Panics if an image could not be recovered, with its name and its story.
    #[track_caller]
    pub fn expect_none_lost(&self) {
        if let Some(failure) = &self.failure {
            panic!("{self}\n{failure}");
        }
    }

    /// Adds the numbers of another check.
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

/// An image that could not be recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its name, for [`Log::image`].
    pub id: ImageId,
    /// What was wrong.
    pub reason: String,
    /// The crash, described in words.
    pub story: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {}: {}\n{}", self.id, self.reason, self.story)
    }
}
