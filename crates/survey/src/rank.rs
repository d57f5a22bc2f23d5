//! All places of a profile in one list, with their ranks for writing and for reading.

use serde::Serialize;

use crate::{Profile, TouchedRates};

/// A place and its rank among all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ranked {
    /// What it is.
    pub place: String,
    /// Bytes per second of writing, where that was measured.
    pub write: Option<u64>,
    /// 1 for the place that is fastest to write to.
    pub write_rank: Option<usize>,
    /// Bytes per second of reading, where that was measured.
    pub read: Option<u64>,
    /// 1 for the place that is fastest to read from.
    pub read_rank: Option<usize>,
}

impl Profile {
    /// All places that were measured, those first that are fastest to write to.
    pub fn ranking(&self) -> Vec<Ranked> {
        let mut places = self.places();
        // Those without a rate come last.
        places.sort_by_key(|place| std::cmp::Reverse(place.write));
        for (index, place) in places.iter_mut().enumerate() {
            place.write_rank = place.write.map(|_| index + 1);
        }
        let mut by_read: Vec<usize> = (0..places.len()).filter(|&index| places[index].read.is_some()).collect();
        by_read.sort_by_key(|&index| std::cmp::Reverse(places[index].read));
        for (rank, index) in by_read.into_iter().enumerate() {
            places[index].read_rank = Some(rank + 1);
        }
        places
    }

    fn places(&self) -> Vec<Ranked> {
        let place = |place: String, write: u64, read: Option<u64>| Ranked {
            place,
            write: Some(write),
            write_rank: None,
            read,
            read_rank: None,
        };
        let memory = &self.memory;
        let mut places = vec![
            place("untouched memory, 1 core".to_owned(), memory.untouched.write_one_core, None),
            place("memfd, untouched".to_owned(), memory.shared.write_untouched, None),
            place("memfd, touched".to_owned(), memory.shared.write_touched, Some(memory.shared.read)),
        ];
        if self.cores > 1 {
            let name = format!("untouched memory, {} cores", self.cores);
            places.push(place(name, memory.untouched.write_all_cores, None));
        }
        let mut add_touched = |name: &str, rates: &TouchedRates| {
            places.push(place(format!("{name} memory, 1 core"), rates.write_one_core, Some(rates.read_one_core)));
            if self.cores > 1 {
                let name = format!("{name} memory, {} cores", self.cores);
                places.push(place(name, rates.write_all_cores, Some(rates.read_all_cores)));
            }
        };
        add_touched("touched", &memory.touched);
        if let Some(pinned) = &memory.pinned {
            add_touched("pinned", &pinned.rates);
        }
        for directory in &self.directories {
            let name = directory.path.display();
            if let Some(rates) = directory.direct {
                places.push(place(format!("{name}, O_DIRECT, new blocks"), rates.write_new, None));
                places.push(place(format!("{name}, O_DIRECT"), rates.overwrite, Some(rates.read)));
            }
            let rates = directory.buffered;
            places.push(place(format!("{name}, page cache, new blocks"), rates.write_new, None));
            places.push(place(format!("{name}, page cache"), rates.overwrite, Some(rates.read)));
        }
        for device in &self.devices {
            places.push(place(format!("device {}", device.name), device.write, Some(device.read)));
        }
        places
    }
}
