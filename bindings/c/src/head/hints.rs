//! Hints: what the program is about to change. DRAM keeps copies of that, with which the next
//! version is compared; the rest is read from the medium. Values do not depend on hints.

use std::{
    collections::BTreeSet,
    ffi::{c_char, c_int, c_void},
    ops::Range,
};

use outcrop::{Error, pool::Home};

use super::{Head, Kept, layout, outcrop_head, outcrop_type};
use crate::{
    border::{Failure, Outcome, call, memory, outcrop_status, text},
    handles::with,
    head::linked::Linked,
};

/// Whether a struct of the program is about to change: not 0 if it is.
type Changes = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What was said since the last version.
#[derive(Default)]
pub(super) struct Hints {
    /// The arrays that hints have named: of these, nothing else is kept in DRAM.
    arrays: BTreeSet<String>,
    /// Elements of structs that were added, by name.
    pub(super) roots: Vec<(String, Range<usize>)>,
    /// Functions that tell, and the layout of the structs that they look at.
    pub(super) structs: Vec<(usize, Changes)>,
}

impl Hints {
    /// Elements of what was added under a name.
    pub(super) fn elements<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Range<usize>> {
        self.roots.iter().filter(move |(of, _)| of == name).map(|(_, elements)| elements)
    }

    pub(super) fn is_of_structs(&self) -> bool {
        !self.roots.is_empty() || !self.structs.is_empty()
    }

    /// Whether a struct is about to change.
    ///
    /// # Safety
    /// There is a struct of this layout, and functions are what their hints say.
    pub(super) unsafe fn changes(&self, layout: usize, address: usize) -> bool {
        let mut functions = self.structs.iter().filter(|(of, _)| *of == layout);
        // SAFETY: the caller vouches for it.
        functions.any(|(_, changes)| unsafe { changes(std::ptr::with_exposed_provenance_mut(address)) } != 0)
    }
}

impl Head {
    fn array(&self, name: &str) -> Outcome<&Kept> {
        let none = || Failure::usage(format!("a hint names {name}, which is no array that was added"));
        self.arrays.get(name).ok_or_else(none)
    }

    /// How many elements were added under a name.
    fn count(&self, name: &str) -> Outcome<usize> {
        match self.linked.as_ref().and_then(|linked| linked.roots.iter().find(|root| root.name == name)) {
            Some(root) => Ok(root.count),
            None => self.array(name).map(|array| array.bytes / array.element.bytes()),
        }
    }

    /// Has DRAM keep copies of these elements of an array, besides those of other hints.
    fn place(&mut self, name: &str, elements: impl Iterator<Item = Range<usize>>) {
        let Some(array) = self.arrays.get_mut(name) else { return };
        if self.hints.arrays.insert(name.to_owned()) {
            array.mirror.place(0..array.bytes, Home::Nvm);
        }
        let one = array.element.bytes();
        for range in elements {
            array.mirror.place(range.start * one..range.end * one, Home::Dram);
        }
    }
}

/// Says that these elements of an array, or of an array of structs, are about to change: `count` of
/// them from `first` on. From the next version on, DRAM keeps copies of them, and of what other
/// hints name before that; what else changes of the array is read from the medium. Without hints,
/// DRAM keeps what has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_hint_elements(
    head: *mut outcrop_head,
    name: *const c_char,
    first: usize,
    count: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let name = unsafe { text(name, "name of the array") }?;
        with(head, |head| {
            let len = head.count(name)?;
            let Some(end) = first.checked_add(count).filter(|end| *end <= len) else {
                let problem = format!("a hint names {count} elements of {name} from {first} on, and it has {len}");
                return Err(Failure::usage(problem));
            };
            match head.arrays.contains_key(name) {
                true => head.place(name, std::iter::once(first..end)),
                false => head.hints.roots.push((name.to_owned(), first..end)),
            }
            Ok(())
        })
    })
}

/// As outcrop_head_hint_elements for those elements of an array that belong to nodes of a graph
/// with at least `degree` edges. `offsets` names an array of integers in which the edges of each
/// node begin, with one more at the end (CSR). The array has the same number of elements for each
/// node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_hint_degree(
    head: *mut outcrop_head,
    name: *const c_char,
    offsets: *const c_char,
    degree: u64,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (name, offsets) = unsafe { (text(name, "name of the array")?, text(offsets, "name of the offsets")?) };
        with(head, |head| {
            let rows = head.array(offsets)?;
            head.array(name)?;
            let bytes = rows.element.bytes();
            if !["u32", "i32", "u64", "i64"].contains(&rows.element.name()) {
                let problem =
                    format!("{offsets} is to say where the edges of nodes begin, and has no integers of 4 or 8 bytes");
                return Err(Failure::usage(problem));
            }
            let (len, nodes) = (head.count(name)?, (rows.bytes / bytes).saturating_sub(1));
            if nodes == 0 || !len.is_multiple_of(nodes) {
                let problem = format!(
                    "{name} has {len} elements, which are not the same number for each of the {nodes} nodes of {offsets}"
                );
                return Err(Failure::usage(problem));
            }
            // SAFETY: the program keeps to the header.
            let edges = unsafe { memory(std::ptr::with_exposed_provenance(rows.address), rows.bytes, offsets) }?;
            let at = |node: usize| {
                let mut number = [0; 8];
                number[..bytes].copy_from_slice(&edges[node * bytes..(node + 1) * bytes]);
                u64::from_le_bytes(number)
            };
            let each = len / nodes;
            let is_central = |node: &usize| at(node + 1).wrapping_sub(at(*node)) >= degree;
            head.place(name, (0..nodes).filter(is_central).map(|node| node * each..(node + 1) * each));
            Ok(())
        })
    })
}

/// Says by a function which structs of linked structures are about to change: it is called with
/// each struct of this type when the next version is made, says so by a number other than 0, and
/// must not call this library. DRAM keeps copies of these, and of what other hints name; what else
/// changes is read from the medium.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_hint_structs(
    head: *mut outcrop_head,
    types: *const outcrop_type,
    type_count: usize,
    type_index: usize,
    changes: Option<unsafe extern "C" fn(it: *mut c_void) -> c_int>,
) -> outcrop_status {
    call(|| {
        let changes = changes.ok_or_else(|| Failure::usage("the function that tells what changes is NULL"))?;
        // SAFETY: the program keeps to the header.
        let layouts = unsafe { layout::read(types, type_count) }?;
        with(head, |head| {
            let linked = match &mut head.linked {
                Some(linked) => linked,
                none => none.insert(Linked::open(&head.pool).map_err(Error::from)?),
            };
            let layout = linked.take_layout("a hint", layouts, type_index)?;
            head.hints.structs.push((layout, changes));
            Ok(())
        })
    })
}

/// How many bytes of copies DRAM has since the last version, at `dram_bytes`, and how many were
/// written while the medium alone had them since the head was opened, at `copied_bytes`. Hints
/// change these. Either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_head_usage(
    head: *mut outcrop_head,
    dram_bytes: *mut u64,
    copied_bytes: *mut u64,
) -> outcrop_status {
    call(|| {
        let usage = with(head, |head| Ok(head.pool.usage()))?;
        // SAFETY: the program keeps to the header.
        unsafe {
            super::say(dram_bytes, usage.dram_bytes);
            super::say(copied_bytes, usage.copied_bytes);
        }
        Ok(())
    })
}
