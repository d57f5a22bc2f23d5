//! How ranks that can already talk in another way, such as MPI, come together in a new directory.
//!
//! Four steps: rank 0 makes a directory ([`Rendezvous::call`]), all look for it
//! ([`Rendezvous::look`]), all join ([`Rendezvous::join`]), and all meet there
//! ([`Gathered::meet`]). Before the second and the third, all ranks must know that all have done
//! the one before. So a rank that does not see the directory is noticed at once. If they know it
//! before the fourth, too, and say so ([`Gathered::all_have_joined`]), so is one that dies
//! meanwhile.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use crate::{Error, Ranks, Result, SharedDirectory, directory::APPEARANCE};

/// What the directories are called in which ranks talk.
const DIRECTORY: &str = ".outcrop-ranks-";

/// A directory in which nobody takes part is left over once it is so old. A younger one may be that
/// of a run which begins.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// Ranks that are about to come together.
#[derive(Debug)]
pub struct Rendezvous {
    directory: PathBuf,
    rank: u32,
    count: u32,
}

/// Ranks that have come together in a directory of their own. It is removed with the last of them.
#[derive(Debug)]
pub struct Gathered {
    /// `None` once this rank has left.
    shared: Option<SharedDirectory>,
    directory: PathBuf,
}

impl Rendezvous {
    /// The first step, on all ranks with the same number: rank 0 makes a directory in `base`.
    pub fn call(base: &Path, rank: u32, count: u32, number: u64) -> Result<Self> {
        let directory = base.join(format!("{DIRECTORY}{number:016x}"));
        let make = || {
            fs::create_dir_all(base)?;
            if rank == 0 {
                remove_left_over(base);
                fs::create_dir(&directory)?;
            }
            Ok(())
        };
        make().map_err(|source: io::Error| Error::Files { path: directory.display().to_string(), source })?;
        Ok(Self { directory, rank, count })
    }

    /// The second, when rank 0 has made it: whether this one sees it.
    pub fn look(&self) -> Result<()> {
        // Network file systems remember for a while what was not there.
        let pause = Duration::from_millis(50);
        for _ in 0..APPEARANCE.as_millis() / pause.as_millis() {
            if self.directory.is_dir() {
                return Ok(());
            }
            thread::sleep(pause);
        }
        let base = self.directory.parent().unwrap_or(&self.directory).display();
        Err(Error::apart(format!(
            "rank {} does not see what rank 0 has made in {base}; give a directory that all ranks share",
            self.rank
        )))
    }

    /// The third, when all see it. `patience` is how long a rank waits for others later.
    pub fn join(self, patience: Duration) -> Result<Gathered> {
        let shared = Some(SharedDirectory::begin(&self.directory, self.rank, self.count, patience)?);
        Ok(Gathered { shared, directory: self.directory })
    }

    /// Instead of what would have come next.
    pub fn call_off(self) {
        if self.rank == 0 {
            remove(&self.directory);
        }
    }
}

impl Gathered {
    /// All have done the third, as this rank knows. So if one ends before it has met the others,
    /// they notice.
    pub fn all_have_joined(&self) {
        self.shared().all_have_begun();
    }

    /// The fourth: waits until all have joined.
    pub fn meet(&self) -> Result<()> {
        self.shared().meet()
    }

    fn shared(&self) -> &SharedDirectory {
        self.shared.as_ref().expect("only dropping it takes it")
    }
}

impl Ranks for Gathered {
    fn rank(&self) -> u32 {
        self.shared().rank()
    }

    fn count(&self) -> u32 {
        self.shared().count()
    }

    fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared().gather(topic, mine)
    }

    fn announce(&self, message: &[u8]) -> Result<()> {
        self.shared().announce(message)
    }

    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>> {
        self.shared().heard()
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        let rank = self.shared.take().map(|shared| shared.rank());
        // The last one: others may still read there what this one has said.
        if is_deserted(&self.directory) {
            remove(&self.directory);
        }
        // A run that was killed just before this one was too young when this one began.
        if let Some(base) = self.directory.parent().filter(|_| rank == Some(0)) {
            remove_left_over(base);
        }
    }
}

fn remove(directory: &Path) {
    // What stays is removed by a later run.
    let _ = fs::remove_dir_all(directory);
}

/// Removes directories of runs that were killed.
fn remove_left_over(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_old = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > LEFT_OVER));
        if is_old && entry.file_name().to_string_lossy().starts_with(DIRECTORY) && is_deserted(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Whether no rank takes part in it. Where that cannot be told, somebody may.
fn is_deserted(directory: &Path) -> bool {
    SharedDirectory::is_deserted(directory).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_in_which_somebody_takes_part_are_not_left_over() {
        let base = tempfile::tempdir().unwrap();
        let (alive, dead) = (base.path().join(".outcrop-ranks-1"), base.path().join(".outcrop-ranks-2"));
        let taking_part = SharedDirectory::open(&alive, 0, 1).unwrap();
        drop(SharedDirectory::open(&dead, 0, 1).unwrap());
        assert!(!is_deserted(&alive) && is_deserted(&dead));
        remove_left_over(base.path());
        assert!(alive.exists() && dead.exists(), "both are young");
        drop(taking_part);
        assert!(is_deserted(&alive));
    }

    /// Two ranks that meet.
    fn together(ways: Vec<Rendezvous>) -> (Gathered, Gathered) {
        let joined = ways.into_iter().map(|way| way.join(Duration::from_secs(60)).unwrap()).collect::<Vec<_>>();
        let meet = |joined: Gathered| {
            thread::spawn(|| {
                joined.all_have_joined();
                joined.meet().unwrap();
                joined
            })
        };
        let mut met: Vec<_> = joined.into_iter().map(meet).collect();
        let second = met.pop().unwrap().join().unwrap();
        (met.pop().unwrap().join().unwrap(), second)
    }

    #[test]
    fn whoever_ends_before_all_have_met_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let join = |rank| Rendezvous::call(base.path(), rank, 3, 7).unwrap().join(Duration::from_secs(600)).unwrap();
        let mut joined: Vec<_> = (0..3).map(join).collect();
        drop(joined.pop());
        let meet = |joined: Gathered| {
            joined.all_have_joined();
            thread::spawn(move || joined.meet().unwrap_err().to_string())
        };
        let errors: Vec<_> = joined.into_iter().map(meet).collect::<Vec<_>>();
        for error in errors.into_iter().map(|thread| thread.join().unwrap()) {
            assert!(error.contains(" is gone, "), "{error}");
        }
    }

    #[test]
    fn the_last_to_leave_removes_the_directory() {
        let base = tempfile::tempdir().unwrap();
        let ways: Vec<_> = (0..2).map(|rank| Rendezvous::call(base.path(), rank, 2, 7).unwrap()).collect();
        let directory = ways[0].directory.clone();
        let (first, second) = together(ways);
        drop(first);
        assert!(directory.is_dir());
        drop(second);
        assert!(!directory.exists());
    }
}
