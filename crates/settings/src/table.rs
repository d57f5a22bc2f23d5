//! Tables of settings, and how text and the environment are read with them.

use std::{env, ffi::OsString};

use outcrop_error::{Error, ErrorKind, Result};
use toml::{Table, Value};

use crate::variables;

/// One setting of an `S`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Setting<S> {
    /// Its name in text, and as a keyword in Python.
    pub name: &'static str,
    /// What can be written.
    pub kind: fn() -> String,
    /// Its type in Python.
    pub python: fn() -> String,
    /// The default, as it would be written, or in words.
    pub default: &'static str,
    /// Its meaning, in one sentence.
    pub about: &'static str,
    pub(crate) set: fn(&mut S, Value) -> std::result::Result<(), String>,
}

impl<S: Settings> Setting<S> {
    /// The environment variable that overrides it.
    pub fn variable(&self) -> String {
        format!("{}{}", S::PREFIX, self.name.to_uppercase())
    }
}

/// Makes the rows of a table: `name: Type = "default", "What it means.", |settings, value| ...;`
macro_rules! rows {
    ($($name:ident: $value:ty = $default:literal, $about:literal, $set:expr;)*) => {
        &[$($crate::Setting {
            name: stringify!($name),
            kind: <$value as $crate::value::Readable>::kind,
            python: <$value as $crate::value::Readable>::python,
            default: $default,
            about: $about,
            set: |settings: &mut Self, value| {
                let set: fn(&mut Self, $value) = $set;
                set(settings, <$value as $crate::value::Readable>::read(value)?);
                Ok(())
            },
        }),*]
    };
}
pub(crate) use rows;

/// Looks up an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Settings that are described by a table.
pub trait Settings: Sized + Default + 'static {
    /// What they are settings of, with an article.
    const OF: &'static str;

    /// What the environment variables that override them begin with.
    const PREFIX: &'static str = "OUTCROP_";

    /// All settings. If one depends on another, the other comes first.
    const TABLE: &'static [Setting<Self>];

    /// Returns an error if something is missing or contradictory. Called when all settings are
    /// known: for a tape or store, when it is opened.
    fn check(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Reads settings from TOML, one on each line: `host = "2 GiB"`.
    fn from_toml(text: &str) -> Result<Self> {
        let table = text.parse().map_err(|error: toml::de::Error| wrong::<Self>(&format!("not TOML: {error}")))?;
        Self::from_table(table)
    }

    /// Reads settings from a JSON object.
    fn from_json(text: &str) -> Result<Self> {
        let table =
            serde_json::from_str(text).map_err(|error| wrong::<Self>(&format!("not a JSON object: {error}")))?;
        Self::from_table(table)
    }

    /// Reads settings from a table.
    fn from_table(table: Table) -> Result<Self> {
        read(table).map_err(|problem| wrong::<Self>(&problem))
    }

    /// Overrides settings with variables such as `OUTCROP_HOST="8 GiB"`. `variables` looks them up,
    /// for example with [`std::env::var_os`].
    fn override_by(&mut self, variables: Variables<'_>) -> Result<()> {
        for setting in Self::TABLE {
            let name = setting.variable();
            let Some(text) = variables(&name) else { continue };
            let wrong = |problem: String| Error::new(ErrorKind::Usage, format!("the variable {name}: {problem}"));
            let text = text.into_string().map_err(|text| wrong(format!("{text:?} is not UTF-8")))?;
            // If it is not TOML, it is a plain text.
            let value = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
            (setting.set)(self, value.unwrap_or(Value::String(text))).map_err(wrong)?;
        }
        Ok(())
    }

    /// The settings to use: these, overridden by the environment of this process, and checked.
    fn in_force(mut self) -> Result<Self> {
        variables::warn();
        self.override_by(&|name| env::var_os(name))?;
        self.check().map_err(|problem| wrong::<Self>(&problem))?;
        Ok(self)
    }
}

fn wrong<S: Settings>(problem: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("the settings of {}: {problem}", S::OF))
}

