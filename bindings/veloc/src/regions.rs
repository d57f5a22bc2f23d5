//! What the program has protected: its memory, and its own functions that write and read bytes.
//! Besides `c`, the only place that follows pointers of the program.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fs::File,
    io,
    path::Path,
    slice,
};

use memmap2::Mmap;
use outcrop_memory::{Access, Maps};

use crate::failure::{Failure, Result};

/// Regions by the program's numbers.
pub(crate) type Regions = BTreeMap<i32, Region>;

/// One protected region.
pub(crate) enum Region {
    Memory(Memory),
    Serialized(Callbacks),
}

impl Region {
    /// Whether it is exactly the memory of another one.
    pub(crate) fn is_same_memory(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => (one.address, one.bytes) == (other.address, other.bytes),
            _ => false,
        }
    }
}

/// Memory that belongs to the program.
pub(crate) struct Memory {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: it is a number here; who follows it holds the lock on the client.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    ///
    /// For as long as it is protected, the memory is there, and nothing else reads or writes it
    /// during calls that save or restore.
    pub(crate) unsafe fn new(address: *mut c_void, bytes: usize) -> Self {
        Self { address: address.cast(), bytes }
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `new` was promised that it is there, and `Mappings` has been asked.
        unsafe { slice::from_raw_parts(self.address, self.bytes) }
    }

    /// Its first `len` bytes, to be filled.
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.bytes);
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`; and it is the only one, as the client is borrowed.
        unsafe { slice::from_raw_parts_mut(self.address, len) }
    }
}

/// The program's own functions for one region, as C sees them.
#[repr(C)]
pub(crate) struct Callbacks {
    pub(crate) context: *mut c_void,
    /// Writes the region to a sink, by `outcrop_veloc_push`; 0 if that went well.
    pub(crate) serialize: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    /// Reads the region from bytes; 0 if that went well.
    pub(crate) deserialize: extern "C" fn(*mut c_void, *const u8, usize) -> c_int,
    pub(crate) release: extern "C" fn(*mut c_void),
}

// SAFETY: the functions are called by the thread that calls the client, under its lock.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// What the program's function writes.
    pub(crate) fn write(&self, id: i32) -> Result<Vec<u8>> {
        let mut bytes = Vec::<u8>::new();
        match (self.serialize)(self.context, (&raw mut bytes).cast()) {
            0 => Ok(bytes),
            _ => Err(Failure::new(format!("the serializer of region {id} has failed; nothing was saved"))),
        }
    }

    /// Lets the program's function read.
    pub(crate) fn read(&self, id: i32, bytes: &[u8]) -> Result<()> {
        match (self.deserialize)(self.context, bytes.as_ptr(), bytes.len()) {
            0 => Ok(()),
            _ => Err(Failure::new(format!("the deserializer of region {id} has failed"))),
        }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        (self.release)(self.context);
    }
}

/// The memory that this process has, so that a region which is not there any more is an error and
/// not the program's end.
pub(crate) struct Mappings(Maps);

impl Mappings {
    pub(crate) fn now() -> Result<Self> {
        Maps::now().map(Self).map_err(unreadable)
    }

    /// An error if a region is not memory that can be read, or written.
    pub(crate) fn check(&self, id: i32, memory: &Memory, is_written: bool) -> Result<()> {
        // What other threads map meanwhile may disturb a list; a second one is believed.
        if self.has(memory, is_written)? || Self::now()?.has(memory, is_written)? {
            return Ok(());
        }
        let what = if is_written { "written" } else { "read" };
        let remedy = "was it freed, is it smaller than it was said to be, or is it memory of a device?";
        let place = format!("{:#x}, {} bytes", memory.address as usize, memory.bytes);
        Err(Failure::new(format!("region {id} at {place}, cannot be {what}: {remedy}")))
    }

    fn has(&self, memory: &Memory, is_written: bool) -> Result<bool> {
        let start = memory.address as usize;
        let access = if is_written { Access::ReadWrite } else { Access::Read };
        self.0.allows(&(start..start.saturating_add(memory.bytes)), access).map_err(unreadable)
    }
}

fn unreadable(error: io::Error) -> Failure {
    Failure::new(format!("/proc/self/maps cannot be read: {error}"))
}

/// A file as memory; nothing if it is empty.
pub(crate) fn map(path: &Path) -> io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the file is one that the program was given to fill, and has closed.
    unsafe { Mmap::map(&file) }.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut there = vec![1u8; 100_000];
        let mappings = Mappings::now().unwrap();
        // SAFETY: it lives until the end of the test.
        let memory = unsafe { Memory::new(there.as_mut_ptr().cast(), there.len()) };
        assert!(mappings.check(1, &memory, true).is_ok());
        // SAFETY: nobody reads it.
        let gone = unsafe { Memory::new(8 as *mut c_void, 16) };
        assert!(mappings.check(2, &gone, false).unwrap_err().to_string().contains("region 2"));
        let text = c"text";
        // SAFETY: nobody writes it.
        let constant = unsafe { Memory::new(text.as_ptr().cast_mut().cast(), 5) };
        assert!(mappings.check(3, &constant, false).is_ok());
        assert!(mappings.check(3, &constant, true).is_err());
        // SAFETY: nobody reads it.
        let long = unsafe { Memory::new(there.as_mut_ptr().cast(), 1 << 46) };
        assert!(mappings.check(4, &long, false).is_err());
    }
}
