//! Many transfers at once over one ring: what `run` does with io_uring.

use std::{collections::VecDeque, io, ops::Range, sync::Arc};

use rustix::io::Errno;

use super::{
    blocking,
    registered::PIECE,
    ring::{Block, Completion, Ring},
    segments::Places,
};
use crate::{Error, Feed, Memory, Transfer, host::Mapping};

/// The transfers under way. Dropping it waits for every block of them, so that memory is never given up, not even by a
/// panic of the feed, while the kernel may use it.
pub(crate) struct Flight<'run> {
    layer: &'run str,
    capacity: u64,
    places: &'run dyn Places,
    ring: &'run mut Ring,
    block_bytes: u64,
    /// By number; the numbers of those that have ended are used again.
    transfers: Vec<Option<Moving>>,
    /// By number, which is also what the kernel knows them by: the block and its transfer.
    blocks: Vec<Option<(Block, usize)>>,
    idle: Vec<usize>,
    /// Transfers that are not yet cut into blocks, the one that is being cut first.
    uncut: VecDeque<usize>,
    /// Transfers of which a block has come back, or that could not be cut: they may be over.
    touched: Vec<usize>,
}

/// A transfer, and how far it has come.
struct Moving {
    transfer: Transfer,
    mapping: Arc<Mapping>,
    is_write: bool,
    /// What is left to be cut of the present extent, and the number of the next one.
    extent: Range<u64>,
    extent_next: usize,
    /// Where in the mapping the next block begins.
    memory_at: u64,
    blocks_under_way: usize,
    failure: Option<Error>,
}

impl<'run> Flight<'run> {
    pub(crate) fn new(
        layer: &'run str,
        capacity: u64,
        places: &'run dyn Places,
        ring: &'run mut Ring,
        block_bytes: u64,
        depth: u32,
    ) -> Self {
        let (uring, registered) = ring.split();
        registered.tidy(uring);
        let depth = depth as usize;
        Self {
            layer,
            capacity,
            places,
            ring,
            block_bytes,
            transfers: Vec::new(),
            blocks: (0..depth).map(|_| None).collect(),
            idle: (0..depth).rev().collect(),
            uncut: VecDeque::new(),
            touched: Vec::new(),
        }
    }

    /// Carries out what `feed` has until it has no more.
    ///
    /// The feed may take its time, with checksums for example, so whatever can be under way is before it is asked or told
    /// anything, and one transfer is always in hand before there is room for it.
    pub(crate) fn run(&mut self, feed: &mut dyn Feed) {
        let mut completions = Vec::with_capacity(self.blocks.len());
        loop {
            self.fill();
            self.ring.submit();
            self.end_touched(feed);
            while self.uncut.is_empty() {
                let Some(transfer) = feed.next() else { break };
                match transfer.check(self.layer, self.capacity) {
                    Ok(()) => self.accept(transfer),
                    Err(error) => feed.done(transfer, Err(error)),
                }
                if self.fill() {
                    self.ring.submit();
                }
                self.end_touched(feed);
            }
            if self.idle.len() == self.blocks.len() {
                return;
            }
            self.ring.wait();
            self.ring.completions(&mut completions);
            for completion in completions.drain(..) {
                let number = self.land(completion);
                self.touched.push(number);
            }
        }
    }

    /// Puts blocks of the transfers in hand into the queue until it is full. Says whether they are worth a call.
    fn fill(&mut self) -> bool {
        let mut bytes = 0;
        while let Some(&cutting) = self.uncut.front() {
            if self.is_cut(cutting) {
                self.uncut.pop_front();
                self.touched.push(cutting);
                continue;
            }
            let Some(&number) = self.idle.last() else { break };
            let Some(block) = self.cut(cutting) else { continue };
            bytes += block.piece.bytes;
            self.idle.pop();
            let (block, _) = self.blocks[number].insert((block, cutting));
            // SAFETY: the memory belongs to the transfer, which stays in `transfers` until all its blocks have come back,
            // or until `drop` has waited for them; blocks of a transfer do not overlap. Each block in the queue has a
            // number below the depth of its own.
            unsafe { self.ring.push(number, block) };
        }
        bytes >= self.block_bytes
    }

    /// Gives back what is over of the transfers that have been touched.
    fn end_touched(&mut self, feed: &mut dyn Feed) {
        while let Some(number) = self.touched.pop() {
            let is_over = self.transfers[number].as_ref().is_some_and(|moving| moving.blocks_under_way == 0);
            if is_over && !self.uncut.contains(&number) {
                let moving = self.transfers[number].take().expect("looked at above");
                feed.done(moving.transfer, moving.failure.map_or(Ok(()), Err));
            }
        }
    }

