//! An object on its way to the server, in parts of which several are under way.

use std::{
    collections::BTreeMap,
    io, mem,
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use object_store::{PutPayload, multipart::PartId, path::Path};
use outcrop_layers::files::File;
use tokio::sync::OnceCell;

use crate::{
    failure::{Cause, Failure},
    files::Inner,
    names::Tag,
    owner::Owned,
    remote::Core,
};

/// The length of a part. Servers ask for 5 MiB at least.
pub(crate) const PART_BYTES: u64 = 8 << 20;

/// So many parts an object has at most. Servers allow 10,000.
const PARTS_MAX: u64 = 9000;

/// So many parts of an object may be incomplete: they take room from those that are on their way.
const OPEN_MAX: usize = 2;

/// At least so many parts have room, or an object that waits to be completed could keep the next
/// one waiting.
const AT_ONCE_MIN: usize = 4;

/// The memory of parts, which is used again and again: new memory can cost more than sending it.
/// There is room for so many parts and no more, so who has another one waits.
pub(crate) struct Parts {
    state: Mutex<Room>,
    freed: Condvar,
}

struct Room {
    left: usize,
    spare: Vec<Vec<u8>>,
}

impl Parts {
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Room { left: at_once.max(AT_ONCE_MIN), spare: Vec::new() }),
            freed: Condvar::new(),
        })
    }

    /// Waits for room for one more part.
    fn take(self: &Arc<Self>, bytes: usize) -> Part {
        let mut room = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while room.left == 0 {
            room = self.freed.wait(room).unwrap_or_else(PoisonError::into_inner);
        }
        room.left -= 1;
        let mut memory = room.spare.pop().unwrap_or_default();
        drop(room);
        memory.clear();
        memory.reserve_exact(bytes);
        Part { bytes: memory, of: Arc::clone(self) }
    }
}

/// A part on its way. Gives its memory back when nobody needs it any more.
struct Part {
    bytes: Vec<u8>,
    of: Arc<Parts>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut room = self.of.state.lock().unwrap_or_else(PoisonError::into_inner);
        room.left += 1;
        room.spare.push(mem::take(&mut self.bytes));
        self.of.freed.notify_one();
    }
}

/// An object that is being written.
pub(crate) struct Draft {
    inner: Arc<Inner>,
    owned: Arc<Owned>,
    /// The file, and the object.
    pub(crate) name: String,
    tag: Tag,
    path: Path,
    /// As it was announced.
    bytes: u64,
    part_bytes: u64,
    /// The number of the upload, once there is one.
    upload: Arc<OnceCell<String>>,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Parts that are not whole yet: their memory, and which bytes of it are there.
    open: BTreeMap<u64, Open>,
    /// Parts that were sent; `None` while they are under way.
    sent: BTreeMap<u64, Option<PartId>>,
    under_way: usize,
    failure: Option<Failure>,
    /// It is an object, or it never will be.
    has_ended: bool,
}

struct Open {
    part: Part,
    /// What was written, in pieces that do not touch, ascending.
    covered: Vec<Range<u64>>,
}

impl Open {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        let memory = &mut self.part.bytes;
        if memory.len() == at as usize {
            memory.extend_from_slice(bytes);
        } else {
            memory.resize(memory.len().max(end), 0);
            memory[at as usize..end].copy_from_slice(bytes);
        }
        self.covered.push(at..end as u64);
        self.covered.sort_unstable_by_key(|range| range.start);
        self.covered.dedup_by(|next, before| {
            let touches = next.start <= before.end;
            if touches {
                before.end = before.end.max(next.end);
            }
            touches
        });
    }

    /// Whether the first `bytes` bytes are there.
    fn has(&self, bytes: u64) -> bool {
        matches!(&*self.covered, [all] if all.start == 0 && all.end >= bytes)
    }
}

