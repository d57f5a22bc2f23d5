//! What ranks have said in an exchange. `Ranks::gather` keeps exchanges of one topic in step, also
//! when a rank has waited in vain and tries again; topics name the session and the run, so that
//! what was said before is not about what comes after.

use outcrop_format::Answer;

use crate::{Error, Result, error::apart};

/// Reads what each rank has said.
pub(crate) fn decode_all<T>(
    messages: &[Vec<u8>],
    decode: impl Fn(&[u8]) -> outcrop_format::Result<T>,
) -> Result<Vec<T>> {
    let wrong = |(rank, error)| -> Error { apart(format!("rank {rank} says something that makes no sense: {error}")) };
    let decoded =
        messages.iter().zip(0u32..).map(|(message, rank)| decode(message).map_err(|error| wrong((rank, error))));
    decoded.collect()
}

/// That every rank could do its part.
pub(crate) fn all_well(answers: &[Vec<u8>], what: impl Fn(u32) -> String) -> Result<()> {
    for (Answer(answer), rank) in decode_all(answers, Answer::decode)?.into_iter().zip(0u32..) {
        answer.map_err(|reason| apart(format!("{}: {reason}", what(rank))))?;
    }
    Ok(())
}
