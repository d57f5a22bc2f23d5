//! Restarts: finding a version that all ranks have undamaged, and putting it back.

use std::{collections::BTreeSet, path::PathBuf};

use outcrop::Reached;

use crate::{
    checkpoint::Mode,
    client::{Client, Phase, check_version},
    failure::{Failure, Result},
    number, old,
    regions::{Mappings, Region},
    routed::Routed,
    saved::Saved,
};

/// A restart under way.
pub(crate) struct Restart {
    name: String,
    version: u32,
    saved: Saved,
    routed: Option<Routed>,
}

/// What was found, and every byte of it read.
pub(crate) struct Found {
    name: String,
    candidate: Candidate,
    saved: Saved,
}

/// One that might be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidate {
    Here(u64),
    Old(u32),
}

impl Candidate {
    fn version(self) -> u32 {
        match self {
            Self::Here(number) => number::version(number),
            Self::Old(version) => version,
        }
    }
}

impl Client {
    /// The newest version up to this one, or of all if it is 0, that can be restored; nothing if
    /// there is none. All ranks call it together, unless it is about one of them.
    pub(crate) fn restart_test(&mut self, name: &str, version: i32, of_rank: Option<u32>) -> Result<Option<u32>> {
        self.check_idle("VELOC_Restart_test")?;
        let most = Some(check_version(version)?).filter(|most| *most > 0).unwrap_or(u32::MAX);
        let found = self.find(name, of_rank, &|version| version <= most)?;
        let version = found.as_ref().map(|found| found.candidate.version());
        if of_rank.is_none() {
            // Only what all ranks remember: what follows, they must do together.
            self.found = found;
        }
        Ok(version)
    }

    /// Begins to restore a version. All ranks call it together, unless it is about one of them.
    pub(crate) fn restart_begin(&mut self, name: &str, version: i32, of_rank: Option<u32>) -> Result<()> {
        self.check_idle("VELOC_Restart_begin")?;
        let version = check_version(version)?;
        self.phase = Phase::Idle;
        let is_it = |found: &mut Found| of_rank.is_none() && found.name == name && found.candidate.version() == version;
        let found = match self.found.take_if(is_it) {
            Some(found) => Some(found),
            None => self.find(name, of_rank, &|there| there == version)?,
        };
        let missing = || {
            let remedy = "ask VELOC_Restart_test which there is";
            Failure::new(format!("version {version} of {name} is not there, undamaged, on all ranks; {remedy}"))
        };
        let Found { name, candidate, saved } = found.ok_or_else(missing)?;
        if let (Candidate::Here(number), None) = (candidate, of_rank) {
            // The next checkpoint stores what differs from this version. If that cannot be, it
            // stores all.
            if let Err(error) = self.series(&name)?.session.go_on_after(number) {
                self.say(format!("the next version of {name} is saved in full: {}", Failure::from(error)));
            }
        }
        self.phase = Phase::Restart(Restart { name, version, saved, routed: None });
        Ok(())
    }

    /// The length of a region in the version that is being restored; 0 if it has none of this
    /// number.
    pub(crate) fn recover_size(&mut self, id: i32) -> Result<u64> {
        Ok(self.restart()?.saved.regions().get(&id).copied().unwrap_or(0))
    }

    /// Puts the chosen regions back.
    pub(crate) fn recover(&mut self, mode: Mode, ids: &BTreeSet<i32>) -> Result<()> {
        let Phase::Restart(Restart { name, version, saved, .. }) = &self.phase else { return Err(not_begun()) };
        let there = saved.regions();
        if there.is_empty() {
            let remedy = "it was saved as a file; ask VELOC_Route_file for it";
            return Err(Failure::new(format!("version {version} of {name} has no regions: {remedy}")));
        }
        let chosen = mode.choose(&there.keys().copied().collect(), ids)?;
        let (name, mappings) = (name.clone(), Mappings::now()?);
        let regions = self.regions(&name);
        // All of them, before any is changed.
        chosen.iter().try_for_each(|id| check_fit(*id, regions.get(id), there[id], &mappings))?;
        self.fill(&name, chosen)
    }

    /// Fills regions that are large enough.
    fn fill(&mut self, name: &str, ids: BTreeSet<i32>) -> Result<()> {
        let Phase::Restart(restart) = std::mem::replace(&mut self.phase, Phase::Idle) else { return Err(not_begun()) };
        let there = restart.saved.regions();
        let regions = self.regions(name);
        let fill = |id: i32| match regions.get_mut(&id) {
            Some(Region::Memory(memory)) => restart.saved.read(id, memory.bytes_mut(there[&id] as usize)),
            Some(Region::Serialized(callbacks)) => {
                let mut bytes = vec![0; there[&id] as usize];
                restart.saved.read(id, &mut bytes)?;
                callbacks.read(id, &bytes)
            }
            None => Ok(()),
        };
        let result = ids.into_iter().try_for_each(fill);
        self.phase = Phase::Restart(restart);
        result
    }

