//! Random stacks.

use fastrand::Rng;
use outcrop_plan::{LayerSettings, MemorySettings, Order, Preference, Settings, Touching};

/// The maximum size of a snapshot. Layers are a few times as large.
pub(super) const BYTES_MAX: u64 = 9;

/// Keys are below this.
pub(super) const KEYS: u64 = 40;

/// One to four layers, some of them memory, with random settings. A fifth of the stacks are those
/// of stores: every snapshot has to reach every layer below the front.
pub(super) fn settings(random: &mut Rng) -> Settings {
    let persists = random.u32(0..5) == 0;
    let count = random.usize(1..=7).div_ceil(2);
    let layers = (0..count).map(|index| match persists && index > 0 {
        true => shelf(random),
        false => layer(random, index),
    });
    let layers = layers.collect();
    let order = if persists && random.bool() { Order::Unknown } else { order(random) };
    let mut settings = Settings::new(layers, order);
    settings.persists = persists;
    settings.lane_bytes_max = random.u64(2..40);
    settings.patience_ns = random.u64(0..20_000);
    settings.preference = if random.bool() { Preference::Measured } else { Preference::Fixed };
    settings
}

fn layer(random: &mut Rng, index: usize) -> LayerSettings {
    let capacity_bytes = if index == 0 { random.u64(6..50) } else { random.u64(4..140) };
    let drain_above_bytes = match random.u32(0..3) {
        0 => 0,
        1 => capacity_bytes,
        _ => capacity_bytes / 2,
    };
    let rate = |random: &mut Rng| random.bool().then(|| random.u64(1..10_000_000_000));
    let (write_rate, read_rate) = (rate(random), rate(random));
    let is_memory = random.u32(0..if index == 0 { 4 } else { 8 }) < 3;
    let memory = is_memory.then(|| memory(random));
    // The front is memory, which always has a limit.
    let is_unlimited = index > 0 && memory.is_none() && random.u32(0..8) == 0;
    let capacity_bytes = (!is_unlimited).then_some(capacity_bytes);
    LayerSettings { capacity_bytes, keeps: false, drain_above_bytes, write_rate, read_rate, memory }
}

/// A layer on which bytes stay until their owner removes them, with or without a limit.
fn shelf(random: &mut Rng) -> LayerSettings {
    let limited = LayerSettings::new(random.u64(4..140));
    LayerSettings { keeps: true, ..if random.bool() { limited } else { LayerSettings::unlimited() } }
}

fn memory(random: &mut Rng) -> MemorySettings {
    MemorySettings {
        piece_bytes: random.u64(1..12),
        ahead_bytes: if random.bool() { u64::MAX } else { random.u64(0..20) },
        touching: match random.u32(0..4) {
            0 => Touching::Never,
            1 => Touching::Concurrent,
            2 => Touching::Sequential,
            _ => Touching::Chosen,
        },
        needs_touch: random.bool(),
        pins: random.bool(),
        is_shared: random.u32(0..4) == 0,
        ..MemorySettings::new()
    }
}

fn order(random: &mut Rng) -> Order {
    match random.u32(0..5) {
        0 | 1 => Order::Reverse,
        2 => Order::Forward,
        3 => Order::Schedule((0..random.usize(0..80)).map(|_| random.u64(0..KEYS)).collect()),
        _ => Order::Unknown,
    }
}
