//! The node daemon: files whose bytes go to spare memory of the machine first, and are drained
//! behind.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use outcrop::node::{Node, NodeFile, Pending};

use crate::{
    border::{
        Outcome, answer, call, check_memory, check_version, give_bytes, memory, memory_mut, outcrop_status, start_log,
        text,
    },
    handles::{Opaque, close, give, with},
};

/// A connection to the node daemon of this user.
pub struct outcrop_node {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_node {
    type Value = Node;
    const NAME: &'static str = "node";
}

/// A file of which the newest bytes may be in memory of the node.
pub struct outcrop_node_file {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_node_file {
    /// Several threads may write at once.
    type Value = Arc<NodeFile>;
    const NAME: &'static str = "file of a node";
}

/// A write that was begun.
pub struct outcrop_pending {
    _opaque: [u8; 0],
}

impl Opaque for outcrop_pending {
    type Value = Pending;
    const NAME: &'static str = "pending write";
}

/// Memory of the program that a pending write reads.
struct Borrowed {
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only read, and the program vouches for it until the write is done.
unsafe impl Send for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the program keeps to the header: so many bytes are there, and nobody changes them
        // until the write is done.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.bytes) }
    }
}

/// The file of a handle, for a call that does not keep others from it.
fn file_of(file: *const outcrop_node_file) -> Outcome<Arc<NodeFile>> {
    with(file, |file| Ok(Arc::clone(file)))
}

/// What outcrop_node_connect calls, with the version of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_connect_as(
    header_version: u32,
    config: *const c_char,
    node: *mut *mut outcrop_node,
) -> outcrop_status {
    call(|| {
        check_version(header_version)?;
        start_log();
        // SAFETY: the program keeps to the header.
        let config = unsafe { text(config, "configuration") }?;
        // SAFETY: as above.
        unsafe { give(node, || Ok(Node::from_toml(config)?)) }
    })
}

/// Ends a connection. Files that were opened with it stay open. The daemon goes on draining.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_disconnect(node: *mut outcrop_node) -> outcrop_status {
    call(|| close(node).map(drop))
}

/// Opens a file to be read and written; it is created if it is missing, and keeps what it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_open(
    node: *mut outcrop_node,
    path: *const c_char,
    file: *mut *mut outcrop_node_file,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let path = unsafe { text(path, "path of the file") }?;
        let open = || {
            let node = with(node, |node| Ok(node.clone()))?;
            Ok(Arc::new(node.open(path)?))
        };
        // SAFETY: as above.
        unsafe { give(file, open) }
    })
}

/// Closes a file, when its pending writes are done, and reports a failure to drain it that was not
/// reported before. What was written is drained after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_close(file: *mut outcrop_node_file) -> outcrop_status {
    call(|| Ok(close(file)?.check()?))
}

/// Writes bytes at an offset of a file. Returns when they are in memory of the node, which is when
/// `data` may change again; waits if there is no memory left. If an earlier write could not be
/// drained, the error says so, once. Several threads may write to one file at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_write(
    file: *mut outcrop_node_file,
    offset: u64,
    data: *const c_void,
    bytes: usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let data = unsafe { memory(data, bytes, "the buffer") }?;
        Ok(file_of(file)?.write(offset, data)?)
    })
}

/// Begins to write bytes at an offset of a file, and returns at once. Another thread copies them to
/// memory of the node meanwhile. `data` must stay as it is until `pending` is done. Every pending
/// write has to be waited for, once. Up to 64 may be pending; one more waits for one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_write_async(
    file: *mut outcrop_node_file,
    offset: u64,
    data: *const c_void,
    bytes: usize,
    pending: *mut *mut outcrop_pending,
) -> outcrop_status {
    call(|| {
        let data = check_memory(data.cast_mut(), bytes, "the buffer")?;
        // SAFETY: the program keeps to the header.
        unsafe { give(pending, || Ok(file_of(file)?.write_async(offset, Borrowed { data, bytes })?)) }
    })
}

/// Whether a pending write is done, well or not: then `data` may change again. It does not end the
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pending_test(pending: *mut outcrop_pending, is_done: *mut c_int) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let is_done = unsafe { answer(is_done, "answer") }?;
        with(pending, |pending| {
            is_done.write(c_int::from(pending.is_done()));
            Ok(())
        })
    })
}

/// Waits until a pending write is done, and returns what outcrop_node_write would have returned.
/// The handle ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_pending_wait(pending: *mut outcrop_pending) -> outcrop_status {
    call(|| Ok(close(pending)?.wait()?))
}

/// Reads up to so many bytes from an offset of a file, the newest, wherever they are. `count` says
/// how many: fewer at the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_read(
    file: *mut outcrop_node_file,
    offset: u64,
    data: *mut c_void,
    bytes: usize,
    count: *mut usize,
) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let (data, count) = unsafe { (memory_mut(data, bytes, "the buffer")?, answer(count, "count")?) };
        count.write(file_of(file)?.read(offset, data)?);
        Ok(())
    })
}

/// How many bytes a file has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_size(file: *mut outcrop_node_file, bytes: *mut u64) -> outcrop_status {
    call(|| {
        // SAFETY: the program keeps to the header.
        let bytes = unsafe { answer(bytes, "size") }?;
        bytes.write(file_of(file)?.size()?);
        Ok(())
    })
}

/// Cuts a file off, or extends it with zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_resize(file: *mut outcrop_node_file, bytes: u64) -> outcrop_status {
    call(|| Ok(file_of(file)?.resize(bytes)?))
}

/// Waits until everything that was written to a file is in it, pending writes included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_drain(file: *mut outcrop_node_file) -> outcrop_status {
    call(|| Ok(file_of(file)?.drain()?))
}

/// Drains a file, and makes it durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_sync(file: *mut outcrop_node_file) -> outcrop_status {
    call(|| Ok(file_of(file)?.sync()?))
}

/// Drains all files of all programs of this user on this machine. Those that could not be drained
/// are tried again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_drain_all(node: *mut outcrop_node) -> outcrop_status {
    call(|| Ok(with(node, |node| Ok(node.clone()))?.drain_all()?))
}

/// What the daemon holds, for whom, and what it could not drain, as a JSON text with a zero byte at
/// its end. If `bytes` are not enough for it, nothing is written, and `needed` says how many are;
/// with 0 of them `text` may be NULL. That is no failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcrop_node_status_json(
    node: *mut outcrop_node,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> outcrop_status {
    call(|| {
        let status = with(node, |node| Ok(node.clone()))?.status_json()?;
        // SAFETY: the program keeps to the header.
        unsafe { give_bytes(format!("{status}\0").as_bytes(), text, bytes, needed) }
    })
}
