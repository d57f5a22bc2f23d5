//! Compression of blocks after a byte shuffle, and whether it pays.

mod shuffle;

use std::fmt;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::{
    error::{Error, Problem, Result, Structure},
    hash::short_checksum,
};

/// A kind of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CodingKind {
    /// None.
    #[default]
    Raw,
    /// The block format of LZ4: fast.
    Lz4,
    /// Zstandard: smaller.
    Zstd,
}

impl CodingKind {
    /// Its number in a file.
    pub const fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }
}

/// How the blocks of an extent are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Coding {
    kind: CodingKind,
    /// The width of an element, or 0.
    shuffle: u8,
}

impl Coding {
    /// Stored without compression.
    pub const RAW: Self = Self { kind: CodingKind::Raw, shuffle: 0 };

    /// Compressed with `kind`, after a byte shuffle of elements of `shuffle` bytes. Widths of 0 and
    /// 1 mean no shuffle, and [`CodingKind::Raw`] has none.
    pub const fn new(kind: CodingKind, shuffle: u8) -> Self {
        let is_shuffled = shuffle > 1 && !matches!(kind, CodingKind::Raw);
        Self { kind, shuffle: if is_shuffled { shuffle } else { 0 } }
    }

    /// The kind of compression.
    pub const fn kind(self) -> CodingKind {
        self.kind
    }

    /// The width of the shuffled elements; 0 without a shuffle.
    pub const fn shuffle(self) -> u8 {
        self.shuffle
    }

    /// Whether blocks are stored without compression.
    pub const fn is_raw(self) -> bool {
        matches!(self.kind, CodingKind::Raw)
    }

    /// The coding with these numbers in a file.
    pub(crate) fn from_codes(kind: u8, shuffle: u8) -> Option<Self> {
        let kind =
            [CodingKind::Raw, CodingKind::Lz4, CodingKind::Zstd].into_iter().find(|known| known.code() == kind)?;
        // Only one encoding of "no shuffle" is valid.
        Some(Self::new(kind, shuffle)).filter(|coding| coding.shuffle == shuffle)
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            CodingKind::Raw => "nothing",
            CodingKind::Lz4 => "lz4",
            CodingKind::Zstd => "zstd",
        })?;
        if self.shuffle == 0 { Ok(()) } else { write!(f, " and shuffle {}", self.shuffle) }
    }
}

/// The stored bytes of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// How many there are, at most the length of the block. If they are equally many, the block is
    /// stored without compression, whatever the coding of its extent.
    pub bytes: u32,
    /// Their checksum, if the extent is coded. It detects changes that do not affect the decoded
    /// block. It is 0 if the extent is not coded, because then the hash of the block detects all
    /// changes.
    pub check: u32,
}

/// Compresses blocks. It keeps memory of a few times the largest block for reuse.
pub struct Encoder {
    coding: Coding,
    state: EncoderState,
    shuffled: Vec<u8>,
}

enum EncoderState {
    Raw,
    Lz4 { table: CompressTable, scratch: Vec<u8> },
    Zstd(Compressor<'static>),
}

impl Encoder {
    /// An encoder. `zstd_level` is used for zstd only: 1 to 22, or 0 for the default of zstd.
    pub fn new(coding: Coding, zstd_level: i32) -> Result<Self> {
        let state = match coding.kind {
            CodingKind::Raw => EncoderState::Raw,
            CodingKind::Lz4 => EncoderState::Lz4 { table: CompressTable::default(), scratch: Vec::new() },
            CodingKind::Zstd => {
                let levels = zstd::compression_level_range();
                if !levels.contains(&zstd_level) {
                    let problem =
                        format!("zstd has no level {zstd_level}, only {} to {}", levels.start(), levels.end());
                    return Err(Error::unfit(Structure::Block, problem));
                }
                EncoderState::Zstd(Compressor::new(zstd_level).map_err(failed)?)
            }
        };
        Ok(Self { coding, state, shuffled: Vec::new() })
    }

    /// How it stores blocks.
    pub const fn coding(&self) -> Coding {
        self.coding
    }

