//! A server of objects that speaks S3: moto, from PyPI, in an environment below `target`.

use std::{
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use crate::until;

/// What is installed.
const MOTO: &str = "moto[server]==5.2.2";

/// A server with no bucket, which ends when it is dropped. It keeps everything in memory.
pub struct ObjectServer {
    child: Child,
    address: SocketAddr,
}

impl ObjectServer {
    /// Starts it. `target` is a directory below `target`, such as `CARGO_TARGET_TMPDIR`.
    ///
    /// # Errors
    /// Why there is none here: no Python, or no package.
    pub fn start(target: &Path) -> Result<Self, String> {
        let environment = target.parent().unwrap_or(target).join("moto-venv");
        install(&environment)?;
        // The system gives out a port that is free.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| format!("no port is free: {error}"))?;
        let mut command = Command::new(environment.join("bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("cannot start moto: {error}"))?;
        let server = Self { child, address };
        until("moto listens", || TcpStream::connect(address).is_ok());
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a bucket.
    pub fn make_bucket(&self, name: &str) {
        let answer = self.request("PUT", &format!("/{name}"), b"");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Sends a request without a signature, which this server does not ask for.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Variables by which a client finds a server at this address, with credentials.
    pub fn variables(address: SocketAddr) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "outcrop-test-id".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "outcrop-test-secret".to_owned()),
        ]
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Installs the server, unless it is there. Tests of one program wait for each other; `cargo test`
/// runs one program after the other.
fn install(environment: &Path) -> Result<(), String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stamp = environment.join("moto.done");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == MOTO) {
        return Ok(());
    }
    let python = env::var("OUTCROP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    run(Command::new(python).args(["-m", "venv", "--clear"]).arg(environment))?;
    let python = environment.join("bin/python");
    run(Command::new(python).args(["-m", "pip", "install", "--quiet", "--retries", "10", MOTO]))?;
    fs::write(&stamp, MOTO).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?} ended with {}: {}", output.status, said())) }
}
