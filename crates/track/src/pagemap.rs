//! Reads from /proc/self/pagemap which pages are write-protected.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use linux_raw_sys::general::{
    PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, PM_SCAN_WP_MATCHING, page_region,
    pm_scan_arg,
};
use rustix::{
    io::Errno,
    ioctl::{Opcode, opcode},
};

use crate::{control::control, ranges::page_bytes};

/// How many ranges of pages one request can return.
const REGIONS: usize = 1024;

const SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);

/// The bit in the entry of a page that is set if a userfaultfd protects the page.
const IS_PROTECTED: u64 = 1 << 57;

/// The page table of the process that opened it.
pub(crate) struct Pagemap {
    file: File,
    regions: Vec<page_region>,
}

impl Pagemap {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/pagemap")?, regions: Vec::new() })
    }

    /// Visits the pages of `range` that are not protected, ascending, and protects them. All of it
    /// must be registered with an asynchronous userfaultfd.
    pub(crate) fn protect_anew(&mut self, range: &Range<usize>, mut visit: impl FnMut(Range<usize>)) -> io::Result<()> {
        self.regions.resize(REGIONS, page_region { start: 0, end: 0, categories: 0 });
        let mut start = range.start;
        while start < range.end {
            let mut request = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags: u64::from(PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC),
                start: start as u64,
                end: range.end as u64,
                walk_end: 0,
                vec: self.regions.as_mut_ptr().addr() as u64,
                vec_len: self.regions.len() as u64,
                max_pages: 0,
                // Pages that are written, or not present. Memory that the program has discarded
                // (`madvise`) is not protected any more, but some kernels do not report it as
                // written: then it is neither present nor swapped. A protected page without memory
                // counts as swapped.
                category_inverted: u64::from(PAGE_IS_PRESENT),
                category_mask: 0,
                category_anyof_mask: u64::from(PAGE_IS_WRITTEN | PAGE_IS_PRESENT),
                return_mask: u64::from(PAGE_IS_WRITTEN | PAGE_IS_SWAPPED),
            };
            // SAFETY: the structure of this request, with the address and length of a vector that
            // nobody else uses. Protecting memory does not change its contents.
            let count = match unsafe { control(&self.file, SCAN, &mut request) } {
                Err(Errno::INTR) => continue,
                outcome => outcome?,
            };
            for region in &self.regions[..count] {
                let is_protected = region.categories == u64::from(PAGE_IS_SWAPPED);
                if !is_protected {
                    visit(region.start as usize..region.end as usize);
                }
                start = region.end as usize;
            }
            // `walk_end` can be stale. A vector that is not full also means that this is the end.
            if count < self.regions.len() {
                break;
            }
        }
        Ok(())
    }

    /// Visits the ranges of pages in `range` that any userfaultfd protects, ascending. Does not
    /// allocate.
    pub(crate) fn protected(&self, range: &Range<usize>, mut visit: impl FnMut(Range<usize>)) -> io::Result<()> {
        let mut numbers = [0; 512];
        let mut pages = range.start / page_bytes()..range.end / page_bytes();
        while !pages.is_empty() {
            let count = pages.len().min(numbers.len() / size_of::<u64>());
            let numbers = &mut numbers[..count * size_of::<u64>()];
            self.file.read_exact_at(numbers, (pages.start * size_of::<u64>()) as u64)?;
            let is_protected = |number: &[u8; 8]| u64::from_ne_bytes(*number) & IS_PROTECTED != 0;
            let mut page = pages.start;
            for stretch in numbers.as_chunks().0.chunk_by(|a, b| is_protected(a) == is_protected(b)) {
                let end = page + stretch.len();
                if is_protected(&stretch[0]) {
                    visit(page * page_bytes()..end * page_bytes());
                }
                page = end;
            }
            pages.start += count;
        }
        Ok(())
    }
}
