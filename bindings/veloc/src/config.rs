//! VELOC's configuration: `key = value` on lines of a file, and variables `VELOC_<KEY>` that
//! override them.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::failure::{Failure, Result};

/// What VELOC reads, and `host` and `strict`, which are Outcrop's.
const KEYS: &[&str] = &[
    "mode",
    "scratch",
    "persistent",
    "persistent_interval",
    "ec_interval",
    "max_versions",
    "scratch_versions",
    "chksum",
    "meta",
    "aggregated",
    "threaded",
    "max_parallelism",
    "watchdog_interval",
    "axl_type",
    "daos_pool",
    "daos_cont",
    "log_prefix",
    "failure_domain",
    "host",
    "strict",
];

/// How alike two keys must be for one to be meant by the other.
const LIKENESS_MIN: f64 = 0.85;

/// What was chosen, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whether the end of a checkpoint waits until it is everywhere.
    pub(crate) is_sync: bool,
    pub(crate) scratch: PathBuf,
    /// Where old files may be, also if nothing is written there.
    pub(crate) persistent: Option<PathBuf>,
    pub(crate) is_persisted: bool,
    pub(crate) meta: Option<PathBuf>,
    /// How many versions stay in each; all if there is no number.
    pub(crate) scratch_versions: Option<u32>,
    pub(crate) max_versions: Option<u32>,
    /// Whether checkpoints survive the loss of a node.
    pub(crate) has_parity: bool,
    /// What is lost together with this rank; its node if there is no name.
    pub(crate) failure_domain: Option<String>,
    /// Host memory for checkpoints on their way.
    pub(crate) host: Option<String>,
    /// Whether a program ends where it cannot be told whether there is a version.
    pub(crate) is_strict: bool,
    /// What who runs the program should know.
    pub(crate) remarks: Vec<String>,
}

impl Config {
    /// Reads a file, or none if its name is empty, and what `variable` says.
    pub(crate) fn read(file: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let text = match file {
            "" => String::new(),
            file => fs::read_to_string(file).map_err(|error| {
                Failure::new(format!("the configuration file {file} cannot be read: {error}; give VELOC_Init its path"))
            })?,
        };
        let mut remarks = Vec::new();
        let mut values = parse(&text, file, &mut remarks)?;
        for key in KEYS {
            if let Some(value) = variable(&variable_of(key)) {
                values.insert((*key).to_owned(), value);
            }
        }
        Self::from_values(&values, remarks)
    }

    fn from_values(values: &BTreeMap<String, String>, mut remarks: Vec<String>) -> Result<Self> {
        let text = |key: &str| values.get(key).filter(|value| !value.is_empty()).cloned();
        let needs = |key: &str, example: &str| {
            let variable = key.to_uppercase();
            let remedy = format!("add a line `{key} = {example}` or set VELOC_{variable}");
            Failure::new(format!("the configuration has no {key}; {remedy}"))
        };
        let is_sync = match text("mode").ok_or_else(|| needs("mode", "async"))?.as_str() {
            "sync" => true,
            "async" => false,
            other => {
                return Err(Failure::new(format!("the configuration says mode = {other}; it can be sync or async")));
            }
        };
        let scratch = PathBuf::from(text("scratch").ok_or_else(|| needs("scratch", "/local/scratch/me"))?);
        let persistent = text("persistent").map(PathBuf::from);
        let interval = number(values, "persistent_interval")?;
        remarks.extend(unlike_veloc(values, interval)?);
        let versions = |key| Ok::<_, Failure>(number(values, key)?.and_then(|count| u32::try_from(count).ok()));
        Ok(Self {
            is_sync,
            // One directory for both is one copy.
            is_persisted: persistent.as_ref().is_some_and(|persistent| *persistent != scratch) && interval != Some(-1),
            scratch,
            persistent,
            meta: text("meta").map(PathBuf::from),
            scratch_versions: versions("scratch_versions")?.filter(|count| *count > 0),
            max_versions: versions("max_versions")?.filter(|count| *count > 0),
            has_parity: number(values, "ec_interval")?.is_some_and(|seconds| seconds >= 0),
            failure_domain: text("failure_domain"),
            host: text("host"),
            is_strict: is_true(values, "strict")?,
            remarks,
        })
    }

