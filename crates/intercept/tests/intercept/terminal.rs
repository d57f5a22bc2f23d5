//! Programs on a terminal: keys that send signals, and job control.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
};

use outcrop_intercept::Via;
use outcrop_testing::until;

use crate::{
    command::outcrop_run_via,
    scene::{has, scene, staging},
};

/// A process that leads a session on a terminal of its own.
struct OnTerminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: the system fills both numbers, which are new descriptors then.
        let (ours, theirs) = unsafe {
            let null = std::ptr::null_mut();
            assert_eq!(libc::openpty(&raw mut ours, &raw mut theirs, null, null.cast(), null.cast()), 0);
            for descriptor in [ours, theirs] {
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
            (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
        };
        let terminal = theirs.as_raw_fd();
        let lead = move || {
            // SAFETY: two calls to the system, which may be made between fork and exec.
            match unsafe { libc::setsid() < 0 || libc::ioctl(terminal, libc::TIOCSCTTY, 0) < 0 } {
                true => Err(io::Error::last_os_error()),
                false => Ok(()),
            }
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(lead) };
        let copy = || theirs.try_clone().unwrap();
        let child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let (shown, mut from) = (screen.clone(), ours.try_clone().unwrap());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when nobody has the terminal open any more.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keyboard: ours, screen }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is on the screen, and wipes it.
    fn expect(&self, text: &str) {
        until(text, || {
            let mut screen = self.screen.lock().unwrap();
            let is_there = screen.contains(text);
            if is_there {
                screen.clear();
            }
            is_there
        });
    }
}

/// Every way that is possible here, each with an empty directory.
fn in_every_way(test: fn(Via, &Path)) {
    scene(|root| {
        for via in [Via::Fuse].into_iter().chain(staging()) {
            let directory = root.join(via.to_string());
            std::fs::create_dir(&directory).unwrap();
            test(via, &directory);
        }
    });
}

#[test]
fn ctrl_c_reaches_the_program_once() {
    in_every_way(|via, directory| {
        let script = "n=0;trap 'n=$((n+1));echo got INT $n;echo got INT $n > out' INT;echo ready;while [ ! -s out ];do sleep 0.05;done;\
                      sleep 0.3;exit $((n+2))";
        let mut program = OnTerminal::start(outcrop_run_via(via, directory, "5", &["sh", "-c", script]));
        program.expect("ready");
        program.press("\x03");
        program.expect("got INT 1");
        assert_eq!(program.child.wait().unwrap().code(), Some(3), "{via}");
        assert_eq!(std::fs::read_to_string(directory.join("out")).unwrap(), "got INT 1\n");

        let mut program = OnTerminal::start(outcrop_run_via(via, directory, "5", &["sh", "-c", "echo ready;exec cat"]));
        program.expect("ready");
        program.press("\x03");
        assert_eq!(program.child.wait().unwrap().code(), Some(128 + 2), "{via}");
    });
}

#[test]
fn a_program_is_stopped_and_goes_on_as_a_job_of_a_shell() {
    if !has(&["bash"]) {
        return;
    }
    in_every_way(|via, directory| {
        let script = "trap 'exit 7' INT;echo ready;i=0;while :;do i=$((i+1));echo tick $i | tee out;sleep 0.05;done";
        let run = outcrop_run_via(via, directory, "5", &["sh", "-c", script]);
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ");
        for (name, value) in run.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        let words: Vec<_> =
            [run.get_program()].into_iter().chain(run.get_args()).map(|word| word.to_str().unwrap()).collect();
        let mut shell = OnTerminal::start(command);
        shell.press(&format!("{}\n", words.join(" ")));
        shell.expect("tick 1");
        shell.press("\x1a");
        shell.expect("Stopped");
        shell.press("fg; echo code $?\n");
        shell.expect("tick");
        shell.press("\x03");
        shell.expect("code 7");
        shell.press("exit\n");
        shell.child.wait().unwrap();
        let out = std::fs::read_to_string(directory.join("out")).unwrap();
        assert!(out.starts_with("tick "), "{via}: {out}");
    });
}
