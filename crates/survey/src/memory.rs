//! The speed of memory in each of its states: untouched, touched, pinned; private and shared.

use std::{io, thread, time::Duration};

use outcrop_layers::{Error as LayerError, Host};
use outcrop_memory::Copier;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::{pread, pwrite},
};

use crate::{
    Error, MemoryProfile, Options, PinnedRates, Result, SharedMemoryRates, TouchedRates, UntouchedRates, bytes_of,
    cores, memory_left,
    rate::{self, BLOCK_BYTES, median},
};

/// What is read goes here, into a cache: long enough for a fast copy, short enough to stay there.
const READ_BYTES: usize = 128 << 10;

/// All rates that were measured, one of each by round; where there are two of them, with one core
/// and with all.
#[derive(Default)]
struct Rounds {
    untouched: [Vec<f64>; 2],
    touched_write: [Vec<f64>; 2],
    touched_read: [Vec<f64>; 2],
    pinned_write: [Vec<f64>; 2],
    pinned_read: [Vec<f64>; 2],
    touch: [Vec<f64>; 2],
    pin_touched: Vec<f64>,
    pin_untouched: Vec<f64>,
    pin_refusal: Option<String>,
}

impl Rounds {
    /// Pins memory, as long as that was never refused.
    fn pin(&mut self, host: &Host, bytes: u64) -> Option<f64> {
        if self.pin_refusal.is_some() {
            return None;
        }
        let outcome = rate::of(bytes, || host.pin());
        self.pin_refusal = outcome.as_ref().err().map(ToString::to_string);
        outcome.ok()
    }
}

/// How much is copied at a time where so much memory is free.
pub(crate) fn bytes(free_bytes: u64, options: &Options) -> Result<u64> {
    // What is copied from takes as much as what is copied to.
    let needed_bytes = 2 * crate::BYTES_MIN * crate::FREE_SHARE;
    bytes_of(free_bytes / 2, options).ok_or(Error::LittleMemory { free_bytes, needed_bytes })
}

