//! An array in redb, a database. It takes long to compile, so it is a feature.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::rivals::{REDB, Way};

/// Blocks of the same length as the pool's, by number.
const BLOCKS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("state");
const BLOCK: usize = 4096;

pub(super) struct Redb {
    path: PathBuf,
    database: Option<Database>,
    state: Vec<f64>,
}

impl Redb {
    pub(super) fn new(inside: &Path, len: usize) -> Result<Self> {
        let path = inside.join("bench.redb");
        let database = Some(Database::create(&path)?);
        let mut redb = Self { path, database, state: vec![1.0; len] };
        redb.change(len, 1.0)?;
        Ok(redb)
    }

    fn database(&self) -> Result<&Database> {
        self.database.as_ref().context("the database is open")
    }
}

impl Way for Redb {
    fn name(&self) -> &'static str {
        REDB
    }

    fn change(&mut self, count: usize, value: f64) -> Result<(f64, Option<u64>)> {
        let start = Instant::now();
        self.state[..count].fill(value);
        let writing = self.database()?.begin_write()?;
        let mut table = writing.open_table(BLOCKS)?;
        for (number, block) in self.state.chunks(BLOCK).take(count.div_ceil(BLOCK)).enumerate() {
            table.insert(number as u64, zerocopy::IntoBytes::as_bytes(block))?;
        }
        drop(table);
        writing.commit()?;
        Ok((start.elapsed().as_secs_f64(), None))
    }

    fn restore(&mut self) -> Result<Option<f64>> {
        self.database = None;
        let start = Instant::now();
        let database = Database::open(&self.path)?;
        let reading = database.begin_read()?;
        let table = reading.open_table(BLOCKS)?;
        let mut state: Vec<f64> = Vec::with_capacity(self.state.len());
        for entry in table.iter()? {
            let block = entry?.1;
            state.extend(block.value().chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().unwrap_or_default())));
        }
        ensure!(state == self.state, "redb has given something else back");
        let seconds = start.elapsed().as_secs_f64();
        drop((table, reading));
        self.database = Some(database);
        Ok(Some(seconds))
    }
}
