//! The mark in a rank's directory, the file `runs`: which runs have used the directory.
//!
//! If only some ranks have a version, a directory may be missing, and the version may become
//! complete again. Or a rank took part in the run and never had the version. The mark tells these
//! cases apart.

use std::collections::BTreeSet;

use zerocopy::{IntoBytes, little_endian::U32};

use super::{CHECK_BYTES, Head, Kind, begin, body, end, push_runs, take_runs};
use crate::{
    RunId,
    error::{Error, Result, Structure},
};

/// The largest number of runs in one mark.
pub const MARK_RUNS_MAX: usize = 65_536;

/// The longest mark.
pub const MARK_BYTES_MAX: usize = size_of::<Head>() + 4 + MARK_RUNS_MAX * 16 + CHECK_BYTES;

/// The runs that have used a rank's directory, as far as they matter: the last one, and those of
/// which some rank still has a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(pub BTreeSet<RunId>);

impl Mark {
    /// Encodes it.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let count = self.0.len();
        if count > MARK_RUNS_MAX {
            let problem = format!("{count} runs; at most {MARK_RUNS_MAX} are possible");
            return Err(Error::unfit(Structure::Message, problem));
        }
        let mut bytes = begin(Kind::Mark);
        bytes.extend_from_slice(U32::from(count as u32).as_bytes());
        push_runs(&mut bytes, &self.0);
        Ok(end(bytes))
    }

    /// Decodes a mark, which is a whole file.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Mark, bytes)?;
        let count = cursor.value::<U32>()?.get();
        if count as usize > MARK_RUNS_MAX {
            return Err(cursor.wrong(format!("{count} runs; at most {MARK_RUNS_MAX} are possible")));
        }
        let runs = take_runs(&mut cursor, count)?;
        cursor.end()?;
        Ok(Self(runs))
    }
}
