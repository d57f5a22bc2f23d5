//! Arrays that programs in other languages write through a pointer. What has changed is found by
//! looking: pages that were written are copies of the process.

use crate::{Block, Error, Part, Parts, Pool, Result, Shape, Structure, layout};

/// An array at a fixed address, for bindings to other languages.
pub struct Foreign {
    part: Part,
}

impl Pool {
    /// Opens an array of numbers of a type such as `f64`, as [`array`](Self::array) does.
    #[doc(hidden)]
    pub fn foreign(&self, name: &str, element: &str, shape: impl Into<Shape>, block: Block) -> Result<Foreign> {
        let element = layout::named(element).ok_or_else(|| {
            Error::Misfit(format!("\"{name}\": an array of a pool has numbers, such as f64 or i32, and not {element}"))
        })?;
        let mut part = self.part_of(name, element, Some(shape.into().0), block, &[])?;
        part.be_foreign();
        Ok(Foreign { part })
    }
}

impl Foreign {
    /// Where it begins. It stays there, also when a version is restored. It may be written while no
    /// call of this structure or its pool runs.
    pub fn address(&mut self) -> *mut u8 {
        self.part.memory.as_mut_ptr()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.part.described.bytes() as usize
    }

    /// The number of elements in each dimension; 1 beyond the last one.
    pub fn shape(&self) -> [usize; 3] {
        self.part.described.shape.map(|count| count as usize)
    }
}

impl Structure for Foreign {
    fn parts(&mut self) -> Parts<'_> {
        self.part.look();
        Parts(vec![&mut self.part])
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Foreign").field("name", &self.part.described.name).finish_non_exhaustive()
    }
}
