//! Frozen images and processes: what a forked process sees of them, what they leave behind, and
//! memory that is unmapped. Each test runs in a process of its own, because it forks, and because
//! no other test may get the memory.

use std::{
    fs,
    io::Read,
    os::fd::{FromRawFd, IntoRawFd},
    time::{Duration, Instant},
};

use outcrop_testing::{alone, in_fork, skip};
use outcrop_track::{Error, FreezeOptions, FreezeWay, Frozen, Way, freeze};

use crate::common::{self, Mapping, PAGE, patterned};

fn frozen(way: FreezeWay, memory: &[u8]) -> Option<Frozen> {
    match freeze(&[memory], FreezeOptions { way, ..FreezeOptions::default() }) {
        Ok(frozen) => Some(frozen),
        Err(error) => {
            skip(error);
            None
        }
    }
}

fn pipe() -> (fs::File, fs::File) {
    let mut ends = [0; 2];
    // SAFETY: two new descriptors that nobody else has.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (fs::File::from_raw_fd(ends[0]), fs::File::from_raw_fd(ends[1]))
    }
}

/// Children of this process, including those that an ordinary wait does not find.
fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(child) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name ends with the last parenthesis. After it: state, parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if parent == Some(pid) {
            found.push(child);
        }
    }
    found
}

#[test]
fn a_forked_process_can_neither_use_nor_harm_an_image() {
    if alone("freeze_process::a_forked_process_can_neither_use_nor_harm_an_image") {
        return;
    }
    for way in [FreezeWay::Fork, FreezeWay::Protect] {
        let mut memory = Mapping::new(64 * PAGE);
        memory.fill(7);
        let Some(image) = frozen(way, &memory) else { continue };
        let mut image = Some(image);
        let status = in_fork(|| {
            let mut copy = image.take().unwrap();
            let is_refused = matches!(copy.read(0, 0, &mut [0]), Err(Error::OtherProcess));
            copy.release(0, 0..64 * PAGE);
            memory.fill(1);
            drop(copy);
            is_refused
        });
        assert!(status.success(), "{way}: {status}");
        memory.fill(2);
        let mut into = vec![0; 64 * PAGE];
        image.as_ref().unwrap().read(0, 0, &mut into).unwrap();
        assert!(into.iter().all(|byte| *byte == 7), "{way}");
    }
}

#[test]
fn an_image_ends_also_while_a_forked_process_lives() {
    if alone("freeze_process::an_image_ends_also_while_a_forked_process_lives") {
        return;
    }
    let mut memory = Mapping::new(64 * PAGE);
    let Some(image) = frozen(FreezeWay::Protect, &memory) else { return };
    let (reader, writer) = pipe();
    // SAFETY: the child waits until the pipe is closed, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(writer);
        let _ = (&reader).read(&mut [0]);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    drop(image);
    // Would wait forever if it were still protected.
    memory.fill(1);
    drop(writer);
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

#[test]
fn a_fork_leaves_no_process_behind() {
    if alone("freeze_process::a_fork_leaves_no_process_behind") {
        return;
    }
    let memory = Mapping::new(64 * PAGE);
    let before = children(std::process::id());
    let Some(image) = frozen(FreezeWay::Fork, &memory) else { return };
    assert_eq!(children(std::process::id()).len(), before.len() + 1);
    // The program's own wait does not find it. SAFETY: only queries.
    let found = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert!(found < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD));
    drop(image);
    assert_eq!(children(std::process::id()), before);
}

