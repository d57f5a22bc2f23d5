//! Carries out operations on the real store and on the model, and compares the results.

use outcrop::{Error, PartMut, Result, store::Restored};

use super::{
    Checked,
    case::{Damage, Operation, Settings, Wait},
    memory::{Blank, STAMP},
    world::{Running, World},
};

/// How often a save is repeated that reports the failure of an earlier version.
const TRIES: usize = 6;

impl World {
    /// Carries out an operation, if it is possible in the current state.
    pub(super) fn carry_out(&mut self, operation: &Operation) -> Checked {
        let ranks = self.case.ranks;
        match (operation, self.running.is_some()) {
            (Operation::Open(settings), false) => self.open_checked(settings),
            (Operation::Damage { layer, rank, nth, damage }, _) => {
                self.damage((*layer, rank % ranks), *nth, *damage);
                Ok(())
            }
            (Operation::Away { layer, rank }, false) => {
                let away = rank.map_or(0..ranks, |rank| rank % ranks..rank % ranks + 1);
                away.for_each(|rank| self.disks.take_away(&mut self.model, *layer, rank));
                self.disturb(*layer);
                Ok(())
            }
            (Operation::Back { nth }, false) => {
                if let Some(layer) = self.disks.bring_back(&mut self.model, *nth) {
                    self.disturb(layer);
                }
                Ok(())
            }
            (Operation::Swap { layer, rank }, false) => {
                if self.disks.swap(&mut self.model, *layer, (rank % ranks, (rank + 1) % ranks)) {
                    self.disturb(*layer);
                }
                Ok(())
            }
            (_, true) => self.carry_out_open(operation),
            (_, false) => Ok(()),
        }
    }

    fn disturb(&mut self, layer: usize) {
        self.disturbed.insert(layer);
        self.moved.insert(layer);
        self.is_calm = false;
    }