    /// Where all ranks of a run can see the same files.
    pub(crate) fn shared(&self) -> &PathBuf {
        self.meta.as_ref().or(self.persistent.as_ref()).unwrap_or(&self.scratch)
    }
}

/// The keys of a text. What has no effect becomes a remark.
fn parse(text: &str, file: &str, remarks: &mut Vec<String>) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';', '[']) {
            continue;
        }
        // As in other INI files, a comment may follow after a space.
        let line = line.split(" ;").next().unwrap_or(line).trim_end();
        let Some((key, value)) = line.split_once(['=', ':']) else {
            let at = index + 1;
            return Err(Failure::new(format!("line {at} of {file} is {line:?}; write it as `key = value`")));
        };
        let (key, value) = (key.trim().to_lowercase(), value.trim().to_owned());
        if !KEYS.contains(&key.as_str()) {
            remarks.push(unknown(&key));
        }
        values.insert(key, value);
    }
    Ok(values)
}

/// The variable that overrides a key.
fn variable_of(key: &str) -> String {
    format!("VELOC_{}", key.to_uppercase())
}

/// Of these names of variables, a remark on each that is probably meant to be another one. What
/// resembles none may be VELOC's own.
pub(crate) fn misspelt(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(|key| variable_of(key)).collect();
    let remark = |name: String| {
        let meant = known.iter().find(|known| strsim::osa_distance(known, &name.to_uppercase()) <= 1)?;
        let is_wrong = name.starts_with("VELOC_") && name != *meant;
        is_wrong.then(|| format!("the variable {name} is not known and has no effect; did you mean {meant}?"))
    };
    names.into_iter().filter_map(remark).collect()
}

fn unknown(key: &str) -> String {
    let likeness = |known: &&&str| (strsim::jaro_winkler(known, key) * 1e6) as u64;
    match KEYS.iter().max_by_key(likeness).filter(|known| strsim::jaro_winkler(known, key) >= LIKENESS_MIN) {
        Some(known) => format!("the configuration has no key {key}, and goes on without; did you mean {known}?"),
        None => format!("the configuration key {key} is not known and has no effect"),
    }
}

fn number(values: &BTreeMap<String, String>, key: &str) -> Result<Option<i64>> {
    let Some(value) = values.get(key).filter(|value| !value.is_empty()) else { return Ok(None) };
    let wrong = || Failure::new(format!("the configuration says {key} = {value}; it must be a whole number"));
    value.parse().map(Some).map_err(|_| wrong())
}

const YES: [&str; 4] = ["true", "yes", "on", "1"];
const NO: [&str; 4] = ["false", "no", "off", "0"];

fn is_true(values: &BTreeMap<String, String>, key: &str) -> Result<bool> {
    let Some(value) = values.get(key).filter(|value| !value.is_empty()) else { return Ok(false) };
    let lower = value.to_lowercase();
    match (YES.contains(&lower.as_str()), NO.contains(&lower.as_str())) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(Failure::new(format!("the configuration says {key} = {value}; it can be true or false"))),
    }
}

