//! Boxes of global arrays: which saved boxes make up another one, and which bytes go where.

use std::{fmt, ops::Range};

use crate::{MemoryOrder, Shape, ShapeError};

/// The length of a list, as the first dimension of its global array (the last one in column-major
/// order). Each rank saves a box of a list without knowing how long the list is: it has the parts
/// of all ranks, in the order of the ranks.
pub const LIST: usize = (1 << 48) - 1;

/// A box of a global array. Its dimensions are in the order of memory, the slowest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placed {
    /// The dimensions of the global array.
    pub global: Vec<usize>,
    /// The index of the first element of the box.
    pub offset: Vec<usize>,
    /// The dimensions of the box.
    pub dimensions: Vec<usize>,
}

impl Placed {
    fn new(shape: &Shape, is_reversed: bool) -> Self {
        let in_order = |numbers: &[usize]| -> Vec<usize> {
            match is_reversed {
                true => numbers.iter().rev().copied().collect(),
                false => numbers.to_vec(),
            }
        };
        let dimensions = in_order(shape.dimensions());
        match shape.global() {
            Some(global) => Self { global: in_order(global.shape()), offset: in_order(global.offset()), dimensions },
            None => Self { global: dimensions.clone(), offset: vec![0; dimensions.len()], dimensions },
        }
    }

    fn whole(global: Vec<usize>) -> Self {
        Self { offset: vec![0; global.len()], dimensions: global.clone(), global }
    }

    fn range(&self, dimension: usize) -> Range<usize> {
        self.offset[dimension]..self.offset[dimension] + self.dimensions[dimension]
    }

    /// How many elements it has.
    fn count(&self) -> u128 {
        self.dimensions.iter().map(|dimension| *dimension as u128).product()
    }

    /// What two boxes of one array have in common, if it is anything.
    fn intersection(&self, other: &Self) -> Option<Self> {
        let mut common = self.clone();
        for dimension in 0..self.dimensions.len() {
            let (mine, theirs) = (self.range(dimension), other.range(dimension));
            let (start, end) = (mine.start.max(theirs.start), mine.end.min(theirs.end));
            common.offset[dimension] = start;
            common.dimensions[dimension] = end.checked_sub(start).filter(|length| *length > 0)?;
        }
        Some(common)
    }

    /// What is left of a box without another one, as boxes.
    fn without(&self, other: &Self) -> Vec<Self> {
        let Some(common) = self.intersection(other) else { return vec![self.clone()] };
        let (mut rest, mut left) = (self.clone(), Vec::new());
        for dimension in 0..self.dimensions.len() {
            let (all, cut) = (rest.range(dimension), common.range(dimension));
            for part in [all.start..cut.start, cut.end..all.end] {
                if !part.is_empty() {
                    let mut piece = rest.clone();
                    (piece.offset[dimension], piece.dimensions[dimension]) = (part.start, part.len());
                    left.push(piece);
                }
            }
            (rest.offset[dimension], rest.dimensions[dimension]) = (cut.start, cut.len());
        }
        left
    }

    /// The saved boxes that this one consists of, as [`touching`](Self::touching) returns them.
    /// Also fails if an element of this box is in none.
    pub fn cover(&self, saved: &[Self]) -> Result<Vec<Vec<usize>>, Uncovered> {
        let groups = self.touching(saved)?;
        let common = groups.iter().filter_map(|group| self.intersection(&saved[group[0]]));
        if common.map(|common| common.count()).sum::<u128>() == self.count() {
            return Ok(groups);
        }
        let mut left = vec![self.clone()];
        for group in &groups {
            left = left.iter().flat_map(|it| it.without(&saved[group[0]])).collect();
        }
        left.sort_unstable_by(|a, b| a.offset.cmp(&b.offset));
        Err(Uncovered::Hole { at: left.first().map_or_else(|| self.offset.clone(), |it| it.offset.clone()) })
    }

