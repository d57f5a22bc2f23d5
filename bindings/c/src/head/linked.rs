//! Structs of the program and what their addresses lead to, as three lists of a pool.
//!
//! An *object* is what one call of malloc gave, or what was added. It has a number, which stays as
//! long as its address. One list has the bytes of all objects, in which addresses are replaced by
//! links: the number of an object, and where in it. The second says where each object is, and the
//! third which ones were added. A version writes the blocks of these lists that have changed.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_void},
    slice,
};

use outcrop::pool::{
    Block, Home, List, Parts, Pool, Structure,
    layout::{START, hash},
};

use super::{
    hints::Hints,
    layout::{Layout, Length, Pointer, is_valid},
    room::Room,
};
use crate::border::{Failure, Outcome, check_memory};

/// What is compared, and written if it differs.
const STEP: usize = 4096;

/// The signature of an object that has numbers only.
pub(super) const NUMBERS: u64 = 1;

/// Links lead so far into an object at most.
const OFFSET_MAX: usize = u32::MAX as usize;

/// What the pool says of an object: where its bytes are, how many, the signature of its layout
/// (0: there is no such object), and how many elements it has.
pub(super) type Record = [u64; 4];

/// An object in the program's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    /// 0 if the number is free.
    pub(super) address: usize,
    pub(super) bytes: usize,
    /// Where its bytes are in the pool.
    pub(super) at: u64,
    /// None for numbers.
    pub(super) layout: Option<usize>,
    pub(super) count: usize,
    /// In which walk it was last met.
    pub(super) seen: u64,
}

/// What was added.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) name: String,
    pub(super) address: usize,
    pub(super) layout: usize,
    pub(super) count: usize,
}

/// All objects.
pub(super) struct Linked {
    pub(super) layouts: Vec<Layout>,
    pub(super) roots: Vec<Root>,
    pub(super) objects: Vec<Object>,
    pub(super) free: Vec<u32>,
    pub(super) by_address: BTreeMap<usize, u32>,
    pub(super) room: Room,
    pub(super) walk: u64,
    /// Room for the bytes of one object.
    image: Vec<u8>,
    pub(super) memory: List<u8>,
    pub(super) records: List<Record>,
    /// The hash of the name of each root, and its object.
    pub(super) names: List<[u64; 2]>,
}

/// What a pointer is to lead to.
#[derive(Clone, Copy)]
struct Wanted {
    address: usize,
    layout: Option<usize>,
    count: usize,
    bytes: usize,
}

impl Linked {
    pub(super) fn open(pool: &Pool) -> outcrop::pool::Result<Self> {
        // A page at a time: nodes are small, and changes are local.
        let page = Block::elements(1);
        Ok(Self {
            layouts: Vec::new(),
            roots: Vec::new(),
            objects: Vec::new(),
            free: Vec::new(),
            by_address: BTreeMap::new(),
            room: Room::default(),
            walk: 0,
            image: Vec::new(),
            memory: pool.list("linked memory", page)?,
            records: pool.list("linked objects", page)?,
            names: pool.list("linked names", page)?,
        })
    }

    /// Keeps structs of the program. A second time, under the same name, they are elsewhere.
    pub(super) fn add_root(
        &mut self,
        name: &str,
        layouts: Vec<Layout>,
        index: usize,
        data: *mut c_void,
        count: usize,
    ) -> Outcome<()> {
        let layout = self.take_layout(name, layouts, index)?;
        let Some(bytes) = count.checked_mul(self.layouts[layout].bytes).filter(|bytes| *bytes > 0) else {
            return Err(Failure::usage(format!("{name}: there cannot be {count} of them")));
        };
        let address = check_memory(data, bytes, name)?.as_ptr().expose_provenance();
        match self.roots.iter_mut().find(|root| root.name == name) {
            Some(root) if (root.layout, root.count) == (layout, count) => root.address = address,
            Some(_) => return Err(Failure::usage(format!("{name} was added before with another type or length"))),
            None => self.roots.push(Root { name: name.to_owned(), address, layout, count }),
        }
        Ok(())
    }

    /// Which number one of these layouts has among all.
    pub(super) fn take_layout(&mut self, name: &str, layouts: Vec<Layout>, index: usize) -> Outcome<usize> {
        let known = self.take_layouts(layouts).get(index).copied();
        known.ok_or_else(|| Failure::usage(format!("{name}: there is no type {index}")))
    }

