//! The interface itself: its symbols, C++, and every mistake that a program can make.

use std::{
    collections::BTreeSet,
    fs,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    process::{Command, Stdio},
    thread,
};

use crate::common::{archive, build_dir, config, has_cmake, has_mpi, program, ranks, run, source, told, turn};

#[test]
fn no_mistake_is_a_crash_and_each_has_its_sentence() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "mode = sync\nmax_version = 3\nec_interval = 0");
    let no_mode = dir.path().join("no_mode.cfg");
    fs::write(&no_mode, format!("scratch = {}\n", dir.path().display())).unwrap();
    let mut command = Command::new(program("misuse.c"));
    command.env("OUTCROP_HOSTT", "1 MiB").env("VELOC_SCRATH", "x");
    let read_only = dir.path().join("read_only.cfg");
    fs::write(&read_only, "scratch = /proc/outcrop\npersistent = /proc/outcrop\nmode = sync\n").unwrap();
    let output = run(command.arg(config).arg(no_mode).arg(dir.path().join("missing.cfg")).arg(read_only));
    let said = told(&output);
    assert!(said.contains("all mistakes were survived"), "{said}");
    for sentence in [
        "VELOC_Checkpoint: VELOC is not initialised",
        "the configuration has no mode; add a line `mode = async`",
        "missing.cfg cannot be read",
        "VELOC_Init needs a communicator; call MPI_Init first",
        "has no key max_version, and goes on without; did you mean max_versions?",
        "ec_interval: all ranks are on",
        "it is initialised already",
        "region 1 is NULL and has 40 bytes",
        "region 1 would be larger than memory can be",
        "the name is NULL",
        "checkpoints cannot be called \"../up\"",
        "version -1 is below 0",
        "none is protected; call VELOC_Mem_protect first",
        "no checkpoint has begun; call VELOC_Checkpoint_begin first",
        "no restart has begun; call VELOC_Restart_begin first",
        "call VELOC_Checkpoint_end first",
        "there is no mode 7",
        "there is no region 9, only {1, 2}",
        "the list of ids is NULL",
        "-2 ids are fewer than none",
        "the program must write and close it before VELOC_Checkpoint_end",
        "the program says that it has failed",
        "it was saved as a file; ask VELOC_Route_file for it",
        "it was saved from memory; call VELOC_Recover_mem",
        "region 1 is too small: 200 bytes are protected and 400 were saved",
        "version 2 of sizes is not there, undamaged, on all ranks",
        "region 1 is not protected; call VELOC_Mem_protect for it first",
        "cannot be read: was it freed",
        "cannot be written: was it freed",
        "a child has no threads to write with",
        "the variable OUTCROP_HOSTT is not known and has no effect; did you mean OUTCROP_HOST?",
        "the variable VELOC_SCRATH is not known and has no effect; did you mean VELOC_SCRATCH?",
    ] {
        assert!(said.contains(sentence), "{sentence}\n{said}");
    }
    let crashes = ["panicked", "RUST_BACKTRACE"];
    assert!(!crashes.iter().any(|crash| said.contains(crash)), "{said}");
}

#[test]
fn a_message_is_written_at_once() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "mode = sync");
    // Of this kind of socket, one read returns what one call has written.
    let (theirs, ours) = UnixDatagram::pair().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let mut lines = Vec::new();
        while let Ok(count) = ours.recv(&mut bytes)
            && count > 0
        {
            lines.push(String::from_utf8_lossy(&bytes[..count]).into_owned());
        }
        lines
    });
    let mut command = Command::new(program("misuse.c"));
    command.arg(config).args(["missing.cfg"; 3]).stdout(Stdio::null());
    let kept = theirs.try_clone().unwrap();
    let status = command.stderr(Stdio::from(OwnedFd::from(theirs))).status().unwrap();
    drop(command);
    kept.send(&[]).unwrap();
    let lines = reader.join().unwrap();
    assert!(status.success() && lines.len() > 40, "{lines:?}");
    let is_whole = |line: &&String| line.starts_with("veloc (outcrop)") && line.matches('\n').count() == 1;
    let broken: Vec<_> = lines.iter().filter(|line| !is_whole(line) || !line.ends_with('\n')).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn the_class_of_cpp_does_all_that_c_does() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "mode = async");
    let output = run(ranks(3, &program("client.cpp")).arg(config).arg(dir.path().join("missing.cfg")));
    assert!(told(&output).contains("the serializer of region 2 has failed"), "{}", told(&output));
}