    /// Writes `block` to the front of `into`, in at most as many bytes as the block has. `into`
    /// must be at least as long as the block.
    pub fn encode(&mut self, block: &[u8], into: &mut [u8]) -> Result<Stored> {
        let room = into.len();
        let Some(into) = into.get_mut(..block.len()) else {
            return Err(Error::unfit(Structure::Block, format!("{} bytes into room for {room}", block.len())));
        };
        let plain = if self.coding.shuffle == 0 {
            block
        } else {
            self.shuffled.resize(block.len(), 0);
            shuffle::shuffle(block, self.coding.shuffle.into(), &mut self.shuffled);
            &self.shuffled
        };
        let bytes = match self.state.compress(plain, into)? {
            Some(bytes) => bytes,
            None => {
                into.copy_from_slice(block);
                into.len()
            }
        };
        let check = if self.coding.is_raw() { 0 } else { short_checksum(&into[..bytes]) };
        let bytes =
            u32::try_from(bytes).map_err(|_| Error::unfit(Structure::Block, "it is larger than any block can be"))?;
        Ok(Stored { bytes, check })
    }
}

impl EncoderState {
    /// Compresses `plain` to the front of `into`, which is equally long. Returns `None` if it does
    /// not become shorter.
    fn compress(&mut self, plain: &[u8], into: &mut [u8]) -> Result<Option<usize>> {
        if plain.is_empty() {
            return Ok(None);
        }
        match self {
            Self::Raw => Ok(None),
            Self::Lz4 { table, scratch } => {
                // LZ4 needs room for the worst case.
                scratch.resize(scratch.len().max(get_maximum_output_size(plain.len())), 0);
                let bytes = compress_into_with_table(plain, scratch, table).map_err(failed)?;
                if bytes >= plain.len() {
                    return Ok(None);
                }
                into[..bytes].copy_from_slice(&scratch[..bytes]);
                Ok(Some(bytes))
            }
            // This fails if there is not enough room, so the block does not become shorter, or if
            // there is no memory.
            Self::Zstd(compressor) => Ok(compressor.compress_to_buffer(plain, &mut into[..plain.len() - 1]).ok()),
        }
    }
}

/// Decompresses blocks. It keeps memory of the size of the largest block for reuse.
#[derive(Default)]
pub struct Decoder {
    zstd: Option<Decompressor<'static>>,
    shuffled: Vec<u8>,
}

impl Decoder {
    /// A decoder for all codings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `block` from its stored bytes. If they are coded, their checksum must be `check`.
    /// After an error the content of `block` is undefined.
    ///
    /// The caller must compare the hash of the block: only the hash proves that these are the right
    /// bytes.
    pub fn decode(&mut self, coding: Coding, check: u32, stored: &[u8], block: &mut [u8]) -> Result<()> {
        let undecodable = |problem: Problem| Error::Undecodable { coding, problem };
        if !coding.is_raw() {
            let computed = short_checksum(stored);
            if computed != check {
                return Err(Error::Changed {
                    structure: Structure::Block,
                    written: check.into(),
                    computed: computed.into(),
                });
            }
        }
        if stored.len() == block.len() {
            block.copy_from_slice(stored);
            return Ok(());
        }
        let plain = if coding.shuffle == 0 {
            &mut *block
        } else {
            self.shuffled.resize(block.len(), 0);
            &mut self.shuffled[..]
        };
        let bytes = match coding.kind {
            CodingKind::Lz4 if stored.len() < plain.len() => {
                decompress_into(stored, plain).map_err(|error| error.to_string())
            }
            CodingKind::Zstd if stored.len() < plain.len() => {
                expand(&mut self.zstd, stored, plain).map_err(|error| error.to_string())
            }
            _ => Err(format!("it has {} bytes, and the block {}", stored.len(), plain.len())),
        };
        let bytes = bytes.map_err(|problem| undecodable(problem.into()))?;
        if bytes != block.len() {
            return Err(undecodable(format!("it gives {bytes} bytes, and the block has {}", block.len()).into()));
        }
        if coding.shuffle != 0 {
            shuffle::unshuffle(&self.shuffled, coding.shuffle.into(), block);
        }
        Ok(())
    }
}

fn expand(zstd: &mut Option<Decompressor<'static>>, stored: &[u8], plain: &mut [u8]) -> std::io::Result<usize> {
    let zstd = match zstd {
        Some(zstd) => zstd,
        none => none.insert(Decompressor::new()?),
    };
    zstd.decompress_to_buffer(stored, plain)
}

fn failed(error: impl fmt::Display) -> Error {
    Error::unfit(Structure::Block, format!("the compression failed: {error}"))
}

/// The cost and the gain of compressing some blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// The bytes of the blocks.
    pub plain_bytes: u64,
    /// Their size after compression.
    pub stored_bytes: u64,
    /// The time that compression took.
    pub coding_ns: u64,
}

/// The smallest gain, as a fraction of the time without compression. A smaller gain is not worth
/// the processor time that it takes from the program.
const GAIN_MIN: f64 = 0.05;

