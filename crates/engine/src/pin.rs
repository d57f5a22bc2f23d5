//! Pins a layer's memory, one process of this machine at a time.

use std::{sync::Arc, thread};

use outcrop_local::Turn;
use outcrop_plan::{Event, LayerIndex};

use crate::{Span, SpanKind, core::Shared, link::Link};

/// Pins a layer's memory when it is this process's turn. This can take long, so it runs on a thread
/// of its own while transfers continue. It does not keep the engine open.
pub(crate) fn begin(shared: &Arc<Shared>, layer: LayerIndex) {
    let link = Link::new(shared);
    let start_ns = shared.now_ns();
    let wait = move || {
        let turn = Turn::wait("pin");
        if let Err(error) = &turn {
            tracing::warn!(%error, "memory is pinned without waiting for other programs");
        }
        let Some(shared) = link.visit() else { return };
        let result = shared.layers[layer].front().map_or(Ok(()), |memory| shared.front().pin_below(memory));
        drop(turn);
        if let Err(error) = &result {
            tracing::warn!(%error, "memory stays unpinned");
            shared.lock().layers[layer].stats.pin_refusal = Some(error.to_string());
        }
        if shared.trace.is_on() {
            let (track, end_ns) = ("pin".to_owned(), shared.now_ns());
            let note = result.as_ref().err().map(ToString::to_string);
            shared.trace.add(Span { kind: SpanKind::Pin, key: None, track, start_ns, end_ns, note });
        }
        shared.tell(&mut shared.lock(), Event::Pinned { layer, is_done: result.is_ok() });
    };
    if let Err(error) = thread::Builder::new().name("outcrop-pin".to_owned()).spawn(wait) {
        tracing::warn!(%error, "memory stays unpinned: cannot start a thread");
        shared.tell(&mut shared.lock(), Event::Pinned { layer, is_done: false });
    }
}