#[test]
fn an_image_does_not_outlive_a_killed_program() {
    if alone("freeze_process::an_image_does_not_outlive_a_killed_program") {
        return;
    }
    let memory = Mapping::new(64 * PAGE);
    if frozen(FreezeWay::Fork, &memory).is_none() {
        return;
    }
    let (mut reader, writer) = pipe();
    let (until, end) = pipe();
    // SAFETY: the child freezes memory, reports that, and waits to be killed.
    let program = unsafe { libc::fork() };
    if program == 0 {
        drop(end);
        let image = frozen(FreezeWay::Fork, &memory);
        // Another process has copies of all open files of the program. SAFETY: the child waits for
        // the end of the test, and exits.
        let bystander = unsafe { libc::fork() };
        if bystander == 0 {
            let _ = (&until).read(&mut [0]);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        let _ = std::io::Write::write_all(&mut &writer, &bystander.to_ne_bytes());
        let _keep = (image, writer.into_raw_fd());
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    drop(writer);
    let mut bystander = [0; 4];
    reader.read_exact(&mut bystander).unwrap();
    let mut images = children(program as u32);
    images.retain(|pid| *pid != u32::from_ne_bytes(bystander));
    assert_eq!(images.len(), 1);
    // SAFETY: our own child.
    unsafe {
        libc::kill(program, libc::SIGKILL);
        libc::waitpid(program, std::ptr::null_mut(), 0);
    }
    let is_there = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie that its new parent has not reaped does not count.
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    let begin = Instant::now();
    while is_there(images[0]) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the image is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(end);
}

#[test]
fn an_image_outlives_the_thread_that_made_it() {
    if alone("freeze_process::an_image_outlives_the_thread_that_made_it") {
        return;
    }
    for way in [FreezeWay::Fork, FreezeWay::Protect] {
        let mut memory = Mapping::new(64 * PAGE);
        memory.fill(3);
        let made = std::thread::scope(|scope| scope.spawn(|| frozen(way, &memory)).join().unwrap());
        let Some(image) = made else { continue };
        memory.fill(4);
        let mut into = vec![0; 64 * PAGE];
        image.read(0, 0, &mut into).unwrap();
        assert!(into.iter().all(|byte| *byte == 3), "{way}");
    }
}

#[test]
fn an_image_keeps_no_file_open() {
    if alone("freeze_process::an_image_keeps_no_file_open") {
        return;
    }
    let memory = Mapping::new(64 * PAGE);
    let (mut reader, writer) = pipe();
    let Some(_image) = frozen(FreezeWay::Fork, &memory) else { return };
    drop(writer);
    // The end of the pipe, once the child has closed its copy.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn memory_that_is_not_frozen_is_not_kept() {
    if alone("freeze_process::memory_that_is_not_frozen_is_not_kept") {
        return;
    }
    let mut memory = Mapping::new(64 * PAGE);
    let mut other = Mapping::new(4096 * PAGE);
    memory.fill(1);
    other.fill(1);
    let Some(image) = frozen(FreezeWay::Fork, &memory) else { return };
    let begin = Instant::now();
    other.fill(2);
    // The child releases it with a delay.
    while image.extra_bytes() > 512 * PAGE as u64 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} extra bytes", image.extra_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = image.extra_bytes();
    memory.fill(2);
    assert!(image.extra_bytes() >= before + 60 * PAGE as u64, "{before}, then {}", image.extra_bytes());
    let mut into = vec![0; 64 * PAGE];
    image.read(0, 0, &mut into).unwrap();
    assert!(into.iter().all(|byte| *byte == 1));
}

/// Becomes an unprivileged user. Returns false if this user cannot.
fn become_nobody() -> bool {
    // SAFETY: affects this process alone. After changing its user, a process cannot be inspected
    // unless it allows that.
    let is_done =
        unsafe { libc::setresuid(65_534, 65_534, 65_534) == 0 && libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) == 0 };
    if !is_done {
        skip("only root can become another user");
    }
    is_done
}

#[test]
fn a_user_without_rights_can_watch_and_freeze_by_fork() {
    if alone("freeze_process::a_user_without_rights_can_watch_and_freeze_by_fork") {
        return;
    }
    let has_pages = common::has(Way::Pages);
    let status = in_fork(|| {
        if !become_nobody() {
            return true;
        }
        let memory = Mapping::new(64 * PAGE);
        let protect = freeze(&[&memory], FreezeOptions { way: FreezeWay::Protect, ..FreezeOptions::default() });
        let is_refused = match protect {
            // The system may be configured to allow it.
            Ok(_) => return true,
            Err(Error::Refused { remedy, .. }) => remedy.contains("CAP_SYS_PTRACE"),
            Err(_) => false,
        };
        let is_fork = freeze(&[&memory], FreezeOptions::default()).unwrap().way() == FreezeWay::Fork;
        let bound = FreezeOptions { extra_bytes_max: 32 * PAGE as u64, ..FreezeOptions::default() };
        let is_bound = matches!(freeze(&[&memory], bound), Err(Error::Bound { reason, .. }) if reason.contains("fork"));
        is_refused && is_fork && is_bound && has_pages == common::has(Way::Pages)
    });
    assert!(status.success(), "{status}");
}

#[test]
fn memory_may_be_unmapped_discarded_or_replaced() {
    if alone("freeze_process::memory_may_be_unmapped_discarded_or_replaced") {
        return;
    }
    type Harm = fn(&mut Mapping);
    let harms: [Harm; 4] = [
        |memory| memory.unmap(0, memory.len()),
        |memory| memory.unmap(8 * PAGE, 8 * PAGE),
        |memory| memory.advise(4 * PAGE, 20 * PAGE, libc::MADV_DONTNEED),
        Mapping::replace,
    ];
    for way in [FreezeWay::Fork, FreezeWay::Protect] {
        for harm in harms {
            let mut memory = patterned(64 * PAGE);
            let shadow = memory.to_vec();
            let Some(mut frozen) = frozen(way, &memory) else { continue };
            memory[9 * PAGE] = 0;
            harm(&mut memory);
            let mut vanished = 0;
            for page in 0..64 {
                let mut into = [0; PAGE];
                match frozen.read(0, page * PAGE, &mut into) {
                    Ok(()) => assert!(into[..] == shadow[page * PAGE..(page + 1) * PAGE], "{way}: page {page}"),
                    Err(Error::Vanished { part: 0, .. }) => vanished += 1,
                    Err(error) => panic!("{way}: {error}"),
                }
            }
            assert!(vanished > 0 || way == FreezeWay::Fork);
            // A page that was copied before can be read in any case.
            frozen.read(0, 9 * PAGE, &mut [0; PAGE]).unwrap();
            frozen.release(0, 0..64 * PAGE);
        }
    }
}
