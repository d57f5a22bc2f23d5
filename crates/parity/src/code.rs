//! The code: how many shards a file has, and the chunks of a stripe.

use std::fmt;

use outcrop_format::{SHARDS_MAX, ShardedFile};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// How many shards a file has, and how many nodes may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    data: u16,
    lost: u16,
}

/// A code that is not possible, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code: {1}")]
pub struct CodeError(String, &'static str);

impl Code {
    /// A copy on another node.
    pub const PARTNER: Self = Self { data: 1, lost: 1 };

    /// Any `lost` nodes of a group may be lost. A file is cut into `data` parts.
    pub fn new(data: u16, lost: u16) -> Result<Self, CodeError> {
        let problem = if lost == 0 {
            "the second number is how many nodes may be lost, and is at least 1; leave parity out if none may be"
        } else if data == 0 {
            "the first number is into how many parts a file is cut, and is at least 1"
        } else if u32::from(data) + u32::from(lost) > u32::from(SHARDS_MAX) {
            "a group has at most 254 nodes; choose smaller numbers"
        } else {
            return Ok(Self { data, lost });
        };
        Err(CodeError(format!("{data}+{lost}"), problem))
    }

    /// How many shards give a file back.
    pub fn data(self) -> u16 {
        self.data
    }

    /// How many nodes of a group may be lost.
    pub fn lost(self) -> u16 {
        self.lost
    }

    /// How many nodes a group needs at least.
    pub fn nodes(self) -> u16 {
        self.data + self.lost
    }

    /// How many shards a file has: one on each of so many nodes.
    pub fn shards(self) -> u16 {
        self.nodes()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.lost)
    }
}

/// Computes the chunks of stripes, one stripe after the other.
#[derive(Default)]
pub struct Coder {
    encoder: Option<(Shape, ReedSolomonEncoder)>,
    decoder: Option<(Shape, ReedSolomonDecoder)>,
    padded: Vec<u8>,
}

/// What a coder was made for: chunks of the file, chunks beyond these, and their length.
type Shape = (usize, usize, usize);

impl fmt::Debug for Coder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coder").finish_non_exhaustive()
    }
}

/// What is right by construction: chunks of one even length, as many as announced.
const FITS: &str = "the chunks of a stripe are of one even length";

impl Coder {
    /// Gives `each` the chunks of a stripe, by index. `bytes` are those of the file in this stripe.
    pub fn encode<E>(
        &mut self,
        file: &ShardedFile,
        stripe: u64,
        bytes: &[u8],
        mut each: impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (data, chunk) = (usize::from(file.data), file.chunk_bytes(stripe));
        debug_assert_eq!(bytes.len() as u64, file.bytes_in(stripe));
        let spare = usize::from(file.count - file.data);
        let whole = data * chunk;
        let stripe_of_chunks = match bytes.len() == whole {
            true => bytes,
            false => {
                self.padded.clear();
                self.padded.extend_from_slice(bytes);
                self.padded.resize(whole, 0);
                &self.padded
            }
        };
        for (index, chunk) in (0..).zip(stripe_of_chunks.chunks_exact(chunk)) {
            each(index, chunk)?;
        }
        match (data, spare) {
            (_, 0) => Ok(()),
            // Copies.
            (1, _) => (1..file.count).try_for_each(|index| each(index, stripe_of_chunks)),
            _ => {
                let encoder = encoder(&mut self.encoder, (data, spare, chunk));
                for chunk in stripe_of_chunks.chunks_exact(chunk) {
                    encoder.add_original_shard(chunk).expect(FITS);
                }
                let computed = encoder.encode().expect(FITS);
                (file.data..file.count).zip(computed.recovery_iter()).try_for_each(|(index, chunk)| each(index, chunk))
            }
        }
    }

