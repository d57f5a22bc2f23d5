//! Many concurrent transfers over one ring.

use std::{collections::VecDeque, io, sync::Arc};

use outcrop_memory::Mapping;
use rustix::io::Errno;

use crate::{
    Feed, Memory, Piece, Transfer, blocking,
    registered::PIECE,
    request::Request,
    ring::{Completion, Ring},
};

/// The transfers in flight. Dropping it waits for all of their requests, so that memory is never
/// released while the kernel may use it, not even if the feed panics.
pub(crate) struct Flight<'run, M: Memory> {
    ring: &'run mut Ring,
    request_bytes: u64,
    /// By number. Numbers of ended transfers are reused.
    transfers: Vec<Option<Moving<M>>>,
    /// Requests with their transfers, by number. The kernel knows them by the same number.
    requests: Vec<Option<(Request, usize)>>,
    idle: Vec<usize>,
    /// Transfers that are not yet completely cut into requests. The first one is being cut.
    uncut: VecDeque<usize>,
    /// Transfers of which a request has completed, or that are completely cut: they may have ended.
    touched: Vec<usize>,
}

/// A transfer and its progress.
struct Moving<M> {
    transfer: Transfer<M>,
    /// Where the next request begins: in memory, in the registered mapping, and in the piece with
    /// this index.
    address: *mut u8,
    mapping: Option<(Arc<Mapping>, u64)>,
    piece: usize,
    piece_at: u64,
    requests_in_flight: usize,
    failure: Option<io::Error>,
}

impl<M> Moving<M> {
    /// The next piece to cut. `None` if all are cut, or if the transfer has failed.
    fn uncut(&mut self) -> Option<&Piece> {
        while self.transfer.pieces.get(self.piece).is_some_and(|piece| self.piece_at == piece.bytes) {
            self.piece += 1;
            self.piece_at = 0;
        }
        self.transfer.pieces.get(self.piece).filter(|_| self.failure.is_none())
    }

    /// Advances past a request.
    fn advance(&mut self, bytes: u64) {
        self.address = self.address.wrapping_add(bytes as usize);
        self.piece_at += bytes;
        if let Some((_, at)) = &mut self.mapping {
            *at += bytes;
        }
    }
}

impl<'run, M: Memory> Flight<'run, M> {
    pub(crate) fn new(ring: &'run mut Ring, request_bytes: u64, depth: u32) -> Self {
        let (uring, registered) = ring.split();
        registered.tidy(uring);
        let depth = depth as usize;
        Self {
            ring,
            request_bytes,
            transfers: Vec::new(),
            requests: (0..depth).map(|_| None).collect(),
            idle: (0..depth).rev().collect(),
            uncut: VecDeque::new(),
            touched: Vec::new(),
        }
    }

