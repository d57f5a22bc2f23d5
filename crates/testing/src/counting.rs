//! An allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The system's allocator, which also knows how many bytes are allocated. For
/// `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct Counting {
    bytes: AtomicU64,
}

impl Counting {
    /// One that has allocated nothing.
    pub const fn new() -> Self {
        Self { bytes: AtomicU64::new(0) }
    }

    /// Bytes that are allocated now, with what the allocator needs for each piece.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// What glibc takes for a piece: a word more, in multiples of 16, and at least 32.
fn taken(bytes: usize) -> u64 {
    (bytes as u64 + 8).next_multiple_of(16).max(32)
}

// SAFETY: all calls are passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(taken(layout.size()), Relaxed);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(taken(layout.size()), Relaxed);
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(taken(layout.size()), Relaxed);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        self.bytes.fetch_add(taken(bytes), Relaxed);
        self.bytes.fetch_sub(taken(layout.size()), Relaxed);
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
