//! The types of settings: how each is read, and its name in the reference and in Python.

use std::{ops::Range, path::PathBuf, time::Duration};

use outcrop_format::HashKind;
use outcrop_layers::{DeviceKind, Method};
use outcrop_plan::{Order, Preference, Rule, Touching};
use outcrop_track::Way;
use toml::Value;

use crate::{Compression, Dedup, Settings, Size, size::HINT, table};

/// The error is what is wrong, and how to write it instead.
type Result<T> = std::result::Result<T, String>;

/// A value that can be read from TOML or JSON.
pub(crate) trait Readable: Sized {
    /// What can be written, for the reference.
    fn kind() -> String;

    /// The type in Python.
    fn python() -> String;

    /// Reads it.
    fn read(value: Value) -> Result<Self>;
}

/// The error for a value of the wrong type or range.
pub(crate) fn wrong<T>(value: &Value, hint: &str) -> Result<T> {
    match value {
        // As a table it would have hundreds of digits.
        Value::Float(number) => Err(format!("it is {number:?}; {hint}")),
        value => Err(format!("it is {value}; {hint}")),
    }
}

impl Readable for bool {
    fn kind() -> String {
        "true or false".to_owned()
    }

    fn python() -> String {
        "bool".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        value.as_bool().map_or_else(|| wrong(&value, "write true or false"), Ok)
    }
}

/// A number from 1.
#[derive(Debug)]
pub(crate) struct Count(pub(crate) usize);

impl Readable for Count {
    fn kind() -> String {
        "number from 1".to_owned()
    }

    fn python() -> String {
        "int".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        let count = value.as_integer().and_then(|number| usize::try_from(number).ok()).filter(|count| *count > 0);
        count.map_or_else(|| wrong(&value, "write a whole number from 1"), |count| Ok(Self(count)))
    }
}

/// More threads than any machine has cores.
const THREADS_MAX: usize = 4096;

/// A number of threads.
#[derive(Debug)]
pub(crate) struct Threads(pub(crate) usize);

impl Readable for Threads {
    fn kind() -> String {
        format!("number from 1 to {THREADS_MAX}")
    }

    fn python() -> String {
        Count::python()
    }

    fn read(value: Value) -> Result<Self> {
        match Count::read(value.clone()) {
            Ok(Count(count)) if count <= THREADS_MAX => Ok(Self(count)),
            _ => wrong(&value, &format!("write a whole number from 1 to {THREADS_MAX}")),
        }
    }
}

macro_rules! readable_number {
    ($($of:ty),*) => {$(
        impl Readable for $of {
            fn kind() -> String {
                "number from 0".to_owned()
            }

            fn python() -> String {
                "int".to_owned()
            }

            fn read(value: Value) -> Result<Self> {
                let number = value.as_integer().and_then(|number| number.try_into().ok());
                number.map_or_else(|| wrong(&value, "write a whole number from 0"), Ok)
            }
        }
    )*};
}

readable_number!(u32, usize);

impl Readable for Size {
    fn kind() -> String {
        "size".to_owned()
    }

    fn python() -> String {
        "Size".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        let size = match &value {
            Value::String(text) => Some(Self::from(text.as_str())),
            Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Self::from),
            _ => None,
        };
        size.filter(Self::is_clear).map_or_else(|| wrong(&value, HINT), Ok)
    }
}

/// A number of bytes, written as a size.
#[derive(Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl Readable for Bytes {
    fn kind() -> String {
        Size::kind()
    }

    fn python() -> String {
        Size::python()
    }

    fn read(value: Value) -> Result<Self> {
        let bytes = Size::read(value.clone())?.bytes();
        bytes.map_or_else(|_| wrong(&value, HINT), |bytes| Ok(Self(bytes)))
    }
}

impl Readable for Range<u64> {
    fn kind() -> String {
        "[first, end]".to_owned()
    }

    fn python() -> String {
        "tuple[int, int]".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        let number = |value: &Value| value.as_integer().and_then(|number| u64::try_from(number).ok());
        let range = match value.as_array().map(Vec::as_slice) {
            Some([first, end]) => number(first).zip(number(end)).filter(|(first, end)| first <= end),
            _ => None,
        };
        range.map_or_else(|| wrong(&value, "write pairs of bytes as [first, end]"), |(first, end)| Ok(first..end))
    }
}

impl Readable for Duration {
    fn kind() -> String {
        "seconds".to_owned()
    }

    fn python() -> String {
        "float".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        seconds(&value).map_or_else(|| wrong(&value, "write a number of seconds from 0"), Ok)
    }
}

fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
    Duration::try_from_secs_f64(seconds).ok()
}

impl Readable for PathBuf {
    fn kind() -> String {
        "path".to_owned()
    }

    fn python() -> String {
        "Path".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        match value {
            Value::String(path) if !path.is_empty() => Ok(path.into()),
            _ => wrong(&value, "write a path"),
        }
    }
}

impl Readable for String {
    fn kind() -> String {
        "text".to_owned()
    }

    fn python() -> String {
        "str".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        match value {
            Value::String(text) if !text.is_empty() => Ok(text),
            _ => wrong(&value, "write a text"),
        }
    }
}

/// Reads one value or a list of them.
impl<T: Readable> Readable for Vec<T> {
    fn kind() -> String {
        format!("{}, or a list", T::kind())
    }

