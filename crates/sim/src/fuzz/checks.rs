//! The invariants that must hold after every event.

use std::ops::Range;

use outcrop_plan::{Extents, LayerIndex, Purpose, Refusal, Site, SnapshotId};

use super::{
    stack::BYTES_MAX,
    trial::{Checked, Job, Saved, Trial},
};

fn demand(holds: bool, problem: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Whether this layer has the only copy of a snapshot.
fn is_only_on(saved: &Saved, layer: LayerIndex) -> bool {
    saved.complete.len() == 1 && saved.complete.contains_key(&layer)
}

impl Trial {
    /// No layer exceeds its limit.
    pub(super) fn check_limits(&self) -> Checked {
        for (index, layer) in self.layers.iter().enumerate() {
            let (used, most) = self.planner.used_bytes(index);
            demand(used <= most && most <= layer.capacity_bytes, || {
                format!("layer {index} uses {used} and has used {most} of {}", layer.capacity_bytes)
            })?;
            demand(used <= layer.room_bytes, || {
                format!("layer {index} uses {used}, and its medium was full at {}", layer.room_bytes)
            })?;
            if layer.kept_bytes.is_some() {
                let real = self.shelved_bytes(index);
                demand(used == real, || format!("layer {index} uses {used}, and {real} bytes lie there"))?;
            }
        }
        Ok(())
    }

    /// A save that gives way does not wait beside others.
    pub(super) fn check_gave_way(&self) -> Checked {
        for id in self.program.waiting_saves() {
            let is_alone = !self.known(id)?.yields || !self.program.is_somebody_else_waiting(id);
            demand(is_alone, || format!("{id:?} was to give way, and waits beside others"))?;
        }
        Ok(())
    }

    /// The bytes that are on a layer that keeps bytes, or on their way there.
    fn shelved_bytes(&self, layer: LayerIndex) -> u64 {
        let is_there =
            |id: SnapshotId, saved: &Saved| saved.complete.contains_key(&layer) || self.is_arriving(id, layer);
        let there = self.saved.iter().filter(|&(&id, saved)| is_there(id, saved)).map(|(_, saved)| saved.bytes);
        self.layers[layer].kept_bytes.unwrap_or(0) + there.sum::<u64>()
    }

    /// Only snapshots that do not fit are left out.
    pub(super) fn check_left_out(&self, id: SnapshotId, layer: LayerIndex) -> Checked {
        let (saved, real) = (self.known(id)?, &self.layers[layer]);
        demand(self.persists && real.kept_bytes.is_some(), || {
            format!("{id:?} is left out on layer {layer}, which keeps nothing")
        })?;
        demand(saved.is_live && !self.is_there_or_spared(id, saved, layer), || {
            format!("{id:?} is left out on layer {layer}, where it need not come")
        })?;
        let bytes = self.shelved_bytes(layer);
        demand(bytes + saved.bytes > real.capacity_bytes, || {
            format!("{id:?} is left out on layer {layer}, which has {bytes} of {}", real.capacity_bytes)
        })
    }

    fn is_there_or_spared(&self, id: SnapshotId, saved: &Saved, layer: LayerIndex) -> bool {
        saved.complete.contains_key(&layer) || saved.spared & (1 << layer) != 0 || self.is_arriving(id, layer)
    }

    /// When nothing is moving any more, everything has reached every layer, except where it was
    /// left out or failed.
    pub(super) fn check_persisted(&self) -> Checked {
        let layers = if self.persists { 1..self.layers.len() } else { 0..0 };
        for (layer, (&id, saved)) in layers.flat_map(|layer| self.saved.iter().map(move |one| (layer, one))) {
            // A snapshot that could not be read may be given up.
            let must_be = saved.is_live && saved.doubtful == 0;
            demand(!must_be || self.is_there_or_spared(id, saved, layer), || {
                format!("{id:?} never came to layer {layer}, and nobody was told")
            })?;
        }
        Ok(())
    }

    /// Occupies an extent. It must lie inside its layer, in touched memory if the layer requires
    /// that, and nobody else may need it.
    pub(super) fn occupy(&mut self, layer: LayerIndex, extents: &Extents, id: SnapshotId) -> Checked {
        for piece in extents {
            let real = &self.layers[layer];
            demand(piece.start < piece.end && piece.end <= real.capacity_bytes, || {
                format!("{id:?} is put at {piece:?}, outside of layer {layer}")
            })?;
            let must_be_ready = real.needs_touch || (real.is_exhausted && !real.is_shared);
            demand(!must_be_ready || piece.end <= real.ready_bytes, || {
                format!("{id:?} is put at {piece:?} of layer {layer}, which has not been touched")
            })?;
            let others: Vec<_> = real
                .extents
                .range(..piece.end)
                .rev()
                .take_while(|&(_, &(end, _))| end > piece.start)
                .map(|(&start, &(_, other))| (start, other))
                .collect();
            for (start, other) in others {
                demand(other == id || !self.needs(other, layer), || {
                    format!("{id:?} is put at {piece:?} of layer {layer}, where {other:?} lies at {start}")
                })?;
                self.layers[layer].extents.remove(&start);
            }
            let real = &mut self.layers[layer];
            real.extents.insert(piece.start, (piece.end, id));
            real.ready_bytes = real.ready_bytes.max(piece.end);
        }
        Ok(())
    }

    /// Frees an extent.
    pub(super) fn vacate(&mut self, layer: LayerIndex, extents: &Extents) {
        for piece in extents {
            self.layers[layer].extents.remove(&piece.start);
        }
    }

    /// Whether a snapshot's extent on a layer is still needed.
    fn needs(&self, id: SnapshotId, layer: LayerIndex) -> bool {
        let is_moving = self.jobs.iter().any(|job| match job {
            Job::Move { id: moving, from, to } => *moving == id && (from.layer == layer || to.layer == layer),
            Job::Touch { .. } | Job::Pin { .. } => false,
        });
        let Some(saved) = self.saved.get(&id) else { return is_moving };
        // A copy that could not be read may be given up if there is another.
        let is_given_up = saved.doubtful & (1 << layer) != 0 && saved.complete.len() > 1;
        let is_kept = saved.is_live && saved.complete.contains_key(&layer) && !is_given_up;
        is_moving || is_kept || (layer == 0 && (saved.is_lent || saved.holders > 0))
    }

    fn known(&self, id: SnapshotId) -> Checked<&Saved> {
        self.saved.get(&id).ok_or_else(|| format!("{id:?} was never there"))
    }

    pub(super) fn check_hand(&self, id: SnapshotId) -> Checked {
        let saved = self.known(id)?;
        demand(saved.is_live, || format!("{id:?} is handed over, and does not exist any more"))?;
        demand(saved.complete.contains_key(&0) && saved.missing & 1 == 0, || {
            format!("{id:?} is handed over, and is not in the front")
        })
    }

    pub(super) fn check_move(&self, id: SnapshotId, from: &Site, to: &Site, purpose: Purpose) -> Checked {
        let saved = self.known(id)?;
        demand(saved.complete.get(&from.layer) == Some(&from.extents), || {
            format!("{id:?} is to be read at {from:?}, and lies at {:?}", saved.complete.get(&from.layer))
        })?;
        demand(saved.missing & (1 << from.layer) == 0, || {
            format!("{id:?} is lost: its only copy, on layer {}, was never written", from.layer)
        })?;
        // A snapshot that has to reach every layer may be read from any that has it.
        let is_down = to.layer > if self.persists { 0 } else { from.layer };
        demand((purpose == Purpose::Drain) == is_down, || format!("{purpose:?} from {from:?} to {to:?}"))?;
        demand(saved.spared & (1 << to.layer) == 0, || {
            format!("{id:?} is sent to layer {}, where it was or was given up", to.layer)
        })?;
        let bytes: u64 = to.extents.iter().map(|piece| piece.end - piece.start).sum();
        demand(bytes == saved.bytes, || format!("{id:?} has {} bytes and gets an extent of {bytes}", saved.bytes))?;
        demand(to.layer > 0 || to.extents.len() == 1, || {
            format!("{id:?} gets {to:?}: the front holds whole snapshots")
        })?;
        let is_there = saved.complete.contains_key(&to.layer) && saved.doubtful & (1 << to.layer) == 0;
        demand(!is_there && !self.is_arriving(id, to.layer), || format!("{id:?} is on layer {} already", to.layer))?;
        demand(!self.layers[to.layer].is_broken, || format!("{id:?} is sent to layer {}, which is broken", to.layer))
    }

    fn is_arriving(&self, id: SnapshotId, layer: LayerIndex) -> bool {
        let arrives = |job: &Job| matches!(job, Job::Move { id: moving, to, .. } if *moving == id && to.layer == layer);
        self.jobs.iter().any(arrives)
    }

    fn is_read(&self, id: SnapshotId, layer: LayerIndex) -> bool {
        let reads =
            |job: &Job| matches!(job, Job::Move { id: moving, from, .. } if *moving == id && from.layer == layer);
        self.jobs.iter().any(reads)
    }

    pub(super) fn check_evict(&self, id: SnapshotId, layer: LayerIndex) -> Checked {
        let saved = self.known(id)?;
        demand(saved.complete.contains_key(&layer), || {
            format!("{id:?} is evicted from layer {layer}, and is not there")
        })?;
        let is_elsewhere = |other: &LayerIndex| *other != layer && saved.missing & (1 << other) == 0;
        demand(!saved.is_live || saved.complete.keys().any(is_elsewhere), || {
            format!("{id:?} is lost: evicted from layer {layer}, and nowhere else")
        })?;
        demand(layer > 0 || (saved.holders == 0 && !saved.is_lent), || {
            format!("{id:?} is evicted from the program's hands")
        })?;
        demand(!self.is_read(id, layer), || format!("{id:?} is evicted from layer {layer} while it is read there"))?;
        let real = &self.layers[layer];
        if !saved.is_live || !real.needs_touch {
            return Ok(());
        }
        demand(real.is_whole(), || {
            let (ready, capacity) = (real.ready_bytes, real.capacity_bytes);
            format!("{id:?} is evicted from layer {layer}, of which only {ready} of {capacity} have been touched")
        })?;
        // Several may have to be evicted to make one extent; before the first eviction there was
        // none.
        let hole_bytes = real.largest_hole_bytes();
        let is_first = layer == 0 && !self.has_evicted && !real.is_shrunk;
        demand(!is_first || hole_bytes < BYTES_MAX, || {
            format!("{id:?} is evicted from layer {layer}, which has {hole_bytes} bytes in one piece")
        })
    }

    pub(super) fn check_slide(&self, id: SnapshotId, from: u64, to: u64) -> Checked {
        let saved = self.known(id)?;
        let at = saved.complete.get(&0).and_then(|extents| extents.first()).map(|piece| piece.start);
        demand(at == Some(from) && to < from, || format!("{id:?} slides from {from} to {to}, and lies at {at:?}"))?;
        let is_idle = saved.holders == 0 && !saved.is_lent && !self.is_read(id, 0) && !self.is_arriving(id, 0);
        demand(is_idle, || format!("{id:?} slides while it is in use"))
    }

    pub(super) fn check_touch(&self, layer: LayerIndex, range: &Range<u64>) -> Checked {
        let real = &self.layers[layer];
        demand(!real.is_touching, || format!("layer {layer} is touched twice at once"))?;
        demand(!real.is_exhausted || real.is_shared, || {
            format!("layer {layer} is touched, and there is no more memory")
        })?;
        demand(range.start < range.end && range.end <= real.capacity_bytes, || {
            format!("{range:?} of layer {layer} is touched, and it has {}", real.capacity_bytes)
        })
    }

    pub(super) fn check_release(&self, layer: LayerIndex, range: &Range<u64>) -> Checked {
        let real = &self.layers[layer];
        demand(real.is_shared && !real.is_touching, || format!("layer {layer} gives back memory at a bad moment"))?;
        let in_use =
            real.extents.range(..range.end).rev().find(|&(_, &(end, id))| end > range.start && self.needs(id, layer));
        demand(in_use.is_none(), || format!("layer {layer} gives back {range:?}, where {in_use:?} lies"))
    }

    pub(super) fn check_pin(&self, layer: LayerIndex) -> Checked {
        let real = &self.layers[layer];
        demand(!real.has_pinned, || format!("layer {layer} is pinned twice"))?;
        demand(real.is_whole() && !real.is_touching, || {
            format!("layer {layer} is pinned when {} of {} have been touched", real.ready_bytes, real.capacity_bytes)
        })
    }

    /// Checks that the front really could not drain: no layer below has room for the front's only
    /// copies. The snapshot that is read last goes first, and it may be too large for an extent in
    /// which a smaller one would fit.
    fn check_nothing_could_sink(&self, refused: SnapshotId) -> Checked {
        let stuck = |saved: &&Saved| saved.is_live && is_only_on(saved, 0);
        let Some(bytes) = self.saved.values().filter(stuck).map(|saved| saved.bytes).max() else { return Ok(()) };
        for (index, layer) in self.layers.iter().enumerate().skip(1).filter(|(_, layer)| layer.is_sound()) {
            let is_deepest = |saved: &&Saved| saved.complete.last_key_value().is_some_and(|(&at, _)| at == index);
            let kept_bytes: u64 = self.saved.values().filter(is_deepest).map(|saved| saved.bytes).sum();
            demand(kept_bytes + bytes > layer.capacity_bytes, || {
                format!("{refused:?} is refused, and {bytes} bytes of the front could sink to layer {index}")
            })?;
        }
        Ok(())
    }

    /// If the program holds nothing, clean snapshots can leave the front, and the others can slide
    /// together. A snapshot that fits then must not be refused. A save also has to leave room for
    /// the largest snapshot that may have to come up.
    fn check_no_room(&self, id: SnapshotId, saved: &Saved) -> Checked {
        let front = &self.layers[0];
        if !front.is_sound() || self.saved.values().any(|saved| saved.is_lent || saved.holders > 0) {
            return Ok(());
        }
        let live = || self.saved.iter().filter(|&(other, saved)| *other != id && saved.is_live).map(|(_, saved)| saved);
        let stuck_bytes: u64 = live().filter(|saved| is_only_on(saved, 0)).map(|saved| saved.bytes).sum();
        if saved.is_live {
            demand(stuck_bytes + saved.bytes > front.capacity_bytes, || {
                format!("the read of {id:?} is refused, and {stuck_bytes} bytes are all that has to stay in the front")
            })?;
            // The planner has to make sure that everything can come back up.
            return demand(self.coverage.faults > 0, || {
                format!("the read of {id:?} is refused, and nothing ever failed")
            });
        }
        let kept_bytes = live().filter(|saved| !is_only_on(saved, 0)).map(|saved| saved.bytes).max().unwrap_or(0);
        demand(stuck_bytes + saved.bytes + kept_bytes > front.capacity_bytes, || {
            format!("{id:?} is refused, and {stuck_bytes} bytes are all that has to stay in the front")
        })
    }

    pub(super) fn check_refusal(&self, id: SnapshotId, why: Refusal) -> Checked {
        let saved = self.known(id)?;
        let is_moving = self.jobs.iter().any(|job| matches!(job, Job::Move { .. }));
        match why {
            Refusal::TooLarge => {
                let front = &self.layers[0];
                let is_small = saved.bytes <= front.capacity_bytes && !front.is_exhausted;
                demand(!is_small, || format!("{id:?} is refused as too large with {} bytes", saved.bytes))
            }
            Refusal::Full | Refusal::Held => {
                demand(!saved.yields || saved.is_live, || format!("{id:?} was to give way, and has waited"))?;
                demand(!is_moving, || format!("{id:?} is refused while something moves that could make room"))?;
                demand(self.program.is_all_waiting(), || format!("{id:?} is refused while others could make room"))?;
                match self.persists {
                    true => self.check_persisted()?,
                    false => self.check_nothing_could_sink(id)?,
                }
                if why == Refusal::Full { self.check_no_room(id, saved) } else { Ok(()) }
            }
            Refusal::GaveWay => {
                demand(saved.yields, || format!("{id:?} gives way, and was not asked to"))?;
                let is_alone = !self.program.is_somebody_else_waiting(id);
                demand(!is_moving || !is_alone, || format!("{id:?} gives way to nobody, while something moves"))
            }
            Refusal::Gone => demand(!saved.is_live, || format!("{id:?} is refused as gone, and it is not")),
            Refusal::Unreadable(layer) | Refusal::Damaged(layer) => {
                demand(saved.doubtful & (1 << layer) != 0, || format!("{id:?} is refused, and could always be read"))
            }
        }
    }
}
