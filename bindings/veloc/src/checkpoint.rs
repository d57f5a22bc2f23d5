//! Checkpoints: begin, memory or a file or both, end; and waiting for what is under way.

use std::{borrow::Cow, collections::BTreeSet, path::PathBuf};

use outcrop::{Element, ErrorKind, Part, Reached, Session};

use crate::{
    client::{Client, Phase, check_version},
    failure::{Failure, Result},
    number,
    regions::{Mappings, Region, Regions, map},
    routed::Routed,
    saved::FILE_REGION,
};

/// Which regions are meant, besides those that are named: all, only those, or all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    All,
    Some,
    Rest,
}

impl Mode {
    pub(crate) fn of(number: i32) -> Result<Self> {
        match number {
            0 => Ok(Self::All),
            1 => Ok(Self::Some),
            2 => Ok(Self::Rest),
            _ => Err(Failure::new(format!("there is no mode {number}; it is ..._ALL, ..._SOME or ..._REST, 0 to 2"))),
        }
    }

    /// What is meant of all that there is.
    pub(crate) fn choose(self, there: &BTreeSet<i32>, ids: &BTreeSet<i32>) -> Result<BTreeSet<i32>> {
        match self {
            Self::All => Ok(there.clone()),
            Self::Rest => Ok(there - ids),
            Self::Some => match ids.difference(there).next() {
                None => Ok(ids.clone()),
                Some(id) => Err(Failure::new(format!("there is no region {id}, only {there:?}"))),
            },
        }
    }
}

/// A checkpoint in the making.
pub(crate) struct Checkpoint {
    name: String,
    version: u32,
    /// Its number in the series, the same on all ranks.
    number: u64,
    /// The regions that were asked for.
    ids: Option<BTreeSet<i32>>,
    is_saved: bool,
    routed: Option<Routed>,
    /// Something that should be in it is not.
    has_failed: bool,
}

impl Checkpoint {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Client {
    /// Begins a checkpoint. With several ranks, all of them call it.
    pub(crate) fn checkpoint_begin(&mut self, name: &str, version: i32) -> Result<()> {
        self.check_idle("VELOC_Checkpoint_begin")?;
        let version = check_version(version)?;
        self.found = None;
        let series = self.series(name)?;
        // Here and not when it is saved: a rank that fails in between must count as the others do.
        let number = number::next(series.newest, version);
        series.newest = Some(number);
        let name = name.to_owned();
        let checkpoint =
            Checkpoint { name, version, number, ids: None, is_saved: false, routed: None, has_failed: false };
        self.phase = Phase::Checkpoint(checkpoint);
        Ok(())
    }

    /// Saves the chosen regions as they are now; with a file, when that is complete.
    pub(crate) fn checkpoint_mem(&mut self, mode: Mode, ids: &BTreeSet<i32>) -> Result<()> {
        let name = self.checkpoint()?.name.clone();
        let there: BTreeSet<i32> = self.regions(&name).keys().copied().collect();
        let chosen = mode.choose(&there, ids).and_then(|chosen| match chosen.is_empty() {
            false => Ok(chosen),
            true => Err(Failure::new("no region is chosen, or none is protected; call VELOC_Mem_protect first")),
        });
        let checkpoint = self.checkpoint()?;
        checkpoint.has_failed |= chosen.is_err();
        checkpoint.ids = Some(chosen?);
        if checkpoint.routed.is_none() {
            self.save()?;
        }
        Ok(())
    }

    /// A path for the program's own file, which it fills before the checkpoint ends.
    pub(crate) fn route_checkpoint(&mut self) -> Result<PathBuf> {
        let (scratch, rank) = (self.config.scratch.clone(), self.ranks.rank());
        let checkpoint = self.checkpoint()?;
        if checkpoint.routed.is_none() {
            checkpoint.routed = Some(Routed::new(&scratch, &checkpoint.name, rank, checkpoint.version)?);
        }
        Ok(checkpoint.routed.as_ref().map(|routed| routed.path().to_owned()).unwrap_or_default())
    }

    /// Ends a checkpoint; says which it was. Without `is_success`, a file is not saved.
    pub(crate) fn checkpoint_end(&mut self, is_success: bool) -> Result<(String, u32)> {
        let checkpoint = self.checkpoint()?;
        let (name, version) = (checkpoint.name.clone(), checkpoint.version);
        let problem = if checkpoint.has_failed {
            Some("a part of it could not be saved")
        } else if checkpoint.routed.is_some() && !is_success {
            Some("the program says that it has failed")
        } else if checkpoint.routed.is_none() && !checkpoint.is_saved {
            Some("nothing was saved; call VELOC_Checkpoint_mem or VELOC_Route_file between its beginning and its end")
        } else {
            None
        };
        let result = match problem {
            Some(problem) => Err(Failure::new(format!("version {version} of {name} is not complete: {problem}"))),
            None if self.checkpoint()?.routed.is_some() => self.save(),
            None => Ok(()),
        };
        // The file goes here: its bytes are in host memory or in a directory.
        self.phase = Phase::Idle;
        result?;
        if self.config.is_sync {
            self.checkpoint_wait()?;
        }
        Ok((name, version))
    }

    /// Everything at once. If an earlier one has failed that is the result, but this one is saved
    /// nevertheless: other ranks may know of no failure, and count on it.
    pub(crate) fn checkpoint_all(&mut self, name: &str, version: i32) -> Result<(String, u32)> {
        self.check_idle("VELOC_Checkpoint")?;
        let waited = self.checkpoint_wait();
        self.checkpoint_begin(name, version)?;
        let saved = self.checkpoint_mem(Mode::All, &BTreeSet::new());
        if saved.is_err() {
            self.phase = Phase::Idle;
        }
        saved?;
        let ended = self.checkpoint_end(true)?;
        waited.map(|()| ended)
    }

