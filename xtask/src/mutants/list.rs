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
const POOL_ARRAYS: Tests = ("outcrop-pool", "pool", "arrays::");

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
        old: "            here.lingering.extend(visible.packs());",
        new: "            drop(visible);",
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
        old: "        files.sync_dir(dir).map_err(failed)?;\n",
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
        old: "        self.free_unread();\n        let version = self.newest + 1;",
        new: "        if self.versions.len() as u64 >= versions_max {\n            let first = self.versions.remove(0);\n            self.lingering.push(first);\n        }\n        self.free_unread();\n        let version = self.newest + 1;",
        tests: &[POOL],
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
];
