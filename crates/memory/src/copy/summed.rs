//! Copies and computes a checksum in one pass: each cache line is loaded once, and both stored and
//! added to the checksum while it is in a register. The memory is what takes the time, so the
//! checksum costs next to nothing.
//!
//! The checksum is XXH3 (64 bits, no seed), as its specification defines it for what is longer than
//! 240 bytes: stripes of 64 bytes are added to eight sums, which are mixed after every 16 stripes.

/// The lengths that [`copy_and_sum`] takes are multiples of this.
pub const SUMMED_BYTES: usize = 1024;

/// Copies `source` to `target` past the caches, and returns the XXH3 checksum (64 bits) of it.
/// `None` if this processor cannot do both at once, or for other lengths than multiples of
/// [`SUMMED_BYTES`], or if the target does not begin with a cache line: then nothing was copied.
/// Panics if they are not of the same length.
#[cfg(target_arch = "x86_64")]
pub fn copy_and_sum(target: &mut [u8], source: &[u8]) -> Option<u64> {
    assert_eq!(target.len(), source.len(), "a copy needs as much room as it has bytes");
    let fits = !source.is_empty()
        && source.len().is_multiple_of(SUMMED_BYTES)
        && target.as_ptr().addr().is_multiple_of(x86::STRIPE);
    if !fits {
        return None;
    }
    let sums = if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512, and the lengths and the alignment are as needed.
        unsafe { x86::copy_avx512(target, source) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and the lengths and the alignment are as needed.
        unsafe { x86::copy_avx2(target, source) }
    } else {
        return None;
    };
    Some(x86::finish(&sums, source.len() as u64))
}