/// Measures memory.
pub(crate) fn measure(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<MemoryProfile> {
    let bytes = bytes(memory_left(), options)?;
    let source_host = Host::new(bytes)?;
    source_host.touch(0..bytes)?;
    let source = source_host.slot(0, bytes)?.seal();
    progress("memory");
    let mut rounds = Rounds::default();
    rate::rounds(options, || -> Result<()> {
        for (index, threads) in [1, cores()].into_iter().enumerate() {
            rounds.untouched[index].push(write(&Host::new(bytes)?, &source, threads)?);
            touched_and_pinned(&mut rounds, index, threads, &source)?;
        }
        let pin = rounds.pin(&Host::new(bytes)?, bytes);
        rounds.pin_untouched.extend(pin);
        Ok(())
    })?;
    progress("shared memory");
    let shared = shared(options, &source)?;
    let [write_one_core, write_all_cores] = rounds.untouched.map(median);
    let [touch_one_core, touch_all_cores] = rounds.touch.map(median);
    let pinned = rounds.pin_refusal.is_none().then(|| PinnedRates {
        rates: touched(rounds.pinned_write, rounds.pinned_read),
        pin_touched: median(rounds.pin_touched),
        pin_untouched: median(rounds.pin_untouched),
    });
    Ok(MemoryProfile {
        touch_one_core,
        touch_all_cores,
        pin_refusal: rounds.pin_refusal,
        untouched: UntouchedRates { write_one_core, write_all_cores },
        touched: touched(rounds.touched_write, rounds.touched_read),
        pinned,
        shared,
    })
}

fn touched(write: [Vec<f64>; 2], read: [Vec<f64>; 2]) -> TouchedRates {
    let [write_one_core, write_all_cores] = write.map(median);
    let [read_one_core, read_all_cores] = read.map(median);
    TouchedRates { write_one_core, write_all_cores, read_one_core, read_all_cores }
}

/// Touches new memory, writes and reads it, then pins it and does so again.
fn touched_and_pinned(rounds: &mut Rounds, index: usize, threads: usize, source: &[u8]) -> Result<()> {
    let bytes = source.len() as u64;
    let host = Host::new(bytes)?;
    rounds.touch[index].push(rate::of(bytes, || touch(&host, bytes, threads))?);
    rounds.touched_write[index].push(write(&host, source, threads)?);
    rounds.touched_read[index].push(read(&host, bytes, threads)?);
    let Some(pin) = rounds.pin(&host, bytes) else { return Ok(()) };
    rounds.pin_touched.push(pin);
    rounds.pinned_write[index].push(write(&host, source, threads)?);
    rounds.pinned_read[index].push(read(&host, bytes, threads)?);
    Ok(())
}

fn touch(host: &Host, bytes: u64, threads: usize) -> outcrop_layers::Result<()> {
    let share = bytes.div_ceil(threads as u64).next_multiple_of(host.piece_bytes());
    thread::scope(|scope| {
        let starts = (0..bytes).step_by(share as usize);
        let touches: Vec<_> =
            starts.map(|start| scope.spawn(move || host.touch(start..bytes.min(start + share)))).collect();
        touches.into_iter().try_for_each(|touch| touch.join().expect("touching does not panic"))
    })
}

/// Bytes per second of copying `source` into host memory, as tapes copy.
fn write(host: &Host, source: &[u8], threads: usize) -> Result<f64> {
    let mut slot = host.slot(0, source.len() as u64)?;
    let share = source.len().div_ceil(threads);
    rate::of(source.len() as u64, || {
        thread::scope(|scope| {
            for (target, source) in slot.chunks_mut(share).zip(source.chunks(share)) {
                scope.spawn(|| Copier::new(1).copy(target, source));
            }
        });
        Ok(())
    })
}

/// Bytes per second of reading host memory.
fn read(host: &Host, bytes: u64, threads: usize) -> Result<f64> {
    let sealed = host.slot(0, bytes)?.seal();
    let share = sealed.len().div_ceil(threads);
    rate::of(bytes, || {
        thread::scope(|scope| {
            for part in sealed.chunks(share) {
                scope.spawn(move || {
                    let mut cached = vec![0; READ_BYTES];
                    for piece in part.chunks(READ_BYTES) {
                        cached[..piece.len()].copy_from_slice(piece);
                        std::hint::black_box(&mut cached);
                    }
                });
            }
        });
        Ok(())
    })
}

/// Memory that processes can share, through the calls that any of them may use on it.
fn shared(options: &Options, source: &[u8]) -> Result<SharedMemoryRates> {
    let bytes = source.len() as u64;
    let (mut untouched, mut touched, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let mut target = vec![0; BLOCK_BYTES as usize];
    let failure = |errno: rustix::io::Errno| -> Error {
        LayerError::transfer("memfd", "use shared memory", io::Error::from(errno)).into()
    };
    rate::rounds(options, || -> Result<()> {
        let file = memfd_create("outcrop-survey", MemfdFlags::CLOEXEC).map_err(failure)?;
        let write = || {
            rate::blocks(bytes, Duration::MAX, |at| {
                pwrite(&file, &source[at as usize..][..BLOCK_BYTES as usize], at).map(drop)
            })
            .map(drop)
        };
        untouched.push(rate::of(bytes, write).map_err(failure)?);
        touched.push(rate::of(bytes, write).map_err(failure)?);
        let read = rate::of(bytes, || {
            rate::blocks(bytes, Duration::MAX, |at| pread(&file, &mut target[..], at).map(drop)).map(drop)
        });
        reads.push(read.map_err(failure)?);
        Ok(())
    })?;
    let [write_untouched, write_touched, read] = [untouched, touched, reads].map(median);
    Ok(SharedMemoryRates { write_untouched, write_touched, read })
}