    /// Which numbers these layouts have among all.
    fn take_layouts(&mut self, layouts: Vec<Layout>) -> Vec<usize> {
        let mut numbers = Vec::new();
        let mut new = Vec::new();
        for layout in layouts {
            let known = self.layouts.iter().position(|known| known.signature == layout.signature);
            numbers.push(known.unwrap_or(self.layouts.len() + new.len()));
            if known.is_none() {
                new.push(layout);
            }
        }
        for layout in &mut new {
            layout.inside.iter_mut().for_each(|(_, inside)| *inside = numbers[*inside]);
            layout.pointers.iter_mut().for_each(|pointer| pointer.target = pointer.target.map(|at| numbers[at]));
        }
        self.layouts.extend(new);
        numbers
    }

    /// Walks through all objects, and takes over what has changed.
    ///
    /// # Safety
    /// What was added is there, and all that its members lead to, as their types say. Nobody
    /// changes it.
    pub(super) unsafe fn follow(&mut self) -> Outcome<()> {
        self.walk += 1;
        let mut waiting = Vec::new();
        for at in 0..self.roots.len() {
            let root = &self.roots[at];
            let bytes = root.count * self.layouts[root.layout].bytes;
            let wanted = Wanted { address: root.address, layout: Some(root.layout), count: root.count, bytes };
            let name = root.name.clone();
            let object = self.meet(wanted, &name, &mut waiting)?;
            let entry = [hash(START, name.as_bytes()), u64::from(object)];
            if self.names.len() <= at {
                self.names.push(entry);
            } else if self.names[at] != entry {
                self.names[at] = entry;
            }
        }
        self.names.truncate(self.roots.len());
        // Links to what comes later have to wait.
        let mut unlinked = Vec::new();
        while let Some(object) = waiting.pop() {
            // SAFETY: the caller vouches for it.
            if !unsafe { self.copy(object, &mut waiting, false) }? {
                unlinked.push(object);
            }
        }
        for object in unlinked {
            // SAFETY: as above.
            unsafe { self.copy(object, &mut waiting, true) }?;
        }
        self.forget_unseen();
        Ok(())
    }

    /// Has DRAM keep copies of the objects that have a struct which is about to change, as hints
    /// say, and of no others. Without hints, everything stays as it is.
    ///
    /// # Safety
    /// As for [`follow`](Self::follow), which was called.
    pub(super) unsafe fn place(&mut self, hints: &Hints) {
        if !hints.is_of_structs() {
            return;
        }
        let len = self.memory.len();
        self.memory.place(0..len, Home::Nvm);
        for root in &self.roots {
            let object = self.by_address.get(&root.address).map(|number| &self.objects[*number as usize]);
            let (at, one) = (object.map_or(0, |object| object.at as usize), self.layouts[root.layout].bytes);
            for elements in hints.elements(&root.name) {
                self.memory.place(at + elements.start * one..at + elements.end * one, Home::Dram);
            }
        }
        for object in self.objects.iter().filter(|object| object.address != 0) {
            let Some(layout) = object.layout.map(|layout| &self.layouts[layout]) else { continue };
            let bases = (0..object.bytes).step_by(layout.bytes);
            let mut structs = bases.flat_map(|base| layout.inside.iter().map(move |(at, inside)| (base + at, *inside)));
            // SAFETY: the caller vouches for the struct, and who gave the hint for the function.
            let changes = structs.any(|(at, inside)| unsafe { hints.changes(inside, object.address + at) });
            if changes {
                let at = object.at as usize;
                self.memory.place(at..at + object.bytes, Home::Dram);
            }
        }
    }

    /// Takes over an object, if all its links can be made. Those that cannot be are an error at
    /// last.
    ///
    /// # Safety
    /// As for [`follow`](Self::follow).
    unsafe fn copy(&mut self, number: u32, waiting: &mut Vec<u32>, is_last: bool) -> Outcome<bool> {
        let object = self.objects[number as usize];
        // SAFETY: the caller vouches for it.
        let source = unsafe { read(object.address, object.bytes) };
        let at = object.at as usize;
        let Some(layout) = object.layout else {
            self.write(at, source);
            return Ok(true);
        };
        let bytes = self.layouts[layout].bytes;
        let mut image = std::mem::take(&mut self.image);
        image.clear();
        image.resize(object.bytes, 0);
        for element in 0..object.count {
            let base = element * bytes;
            for range in &self.layouts[layout].numbers {
                let range = base + range.start..base + range.end;
                image[range.clone()].copy_from_slice(&source[range]);
            }
            let of = &source[base..base + bytes];
            for (range, _) in self.layouts[layout].tagged.iter().filter(|(_, tags)| is_valid(tags, of)) {
                image[base + range.start..base + range.end].copy_from_slice(&of[range.clone()]);
            }
            for nth in 0..self.layouts[layout].pointers.len() {
                let pointer = &self.layouts[layout].pointers[nth];
                let offset = base + pointer.offset;
                let address = usize::from_ne_bytes(word(source, offset));
                if address == 0 || !is_valid(&pointer.tags, of) {
                    continue;
                }
                // What it was in the last version is most often what it is.
                let before = u64::from_le_bytes(word(&self.memory, at + offset));
                // SAFETY: the caller vouches for it.
                let link = unsafe { self.link(layout, nth, of, address, before, waiting) }?;
                match link {
                    Some(link) => image[offset..offset + 8].copy_from_slice(&link.to_le_bytes()),
                    None if is_last => return Err(self.foreign(layout, nth, address)),
                    None => {
                        self.image = image;
                        return Ok(false);
                    }
                }
            }
        }
        self.write(at, &image);
        self.image = image;
        Ok(true)
    }

