//! Models of machines: what a node has, how fast it is, and what its processes share.
//!
//! A machine is a TOML file. In the built-in ones, every number has its source in a comment. Rates
//! are in bytes per second.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{Error, error::Result};

/// The machines that come with this crate.
const BUILT_IN: &[(&str, &str)] = &[
    ("dgx-a100", include_str!("../machines/dgx-a100.toml")),
    ("summit", include_str!("../machines/summit.toml")),
    ("shaheen-2", include_str!("../machines/shaheen-2.toml")),
    ("titan", include_str!("../machines/titan.toml")),
];

/// The valid range of rates, in bytes or grid points per second. Real rates are inside it, and
/// times do not overflow.
const RATES: RangeInclusive<f64> = 1e6..=1e15;
const RATE_ADVICE: &str = "it must be between 1e6 and 1e15";

/// The valid range of bytes that cross memory per byte.
const TRAFFICS: RangeInclusive<f64> = 0.01..=100.0;
const TRAFFIC_ADVICE: &str = "it must be between 0.01 and 100";

/// The valid range of processes and threads.
const COUNTS: RangeInclusive<u64> = 1..=65_536;
const COUNT_ADVICE: &str = "it must be between 1 and 65536";

/// The valid range of memory sizes, and of the pieces in which memory is mapped: each piece is an
/// event.
const MEMORIES: RangeInclusive<u64> = 1 << 20..=1 << 50;
const MEMORY_ADVICE: &str = "it must be between 1 MiB and 1 PiB";

/// The maximum latency of a first byte: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// One kind of node, and what its nodes share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// The maximum number of concurrent processes on one node.
    pub processes_per_node: u32,
    /// How many grid points one process advances by one time step per second, if known.
    pub points_per_second: Option<f64>,
    /// The device of each process, if there is one.
    pub device: Option<Device>,
    /// Host memory.
    pub host: Host,
    /// Disks, burst buffers and file systems.
    #[serde(default)]
    pub storage: Vec<Storage>,
}

/// A device with its own memory, one per process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its memory.
    pub memory_bytes: u64,
    /// The rate of copies within it.
    pub copy_bytes_per_second: f64,
    /// The rate of mapping physical memory. All processes of a node share one lock in the driver.
    pub map_bytes_per_second: f64,
    /// The size of the pieces in which memory is mapped.
    pub map_piece_bytes: u64,
    /// The rate of the link to host memory.
    pub link_bytes_per_second: f64,
    /// How many processes share a link.
    pub processes_per_link: u32,
    /// The rate of on-demand paging between device and host, one process at a time, if that is
    /// possible.
    pub paging_bytes_per_second: Option<f64>,
}

/// Host memory, as seen by one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The memory of a node.
    pub memory_bytes: u64,
    /// The total throughput of one memory domain.
    pub domain_bytes_per_second: f64,
    /// How many processes have their memory in the same domain.
    pub processes_per_domain: u32,
    /// The rate of one process writing to untouched memory.
    pub untouched_bytes_per_second: f64,
    /// The rate of writing to touched memory.
    pub touched_bytes_per_second: f64,
    /// The rate of writing to pinned memory.
    pub pinned_bytes_per_second: f64,
    /// Bytes that cross memory for each byte that a processor copies.
    pub copy_traffic: f64,
    /// Bytes that cross memory for each byte that a device writes to or reads from pinned memory.
    pub pinned_traffic: f64,
    /// The rate of touching huge pages.
    pub touch_bytes_per_second: f64,
    /// The number of threads that touch.
    pub touch_threads: u32,
    /// Bytes that cross memory for each byte that is touched: 1 if the system clears pages with
    /// streaming stores, 2 if it reads them first.
    pub touch_traffic: f64,
    /// The rate of filling small pages for the first time.
    pub fill_small_bytes_per_second: f64,
    /// The rate of pinning touched huge pages. All processes of a node share one lock in the
    /// driver.
    pub pin_bytes_per_second: f64,
    /// The rate of pinning touched small pages.
    pub pin_small_bytes_per_second: f64,
    /// The rate of allocating and pinning untouched memory at once.
    pub register_bytes_per_second: f64,
}

