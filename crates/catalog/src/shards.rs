//! Verifies the shards that a directory keeps for other nodes.

use std::io;

use outcrop_format::{
    SHARD_HEADER_BYTES, SHARDS_DIR, ShardHeader, ShardedFile, parse_draft_name, parse_rank_name, parse_shard_name,
};
use outcrop_layers::files::{File, Files};

use crate::{
    Verified,
    pack::is_damage,
    verify::{FindingKind, plain},
};

/// Verifies every byte of the shards of all sessions, or of one.
pub(crate) fn verify_shards(files: &dyn Files, session: Option<&str>, verified: &mut Verified) {
    for name in
        names(files, SHARDS_DIR, verified).into_iter().filter(|name| session.is_none_or(|session| name == session))
    {
        let dir = format!("{SHARDS_DIR}/{name}");
        for rank in names(files, &dir, verified) {
            let dir = format!("{dir}/{rank}");
            let Some(owner) = parse_rank_name(&rank) else {
                verified.findings.push(plain(FindingKind::Foreign, dir, "it does not belong to a store"));
                continue;
            };
            let mut shards = names(files, &dir, verified);
            shards.sort_unstable();
            for shard in shards {
                let path = format!("{dir}/{shard}");
                match parse_shard_name(&shard) {
                    Some((_, index)) => verify_one(files, path, (owner, index), verified),
                    None if parse_draft_name(&shard).is_some() => {
                        verified.findings.push(plain(FindingKind::Garbage, path, "it was not finished"));
                    }
                    None => verified.findings.push(plain(FindingKind::Foreign, path, "it does not belong to a store")),
                }
            }
        }
    }
}

/// The names in a directory; none if it does not exist.
fn names(files: &dyn Files, dir: &str, verified: &mut Verified) -> Vec<String> {
    match files.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            verified.findings.push(plain(FindingKind::Unread, dir.to_owned(), &error.to_string()));
            Vec::new()
        }
    }
}

fn verify_one(files: &dyn Files, path: String, (owner, index): (u32, u16), verified: &mut Verified) {
    match files.open(&path).and_then(|file| check(&*file, owner, index)) {
        Ok(bytes) => {
            verified.shards += 1;
            verified.bytes += bytes;
        }
        // A running program has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let kind = if is_damage(&error) { FindingKind::Damage } else { FindingKind::Unread };
            verified.findings.push(plain(kind, path, &format!("{error}; it counts as lost")));
        }
    }
}

/// Compares everything in a shard with its checksums. Returns its length.
fn check(file: &dyn File, owner: u32, index: u16) -> io::Result<u64> {
    let damaged = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let mut header = [0; SHARD_HEADER_BYTES];
    file.read_at(0, &mut header)?;
    let ShardHeader { file: whole, index: found } =
        ShardHeader::decode(&header).map_err(|error| damaged(error.to_string()))?;
    if (whole.owner, found) != (owner, index) {
        return Err(damaged(format!("its header says that it is shard {found} of rank {}", whole.owner)));
    }
    let (bytes, expected) = (file.bytes()?, whole.shard_bytes());
    if bytes != expected {
        return Err(damaged(format!("it is {bytes} bytes long, and should be {expected}")));
    }
    for stripe in 0..whole.stripes() {
        check_chunk(file, &whole, index, stripe, &damaged)?;
    }
    Ok(bytes)
}

fn check_chunk(
    file: &dyn File,
    whole: &ShardedFile,
    index: u16,
    stripe: u64,
    damaged: &dyn Fn(String) -> io::Error,
) -> io::Result<()> {
    let mut chunk = vec![0; whole.chunk_bytes(stripe) + 16];
    file.read_at(whole.chunk_at(stripe), &mut chunk)?;
    let (content, check) = chunk.split_at(chunk.len() - 16);
    match whole.chunk_check(stripe, index, content).to_le_bytes() == check {
        true => Ok(()),
        false => Err(damaged(format!("chunk {stripe} is not what was written"))),
    }
}
