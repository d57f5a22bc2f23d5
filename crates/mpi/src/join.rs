//! How the ranks of a communicator come together.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use outcrop_local::Meeting;
use outcrop_ranks::{Error as RanksError, Gathered, Rendezvous, rand_bytes};

use crate::{
    Error, Result,
    shim::{Comm, Shim},
};

/// How long a rank waits for the others to come to the same call. They may compute for long; one
/// that has ended is noticed at once.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// So much of a message is passed on to other ranks.
const WORDS_BYTES: usize = 1000;

/// Joins the ranks of a communicator: the one with this number (`MPI_Comm_c2f`), or all of the job.
/// All of them call this, on threads that may call MPI.
///
/// From then on they talk in `directory`, which all of them must see. Default: a directory in
/// memory if all are on one machine, and `shared` otherwise.
pub fn join(number: Option<i32>, directory: Option<&Path>, shared: Option<&Path>) -> Result<Gathered> {
    let shim = Shim::load()?;
    let comm = shim.open(number)?;
    // What all know: the number of the directory, and whether all are on one machine.
    let mine = rand_bytes().map_err(|source| RanksError::Files { path: "/dev/urandom".to_owned(), source })?;
    let word = [&mine[..8], &[u8::from(comm.local_count == comm.count)]].concat();
    let words = comm.gather(&word)?;
    let number = u64::from_le_bytes(words[0][..8].try_into().expect("eight bytes"));
    let is_local = words.iter().all(|word| word[8] == 1);

    let base = match (directory, shared) {
        (Some(directory), _) => Ok(directory.to_owned()),
        (None, _) if is_local => Ok(Meeting::usual_directory()),
        (None, Some(shared)) => Ok(shared.to_owned()),
        (None, None) => Err(Error::Mpi(
            "the ranks are on several machines; give a directory that all of them see: ranks = {mpi = ..., dir = ...}"
                .to_owned(),
        )),
    };
    let call = |base: PathBuf| Ok(Rendezvous::call(&base, comm.rank, comm.count, number)?);
    let called = base.and_then(call);
    let rendezvous = match (agree(&comm, &called), called) {
        (Ok(()), Ok(rendezvous)) => rendezvous,
        (outcome, Ok(rendezvous)) => {
            rendezvous.call_off();
            return Err(outcome.err().unwrap_or_else(|| Error::Mpi("the ranks do not agree".to_owned())));
        }
        (_, Err(error)) => return Err(error),
    };
    let seen = rendezvous.look().map_err(Error::from);
    if let Err(error) = agree(&comm, &seen) {
        rendezvous.call_off();
        return Err(seen.err().unwrap_or(error));
    }
    // If a rank dies now, MPI tells only some of the others. So each is seen to be alive, by its
    // lock, before any waits for all.
    let joined = rendezvous.join(PATIENCE).map_err(Error::from);
    agree(&comm, &joined)?;
    let joined = joined?;
    joined.all_have_joined();
    joined.meet()?;
    Ok(joined)
}

/// Whether all ranks have succeeded; else the error of the first that has not.
fn agree<T>(comm: &Comm<'_>, mine: &Result<T>) -> Result<()> {
    let mut word = mine.as_ref().err().map(|error| error.to_string().into_bytes()).unwrap_or_default();
    word.resize(WORDS_BYTES, 0);
    let words = comm.gather(&word)?;
    let failed = words.iter().zip(0..).find(|(word, _)| word[0] != 0);
    failed.map_or(Ok(()), |(word, rank)| {
        let length = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
        Err(Error::Mpi(format!("on rank {rank}: {}", String::from_utf8_lossy(&word[..length]))))
    })
}