/// A disk, a burst buffer or a file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Its name.
    pub name: String,
    /// Whether all nodes share it. Otherwise each node has its own.
    pub is_shared: bool,
    /// The capacity per node.
    pub node_capacity_bytes: u64,
    /// The total rate of writing.
    pub write_bytes_per_second: f64,
    /// The total rate of reading.
    pub read_bytes_per_second: f64,
    /// The rate of writing of one node. Default: the total rate.
    pub node_write_bytes_per_second: Option<f64>,
    /// The rate of reading of one node. Default: the total rate.
    pub node_read_bytes_per_second: Option<f64>,
    /// The rate of writing of one process.
    pub process_write_bytes_per_second: Option<f64>,
    /// The rate of reading of one process.
    pub process_read_bytes_per_second: Option<f64>,
    /// The time before the first byte of a snapshot moves.
    pub latency_ns: u64,
}

/// The rates of a machine with only memory and a directory, as measured by a survey. In bytes per
/// second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlainRates {
    /// Copies into untouched memory.
    pub copy_untouched: f64,
    /// Copies into touched memory.
    pub copy_touched: f64,
    /// Touching.
    pub touch: f64,
    /// Pinning of touched memory.
    pub pin: f64,
    /// Writing to the directory.
    pub directory_write: f64,
    /// Reading from the directory.
    pub directory_read: f64,
}