    /// The path of a file with what the program wrote to its own.
    pub(crate) fn route_restart(&mut self) -> Result<PathBuf> {
        let (scratch, rank) = (self.config.scratch.clone(), self.ranks.rank());
        let restart = self.restart()?;
        let (name, version) = (&restart.name, restart.version);
        if !restart.saved.has_file() {
            let remedy = "it was saved from memory; call VELOC_Recover_mem";
            return Err(Failure::new(format!("version {version} of {name} has no file: {remedy}")));
        }
        if restart.routed.is_none() {
            let routed = Routed::new(&scratch, name, rank, version)?;
            restart.saved.write_file(routed.path())?;
            restart.routed = Some(routed);
        }
        Ok(restart.routed.as_ref().map(|routed| routed.path().to_owned()).unwrap_or_default())
    }

    /// Ends a restart.
    pub(crate) fn restart_end(&mut self) -> Result<()> {
        self.restart()?;
        self.phase = Phase::Idle;
        Ok(())
    }

    /// Everything at once.
    pub(crate) fn restart_all(&mut self, name: &str, version: i32, of_rank: Option<u32>) -> Result<()> {
        self.restart_begin(name, version, of_rank)?;
        let result = self.recover(Mode::All, &BTreeSet::new());
        self.restart_end().and(result)
    }

    fn restart(&mut self) -> Result<&mut Restart> {
        match &mut self.phase {
            Phase::Restart(restart) => Ok(restart),
            _ => Err(not_begun()),
        }
    }

    /// The newest version that fits and that is undamaged.
    fn find(&mut self, name: &str, of_rank: Option<u32>, fits: &dyn Fn(u32) -> bool) -> Result<Option<Found>> {
        match of_rank {
            None => self.ranks.notice().together("a restart", || self.find_together(name, fits)),
            Some(rank) => self.find_of(name, rank, fits),
        }
    }

    /// The same on all ranks: what one of them has not, or damaged, is passed over by all. An error
    /// if something fits and none of it can be restored.
    fn find_together(&mut self, name: &str, fits: &dyn Fn(u32) -> bool) -> Result<Option<Found>> {
        let rank = self.ranks.rank();
        let shelves = self.shelves(name, rank)?;
        let session = &self.series(name)?.session;
        let mut is_any = session.passed_over().iter().any(|skipped| fits(number::version(skipped.version)));
        let numbers = session.restorable()?;
        let (old, lacking) = self.old_versions(name)?;
        is_any |= lacking.into_iter().any(fits);
        for candidate in candidates(numbers, &old).into_iter().filter(|candidate| fits(candidate.version())) {
            if let Some(found) = self.found.take_if(|found| found.name == name && found.candidate == candidate) {
                // It was checked by the last test, and programs may test often.
                return Ok(Some(found));
            }
            is_any = true;
            let has_regions = !self.regions(name).is_empty();
            let series = self.series(name)?;
            let attempt = match candidate {
                Candidate::Here(number) if series.damaged.contains(&number) => continue,
                Candidate::Old(version) if series.damaged_old.contains(&version) => continue,
                Candidate::Here(number) => {
                    // It may still be on its way; where it never comes, another directory may have
                    // it.
                    (1..=shelves.directories.len()).for_each(|layer| {
                        let _ = series.session.wait(number, Reached::Here(layer));
                    });
                    shelves.whole(number)
                }
                Candidate::Old(version) => old::open(&self.config, name, rank, version, has_regions).map(Saved::Old),
            };
            let problem = self.ranks.agree(&format!("veloc find {name}"), attempt.as_ref().err())?;
            match (attempt, problem) {
                (Ok(saved), None) => return Ok(Some(Found { name: name.to_owned(), candidate, saved })),
                (Err(problem), _) | (_, Some(problem)) if problem.is_shortage => return Err(problem),
                (Err(problem), None) | (_, Some(problem)) => self.pass_over(name, candidate, &problem)?,
            }
        }
        if is_any { Err(nothing_whole(name)) } else { Ok(None) }
    }

