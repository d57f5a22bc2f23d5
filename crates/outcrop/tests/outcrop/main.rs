//! All integration tests of this crate, in one program, so that only one has to be linked.

mod budget;
mod common;
mod device;
mod device_cuda;
mod device_faults;
mod faults;
mod hostile;
mod interface;
mod memory;
mod pool_spill;
mod preference;
mod settings;
mod shapes;
mod shared;
mod store;
mod store_boxes;
mod store_crash;
mod store_damage;
mod store_descriptors;
mod store_device;
mod store_faults;
mod store_kill;
mod store_ledger;
mod store_merge;
mod store_model;
mod store_open;
mod store_parity;
mod store_power;
mod store_ranks;
mod store_regions;
mod store_track;
mod tape;

#[global_allocator]
static ALLOCATOR: outcrop_testing::Counting = outcrop_testing::Counting::new();
