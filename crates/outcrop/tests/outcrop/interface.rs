//! Every public type can be printed, sent to other threads and used there.

use std::fmt::Debug;

use outcrop::*;

const fn promises<T: Debug + Send + Sync + 'static>() {}

// Compiling this is the test.
const _: () = {
    promises::<Tape>();
    promises::<TapeBuilder>();
    promises::<Lent<f64>>();
    promises::<Past<f64>>();
    promises::<LentRegions>();
    promises::<PastRegions>();
    promises::<Blank<'static>>();
    promises::<Shape>();
    promises::<GlobalBox>();
    promises::<ShapeError>();
    promises::<Part<'static>>();
    promises::<PartMut<'static>>();
    promises::<Element>();
    promises::<Size>();
    promises::<Store>();
    promises::<StoreBuilder>();
    promises::<Session>();
    promises::<Reached>();
    promises::<store::Watch>();
    promises::<store::Restored>();
    promises::<store::Skipped>();
    promises::<store::SavedRegion>();
    promises::<store::RegionOptions>();
    promises::<store::SharedDirectory>();
    promises::<store::RanksError>();
    promises::<node::Node>();
    promises::<node::NodeFile>();
    promises::<node::Pending>();
    promises::<node::Status>();
    promises::<Error>();
    promises::<ErrorKind>();
    promises::<Stats>();
    promises::<LayerStats>();
    promises::<Trace>();
    promises::<Span>();
    promises::<Order>();
    promises::<Retention>();
    promises::<Rule>();
    promises::<settings::TapeSettings>();
    promises::<settings::StoreSettings>();
    promises::<settings::NodeSettings>();
    promises::<catalog::Catalog>();
    promises::<catalog::Reader>();
    promises::<catalog::Version>();
    promises::<catalog::Verified>();
    promises::<catalog::Error>();
    promises::<survey::Profile>();
    promises::<survey::Error>();
    promises::<layers::Host>();
    promises::<layers::Slot>();
    promises::<layers::Dir>();
    promises::<layers::DeviceLayer>();
    promises::<layers::Buffer>();
    promises::<layers::Throttled>();
    promises::<layers::Faulty>();
    promises::<layers::Error>();
    promises::<layers::files::DiskFiles>();
    promises::<layers::files::FileLock>();
};
