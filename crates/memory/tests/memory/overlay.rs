//! Memory in which parts of a file can be seen.

use std::{
    io::Write,
    os::{fd::AsFd, unix::fs::FileExt},
};

use outcrop_memory::{Error, Overlay, page_bytes};

#[test]
fn a_file_is_seen_and_never_changed_and_owned_pages_do_not_depend_on_it() {
    let page = page_bytes();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(0..4 * page).map(|at| (at / page) as u8 + 1).collect::<Vec<_>>()).unwrap();
    let mut memory = Overlay::new(3 * page - 5).unwrap();
    assert_eq!((memory.len(), memory[0]), (3 * page, 0));
    // SAFETY: the file changes below, where the range is owned, and is not looked at else.
    assert!(unsafe { memory.show(page..3 * page, file.as_fd(), 2 * page as u64) }.unwrap());
    assert_eq!((memory[page - 1], memory[page], memory[2 * page]), (0, 3, 4));
    memory[page] = 9;
    memory.own(page..3 * page);
    rustix::io::pwrite(&file, &vec![7; 4 * page], 0).unwrap();
    assert_eq!((memory[page], memory[page + 1], memory[2 * page]), (9, 3, 4));
    let mut byte = [0];
    rustix::io::pread(&file, &mut byte, 2 * page as u64).unwrap();
    assert_eq!(byte, [7], "what was written to the memory is not in the file");
    // In place of what was there.
    // SAFETY: nobody changes the file any more.
    assert!(unsafe { memory.show(page..2 * page, file.as_fd(), 0) }.unwrap());
    assert_eq!((memory[page], memory[2 * page]), (7, 4));
}

#[test]
fn what_does_not_fit_is_refused() {
    let page = page_bytes();
    let file = tempfile::tempfile().unwrap();
    let mut memory = Overlay::new(2 * page).unwrap();
    for (range, at) in [(0..3 * page, 0), (1..page, 0), (0..page - 1, 0), (0..page, 1)] {
        // SAFETY: nothing is shown.
        let shown = unsafe { memory.show(range.clone(), file.as_fd(), at) };
        assert!(matches!(shown, Err(Error::OutOfRange { .. })), "{range:?} at {at}");
    }
    assert!(matches!(Overlay::new(usize::MAX), Err(Error::NoMemory { .. })));
    assert!(matches!(Overlay::new(1 << 60), Err(Error::NoMemory { .. })));
}

#[test]
fn an_overlay_takes_a_bounded_number_of_mappings() {
    let page = page_bytes();
    let file = tempfile::tempfile().unwrap();
    file.set_len(page as u64).unwrap();
    let mut memory = Overlay::new(10_000 * page).unwrap();
    let mut show = |number: usize| {
        // SAFETY: nobody changes the file.
        unsafe { memory.show(number * page..(number + 1) * page, file.as_fd(), 0) }.unwrap()
    };
    let shown = (0..10_000).take_while(|number| show(*number)).count();
    assert_eq!(shown, 8_000);
    assert_eq!(memory[9_000 * page], 0);
}

#[test]
fn what_is_shown_again_and_given_back_takes_no_more_mappings() {
    let page = page_bytes();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[7; 4], page as u64).unwrap();
    file.set_len(3 * page as u64).unwrap();
    let mut memory = Overlay::new(3 * page).unwrap();
    for round in 0..20_000 {
        memory[page] = 9;
        // SAFETY: nobody changes the file.
        let is_shown = unsafe { memory.show(page..2 * page, file.as_fd(), page as u64) }.unwrap();
        assert!(is_shown, "round {round}");
        assert_eq!(memory[page], 7);
    }
    // Neighbours in the file are one piece.
    // SAFETY: nobody changes the file.
    unsafe { memory.show(0..page, file.as_fd(), 0) }.unwrap();
    // SAFETY: nobody changes the file.
    unsafe { memory.show(2 * page..3 * page, file.as_fd(), 2 * page as u64) }.unwrap();
    assert_eq!(format!("{memory:?}"), format!("Overlay({} bytes, 1 pieces)", 3 * page));
    for _ in 0..20_000 {
        memory[page] = 9;
        memory.clear(page..2 * page);
        assert_eq!((memory[page - 1], memory[page], memory[2 * page]), (0, 0, 0));
    }
    assert_eq!(format!("{memory:?}"), format!("Overlay({} bytes, 3 pieces)", 3 * page));
    memory.clear(0..3 * page);
    assert_eq!(format!("{memory:?}"), format!("Overlay({} bytes, 1 pieces)", 3 * page));
}
