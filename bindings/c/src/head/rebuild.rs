//! Objects of a version, as memory of the program again. What the pool says is checked first, all
//! of it: no link leads out of an object, or to one of another type.

use std::{collections::BTreeMap, ptr};

use outcrop::{
    Error, ErrorKind,
    pool::layout::{START, hash},
};

use super::{
    layout::{Length, Pointer, is_valid},
    linked::{Linked, NUMBERS, Object, Record, target_of, word},
    room::Room,
};
use crate::border::{Failure, Outcome};

impl Linked {
    /// Has the program's memory be what the lists have. Objects that were added stay where they
    /// are; the others are new.
    ///
    /// # Safety
    /// What was added is there, and nobody uses it.
    pub(super) unsafe fn rebuild(&mut self) -> Outcome<()> {
        let mut objects = self.read_records()?;
        let used = objects.iter().filter(|object| object.bytes > 0).map(|object| (object.at, object.bytes as u64));
        let room = Room::around(used.collect()).filter(|room| room.end <= self.memory.len() as u64);
        let room = room.ok_or_else(|| damaged("two objects overlap"))?;
        let mut is_root = vec![false; objects.len()];
        for root in &self.roots {
            let name = hash(START, root.name.as_bytes());
            let found = self.names.iter().find(|entry| entry[0] == name).map(|entry| entry[1] as usize);
            let Some(object) = found.and_then(|number| objects.get_mut(number)) else {
                return Err(Failure::missing(format!("the version has no \"{}\"", root.name)));
            };
            if (object.layout, object.count) != (Some(root.layout), root.count) {
                return Err(damaged(&format!("\"{}\" has another type or length", root.name)));
            }
            object.address = root.address;
            found.into_iter().for_each(|number| is_root[number] = true);
        }
        self.check_links(&objects)?;
        allocate(&mut objects, &is_root)?;
        for object in objects.iter().filter(|object| object.bytes > 0) {
            // SAFETY: the caller vouches for what was added, and the rest was allocated.
            unsafe { self.put(object, &objects) };
        }
        let numbered = || objects.iter().enumerate().map(|(number, object)| (number as u32, object));
        self.free = numbered().filter(|(_, object)| object.bytes == 0).map(|(number, _)| number).collect();
        let with_address = numbered().filter(|(_, object)| object.bytes > 0);
        self.by_address = with_address.map(|(number, object)| (object.address, number)).collect::<BTreeMap<_, _>>();
        (self.objects, self.room) = (objects, room);
        Ok(())
    }

    /// The objects that there are, without addresses.
    fn read_records(&self) -> Outcome<Vec<Object>> {
        let object = |&[at, bytes, signature, count]: &Record| {
            let free = Object { address: 0, bytes: 0, at: 0, layout: None, count: 0, seen: 0 };
            if signature == 0 {
                return Ok(free);
            }
            let layout = self.layouts.iter().position(|layout| layout.signature == signature);
            if layout.is_none() && signature != NUMBERS {
                return Err(Failure::usage(
                    "the pool has structs of a type that this program does not have: it was made by another one, or its \
                     structs have changed since; remove the pool to begin anew",
                ));
            }
            let (bytes, count) = (bytes as usize, count as usize);
            let is_right = layout.is_none_or(|layout| count.checked_mul(self.layouts[layout].bytes) == Some(bytes));
            let end = at.checked_add(bytes as u64).filter(|end| *end <= self.memory.len() as u64);
            match bytes > 0 && is_right && end.is_some() {
                true => Ok(Object { bytes, at, layout, count, ..free }),
                false => Err(damaged("an object is not inside the list")),
            }
        };
        self.records.iter().map(object).collect()
    }

    fn bytes_of(&self, object: &Object) -> &[u8] {
        &self.memory[object.at as usize..][..object.bytes]
    }