    fn python() -> String {
        let of = T::python();
        format!("{of} | Iterable[{of}]")
    }

    fn read(value: Value) -> Result<Self> {
        match value {
            Value::Array(values) => values.into_iter().map(T::read).collect(),
            value => Ok(vec![T::read(value)?]),
        }
    }
}

/// Reads a setting that is a table of settings.
pub(crate) fn table<S: Settings>(value: Value) -> Result<S> {
    match value {
        Value::Table(table) => {
            let settings: S = table::read(table)?;
            settings.check().map(|()| settings)
        }
        value => {
            let names: Vec<_> = S::TABLE.iter().map(|setting| setting.name).collect();
            wrong(&value, &format!("write a table (dictionary) with {}", names.join(", ")))
        }
    }
}

/// A type whose values have names.
pub(crate) trait Named: Clone + 'static {
    /// The names and their values.
    const NAMES: &'static [(&'static str, Self)];
}

fn names<T: Named>() -> impl Iterator<Item = String> {
    T::NAMES.iter().map(|(name, _)| format!("\"{name}\""))
}

fn choice<T: Named>(value: &Value) -> Option<T> {
    let name = value.as_str()?;
    T::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
}

fn kind_of_choice<T: Named>() -> String {
    names::<T>().collect::<Vec<_>>().join(", ")
}

fn python_of_choice<T: Named>() -> String {
    format!("Literal[{}]", kind_of_choice::<T>())
}

fn read_choice<T: Named>(value: &Value, or: &str) -> Result<T> {
    choice(value).map_or_else(|| wrong(value, &format!("it can be {}{or}", kind_of_choice::<T>())), Ok)
}

macro_rules! named {
    ($($of:ty: $($name:literal => $value:expr),*;)*) => {$(
        impl Named for $of {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, $value)),*];
        }
    )*};
}

named! {
    HashKind: "xxh3" => Self::Xxh3, "blake3" => Self::Blake3, "md5" => Self::Md5;
    Way: "chosen" => Self::Chosen, "pages" => Self::Pages, "protection" => Self::Protection,
        "everything" => Self::Everything;
    Dedup: "versions" => Self::Versions, "inside" => Self::Inside, "ranks" => Self::Ranks;
    Touching: "chosen" => Self::Chosen, "concurrent" => Self::Concurrent, "sequential" => Self::Sequential,
        "never" => Self::Never;
    Preference: "measured" => Self::Measured, "fixed" => Self::Fixed;
    Method: "uring" => Self::Uring, "blocking" => Self::Blocking;
    DeviceKind: "opencl" => Self::OpenCl, "cuda" => Self::Cuda;
    Order: "reverse" => Self::Reverse, "forward" => Self::Forward, "unknown" => Self::Unknown;
    Rule: "young" => Self::Young, "daly" => Self::Daly, "exact" => Self::Exact, "recompute" => Self::Recompute;
    Compression: "none" => Self::None, "lz4" => Self::Lz4, "zstd" => Self::Zstd(3);
}

macro_rules! readable_by_name {
    ($($of:ty),*) => {$(
        impl Readable for $of {
            fn kind() -> String {
                kind_of_choice::<Self>()
            }

            fn python() -> String {
                python_of_choice::<Self>()
            }

            fn read(value: Value) -> Result<Self> {
                read_choice(&value, "")
            }
        }
    )*};
}

readable_by_name!(HashKind, Way, Dedup, Touching, Preference, Method, DeviceKind);

impl Readable for Order {
    fn kind() -> String {
        format!("{}, or a list of keys", kind_of_choice::<Self>())
    }

    fn python() -> String {
        format!("{} | Iterable[int]", python_of_choice::<Self>())
    }

    fn read(value: Value) -> Result<Self> {
        let Value::Array(keys) = &value else { return read_choice(&value, ", or a list of keys") };
        let key = |key: &Value| key.as_integer().and_then(|key| u64::try_from(key).ok());
        let keys = keys.iter().map(key).collect::<Option<Vec<_>>>();
        keys.map_or_else(|| wrong(&value, "keys are whole numbers from 0"), |keys| Ok(Self::Schedule(keys)))
    }
}

impl Readable for Rule {
    fn kind() -> String {
        format!("{}, or seconds", kind_of_choice::<Self>())
    }

    fn python() -> String {
        format!("{} | float", python_of_choice::<Self>())
    }

    fn read(value: Value) -> Result<Self> {
        match seconds(&value) {
            Some(every) => Ok(Self::Fixed(u64::try_from(every.as_nanos()).unwrap_or(u64::MAX))),
            None => read_choice(&value, ", or a number of seconds from 0"),
        }
    }
}

impl Readable for Compression {
    fn kind() -> String {
        format!("{}, \"zstd:LEVEL\" (1 to 22)", kind_of_choice::<Self>())
    }

    fn python() -> String {
        "str".to_owned()
    }

    fn read(value: Value) -> Result<Self> {
        let level = value.as_str().and_then(|text| text.strip_prefix("zstd:")).map(str::parse);
        match level {
            Some(Ok(level @ 1..=22)) => Ok(Self::Zstd(level)),
            _ => read_choice(&value, ", or \"zstd:\" with a level from 1 to 22"),
        }
    }
}
