//! Enumerates the images that a crash could leave.

use fastrand::Rng;

use crate::{
    Log, Tree,
    pick::{ImageId, Pick},
    replay::Replay,
};

/// How thorough the search is.
///
/// The window of a position in the log contains the operations that are not durable there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// If the window has at most this many operations (20 at most), every subset of it is an image.
    /// For longer windows there are these images: no operation, all, each one alone, and all but
    /// each one.
    pub subset_operations_max: usize,
    /// The number of additional random images at each position whose window is not covered
    /// completely: any subset, and torn writes.
    pub samples: u32,
    /// The seed of the random images.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { subset_operations_max: 10, samples: 64, seed: 0 }
    }
}

/// An image: what a crash could leave.
pub struct Image<'log> {
    id: ImageId,
    tree: Tree,
    marks: &'log [String],
}

impl<'log> Image<'log> {
    pub(crate) fn new(replay: &Replay<'log>, id: ImageId) -> Self {
        Self { id, tree: replay.tree(id.pick), marks: replay.marks() }
    }

    /// Its name, by which it can be built again.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// The files.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The marks of the program before the crash.
    pub fn marks(&self) -> &'log [String] {
        self.marks
    }
}

/// The images of a log, built one at a time.
pub struct Images<'log> {
    replay: Replay<'log>,
    options: Options,
    /// The remaining picks at this position.
    picks: Box<dyn Iterator<Item = Pick>>,
}

impl<'log> Images<'log> {
    pub(crate) fn new(log: &'log Log, options: &Options) -> Self {
        let (replay, options) = (Replay::new(log), *options);
        Self { picks: picks(&replay, options), replay, options }
    }
}

impl<'log> Iterator for Images<'log> {
    type Item = Image<'log>;

    fn next(&mut self) -> Option<Image<'log>> {
        loop {
            if let Some(pick) = self.picks.next() {
                let id = ImageId { position: self.replay.position(), pick, log: self.replay.log().digest() };
                return Some(Image::new(&self.replay, id));
            }
            if !self.replay.advance() {
                return None;
            }
            self.picks = picks(&self.replay, self.options);
        }
    }
}

/// The picks to try at a position.
fn picks(replay: &Replay<'_>, options: Options) -> Box<dyn Iterator<Item = Pick>> {
    let operations = replay.undecided();
    if operations == 0 {
        return Box::new(std::iter::once(Pick::None));
    }
    let is_short = operations <= options.subset_operations_max.min(Pick::SUBSET_MAX);
    let samples = if is_short && !replay.can_be_torn() { 0 } else { options.samples };
    let mut random = Rng::with_seed(options.seed ^ (replay.position() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let chances = (0..samples).map(move |_| Pick::Chance(random.u64(..)));
    if is_short {
        // Images without the newest operation are those of the position before.
        let first = if replay.has_new_operation() { 1 << (operations - 1) } else { 0 };
        return Box::new((first..1 << operations).map(Pick::Subset).chain(chances));
    }
    let each = (0..operations).flat_map(|index| [Pick::Only(index), Pick::Except(index)]);
    Box::new([Pick::None, Pick::All].into_iter().chain(each).chain(chances))
}
