//! Faults that are made by hand, where they would cost the most: syncs, their order, what is
//! protected from removal, and what is compared.

/// A fault: in this file, a text that occurs once becomes another one.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    pub(super) old: &'static str,
    pub(super) new: &'static str,
    /// The tests that should find it, the fastest first.
    pub(super) tests: &'static [Tests],
}

/// Tests of one program: package, program, and how their names begin.
pub(super) type Tests = (&'static str, &'static str, &'static str);

const LEDGER: Tests = ("outcrop-commit", "", "");
const BASE: Tests = ("outcrop", "outcrop", "store_ledger::");
const PROTOCOL: Tests = ("outcrop-sim", "sim", "fuzz::no_world_loses_a_version");
const PLAN: Tests = ("outcrop-sim", "sim", "fuzz::seeds_find_nothing");
const CRASH: Tests = ("outcrop", "outcrop", "store_crash::no_crash_loses_what_was_durable");
const KILLED: Tests = ("outcrop", "outcrop", "store_crash::what_a_killed_process_has_left");
const DAMAGE: Tests = ("outcrop", "outcrop", "store_damage::");
const FAULTS: Tests = ("outcrop", "outcrop", "store_faults::");
const MERGE: Tests = ("outcrop", "outcrop", "store_merge::");
const MODEL: Tests = ("outcrop", "outcrop", "store_model::");
const RANKS: Tests = ("outcrop", "outcrop", "store_ranks::");
const TALK: Tests = ("outcrop-ranks", "ranks", "directory::");
const POOL: Tests = ("outcrop-pool", "pool", "crash::");
const POOL_MODEL: Tests = ("outcrop-pool", "pool", "model::");
const POOL_SPILL: Tests = ("outcrop-pool", "pool", "spill::");
const POOL_ARRAYS: Tests = ("outcrop-pool", "pool", "arrays::");
const POOL_LISTS: Tests = ("outcrop-pool", "pool", "lists::");
const POOL_LIST_MOVES: Tests = ("outcrop-pool", "", "list::");
const POOL_TREES: Tests = ("outcrop-pool", "pool", "trees::");
const POOL_GRAPHS: Tests = ("outcrop-pool", "pool", "graphs::");
const POOL_LINKS: Tests = ("outcrop-pool", "pool", "links::");
const POOL_FORKS: Tests = ("outcrop-pool", "pool", "kill::a_forked_child");
const POOL_HOSTILE: Tests = ("outcrop-pool", "pool", "hostile::");

const GRANTS: Tests = ("outcrop-grants", "", "");
const NODE_WORLDS: Tests = ("outcrop-sim", "sim", "fuzz::no_world_loses_what_a_node_has_taken");
const NODE_HOSTILE: Tests = ("outcrop-node", "node", "hostile::");
const NODE_KILLED: Tests = ("outcrop-node", "node", "killed::");
const NODE_PENDING: Tests = ("outcrop-node", "node", "pending::");

pub(super) const HAND_MADE: &[Mutant] = &[
    Mutant {
        name: "no sync of packs before the manifest",
        file: "crates/commit/src/drafts.rs",
        old: "Fate::Commits(_) if !self.layers[layer].unsynced.is_empty() => return Some(Step::Sync),",
        new: "Fate::Commits(_) if false => return Some(Step::Sync),",
        tests: &[PROTOCOL, CRASH],
    },
    Mutant {
        name: "no sync of merged packs before manifests list them",
        file: "crates/commit/src/merges.rs",
        old: "if !here.unsynced.is_empty() {",
        new: "if false {",
        tests: &[PROTOCOL, CRASH],
    },
    Mutant {
        name: "no sync of the manifest's bytes",
        file: "crates/layers/src/files.rs",
        old: ".and_then(|()| file.sync())",
        new: "",
        tests: &[CRASH],
    },
    Mutant {
        name: "no sync of the manifest's name",
        file: "crates/store/src/commit/files.rs",
        old: "    match files.sync_dir(&dir) {\n        Ok(()) => Outcome::Done,",
        new: "    match Ok::<(), io::Error>(()) {\n        Ok(()) => Outcome::Done,",
        tests: &[CRASH],
    },
    Mutant {
        name: "no sync of a pack's bytes",
        file: "crates/layers/src/shelf.rs",
        old: "draft.file.sync().map_err(|source| self.failure(\"flush a file\", source))?;",
        new: "",
        tests: &[CRASH],
    },
    Mutant {
        name: "no sync after dropping a version",
        file: "crates/commit/src/steps.rs",
        old: "        here.is_dirty = true;",
        new: "        here.is_dirty = false;",
        tests: &[PROTOCOL, CRASH],
    },
    Mutant {
        name: "packs of dropped versions go before that is durable",
        file: "crates/commit/src/steps.rs",
        old: "        here.lingering.extend(removed.iter().flat_map(Visible::packs));\n",
        new: "",
        tests: &[LEDGER],
    },
    Mutant {
        name: "drafts ignored by collection",
        file: "crates/commit/src/collect.rs",
        old: "                && !self.drafts.iter().any(|drafted| drafted.lists(rank, *number))\n",
        new: "                && rank < u32::MAX\n",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "merged packs unprotected",
        file: "crates/commit/src/collect.rs",
        old: "                && !self.merges.iter().any(|merge| merge.makes(*number))\n",
        new: "",
        tests: &[LEDGER],
    },
    Mutant {
        name: "packs that a failed sync leaves in doubt unprotected",
        file: "crates/commit/src/steps.rs",
        old: "        here.doubted.append(&mut here.lingering);\n",
        new: "        here.lingering.clear();\n",
        tests: &[LEDGER, FAULTS],
    },
    Mutant {
        name: "what a crash may bring back is not written once more",
        file: "crates/commit/src/layer.rs",
        old: "        next.filter(|_| !self.is_retry_blocked)",
        new: "        next.filter(|_| false)",
        tests: &[LEDGER, FAULTS],
    },
    Mutant {
        name: "packs of pending versions unprotected",
        file: "crates/commit/src/collect.rs",
        old: "here.pending.values().copied().min().unwrap_or(u64::MAX);",
        new: "here.pending.values().copied().min().map_or(u64::MAX, |_| u64::MAX);",
        tests: &[PROTOCOL, RANKS, MODEL],
    },
    Mutant {
        name: "packs of versions that are not packed yet unprotected",
        file: "crates/commit/src/collect.rs",
        old: "            *number < self.drafted_below\n",
        new: "            *number < u64::MAX\n",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "the chain that the next version builds upon unprotected",
        file: "crates/commit/src/collect.rs",
        old: "                && !self.chain.contains(number)\n",
        new: "",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "packs go although a version may become whole again",
        file: "crates/commit/src/collect.rs",
        old: " || self.layers[layer].keeps_all() {",
        new: " {",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "hash not compared when merging",
        file: "crates/catalog/src/copies.rs",
        old: "                Err(problem) => failed.push((tag, problem)),",
        new: "                Err(_) => failed.clear(),",
        tests: &[MERGE],
    },
    Mutant {
        name: "what a merge finds damaged everywhere is built upon",
        file: "crates/store/src/merge.rs",
        old: "        if error.is_damage() {\n",
        new: "        if false {\n",
        tests: &[MERGE],
    },
    Mutant {
        name: "hash not compared when reading",
        file: "crates/catalog/src/fetch.rs",
        old: "match block.hash_kind.hash(bytes) == hash {",
        new: "match block.hash_kind.hash(bytes) == hash || true {",
        tests: &[DAMAGE],
    },
    Mutant {
        name: "numbers of announcements ignored when one is repeated",
        file: "crates/commit/src/ranks.rs",
        old: "        if news.number < *next {\n            return;\n        }\n",
        new: "",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "numbers of announcements ignored when one is lost",
        file: "crates/commit/src/ranks.rs",
        old: "if news.number > *next {",
        new: "if false {",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "versions are announced after the end",
        file: "crates/commit/src/ledger.rs",
        old: "if self.settings.ranks > 1 && !self.is_closing {",
        new: "if self.settings.ranks > 1 {",
        tests: &[LEDGER],
    },
    Mutant {
        name: "era of announcements ignored",
        file: "crates/commit/src/ranks.rs",
        old: "match news.era.cmp(&self.era) {",
        new: "match Ordering::Equal {",
        tests: &[PROTOCOL, RANKS],
    },
    Mutant {
        name: "numbers of exchanges ignored",
        file: "crates/ranks/src/exchange.rs",
        old: "        present.number += 1;\n",
        new: "",
        tests: &[TALK, RANKS],
    },
    Mutant {
        name: "last words of a rank that has begun again not read",
        file: "crates/ranks/src/mailbox.rs",
        old: "if look == Look::Replaced {",
        new: "if false {",
        tests: &[TALK, RANKS],
    },
    Mutant {
        name: "a chain is built upon that not all layers have",
        file: "crates/store/src/restore.rs",
        old: "            && (0..layers).all(|layer| self.opens(layer, manifest, true));",
        new: "            && (0..layers).any(|layer| self.opens(layer, manifest, true));",
        tests: &[BASE, MODEL],
    },
    Mutant {
        name: "lengths of packs not compared before a version counts",
        file: "crates/store/src/commit/files.rs",
        old: "if bytes != pack.file_bytes {",
        new: "if bytes > pack.file_bytes {",
        tests: &[BASE, MODEL],
    },
    Mutant {
        name: "a version counts as packed before it is drafted",
        file: "crates/store/src/pack.rs",
        old: "        let draft = Box::new(Draft { save, manifest: Arc::clone(&manifest), next_number, losses });",
        new: "        let draft = Box::new(Draft { save, manifest: Arc::clone(&manifest), next_number, losses });\n        \
              session.packed(save.version, Arc::clone(&manifest));\n        \
              std::thread::sleep(std::time::Duration::from_millis(300));",
        tests: &[BASE, MODEL],
    },
    Mutant {
        name: "a chain is built upon after it was broken",
        file: "crates/store/src/session.rs",
        old: "let is_full = !is_incremental || content.is_broken || content.chain.is_empty();",
        new: "let is_full = !is_incremental || content.chain.is_empty();",
        tests: &[FAULTS, MODEL],
    },
    Mutant {
        name: "a save that panics is waited for",
        file: "crates/store/src/session.rs",
        old: "Err(_) => Some(\"the call that saves it has panicked\".to_owned()),",
        new: "Err(_) => None,",
        tests: &[FAULTS],
    },
    Mutant {
        name: "a merge begins after the session has ended",
        file: "crates/store/src/session.rs",
        old: "        wait(&|end| drop(self.store.committer.send(Note::Flush(end))));\n",
        new: "",
        tests: &[MERGE],
    },
    Mutant {
        name: "versions of different runs are one",
        file: "crates/commit/src/found.rs",
        old: ".is_some_and(|held| held.run == run)",
        new: ".is_some()",
        tests: &[PROTOCOL, MODEL],
    },
    Mutant {
        name: "what was found when a session was opened is not made durable",
        file: "crates/store/src/recover.rs",
        old: "    files.sync_dir(dir).map_err(failed)?;\n",
        new: "",
        tests: &[KILLED],
    },
    Mutant {
        name: "packs of a version that could not be removed unprotected",
        file: "crates/commit/src/steps.rs",
        old: "                self.layers[layer].stuck.insert(version);\n",
        new: "                self.layers[layer].listing.remove(version);\n",
        tests: &[LEDGER, FAULTS],
    },
    Mutant {
        name: "a version is complete when one rank has it",
        file: "crates/commit/src/ranks.rs",
        old: "if holders.len() == self.settings.ranks as usize {",
        new: "if !holders.is_empty() {",
        tests: &[PROTOCOL, CRASH],
    },
    Mutant {
        name: "the last number is not refused",
        file: "crates/store/src/state.rs",
        old: "if version == u64::MAX {",
        new: "if false {",
        tests: &[BASE],
    },
    Mutant {
        name: "a save does not give way to others",
        file: "crates/plan/src/decide.rs",
        old: "if is_starved && self.rooms.len() + self.wants.len() > 1 && self.give_way() {",
        new: "if false {",
        tests: &[PLAN],
    },
    Mutant {
        name: "a save gives way to nobody",
        file: "crates/plan/src/decide.rs",
        old: "self.rooms.len() + self.wants.len() > 1 && self.give_way() {",
        new: "self.give_way() {",
        tests: &[PLAN],
    },
    Mutant {
        name: "a save waits until it fails instead of giving way",
        file: "crates/plan/src/decide.rs",
        old: "        if self.give_way() {\n            return true;",
        new: "        if false {\n            return true;",
        tests: &[PLAN],
    },
    Mutant {
        name: "a save gives way that was not asked to",
        file: "crates/plan/src/decide.rs",
        old: "position(|id| self.snapshots[id].yields())",
        new: "position(|id| self.snapshots.contains_key(id))",
        tests: &[PLAN],
    },
    Mutant {
        name: "pool: no flush before the root",
        file: "crates/pool/src/pool.rs",
        old: "        draft.flush()?;\n",
        new: "",
        tests: &[POOL],
    },
    Mutant {
        name: "pool: no flush of the root",
        file: "crates/pool/src/table.rs",
        old: "self.file.flush(std::slice::from_ref(&(at..at + bytes.len() as u64)))",
        new: "Ok(())",
        tests: &[POOL],
    },
    Mutant {
        name: "pool: pages freed before the next version is durable",
        file: "crates/pool/src/pool.rs",
        old: "        self.free_unread();\n        let next = self.newest.checked_add(1)",
        new: "        if self.versions.len() as u64 >= options.versions {\n            let first = self.versions.remove(0);\n            self.lingering.push(first);\n        }\n        self.free_unread();\n        let next = self.newest.checked_add(1)",
        tests: &[POOL],
    },
    Mutant {
        name: "pool: lengths of parts not compared when a version is restored",
        file: "crates/pool/src/pool.rs",
        old: "            let problem = whole::check(&contents, known).err();",
        new: "            let problem = None::<String>;",
        tests: &[POOL_LINKS],
    },
    Mutant {
        name: "pool: writes of one thread not waited for",
        file: "crates/pool/src/write.rs",
        old: "                all.extend(other?);\n",
        new: "",
        tests: &[POOL_ARRAYS],
    },
    Mutant {
        name: "pool: all counts as marked also when nothing is",
        file: "crates/pool/src/part.rs",
        old: "        self.is_all_marked = mark != 0;",
        new: "        self.is_all_marked = true;",
        tests: &[POOL_ARRAYS],
    },
    Mutant {
        name: "pool: stores to memory that has holes",
        file: "crates/pool/src/medium.rs",
        old: " && stat.st_blocks as u64 * 512 >= stat.st_size as u64",
        new: "",
        tests: &[POOL_ARRAYS],
    },
    Mutant {
        name: "pool: a forked child persists when it is worth it",
        file: "crates/pool/src/worth.rs",
        old: "self.0.owned_state()?",
        new: "self.0.state()",
        tests: &[POOL_FORKS],
    },
    Mutant {
        name: "pool: a forked child reads the view of its parent",
        file: "crates/pool/src/view.rs",
        old: "        let pool = self.shared.owned_state()?;\n",
        new: "        let pool = self.shared.state();\n",
        tests: &[POOL_FORKS],
    },
    Mutant {
        name: "pool: the last number of a version is not refused",
        file: "crates/pool/src/pool.rs",
        old: ".filter(|version| *version < u64::MAX)",
        new: "",
        tests: &[POOL_HOSTILE],
    },
    Mutant {
        name: "pool: checksums not compared",
        file: "crates/pool/src/file.rs",
        old: "match pool_check(into) == entry.check() {",
        new: "match true {",
        tests: &[POOL],
    },
    Mutant {
        name: "pool: pages of an old version shown in place of what was written",
        file: "crates/pool/src/part.rs",
        old: "                self.memory.own(block * bytes..(block + 1) * bytes);\n",
        new: "",
        tests: &[POOL_MODEL],
    },
    Mutant {
        name: "pool: pages that a view reads are freed",
        file: "crates/pool/src/pool.rs",
        old: "let is_read = |held: &Held| Arc::strong_count(&held.pin) > 1;",
        new: "let is_read = |_: &Held| false;",
        tests: &[POOL_ARRAYS],
    },
    Mutant {
        name: "pool: shared pages not counted",
        file: "crates/pool/src/table.rs",
        old: "same.for_each(|(_, entry)| draft.share(*entry));",
        new: "drop(same);",
        tests: &[POOL_ARRAYS, POOL_MODEL],
    },
    Mutant {
        name: "pool: the root of a version that leaves stays",
        file: "crates/pool/src/pool.rs",
        old: "        self.file.write(slot, &[0; POOL_ROOT_BYTES])?;\n",
        new: "",
        tests: &[POOL_SPILL],
    },
    Mutant {
        name: "pool: no flush before the pages of a version that leaves are used again",
        file: "crates/pool/src/pool.rs",
        old: "        self.file.flush(std::slice::from_ref(&(slot..slot + POOL_ROOT_BYTES as u64)))?;\n",
        new: "",
        tests: &[POOL_SPILL],
    },
    Mutant {
        name: "pool: a version leaves that could not be spilled",
        file: "crates/pool/src/spill.rs",
        old: "spilled.map_err(|source| Error::Spill { location: location.clone(), version, source })?;",
        new: "drop((spilled, &location));",
        tests: &[POOL_SPILL],
    },
    Mutant {
        name: "pool: the version leaves that structures show",
        file: "crates/pool/src/pool.rs",
        old: " && !Arc::ptr_eq(&held.contents, &self.base)",
        new: "",
        tests: &[POOL_SPILL],
    },
    Mutant {
        name: "pool: a block that is given back shows other pages",
        file: "crates/pool/src/place.rs",
        old: "first.page() * PAGE_BYTES as u64",
        new: "(first.page() - 1) * PAGE_BYTES as u64",
        tests: &[POOL_MODEL],
    },
    Mutant {
        name: "pool: the length of a list not restored",
        file: "crates/pool/src/part.rs",
        old: "(self.described.shape, self.described.state) = (loaded.shape, loaded.state);",
        new: "self.described.state = loaded.state;",
        tests: &[POOL_LISTS, POOL_MODEL],
    },
    Mutant {
        name: "pool: elements that were cut off a list come back",
        file: "crates/pool/src/part.rs",
        old: "self.write(bytes..before.min(blocks * block)).fill(0);",
        new: "self.write(bytes..before.min(blocks * block));",
        tests: &[POOL_LIST_MOVES],
    },
    Mutant {
        name: "pool: blocks that were cut off a list come back",
        file: "crates/pool/src/part.rs",
        old: "            self.memory.clear(blocks * block..self.dirty.len() * block);\n",
        new: "",
        tests: &[POOL_LISTS, POOL_LIST_MOVES],
    },
    Mutant {
        name: "pool: new blocks of a list not marked",
        file: "crates/pool/src/part.rs",
        old: "self.dirty.resize(blocks, 1);",
        new: "self.dirty.resize(blocks, 0);",
        tests: &[POOL_LIST_MOVES],
    },
    Mutant {
        name: "pool: entries of blocks that are gone stay",
        file: "crates/pool/src/table.rs",
        old: "if gone.iter().any(|entry| !entry.is_zeros()) && level + 1 < anew.len() {",
        new: "if gone.len() > POOL_ENTRIES {",
        tests: &[POOL_LISTS],
    },
    Mutant {
        name: "pool: the top of a list not counted",
        file: "crates/pool/src/table.rs",
        old: "if !changed.contains(&0) {",
        new: "if self.levels.len() == 1 {",
        tests: &[POOL_LISTS, POOL_MODEL],
    },
    Mutant {
        name: "pool: free cells of another version taken",
        file: "crates/pool/src/tree/change.rs",
        old: "if self.free.0 != loads {",
        new: "if self.free.0 == u64::MAX {",
        tests: &[POOL_TREES, POOL_MODEL],
    },
    Mutant {
        name: "pool: the life of a cell not compared",
        file: "crates/pool/src/tree/links.rs",
        old: "record[FREE] == 0 && stamp_of(record) == stamp",
        new: "record[FREE] == 0 && stamp_of(record) | stamp == stamp_of(record) | stamp",
        tests: &[POOL_TREES],
    },
    Mutant {
        name: "pool: stamps given again after a restore",
        file: "crates/pool/src/tree/change.rs",
        old: "state.stamp.max(self.stamp).wrapping_add(1)",
        new: "state.stamp.wrapping_add(1)",
        tests: &[POOL_TREES],
    },
    Mutant {
        name: "pool: places of cells not compared",
        file: "crates/pool/src/tree/links.rs",
        old: "(below[FREE], below[PARENT], below[LEVEL]) == (0, index, place.level) && position",
        new: "let _ = position;\n            (below[FREE], below[LEVEL]) == (0, place.level)",
        tests: &[POOL_LINKS],
    },
    Mutant {
        name: "pool: any free cell taken, not the nearest",
        file: "crates/pool/src/tree/change.rs",
        old: "(Some(below), Some(above)) if near - below <= above - near => Some(below),",
        new: "(Some(_), Some(_)) => free.first().copied(),",
        tests: &[POOL_TREES],
    },
    Mutant {
        name: "pool: balance leaves out a face",
        file: "crates/pool/src/tree/change.rs",
        old: "for face in Face::all::<D>() {",
        new: "for face in Face::all::<D>().skip(1) {",
        tests: &[POOL_TREES, POOL_MODEL],
    },
    Mutant {
        name: "pool: edges not sorted by where they lead",
        file: "crates/pool/src/graph/change.rs",
        old: "    edges.sort_by_key(|(from, to, _)| (*from, *to));",
        new: "    edges.sort_by_key(|(from, _, _)| *from);",
        tests: &[POOL_GRAPHS, POOL_MODEL],
    },
    Mutant {
        name: "pool: offsets of edges not compared",
        file: "crates/pool/src/graph.rs",
        old: "if is_there { range } else { self.damaged(\"where edges begin\") }",
        new: "let _ = is_there;\n        range",
        tests: &[POOL_LINKS],
    },
    Mutant {
        name: "node: two drains of a file overlap",
        file: "crates/grants/src/drain.rs",
        old: "start < range.end && range.start < extent.end",
        new: "start < range.end && range.start > extent.end",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: what a reader copies from is freed",
        file: "crates/grants/src/file.rs",
        old: "self.extents > 0 || self.jobs > 0 || self.pins > 0",
        new: "self.extents > 0 || self.jobs > 0",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: what is being drained is freed",
        file: "crates/grants/src/file.rs",
        old: "self.extents > 0 || self.jobs > 0 || self.pins > 0",
        new: "self.extents > 0 || self.pins > 0",
        tests: &[NODE_WORLDS],
    },
    Mutant {
        name: "node: a file is cut off while what is beyond is written",
        file: "crates/grants/src/drain.rs",
        old: "if file.jobs.iter().all(|job| self.jobs[job].range.end <= cut.bytes) {",
        new: "if file.jobs.iter().all(|job| self.jobs[job].range.end > 0) {",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: others overtake who cuts a file off",
        file: "crates/grants/src/serve.rs",
        old: "_ if is_cut && !pending.is_running => false,",
        new: "_ if is_cut && pending.mark == 0 => false,",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: who waits for a failed drain does not wait for what has replaced it",
        file: "crates/grants/src/drain.rs",
        old: "                piece.since = piece.since.min(job.since);\n",
        new: "",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: who waits for a drain does not wait for what has replaced it",
        file: "crates/grants/src/serve.rs",
        old: "let since = replaced.unwrap_or(id).min(id);",
        new: "let since = replaced.map_or(id, |_| id);",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: grants are not in the journal",
        file: "crates/grants/src/serve.rs",
        old: "self.journal(JournalRecord::Granted { line: id, process, at: range.start, bytes });",
        new: "let _ = process;",
        tests: &[NODE_WORLDS, NODE_KILLED],
    },
    Mutant {
        name: "node: drains are not in the journal",
        file: "crates/grants/src/drain.rs",
        old: "        self.journal(JournalRecord::Drained(JournalPart { file, offset: start, bytes: end - start, before }));\n",
        new: "        let _ = JournalPart { file, offset: start, bytes: end - start, before };\n",
        tests: &[NODE_WORLDS],
    },
    Mutant {
        name: "node: nobody has a share",
        file: "crates/grants/src/serve.rs",
        old: "let most = if is_short && is_hopeful { room.min(own) } else { room };",
        new: "let most = if is_short && own == u64::MAX { own } else { room };",
        tests: &[GRANTS],
    },
    Mutant {
        name: "node: the limit is forgotten",
        file: "crates/grants/src/serve.rs",
        old: "let room = self.limit_bytes.saturating_sub(self.space.used_bytes());\n            let own",
        new: "let room = self.settings.reserve_bytes;\n            let own",
        tests: &[GRANTS, NODE_WORLDS],
    },
    Mutant {
        name: "node: checksums not compared before a drain",
        file: "crates/node/src/target.rs",
        old: "if node_checksum(reserve.filled(piece.at, piece.bytes)?) != piece.sum {",
        new: "if node_checksum(reserve.filled(piece.at, piece.bytes)?) == 1 && piece.sum == 2 {",
        tests: &[NODE_HOSTILE],
    },
    Mutant {
        name: "node: pending writes of a file overtake each other",
        file: "crates/node/src/pending.rs",
        old: "all(|(file, _)| *file != identity(&job.file));",
        new: "all(|(file, _)| *file != 1 + identity(&job.file));",
        tests: &[NODE_PENDING],
    },
    Mutant {
        name: "node: any number of writes may be pending",
        file: "crates/node/src/pending.rs",
        old: "        while queue.count() >= PENDING_MAX {",
        new: "        while queue.count() >= 1000 * PENDING_MAX {",
        tests: &[NODE_PENDING],
    },
    Mutant {
        name: "node: a fill in doubt counts as recorded",
        file: "crates/node/src/writing.rs",
        old: "filter(|range| is_same && !line.holds(range))",
        new: "filter(|range| is_same || line.holds(range))",
        tests: &[NODE_KILLED],
    },
];