    /// Waits until all that this rank has saved is in all directories. Others may be later.
    pub(crate) fn checkpoint_wait(&mut self) -> Result<()> {
        self.check_idle("VELOC_Checkpoint_wait")?;
        let layers = self.layers();
        let mut first = None;
        for (name, number) in std::mem::take(&mut self.under_way) {
            let Some(series) = self.series.get(&name) else { continue };
            for layer in 1..=layers {
                match series.session.wait(number, Reached::Here(layer)) {
                    // It was complete once, and is not kept any more.
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::Missing => {}
                    Err(error) => first = first.or(Some(Failure::from(error))),
                }
            }
        }
        let has_failed = std::mem::take(&mut self.has_failed);
        match first {
            Some(failure) => Err(failure),
            None if has_failed => Err(Failure::new("a version has failed since the last wait, and was reported then")),
            None => Ok(()),
        }
    }

    /// Whether [`checkpoint_wait`](Self::checkpoint_wait) would return at once.
    pub(crate) fn is_finished(&self) -> bool {
        let layers = self.layers();
        self.under_way.iter().all(|(name, number)| {
            let Some(series) = self.series.get(name) else { return true };
            (1..=layers).all(|layer| !matches!(series.session.has_reached(*number, Reached::Here(layer)), Ok(false)))
        })
    }

    fn checkpoint(&mut self) -> Result<&mut Checkpoint> {
        match &mut self.phase {
            Phase::Checkpoint(checkpoint) => Ok(checkpoint),
            _ => Err(Failure::new("no checkpoint has begun; call VELOC_Checkpoint_begin first")),
        }
    }

    /// Saves what the checkpoint has until now.
    fn save(&mut self) -> Result<()> {
        let result = self.try_save();
        if let Phase::Checkpoint(checkpoint) = &mut self.phase {
            checkpoint.is_saved = true;
            checkpoint.has_failed |= result.is_err();
        }
        result
    }

    fn try_save(&mut self) -> Result<()> {
        let checkpoint = self.checkpoint()?;
        let (name, version, was_saved) = (checkpoint.name.clone(), checkpoint.version, checkpoint.is_saved);
        let (mut number, ids) = (checkpoint.number, checkpoint.ids.clone().unwrap_or_default());
        let file = checkpoint.routed.as_ref().map(|routed| routed.path().to_owned());
        if was_saved {
            // The memory alone was a version; with the file it is another one.
            let series = self.series(&name)?;
            number = number::next(series.newest, version);
            series.newest = Some(number);
        }
        let mapped = match &file {
            Some(path) => map(path).map_err(|error| {
                let remedy = "the program must write and close it before VELOC_Checkpoint_end";
                Failure::new(format!("the routed file {} cannot be read: {error}; {remedy}", path.display()))
            })?,
            None => None,
        };
        let layers = self.layers();
        let (regions, session) = self.regions_and_session(&name)?;
        let names: Vec<String> = ids.iter().map(i32::to_string).collect();
        let bytes = bytes(regions, &ids)?;
        let part = |(name, bytes)| Part::of(String::as_str(name), Element::BYTE, Cow::as_ref(bytes));
        let mut parts: Vec<Part<'_>> = names.iter().zip(&bytes).map(part).collect();
        if file.is_some() {
            let mapped = mapped.as_deref().unwrap_or_default();
            // It may have been mapped where the last one was.
            session.mark_dirty(FILE_REGION, 0..mapped.len());
            parts.push(Part::of(FILE_REGION, Element::BYTE, mapped));
        }
        let mut told = Vec::new();
        let result = save_anyway(session, layers, number, &parts, &mut told);
        if bytes.iter().any(|bytes| matches!(bytes, Cow::Owned(_))) {
            // What serializers have written is freed here, also if it was saved by an image.
            session.thaw()?;
        }
        for (sentence, is_mine) in told {
            self.has_failed |= is_mine;
            self.say(sentence);
        }
        result?;
        self.under_way.push((name, number));
        Ok(())
    }
}

/// What the chosen regions hold now.
fn bytes<'a>(regions: &'a Regions, ids: &BTreeSet<i32>) -> Result<Vec<Cow<'a, [u8]>>> {
    let mappings = Mappings::now()?;
    let of_region = |id: &i32| match regions.get(id) {
        None => Err(Failure::new(format!("region {id} is not protected any more"))),
        Some(Region::Memory(memory)) => mappings.check(*id, memory, false).map(|()| Cow::Borrowed(memory.bytes())),
        Some(Region::Serialized(callbacks)) => callbacks.write(*id).map(Cow::Owned),
    };
    ids.iter().map(of_region).collect()
}

/// A session says of each earlier version once that it has failed, instead of saving. This is what
/// it says, and whether it is this rank's part that has failed.
fn save_anyway(
    session: &mut Session,
    layers: usize,
    number: u64,
    parts: &[Part<'_>],
    told: &mut Vec<(String, bool)>,
) -> Result<()> {
    while let Err(error) = session.save(number, parts) {
        let Some(version) = error.failed_version() else { return Err(error.into()) };
        let is_here = (1..=layers).all(|layer| matches!(session.has_reached(version, Reached::Here(layer)), Ok(true)));
        told.push((Failure::from(error).to_string(), !is_here));
    }
    Ok(())
}
