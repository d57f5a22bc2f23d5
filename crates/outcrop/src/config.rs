//! Tapes and stores described by text, for programs in other languages and for files.
//!
//! A description is TOML or JSON. A variable `OUTCROP_` and the key in capitals (`OUTCROP_HOST="4 GiB"`) overrides what it says, so
//! that who runs a program can decide what who wrote it could not know. A key that does not exist is refused, and the nearest that
//! does is named.

use std::{env, fs, path::PathBuf, time::Duration};

use serde::{Deserialize, de::DeserializeOwned};
use toml::{Table, Value};

use crate::{
    Error, HashKind, Order, Result, Retention, Rule, Size, StoreBuilder, Tape, TapeBuilder, Way,
    layers::DirOptions,
    store::{Compression, Dedup, SharedDirectory, Store},
};

/// What a tape can be told.
const TAPE_KEYS: &[&str] = &[
    "host",
    "dir",
    "order",
    "helpers",
    "helper_cores",
    "copy_threads",
    "pin",
    "trace",
    "log_file",
    "patience_seconds",
    "profile",
];

/// What a store can be told.
const STORE_KEYS: &[&str] = &[
    "host",
    "dir",
    "ranks",
    "block",
    "hash",
    "certain",
    "incremental",
    "tracking",
    "compression",
    "dedup",
    "in_flight",
    "keep_last",
    "keep_every",
    "keep_seconds",
    "chain_max",
    "live",
    "interval",
    "failures_seconds",
    "pin",
    "threads",
];

/// Host memory of a store where nothing is said.
const STORE_HOST: &str = "256 MiB";

/// How much of what is free in a file system a tape may fill where no limit is given, in percent.
const FREE_PERCENT: u64 = 90;

/// A tape, as a text describes it.
#[derive(Debug, Deserialize)]
struct TapeText {
    host: Option<Bytes>,
    #[serde(default)]
    dir: Dirs,
    #[serde(default)]
    order: OrderText,
    helpers: Option<usize>,
    #[serde(default)]
    helper_cores: Vec<usize>,
    copy_threads: Option<usize>,
    pin: Option<bool>,
    trace: Option<bool>,
    log_file: Option<PathBuf>,
    patience_seconds: Option<f64>,
    profile: Option<PathBuf>,
}

/// A store, as a text describes it.
#[derive(Debug, Deserialize)]
struct StoreText {
    host: Option<Bytes>,
    #[serde(default)]
    dir: Dirs,
    ranks: Option<RanksText>,
    block: Option<Bytes>,
    hash: Option<String>,
    certain: Option<bool>,
    incremental: Option<bool>,
    tracking: Option<String>,
    compression: Option<String>,
    dedup: Option<String>,
    in_flight: Option<usize>,
    keep_last: Option<u32>,
    keep_every: Option<u64>,
    keep_seconds: Option<f64>,
    chain_max: Option<usize>,
    live: Option<Bytes>,
    interval: Option<IntervalText>,
    #[serde(default)]
    failures_seconds: OneOrMany<f64>,
    pin: Option<bool>,
    threads: Option<usize>,
}

/// A number of bytes, or a text such as "2 GiB".
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number of bytes or a text such as \"2 GiB\"")]
enum Bytes {
    Number(u64),
    Text(String),
}

