//! All locations of a profile in one list, in the order of preference for writing and for reading.

use serde::Serialize;

use crate::{Profile, TouchedRates};

/// Something that can hold snapshots, and its preference among all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Location {
    /// What it is.
    pub name: String,
    /// Bytes per second of writing, if it was measured.
    pub write: Option<u64>,
    /// 1 for the location that is fastest to write to.
    pub write_preference: Option<usize>,
    /// Bytes per second of reading, if it was measured.
    pub read: Option<u64>,
    /// 1 for the location that is fastest to read from.
    pub read_preference: Option<usize>,
}

impl Profile {
    /// All measured locations, the fastest to write to first.
    pub fn locations(&self) -> Vec<Location> {
        let mut locations = self.measured();
        // Those without a rate come last.
        locations.sort_by_key(|location| std::cmp::Reverse(location.write));
        for (index, location) in locations.iter_mut().enumerate() {
            location.write_preference = location.write.map(|_| index + 1);
        }
        let mut by_read: Vec<usize> = (0..locations.len()).filter(|&index| locations[index].read.is_some()).collect();
        by_read.sort_by_key(|&index| std::cmp::Reverse(locations[index].read));
        for (nth, index) in by_read.into_iter().enumerate() {
            locations[index].read_preference = Some(nth + 1);
        }
        locations
    }

    fn measured(&self) -> Vec<Location> {
        let location = |name: String, write: u64, read: Option<u64>| Location {
            name,
            write: Some(write),
            write_preference: None,
            read,
            read_preference: None,
        };
        let memory = &self.memory;
        let mut locations = vec![
            location("untouched memory, 1 core".to_owned(), memory.untouched.write_one_core, None),
            location("memfd, untouched".to_owned(), memory.shared.write_untouched, None),
            location("memfd, touched".to_owned(), memory.shared.write_touched, Some(memory.shared.read)),
        ];
        if self.cores > 1 {
            let name = format!("untouched memory, {} cores", self.cores);
            locations.push(location(name, memory.untouched.write_all_cores, None));
        }
        let mut add_touched = |name: &str, rates: &TouchedRates| {
            locations.push(location(format!("{name} memory, 1 core"), rates.write_one_core, Some(rates.read_one_core)));
            if self.cores > 1 {
                let name = format!("{name} memory, {} cores", self.cores);
                locations.push(location(name, rates.write_all_cores, Some(rates.read_all_cores)));
            }
        };
        add_touched("touched", &memory.touched);
        if let Some(pinned) = &memory.pinned {
            add_touched("pinned", &pinned.rates);
        }
        for directory in &self.directories {
            let name = directory.path.display();
            if let Some(rates) = directory.direct {
                locations.push(location(format!("{name}, O_DIRECT, new blocks"), rates.write_new, None));
                locations.push(location(format!("{name}, O_DIRECT"), rates.overwrite, Some(rates.read)));
            }
            let rates = directory.buffered;
            locations.push(location(format!("{name}, page cache, new blocks"), rates.write_new, None));
            locations.push(location(format!("{name}, page cache"), rates.overwrite, Some(rates.read)));
        }
        for device in &self.devices {
            locations.push(location(format!("device {}", device.name), device.write, Some(device.read)));
        }
        locations
    }
}
