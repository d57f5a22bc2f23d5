//! The limit on memory of staged files, for what is written unseen: by small writes.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use outcrop_intercept::Via;
use outcrop_testing::{Group, amount, skip, until};

use crate::{
    command::{MEMORY, outcrop_run_via},
    scene::staging,
    staged::Told,
};

#[test]
fn a_file_that_outgrows_the_memory_by_small_writes_leaves_it() {
    if !staging().contains(&Via::Seccomp) {
        return;
    }
    let mut told = Told::start_with(Via::Seccomp, 4 << 20);
    told.say("mkfifo pipe; dd if=pipe of=out bs=4k iflag=fullblock status=none & exec 3> pipe");
    told.say("head -c 2097152 /dev/urandom > first; cat first first first >&3");
    // It waits in a read; with its next calls it gets the real file.
    told.say("cat first >&3");
    until("the file has left the memory", || told.real_bytes("out") == 8 << 20);
    told.say("printf end >&3; exec 3>&-; wait; cat first first first first > expected; printf end >> expected");
    told.say("cmp out expected; rm first expected");
    assert_eq!(told.real_bytes("out"), (8 << 20) + 3);
    assert_eq!(told.end(), 0);
}

/// Whether memory is looked at in time depends on how busy the machine is, so only a soak tries it.
#[test]
fn programs_that_write_little_by_little_are_not_killed_in_a_small_control_group() {
    if amount(true, false) {
        return;
    }
    let group = match Group::new(512 << 20) {
        Ok(group) => group,
        Err(reason) => return skip(format_args!("no control group with a limit on memory: {reason}")),
    };
    if !staging().contains(&Via::Seccomp) {
        return;
    }
    let mib = 1000;
    // Each writes more than there is, without a call that is looked at.
    let script = format!(
        "jobs=; for n in 1 2; do dd if=/dev/zero of=out-$n bs=8k count={} status=none & jobs=\"$jobs $!\"; done
         for job in $jobs; do wait $job; done
         echo done > done",
        mib * 128
    );
    let directory = tempfile::tempdir().unwrap();
    for (nth, memory) in [1_u64 << 40, 16 << 20].into_iter().enumerate() {
        let inside = directory.path().join(nth.to_string());
        fs::create_dir(&inside).unwrap();
        let mut command =
            outcrop_run_via(Via::Seccomp, &inside, "through", &["sh", "-euc", &script.replace('\n', ";")]);
        command.env(MEMORY, memory.to_string());
        let output = in_group(&group, &command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "with a limit of {memory}: {} {text}", output.status);
        assert_eq!(fs::read(inside.join("done")).unwrap(), b"done\n");
        for name in ["out-1", "out-2"] {
            assert_eq!(fs::metadata(inside.join(name)).unwrap().len(), mib << 20, "{name}: {text}");
        }
        fs::remove_dir_all(&inside).unwrap();
    }
}

/// Runs a command that is in the group from its beginning.
fn in_group(group: &Group, command: &Command) -> std::process::Output {
    let mut waiting = Command::new("sh");
    waiting.args(["-c", "read x; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    waiting.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let piped = waiting.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    group.add(child.id());
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    child.wait_with_output().unwrap()
}