    /// Writes bytes to the pool where they differ.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (nth, bytes) in bytes.chunks(STEP).enumerate() {
            let range = at + nth * STEP..at + nth * STEP + bytes.len();
            if self.memory[range.clone()] != *bytes {
                self.memory[range].copy_from_slice(bytes);
            }
        }
    }

    /// The link that stands for an address in a struct of this layout; none if it leads to
    /// something that was not met yet. 0 stands for NULL.
    ///
    /// # Safety
    /// As for [`follow`](Self::follow).
    unsafe fn link(
        &mut self,
        layout: usize,
        nth: usize,
        of: &[u8],
        address: usize,
        before: u64,
        waiting: &mut Vec<u32>,
    ) -> Outcome<Option<u64>> {
        let pointer = &self.layouts[layout].pointers[nth];
        let (is_link, target) = (pointer.is_link, pointer.target);
        // SAFETY: the caller vouches for it.
        let count = unsafe { length(pointer, of, address) }?;
        let bytes = count.checked_mul(pointer.element_bytes);
        let Some(bytes) = bytes.filter(|bytes| address.checked_add(*bytes).is_some()) else {
            let problem = format!("{} leads to {count} elements, more than memory can have", pointer.name);
            return Err(Failure::usage(problem));
        };
        if count == 0 {
            return Ok(Some(0));
        }
        let wanted = Wanted { address, layout: target, count, bytes };
        let (guess, offset) = target_of(before);
        let known = match guess.and_then(|guess| self.objects.get(guess)) {
            Some(object) if object.address != 0 && object.address.wrapping_add(offset) == address => {
                guess.map(|guess| guess as u32)
            }
            _ => self.by_address.range(..=address).next_back().map(|(_, number)| *number),
        };
        if let Some(number) = known {
            let object = self.objects[number as usize];
            if is_same(&object, wanted) && (object.seen == self.walk || !is_link) {
                self.see(number, waiting);
                return Ok(Some(link_to(number, 0)));
            }
            let offset = address - object.address;
            if object.seen == self.walk && self.is_inside(&object, offset, wanted) {
                return Ok(Some(link_to(number, offset)));
            }
        }
        match is_link {
            true => Ok(None),
            false => {
                let name = self.layouts[layout].pointers[nth].name.clone();
                self.meet(wanted, &name, waiting).map(|number| Some(link_to(number, 0)))
            }
        }
    }

    /// Whether an object has what is wanted somewhere inside.
    pub(super) fn has_inside(&self, object: &Object, offset: usize, layout: Option<usize>, bytes: usize) -> bool {
        let (Some(outer), Some(inner)) = (object.layout, layout) else { return false };
        let outer = &self.layouts[outer];
        let is_there = outer.inside.iter().any(|(at, layout)| (*at, *layout) == (offset % outer.bytes, inner));
        is_there && offset <= OFFSET_MAX && offset.checked_add(bytes).is_some_and(|end| end <= object.bytes)
    }

    fn is_inside(&self, object: &Object, offset: usize, wanted: Wanted) -> bool {
        self.has_inside(object, offset, wanted.layout, wanted.bytes)
    }

    /// The number of an object that may be new.
    fn meet(&mut self, wanted: Wanted, name: &str, waiting: &mut Vec<u32>) -> Outcome<u32> {
        let end = wanted.address + wanted.bytes;
        let mut overlapping = Vec::new();
        let before = self.by_address.range(..=wanted.address).next_back();
        overlapping.extend(before.map(|(_, number)| *number));
        overlapping.extend(self.by_address.range(wanted.address + 1..end).map(|(_, number)| *number));
        for number in overlapping {
            let object = self.objects[number as usize];
            if object.address + object.bytes <= wanted.address {
                continue;
            }
            if is_same(&object, wanted) {
                self.see(number, waiting);
                return Ok(number);
            }
            if object.seen == self.walk {
                return Err(self.overlaps(&object, wanted, name));
            }
            // It was freed; if not, it is met again.
            self.forget(number);
        }
        let number = self.free.pop().unwrap_or(self.objects.len() as u32);
        let at = self.room.take(wanted.bytes);
        let Wanted { address, layout, count, bytes } = wanted;
        let object = Object { address, bytes, at, layout, count, seen: 0 };
        let signature = layout.map_or(NUMBERS, |layout| self.layouts[layout].signature);
        let record = [at, bytes as u64, signature, count as u64];
        if self.objects.len() == number as usize {
            self.objects.push(object);
        } else {
            self.objects[number as usize] = object;
        }
        while self.records.len() < self.objects.len() {
            self.records.push([0; 4]);
        }
        self.records[number as usize] = record;
        let needed = self.room.end as usize;
        if self.memory.len() < needed {
            self.memory.resize(needed, 0);
        }
        self.by_address.insert(address, number);
        self.see(number, waiting);
        Ok(number)
    }

    fn see(&mut self, number: u32, waiting: &mut Vec<u32>) {
        let object = &mut self.objects[number as usize];
        if object.seen != self.walk {
            object.seen = self.walk;
            waiting.push(number);
        }
    }

    /// An object is no longer there.
    fn forget(&mut self, number: u32) {
        let object = &mut self.objects[number as usize];
        self.by_address.remove(&object.address);
        self.room.give(object.at, object.bytes);
        object.address = 0;
        self.records[number as usize] = [0; 4];
        self.free.push(number);
    }

    fn forget_unseen(&mut self) {
        for number in 0..self.objects.len() {
            let object = &self.objects[number];
            if object.address != 0 && object.seen != self.walk {
                self.forget(number as u32);
            }
        }
    }

    fn name_of(&self, layout: Option<usize>) -> &str {
        layout.map_or("numbers", |layout| self.layouts[layout].name.as_str())
    }

    fn overlaps(&self, object: &Object, wanted: Wanted, name: &str) -> Failure {
        let (kept, wanted_name) = (self.name_of(object.layout), self.name_of(wanted.layout));
        Failure::usage(format!(
            "{name} leads to {} x {wanted_name} at {:#x}, and {} x {kept} at {:#x} are kept as memory of their own; say \
             link({}) if it leads into memory that another member owns, and give both the same length if they share it",
            wanted.count,
            wanted.address,
            object.count,
            object.address,
            name.rsplit('.').next().unwrap_or(name),
        ))
    }

    fn foreign(&self, layout: usize, nth: usize, address: usize) -> Failure {
        let pointer = &self.layouts[layout].pointers[nth];
        Failure::usage(format!(
            "{} leads to {address:#x}, where nothing is kept: a link leads to a {} that other members lead to",
            pointer.name,
            self.name_of(pointer.target),
        ))
    }
}

