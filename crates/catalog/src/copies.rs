//! Reads stored blocks without decoding them, from any copy that is undamaged. Each block is
//! verified by its hash.

use std::{collections::BTreeMap, sync::Arc};

use outcrop_format::{HashKind, Index, ManifestPack, PackHeader, PackId, Place};
use outcrop_layers::files::Files;

use crate::{
    Error, Result,
    fetch::{Fetcher, Problem, Wanted},
    open::{OpenFiles, is_shortage},
    pack::{Pack, file_name},
};

/// The packs of one session in several copies that should be equal: in host memory and in
/// directories. The fastest copy comes first.
///
/// Used to make new packs from old ones, so it returns only blocks whose hashes match.
pub struct Copies {
    session: String,
    places: Vec<Copy>,
    fetcher: Fetcher,
}

/// One copy: the packs that have been opened there, or why they could not be opened.
struct Copy {
    open: Arc<OpenFiles>,
    packs: BTreeMap<PackId, std::result::Result<Arc<Pack>, String>>,
}

impl Copies {
    /// The packs of `session` in these copies.
    pub fn new(session: &str, places: Vec<Arc<dyn Files>>) -> Self {
        let place = |files| Copy { open: OpenFiles::new(files), packs: BTreeMap::new() };
        let places = places.into_iter().map(place).collect();
        Self { session: session.to_owned(), places, fetcher: Fetcher::default() }
    }

    /// The header and the index of a pack, from the first copy that matches the manifest.
    pub fn index(&self, named: &ManifestPack) -> Result<(PackHeader, Index)> {
        let mut problems = Vec::new();
        for place in &self.places {
            let opened = Pack::open(&place.open, &self.session, named.id, true);
            match opened.and_then(|pack| pack.check_named(named).map(|()| pack)) {
                Ok(pack) => match pack.into_index() {
                    Some(found) => return Ok(found),
                    None => continue,
                },
                Err(error) if error.is_shortage() => return Err(error),
                Err(error) => problems.push(error.to_string()),
            }
        }
        Err(self.nowhere(named.id, &problems))
    }

    /// Fills `into` with the stored bytes of these blocks, one after the other. Each block comes
    /// from the first copy in which its hash matches.
    pub fn read(&mut self, blocks: &[Place], hash_kind: HashKind, into: &mut [u8]) -> Result<()> {
        let mut starts = Vec::with_capacity(blocks.len());
        let mut end = 0;
        for block in blocks {
            starts.push(end);
            end += block.stored.bytes as usize;
        }
        let mut missing: Vec<usize> = (0..blocks.len()).collect();
        let mut problems = Vec::new();
        for place in &mut self.places {
            if missing.is_empty() {
                break;
            }
            let mut packs = Vec::with_capacity(missing.len());
            for tag in missing.drain(..) {
                packs.push((tag, place.pack(&self.session, blocks[tag].pack)?));
            }
            let mut wanted = Vec::with_capacity(packs.len());
            for (tag, pack) in &packs {
                match pack {
                    Ok(pack) => wanted.push(Wanted { tag: *tag, pack, place: blocks[*tag], hash_kind }),
                    Err(problem) => {
                        missing.push(*tag);
                        problems.push(problem.clone());
                    }
                }
            }
            let mut failed = Vec::new();
            self.fetcher.fetch(&mut wanted, |tag, outcome| match outcome {
                Ok(fetched) => into[starts[tag]..][..fetched.stored.len()].copy_from_slice(fetched.stored),
                Err(problem) => failed.push((tag, problem)),
            });
            for (tag, problem) in failed {
                missing.push(tag);
                let range = blocks[tag].range();
                let path = format!("{}/{}", place.open.files.location(), file_name(&self.session, blocks[tag].pack));
                let problem = match problem {
                    Problem::Unread(source) if is_shortage(&source) => {
                        return Err(Error::Storage { attempt: "read", path, source });
                    }
                    problem => problem,
                };
                problems.push(format!("{path}, bytes {} to {}: {problem}", range.start, range.end));
            }
        }
        match missing.first() {
            None => Ok(()),
            Some(&tag) => Err(self.nowhere(blocks[tag].pack, &problems)),
        }
    }

    fn nowhere(&self, id: PackId, problems: &[String]) -> Error {
        let mut problems = problems.to_vec();
        problems.dedup();
        Error::Damaged {
            path: file_name(&self.session, id),
            reason: format!("no copy of it is undamaged: {}", problems.join("; ")),
        }
    }
}

impl Copy {
    /// A pack of this copy, or why it cannot be used. It is opened at most once.
    fn pack(&mut self, session: &str, id: PackId) -> Result<std::result::Result<Arc<Pack>, String>> {
        if let Some(known) = self.packs.get(&id) {
            return Ok(known.clone());
        }
        let opened = match Pack::open(&self.open, session, id, false) {
            Err(error) if error.is_shortage() => return Err(error),
            opened => opened.map(Arc::new).map_err(|error| error.to_string()),
        };
        self.packs.insert(id, opened.clone());
        Ok(opened)
    }
}