    /// Carries out the transfers of `feed` until it has no more.
    ///
    /// The feed may be slow, for example because it computes checksums. So before each call of the
    /// feed, as much as possible is put in flight, and the next transfer is fetched before there is
    /// room for it.
    pub(crate) fn run(&mut self, feed: &mut dyn Feed<M>) {
        let mut completions = Vec::with_capacity(self.requests.len());
        loop {
            self.fill();
            self.ring.submit();
            self.end_touched(feed);
            while self.uncut.is_empty() {
                let Some(mut transfer) = feed.next() else { break };
                match transfer.check() {
                    Ok(()) => self.accept(transfer),
                    Err(error) => feed.done(transfer, Err(error)),
                }
                if self.fill() {
                    self.ring.submit();
                }
                self.end_touched(feed);
            }
            if self.idle.len() == self.requests.len() {
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

    /// Queues requests of the accepted transfers until the ring is full. Returns whether they are
    /// large enough for a system call.
    fn fill(&mut self) -> bool {
        let mut bytes = 0;
        while let Some(&cutting) = self.uncut.front() {
            if self.transfers[cutting].as_mut().is_none_or(|moving| moving.uncut().is_none()) {
                // It is completely cut, so the next transfer can be fetched, whether there is room
                // for it or not.
                self.uncut.pop_front();
                self.touched.push(cutting);
                continue;
            }
            let Some(&number) = self.idle.last() else { break };
            let Some(request) = self.cut(cutting) else { continue };
            bytes += request.bytes;
            self.idle.pop();
            let (request, _) = self.requests[number].insert((request, cutting));
            // SAFETY: the memory belongs to the transfer, which stays in `transfers` until all its
            // requests have completed, or until `drop` has waited for them. Requests of a transfer
            // do not overlap. Each queued request has its own number below the depth.
            unsafe { self.ring.push(number, request) };
        }
        bytes >= self.request_bytes
    }

    /// Returns the touched transfers that have ended to the feed.
    fn end_touched(&mut self, feed: &mut dyn Feed<M>) {
        while let Some(number) = self.touched.pop() {
            let is_over = self.transfers[number].as_ref().is_some_and(|moving| moving.requests_in_flight == 0);
            if is_over && !self.uncut.contains(&number) {
                let moving = self.transfers[number].take().expect("looked at above");
                feed.done(moving.transfer, moving.failure.map_or(Ok(()), Err));
            }
        }
    }

    /// Accepts a checked transfer, to be cut after those that are already there.
    fn accept(&mut self, mut transfer: Transfer<M>) {
        let memory = transfer.memory.bytes();
        let mapping = transfer.memory.mapping().map(|(mapping, at)| (Arc::clone(mapping), at));
        if let Some((mapping, at)) = &mapping {
            let (uring, registered) = self.ring.split();
            registered.cover(uring, mapping, &(*at..at + memory.len() as u64));
        }
        let address = memory.cast::<u8>().as_ptr();
        let moving = Moving { transfer, address, mapping, piece: 0, piece_at: 0, requests_in_flight: 0, failure: None };
        let number = self.transfers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() - 1
        });
        self.transfers[number] = Some(moving);
        self.uncut.push_back(number);
    }

    /// Cuts the next request from a transfer. `None` if there is no more to cut.
    fn cut(&mut self, number: usize) -> Option<Request> {
        let moving = self.transfers[number].as_mut().expect("the transfer being cut is in flight");
        let Piece { file, offset, bytes: piece_bytes } = moving.uncut()?.clone();
        let registered = moving.mapping.as_ref();
        let registered = registered.and_then(|(mapping, at)| Some((self.ring.registered.number(mapping, *at)?, *at)));
        // Requests end at multiples of their length in memory, so that a transfer has few short
        // ones.
        let mut bytes = self.request_bytes - moving.address.addr() as u64 % self.request_bytes;
        if let Some((_, at)) = registered {
            bytes = bytes.min(PIECE - at % PIECE);
        }
        let bytes = bytes.min(piece_bytes - moving.piece_at);
        let request = Request {
            direction: moving.transfer.direction,
            file,
            offset: offset + moving.piece_at,
            bytes,
            address: moving.address,
            registered: registered.map(|(number, _)| number),
            moved: 0,
        };
        moving.advance(bytes);
        moving.requests_in_flight += 1;
        Some(request)
    }

    /// Handles a completed request. If bytes are left, it is queued again. Returns the number of
    /// its transfer.
    fn land(&mut self, completion: Completion) -> usize {
        let number = completion.request;
        let (request, transfer) = self.requests[number].as_mut().expect("the kernel knows only requests in flight");
        let transfer = *transfer;
        let moving = self.transfers[transfer].as_mut().expect("a transfer stays until its requests are back");
        let outcome = match completion.result {
            Ok(count) => request.advance(count),
            // SAFETY: the request has completed, so its memory belongs to the transfer alone again.
            Err(Errno::INTR | Errno::AGAIN) => unsafe { blocking::finish(request) },
            Err(errno) => Err(errno.into()),
        };
        match outcome {
            Ok(()) if !request.is_whole() && moving.failure.is_none() => {
                // SAFETY: as in `fill`; this number has just become free in the queue.
                unsafe { self.ring.push(number, request) };
                return transfer;
            }
            Ok(()) => {}
            Err(error) => {
                moving.failure.get_or_insert(error);
            }
        }
        moving.requests_in_flight -= 1;
        self.requests[number] = None;
        self.idle.push(number);
        transfer
    }
}

impl<M: Memory> Drop for Flight<'_, M> {
    fn drop(&mut self) {
        let mut completions = Vec::new();
        let mut in_flight = self.requests.len() - self.idle.len();
        while in_flight > 0 {
            // A panic here, while a panic of the feed unwinds, aborts the program. Memory is not
            // released then either.
            self.ring.wait();
            self.ring.completions(&mut completions);
            in_flight -= completions.drain(..).len();
        }
    }
}
