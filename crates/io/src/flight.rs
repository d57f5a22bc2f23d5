//! Many transfers at once over one ring.

use std::{collections::VecDeque, io, sync::Arc};

use outcrop_memory::Mapping;
use rustix::io::Errno;

use crate::{
    Feed, Memory, Piece, Transfer, blocking,
    registered::PIECE,
    request::Request,
    ring::{Completion, Ring},
};

/// The transfers in flight. Dropping it waits for every request of them, so that memory is never
/// given up, not even by a panic of the feed, while the kernel may use it.
pub(crate) struct Flight<'run, M: Memory> {
    ring: &'run mut Ring,
    request_bytes: u64,
    /// By number; the numbers of those that have ended are used again.
    transfers: Vec<Option<Moving<M>>>,
    /// By number, which is also what the kernel knows them by: the request and its transfer.
    requests: Vec<Option<(Request, usize)>>,
    idle: Vec<usize>,
    /// Transfers that are not yet cut into requests, the one that is being cut first.
    uncut: VecDeque<usize>,
    /// Transfers of which a request has come back, or that were cut to the end: they may be over.
    touched: Vec<usize>,
}

/// A transfer, and how far it has come.
struct Moving<M> {
    transfer: Transfer<M>,
    /// Where the next request begins: in memory, in the mapping that is registered, and in the
    /// piece of this number.
    address: *mut u8,
    mapping: Option<(Arc<Mapping>, u64)>,
    piece: usize,
    piece_at: u64,
    requests_in_flight: usize,
    failure: Option<io::Error>,
}

impl<M> Moving<M> {
    /// The piece that is to be cut next, or nothing if all of it has been, or it has failed.
    fn uncut(&mut self) -> Option<&Piece> {
        while self.transfer.pieces.get(self.piece).is_some_and(|piece| self.piece_at == piece.bytes) {
            self.piece += 1;
            self.piece_at = 0;
        }
        self.transfer.pieces.get(self.piece).filter(|_| self.failure.is_none())
    }

    /// Goes on by a request.
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

    /// Carries out what `feed` has until it has no more.
    ///
    /// The feed may take its time, with checksums for example, so whatever can be in flight is
    /// before it is asked or told anything, and one transfer is always in hand before there is room
    /// for it.
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

    /// Puts requests of the transfers in hand into the queue until it is full. Says whether they
    /// are worth a call.
    fn fill(&mut self) -> bool {
        let mut bytes = 0;
        while let Some(&cutting) = self.uncut.front() {
            if self.transfers[cutting].as_mut().is_none_or(|moving| moving.uncut().is_none()) {
                // Whether or not there is room for the next: it can be asked for.
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
            // requests have come back, or until `drop` has waited for them; requests of a transfer
            // do not overlap. Each request in the queue has a number below the depth of its own.
            unsafe { self.ring.push(number, request) };
        }
        bytes >= self.request_bytes
    }

    /// Gives back what is over of the transfers that have been touched.
    fn end_touched(&mut self, feed: &mut dyn Feed<M>) {
        while let Some(number) = self.touched.pop() {
            let is_over = self.transfers[number].as_ref().is_some_and(|moving| moving.requests_in_flight == 0);
            if is_over && !self.uncut.contains(&number) {
                let moving = self.transfers[number].take().expect("looked at above");
                feed.done(moving.transfer, moving.failure.map_or(Ok(()), Err));
            }
        }
    }

    /// Takes a transfer in that was checked, to be cut after those that are in hand.
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

    /// The next request of a transfer; nothing if there is no more to cut.
    fn cut(&mut self, number: usize) -> Option<Request> {
        let moving = self.transfers[number].as_mut().expect("the transfer being cut is in flight");
        let Piece { file, offset, bytes: piece_bytes } = moving.uncut()?.clone();
        let registered = moving.mapping.as_ref();
        let registered = registered.and_then(|(mapping, at)| Some((self.ring.registered.number(mapping, *at)?, *at)));
        // Requests end at multiples of their length in memory, so that one transfer has few short
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

    /// Deals with a request that came back; it may go out again with its rest. Returns the number
    /// of its transfer.
    fn land(&mut self, completion: Completion) -> usize {
        let number = completion.request;
        let (request, transfer) = self.requests[number].as_mut().expect("the kernel knows only requests in flight");
        let transfer = *transfer;
        let moving = self.transfers[transfer].as_mut().expect("a transfer stays until its requests are back");
        let outcome = match completion.result {
            Ok(count) => request.advance(count),
            // SAFETY: the request is back, so that its memory is the transfer's alone again.
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
            // A panic in here, while the feed's is under way, ends the program: the memory is not
            // given up then either.
            self.ring.wait();
            self.ring.completions(&mut completions);
            in_flight -= completions.drain(..).len();
        }
    }
}
