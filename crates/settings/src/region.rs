//! The settings of one region of a session.

use std::ops::Range;

use crate::{Compression, Setting, Settings, Size, table::rows};

/// The settings of a region, where they differ from those of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RegionSettings {
    /// How it is compressed.
    pub compression: Option<Compression>,
    /// The length of its blocks.
    pub block: Option<Size>,
    /// Bytes that are not saved.
    pub excluded: Vec<Range<u64>>,
}

impl Settings for RegionSettings {
    const OF: &'static str = "a region";

    const TABLE: &'static [Setting<Self>] = rows! {
        compression: Compression = "as the store",
            "How its blocks are compressed.",
            |region, compression| region.compression = Some(compression);
        block: Size = "as the store",
            "The length of its blocks.",
            |region, size| region.block = Some(size);
        excluded: Vec<Range<u64>> = "[]",
            "Bytes that are not saved and that a restore leaves as they are: the first, and the first after them.",
            |region, excluded| region.excluded = excluded;
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_can_be_told_what_differs() {
        let told = RegionSettings::from_toml("compression = 'zstd:3'\nblock = '64 KiB'\nexcluded = [[0, 8], [16, 24]]");
        let expected = RegionSettings {
            compression: Some(Compression::Zstd(3)),
            block: Some("64 KiB".into()),
            excluded: vec![0..8, 16..24],
        };
        assert_eq!(told.unwrap(), expected);
        for wrong in ["excluded = [0, 8]", "excluded = [[8, 0]]", "excluded = [[0, 8, 9]]", "excluded = [[-1, 8]]"] {
            let error = RegionSettings::from_toml(wrong).unwrap_err().to_string();
            assert!(error.contains("excluded") && error.contains("[first, end]"), "{error}");
        }
    }
}
