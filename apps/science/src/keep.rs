//! The ways of keeping a state, and the structures that are kept.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    time::Duration,
};

use outcrop_pool::{Array, Block, Emulator, Nvm, Options, Pool, Structure, Versioned};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{
    Error, Result, Traffic,
    checkpoint::{Checkpoint, Part},
};

/// A way of keeping the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// In memory only: nothing survives.
    Memory,
    /// As memory, as slow as non-volatile memory (emulated): nothing survives here.
    Nvm,
    /// Checkpoint files: all of the state, fsync, rename.
    File,
    /// A pool: versions of the structures, of which what has changed is written.
    Pool,
    /// A pool whose medium is as slow as non-volatile memory (emulated).
    PoolNvm,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Nvm, Self::File, Self::Pool, Self::PoolNvm];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Nvm => "nvm",
            Self::File => "file",
            Self::Pool => "pool",
            Self::PoolNvm => "pool-nvm",
        }
    }

    /// The usual ending of files, if something survives.
    pub fn ending(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Nvm => None,
            Self::File => Some("checkpoint"),
            Self::Pool | Self::PoolNvm => Some("pool"),
        }
    }
}

/// What an array can have in every way.
pub trait Element: Versioned + FromBytes + IntoBytes + Immutable {}

impl<T: Versioned + FromBytes + IntoBytes + Immutable> Element for T {}

/// Provides structures, and keeps them.
pub struct Keeper {
    path: PathBuf,
    medium: Medium,
}

enum Medium {
    Memory,
    Nvm(Emulator),
    File(Checkpoint),
    Pool(Pool),
}

impl Keeper {
    /// Opens what is there, or something new. `mtbf` is the mean time between failures, for
    /// [`persist_if_worth_it`](Self::persist_if_worth_it).
    pub fn open(way: Way, path: &Path, mtbf: Duration) -> Result<Self> {
        let options = Options::versions(2).mtbf(mtbf);
        let medium = match way {
            Way::Memory => Medium::Memory,
            Way::Nvm => Medium::Nvm(Emulator::new(Nvm::paper())),
            Way::File => Medium::File(Checkpoint::open(path)?),
            Way::Pool => Medium::Pool(Pool::open(path, options)?),
            Way::PoolNvm => Medium::Pool(Pool::open(path, options.emulate(Nvm::paper()))?),
        };
        Ok(Self { path: path.to_owned(), medium })
    }

    /// The file of the state.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pool, if it is one.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        match &self.medium {
            Medium::Pool(pool) => Some(pool),
            _ => None,
        }
    }

    /// What a checkpoint file has of a part.
    pub(crate) fn take<T: Element>(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        match &mut self.medium {
            Medium::File(file) => file.take(name, T::LAYOUT),
            _ => Ok(None),
        }
    }

    /// An array as it was kept, or zeros.
    pub fn array<T: Element>(&mut self, name: &'static str, len: usize) -> Result<Field<T>> {
        if let Some(pool) = self.pool() {
            return Ok(Field::Pool(Box::new(pool.array(name, len, Block::default())?)));
        }
        let mut elements = vec![T::new_zeroed(); len];
        if let Some(bytes) = self.take::<T>(name)? {
            let room = elements.as_mut_bytes();
            if room.len() != bytes.len() {
                let problem = format!("\"{name}\" has another length than this program's");
                return Err(Error::Checkpoint { path: self.path.clone(), problem });
            }
            room.copy_from_slice(&bytes);
        }
        Ok(Field::Plain { name, elements })
    }

    /// Keeps everything. When this returns, it survives a crash, if the way is one that survives.
    /// Gives the number of bytes that were written.
    pub fn persist(&mut self, kept: &mut [&mut dyn Keep]) -> Result<u64> {
        match &self.medium {
            Medium::Memory | Medium::Nvm(_) => Ok(0),
            Medium::File(file) => file.write(&kept.iter().flat_map(|it| it.parts()).collect::<Vec<_>>()),
            Medium::Pool(pool) => {
                let mut structures: Vec<_> = kept.iter_mut().filter_map(|it| it.structure()).collect();
                Ok(pool.persist_counted(&mut structures)?.bytes)
            }
        }
    }

    /// Keeps everything if the work that a failure would cost is worth it. Only pools can tell.
    pub fn persist_if_worth_it(&mut self, kept: &mut [&mut dyn Keep]) -> Result<()> {
        if let Medium::Pool(pool) = &self.medium {
            let mut structures: Vec<_> = kept.iter_mut().filter_map(|it| it.structure()).collect();
            pool.persist_if_worth_it(&mut structures)?;
        }
        Ok(())
    }

    /// Takes the time that an iteration would take more if all of it were in non-volatile memory.
    pub(crate) fn charge(&mut self, traffic: &Traffic) {
        if let Medium::Nvm(nvm) = &mut self.medium {
            nvm.read(traffic.read_bytes, traffic.reads);
            nvm.write(traffic.written_bytes, traffic.writes);
        }
    }
}

/// A structure that can be kept.
pub trait Keep {
    /// Its parts in a checkpoint file.
    fn parts(&self) -> Vec<Part<'_>>;

    /// What it is in a pool.
    fn structure(&mut self) -> Option<&mut dyn Structure>;
}

/// An array: a slice to readers.
pub enum Field<T> {
    /// In plain memory.
    Plain {
        /// Its name in a checkpoint file.
        name: &'static str,
        /// Its elements.
        elements: Vec<T>,
    },
    /// In a pool.
    Pool(Box<Array<T>>),
}

impl<T: Element> Field<T> {
    /// All elements, to be changed.
    pub fn all(&mut self) -> &mut [T] {
        self.from(0)
    }

    /// The elements from `first`, to be changed; a pool writes only what is in here.
    pub fn from(&mut self, first: usize) -> &mut [T] {
        match self {
            Self::Plain { elements, .. } => &mut elements[first..],
            Self::Pool(array) => &mut array[first..],
        }
    }
}

impl<T: Element> Deref for Field<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Plain { elements, .. } => elements,
            Self::Pool(array) => array,
        }
    }
}

impl<T: Element> Keep for Field<T> {
    fn parts(&self) -> Vec<Part<'_>> {
        match self {
            Self::Plain { name, elements } => vec![Part { name, layout: T::LAYOUT, bytes: elements.as_bytes() }],
            Self::Pool(_) => Vec::new(),
        }
    }

    fn structure(&mut self) -> Option<&mut dyn Structure> {
        match self {
            Self::Plain { .. } => None,
            Self::Pool(array) => Some(&mut **array),
        }
    }
}