    /// The saved boxes that have elements of this one. Boxes that are the same are together, as
    /// numbers in `saved`. Fails if two boxes overlap otherwise.
    pub fn touching(&self, saved: &[Self]) -> Result<Vec<Vec<usize>>, Uncovered> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut touching: Vec<usize> =
            (0..saved.len()).filter(|nth| self.intersection(&saved[*nth]).is_some()).collect();
        touching.sort_by_key(|nth| (&saved[*nth], *nth));
        for nth in touching {
            match groups.last_mut().filter(|group| saved[group[0]] == saved[nth]) {
                Some(group) => group.push(nth),
                None => groups.push(vec![nth]),
            }
        }
        for (nth, group) in groups.iter().enumerate() {
            let mine = &saved[group[0]];
            // They are in the order of their offsets, so those that begin behind this one overlap
            // it no more.
            let others = groups[nth + 1..].iter();
            let near =
                |other: &&Vec<usize>| mine.dimensions.is_empty() || saved[other[0]].offset[0] < mine.range(0).end;
            for other in others.take_while(near) {
                let common = mine.intersection(&saved[other[0]]).and_then(|it| it.intersection(self));
                if let Some(common) = common {
                    return Err(Uncovered::Overlap { saved: [group[0], other[0]], at: common.offset });
                }
            }
        }
        Ok(groups)
    }
}

/// Why saved boxes do not make up another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uncovered {
    /// Two different boxes have elements in common.
    Overlap {
        /// Their numbers.
        saved: [usize; 2],
        /// The first of these elements, in the order of memory.
        at: Vec<usize>,
    },
    /// No box has an element.
    Hole {
        /// The element, in the order of memory.
        at: Vec<usize>,
    },
}

/// Where the saved parts of a region and the part that is asked for lie in one global array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The saved parts, in the order of the ranks.
    pub saved: Vec<Placed>,
    /// What is asked for.
    pub asked: Placed,
    /// Whether an index has its numbers in reverse in the program's order.
    pub is_reversed: bool,
}

impl Placement {
    /// The index of an element as the program writes it.
    pub fn index(&self, at: &[usize]) -> Index {
        Index(if self.is_reversed { at.iter().rev().copied().collect() } else { at.to_vec() })
    }
}

/// An index of a global array, for messages.
#[derive(Debug)]
pub struct Index(Vec<usize>);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "({})", numbers.join(", "))
    }
}

/// Finds out where the parts of a region lie that ranks have saved, and the one that is asked for.
///
/// A part without a box is a whole array. The memory order of a part is not always known: a single
/// column looks like a row. Then it is that of the others.
pub fn place(saved: &[&Shape], asked: &Shape) -> Result<Placement, ShapeError> {
    let orders =
        |is_wanted: MemoryOrder| saved.iter().any(|shape| !shape.has_one_order() && shape.order() == is_wanted);
    let (has_rows, has_columns) = (orders(MemoryOrder::RowMajor), orders(MemoryOrder::ColumnMajor));
    if has_rows && has_columns {
        return Err(ShapeError(
            "was saved in row-major order by some ranks, and in column-major order by others".into(),
        ));
    }
    let saved_may = |is_reversed: bool| if is_reversed { !has_rows } else { !has_columns };
    let asked_may =
        |is_reversed: bool| asked.has_one_order() || is_reversed == (asked.order() == MemoryOrder::ColumnMajor);
    let mut problem = None;
    // The same indices first, then those in reverse.
    for is_other in [false, true] {
        for is_reversed in [false, true] {
            if !saved_may(is_reversed) || !asked_may(is_reversed ^ is_other) {
                continue;
            }
            let parts = saved.iter().map(|shape| Placed::new(shape, is_reversed)).collect();
            let of_asked = Placed::new(asked, is_reversed ^ is_other);
            match fit(saved, parts, asked, of_asked) {
                Ok((saved, asked)) => return Ok(Placement { saved, asked, is_reversed: is_reversed ^ is_other }),
                Err(error) => drop(problem.get_or_insert(error)),
            }
        }
    }
    Err(problem.unwrap_or_else(|| ShapeError(format!("does not fit {asked}: it has another memory order"))))
}