    /// Calls something with every link that is not NULL: with its pointer, its struct, and where it
    /// is in the object.
    fn each_link<'a>(&'a self, object: &Object, mut work: impl FnMut(&'a Pointer, &'a [u8], usize, u64)) {
        let Some(layout) = object.layout.map(|layout| &self.layouts[layout]) else { return };
        for (element, of) in self.bytes_of(object).chunks(layout.bytes).enumerate() {
            for pointer in layout.pointers.iter().filter(|pointer| is_valid(&pointer.tags, of)) {
                let link = u64::from_le_bytes(word(of, pointer.offset));
                if link != 0 {
                    work(pointer, of, element * layout.bytes + pointer.offset, link);
                }
            }
        }
    }

    fn check_links(&self, objects: &[Object]) -> Outcome<()> {
        let mut wrong = None;
        for object in objects {
            self.each_link(object, |pointer, of, _, link| {
                let (number, offset) = target_of(link);
                let is_right = number.and_then(|number| objects.get(number)).is_some_and(|target| {
                    let bytes = match pointer.length {
                        Length::Text => Some(target.bytes),
                        length => length.of(of).and_then(|count| count.checked_mul(pointer.element_bytes)),
                    };
                    let is_whole = offset == 0 && target.layout == pointer.target && bytes == Some(target.bytes);
                    let is_text = !matches!(pointer.length, Length::Text) || self.bytes_of(target).ends_with(&[0]);
                    let is_inside = bytes.is_some_and(|bytes| self.has_inside(target, offset, pointer.target, bytes));
                    target.bytes > 0 && (is_whole && is_text || is_inside)
                });
                if !is_right {
                    wrong = Some(format!("{} leads to something else", pointer.name));
                }
            });
        }
        wrong.map_or(Ok(()), |problem| Err(damaged(&problem)))
    }

    /// Writes the program's memory.
    ///
    /// # Safety
    /// Objects have their bytes at their addresses, and nobody uses them.
    unsafe fn put(&self, object: &Object, objects: &[Object]) {
        let to: *mut u8 = ptr::with_exposed_provenance_mut(object.address);
        let from = self.bytes_of(object);
        let copy = |start: usize, bytes: &[u8]| {
            // SAFETY: the caller vouches for it; the range is inside the object.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(start), bytes.len()) };
        };
        let Some(layout) = object.layout.map(|layout| &self.layouts[layout]) else { return copy(0, from) };
        for base in (0..object.bytes).step_by(layout.bytes) {
            let of = &from[base..base + layout.bytes];
            let tagged = layout.tagged.iter().filter(|(_, tags)| is_valid(tags, of)).map(|(range, _)| range);
            layout.numbers.iter().chain(tagged).for_each(|range| copy(base + range.start, &of[range.clone()]));
            let pointers = layout.pointers.iter().filter(|pointer| is_valid(&pointer.tags, of));
            pointers.for_each(|pointer| copy(base + pointer.offset, &[0; 8]));
        }
        self.each_link(object, |_, _, at, link| {
            let (number, offset) = target_of(link);
            let address = number.map_or(0, |number| objects[number].address + offset);
            copy(at, &address.to_ne_bytes());
        });
    }
}

/// Gives an address to every object that has none.
fn allocate(objects: &mut [Object], is_root: &[bool]) -> Outcome<()> {
    for number in 0..objects.len() {
        let object = &mut objects[number];
        if object.bytes == 0 || is_root[number] {
            continue;
        }
        // SAFETY: any number of bytes can be asked for.
        let memory = unsafe { libc::calloc(1, object.bytes) };
        if memory.is_null() {
            for other in objects[..number].iter().zip(is_root).filter(|(other, is_root)| other.bytes > 0 && !**is_root)
            {
                // SAFETY: it was allocated above, and nobody has seen it.
                unsafe { libc::free(ptr::with_exposed_provenance_mut(other.0.address)) };
            }
            return Err(Error::new(ErrorKind::TooLarge, "there is no memory for the structs of the version").into());
        }
        object.address = memory.expose_provenance();
    }
    Ok(())
}

fn damaged(problem: &str) -> Failure {
    Error::new(ErrorKind::Damaged, format!("the linked structures of the version are damaged: {problem}")).into()
}
