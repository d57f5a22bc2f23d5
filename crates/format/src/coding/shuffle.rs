//! The byte shuffle: groups the bytes of elements by their position in the element. In similar
//! numbers, bytes at the same position are similar, so they compress better.

/// Writes to `into` the first bytes of all elements of `width` bytes, then the second bytes, and so
/// on. Bytes after the last whole element are copied unchanged. Both slices are equally long.
pub(super) fn shuffle(plain: &[u8], width: usize, into: &mut [u8]) {
    // The loops are twice as fast if the compiler knows the width.
    match width {
        2 => part(plain, 2, into),
        4 => part(plain, 4, into),
        8 => part(plain, 8, into),
        _ => part(plain, width, into),
    }
}

/// Undoes [`shuffle`].
pub(super) fn unshuffle(shuffled: &[u8], width: usize, into: &mut [u8]) {
    match width {
        2 => join(shuffled, 2, into),
        4 => join(shuffled, 4, into),
        8 => join(shuffled, 8, into),
        _ => join(shuffled, width, into),
    }
}

#[inline(always)]
fn part(plain: &[u8], width: usize, into: &mut [u8]) {
    let count = plain.len() / width;
    let (planes, rest) = into.split_at_mut(count * width);
    for (place, plane) in planes.chunks_exact_mut(count.max(1)).enumerate() {
        for (byte, element) in plane.iter_mut().zip(plain.chunks_exact(width)) {
            *byte = element[place];
        }
    }
    rest.copy_from_slice(&plain[count * width..]);
}

#[inline(always)]
fn join(shuffled: &[u8], width: usize, into: &mut [u8]) {
    let count = shuffled.len() / width;
    let (planes, rest) = shuffled.split_at(count * width);
    for (place, plane) in planes.chunks_exact(count.max(1)).enumerate() {
        for (byte, element) in plane.iter().zip(into.chunks_exact_mut(width)) {
            element[place] = *byte;
        }
    }
    into[count * width..].copy_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_one_place_come_together_and_go_back() {
        let plain = b"aA1bB2cC3xy";
        let mut shuffled = [0; 11];
        shuffle(plain, 3, &mut shuffled);
        assert_eq!(&shuffled, b"abcABC123xy");
        let mut back = [0; 11];
        unshuffle(&shuffled, 3, &mut back);
        assert_eq!(&back, plain);
    }

    #[test]
    fn every_width_goes_back() {
        let plain: Vec<u8> = (0..1000_u32).map(|nth| (nth * 7 % 251) as u8).collect();
        for width in 2..=255 {
            let (mut shuffled, mut back) = (vec![0; 1000], vec![0; 1000]);
            shuffle(&plain, width, &mut shuffled);
            assert_eq!(shuffled[1], plain[width], "{width}");
            unshuffle(&shuffled, width, &mut back);
            assert_eq!(back, plain, "{width}");
        }
    }

    #[test]
    fn fewer_bytes_than_an_element_stay_as_they_are() {
        for length in 0..8 {
            let plain = &b"abcdefgh"[..length];
            let mut shuffled = vec![0; length];
            shuffle(plain, 8, &mut shuffled);
            assert_eq!(shuffled, plain);
            unshuffle(plain, 8, &mut shuffled);
            assert_eq!(shuffled, plain);
        }
    }
}
