//! `outcrop node metrics`: numbers for Prometheus, once or over HTTP.

use std::{
    fmt, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use outcrop::{Error, ErrorKind};
use outcrop_node::Client;

use super::{PlaceArgs, failed, running};
use crate::say::say;

/// How much of a request is read.
const REQUEST_BYTES_MAX: u64 = 8 << 10;
/// How long one who asks may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to serve metrics.
#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Serve them until interrupted, on a loopback address (127.0.0.1:9464) or a Unix socket
    /// (unix:PATH).
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where to listen. Other machines have no way in.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Loopback(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(_) => Err("only loopback addresses are served, as in 127.0.0.1:9464".to_owned()),
            Err(_) => Err("expected an address as in 127.0.0.1:9464, or unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

pub(super) fn run(args: &MetricsArgs) -> Result<()> {
    let client = running(&args.place)?;
    let Some(address) = &args.listen else {
        say!("{}", client.status().map_err(failed)?.prometheus().trim_end());
        return Ok(());
    };
    let cannot = |error: io::Error| {
        let kind = if error.kind() == io::ErrorKind::AddrInUse { ErrorKind::Busy } else { ErrorKind::Storage };
        Error::caused(kind, format_args!("cannot listen on {address}"), error)
    };
    match address {
        Address::Loopback(socket) => {
            let listener = TcpListener::bind(socket).map_err(cannot)?;
            say!("metrics are at {}", Address::Loopback(listener.local_addr()?));
            let patient = |stream: TcpStream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(OwnedFd::from(stream))
            };
            serve(&client, listener.incoming().map(|stream| stream.and_then(patient)))
        }
        Address::Unix(path) => {
            // What a process that was killed has left.
            if is_socket(path) && UnixStream::connect(path).is_err() {
                fs::remove_file(path).map_err(cannot)?;
            }
            let listener = UnixListener::bind(path).map_err(cannot)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(cannot)?;
            say!("metrics are at {address}");
            let patient = |stream: UnixStream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(OwnedFd::from(stream))
            };
            serve(&client, listener.incoming().map(|stream| stream.and_then(patient)))
        }
    }
}

/// Answers one request after the other. Who asks badly gets nothing.
fn serve(client: &Client, streams: impl Iterator<Item = io::Result<OwnedFd>>) -> Result<()> {
    for stream in streams {
        let stream = fs::File::from(stream?);
        if let Err(error) = respond(client, &stream, &mut &stream) {
            tracing::debug!(%error, "a request for metrics was not answered");
        }
    }
    Ok(())
}

fn is_socket(path: &PathBuf) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn respond(client: &Client, reader: impl Read, writer: &mut impl Write) -> io::Result<()> {
    let mut lines = BufReader::new(reader.take(REQUEST_BYTES_MAX)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // The rest is read, so that closing does not look like a failure to the other side.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (status, body) = match first.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/" | "/metrics", _] => match client.status() {
            Ok(status) => ("200 OK", status.prometheus()),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        _ => ("404 Not Found", "ask for /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        writer,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        let loopback = "127.0.0.1:9464".parse::<Address>().unwrap();
        assert_eq!(loopback.to_string(), "http://127.0.0.1:9464/metrics");
        assert_eq!("unix:/run/a".parse::<Address>().unwrap(), Address::Unix("/run/a".into()));
        assert!("[::1]:80".parse::<Address>().is_ok());
        for (text, reason) in [("0.0.0.0:1", "only loopback"), ("9464", "expected an address"), ("unix:", "expected")] {
            assert!(text.parse::<Address>().unwrap_err().contains(reason), "{text}");
        }
    }
}
