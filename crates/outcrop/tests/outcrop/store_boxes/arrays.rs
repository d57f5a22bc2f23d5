//! Plain arrays, and how they are cut into boxes.

use fastrand::Rng;
use outcrop::MemoryOrder;

/// A global array.
#[derive(Debug, Clone)]
pub(super) struct Whole {
    pub(super) dimensions: Vec<usize>,
    pub(super) order: MemoryOrder,
    /// In row-major order, whatever the order of the parts.
    pub(super) values: Vec<u64>,
}

/// A box of it.
#[derive(Debug, Clone)]
pub(super) struct Tile {
    pub(super) offset: Vec<usize>,
    pub(super) dimensions: Vec<usize>,
}

impl Tile {
    pub(super) fn count(&self) -> usize {
        self.dimensions.iter().product()
    }
}

impl Whole {
    pub(super) fn new(dimensions: &[usize], order: MemoryOrder, random: &mut Rng) -> Self {
        let count = dimensions.iter().product::<usize>() as u64;
        let start = random.u64(..1000);
        Self { dimensions: dimensions.to_vec(), order, values: (0..count).map(|value| value * 3 + start).collect() }
    }

    /// Changes some elements.
    pub(super) fn change(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..self.values.len());
            self.values[at] = random.u64(..1 << 40);
        }
    }

    /// The elements of a box, in its memory order.
    pub(super) fn cut(&self, tile: &Tile) -> Vec<u64> {
        self.places(tile).into_iter().map(|place| self.values[place]).collect()
    }

    /// Where the elements of a box are in `values`, in its memory order.
    pub(super) fn places(&self, tile: &Tile) -> Vec<usize> {
        let slowest_first: Vec<usize> = match self.order {
            MemoryOrder::RowMajor => (0..self.dimensions.len()).collect(),
            MemoryOrder::ColumnMajor => (0..self.dimensions.len()).rev().collect(),
        };
        (0..tile.count())
            .map(|nth| {
                let (mut rest, mut index) = (nth, vec![0; self.dimensions.len()]);
                for &dimension in slowest_first.iter().rev() {
                    index[dimension] = tile.offset[dimension] + rest % tile.dimensions[dimension];
                    rest /= tile.dimensions[dimension];
                }
                index.iter().zip(&self.dimensions).fold(0, |at, (index, all)| at * all + index)
            })
            .collect()
    }
}

/// Cuts an array into boxes of unequal size. Some may be empty.
pub(super) fn tiling(random: &mut Rng, dimensions: &[usize], count: usize) -> Vec<Tile> {
    let mut tiles = vec![Tile { offset: vec![0; dimensions.len()], dimensions: dimensions.to_vec() }];
    while tiles.len() < count {
        let (nth, dimension) = (random.usize(..tiles.len()), random.usize(..dimensions.len()));
        let cut = random.usize(..=tiles[nth].dimensions[dimension]);
        let mut second = tiles[nth].clone();
        second.offset[dimension] += cut;
        second.dimensions[dimension] -= cut;
        tiles[nth].dimensions[dimension] = cut;
        tiles.push(second);
    }
    random.shuffle(&mut tiles);
    tiles
}
