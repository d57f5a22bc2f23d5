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
    /// Where numbers are that are always valid.
    pub(super) numbers: Vec<Range<usize>>,
    /// Where numbers are that are valid if all their tags say so.
    pub(super) tagged: Vec<(Range<usize>, Vec<Tag>)>,
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
    /// All of them have to say that it is valid.
    pub(super) tags: Vec<Tag>,
}

/// What has to be in a struct for a member of a union to be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    offset: usize,
    bytes: usize,
    value: u64,
}

impl Tag {
    /// Whether a struct, which begins where the offset counts from, has this tag.
    fn is_in(self, of: &[u8]) -> bool {
        let wanted = self.value.to_le_bytes();
        of[self.offset..self.offset + self.bytes] == wanted[..self.bytes]
    }
}

/// Whether a struct has all of these tags.
pub(super) fn is_valid(tags: &[Tag], of: &[u8]) -> bool {
    tags.iter().all(|tag| tag.is_in(of))
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
        tagged: Vec::new(),
        pointers: Vec::new(),
        inside: Vec::new(),
        signature: 0,
    };
    if *bytes == 0 {
        return Err(Failure::usage(format!("struct {name} has no bytes")));
    }
    layout.add(types, index, 0, &[], 0)?;
    layout.numbers.sort_by_key(|range| range.start);
    layout.numbers = joined(&layout.numbers);
    layout.check_tags()?;
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
    fn add(&mut self, types: &[Named<'_>], index: usize, base: usize, around: &[Tag], depth: usize) -> Outcome<()> {
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
            let Some(tags) = self.tags_of(field, base, around) else {
                return wrong(format!("the tag of {name} is no integer of it"));
            };
            match member {
                Some(OUTCROP_NUMBERS) if tags.is_empty() => self.numbers.push(start..end),
                Some(OUTCROP_NUMBERS) => self.tagged.push((start..end, tags)),
                Some(OUTCROP_STRUCTS) => {
                    let Some(target) = target else { return wrong(format!("{name} has no type")) };
                    for at in (start..end).step_by(one.max(1)) {
                        self.add(types, target, at, &tags, depth + 1)?;
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
                        let (name, tags) = (name.clone(), tags.clone());
                        Pointer { name, offset, is_link, target, element_bytes, length, tags }
                    }));
                }
                None => return wrong(format!("{name} is {} to outcrop_member", field.member)),
            }
        }
        Ok(())
    }

    /// The tags that a field in a struct at `base` needs, besides those around it. None if its own
    /// is not inside.
    fn tags_of(&self, field: &outcrop_field, base: usize, around: &[Tag]) -> Option<Vec<Tag>> {
        let mut tags = around.to_vec();
        if field.tag_bytes != 0 {
            let offset = base.checked_add(field.tag)?;
            let is_inside = offset.checked_add(field.tag_bytes).is_some_and(|end| end <= self.bytes);
            let is_integer = matches!(field.tag_bytes, 1 | 2 | 4 | 8) && is_inside;
            tags.push(is_integer.then_some(Tag { offset, bytes: field.tag_bytes, value: field.tag_value })?);
        }
        Some(tags)
    }

    /// That tags are kept: restored, they have to say what they said.
    fn check_tags(&self) -> Outcome<()> {
        let numbers = || self.numbers.iter().chain(self.tagged.iter().map(|(range, _)| range));
        let is_kept = |tag: &Tag| numbers().any(|it| it.start <= tag.offset && tag.offset + tag.bytes <= it.end);
        let mut tags =
            self.tagged.iter().map(|(_, tags)| tags).chain(self.pointers.iter().map(|it| &it.tags)).flatten();
        match tags.all(is_kept) {
            true => Ok(()),
            false => Err(Failure::usage(format!("struct {}: a tag is not one of its numbers", self.name))),
        }
    }

    fn sign(&self, types: &[Named<'_>]) -> u64 {
        let number = |all, number: usize| hash(all, &(number as u64).to_le_bytes());
        let mut all = number(hash(START, self.name.as_bytes()), self.bytes);
        for range in &self.numbers {
            all = number(number(all, range.start), range.end);
        }
        let sign_tags = |all, tags: &[Tag]| {
            let parts = tags.iter().flat_map(|tag| [tag.offset, tag.bytes, tag.value as usize]);
            parts.fold(all, number)
        };
        for (range, tags) in &self.tagged {
            all = sign_tags(number(number(all, range.start), range.end), tags);
        }
        for pointer in &self.pointers {
            all = sign_tags(all, &pointer.tags);
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
