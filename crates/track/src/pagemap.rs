//! Which pages are write-protected, by PAGEMAP_SCAN.

use std::{fs::File, io, ops::Range};

use linux_raw_sys::general::{
    PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region,
    pm_scan_arg,
};
use rustix::{
    io::Errno,
    ioctl::{Opcode, opcode},
};

use crate::control::control;

/// Stretches of pages that one request can return.
const REGIONS: usize = 1024;

const SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

/// The page table of the process that opened it.
pub(crate) struct Pagemap {
    file: File,
    regions: Vec<page_region>,
}

/// Which pages a scan asks for. A page is told from another by three marks: present, swapped (also pages that are protected
/// without having memory), and written (not protected).
struct Search {
    flags: u32,
    /// Marks that count when they are absent.
    inverted: u32,
    all_of: u32,
    any_of: u32,
}

impl Pagemap {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/pagemap")?, regions: Vec::new() })
    }

    /// Visits the pages of `range` that are not protected, ascending, and protects them. All of it must be registered with an
    /// asynchronous userfaultfd.
    pub(crate) fn protect_anew(&mut self, range: &Range<usize>, mut visit: impl FnMut(Range<usize>)) -> io::Result<()> {
        // Memory that the program has given back is not protected any more, but some kernels do not call it written: it is
        // neither present nor swapped then.
        let search = Search {
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            inverted: PAGE_IS_PRESENT,
            all_of: 0,
            any_of: PAGE_IS_WRITTEN | PAGE_IS_PRESENT,
        };
        self.scan(range, &search, |found, marks| {
            let is_protected = marks & PAGE_IS_WRITTEN == 0 && marks & PAGE_IS_SWAPPED != 0;
            if !is_protected {
                visit(found);
            }
            true
        })
    }

    /// Whether every page of `range` is mapped and protected. Who protected it is not asked.
    pub(crate) fn is_protected(&mut self, range: &Range<usize>) -> io::Result<bool> {
        let search = Search {
            flags: 0,
            inverted: PAGE_IS_WRITTEN,
            all_of: PAGE_IS_WRITTEN,
            any_of: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        };
        let mut reached = range.start;
        self.scan(range, &search, |found, _| {
            let follows = found.start == reached;
            reached = found.end;
            follows
        })?;
        Ok(reached == range.end)
    }

    /// Visits what is found, ascending, until `visit` says that it is enough.
    fn scan(
        &mut self,
        range: &Range<usize>,
        search: &Search,
        mut visit: impl FnMut(Range<usize>, u32) -> bool,
    ) -> io::Result<()> {
        if self.regions.is_empty() {
            self.regions.resize(REGIONS, page_region { start: 0, end: 0, categories: 0 });
        }
        let mut start = range.start;
        while start < range.end {
            let mut request = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: u64::from(search.flags),
                start: start as u64,
                end: range.end as u64,
                walk_end: 0,
                vec: self.regions.as_mut_ptr().addr() as u64,
                vec_len: self.regions.len() as u64,
                max_pages: 0,
                category_inverted: u64::from(search.inverted),
                category_mask: u64::from(search.all_of),
                category_anyof_mask: u64::from(search.any_of),
                return_mask: u64::from(PAGE_IS_WRITTEN | PAGE_IS_PRESENT | PAGE_IS_SWAPPED),
            };
            // SAFETY: the structure of this request, with the place and the length of a vector that nobody else uses. Protecting
            // memory changes none of its contents.
            let count = match unsafe { control(&self.file, SCAN, &mut request) } {
                Err(Errno::INTR) => continue,
                outcome => outcome?,
            };
            for region in &self.regions[..count] {
                start = region.end as usize;
                if !visit(region.start as usize..start, region.categories as u32) {
                    return Ok(());
                }
            }
            // `walk_end` can be stale; a vector that is not full says as well that this was all.
            if count < self.regions.len() {
                return Ok(());
            }
        }
        Ok(())
    }
}