    /// The bytes of the file in a stripe, from chunks that are right, by index. `None` if there are
    /// too few.
    pub fn decode(&mut self, file: &ShardedFile, stripe: u64, chunks: &[(u16, &[u8])]) -> Option<Vec<u8>> {
        let (data, chunk) = (usize::from(file.data), file.chunk_bytes(stripe));
        let mut bytes = vec![0; data * chunk];
        let mut is_there = vec![false; data];
        let mut spare = Vec::new();
        for &(index, part) in chunks.iter().filter(|(index, part)| *index < file.count && part.len() == chunk) {
            let index = usize::from(index);
            match (data, index < data) {
                // Every chunk is a copy.
                (1, _) => {
                    bytes.copy_from_slice(part);
                    is_there[0] = true;
                }
                (_, true) => {
                    bytes[index * chunk..(index + 1) * chunk].copy_from_slice(part);
                    is_there[index] = true;
                }
                (_, false) => spare.push((index - data, part)),
            }
        }
        let missing = is_there.iter().filter(|is_there| !**is_there).count();
        if missing > spare.len() {
            return None;
        }
        if missing > 0 {
            let decoder = decoder(&mut self.decoder, (data, usize::from(file.count) - data, chunk));
            for (index, part) in bytes.chunks_exact(chunk).enumerate().filter(|(index, _)| is_there[*index]) {
                decoder.add_original_shard(index, part).expect(FITS);
            }
            for (index, part) in spare.into_iter().take(missing) {
                decoder.add_recovery_shard(index, part).expect("each chunk is there once");
            }
            let decoded = decoder.decode().expect("there are enough chunks");
            for (index, part) in decoded.restored_original_iter() {
                bytes[index * chunk..(index + 1) * chunk].copy_from_slice(part);
            }
        }
        bytes.truncate(file.bytes_in(stripe) as usize);
        Some(bytes)
    }
}

/// An encoder of this shape; the one that is there, if it is of this shape.
fn encoder(kept: &mut Option<(Shape, ReedSolomonEncoder)>, shape: Shape) -> &mut ReedSolomonEncoder {
    if kept.as_ref().is_none_or(|(known, _)| *known != shape) {
        *kept = Some((shape, ReedSolomonEncoder::new(shape.0, shape.1, shape.2).expect(FITS)));
    }
    &mut kept.as_mut().expect("it was just made").1
}

fn decoder(kept: &mut Option<(Shape, ReedSolomonDecoder)>, shape: Shape) -> &mut ReedSolomonDecoder {
    if kept.as_ref().is_none_or(|(known, _)| *known != shape) {
        *kept = Some((shape, ReedSolomonDecoder::new(shape.0, shape.1, shape.2).expect(FITS)));
    }
    &mut kept.as_mut().expect("it was just made").1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(bytes: usize, data: u16, lost: u16) -> ShardedFile {
        let count = Code::new(data, lost).unwrap().shards();
        ShardedFile { generation: 1, id: 7, owner: 0, bytes: bytes as u64, check: 0, data, count }
    }

    /// The chunks of each stripe.
    fn encoded(file: &ShardedFile, bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let mut coder = Coder::default();
        let stripes = bytes.chunks(file.stripe_bytes() as usize).zip(0..);
        let chunks = stripes.map(|(bytes, stripe)| {
            let mut chunks = Vec::new();
            let each = |index: u16, chunk: &[u8]| -> Result<(), ()> {
                assert_eq!(usize::from(index), chunks.len());
                chunks.push(chunk.to_vec());
                Ok(())
            };
            coder.encode(file, stripe, bytes, each).unwrap();
            chunks
        });
        chunks.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_chunks_that_suffice_give_all_bytes_back(
            data in 1u16..7, lost in 1u16..5, bytes in 1usize..700_000, seed in any::<u64>(),
        ) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let content: Vec<u8> = (0..bytes).map(|_| rng.u8(..)).collect();
            let file = file(bytes, data, lost);
            let stripes = encoded(&file, &content);
            prop_assert_eq!(stripes.len() as u64, file.stripes());
            let mut coder = Coder::default();
            for (stripe, chunks) in (0..).zip(&stripes) {
                prop_assert_eq!(chunks.len(), usize::from(file.count));
                let mut left: Vec<(u16, &[u8])> = (0..).zip(chunks).map(|(at, chunk)| (at, &chunk[..])).collect();
                rng.shuffle(&mut left);
                left.truncate(usize::from(data));
                let start = (stripe * file.stripe_bytes()) as usize;
                let found = coder.decode(&file, stripe, &left).unwrap();
                prop_assert!(found == content[start..start + found.len()]);
                prop_assert_eq!(found.len() as u64, file.bytes_in(stripe));
                left.pop();
                prop_assert_eq!(coder.decode(&file, stripe, &left), None);
            }
        }
    }

    #[test]
    fn codes_that_protect_nothing_are_refused() {
        for (data, lost, problem) in [(4, 0, "at least 1"), (0, 1, "at least 1"), (200, 100, "at most 254 nodes")] {
            assert!(Code::new(data, lost).unwrap_err().to_string().contains(problem));
        }
        let code = Code::new(4, 2).unwrap();
        assert_eq!((code.nodes(), code.shards(), code.to_string()), (6, 6, "4+2".to_owned()));
    }
}