/// Whether compression saves time on a medium with this rate: whether compressing and then writing
/// takes clearly less time than writing everything. False if the trial is empty or the rate is 0.
///
/// The two times are added, although a store may write one block while it compresses the next. The
/// cores belong to the program, so the processor time must be recovered on the medium.
pub fn pays(trial: &Trial, bytes_per_s: f64) -> bool {
    let way_s = |bytes: u64| bytes as f64 / bytes_per_s;
    let plain_s = way_s(trial.plain_bytes);
    let coded_s = trial.coding_ns as f64 / 1e9 + way_s(trial.stored_bytes);
    plain_s.is_finite() && plain_s > 0.0 && coded_s <= plain_s * (1.0 - GAIN_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODINGS: [Coding; 4] = [
        Coding::new(CodingKind::Lz4, 0),
        Coding::new(CodingKind::Lz4, 4),
        Coding::new(CodingKind::Zstd, 0),
        Coding::new(CodingKind::Zstd, 8),
    ];

    fn encoded(coding: Coding, block: &[u8]) -> (u32, Vec<u8>) {
        let mut coded = vec![0; block.len()];
        let stored = Encoder::new(coding, 1).unwrap().encode(block, &mut coded).unwrap();
        coded.truncate(stored.bytes as usize);
        (stored.check, coded)
    }

    #[test]
    fn there_is_one_way_to_say_that_nothing_is_shuffled() {
        for shuffle in [0, 1] {
            assert_eq!(Coding::new(CodingKind::Lz4, shuffle).shuffle(), 0);
        }
        assert_eq!(Coding::new(CodingKind::Raw, 8), Coding::RAW);
        assert_eq!(Coding::from_codes(1, 1), None);
        assert_eq!(Coding::from_codes(0, 8), None);
        assert_eq!(Coding::from_codes(3, 0), None);
        assert_eq!(Coding::from_codes(2, 8), Some(Coding::new(CodingKind::Zstd, 8)));
        assert_eq!(Coding::new(CodingKind::Zstd, 8).to_string(), "zstd and shuffle 8");
    }

    #[test]
    fn the_shuffle_makes_numbers_shorter_and_noise_stays_as_it_is() {
        let numbers: Vec<u8> = (0..1024_u32).flat_map(|number| (number * 3).to_le_bytes()).collect();
        let noise: Vec<u8> = numbers.chunks(4).flat_map(|part| short_checksum(part).to_le_bytes()).collect();
        for coding in CODINGS {
            assert!(encoded(coding, &noise).1 == noise, "{coding}");
        }
        let lengths = CODINGS.map(|coding| encoded(coding, &numbers).1.len());
        assert!(lengths[1] < lengths[0] && lengths[3] < lengths[2], "{lengths:?}");
    }

    #[test]
    fn wrong_lengths_and_changed_bytes_are_errors() {
        let block = [7; 1000];
        let mut decoder = Decoder::new();
        for coding in CODINGS {
            let (check, stored) = encoded(coding, &block);
            for length in [0, 11, 999, 1001, 4096] {
                let outcome = decoder.decode(coding, check, &stored, &mut vec![0; length]);
                assert!(matches!(outcome, Err(Error::Undecodable { .. })), "{coding}: {length}: {outcome:?}");
            }
            for bit in 0..stored.len() * 8 {
                let mut changed = stored.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let outcome = decoder.decode(coding, check, &changed, &mut [0; 1000]);
                assert!(matches!(outcome, Err(Error::Changed { .. })), "{coding}: {bit}");
            }
        }
        let outcome = decoder.decode(Coding::RAW, 0, &block, &mut [0; 999]);
        assert!(matches!(outcome, Err(Error::Undecodable { coding: Coding::RAW, .. })));
    }

    #[test]
    fn encoders_refuse_what_they_cannot_do() {
        assert!(Encoder::new(Coding::new(CodingKind::Zstd, 0), 23).is_err());
        let outcome = Encoder::new(Coding::RAW, 0).unwrap().encode(&[1, 2, 3], &mut [0; 2]);
        assert!(matches!(outcome, Err(Error::Unfit { structure: Structure::Block, .. })));
    }

    #[test]
    fn coding_pays_when_the_medium_is_slow_and_the_bytes_are_alike() {
        // A gigabyte is compressed to half its size in one second.
        let trial = Trial { plain_bytes: 1_000_000_000, stored_bytes: 500_000_000, coding_ns: 1_000_000_000 };
        assert!(pays(&trial, 0.1e9));
        assert!(!pays(&trial, 3e9));
        // At half a gigabyte per second both take two seconds, and a gain of one percent is too
        // small.
        assert!(!pays(&trial, 0.5e9));
        assert!(!pays(&trial, 0.495e9));
        assert!(pays(&trial, 0.45e9));
        // Blocks that do not become shorter never pay, even if compressing them costs nothing.
        let useless = Trial { stored_bytes: trial.plain_bytes, coding_ns: 0, ..trial };
        assert!(!pays(&useless, 1.0));
    }

    #[test]
    fn without_a_measurement_nothing_is_coded() {
        let nothing = Trial { plain_bytes: 0, stored_bytes: 0, coding_ns: 0 };
        assert!(!pays(&nothing, 1e9));
        let trial = Trial { plain_bytes: 100, stored_bytes: 1, coding_ns: 0 };
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(!pays(&trial, rate), "{rate}");
        }
    }
}