#[test]
fn what_a_serializer_writes_is_saved_before_it_is_freed() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "mode = async");
    run(Command::new(program("serialized.cpp")).arg(config).env("OUTCROP_LIVE", "1 MiB"));
}

#[test]
fn ranks_that_do_not_share_a_directory_are_told_so() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (config, heat) = (config(dir.path(), "mode = async"), program("heat.c"));
    // Each rank is told of another directory, as if it were on another machine.
    let script = "export VELOC_PERSISTENT=$0/$OMPI_COMM_WORLD_RANK; exec \"$@\"";
    let mut command = ranks(2, "sh".as_ref());
    command.args(["-c", script]).arg(dir.path()).arg(heat).arg(config).args(["memory", "5", "5", "never"]);
    let output = command.output().unwrap();
    let said = told(&output);
    assert!(!output.status.success() && said.contains("rank 1 does not see what rank 0 has made"), "{said}");
    assert!(
        said.contains("give a directory that all ranks share (`meta` or `persistent` in the configuration)"),
        "{said}"
    );
    for rank in ["0", "1"] {
        assert_eq!(fs::read_dir(dir.path().join(rank)).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn the_library_shows_what_veloc_shows_and_nothing_else() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    program("heat.c");
    let listed =
        run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(build_dir().join("libveloc-client.so")));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let shown: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let (c, cpp): (BTreeSet<&str>, _) = shown.iter().partition(|name| name.starts_with("VELOC_"));
    let header = fs::read_to_string(source("include/veloc.h")).unwrap();
    let declared: BTreeSet<&str> =
        header.lines().filter_map(|line| line.strip_prefix("int ")?.split('(').next()).collect();
    assert_eq!((c.len(), &c), (25, &declared));
    assert!(cpp.iter().all(|name: &&str| name.contains("5veloc")), "{cpp:?}");
    let has = |part: &str| cpp.iter().any(|name| name.contains(part));
    assert!(has("get_clientEj") && has("get_clientEP") && has("_ZTIN5veloc8client_tE"), "{cpp:?}");
}

#[test]
fn without_mpi_there_is_still_a_library() {
    if !has_mpi() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libveloc-client.so");
    let output = run(crate::common::link(&library).env("MPICXX", "no-such-compiler"));
    assert!(told(&output).contains("no MPI was found"), "{}", told(&output));
    let listed = run(Command::new("nm").arg("--dynamic").arg(&library));
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(" VELOC_Init_single") && !listed.contains("MPI_"), "{listed}");
}

#[test]
fn cmake_finds_it_as_it_finds_veloc() {
    if !has_mpi() || !has_cmake() {
        return;
    }
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    crate::install::put_veloc(&source("../.."), &archive(), &prefix).unwrap();
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)
project(Steps C CXX)
find_package(veloc 2 QUIET)
if(veloc_FOUND)
  message(FATAL_ERROR \"another interface was accepted\")
endif()
find_package(veloc 1.6 REQUIRED)
add_executable(steps {programs}/steps.c)
target_link_libraries(steps PRIVATE veloc::client)
add_executable(client {programs}/client.cpp)
target_link_libraries(client PRIVATE veloc::veloc-client)
target_compile_features(client PRIVATE cxx_std_17)
",
        programs = source("tests/programs").display()
    );
    fs::write(dir.path().join("CMakeLists.txt"), project).unwrap();
    let build = dir.path().join("build");
    let found = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    run(Command::new("cmake").arg("-S").arg(dir.path()).arg("-B").arg(&build).arg(found));
    run(Command::new("cmake").arg("--build").arg(&build));
    let config = config(dir.path(), "mode = sync");
    run(Command::new(build.join("steps")).arg("7").arg(config).args([
        "protect:1:100",
        "fill:1",
        "save:x:1",
        "test:x:0:1",
    ]));
}
