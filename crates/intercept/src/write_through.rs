//! A cache that caches nothing: every write goes to the file at once. For comparison, and for tests
//! without a daemon.

use std::{
    fs::{File, FileTimes},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use outcrop_node::{Cache, Cached};

/// Writes through to the file.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteThrough;

impl Cache for WriteThrough {
    fn open(&self, file: File, _path: &Path) -> io::Result<Arc<dyn Cached>> {
        Ok(Arc::new(Through(file)))
    }
}

struct Through(File);

impl Cached for Through {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        read_fully(&self.0, offset, into)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> io::Result<()> {
        let times = accessed.into_iter().fold(FileTimes::new(), FileTimes::set_accessed);
        self.0.set_times(modified.into_iter().fold(times, FileTimes::set_modified))
    }

    fn drain(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn is_clean(&self) -> bool {
        true
    }
}

/// Reads until `into` is full or the file ends.
pub(crate) fn read_fully(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