impl Structure for Linked {
    fn parts(&mut self) -> Parts<'_> {
        self.memory.parts().and(self.records.parts()).and(self.names.parts())
    }
}

fn is_same(object: &Object, wanted: Wanted) -> bool {
    (object.address, object.layout, object.count, object.bytes)
        == (wanted.address, wanted.layout, wanted.count, wanted.bytes)
}

/// What stands for an address: the object, and where in it.
fn link_to(number: u32, offset: usize) -> u64 {
    (u64::from(number) + 1) << 32 | offset as u64
}

/// The object that a link leads to, and where in it.
pub(super) fn target_of(link: u64) -> (Option<usize>, usize) {
    ((link >> 32).checked_sub(1).map(|number| number as usize), link as usize & OFFSET_MAX)
}

/// Eight bytes of a slice.
pub(super) fn word(bytes: &[u8], at: usize) -> [u8; 8] {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    word
}

/// How many elements an address leads to.
///
/// # Safety
/// A text ends with a zero byte.
unsafe fn length(pointer: &Pointer, of: &[u8], address: usize) -> Outcome<usize> {
    match pointer.length {
        Length::Text => {
            // SAFETY: the caller vouches for it.
            let text = unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(address)) };
            Ok(text.count_bytes() + 1)
        }
        length => length.of(of).ok_or_else(|| Failure::usage(format!("the length of {} is negative", pointer.name))),
    }
}

impl Length {
    /// As the struct says; none if it is negative. A text does not say it there.
    pub(super) fn of(self, of: &[u8]) -> Option<usize> {
        let (offset, bytes) = match self {
            Self::Always(count) => return Some(count),
            Self::Text => return Some(0),
            Self::Member(offset, bytes) => (offset, bytes),
        };
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&of[offset..offset + bytes]);
        // Numbers of half the range are enough for any length: what is larger is negative.
        let number = u64::from_le_bytes(number);
        (number >> (8 * bytes - 1) == 0).then_some(number as usize)
    }
}

/// Memory of the program.
///
/// # Safety
/// There are so many bytes, which nobody changes for as long as the slice is used.
unsafe fn read<'a>(address: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: the caller vouches for it.
    unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(address), bytes) }
}