/// What was asked for and is done in another way.
fn unlike_veloc(values: &BTreeMap<String, String>, persistent_interval: Option<i64>) -> Result<Vec<String>> {
    let mut remarks = Vec::new();
    let is = |key: &str, wanted: &[&str]| {
        values.get(key).is_some_and(|value| wanted.contains(&value.to_lowercase().as_str()))
    };
    if let Some(seconds) = persistent_interval.filter(|seconds| *seconds > 0) {
        remarks.push(format!("persistent_interval = {seconds}: every version is persisted, which is more than asked"));
    }
    if let Some(seconds) = number(values, "ec_interval")?.filter(|seconds| *seconds > 0) {
        remarks.push(format!("ec_interval = {seconds}: another node keeps every version, which is more than asked"));
    }
    if is("chksum", &NO) {
        remarks.push("chksum = false: checksums are always on".to_owned());
    }
    if is("aggregated", &YES) {
        remarks.push("aggregated = true: every rank writes files of its own; aggregated ones of VELOC are read".into());
    }
    if values.get("daos_pool").is_some_and(|pool| !pool.is_empty()) {
        remarks.push("daos_pool: DAOS is not used; checkpoints go to the directories".to_owned());
    }
    Ok(remarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("veloc.cfg");
        fs::write(&file, text).unwrap();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Config::read(file.to_str().unwrap(), variable)
    }

    #[test]
    fn variables_override_what_a_file_says() {
        let text = "# a comment\nmode = async\nscratch = /tmp/s ; near\npersistent=/tmp/p\nmax_versions = 3\n";
        let config = read(text, &[("VELOC_MODE", "sync"), ("VELOC_SCRATCH_VERSIONS", "2")]).unwrap();
        assert!(config.is_sync && config.is_persisted && config.remarks.is_empty(), "{config:?}");
        assert_eq!(
            (config.scratch.to_str(), config.max_versions, config.scratch_versions),
            (Some("/tmp/s"), Some(3), Some(2))
        );
        assert_eq!(config.shared().to_str(), Some("/tmp/p"));
        let of_variables = |name: &str| match name {
            "VELOC_MODE" => Some("async".to_owned()),
            "VELOC_SCRATCH" => Some("/tmp/s".to_owned()),
            _ => None,
        };
        assert!(!Config::read("", of_variables).unwrap().is_sync);
    }

    #[test]
    fn zero_keeps_all_and_minus_one_persists_nothing() {
        let text = "mode=sync\nscratch=/s\npersistent=/p\nmax_versions=0\npersistent_interval=-1";
        let config = read(text, &[]).unwrap();
        assert_eq!((config.max_versions, config.is_persisted), (None, false));
        assert!(config.persistent.is_some(), "old files may be there");
        assert!(!read("mode=sync\nscratch=/s\npersistent=/s/", &[]).unwrap().is_persisted);
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let error = |text: &str| read(text, &[]).unwrap_err().to_string();
        assert!(error("scratch = /s").contains("no mode; add a line `mode = async` or set VELOC_MODE"));
        assert!(error("mode = sync").contains("no scratch"));
        assert!(error("mode = fast\nscratch=/s").contains("sync or async"));
        assert!(error("mode = sync\nscratch=/s\nmax_versions = many").contains("max_versions = many"));
        assert!(error("mode sync").contains("line 1"));
        let missing = Config::read("/nowhere/veloc.cfg", |_| None).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/veloc.cfg"), "{missing}");
    }

    #[test]
    fn variables_that_are_misspelt_are_said() {
        let names = ["VELOC_SCRATH", "VELOC_SCRATCH", "VELOC_BIN", "VELOC_POSIX_CACHE_SIZE", "SCRATCH", "VELOC_mode"];
        let remarks = misspelt(names.map(str::to_owned));
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(remarks[0].contains("VELOC_SCRATH is not known") && remarks[0].contains("did you mean VELOC_SCRATCH?"));
        assert!(remarks[1].contains("VELOC_mode"));
    }

    #[test]
    fn erasure_coding_is_for_every_version_or_for_none() {
        let parity = |line: &str| {
            let config = read(&format!("mode=sync\nscratch=/s\n{line}"), &[]).unwrap();
            (config.has_parity, config.failure_domain, config.remarks.len())
        };
        assert_eq!(parity("max_versions=0"), (false, None, 0));
        assert_eq!(parity("ec_interval=-1"), (false, None, 0));
        assert_eq!(parity("ec_interval=0\nfailure_domain=rack-7"), (true, Some("rack-7".to_owned()), 0));
        assert_eq!(parity("ec_interval=60"), (true, None, 1));
    }

    #[test]
    fn what_has_no_effect_is_said_once_and_does_no_harm() {
        let text = "mode=sync\nscratch=/s\nmax_version = 3\nredset_groups = 4\nec_interval = 0\nchksum = false";
        let remarks = read(text, &[]).unwrap().remarks;
        assert_eq!(remarks.len(), 3, "{remarks:?}");
        assert!(remarks[0].contains("did you mean max_versions?"));
        assert!(remarks[1].contains("redset_groups is not known"));
    }
}
