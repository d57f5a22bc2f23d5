//! Blocks in fewer bytes: compression after a byte shuffle, and when it pays.

mod shuffle;

use std::fmt;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::{
    error::{Error, Problem, Result, Structure},
    hash::short_checksum,
};

/// Which compression.
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
    /// The number that stands for it in a file.
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
    /// Stored as they are.
    pub const RAW: Self = Self { kind: CodingKind::Raw, shuffle: 0 };

    /// Compressed with `kind`, after the bytes of elements of `shuffle` bytes have been put
    /// together by their place in the element. Widths of 0 and 1 stand for no shuffle, and so does
    /// everything with [`CodingKind::Raw`].
    pub const fn new(kind: CodingKind, shuffle: u8) -> Self {
        let is_shuffled = shuffle > 1 && !matches!(kind, CodingKind::Raw);
        Self { kind, shuffle: if is_shuffled { shuffle } else { 0 } }
    }

    /// Which compression.
    pub const fn kind(self) -> CodingKind {
        self.kind
    }

    /// The width of an element whose bytes are shuffled; 0 without shuffle.
    pub const fn shuffle(self) -> u8 {
        self.shuffle
    }

    /// Whether blocks are stored as they are.
    pub const fn is_raw(self) -> bool {
        matches!(self.kind, CodingKind::Raw)
    }

    /// The coding that these numbers of a file stand for.
    pub(crate) fn from_codes(kind: u8, shuffle: u8) -> Option<Self> {
        let kind =
            [CodingKind::Raw, CodingKind::Lz4, CodingKind::Zstd].into_iter().find(|known| known.code() == kind)?;
        // There is one way only to say that there is no shuffle.
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
    /// How many: never more than the block has. As many as it has means that it is stored as it is,
    /// however its extent is coded.
    pub bytes: u32,
    /// Their checksum, if the extent is coded. It finds changes that decoding would forgive; 0 if
    /// the extent is not coded, where the block's hash finds all.
    pub check: u32,
}

/// Makes blocks smaller. It keeps memory of a few times the largest block for the next one.
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
    /// An encoder, with this level if it is zstd (1 to 22; 0 is zstd's usual one).
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

    /// Writes `block` to the front of `into`, which is at least as long, in no more bytes than it
    /// has.
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
    /// Compresses to the front of `into`, which is as long as `plain`; nothing if it does not
    /// become shorter.
    fn compress(&mut self, plain: &[u8], into: &mut [u8]) -> Result<Option<usize>> {
        if plain.is_empty() {
            return Ok(None);
        }
        match self {
            Self::Raw => Ok(None),
            Self::Lz4 { table, scratch } => {
                // LZ4 wants room for the worst case.
                scratch.resize(scratch.len().max(get_maximum_output_size(plain.len())), 0);
                let bytes = compress_into_with_table(plain, scratch, table).map_err(failed)?;
                if bytes >= plain.len() {
                    return Ok(None);
                }
                into[..bytes].copy_from_slice(&scratch[..bytes]);
                Ok(Some(bytes))
            }
            // It fails if there is no room, which is to say that the block does not become shorter,
            // or no memory.
            Self::Zstd(compressor) => Ok(compressor.compress_to_buffer(plain, &mut into[..plain.len() - 1]).ok()),
        }
    }
}

/// Makes blocks plain again. It keeps memory of the size of the largest block for the next one.
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

    /// Fills `block` from its stored bytes, which must have the checksum `check` if they are coded.
    /// After an error `block` holds anything.
    ///
    /// The caller compares the hash of the block: only that proves that the bytes are the right
    /// ones.
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

/// What coding some blocks has cost and brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// The bytes of the blocks.
    pub plain_bytes: u64,
    /// The bytes in which they were stored.
    pub stored_bytes: u64,
    /// The time that it took.
    pub coding_ns: u64,
}

/// What coding has to save at least, as a part of the way without it: less is not worth the cores
/// that it takes from the program.
const GAIN_MIN: f64 = 0.05;

/// Whether coding makes the way to a medium shorter that takes `bytes_per_s`: whether to code and
/// then to write what is left takes clearly less time than to write all. A trial of nothing, and a
/// medium without speed, decide nothing: no.
///
/// The two are added and not overlapped, although a store may write one block while it codes the
/// next: the cores are the program's, and what coding takes of them is to come back as time on the
/// medium.
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
        // A gigabyte becomes half of it in one second.
        let trial = Trial { plain_bytes: 1_000_000_000, stored_bytes: 500_000_000, coding_ns: 1_000_000_000 };
        assert!(pays(&trial, 0.1e9));
        assert!(!pays(&trial, 3e9));
        // At half a gigabyte per second both ways take two seconds, and a gain of a hundredth is
        // none.
        assert!(!pays(&trial, 0.5e9));
        assert!(!pays(&trial, 0.495e9));
        assert!(pays(&trial, 0.45e9));
        // What does not become shorter never pays, even if it costs nothing.
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
