//! A front in device memory: how the program gets its bytes in and out.

use std::ops::Range;

use outcrop_layers::{Host, Layer, Slot, aligned};

/// Bytes are moved together through host memory in pieces of this size.
const SLIDE_BYTES: u64 = 4 << 20;

/// Moves bytes down inside a layer, to a place that may overlap the old one.
pub(crate) fn slide(layer: &dyn Layer, from: Range<u64>, to: u64) -> outcrop_layers::Result<()> {
    let mut piece = vec![0; SLIDE_BYTES.min(from.end - from.start) as usize];
    let mut at = from.start;
    while at < from.end {
        let bytes = (from.end - at).min(SLIDE_BYTES) as usize;
        layer.read(at, &mut piece[..bytes])?;
        layer.write(to + (at - from.start), &piece[..bytes])?;
        at += bytes as u64;
    }
    Ok(())
}

/// Host memory that device memory is copied to for a program that wants to look at it: the same again, if it is free.
#[derive(Debug, Default)]
pub(crate) struct Desk(Option<Host>);

impl Desk {
    pub(crate) fn slot(&mut self, bytes: usize) -> outcrop_layers::Result<Slot> {
        let bytes = aligned(bytes as u64);
        let known = self.0.as_ref().filter(|host| host.capacity() >= bytes);
        if let Some(slot) = known.and_then(|host| host.slot(0, bytes).ok()) {
            return Ok(slot);
        }
        let host = Host::new(bytes)?;
        let slot = host.slot(0, bytes)?;
        self.0 = Some(host);
        Ok(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_slide_down_over_themselves() {
        let host = Host::new(32 << 20).unwrap();
        let bytes: Vec<u8> = (0..10u32 << 20).map(|index| (index / 4096 % 251) as u8).collect();
        host.write(1 << 20, &bytes).unwrap();
        slide(&host, 1 << 20..11 << 20, 4096).unwrap();
        let mut back = vec![0; bytes.len()];
        host.read(4096, &mut back).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn a_desk_is_used_again_when_it_is_free() {
        let mut desk = Desk::default();
        let first = desk.slot(10_000).unwrap();
        let place = first.as_ptr();
        drop(first);
        let again = desk.slot(5_000).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert_ne!(desk.slot(5_000).unwrap().as_ptr(), place, "somebody is at the first one");
    }
}