/// Reads a table. The error names the first problem.
pub(crate) fn read<S: Settings>(mut table: Table) -> std::result::Result<S, String> {
    if let Some(unknown) = table.keys().find(|key| S::TABLE.iter().all(|setting| setting.name != key.as_str())) {
        let likeness = |setting: &&Setting<S>| (strsim::jaro_winkler(setting.name, unknown) * 1e6) as u64;
        let nearest = S::TABLE.iter().max_by_key(likeness).map_or("", |setting| setting.name);
        let names: Vec<_> = S::TABLE.iter().map(|setting| setting.name).collect();
        return Err(format!("there is no {unknown}; did you mean {nearest}? There are: {}", names.join(", ")));
    }
    let mut settings = S::default();
    for setting in S::TABLE {
        if let Some(value) = table.remove(setting.name) {
            (setting.set)(&mut settings, value).map_err(|problem| format!("{}: {problem}", setting.name))?;
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use outcrop_layers::{DeviceKind, DirOptions, Method};
    use outcrop_plan::{Order, Preference, Retention, Rule, Touching};

    use super::*;
    use crate::{
        Communicator, Compression, DeviceSettings, HashDevice, RanksSettings, SharedDirectorySettings,
        SharedHostSettings, Size, StoreDir, StoreFiles, StoreSettings, TapeDir, TapeLayer, TapeSettings,
    };

    fn tape(text: &str) -> TapeSettings {
        TapeSettings::from_toml(text).unwrap()
    }

    fn tape_error(text: &str) -> String {
        TapeSettings::from_toml(text).unwrap_err().to_string()
    }

    fn store_error(text: &str) -> String {
        StoreSettings::from_toml(text).unwrap_err().to_string()
    }

    /// Overrides settings by these variables.
    fn overridden<S: Settings>(mut settings: S, variables: &[(&str, &str)]) -> Result<S> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        settings.override_by(&find)?;
        Ok(settings)
    }

    #[test]
    fn everything_a_tape_can_be_told_can_be_written() {
        let told = tape(
            "dir = ['/fast', { path = '/slow', limit = '2 TiB', direct = false, method = 'blocking', depth = 4, request = '1 MiB',
              segment = '8 MiB', register = false }]
             host = '1 GiB'
             shared_host = { name = 'job', total = '8 GiB', mine = 1000 }
             device = { kind = 'cuda', index = 1, size = '2 GiB' }
             order = [3, 1]
             helpers = 2
             helper_cores = [6, 7]
             copy_threads = 3
             patience_seconds = 0.5
             touching = 'never'
             pin = false
             preference = 'fixed'
             profile = 'p.json'
             trace = true
             log_file = 'l'",
        );
        let options = DirOptions {
            direct: false,
            method: Some(Method::Blocking),
            depth: 4,
            request_bytes: Some(1 << 20),
            segment_bytes: 8 << 20,
            register: false,
        };
        let expected = TapeSettings {
            // In the order of their speed, however they were written.
            layers: vec![
                TapeLayer::Device(DeviceSettings::new(DeviceKind::Cuda, 1, "2 GiB")),
                TapeLayer::Host(Size::from("1 GiB")),
                TapeLayer::SharedHost(SharedHostSettings::new("job", "8 GiB", 1000)),
                TapeLayer::Dir(TapeDir::new("/fast", "90%", DirOptions::default())),
                TapeLayer::Dir(TapeDir::new("/slow", "2 TiB", options)),
            ],
            order: Order::Schedule(vec![3, 1]),
            helpers: Some(2),
            helper_cores: vec![6, 7],
            copy_threads: Some(3),
            patience: Duration::from_millis(500),
            touching: Touching::Never,
            is_pinned: false,
            preference: Preference::Fixed,
            profile: Some(PathBuf::from("p.json")),
            is_traced: true,
            log_file: Some(PathBuf::from("l")),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn a_stack_can_be_written_in_any_order() {
        let stack = "layers = [{ host = '1 GiB' }, { dir = '/fast' }, { host = '2 GiB' }, { dir = { path = '/slow', depth = 2 } }]";
        let dir = |path: &str, depth| {
            TapeLayer::Dir(TapeDir::new(path, "90%", DirOptions { depth, ..DirOptions::default() }))
        };
        let host = |size: &str| TapeLayer::Host(Size::from(size));
        let usual = DirOptions::default().depth;
        let expected = [host("1 GiB"), dir("/fast", usual), host("2 GiB"), dir("/slow", 2)];
        assert_eq!(tape(stack).layers, expected);
        // The environment can override a builder's whole stack, and one kind of layer of it.
        let told =
            overridden(tape("host = 1\ndir = '/a'"), &[("OUTCROP_LAYERS", &stack["layers = ".len()..])]).unwrap();
        assert_eq!(told.layers, expected);
        let told = overridden(told, &[("OUTCROP_HOST", "3 GiB")]).unwrap();
        assert_eq!(told.layers, [host("3 GiB"), dir("/fast", usual), dir("/slow", 2)]);
        for (text, hint) in [
            ("layers = [{}]", "layers: a layer is one of device, host, shared_host and dir"),
            ("layers = [{ host = 1, dir = 'x' }]", "a layer is one of"),
            ("layers = [{ hots = 1 }]", "layers: there is no hots; did you mean host?"),
            ("layers = '/fast'", "write a table (dictionary) with device, host, shared_host, dir"),
        ] {
            assert!(tape_error(text).contains(hint), "{text}: {}", tape_error(text));
        }
    }

    #[test]
    fn everything_a_store_can_be_told_can_be_written() {
        let text = r#"{"dir": ["/near", {"path": "/far", "limit": "1 TB", "keep_last": 9}], "keep_last": 2, "keep_seconds": 60,
            "ranks": {"dir": "/talk", "rank": 1, "count": 2}, "interval": "exact", "failures_seconds": 3600,
            "compression": "zstd:5", "live": "1 MiB", "threads": 3, "hash_device": ["cuda", "opencl 1"]}"#;
        let told = StoreSettings::from_json(text).unwrap();
        let keep = Retention { keep_last: Some(2), keep_for_ns: Some(60_000_000_000), ..Retention::default() };
        let far = Retention { keep_last: Some(9), ..Retention::default() };
        assert_eq!((told.keep(0), told.keep(1)), (keep, far));
        assert_eq!(told.dirs[0], StoreDir::new(StoreFiles::Path("/near".into()), None));
        assert_eq!(told.ranks, RanksSettings::Directory(SharedDirectorySettings::new("/talk", 1, 2)));
        for (text, communicator, dir) in [
            ("{mpi = 'world'}", Communicator::World, None),
            ("{mpi = 1140850688, dir = '/talk'}", Communicator::Number(0x4400_0000), Some("/talk".into())),
        ] {
            let told = StoreSettings::from_toml(&format!("dir = '/near'\nranks = {text}")).unwrap();
            assert_eq!(told.ranks, RanksSettings::Mpi { communicator, dir });
        }
        assert_eq!((told.interval, &*told.failures), (Some(Rule::Exact), &[Duration::from_secs(3600)][..]));
        let device = |kind, index| HashDevice { kind, index };
        assert_eq!(told.hash_devices, [device(DeviceKind::Cuda, 0), device(DeviceKind::OpenCl, 1)]);
        assert_eq!(
            (told.compression, told.live, told.threads),
            (Compression::Zstd(5), Some(Size::from(1 << 20)), Some(3))
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        for (text, hint) in [
            ("hots = 1", "the settings of a tape: there is no hots; did you mean host?"),
            ("host = 'a lot'", "host: it is \"a lot\"; write a size such as \"2 GiB\""),
            ("host = -1", "write a size"),
            ("host = []", "write a size"),
            ("host =", "not TOML"),
            ("order = 'backwards'", "it can be \"reverse\", \"forward\", \"unknown\", or a list of keys"),
            ("order = [-1]", "keys are whole numbers from 0"),
            ("dir = { path = 'x', limt = 1 }", "dir: there is no limt; did you mean limit?"),
            ("dir = [{ limit = 1 }]", "dir: path is missing"),
            ("dir = 7", "write a path"),
            ("device = { kind = 'opencl' }", "device: size is missing"),
            ("device = 'cuda'", "write a table (dictionary) with kind, index, size"),
            ("shared_host = { name = 'x', total = 1 }", "shared_host: mine is missing"),
            ("patience_seconds = -1", "seconds from 0"),
            ("patience_seconds = 1e300", "it is 1e300; write"),
            ("helpers = 0", "from 1"),
            ("helpers = 5000", "helpers: it is 5000; write a whole number from 1 to 4096"),
            ("copy_threads = 5000", "from 1 to 4096"),
            ("pin = 1", "true or false"),
        ] {
            assert!(tape_error(text).contains(hint), "{text}: {}", tape_error(text));
        }
        for (text, hint) in [
            ("dir = 'x'\nkeep_lats = 1", "the settings of a store: there is no keep_lats; did you mean keep_last?"),
            ("dir = { path = 'x', direct = true }", "there is no direct; did you mean"),
            ("compression = 'rar'", "\"none\", \"lz4\", \"zstd\""),
            ("compression = 'zstd:40'", "a level from 1 to 22"),
            ("ranks = { dir = 'x', rank = 2, count = 2 }", "of 2 ranks the last is 1"),
            ("threads = 5000", "from 1 to 4096"),
            ("hash_device = 'vulkan'", "hash_device: it is \"vulkan\"; it can be \"opencl\", \"cuda\""),
            ("hash_device = 'cuda first'", "such as \"cuda 0\""),
            ("hash_device = 1", "write a driver and a number"),
            ("hash = 'sha'", "it can be \"xxh3\", \"blake3\", \"md5\""),
        ] {
            assert!(store_error(text).contains(hint), "{text}: {}", store_error(text));
        }
        assert!(TapeSettings::from_json("[1]").unwrap_err().to_string().contains("JSON object"));
    }

    #[test]
    fn what_is_missing_is_found_when_all_is_known() {
        let missing = |settings: StoreSettings| settings.check().unwrap_err();
        assert!(missing(StoreSettings::from_toml("keep_last = 1").unwrap()).contains("dir is missing"));
        let by_rule = StoreSettings::from_toml("dir = 'x'\ninterval = 'daly'").unwrap();
        assert!(overridden(by_rule.clone(), &[("OUTCROP_FAILURES_SECONDS", "60")]).unwrap().check().is_ok());
        assert!(missing(by_rule).contains("failures_seconds"));
        assert!(tape("dir = 'x'").check().unwrap_err().contains("host = \"2 GiB\""));
        for (text, hint) in [
            ("failures_seconds = [60, 0]", "failures_seconds: it is 0; write a number of seconds above 0"),
            ("failures_seconds = 1e-12", "above 0"),
        ] {
            let problem = missing(StoreSettings::from_toml(&format!("dir = 'x'\n{text}")).unwrap());
            assert!(problem.contains(hint), "{text}: {problem}");
        }
        assert!(overridden(tape("dir = 'x'"), &[("OUTCROP_HOST", "1 GiB")]).unwrap().check().is_ok());
    }

    #[test]
    fn the_environment_overrides_what_the_program_says() {
        let told = tape("host = '1 GiB'\ndir = ['/a', '/b']\npin = true");
        let variables = [
            ("OUTCROP_HOST", "2 GiB"),
            ("OUTCROP_DIR", "[{ path = '/c', limit = 7 }]"),
            ("OUTCROP_PIN", "false"),
            ("OUTCROP_HELPER_CORES", "[1, 2]"),
            ("OUTCROP_ORDER", "forward"),
        ];
        let expected = tape(
            "host = '2 GiB'\ndir = [{ path = '/c', limit = 7 }]\npin = false\nhelper_cores = [1, 2]\norder = 'forward'",
        );
        assert_eq!(overridden(told, &variables).unwrap(), expected);
        // Layers keep their places, and so do objects of the program.
        let host = || TapeLayer::Host(Size::from(5));
        let told =
            TapeSettings { layers: vec![TapeLayer::Given(0), host(), TapeLayer::Given(1)], ..TapeSettings::default() };
        let told = overridden(told, &[("OUTCROP_HOST", "9"), ("OUTCROP_DIR", "/d")]).unwrap();
        let dir = TapeLayer::Dir(TapeDir::new("/d", "90%", DirOptions::default()));
        assert_eq!(told.layers, [TapeLayer::Given(0), TapeLayer::Host(Size::from(9)), TapeLayer::Given(1), dir]);
        let given = StoreSettings { ranks: RanksSettings::Given, ..StoreSettings::default() };
        let told = overridden(given, &[("OUTCROP_RANKS", "{ dir = '/talk', rank = 0, count = 2 }")]).unwrap();
        assert_eq!(told.ranks, RanksSettings::Given);
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for (name, value, hint) in [
            ("OUTCROP_HOST", "lots", "the variable OUTCROP_HOST: it is \"lots\"; write a size"),
            ("OUTCROP_PIN", "maybe", "the variable OUTCROP_PIN: it is \"maybe\"; write true or false"),
            ("OUTCROP_DIR", "{ pat = 'x' }", "the variable OUTCROP_DIR: there is no pat; did you mean path?"),
        ] {
            let error = overridden(TapeSettings::default(), &[(name, value)]).unwrap_err();
            assert!(error.to_string().starts_with(hint), "{error}");
        }
    }
}
