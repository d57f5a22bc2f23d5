//! A buffer in host memory for reads from a front in device memory.

use outcrop_layers::{Host, Slot, aligned};

/// Host memory to which a snapshot in device memory is copied for the program to read. It is reused
/// once the program has dropped the previous snapshot.
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