impl Machine {
    /// The names of the built-in machines.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|&(name, _)| name)
    }

    /// A built-in machine.
    ///
    /// # Errors
    /// If there is no machine with this name.
    pub fn named(name: &str) -> Result<Self> {
        let found = BUILT_IN.iter().find(|&&(known, _)| known == name);
        let (_, text) = found.ok_or_else(|| Error::Unknown {
            kind: "machine",
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })?;
        Self::parse(name, text)
    }

    /// Reads a machine from TOML. `origin` is for messages.
    ///
    /// # Errors
    /// If the text is not a machine, or has impossible values.
    pub fn parse(origin: &str, text: &str) -> Result<Self> {
        let syntax = |error: toml::de::Error| Error::Syntax { machine: origin.to_owned(), problem: error.to_string() };
        let machine: Self = toml::from_str(text).map_err(syntax)?;
        machine.check()?;
        Ok(machine)
    }

    /// A machine with one process, memory, and one directory called `directory`.
    ///
    /// # Errors
    /// If a rate is not a positive number.
    pub fn plain(name: &str, rates: PlainRates, memory_bytes: u64, directory_bytes: u64) -> Result<Self> {
        let PlainRates { copy_untouched, copy_touched, touch, pin, directory_write, directory_read } = rates;
        let machine = Self {
            name: name.to_owned(),
            processes_per_node: 1,
            points_per_second: None,
            device: None,
            host: Host {
                memory_bytes,
                // Two threads do not slow each other down: where this was measured, a second core
                // touched memory at no cost.
                domain_bytes_per_second: copy_touched + touch,
                processes_per_domain: 1,
                untouched_bytes_per_second: copy_untouched,
                touched_bytes_per_second: copy_touched,
                pinned_bytes_per_second: copy_touched,
                touch_bytes_per_second: touch,
                copy_traffic: 1.0,
                pinned_traffic: 1.0,
                touch_threads: 1,
                touch_traffic: 1.0,
                fill_small_bytes_per_second: copy_untouched,
                pin_bytes_per_second: pin,
                pin_small_bytes_per_second: pin,
                register_bytes_per_second: copy_untouched.min(pin),
            },
            storage: vec![Storage {
                name: "directory".to_owned(),
                is_shared: false,
                node_capacity_bytes: directory_bytes,
                write_bytes_per_second: directory_write,
                read_bytes_per_second: directory_read,
                node_write_bytes_per_second: None,
                node_read_bytes_per_second: None,
                process_write_bytes_per_second: None,
                process_read_bytes_per_second: None,
                latency_ns: 0,
            }],
        };
        machine.check()?;
        Ok(machine)
    }

    /// The storage with this name, and its index.
    pub(crate) fn storage(&self, name: &str) -> Result<(usize, &Storage)> {
        let found = self.storage.iter().enumerate().find(|(_, storage)| storage.name == name);
        found.ok_or_else(|| self.missing(&format!("storage called {name:?}")))
    }

    pub(crate) fn device(&self) -> Result<&Device> {
        self.device.as_ref().ok_or_else(|| self.missing("device"))
    }

    pub(crate) fn missing(&self, what: &str) -> Error {
        Error::Missing { machine: self.name.clone(), what: what.to_owned() }
    }

    /// Checks for impossible values.
    fn check(&self) -> Result<()> {
        let wrong =
            |key: String, value: String, advice| Err(Error::Value { machine: self.name.clone(), key, value, advice });
        if self.name.is_empty() {
            return wrong("name".to_owned(), "\"\"".to_owned(), "a machine needs a name");
        }
        for (key, value) in self.rates() {
            let (range, advice) =
                if key.ends_with("_traffic") { (TRAFFICS, TRAFFIC_ADVICE) } else { (RATES, RATE_ADVICE) };
            if !range.contains(&value) {
                return wrong(key, value.to_string(), advice);
            }
        }
        for (key, value, range, advice) in self.counts() {
            if !range.contains(&value) {
                return wrong(key, value.to_string(), advice);
            }
        }
        for (index, storage) in self.storage.iter().enumerate() {
            let is_repeated = self.storage[..index].iter().any(|other| other.name == storage.name);
            if is_repeated || storage.name.is_empty() {
                let advice = "every storage needs a name of its own";
                return wrong(format!("storage.{index}.name"), format!("{:?}", storage.name), advice);
            }
        }
        Ok(())
    }

    /// All rates with their keys.
    fn rates(&self) -> Vec<(String, f64)> {
        let mut all = Vec::new();
        all.extend(self.points_per_second.map(|rate| ("points_per_second".to_owned(), rate)));
        if let Some(device) = &self.device {
            let of_device = [
                ("copy_bytes_per_second", Some(device.copy_bytes_per_second)),
                ("map_bytes_per_second", Some(device.map_bytes_per_second)),
                ("link_bytes_per_second", Some(device.link_bytes_per_second)),
                ("paging_bytes_per_second", device.paging_bytes_per_second),
            ];
            all.extend(of_device.into_iter().filter_map(|(key, rate)| Some((format!("device.{key}"), rate?))));
        }
        let host = &self.host;
        let of_host = [
            ("domain_bytes_per_second", host.domain_bytes_per_second),
            ("untouched_bytes_per_second", host.untouched_bytes_per_second),
            ("touched_bytes_per_second", host.touched_bytes_per_second),
            ("pinned_bytes_per_second", host.pinned_bytes_per_second),
            ("touch_bytes_per_second", host.touch_bytes_per_second),
            ("copy_traffic", host.copy_traffic),
            ("pinned_traffic", host.pinned_traffic),
            ("touch_traffic", host.touch_traffic),
            ("fill_small_bytes_per_second", host.fill_small_bytes_per_second),
            ("pin_bytes_per_second", host.pin_bytes_per_second),
            ("pin_small_bytes_per_second", host.pin_small_bytes_per_second),
            ("register_bytes_per_second", host.register_bytes_per_second),
        ];
        all.extend(of_host.map(|(key, rate)| (format!("host.{key}"), rate)));
        for storage in &self.storage {
            let of_storage = [
                ("write_bytes_per_second", Some(storage.write_bytes_per_second)),
                ("read_bytes_per_second", Some(storage.read_bytes_per_second)),
                ("node_write_bytes_per_second", storage.node_write_bytes_per_second),
                ("node_read_bytes_per_second", storage.node_read_bytes_per_second),
                ("process_write_bytes_per_second", storage.process_write_bytes_per_second),
                ("process_read_bytes_per_second", storage.process_read_bytes_per_second),
            ];
            let name = &storage.name;
            all.extend(of_storage.into_iter().filter_map(|(key, rate)| Some((format!("storage.{name}.{key}"), rate?))));
        }
        all
    }

    /// All counts and capacities: key, value, valid range, and advice.
    fn counts(&self) -> Vec<(String, u64, RangeInclusive<u64>, &'static str)> {
        let count = |key: &str, value: u32| (key.to_owned(), value.into(), COUNTS, COUNT_ADVICE);
        let memory = |key: &str, bytes: u64| (key.to_owned(), bytes, MEMORIES, MEMORY_ADVICE);
        let mut all = vec![
            count("processes_per_node", self.processes_per_node),
            memory("host.memory_bytes", self.host.memory_bytes),
            count("host.processes_per_domain", self.host.processes_per_domain),
            count("host.touch_threads", self.host.touch_threads),
        ];
        if let Some(device) = &self.device {
            all.push(memory("device.memory_bytes", device.memory_bytes));
            all.push(memory("device.map_piece_bytes", device.map_piece_bytes));
            all.push(count("device.processes_per_link", device.processes_per_link));
        }
        for Storage { name, node_capacity_bytes, latency_ns, .. } in &self.storage {
            let capacity_key = format!("storage.{name}.node_capacity_bytes");
            all.push((capacity_key, *node_capacity_bytes, 1..=u64::MAX, "it must be above 0"));
            let latency_key = format!("storage.{name}.latency_ns");
            all.push((latency_key, *latency_ns, 0..=LATENCY_NS_MAX, "it must be at most 60_000_000_000, a minute"));
        }
        all
    }
}