impl From<Bytes> for Size {
    fn from(bytes: Bytes) -> Self {
        match bytes {
            Bytes::Number(bytes) => Self::Bytes(bytes),
            Bytes::Text(text) => Self::Text(text),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected one value or a list of them; a directory is a path, or a table with path, limit and direct"
)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

type Dirs = OneOrMany<DirText>;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or a table with path, limit and direct")]
enum DirText {
    Path(PathBuf),
    Table(DirTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirTable {
    path: PathBuf,
    limit: Option<Bytes>,
    direct: Option<bool>,
}

impl From<DirText> for DirTable {
    fn from(dir: DirText) -> Self {
        match dir {
            DirText::Path(path) => Self { path, limit: None, direct: None },
            DirText::Table(table) => table,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected reverse, forward, unknown, or a list of keys")]
enum OrderText {
    Name(String),
    Schedule(Vec<u64>),
}

impl Default for OrderText {
    fn default() -> Self {
        Self::Name("reverse".to_owned())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RanksText {
    dir: PathBuf,
    rank: u32,
    count: u32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected young, daly, exact, or a number of seconds")]
enum IntervalText {
    Rule(String),
    Seconds(f64),
}

impl IntervalText {
    /// The rule, with the time between failures on each directory.
    fn read(self, failures_seconds: Vec<f64>) -> Result<(Rule, Vec<Duration>)> {
        let rule = match self {
            Self::Rule(name) => {
                choice("interval", &name, &[("young", Rule::Young), ("daly", Rule::Daly), ("exact", Rule::Exact)])?
            }
            Self::Seconds(seconds) => {
                let every = duration("interval", seconds)?.as_nanos();
                Rule::Fixed(u64::try_from(every).unwrap_or(u64::MAX))
            }
        };
        let failures = failures_seconds.into_iter().map(|seconds| duration("failures_seconds", seconds));
        let failures = failures.collect::<Result<Vec<Duration>>>()?;
        if failures.is_empty() && !matches!(rule, Rule::Fixed(_)) {
            return Err(config("has an interval by a rule and needs failures_seconds, the time between failures"));
        }
        Ok((rule, failures))
    }
}

impl TapeBuilder {
    /// A tape as this TOML text describes it: `host = "2 GiB"`, `dir = "scratch"`, `order = "reverse"`, each on a line.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::from_table(toml_table(text)?)
    }

    /// A tape as this JSON text describes it.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_table(json_table(text)?)
    }

    fn from_table(table: Table) -> Result<Self> {
        let text: TapeText = read(table, "tape", TAPE_KEYS)?;
        let host = text.host.ok_or_else(|| config("of a tape needs host memory: host = \"2 GiB\""))?;
        let mut builder = Tape::builder().host(host).order(order(text.order)?).helper_cores(&text.helper_cores);
        for dir in text.dir.into_vec() {
            let DirTable { path, limit, direct } = dir.into();
            let size = match limit {
                Some(limit) => limit.into(),
                None => free(&path)?,
            };
            let mut options = DirOptions::default();
            options.direct = direct.unwrap_or(options.direct);
            builder = builder.dir_with(path, size, options);
        }
        if let Some(count) = text.helpers {
            builder = builder.helpers(count);
        }
        if let Some(count) = text.copy_threads {
            builder = builder.copy_threads(count);
        }
        if let Some(is_pinned) = text.pin {
            builder = builder.pin(is_pinned);
        }
        if let Some(is_traced) = text.trace {
            builder = builder.trace(is_traced);
        }
        if let Some(path) = text.log_file {
            builder = builder.log(path);
        }
        if let Some(seconds) = text.patience_seconds {
            builder = builder.patience(duration("patience_seconds", seconds)?);
        }
        if let Some(path) = text.profile {
            builder = builder.profile(path);
        }
        Ok(builder)
    }
}

impl StoreBuilder {
    /// A store as this TOML text describes it: `dir = "checkpoints"`, `keep_last = 3`, each on a line.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::from_table(toml_table(text)?)
    }

    /// A store as this JSON text describes it.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_table(json_table(text)?)
    }

    fn from_table(table: Table) -> Result<Self> {
        let text: StoreText = read(table, "store", STORE_KEYS)?;
        let host = text.host.map_or_else(|| Size::from(STORE_HOST), Size::from);
        let keep = Retention {
            keep_last: text.keep_last,
            keep_every: text.keep_every,
            keep_for_ns: match text.keep_seconds {
                Some(seconds) => u64::try_from(duration("keep_seconds", seconds)?.as_nanos()).ok(),
                None => None,
            },
        };
        let mut builder = Store::builder().host(host).keep(keep);
        for dir in text.dir.into_vec() {
            let DirTable { path, limit, direct } = dir.into();
            if direct.is_some() {
                return Err(config("of a store has no `direct`: leave it out"));
            }
            builder = builder.dir_sized(path, limit.map(Size::from));
        }
        if let Some(RanksText { dir, rank, count }) = text.ranks {
            builder = builder.ranks(SharedDirectory::open(dir, rank, count)?);
        }
        if let Some(block) = text.block {
            builder = builder.block(block);
        }
        if let Some(name) = text.hash {
            builder = builder.hash(choice(
                "hash",
                &name,
                &[("xxh3", HashKind::Xxh3), ("blake3", HashKind::Blake3), ("md5", HashKind::Md5)],
            )?);
        }
        if let Some(name) = text.tracking {
            let ways = [("chosen", Way::Chosen), ("pages", Way::Pages), ("protection", Way::Protection)];
            let ways = [&ways[..], &[("everything", Way::Everything)]].concat();
            builder = builder.tracking(choice("tracking", &name, &ways)?);
        }
        if let Some(name) = text.compression {
            builder = builder.compression(compression(&name)?);
        }
        if let Some(name) = text.dedup {
            let kinds = [("versions", Dedup::Versions), ("inside", Dedup::Inside), ("ranks", Dedup::Ranks)];
            builder = builder.dedup(choice("dedup", &name, &kinds)?);
        }
        if let Some(is_certain) = text.certain {
            builder = builder.certain(is_certain);
        }
        if let Some(is_incremental) = text.incremental {
            builder = builder.incremental(is_incremental);
        }
        if let Some(versions) = text.in_flight {
            builder = builder.in_flight(versions);
        }
        if let Some(packs) = text.chain_max {
            builder = builder.chain_max(packs);
        }
        if let Some(extra) = text.live {
            builder = builder.live(extra);
        }
        if let Some(is_pinned) = text.pin {
            builder = builder.pin(is_pinned);
        }
        if let Some(count) = text.threads {
            builder = builder.threads(count);
        }
        if let Some(interval) = text.interval {
            let (rule, failures) = interval.read(text.failures_seconds.into_vec())?;
            builder = builder.interval(rule, &failures);
        }
        Ok(builder)
    }
}

fn config(problem: impl Into<String>) -> Error {
    Error::Config { problem: problem.into() }
}

fn toml_table(text: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| config(format!("is not TOML: {error}")))
}

fn json_table(text: &str) -> Result<Table> {
    serde_json::from_str(text).map_err(|error| config(format!("is not a JSON object: {error}")))
}

/// What a table says, with what the environment says instead.
fn read<T: DeserializeOwned>(mut table: Table, of: &str, keys: &[&str]) -> Result<T> {
    for key in table.keys() {
        if !keys.contains(&key.as_str()) {
            let nearest = keys.iter().max_by(|a, b| {
                let likeness = |known: &str| strsim::jaro_winkler(known, key);
                likeness(a).total_cmp(&likeness(b))
            });
            let nearest = nearest.copied().unwrap_or_default();
            return Err(config(format!(
                "of a {of} has no key {key}; did you mean {nearest}? There are: {}",
                keys.join(", ")
            )));
        }
    }
    for key in keys {
        let variable = format!("OUTCROP_{}", key.to_uppercase());
        let Ok(text) = env::var(&variable) else { continue };
        // What is not TOML is a text.
        let value = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
        table.insert((*key).to_owned(), value.unwrap_or(Value::String(text)));
    }
    table.try_into().map_err(|error: toml::de::Error| config(format!("of a {of} cannot be used: {}", error.message())))
}

fn order(order: OrderText) -> Result<Order> {
    match order {
        OrderText::Schedule(keys) => Ok(Order::Schedule(keys)),
        OrderText::Name(name) => choice(
            "order",
            &name,
            &[("reverse", Order::Reverse), ("forward", Order::Forward), ("unknown", Order::Unknown)],
        ),
    }
}

fn compression(name: &str) -> Result<Compression> {
    if let Some(level) = name.strip_prefix("zstd:") {
        let level = level.parse().map_err(|_| config(format!("has the zstd level {level}, which is no number")))?;
        return Ok(Compression::Zstd(level));
    }
    let kinds = [("none", Compression::None), ("lz4", Compression::Lz4), ("zstd", Compression::Zstd(3))];
    choice("compression", name, &kinds)
}

fn choice<T: Clone>(key: &str, name: &str, choices: &[(&str, T)]) -> Result<T> {
    let found = choices.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    found.ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        config(format!("says {key} = {name:?}; it can be {}", names.join(", ")))
    })
}

fn duration(key: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| config(format!("says {key} = {seconds}; it must be a number of seconds from 0 on")))
}

/// What a tape may fill of a directory without a limit.
fn free(path: &PathBuf) -> Result<Size> {
    let space = fs::create_dir_all(path).and_then(|()| Ok(rustix::fs::statvfs(path)?));
    let space = space.map_err(|error| config(format!("names {}, which cannot be used: {error}", path.display())))?;
    Ok(Size::Bytes((space.f_bavail * space.f_frsize / 100 * FREE_PERCENT).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tape_error(text: &str) -> String {
        TapeBuilder::from_toml(text).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_is_said_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        let text =
            format!("host = '8 MiB'\ndir = [{{ path = {path:?}, limit = 4194304 }}]\norder = [2, 1]\npin = false");
        let mut tape = TapeBuilder::from_toml(&text).unwrap().open().unwrap();
        tape.save(1, &[1u8]).unwrap();
        let layers = tape.stats().layers;
        assert_eq!((layers[0].capacity_bytes, layers[1].capacity_bytes), (8 << 20, 4 << 20));
        let free = format!(r#"{{"host": 1000000, "dir": {path:?}}}"#);
        assert!(TapeBuilder::from_json(&free).unwrap().open().unwrap().stats().layers[1].capacity_bytes > 1 << 20);
        let text = format!(
            "dir = {path:?}\nkeep_last = 2\ninterval = 'exact'\nfailures_seconds = 3600\ncompression = 'zstd:5'"
        );
        StoreBuilder::from_toml(&text).unwrap().open().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        assert!(tape_error("hots = 1").contains("no key hots; did you mean host?"));
        assert!(tape_error("host = 'a lot'\norder = 'backwards'").contains("it can be reverse, forward, unknown"));
        assert!(tape_error("").contains("host = \"2 GiB\""));
        assert!(tape_error("host =").contains("is not TOML"));
        assert!(tape_error("host = []").contains("such as \"2 GiB\""));
        assert!(tape_error("host = 1\ndir = { path = 'x', limt = 1 }").contains("path, limit and direct"));
        assert!(tape_error("host = 1\npatience_seconds = -1").contains("from 0 on"));
        let store = |text| StoreBuilder::from_toml(text).map(drop).unwrap_err().to_string();
        assert!(store("dir = 'x'\ninterval = 'daly'").contains("failures_seconds"));
        assert!(store("dir = 'x'\nkeep_lats = 1").contains("did you mean keep_last?"));
        assert!(TapeBuilder::from_json("[1]").map(drop).unwrap_err().to_string().contains("JSON object"));
    }
}