    /// Takes a transfer in, to be cut after those that are in hand.
    fn accept(&mut self, transfer: Transfer) {
        let (slot, is_write) = match &transfer.memory {
            Memory::Write(sealed) => (sealed.slot(), true),
            Memory::Read(slot) => (slot, false),
        };
        let mapping = Arc::clone(slot.mapping());
        let range = slot.range();
        let (uring, registered) = self.ring.split();
        registered.cover(uring, &mapping, &range);
        let moving = Moving {
            mapping,
            is_write,
            extent: 0..0,
            extent_next: 0,
            memory_at: range.start,
            blocks_under_way: 0,
            failure: None,
            transfer,
        };
        let number = self.transfers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[number] = Some(moving);
        self.uncut.push_back(number);
    }

    /// Whether there is nothing more to cut of a transfer, as all of it has been, or it has failed.
    fn is_cut(&self, number: usize) -> bool {
        self.transfers[number].as_ref().is_none_or(|moving| {
            let is_last = moving.extent_next == moving.transfer.extents.len();
            moving.failure.is_some() || (is_last && moving.extent.is_empty())
        })
    }

    /// The next block of a transfer that is not all cut; nothing if it fails.
    fn cut(&mut self, number: usize) -> Option<Block> {
        let moving = self.transfers[number].as_mut().expect("the transfer being cut is under way");
        if moving.extent.is_empty() {
            moving.extent = moving.transfer.extents.get(moving.extent_next)?.clone();
            moving.extent_next += 1;
        }
        let at = moving.memory_at;
        let registered = self.ring.registered.number(&moving.mapping, at);
        // Blocks end at multiples of their length in memory, so that one transfer has few short ones.
        let to_boundary = |length: u64| length - at % length;
        let bytes_max = match registered {
            Some(_) => to_boundary(self.block_bytes).min(to_boundary(PIECE)),
            None => to_boundary(self.block_bytes),
        };
        let piece = self.places.first_piece(&moving.extent, bytes_max);
        let segment = if moving.is_write { self.places.for_writing(&piece) } else { self.places.for_reading(&piece) };
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => {
                moving.failure = Some(error);
                return None;
            }
        };
        moving.extent.start += piece.bytes;
        moving.memory_at += piece.bytes;
        moving.blocks_under_way += 1;
        let address = moving.mapping.address(at);
        Some(Block { is_write: moving.is_write, segment, piece, address, registered, moved: 0 })
    }

    /// Deals with a block that came back; it may go out again with its rest. Returns the number of its transfer.
    fn land(&mut self, completion: Completion) -> usize {
        let number = completion.block;
        let (block, transfer) = self.blocks[number].as_mut().expect("the kernel knows only blocks under way");
        let transfer = *transfer;
        let moving = self.transfers[transfer].as_mut().expect("a transfer stays until its blocks are back");
        let outcome = match completion.result {
            Ok(0) if block.is_write => Err(io::ErrorKind::WriteZero.into()),
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                block.moved += count;
                Ok(())
            }
            // SAFETY: the block is back, so that its memory is the transfer's alone again.
            Err(Errno::INTR | Errno::AGAIN) => unsafe { blocking::finish(block) },
            Err(errno) => Err(io::Error::from(errno)),
        };
        let is_whole = block.moved >= block.piece.bytes;
        if outcome.is_ok() && !is_whole && moving.failure.is_none() {
            // SAFETY: as in `fill`; this number has just become free in the queue.
            unsafe { self.ring.push(number, block) };
            return transfer;
        }
        let outcome = outcome.and_then(|()| if is_whole { block.settle() } else { Ok(()) });
        if let Err(source) = outcome {
            let attempt = if block.is_write { "write" } else { "read" };
            moving.failure.get_or_insert(self.places.failure(attempt, source));
        }
        moving.blocks_under_way -= 1;
        self.blocks[number] = None;
        self.idle.push(number);
        transfer
    }
}

impl Block {
    /// Notes in the segment that all of it was moved.
    fn settle(&self) -> io::Result<()> {
        if self.is_write {
            return self.segment.settle_write(&self.piece).map_err(io::Error::from);
        }
        self.segment.settle_read(&self.piece);
        Ok(())
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut completions = Vec::new();
        let mut under_way = self.blocks.len() - self.idle.len();
        while under_way > 0 {
            // A panic in here, while the feed's is under way, ends the program: the memory is not given up then either.
            self.ring.wait();
            self.ring.completions(&mut completions);
            under_way -= completions.drain(..).len();
        }
    }
}
