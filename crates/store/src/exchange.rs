//! The results of exchanges between ranks. `Ranks::gather` keeps the exchanges of one topic in
//! step, even when a rank times out and tries again. A topic contains the session and the run, so
//! contributions to earlier ones are never confused with later ones.

use outcrop_format::Answer;

use crate::{Error, Result, error::apart};

/// Decodes the contribution of each rank.
pub(crate) fn decode_all<T>(
    messages: &[Vec<u8>],
    decode: impl Fn(&[u8]) -> outcrop_format::Result<T>,
) -> Result<Vec<T>> {
    let wrong = |(rank, error)| -> Error { apart(format!("the message of rank {rank} cannot be decoded: {error}")) };
    let decoded =
        messages.iter().zip(0u32..).map(|(message, rank)| decode(message).map_err(|error| wrong((rank, error))));
    decoded.collect()
}

/// Fails if any rank has reported a failure.
pub(crate) fn all_well(answers: &[Vec<u8>], what: impl Fn(u32) -> String) -> Result<()> {
    for (Answer(answer), rank) in decode_all(answers, Answer::decode)?.into_iter().zip(0u32..) {
        answer.map_err(|reason| apart(format!("{}: {reason}", what(rank))))?;
    }
    Ok(())
}
