//! A checksum that devices compute as fast as the host, so that bytes can be compared without
//! moving them.
//!
//! Each word of eight bytes is mixed with its index, and the results are added. So any number of
//! threads can each sum a share. The kernels are in `kernels`. It detects accidental changes, not
//! deliberate ones.

/// How many shares a device sums in parallel: enough to keep a large device busy, few enough to
/// read back quickly.
pub(super) const SHARES: usize = 8192;

/// The checksum of `bytes`. [`DeviceLayer::checksum`](crate::DeviceLayer::checksum) computes the
/// same value for the same bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    finish(sum_words(bytes), bytes.len() as u64)
}

/// The checksum from the sum of all words.
pub(super) fn finish(sum: u64, bytes: u64) -> u64 {
    // The last word is padded with zeroes, so the length has to be included separately.
    sum.wrapping_add(mix(bytes, u64::MAX))
}

/// Adds the sums of all threads of a device.
pub(super) fn add_up(shares: &[u8]) -> u64 {
    let shares = shares.chunks_exact(8).map(|share| share.try_into().unwrap_or_default());
    shares.fold(0, |sum: u64, share| sum.wrapping_add(u64::from_le_bytes(share)))
}

fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    let last = (!words.remainder().is_empty()).then_some(last);
    let words = words.map(|word| word.try_into().unwrap_or_default()).chain(last);
    (0..).zip(words).fold(0, |sum: u64, (index, word)| sum.wrapping_add(mix(u64::from_le_bytes(word), index)))
}

/// The multipliers are those of the `SplitMix64` generator.
fn mix(value: u64, index: u64) -> u64 {
    let mixed = value ^ index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 32).wrapping_mul(0x94D0_49BB_1331_11EB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_seen() {
        let bytes: Vec<u8> = (0..61).map(|byte| byte * 3).collect();
        let wanted = checksum(&bytes);
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[index] ^= 1 << bit;
                assert_ne!(checksum(&changed), wanted, "bit {bit} of byte {index}");
            }
            assert_ne!(checksum(&bytes[..index]), wanted);
        }
        let mut swapped = bytes.clone();
        swapped.copy_within(8..16, 0);
        swapped[8..16].copy_from_slice(&bytes[..8]);
        assert_ne!(checksum(&swapped), wanted, "places count");
        assert_ne!(checksum(&[]), checksum(&[0]));
        assert_ne!(checksum(&[0; 8]), checksum(&[0; 9]));
    }
}
