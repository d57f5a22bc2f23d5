//! Daemons for tests: this program, running one test as a child.

use std::{path::Path, process::Command};

use outcrop_node::{Client, Connect, ServeOptions, serve};

const SERVES: &str = "daemon::serves";

/// Serves if a client has started this program for that; does nothing as a test.
#[test]
fn serves() {
    if let Some(options) = ServeOptions::from_environment().unwrap() {
        serve(options).unwrap();
    }
}

/// How tests connect: the daemon leaves soon after its last client.
pub(crate) fn connect(directory: &Path, memory_bytes: u64) -> Connect {
    let mut command = Command::new("");
    let arguments = outcrop_testing::carry_out(&mut command, SERVES).get_args().map(ToOwned::to_owned).collect();
    Connect {
        serve: ServeOptions {
            directory: Some(directory.join("node")),
            memory_bytes: Some(memory_bytes),
            idle: Some(std::time::Duration::from_millis(100)),
            ..ServeOptions::default()
        },
        program: Some(std::env::current_exe().unwrap()),
        arguments,
        ..Connect::default()
    }
}

/// A client of a new daemon.
pub(crate) fn client(directory: &Path, memory_bytes: u64) -> Client {
    Client::connect(&connect(directory, memory_bytes)).unwrap()
}

/// A new file, open for reading and writing.
pub(crate) fn new_file(path: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}
