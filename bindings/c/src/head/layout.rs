//! What the structs of a program are made of: numbers, and addresses and what these lead to.

use std::{ops::Range, slice};

use outcrop::pool::layout::{START, hash};

use super::{outcrop_field, outcrop_member::*, outcrop_type};
use crate::border::{Failure, Outcome, text};

/// A struct, with those that are inside it.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) name: String,
    pub(super) bytes: usize,
    /// Where numbers are.
    pub(super) numbers: Vec<Range<usize>>,
    pub(super) pointers: Vec<Pointer>,
    /// Where structs begin, this one first, and which layouts they have.
    pub(super) inside: Vec<(usize, usize)>,
    /// A hash of all this: two that have the same are the same.
    pub(super) signature: u64,
}

/// An address in a struct.
#[derive(Debug, Clone)]
pub(super) struct Pointer {
    /// For messages, as in `Cell.children`.
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) is_link: bool,
    /// The layout of what it leads to; none for numbers.
    pub(super) target: Option<usize>,
    /// The bytes of one element there.
    pub(super) element_bytes: usize,
    pub(super) length: Length,
}

/// How many elements an address leads to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Length {
    Always(usize),
    /// An integer at this offset, of so many bytes.
    Member(usize, usize),
    /// Up to the first zero byte.
    Text,
}

/// The structs nest at most so deep.
const DEPTH_MAX: usize = 32;

/// What the program says of its structs.
///
/// # Safety
/// There are so many types at the address, with as many fields as they say.
pub(super) unsafe fn read(types: *const outcrop_type, count: usize) -> Outcome<Vec<Layout>> {
    if types.is_null() || count == 0 {
        return Err(Failure::usage("no types are given; at least that of the structure itself is needed"));
    }
    // SAFETY: it is not NULL, and the caller vouches for the rest.
    let types = unsafe { slice::from_raw_parts(types, count) };
    let mut named = Vec::new();
    for it in types {
        let fields: &[outcrop_field] = match it.field_count {
            0 => &[],
            // SAFETY: the caller vouches for it.
            count if !it.fields.is_null() => unsafe { slice::from_raw_parts(it.fields, count) },
            _ => return Err(Failure::usage("the fields of a type are NULL")),
        };
        // SAFETY: the caller vouches for it.
        let name = unsafe { text(it.name, "name of a type") }?;
        let mut with_names = Vec::new();
        for field in fields {
            // SAFETY: as above.
            with_names.push((unsafe { text(field.name, "name of a field") }?, field));
        }
        named.push((name, it.bytes, with_names));
    }
    (0..named.len()).map(|index| layout(&named, index)).collect()
}

/// The name of a type, its length, and its fields with their names.
type Named<'a> = (&'a str, usize, Vec<(&'a str, &'a outcrop_field)>);

fn layout(types: &[Named<'_>], index: usize) -> Outcome<Layout> {
    let (name, bytes, _) = &types[index];
    let mut layout = Layout {
        name: (*name).to_owned(),
        bytes: *bytes,
        numbers: Vec::new(),
        pointers: Vec::new(),
        inside: Vec::new(),
        signature: 0,
    };
    if *bytes == 0 {
        return Err(Failure::usage(format!("struct {name} has no bytes")));
    }
    layout.add(types, index, 0, 0)?;
    layout.numbers.sort_by_key(|range| range.start);
    layout.numbers = joined(&layout.numbers);
    layout.signature = layout.sign(types);
    Ok(layout)
}

/// Ranges, of which those that touch are one.
fn joined(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match all.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => all.push(range.clone()),
        }
    }
    all
}

impl Layout {
    /// Adds the fields of a struct that begins at `base`.
    fn add(&mut self, types: &[Named<'_>], index: usize, base: usize, depth: usize) -> Outcome<()> {
        let wrong = |problem: String| Err(Failure::usage(format!("struct {}: {problem}", types[index].0)));
        if depth > DEPTH_MAX {
            return wrong("it contains itself".to_owned());
        }
        self.inside.push((base, index));
        for (name, field) in &types[index].2 {
            let target = usize::try_from(field.type_index).ok();
            if target.is_some_and(|target| target >= types.len()) {
                return wrong(format!("{name} has a type that is not there"));
            }
            let target_bytes = target.map_or(field.bytes, |target| types[target].1);
            let member = [OUTCROP_NUMBERS, OUTCROP_STRUCTS, OUTCROP_POINTERS, OUTCROP_LINKS, OUTCROP_TEXTS]
                .into_iter()
                .find(|member| *member as i32 == field.member);
            let one = match member {
                Some(OUTCROP_NUMBERS | OUTCROP_STRUCTS) => target_bytes,
                _ => size_of::<usize>(),
            };
            let start = base.checked_add(field.offset);
            let end = start.and_then(|start| field.count.checked_mul(one)?.checked_add(start));
            let (Some(start), Some(end)) = (start, end.filter(|end| *end <= self.bytes)) else {
                return wrong(format!("{name} does not fit into it"));
            };
            match member {
                Some(OUTCROP_NUMBERS) => self.numbers.push(start..end),
                Some(OUTCROP_STRUCTS) => {
                    let Some(target) = target else { return wrong(format!("{name} has no type")) };
                    for at in (start..end).step_by(one.max(1)) {
                        self.add(types, target, at, depth + 1)?;
                    }
                }
                Some(member) => {
                    let is_inside =
                        |at: &usize| at.checked_add(field.length_bytes).is_some_and(|end| end <= self.bytes);
                    let at = base.checked_add(field.length).filter(is_inside);
                    let length = match (member, field.length_bytes, at) {
                        (OUTCROP_TEXTS, ..) => Length::Text,
                        (_, 0, _) => Length::Always(field.length),
                        (_, bytes @ (1 | 2 | 4 | 8), Some(at)) => Length::Member(at, bytes),
                        _ => return wrong(format!("the length of {name} is no integer of it")),
                    };
                    let element_bytes = if member == OUTCROP_TEXTS { 1 } else { target_bytes };
                    if element_bytes == 0 || member == OUTCROP_LINKS && target.is_none() {
                        return wrong(format!("{name} leads to nothing that can be kept"));
                    }
                    let is_link = member == OUTCROP_LINKS;
                    let name = format!("{}.{name}", types[index].0);
                    let at = (start..end).step_by(one);
                    self.pointers.extend(at.map(|offset| {
                        let name = name.clone();
                        Pointer { name, offset, is_link, target, element_bytes, length }
                    }));
                }
                None => return wrong(format!("{name} is {} to outcrop_member", field.member)),
            }
        }
        Ok(())
    }

    fn sign(&self, types: &[Named<'_>]) -> u64 {
        let number = |all, number: usize| hash(all, &(number as u64).to_le_bytes());
        let mut all = number(hash(START, self.name.as_bytes()), self.bytes);
        for range in &self.numbers {
            all = number(number(all, range.start), range.end);
        }
        for pointer in &self.pointers {
            let length = match pointer.length {
                Length::Always(count) => [0, count, 0],
                Length::Member(offset, bytes) => [1, offset, bytes],
                Length::Text => [2, 0, 0],
            };
            all = length.into_iter().fold(number(all, pointer.offset), number);
            all = number(hash(all, pointer.name.as_bytes()), pointer.element_bytes);
            all = hash(all, pointer.target.map_or("", |target| types[target].0).as_bytes());
        }
        // These have a meaning of their own in records.
        all.max(2)
    }
}