    /// Takes note of what is damaged on some rank.
    fn pass_over(&mut self, name: &str, candidate: Candidate, problem: &Failure) -> Result<()> {
        let series = self.series(name)?;
        match candidate {
            Candidate::Here(number) => series.damaged.insert(number),
            Candidate::Old(version) => series.damaged_old.insert(version),
        };
        let version = candidate.version();
        self.say(format!("version {version} of {name} is damaged and passed over: {problem}"));
        Ok(())
    }

    /// What one rank has, without asking anybody.
    fn find_of(&mut self, name: &str, rank: u32, fits: &dyn Fn(u32) -> bool) -> Result<Option<Found>> {
        let shelves = self.shelves(name, rank)?;
        let has_regions = !self.regions(name).is_empty();
        let old = old::versions(&self.config, name, rank)?;
        let all = candidates(shelves.numbers()?, &old);
        let mut is_any = false;
        for candidate in all.into_iter().filter(|candidate| fits(candidate.version())) {
            is_any = true;
            let attempt = match candidate {
                Candidate::Here(number) => shelves.whole(number),
                Candidate::Old(version) => old::open(&self.config, name, rank, version, has_regions).map(Saved::Old),
            };
            match attempt {
                Ok(saved) => return Ok(Some(Found { name: name.to_owned(), candidate, saved })),
                Err(problem) if problem.is_shortage => return Err(problem),
                Err(problem) => {
                    self.say(format!("version {} of {name} is passed over: {problem}", candidate.version()));
                }
            }
        }
        if is_any { Err(nothing_whole(name)) } else { Ok(None) }
    }

    /// The versions that VELOC has left for all ranks, and those for some.
    fn old_versions(&self, name: &str) -> Result<(BTreeSet<u32>, BTreeSet<u32>)> {
        let mine = old::versions(&self.config, name, self.ranks.rank());
        if let Some(problem) = self.ranks.agree(&format!("veloc list {name}"), mine.as_ref().err())? {
            return Err(problem);
        }
        let message: Vec<u8> = mine?.iter().flat_map(|version| version.to_le_bytes()).collect();
        let everybody = self.ranks.gather(&format!("veloc old {name}"), &message)?;
        let versions =
            |message: &Vec<u8>| message.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let everybody: Vec<BTreeSet<u32>> = everybody.iter().map(versions).collect();
        let any: BTreeSet<u32> = everybody.iter().flatten().copied().collect();
        Ok(any.into_iter().partition(|version| everybody.iter().all(|versions| versions.contains(version))))
    }
}

/// Some version is there, and a program that is told of none would begin anew.
fn nothing_whole(name: &str) -> Failure {
    let remedy = "look at what is said above and at `outcrop verify`, and at directories that may be missing";
    Failure::new(format!("versions of {name} were found, and none can be restored; {remedy}"))
}

/// Whether what was saved can be put into a region.
fn check_fit(id: i32, region: Option<&Region>, bytes: u64, mappings: &Mappings) -> Result<()> {
    match region {
        None => {
            let remedy = "call VELOC_Mem_protect for it first, or VELOC_Recover_selective for the others";
            Err(Failure::new(format!("region {id} is not protected; {remedy}")))
        }
        Some(Region::Memory(memory)) if (memory.len() as u64) < bytes => {
            let sizes = format!("{} bytes are protected and {bytes} were saved", memory.len());
            let remedy = "ask VELOC_Recover_size, and protect enough";
            Err(Failure::new(format!("region {id} is too small: {sizes}; {remedy}")))
        }
        Some(Region::Memory(memory)) => mappings.check(id, memory, true),
        Some(Region::Serialized(_)) => Ok(()),
    }
}

/// What might be restored: what was saved last comes first, and files of VELOC come after what this
/// library has saved.
fn candidates(numbers: Vec<u64>, old: &BTreeSet<u32>) -> Vec<Candidate> {
    let here: BTreeSet<u32> = numbers.iter().map(|number| number::version(*number)).collect();
    let old = old.iter().rev().filter(|version| !here.contains(version)).map(|version| Candidate::Old(*version));
    numbers.into_iter().rev().map(Candidate::Here).chain(old).collect()
}

fn not_begun() -> Failure {
    Failure::new("no restart has begun; call VELOC_Restart_begin first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_last_comes_first() {
        use Candidate::{Here, Old};
        let (again_five, again_six) = (1 << 32 | 5, 1 << 32 | 6);
        let found = candidates(vec![5, 9, again_five, again_six], &BTreeSet::from([3, 9, 12]));
        assert_eq!(found, [Here(again_six), Here(again_five), Here(9), Here(5), Old(12), Old(3)]);
        assert_eq!(found[0].version(), 6);
    }
}
