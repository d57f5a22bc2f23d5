//! Versions that are kept elsewhere: a copy of one becomes a version again, to be read or to go on
//! from.

use std::{error::Error as StdError, fs::File};

use outcrop_format::{POOL_ROOT_BYTES, PoolContents, PoolRoot, PoolStructure, pool_check};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    Error, Options, Part, Pool, Result, Structure, View,
    medium::Mapped,
    part::{Loaded, is_growing, memory},
    pool::Opened,
    whole,
};

/// Where a version is that [`View::rebuilt`] has made, for messages.
const LOCATION: &str = "of a version that was copied";

impl View {
    /// What the version says of its structures. With the [bytes](Self::bytes) of each of them it is
    /// all that [`rebuilt`](Self::rebuilt) needs.
    pub fn described(&self) -> Result<Vec<u8>> {
        let contents = self.held.contents.encode().map_err(|error| Error::Misfit(error.to_string()))?;
        Ok([&self.held.root.encode()[..], &contents].concat())
    }

    /// A version that was copied elsewhere, in memory: what it [says](Self::described) of its
    /// structures, and `read`, which fills in the bytes of each by its name.
    pub fn rebuilt(
        described: &[u8],
        mut read: impl FnMut(&str, &mut [u8]) -> std::result::Result<(), Box<dyn StdError + Send + Sync>>,
    ) -> Result<Self> {
        let (root, contents) = decode(described)?;
        let failed = |source| Error::File { attempt: "make memory for", location: LOCATION.to_owned(), source };
        let file = memfd_create("outcrop-pool", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let medium = Mapped::open(&File::from(file), true).map_err(failed)?;
        let pool = Pool::on(medium, Options::versions(1))?;
        let mut parts = Vec::new();
        for it in &contents.structures {
            whole::check(&contents, it).map_err(|problem| wrong(format!("\"{}\": {problem}", it.name)))?;
            let mut part = Part::new(it.clone(), Opened::of(&pool))?;
            read(&it.name, part.write(0..it.bytes() as usize)).map_err(|source| Error::Copy {
                version: root.version,
                name: it.name.clone(),
                source,
            })?;
            parts.push(part);
        }
        let held = pool.0.state().rebuild(&mut parts.iter_mut().collect::<Vec<_>>(), root)?;
        Ok(Self { shared: pool.0, held })
    }
}

impl Pool {
    /// Has all structures be as in a version of another pool, or one that was
    /// [copied](View::rebuilt) elsewhere. What was not persisted is lost. All structures that are
    /// open are to be named; those that are not stay as they were.
    ///
    /// The blocks of the version are compared with their checksums first.
    pub fn restore_from(&self, version: &View, structures: &mut [&mut dyn Structure]) -> Result<()> {
        version.verify()?;
        let mut parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts().0).collect();
        // Not for longer: the version may be one of this pool, and is read.
        self.check_all(&*self.0.owned_state()?, &parts)?;
        let copied = parts.iter().map(|part| part.copy(version)).collect::<Result<Vec<_>>>()?;
        parts.iter_mut().zip(copied).for_each(|(part, copied)| part.become_copied(copied));
        self.0.state().judge.restored();
        Ok(())
    }
}

impl Part {
    /// What it is in a version of any pool. All of it counts as changed here.
    fn copy(&self, version: &View) -> Result<Loaded> {
        let found = version.find(&self.described.name)?;
        self.check_fits(found)?;
        let bytes = version.bytes(&found.name)?;
        let here = PoolStructure { block_bytes: self.described.block_bytes, ..found.clone() };
        let mut memory = memory(&here, is_growing(&here))?;
        memory[..bytes.len()].copy_from_slice(&bytes);
        let (shape, state) = (found.shape, found.state.clone());
        Ok(Loaded { shape, state, table: self.table.clone(), memory, is_shown: vec![false; here.blocks() as usize] })
    }
}

/// The root and the contents of a version, if these are what was written.
fn decode(described: &[u8]) -> Result<(PoolRoot, PoolContents)> {
    let damaged = |source| Error::Damaged { location: LOCATION.to_owned(), source };
    let parts = described.split_at_checked(POOL_ROOT_BYTES);
    let (root, contents) = parts.ok_or_else(|| wrong("its root is cut off".to_owned()))?;
    let root = PoolRoot::decode(root).map_err(damaged)?;
    if (contents.len() as u64, pool_check(contents)) != (root.contents_bytes, root.contents_check) {
        return Err(wrong("the list of its structures has changed".to_owned()));
    }
    Ok((root, PoolContents::decode(contents).map_err(damaged)?))
}

fn wrong(problem: String) -> Error {
    Error::Wrong { location: LOCATION.to_owned(), problem }
}
