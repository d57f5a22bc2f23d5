//! A proxy for HTTP that fails as told, in front of a real server.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What becomes of a request.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    Pass,
    /// Passed on without the condition `If-None-Match`.
    WithoutCondition,
    /// This answer, without asking the server.
    Answer(&'static str),
    /// The answer comes so late.
    Late(Duration),
    /// Nobody ever answers.
    Silent,
    /// So many bytes of the request are read, and then the connection is cut.
    CutRequest(usize),
    /// The server gets the request, and so many bytes of the answer come through.
    CutAnswer(usize),
}

type Rule = Box<dyn FnMut(&str) -> Fate + Send>;

/// The proxy. It ends with the process.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    rule: Arc<Mutex<Rule>>,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Fate::Pass)));
        let proxy = Self { address: listener.local_addr().unwrap(), rule: Arc::clone(&rule) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let rule = Arc::clone(&rule);
                thread::spawn(move || serve(stream, server, &rule));
            }
        });
        proxy
    }

    /// What becomes of each request from now on, by its first line.
    pub(crate) fn rule(&self, rule: impl FnMut(&str) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }
}

/// One request on each connection.
fn serve(mut client: TcpStream, server: SocketAddr, rule: &Mutex<Rule>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let mut text = String::from_utf8_lossy(&head).into_owned();
    let first = text.lines().next().unwrap_or_default().to_owned();
    let length =
        text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let fate = (rule.lock().unwrap())(&first);
    let mut body = vec![0; length.unwrap_or(0)];
    if let Fate::CutRequest(bytes) = fate {
        let bytes = bytes.min(body.len());
        return client.read_exact(&mut body[..bytes]);
    }
    client.read_exact(&mut body)?;
    match fate {
        Fate::Answer(answer) => return client.write_all(answer.as_bytes()),
        Fate::Silent => loop {
            thread::sleep(Duration::from_secs(1));
        },
        Fate::Late(time) => thread::sleep(time),
        _ => {}
    }
    let is_dropped = |line: &str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("connection:")
            || (matches!(fate, Fate::WithoutCondition) && line.starts_with("if-none-match:"))
    };
    text = text.trim_end().lines().filter(|line| !is_dropped(line)).map(|line| format!("{line}\r\n")).collect();
    let mut upstream = TcpStream::connect(server)?;
    upstream.write_all(format!("{text}Connection: close\r\n\r\n").as_bytes())?;
    upstream.write_all(&body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    if let Fate::CutAnswer(bytes) = fate {
        answer.truncate(bytes);
    }
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}