/// The array that parts make up, or the whole list. `None` if they have no boxes.
pub fn whole(parts: &[&Shape]) -> Option<Shape> {
    let mut dimensions = parts.first()?.global()?.shape().to_vec();
    if let Some(at) = dimensions.iter().position(|length| *length == LIST) {
        let lengths = parts.iter().map(|part| part.dimensions().get(at).copied().unwrap_or(0));
        dimensions[at] = lengths.fold(0, usize::saturating_add);
    }
    let is_column = parts.iter().any(|part| part.order() == MemoryOrder::ColumnMajor);
    Shape::new(&dimensions, if is_column { MemoryOrder::ColumnMajor } else { MemoryOrder::RowMajor }).ok()
}

/// Puts all parts into one global array.
fn fit(
    shapes: &[&Shape],
    mut saved: Vec<Placed>,
    asked_shape: &Shape,
    mut asked: Placed,
) -> Result<(Vec<Placed>, Placed), ShapeError> {
    let first = saved.first().cloned().ok_or_else(|| ShapeError("was saved by no rank".to_owned()))?;
    let is_list = shapes.iter().any(|shape| shape.is_list());
    if let Some(nth) = saved.iter().position(|it| it.global != first.global) {
        let (one, other) = (shapes[0], shapes[nth]);
        return Err(ShapeError(format!(
            "is {one} on one rank and {other} on another: give it a box, or make it a list, so that it can be put together"
        )));
    }
    let mut global = first.global;
    if is_list {
        if global.first() != Some(&LIST) {
            return Err(ShapeError("is a list in another dimension".to_owned()));
        }
        let mut total = 0usize;
        for part in &mut saved {
            // Where a part began when it was saved means nothing.
            part.offset[0] = total;
            total = total.saturating_add(part.dimensions[0]);
        }
        global[0] = total;
        saved.iter_mut().for_each(|part| part.global.clone_from(&global));
        if asked.global.first() == Some(&LIST) {
            asked.global[0] = total;
        }
    }
    let is_flat = asked_shape.dimensions().len() == 1 && asked_shape.global().is_none();
    let elements = |global: &[usize]| global.iter().map(|it| *it as u128).product::<u128>();
    if is_flat && asked.count() == elements(&global) {
        asked = Placed::whole(global.clone());
    }
    let whole = if is_list { "list" } else { "array" };
    if asked.global != global {
        let sizes: Vec<_> = global.iter().map(ToString::to_string).collect();
        let sizes = sizes.join(" x ");
        return Err(ShapeError(format!("is an {whole} of {sizes} and not {asked_shape}").replace("an list", "a list")));
    }
    if (0..global.len()).any(|dimension| asked.range(dimension).end > global[dimension]) {
        let count = global[0];
        return Err(ShapeError(format!("is a list of {count} elements in all, and {asked_shape} is not inside it")));
    }
    Ok((saved, asked))
}

/// Which bytes of a saved part go where in another one: runs of one length, at regular distances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    from: u64,
    to: u64,
    run_bytes: u64,
    /// The dimensions around a run, the slowest first: how often, and the distance in both parts.
    outer: Vec<(u64, u64, u64)>,
}

impl Moves {
    /// What two parts of an array with elements of this size have in common, if it is anything.
    pub fn new(saved: &Placed, into: &Placed, element_bytes: usize) -> Option<Self> {
        let common = saved.intersection(into)?;
        let (mut from, mut to) = (0u64, 0u64);
        let (mut from_step, mut to_step) = (element_bytes as u64, element_bytes as u64);
        let (mut run_bytes, mut outer) = (element_bytes as u64, Vec::new());
        for dimension in (0..common.dimensions.len()).rev() {
            let start = common.offset[dimension];
            from += (start - saved.offset[dimension]) as u64 * from_step;
            to += (start - into.offset[dimension]) as u64 * to_step;
            let count = common.dimensions[dimension] as u64;
            match outer.is_empty() && from_step == run_bytes && to_step == run_bytes {
                true => run_bytes *= count,
                false if count > 1 => outer.push((count, from_step, to_step)),
                false => {}
            }
            from_step *= saved.dimensions[dimension] as u64;
            to_step *= into.dimensions[dimension] as u64;
        }
        outer.reverse();
        Some(Self { from, to, run_bytes, outer })
    }

