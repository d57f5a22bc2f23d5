//! The client for S3 with a real server, through a proxy that fails as told.

use std::{
    io::{self, Write},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use outcrop_layers::files::{Files, read_whole, write_whole};
use outcrop_object::{ObjectFiles, Options};
use outcrop_testing::{ObjectServer, pattern, skip};
use tracing_subscriber::fmt::MakeWriter;

use crate::proxy::{Fate, Proxy};

const DIR: &str = "heat/rank-00000";
const LOCK: &str = "heat/rank-00000/lock";
const BYTES: u64 = 20 << 20;
const BUSY: &str = "HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// A server with a bucket, behind a proxy. `None` if there is none here.
fn behind_proxy() -> Option<(ObjectServer, Proxy)> {
    match ObjectServer::start(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(server) => {
            server.make_bucket("bucket");
            let proxy = Proxy::start(server.address());
            Some((server, proxy))
        }
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn open(proxy: &Proxy, patience: Duration) -> io::Result<ObjectFiles> {
    open_at(proxy, "s3://bucket/some/run", patience)
}

fn open_at(proxy: &Proxy, address: &str, patience: Duration) -> io::Result<ObjectFiles> {
    let mut options = Options::default();
    options.patience = patience;
    options.variables = ObjectServer::variables(proxy.address).map(|(name, value)| (name.to_owned(), value)).into();
    ObjectFiles::open(address, options)
}

fn make_pack(files: &ObjectFiles, name: &str) -> io::Result<()> {
    let file = files.create_new(&format!("{DIR}/{name}"), BYTES)?;
    file.write_at(0, &pattern(1, BYTES))?;
    file.sync()
}

fn read(files: &ObjectFiles, name: &str) -> io::Result<Vec<u8>> {
    read_whole(files, &format!("{DIR}/{name}"), 2 * BYTES)
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);

#[test]
fn packs_and_manifests_go_to_a_server_and_come_back() {
    let Some((server, proxy)) = behind_proxy() else { return };
    let files = open(&proxy, LONG).unwrap();
    let lock = files.lock(LOCK).unwrap().unwrap();
    make_pack(&files, "pack").unwrap();
    write_whole(&files, DIR, "version", b"one").unwrap();
    write_whole(&files, DIR, "version", b"two").unwrap();
    let reader = open(&proxy, LONG).unwrap();
    assert_eq!(reader.list("").unwrap(), ["heat"]);
    assert!(read(&reader, "pack").unwrap() == pattern(1, BYTES));
    assert_eq!(read(&reader, "version").unwrap(), b"two");
    assert!(reader.remarks(DIR).is_empty(), "this server keeps conditions");
    assert!(reader.lock(LOCK).unwrap().is_none());
    drop(lock);
    // An upload that nobody completes is found by the next owner.
    let begun = server.request("POST", &format!("/bucket/some/run/{DIR}/pack-9/tag?uploads="), b"");
    assert!(begun.contains("<UploadId>"), "{begun}");
    let other = server.request("POST", "/bucket/some/runner/pack?uploads=", b"");
    assert!(other.contains("<UploadId>"), "{other}");
    let _lock = reader.lock(LOCK).unwrap().unwrap();
    let left = server.request("GET", "/bucket?uploads", b"");
    assert!(!left.contains("pack-9") && left.contains("some/runner/pack"), "only its own: {left}");
    reader.remove(&format!("{DIR}/pack")).unwrap();
    assert_eq!(read(&open(&proxy, LONG).unwrap(), "pack").unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_server_behind_a_proxy_that_drops_conditions_is_found_out() {
    let Some((_server, proxy)) = behind_proxy() else { return };
    proxy.rule(|_| Fate::WithoutCondition);
    let (files, other) = (open(&proxy, LONG).unwrap(), open(&proxy, LONG).unwrap());
    let _lock = files.lock(LOCK).unwrap().unwrap();
    write_whole(&files, DIR, "version", b"one").unwrap();
    assert!(other.lock(LOCK).unwrap().is_none());
    assert_eq!(other.remarks(DIR).len(), 1);
}

#[test]
fn a_server_that_fails_for_a_while_costs_time_and_nothing_else() {
    let Some((_server, proxy)) = behind_proxy() else { return };
    let files = open(&proxy, LONG).unwrap();
    let _lock = files.lock(LOCK).unwrap().unwrap();
    for (name, fate) in [
        ("busy", Fate::Answer(BUSY)),
        ("late", Fate::Late(Duration::from_millis(300))),
        ("cut-0", Fate::CutRequest(0)),
        ("cut", Fate::CutRequest(1 << 20)),
        ("answer-0", Fate::CutAnswer(0)),
        ("answer", Fate::CutAnswer(150)),
    ] {
        // Every third request, but signs of life.
        let count = AtomicUsize::new(0);
        let fail = fate.clone();
        proxy.rule(move |line| match !line.contains("/alive/") && count.fetch_add(1, Relaxed) % 3 == 1 {
            true => fail.clone(),
            false => Fate::Pass,
        });
        make_pack(&files, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        write_whole(&files, DIR, &format!("version-{name}"), name.as_bytes()).unwrap();
        assert!(read(&files, name).unwrap() == pattern(1, BYTES), "{name}");
        assert_eq!(read(&files, &format!("version-{name}")).unwrap(), name.as_bytes());
    }
}

#[test]
fn a_server_that_fails_for_ever_is_an_error_after_a_limited_time() {
    let Some((_server, proxy)) = behind_proxy() else { return };
    for fate in [Fate::Answer(BUSY), Fate::Silent, Fate::CutRequest(0)] {
        proxy.rule(|_| Fate::Pass);
        let files = open(&proxy, SHORT).unwrap();
        let lock = files.lock(LOCK).unwrap().unwrap();
        let failing = fate.clone();
        proxy.rule(move |_| failing.clone());
        let begun = Instant::now();
        let error = make_pack(&files, "pack").unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Other), "{fate:?}: {error}");
        assert!(files.replace(DIR, "version", b"bytes").and_then(|()| files.sync_dir(DIR)).is_err(), "{fate:?}");
        assert!(open(&proxy, SHORT).is_err(), "{fate:?}");
        // Far from for ever, on any machine.
        assert!(begun.elapsed() < Duration::from_secs(120), "{fate:?}");
        proxy.rule(|_| Fate::Pass);
        drop(lock);
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some((_server, proxy)) = behind_proxy() else { return };
    let error = open_at(&proxy, "s3://nowhere/run", SHORT).err().unwrap();
    assert_eq!(error.to_string(), "bucket \"nowhere\" does not exist; create it, or correct the address");
    let refused = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: 242\r\n\r\n\
                   <Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message>\
                   <AWSAccessKeyId>outcrop-test-id</AWSAccessKeyId><StringToSign>outcrop-test-secret</StringToSign>\
                   <SignatureProvided>0123456789</SignatureProvided></Error>";
    proxy.rule(move |_| Fate::Answer(refused));
    let error = open(&proxy, SHORT).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    assert!(
        text.contains("check the credentials (AWS_ACCESS_KEY_ID") && text.contains("SignatureDoesNotMatch"),
        "{text}"
    );
    assert!(!text.contains("outcrop-test") && !text.contains("0123456789"), "{text}");
}

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn credentials_are_in_no_log_and_no_error() {
    if outcrop_testing::alone("http::credentials_are_in_no_log_and_no_error") {
        return;
    }
    let Some((_server, proxy)) = behind_proxy() else { return };
    let log = Log::default();
    let all = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(all).unwrap();
    let count = AtomicUsize::new(0);
    proxy.rule(move |_| if count.fetch_add(1, Relaxed) % 4 == 3 { Fate::Answer(BUSY) } else { Fate::Pass });
    let files = open(&proxy, LONG).unwrap();
    let lock = files.lock(LOCK).unwrap().unwrap();
    make_pack(&files, "pack").unwrap();
    drop(lock);
    proxy.rule(|_| Fate::CutRequest(0));
    let error = open(&proxy, SHORT).err().unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap() + &error.to_string() + &format!("{error:?}");
    assert!(text.contains("503"), "the log has what happened");
    for secret in ["outcrop-test-secret", "outcrop-test-id", "X-Amz-Signature=", "Signature="] {
        let line = text.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{secret}: {}", line.unwrap_or_default());
    }
}
