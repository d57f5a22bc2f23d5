//! The speed of devices, as layers.

use outcrop_layers::{DeviceLayer, FoundDevice, Host, devices, open_device};

use crate::{
    DeviceRates, Options, bytes_of, memory_left,
    rate::{self, BLOCK_BYTES, median},
};

/// Measures every device. One that fails is left out and told of: it says nothing about the others.
pub(crate) fn measure_all(options: &Options, progress: &mut dyn FnMut(&str)) -> Vec<DeviceRates> {
    let mut measured = Vec::new();
    for found in devices() {
        let name = format!("{} {}", found.kind, found.index);
        progress(&format!("device {name} ({})", found.model));
        match measure(&found, &name, options) {
            Ok(Some(rates)) => measured.push(rates),
            Ok(None) => progress(&format!("device {name} has too little free memory and is left out")),
            Err(error) => progress(&format!("device {name} is left out: {error}")),
        }
    }
    measured
}

/// The rates of one device; nothing if too little of its memory is free.
fn measure(found: &FoundDevice, name: &str, options: &Options) -> outcrop_layers::Result<Option<DeviceRates>> {
    let device = open_device(found.kind, found.index)?;
    // The memory of some devices is that of the host.
    let Some(bytes) = bytes_of(device.free_bytes()?.min(memory_left()), options) else { return Ok(None) };
    let host = Host::new(BLOCK_BYTES)?;
    host.touch(0..BLOCK_BYTES)?;
    let mut block = host.slot(0, BLOCK_BYTES)?;
    let (mut maps, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    rate::rounds(options, || -> outcrop_layers::Result<()> {
        let layer = DeviceLayer::new(device.clone(), bytes, None)?;
        maps.push(rate::of(bytes, || layer.touch(0..bytes))?);
        let start = std::time::Instant::now();
        let done = rate::blocks(bytes, options.time_max, |at| layer.copy_in(at, &block))?;
        writes.push(rate::per_second(done, start.elapsed()));
        let start = std::time::Instant::now();
        let done = rate::blocks(done, options.time_max, |at| layer.copy_out(at, &mut block))?;
        reads.push(rate::per_second(done, start.elapsed()));
        Ok(())
    })?;
    let [map, write, read] = [maps, writes, reads].map(median);
    Ok(Some(DeviceRates {
        name: name.to_owned(),
        model: found.model.clone(),
        total_bytes: found.total_bytes,
        map,
        write,
        read,
    }))
}