    /// How many runs there are.
    fn count(&self) -> u64 {
        self.outer.iter().map(|(count, ..)| count).product()
    }

    /// How many bytes they have.
    pub fn bytes(&self) -> u64 {
        self.count() * self.run_bytes
    }

    /// Where a run begins, in both parts.
    fn run(&self, mut nth: u64) -> (u64, u64) {
        let (mut from, mut to) = (self.from, self.to);
        for (count, from_step, to_step) in self.outer.iter().rev() {
            from += nth % count * from_step;
            to += nth % count * to_step;
            nth /= count;
        }
        (from, to)
    }

    /// The runs, in ascending order: the bytes of the saved part.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count()).map(|nth| self.run(nth).0).map(|from| from..from + self.run_bytes)
    }

    /// The runs in some bytes of the saved part: which bytes, and where each begins in the other
    /// part.
    pub fn within(&self, bytes: Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.run(middle).0 + self.run_bytes <= bytes.start {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let runs = (low..self.count()).map(|nth| self.run(nth));
        let runs = runs.take_while(move |(from, _)| *from < bytes.end);
        runs.map(move |(from, to)| {
            let part = from.max(bytes.start)..(from + self.run_bytes).min(bytes.end);
            let to = to + (part.start - from);
            (part, to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(global: &[usize], offset: &[usize], dimensions: &[usize]) -> Placed {
        Placed { global: global.to_vec(), offset: offset.to_vec(), dimensions: dimensions.to_vec() }
    }

    fn boxed(dimensions: &[usize], order: MemoryOrder, global: &[usize], offset: &[usize]) -> Shape {
        Shape::new(dimensions, order).unwrap().in_box(global, offset).unwrap()
    }

    #[test]
    fn what_two_boxes_have_in_common_is_copied_in_runs() {
        let (from, to) = (placed(&[8, 8], &[0, 0], &[4, 8]), placed(&[8, 8], &[2, 0], &[6, 8]));
        // Whole rows are one run.
        let moves = Moves::new(&from, &to, 2).unwrap();
        assert!(moves.runs().eq(std::iter::once(32..64)) && moves.bytes() == 32, "{moves:?}");
        assert_eq!(moves.within(40..50).collect::<Vec<_>>(), [(40..50, 8)]);
        let columns = placed(&[8, 8], &[1, 5], &[2, 2]);
        let moves = Moves::new(&from, &columns, 2).unwrap();
        assert_eq!(moves.runs().collect::<Vec<_>>(), [26..30, 42..46]);
        assert_eq!(moves.within(0..64).collect::<Vec<_>>(), [(26..30, 0), (42..46, 4)]);
        assert_eq!(moves.within(28..44).collect::<Vec<_>>(), [(28..30, 2), (42..44, 4)]);
        assert_eq!(moves.within(30..42).count(), 0);
        assert_eq!(Moves::new(&from, &placed(&[8, 8], &[4, 0], &[4, 8]), 2), None);
        let scalar = placed(&[], &[], &[]);
        assert!(Moves::new(&scalar, &scalar, 8).unwrap().runs().eq(std::iter::once(0..8)));
    }

    #[test]
    fn boxes_make_up_another_one_or_it_is_said_what_is_missing() {
        let asked = placed(&[10, 4], &[2, 0], &[6, 4]);
        let saved = [
            placed(&[10, 4], &[0, 0], &[5, 4]),
            placed(&[10, 4], &[5, 0], &[5, 2]),
            placed(&[10, 4], &[5, 2], &[5, 2]),
            placed(&[10, 4], &[0, 0], &[5, 4]),
            placed(&[10, 4], &[9, 9], &[0, 0]),
        ];
        assert_eq!(asked.cover(&saved), Ok(vec![vec![0, 3], vec![1], vec![2]]));
        assert_eq!(asked.cover(&saved[..2]), Err(Uncovered::Hole { at: vec![5, 2] }));
        assert_eq!(asked.cover(&[]), Err(Uncovered::Hole { at: vec![2, 0] }));
        let overlapping = [saved[0].clone(), placed(&[10, 4], &[4, 1], &[6, 3])];
        assert_eq!(asked.cover(&overlapping), Err(Uncovered::Overlap { saved: [0, 1], at: vec![4, 1] }));
        assert_eq!(placed(&[10, 4], &[3, 0], &[0, 4]).cover(&[]), Ok(Vec::new()), "nothing needs no box");
    }

    #[test]
    fn memory_orders_are_those_of_the_other_parts_where_they_are_not_known() {
        use MemoryOrder::{ColumnMajor, RowMajor};
        // A single column of a Fortran array looks like a row.
        let saved = [boxed(&[6, 1], ColumnMajor, &[6, 3], &[0, 0]), boxed(&[6, 2], ColumnMajor, &[6, 3], &[0, 1])];
        let asked = boxed(&[3, 3], ColumnMajor, &[6, 3], &[3, 0]);
        let placement = place(&[&saved[0], &saved[1]], &asked).unwrap();
        assert_eq!(placement.asked, placed(&[3, 6], &[0, 3], &[3, 3]));
        assert_eq!(placement.saved, [placed(&[3, 6], &[0, 0], &[1, 6]), placed(&[3, 6], &[1, 0], &[2, 6])]);
        assert_eq!(placement.index(&[1, 5]).to_string(), "(5, 1)");
        // In C the same array has its indices in reverse.
        let in_c = boxed(&[3, 3], RowMajor, &[3, 6], &[0, 3]);
        assert_eq!(place(&[&saved[0], &saved[1]], &in_c).unwrap().asked, placement.asked);
        assert!(place(&[&saved[0], &saved[1]], &boxed(&[2, 2], RowMajor, &[6, 3], &[0, 0])).is_err());
        let rows = boxed(&[2, 2], RowMajor, &[6, 3], &[0, 0]);
        let error = place(&[&saved[1], &rows], &asked).unwrap_err().to_string();
        assert!(error.starts_with("was saved in row-major order by some ranks"), "{error}");
    }

    #[test]
    fn the_parts_of_a_list_follow_each_other() {
        let part = |count: usize| Shape::flat(count).in_box(&[LIST], &[0]).unwrap();
        let saved = [part(3), part(0), part(5)];
        let saved: Vec<&Shape> = saved.iter().collect();
        let asked = |count: usize, global: usize, first| Shape::flat(count).in_box(&[global], &[first]).unwrap();
        for global in [LIST, 8] {
            let placement = place(&saved, &asked(4, global, 2)).unwrap();
            assert_eq!(placement.saved[2], placed(&[8], &[3], &[5]));
            assert_eq!(placement.asked, placed(&[8], &[2], &[4]));
        }
        let error = place(&saved, &asked(4, LIST, 5)).unwrap_err().to_string();
        assert!(error.contains("a list of 8 elements in all"), "{error}");
        assert!(place(&saved, &asked(4, 9, 5)).is_err());
        assert_eq!(place(&saved, &Shape::flat(8)).unwrap().asked, placed(&[8], &[0], &[8]));
        assert_eq!(part(3).to_string(), "3 of a list");
        let row = |global: &[usize], offset: &[usize]| {
            Shape::new(&[2, 3], MemoryOrder::RowMajor).unwrap().in_box(global, offset).map(drop).is_ok()
        };
        assert!(row(&[LIST, 3], &[7, 0]) && !row(&[3, LIST], &[0, 0]) && !row(&[LIST, 4], &[0, 0]));
        // Rows of three, in Fortran: the last dimension is the slowest.
        let rows = |count: usize| boxed(&[3, count], MemoryOrder::ColumnMajor, &[3, LIST], &[0, 0]);
        let (one, two) = (rows(1), rows(2));
        let asked = boxed(&[3, 2], MemoryOrder::ColumnMajor, &[3, LIST], &[0, 1]);
        assert_eq!(place(&[&one, &two], &asked).unwrap().asked, placed(&[3, 3], &[1, 0], &[2, 3]));
    }
}
