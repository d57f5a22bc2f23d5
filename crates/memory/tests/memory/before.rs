//! What memory held before can be put back, and what was never touched takes no copy.

use outcrop_memory::{Before, Befores, Pages, Private, page_bytes};
use outcrop_testing::amount;
use proptest::prelude::*;

/// Fresh memory of so many pages.
fn fresh(pages: usize) -> Private {
    Private::new(pages * page_bytes(), Pages::Small).unwrap()
}

fn befores(memory: &[u8], bytes_max: usize) -> Option<Before> {
    Befores::new(bytes_max).of(memory)
}

#[test]
fn untouched_pages_take_no_copy() {
    let mut memory = fresh(100);
    assert!(befores(&memory, 0).is_some());
    memory[50 * page_bytes()] = 1;
    assert!(befores(&memory, page_bytes() - 1).is_none());
    let before = befores(&memory, page_bytes()).unwrap();
    memory.fill(9);
    before.put_back(&mut memory);
    let is_right = |(at, byte): (usize, &u8)| *byte == u8::from(at == 50 * page_bytes());
    assert!(memory.iter().enumerate().all(is_right));
    // Half a page at each end, of pages that somebody else may have touched.
    let inner = &memory[100..memory.len() - 100];
    assert!(befores(inner, 2 * page_bytes()).is_none(), "now all of it is touched");
}

#[test]
fn the_limit_holds_for_all_memory_together() {
    let (one, other) = (vec![1u8; 1000], vec![2u8; 1000]);
    let mut befores = Befores::new(1500);
    assert!(befores.of(&one).is_some());
    assert!(befores.of(&other).is_none());
    assert!(befores.of(&other[..500]).is_some());
    assert!(befores.of(&other[..1]).is_none());
    assert!(befores.of(&[]).is_some());
}

#[test]
fn memory_of_a_file_is_never_taken_for_zero() {
    let bytes = 100 * page_bytes();
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes as u64).unwrap();
    rustix::io::pwrite(&file, &[5], 7 * page_bytes() as u64).unwrap();
    let mut memory = outcrop_memory::Overlay::new(bytes).unwrap();
    // SAFETY: nobody changes the file.
    assert!(unsafe { memory.show(0..bytes, std::os::fd::AsFd::as_fd(&file), 0) }.unwrap());
    assert!(befores(&memory, bytes - 1).is_none());
    let before = befores(&memory, bytes).unwrap();
    memory.fill(9);
    before.put_back(&mut memory);
    assert!(memory.iter().enumerate().all(|(at, byte)| *byte == if at == 7 * page_bytes() { 5 } else { 0 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(50, 2000) as u32))]

    #[test]
    fn any_memory_comes_back(
        writes in prop::collection::vec((0_usize..64 * 4096, 1_u8..), 0..20),
        from in 0_usize..9000,
        to in 0_usize..9000,
        filled in 0_usize..64 * 4096,
    ) {
        let mut memory = fresh(64);
        let mut held = vec![0; memory.len()];
        for (at, byte) in &writes {
            let at = at % held.len();
            (memory[at], held[at]) = (*byte, *byte);
        }
        let end = memory.len() - to;
        let before = befores(&memory[from..end], usize::MAX).unwrap();
        let until = (from + filled).min(end);
        memory[from..until].fill(0xEE);
        before.put_back(&mut memory[from..end]);
        prop_assert!(*memory == *held);
    }
}