/// Copies and computes a checksum, where the processor can do both at once.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy_and_sum(_target: &mut [u8], _source: &[u8]) -> Option<u64> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// What is added to the sums at once: a cache line.
    pub(super) const STRIPE: usize = 64;
    /// After so many stripes the sums are mixed.
    const STRIPES: usize = super::SUMMED_BYTES / STRIPE;
    /// Where the secret begins that the last stripe is mixed with, and that of the end.
    const LAST_AT: usize = SECRET_BYTES - STRIPE - 7;
    const END_AT: usize = 11;
    const SECRET_BYTES: usize = 192;

    const PRIMES_32: [u64; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
    const PRIMES_64: [u64; 5] = [
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
    ];
    const START: [u64; 8] = [
        PRIMES_32[2],
        PRIMES_64[0],
        PRIMES_64[1],
        PRIMES_64[2],
        PRIMES_64[3],
        PRIMES_32[1],
        PRIMES_64[4],
        PRIMES_32[0],
    ];
    const MIX: u64 = 0x1656_6791_9e37_79f9;

    /// The default secret of XXH3, as little-endian numbers.
    const SECRET: [u64; SECRET_BYTES / 8] = [
        0xbe4b_a423_396c_feb8,
        0x1cad_21f7_2c81_017c,
        0xdb97_9083_e96d_d4de,
        0x1f67_b3b7_a4a4_4072,
        0x78e5_c0cc_4ee6_79cb,
        0x2172_ffcc_7dd0_5a82,
        0x8e24_43f7_7446_08b8,
        0x4c26_3a81_e690_35e0,
        0xcb00_c391_bb52_283c,
        0xa32e_531b_8b65_d088,
        0x4ef9_0da2_9748_6471,
        0xd8ac_dea9_46ef_1938,
        0x3f34_9ce3_3f76_faa8,
        0x1d4f_0bc7_c7bb_dcf9,
        0x3159_b4cd_4be0_518a,
        0x6473_78d9_c97e_9fc8,
        0xc3eb_d334_83ac_c5ea,
        0xeb63_13fa_ffa0_81c5,
        0x49da_f0b7_51dd_0d17,
        0x9e68_d429_2655_16d3,
        0xfca1_477d_58be_162b,
        0xce31_d07a_d1b8_f88f,
        0x2804_1695_8f3a_cb45,
        0x7e40_4bbb_cafb_d7af,
    ];

    /// The bytes of the secret from `at` on.
    fn secret(at: usize) -> *const u8 {
        debug_assert!(at + STRIPE <= SECRET_BYTES);
        SECRET.as_ptr().cast::<u8>().wrapping_add(at)
    }

    macro_rules! copy_with {
        (
            #[$feature:meta] $name:ident, $vector:ty, $load:ident, $store:ident,
            $xor:ident, $shift:ident, $raise:ident, $multiply:ident, $add:ident, $swap:ident, $fill:ident
        ) => {
            /// Both have the same length, a multiple of 1 KiB, and the target begins with a line.
            #[$feature]
            pub(super) unsafe fn $name(target: &mut [u8], source: &[u8]) -> [u64; 8] {
                const LANES: usize = STRIPE / size_of::<$vector>();
                let mut sums = START;
                let load = |lane: usize| {
                    // SAFETY: `sums` has the size of these vectors, and the load needs no
                    // alignment.
                    unsafe { $load(sums.as_ptr().cast::<$vector>().add(lane)) }
                };
                let mut own: [$vector; LANES] = std::array::from_fn(load);
                let blocks = source.len() / super::SUMMED_BYTES;
                let (mut from, mut to) = (source.as_ptr(), target.as_mut_ptr());
                for block in 0..blocks {
                    for stripe in 0..STRIPES {
                        let is_last = block + 1 == blocks && stripe + 1 == STRIPES;
                        let key_at = if is_last { LAST_AT } else { stripe * 8 };
                        for (lane, own) in own.iter_mut().enumerate() {
                            // SAFETY: there are as many stripes as both slices have, and the secret
                            // has as many bytes after `key_at`. The target is aligned to a line,
                            // and the loads need no alignment.
                            let (bytes, key) = unsafe {
                                let bytes = $load(from.cast::<$vector>().add(lane));
                                $store(to.cast::<$vector>().add(lane), bytes);
                                (bytes, $load(secret(key_at).cast::<$vector>().add(lane)))
                            };
                            let mixed = $xor(bytes, key);
                            let product = $multiply(mixed, $shift::<32>(mixed));
                            *own = $add(product, $add(*own, $swap::<0x4e>(bytes)));
                        }
                        (from, to) = (from.wrapping_add(STRIPE), to.wrapping_add(STRIPE));
                    }
                    if block + 1 < blocks {
                        for (lane, own) in own.iter_mut().enumerate() {
                            // SAFETY: the last 64 bytes of the secret.
                            let key = unsafe { $load(secret(SECRET_BYTES - STRIPE).cast::<$vector>().add(lane)) };
                            let mixed = $xor($xor(*own, $shift::<47>(*own)), key);
                            let prime = $fill(PRIMES_32[0] as i64);
                            let high = $multiply($shift::<32>(mixed), prime);
                            *own = $add($multiply(mixed, prime), $raise::<32>(high));
                        }
                    }
                }
                // Whoever learns that the copy is complete must see all of it.
                _mm_sfence();
                for (lane, own) in own.into_iter().enumerate() {
                    // SAFETY: as above; every bit pattern is valid.
                    unsafe { sums.as_mut_ptr().cast::<$vector>().add(lane).write_unaligned(own) };
                }
                sums
            }
        };
    }

    copy_with!(
        #[target_feature(enable = "avx512f")]
        copy_avx512,
        __m512i,
        _mm512_loadu_si512,
        _mm512_stream_si512,
        _mm512_xor_si512,
        _mm512_srli_epi64,
        _mm512_slli_epi64,
        _mm512_mul_epu32,
        _mm512_add_epi64,
        _mm512_shuffle_epi32,
        _mm512_set1_epi64
    );
    copy_with!(
        #[target_feature(enable = "avx2")]
        copy_avx2,
        __m256i,
        _mm256_loadu_si256,
        _mm256_stream_si256,
        _mm256_xor_si256,
        _mm256_srli_epi64,
        _mm256_slli_epi64,
        _mm256_mul_epu32,
        _mm256_add_epi64,
        _mm256_shuffle_epi32,
        _mm256_set1_epi64x
    );

    /// The checksum of `bytes` bytes with these sums.
    pub(super) fn finish(sums: &[u64; 8], bytes: u64) -> u64 {
        // SAFETY: the secret has eight bytes after `at`.
        let key = |at: usize| unsafe { secret(at).cast::<u64>().read_unaligned() };
        let mut result = bytes.wrapping_mul(PRIMES_64[0]);
        for (nth, pair) in sums.chunks_exact(2).enumerate() {
            let at = END_AT + 16 * nth;
            let product = u128::from(pair[0] ^ key(at)) * u128::from(pair[1] ^ key(at + 8));
            result = result.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        result ^= result >> 37;
        result = result.wrapping_mul(MIX);
        result ^ (result >> 32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use twox_hash::XxHash3_64;

    use super::*;

    proptest! {
        #[test]
        fn both_widths_copy_everything_and_agree_with_another_implementation(
            blocks in 1_usize..80, from in 0_usize..130, seed in any::<u64>(),
        ) {
            let bytes = blocks * SUMMED_BYTES;
            let mut random = fastrand_bytes(seed, from + bytes);
            let source = random.split_off(from);
            let expected = XxHash3_64::oneshot(&source);
            let mut room = vec![0xEE_u8; bytes + 64];
            let start = room.as_ptr().align_offset(64);
            let target = &mut room[start..start + bytes];
            if let Some(sum) = copy_and_sum(target, &source) {
                prop_assert_eq!(sum, expected);
                prop_assert!(&*target == source.as_slice());
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                target.fill(0);
                // SAFETY: the processor has AVX2, and the lengths and the alignment are as needed.
                let sums = unsafe { x86::copy_avx2(target, &source) };
                prop_assert_eq!(x86::finish(&sums, bytes as u64), expected);
                prop_assert!(&*target == source.as_slice());
            }
            prop_assert!(room[start + bytes..].iter().all(|&byte| byte == 0xEE));
        }
    }

    fn fastrand_bytes(seed: u64, count: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn what_does_not_fit_is_left_alone() {
        let source = vec![7; 2 * SUMMED_BYTES];
        let mut room = vec![0_u8; 3 * SUMMED_BYTES];
        let start = room.as_ptr().align_offset(64);
        assert_eq!(copy_and_sum(&mut room[start..start + 1000], &source[..1000]), None);
        assert_eq!(copy_and_sum(&mut room[start + 1..start + 1 + SUMMED_BYTES], &source[..SUMMED_BYTES]), None);
        assert_eq!(copy_and_sum(&mut room[start..start], &[]), None);
        assert!(room.iter().all(|&byte| byte == 0));
    }
}