impl Draft {
    pub(crate) fn new(inner: &Arc<Inner>, owned: &Arc<Owned>, name: &str, tag: Tag, path: Path, bytes: u64) -> Self {
        Self {
            inner: Arc::clone(inner),
            owned: Arc::clone(owned),
            name: name.to_owned(),
            tag,
            path,
            bytes,
            part_bytes: bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20).max(PART_BYTES),
            upload: Arc::default(),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of a part, if the file has the length that was announced.
    fn length_of(&self, number: u64) -> u64 {
        match self.bytes.checked_sub(number * self.part_bytes) {
            Some(left) if left > 0 => left.min(self.part_bytes),
            _ => self.part_bytes,
        }
    }

    fn is_small(&self) -> bool {
        self.bytes <= self.part_bytes
    }

    /// Writes inside one part, and sends it when it is whole.
    fn write_in(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        let known = {
            let mut state = self.state();
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            if state.has_ended || state.sent.contains_key(&number) {
                let reason = "these bytes of an object are on their way already, and it cannot be changed";
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
            if !state.open.contains_key(&number) && state.open.len() >= OPEN_MAX {
                let reason = "an object is written in an order that would need all of it in memory";
                return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
            }
            state.open.remove(&number)
        };
        // Without the lock: to wait for room is to wait for parts of this object too.
        let part = || self.inner.parts.take(self.length_of(number) as usize);
        let mut open = known.unwrap_or_else(|| Open { part: part(), covered: Vec::new() });
        open.write(at, bytes);
        let mut state = self.state();
        match open.has(self.length_of(number)) && !self.is_small() {
            true => self.send(&mut state, number, open.part),
            false => drop(state.open.insert(number, open)),
        }
        Ok(())
    }

    /// Sends a part. Who waits for the object learns what has become of it.
    fn send(&self, state: &mut State, number: u64, part: Part) {
        state.under_way += 1;
        state.sent.insert(number, None);
        let (core, path) = (Arc::clone(self.inner.remote.core()), self.path.clone());
        let (upload, shared) = (Arc::clone(&self.upload), Arc::clone(&self.state));
        let payload = Bytes::from_owner(part);
        self.inner.remote.spawn(async move {
            let sent = async {
                let id = upload.get_or_try_init(|| core.ask(core.store.create_multipart(&path))).await?;
                let put = core.store.put_part(&path, id, number as usize, PutPayload::from_bytes(payload));
                core.ask(put).await
            };
            let sent = sent.await;
            let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.under_way -= 1;
            match sent {
                Ok(id) => drop(state.sent.insert(number, Some(id))),
                Err(failure) => drop(state.failure.get_or_insert(failure)),
            }
            shared.1.notify_all();
        });
    }

    /// Waits until no part is under way.
    fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.under_way > 0 {
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Makes the object of what was written.
    fn complete(&self) -> io::Result<u64> {
        let mut open = mem::take(&mut self.state().open);
        if self.state().sent.is_empty() && open.len() <= 1 {
            let (memory, bytes) = match open.pop_first() {
                None => (Bytes::new(), 0),
                Some((0, open)) if open.has(open.part.bytes.len() as u64) => {
                    let bytes = open.part.bytes.len() as u64;
                    (Bytes::from_owner(open.part), bytes)
                }
                Some(_) => return Err(hole()),
            };
            let path = self.path.clone();
            self.inner.remote.run(|core| async move { core.put(&path, memory).await })?;
            return Ok(bytes);
        }
        let last = open.keys().next_back().copied();
        let mut tail = 0;
        for (number, open) in open {
            let bytes = open.part.bytes.len() as u64;
            if !open.has(bytes) || (Some(number) != last && bytes != self.part_bytes) {
                return Err(hole());
            }
            tail = tail.max(bytes);
            self.send(&mut self.state(), number, open.part);
        }
        let state = self.settled();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        let count = state.sent.len() as u64;
        if state.sent.keys().next_back() != Some(&(count - 1)) || last.is_some_and(|last| last != count - 1) {
            return Err(hole());
        }
        let parts: Vec<_> = state.sent.values().flatten().cloned().collect();
        drop(state);
        let end = if last.is_some() { tail } else { self.length_of(count - 1) };
        let bytes = (count - 1) * self.part_bytes + end;
        let (path, upload) = (self.path.clone(), Arc::clone(&self.upload));
        self.inner.remote.run(|core| async move { complete(&core, &path, &upload, parts, bytes).await })?;
        Ok(bytes)
    }

    /// Gives up, and removes what has arrived. Waits for that.
    pub(crate) fn abort(&self) -> io::Result<()> {
        self.state().open.clear();
        let mut state = self.settled();
        if mem::replace(&mut state.has_ended, true) {
            return Ok(());
        }
        drop(state);
        let (path, upload) = (self.path.clone(), Arc::clone(&self.upload));
        Ok(self.inner.remote.run(|core| async move { abort(&core, &path, &upload).await })?)
    }
}

fn hole() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "an object was to be completed of which not all was written")
}

/// Completes an upload. Where the answer is lost, looks whether the object is there.
async fn complete(
    core: &Core,
    path: &Path,
    upload: &OnceCell<String>,
    parts: Vec<PartId>,
    bytes: u64,
) -> Result<(), Failure> {
    let Some(id) = upload.get() else {
        return Err(Failure::refused(io::ErrorKind::Other, "an upload has no number"));
    };
    let Err(failure) = core.ask(core.store.complete_multipart(path, id, parts)).await else { return Ok(()) };
    match core.length(path).await {
        // The name is ours alone, so it can only be this upload.
        Ok(found) if found == bytes => Ok(()),
        _ if failure.cause == Cause::Missing => {
            let message = format!("the upload of {path} is gone: somebody has removed it");
            Err(Failure::refused(io::ErrorKind::Other, message))
        }
        _ => Err(failure),
    }
}

async fn abort(core: &Core, path: &Path, upload: &OnceCell<String>) -> Result<(), Failure> {
    if let Some(id) = upload.get() {
        match core.ask(core.store.abort_multipart(path, id)).await {
            Err(failure) if failure.is_missing() => {}
            aborted => aborted?,
        }
    }
    // It may have been completed, and the answer lost.
    core.remove(path).await
}

impl File for Draft {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.owned.check()?;
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let (number, inside) = (at / self.part_bytes, at % self.part_bytes);
            let count = (self.part_bytes - inside).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(count as usize);
            self.write_in(number, inside, now)?;
            (at, bytes) = (at + count, later);
        }
        Ok(())
    }

    fn read_at(&self, _at: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "an object cannot be read before it is complete"))
    }

    fn sync(&self) -> io::Result<()> {
        self.owned.check()?;
        if self.state().has_ended {
            return Ok(());
        }
        match self.complete() {
            Ok(bytes) => {
                self.state().has_ended = true;
                self.inner.made(&self.name, self.tag, bytes);
                Ok(())
            }
            Err(error) => {
                let failure = Failure::refused(error.kind(), error.to_string());
                self.state().failure.get_or_insert(failure);
                Err(error)
            }
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let has_ended = self.state().has_ended;
        if has_ended {
            return;
        }
        let (core, path) = (Arc::clone(self.inner.remote.core()), self.path.clone());
        let (upload, shared) = (Arc::clone(&self.upload), Arc::clone(&self.state));
        self.inner.remote.spawn(async move {
            // Parts that are under way would begin the upload again.
            while shared.0.lock().unwrap_or_else(PoisonError::into_inner).under_way > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            if let Err(failure) = abort(&core, &path, &upload).await {
                tracing::warn!(%path, reason = failure.message, "an upload was given up and not removed");
            }
        });
    }
}