    fn carry_out_open(&mut self, operation: &Operation) -> Checked {
        match operation {
            Operation::Open(settings) => {
                self.close(false)?;
                self.open_checked(settings)
            }
            Operation::Close { is_dropped } => self.close(*is_dropped),
            Operation::Kill { after, leaves_half } => {
                self.is_calm = false;
                let settings = &self.running().settings;
                if settings.is_direct {
                    return self.close(true);
                }
                self.running_mut().kill(*after, *leaves_half);
                self.save((0, false), true, Wait::Layer(0))?;
                if self.running.is_some() {
                    self.drop_all();
                }
                self.inspect()
            }
            Operation::Save { gap, is_again, scribbles, wait } => self.save((*gap, *is_again), *scribbles, *wait),
            Operation::Change { kind, seed } => {
                self.members.iter_mut().for_each(|member| member.memory.change(*kind, *seed));
                Ok(())
            }
            Operation::Exclude { seed, is_none } => {
                self.exclude(*seed, *is_none);
                Ok(())
            }
            Operation::MarkDirty { seed } => {
                for member in &mut self.members {
                    let (session, memory) = member.parts();
                    let (name, bytes) = memory.some_bytes(*seed);
                    session.mark_dirty(&name, bytes);
                }
                Ok(())
            }
            Operation::Wait { nth, wait } => {
                let saved = &self.running().saved;
                match saved.get(nth % saved.len().max(1)).copied() {
                    Some(stamp) => self.wait(stamp, *wait),
                    None => Ok(()),
                }
            }
            Operation::RestoreLatest { is_at_once } => self.restore_latest(*is_at_once),
            Operation::Restore { nth } => self.some_version(*nth).map_or(Ok(()), |version| self.restore(version)),
            Operation::Read { nth } => self.some_version(*nth).map_or(Ok(()), |version| self.read(version)),
            Operation::GoOnAfter { nth } => self.some_version(*nth).map_or(Ok(()), |version| self.go_on_after(version)),
            Operation::Rewind { nth } => {
                let to = nth.map(|nth| self.some_version(nth).unwrap_or(nth as u64));
                self.rewind(to)
            }
            Operation::Fail { layer, rank, fault } => {
                self.is_calm = false;
                self.running_mut().fail(*layer, *rank, *fault);
                Ok(())
            }
            Operation::Heal => {
                self.running_mut().heal();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it is open")
    }

    fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().expect("it is open")
    }

    /// Opens the session, and checks that this removes no version.
    pub(super) fn open_checked(&mut self, settings: &Settings) -> Checked {
        // A merge that does not fit on one layer leaves its packs on others until the next start.
        if settings.fault.is_some() || settings.limit_kib.iter().any(Option::is_some) {
            self.is_calm = false;
        }
        self.has_shared |= self.shares(settings);
        let before = self.manifests();
        let lost = self.disks.lost();
        let opened = self.open(settings);
        let errors: Vec<&Error> = opened.iter().filter_map(|result| result.as_ref().err()).collect();
        let is_faulty = settings.fault.is_some() && !settings.is_direct;
        if let Some(error) = errors.first().filter(|_| !is_faulty) {
            return Err(format!("the session cannot be opened: {error}"));
        }
        let after = self.manifests();
        if let Some(gone) = before.iter().find(|manifest| !after.contains(manifest)) {
            return Err(format!("opening has removed version {} of rank {} on layer {}", gone.2, gone.1, gone.0));
        }
        if !errors.is_empty() {
            return Ok(());
        }
        let (disks, model) = (&self.disks, &mut self.model);
        let damaged: std::collections::BTreeSet<_> =
            before.into_iter().filter(|it| disks.is_manifest_damaged(model, it.0, it.1, it.2)).collect();
        model.open(|layer, rank, version| !damaged.contains(&(layer, rank, version)));
        self.running_mut().lost = lost.into_iter().map(|file| (file, 0)).collect();
        self.check_listed()
    }

    /// All existing manifests: layer, rank and version.
    fn manifests(&self) -> Vec<(usize, u32, u64)> {
        let places = (0..self.case.layers).flat_map(|layer| (0..self.case.ranks).map(move |rank| (layer, rank)));
        let of_place = |(layer, rank)| self.disks.versions(layer, rank).into_iter().map(move |it| (layer, rank, it));
        places.flat_map(of_place).collect()
    }

    /// Checks that everything that must be restorable is listed.
    fn check_listed(&mut self) -> Checked {
        let required = self.required();
        for (rank, versions) in self.all(|member| member.session().versions()).into_iter().enumerate() {
            if let Some((version, _)) = required.iter().find(|(version, _)| !versions.contains(version)) {
                return Err(format!("rank {rank} does not know version {version}, only {versions:?}"));
            }
        }
        Ok(())
    }

    /// Versions, with their stamps, that all ranks must be able to restore now.
    pub(super) fn required(&self) -> Vec<(u64, u64)> {
        let running = self.running.as_ref();
        self.model.required(|layer, rank, version| {
            let is_failing = running.is_some_and(|it| it.is_killed || it.armed.contains(&(layer, rank)));
            is_failing || self.disks.is_tainted(&self.model, layer, rank, version)
        })
    }

    fn some_version(&mut self, nth: usize) -> Option<u64> {
        let versions = self.members[0].session().versions();
        versions.get(nth % versions.len().max(1)).copied()
    }

    fn close(&mut self, is_dropped: bool) -> Checked {
        if is_dropped {
            self.drop_all();
            return self.inspect();
        }
        let (has_failed, saved) = (self.running().has_failed, self.running().saved.clone());
        let keep = self.running().settings.keep.clone();
        // What is excused depends on the session.
        let is_excused = self.is_excused(None);
        let ended = self.finish_all();
        if let Some(error) = ended.iter().find_map(|result| result.as_ref().err()) {
            if !is_excused {
                return Err(format!("the session does not end well: {error}"));
            }
        } else if !has_failed {
            for stamp in saved {
                (0..self.case.layers).for_each(|layer| self.model.promise(stamp, layer, keep[layer]));
            }
        }
        self.inspect()
    }

    fn save(&mut self, (gap, is_again): (u64, bool), scribbles: bool, wait: Wait) -> Checked {
        let newest = self.all(|member| member.session().versions().last().copied().unwrap_or(0)).into_iter().max();
        let newest = newest.unwrap_or(0);
        let again = self.running().tried.filter(|tried| is_again && *tried > newest);
        let version = again.unwrap_or(newest + 1 + gap);
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let contents = self.members.iter_mut().map(|member| {
            member.memory.stamp = stamp;
            member.memory.remember();
            member.memory.content()
        });
        let contents = contents.collect();
        let keep = self.running().settings.keep.clone();
        self.model.save(version, contents, stamp, &keep);
        self.running_mut().tried = Some(version);
        let results = self.all(|member| {
            let (session, memory) = member.parts();
            // The failure of an earlier version is reported first.
            let mut told = Vec::new();
            let saved = loop {
                match session.save(version, &memory.parts()) {
                    Err(error) if told.len() < TRIES => told.push(error),
                    result => break result,
                }
            };
            if scribbles {
                memory.scribble();
            }
            (told, saved)
        });
        let told = results.iter().flat_map(|(told, saved)| told.iter().chain(saved.as_ref().err()));
        self.check_errors(&format!("saving version {version}"), None, told)?;
        if results.iter().any(|(_, saved)| saved.is_err()) {
            // Ranks that have saved it would wait for those that have not.
            self.drop_all();
            return self.inspect();
        }
        self.running_mut().saved.push(stamp);
        self.wait(stamp, wait)
    }

    fn wait(&mut self, stamp: u64, wait: Wait) -> Checked {
        let Some((reached, layers)) = wait.reached(self.case.layers) else { return Ok(()) };
        let version = self.model.attempts[&stamp].version;
        let is_newest = self.running().saved.last() == Some(&stamp);
        let results = self.all(|member| member.session().wait(version, reached));
        let errors: Vec<&Error> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        let what = format!("waiting for {reached:?} of version {version}");
        // A version that is not kept any more is not known any more.
        let is_kept = self.running().settings.keep.iter().all(|keep| *keep == outcrop::Retention::default());
        if is_newest || is_kept {
            let layer = if let [layer] = layers[..] { Some(layer) } else { None };
            self.check_errors(&what, layer, errors.iter().copied())?;
        }
        if !errors.is_empty() {
            self.running_mut().has_failed = true;
        }
        if matches!(wait, Wait::Layer(_) | Wait::All) && results.iter().any(Result::is_ok) {
            if let Some(error) = errors.first().filter(|_| is_newest) {
                return Err(format!("{what} is well on some rank, and fails on another: {error}"));
            }
            let keep = self.running().settings.keep.clone();
            layers.iter().for_each(|layer| self.model.promise(stamp, *layer, keep[*layer]));
            layers.iter().try_for_each(|layer| self.inspect_version(stamp, *layer))?;
            return layers.iter().try_for_each(|layer| self.check_built_upon(stamp, *layer));
        }
        Ok(())
    }

    /// Damages a file. If it is lost by that, versions that are saved from now on must do without.
    fn damage(&mut self, (layer, rank): (usize, u32), nth: usize, damage: Damage) {
        self.is_calm = false;
        let before = self.disks.lost();
        self.disks.damage(&self.model, (layer, rank), nth, damage);
        self.disturbed.insert(layer);
        let (lost, next) = (self.disks.lost(), self.next_stamp);
        if let Some(running) = &mut self.running {
            let new: Vec<_> = lost.into_iter().filter(|file| !before.contains(file)).collect();
            running.cut.extend((!new.is_empty()).then_some(layer));
            running.lost.extend(new.into_iter().map(|file| (file, next)));
        }
    }

    /// Checks that a version that was just reported on a layer needs no file that was lost there
    /// before it was saved.
    fn check_built_upon(&self, stamp: u64, layer: usize) -> Checked {
        let version = self.model.attempts[&stamp].version;
        for rank in 0..self.case.ranks {
            let packs = self.disks.packs(&self.model, layer, rank, version);
            // A pack that nothing needed may have been removed, and its number used again.
            let is_lost = |pack: &&super::disks::FileId| {
                let was_before = self.running().lost.iter().any(|(file, first)| file == *pack && *first <= stamp);
                was_before && self.disks.is_damaged(&self.model, layer, rank, &pack.2)
            };
            if let Some(pack) = packs.iter().find(is_lost) {
                return Err(format!("version {version} was reported on layer {layer} without {pack:?} of rank {rank}"));
            }
        }
        Ok(())
    }

    fn exclude(&mut self, seed: u64, is_none: bool) {
        for member in &mut self.members {
            let (session, memory) = member.parts();
            if let Some(name) = memory.exclude(seed, is_none) {
                session.region(&name, memory.options[&name].clone());
            }
        }
    }

    /// Restores the newest version.
    pub(super) fn restore_latest(&mut self, is_at_once: bool) -> Checked {
        if is_at_once && self.restore_latest_at_once()? {
            return Ok(());
        }
        let results = self.all(|member| {
            let mut stamp = 0;
            let restored = member.session().restore_latest(&mut [PartMut::one(STAMP, &mut stamp)]);
            restored.map(|restored| (restored, stamp))
        });
        let Some((version, stamp)) = self.check_restored(&results)? else { return Ok(()) };
        self.model.find(stamp, version)?;
        self.restore_attempt(version, stamp, true)
    }

    /// Restores all regions of the newest version. Returns false if that version is damaged, and
    /// the regions do not fit the next one.
    fn restore_latest_at_once(&mut self) -> Checked<bool> {
        let results = self.all(|member| {
            let session = member.session();
            let Some(latest) = session.latest()? else { return Ok(None) };
            let regions = session.regions(latest);
            // The other ranks would wait, so this rank must make the call too.
            let regions = regions.unwrap_or_default();
            let mut blank = Blank::new(regions.iter().map(|region| (region.name.as_str(), region.bytes as usize)));
            let restored = session.restore_latest(&mut blank.parts())?;
            Ok(restored.map(|restored| (restored, blank)))
        });
        let results: Vec<Result<Option<(Restored, Blank)>>> = results;
        if results.iter().any(|result| !matches!(result, Ok(Some(_)))) {
            return Ok(false);
        }
        let found: Vec<(Restored, Blank)> = results.into_iter().flatten().flatten().collect();
        let version = found[0].0.version;
        if found.iter().any(|(restored, blank)| (restored.version, blank.stamp) != (version, found[0].1.stamp)) {
            return Err(format!("ranks restore different versions: {found:?}"));
        }
        self.check_newest(version, &found[0].0)?;
        if found.iter().any(|(_, blank)| blank.regions.is_empty()) {
            // Its regions could not be read at that moment.
            return Ok(false);
        }
        let contents = self.model.find(found[0].1.stamp, version)?.contents.clone();
        for ((member, (_, blank)), content) in self.members.iter_mut().zip(found).zip(&contents) {
            blank.check(content).map_err(|error| format!("version {version} on rank {}: {error}", member.rank))?;
            member.memory.regions = blank.regions;
        }
        Ok(true)
    }

    /// Checks that all ranks have restored the same version, and not one that is too old. Returns
    /// it.
    fn check_restored(&mut self, results: &[Result<(Option<Restored>, u64)>]) -> Checked<Option<(u64, u64)>> {
        let found: Vec<_> = results.iter().flatten().collect();
        let newest = self.required().last().copied();
        if found.len() < results.len() {
            let error = results.iter().find_map(|result| result.as_ref().err()).map(ToString::to_string);
            return match newest {
                Some((version, _)) => {
                    Err(format!("version {version} can be restored, but: {}", error.unwrap_or_default()))
                }
                None => Ok(None),
            };
        }
        let of = |(restored, stamp): &(Option<Restored>, u64)| restored.as_ref().map(|it| (it.version, *stamp));
        if found.iter().any(|other| of(other) != of(found[0])) {
            return Err(format!("ranks restore different versions: {found:?}"));
        }
        match (&found[0].0, newest) {
            (None, Some((version, _))) => Err(format!("nothing was restored, and version {version} was reported")),
            (None, None) => Ok(None),
            (Some(restored), _) => {
                self.check_newest(restored.version, restored)?;
                Ok(of(found[0]))
            }
        }
    }

    fn check_newest(&self, version: u64, restored: &Restored) -> Checked {
        if let Some((newest, _)) = self.required().last().filter(|(newest, _)| *newest > version) {
            return Err(format!("version {newest} was reported, and {restored:?} is restored"));
        }
        let is_whole = self.is_calm && !restored.skipped.is_empty();
        if is_whole { Err(format!("nothing is damaged, but: {restored:?}")) } else { Ok(()) }
    }

    /// Restores one version.
    pub(super) fn restore(&mut self, version: u64) -> Checked {
        let required = self.required().into_iter().rev().find(|(required, _)| *required == version);
        let results = self.all(|member| {
            let mut stamp = 0;
            member.session().restore(version, &mut [PartMut::one(STAMP, &mut stamp)]).map(|_| stamp)
        });
        let stamps: Vec<u64> = results.iter().flatten().copied().collect();
        if stamps.len() < results.len() {
            let error = results.iter().find_map(|result| result.as_ref().err()).map(ToString::to_string);
            return match required {
                Some(_) => Err(format!("version {version} cannot be restored: {}", error.unwrap_or_default())),
                None => Ok(()),
            };
        }
        if stamps.iter().any(|stamp| *stamp != stamps[0]) {
            return Err(format!("version {version} was put together from attempts {stamps:?}"));
        }
        self.model.find(stamps[0], version)?;
        self.restore_attempt(version, stamps[0], required.is_some())
    }

    /// Restores all of a version that was found. Each rank continues from it.
    fn restore_attempt(&mut self, version: u64, stamp: u64, must_be: bool) -> Checked {
        let must_be = must_be && self.required().contains(&(version, stamp));
        let contents = self.model.attempts[&stamp].contents.clone();
        let results = self.all(|member| {
            let mut blank = Blank::for_content(&contents[member.rank as usize]);
            member.session().restore(version, &mut blank.parts()).map(|_| blank)
        });
        for ((member, result), content) in self.members.iter_mut().zip(results).zip(&contents) {
            match result {
                Ok(blank) => {
                    let checked = blank.check(content);
                    checked.map_err(|error| format!("version {version} on rank {}: {error}", member.rank))?;
                    if blank.stamp != stamp {
                        return Err(format!("version {version} is attempt {stamp}, and then {}", blank.stamp));
                    }
                    member.memory.regions = blank.regions;
                }
                Err(error) if must_be => return Err(format!("version {version} cannot be restored: {error}")),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn read(&mut self, version: u64) -> Checked {
        let must_be = self.required().iter().any(|(required, _)| *required == version);
        let results = self.all(|member| {
            let session = member.session();
            let regions = session.regions(version)?;
            let mut blank = Blank::new(regions.iter().map(|region| (region.name.as_str(), region.bytes as usize)));
            session.read(version, &mut blank.parts()).map(|()| blank)
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result {
                Ok(blank) => {
                    let attempt = self.model.find(blank.stamp, version)?;
                    let checked = blank.check(&attempt.contents[rank]);
                    checked.map_err(|error| format!("version {version} as rank {rank} reads it: {error}"))?;
                }
                Err(error) if must_be => return Err(format!("version {version} cannot be read: {error}")),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn go_on_after(&mut self, version: u64) -> Checked {
        let must_be = self.required().iter().any(|(required, _)| *required == version);
        let results = self.all(|member| member.session().go_on_after(version));
        match results.into_iter().find_map(Result::err) {
            Some(error) if must_be => Err(format!("version {version} cannot be built upon: {error}")),
            _ => Ok(()),
        }
    }

    fn rewind(&mut self, to: Option<u64>) -> Checked {
        // A rank that reports the failure of an earlier version would not take part.
        let flushed = self.all(|member| {
            let flushed = member.session().flush();
            flushed.err()
        });
        self.check_errors("flushing", None, flushed.iter().flatten())?;
        let results = self.all(|member| member.session().rewind(to));
        self.check_errors("rewinding", None, results.iter().filter_map(|result| result.as_ref().err()))?;
        let is_ok = results.iter().all(Result::is_ok);
        self.model.rewind(to, is_ok);
        if !is_ok {
            // If a version is in flight on some ranks and gone on others, the ranks cannot
            // continue.
            self.drop_all();
            return self.inspect();
        }
        let model = &self.model;
        let is_gone = |stamp: &u64| {
            let attempt = &model.attempts[stamp];
            to.is_none_or(|to| attempt.version > to)
        };
        self.running.as_mut().expect("it is open").saved.retain(|stamp| !is_gone(stamp));
        for versions in self.all(|member| member.session().versions()) {
            if let Some(above) = versions.iter().find(|version| to.is_none_or(|to| **version > to)) {
                return Err(format!("version {above} is there after going back to {to:?}"));
            }
        }
        Ok(())
    }
}
