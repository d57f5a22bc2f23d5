//! The mapped memory of this process: the only reader of /proc/self/maps.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    ops::Range,
};

use linux_raw_sys::general::{procmap_query, procmap_query_flags as flags};
use rustix::{
    io::Errno,
    ioctl::{Opcode, Updater, ioctl, opcode},
};

use crate::Access;

/// A range of memory with the same properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Its addresses.
    pub range: Range<usize>,
    /// Whether it can be read.
    pub is_readable: bool,
    /// Whether it can be written.
    pub is_writable: bool,
    /// Neither shared nor backed by a file: only this process can change it, and only through this
    /// mapping.
    pub is_private_anonymous: bool,
}

/// The mappings of this process.
///
/// On Linux 6.11 and later, every query reads the present state. On older kernels the file is read
/// once, in [`now`](Self::now), and queries return the state of that moment.
#[derive(Debug)]
pub struct Maps(Way);

#[derive(Debug)]
enum Way {
    Query(File),
    List(Vec<Piece>),
}

impl Maps {
    /// The mappings as they are now.
    pub fn now() -> io::Result<Self> {
        let file = File::open("/proc/self/maps")?;
        match query(&file, 0) {
            Err(Errno::NOTTY) => Ok(Self(Way::List(read(BufReader::new(file))?))),
            Err(errno) => Err(errno.into()),
            Ok(_) => Ok(Self(Way::Query(file))),
        }
    }

    /// The mapped pieces of `range`, ascending, clipped to it.
    pub fn pieces(&self, range: &Range<usize>) -> io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut rest = range.clone();
        while let Some(piece) = self.first(&rest)? {
            rest.start = piece.range.end;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// The first mapped piece of `range`, clipped to it.
    fn first(&self, range: &Range<usize>) -> io::Result<Option<Piece>> {
        if range.is_empty() {
            return Ok(None);
        }
        let found = match &self.0 {
            Way::Query(file) => query(file, range.start)?,
            Way::List(list) => list.get(list.partition_point(|piece| piece.range.end <= range.start)).cloned(),
        };
        let cut = |piece: Piece| {
            let range = piece.range.start.max(range.start)..piece.range.end.min(range.end);
            (!range.is_empty()).then_some(Piece { range, ..piece })
        };
        Ok(found.and_then(cut))
    }

    /// Whether all of `range` is mapped, readable, private and anonymous.
    pub fn is_private_anonymous(&self, range: &Range<usize>) -> io::Result<bool> {
        self.all(range, |piece| piece.is_private_anonymous && piece.is_readable)
    }

    /// Whether all of `range` is mapped and allows this access.
    pub fn allows(&self, range: &Range<usize>, access: Access) -> io::Result<bool> {
        self.all(range, |piece| piece.is_readable && (piece.is_writable || access == Access::Read))
    }

    /// Whether all of `range` is mapped and every piece meets the condition.
    fn all(&self, range: &Range<usize>, is_wanted: impl Fn(&Piece) -> bool) -> io::Result<bool> {
        let mut rest = range.clone();
        while !rest.is_empty() {
            match self.first(&rest)? {
                Some(piece) if piece.range.start == rest.start && is_wanted(&piece) => rest.start = piece.range.end,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The piece that contains `at`, otherwise the next one after it.
fn query(maps: &File, at: usize) -> rustix::io::Result<Option<Piece>> {
    const QUERY: Opcode = opcode::read_write::<procmap_query>(b'f', 17);
    // SAFETY: all fields are numbers, and 0 is valid for them.
    let mut query: procmap_query = unsafe { std::mem::zeroed() };
    query.size = size_of::<procmap_query>() as u64;
    query.query_flags = flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
    query.query_addr = at as u64;
    // SAFETY: the structure of this request, without the optional pointers for names.
    match unsafe { ioctl(maps, Updater::<QUERY, _>::new(&mut query)) } {
        Err(Errno::NOENT) => return Ok(None),
        outcome => outcome?,
    }
    let has = |flag: flags| query.vma_flags & flag as u64 != 0;
    Ok(Some(Piece {
        range: query.vma_start as usize..query.vma_end as usize,
        is_readable: has(flags::PROCMAP_QUERY_VMA_READABLE),
        is_writable: has(flags::PROCMAP_QUERY_VMA_WRITABLE),
        is_private_anonymous: !has(flags::PROCMAP_QUERY_VMA_SHARED) && query.inode == 0,
    }))
}

fn read(maps: impl BufRead) -> io::Result<Vec<Piece>> {
    let unknown = |line: &str| io::Error::other(format!("cannot parse the line {line:?} of /proc/self/maps"));
    // File names may contain any bytes, but everything parsed here comes before them.
    let lines = maps.split(b'\n').map(|line| Ok(String::from_utf8_lossy(&line?).into_owned()));
    lines.map(|line: io::Result<String>| line.and_then(|line| piece(&line).ok_or_else(|| unknown(&line)))).collect()
}

/// Parses a line such as `7f01c0000000-7f01c0021000 rw-p 00000000 00:00 0`.
fn piece(line: &str) -> Option<Piece> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let rights = words.next()?;
    let inode = words.nth(2)?;
    Some(Piece {
        range,
        is_readable: rights.contains('r'),
        is_writable: rights.contains('w'),
        is_private_anonymous: rights.contains('p') && inode == "0",
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Pages, Private, page_bytes};

    fn listed() -> Maps {
        Maps(Way::List(read(BufReader::new(File::open("/proc/self/maps").unwrap())).unwrap()))
    }

    #[test]
    fn lines_are_understood() {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \n3000-4000 r--s 00001000 08:01 77 /a file\n\
            4000-5000 r-xp 0 08:01 78 /b\xff\xfe\n7000-8000 rw-p 0 00:00 0\n9000-a000 ---p 0 00:00 0\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let maps = Maps(Way::List(read(&text[..]).unwrap()));
        let found = maps.pieces(&(0x2000..0x3800)).unwrap();
        let first = Piece { range: 0x2000..0x3000, is_readable: true, is_writable: true, is_private_anonymous: true };
        let second = Piece { range: 0x3000..0x3800, is_writable: false, is_private_anonymous: false, ..first.clone() };
        assert_eq!(found, [first, second.clone()]);
        let third = Piece { range: 0x4000..0x5000, ..second };
        assert_eq!(maps.pieces(&(0x4000..0x7000)).unwrap(), [third]);
        assert_eq!(maps.pieces(&(0x5000..0x7000)).unwrap(), []);
        let gap = 0x4000..0x8000;
        assert!(maps.pieces(&gap).unwrap().len() == 2 && !maps.allows(&gap, Access::Read).unwrap());
        for (range, read, write) in
            [(0x1000..0x3000, true, true), (0x1000..0x3001, true, false), (0x4fff..0x5001, false, false)]
        {
            assert_eq!(maps.allows(&range, Access::Read).unwrap(), read, "{range:?}");
            assert_eq!(maps.allows(&range, Access::ReadWrite).unwrap(), write, "{range:?}");
        }
        assert!(maps.is_private_anonymous(&(0x1000..0x3000)).unwrap());
        assert!(!maps.is_private_anonymous(&(0x9000..0x9001)).unwrap(), "it cannot be read");
        for nonsense in ["rubbish\n", "1000 rw-p 0 00:00 0\n", "1-2 rw-p 0\n", "1-g rw-p 0 0:0 0\n", "\n"] {
            assert!(read(nonsense.as_bytes()).is_err(), "{nonsense:?}");
        }
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let Ok(queried @ Maps(Way::Query(_))) = Maps::now() else {
            return eprintln!("SKIPPED, as this kernel has no PROCMAP_QUERY");
        };
        let whole = 0..usize::MAX / 2;
        // Compare only mapped files: anonymous mappings change while tests run.
        let of_files = |maps: Maps| {
            let pieces = maps.pieces(&whole).unwrap().into_iter();
            pieces.filter(|piece| !piece.is_private_anonymous).collect::<Vec<_>>()
        };
        assert_eq!(of_files(queried), of_files(listed()));
    }

    /// Sixteen pages with these access rights: 1 none, 2 read, 3 read and write.
    fn patchwork(rights: &[u8; 16]) -> Private {
        let memory = Private::new(16 * page_bytes(), Pages::Small).unwrap();
        for (page, &rights) in rights.iter().enumerate() {
            let address = memory.mapping().address((page * page_bytes()) as u64).cast();
            let protection = match rights {
                1 => libc::PROT_NONE,
                2 => libc::PROT_READ,
                _ => libc::PROT_READ | libc::PROT_WRITE,
            };
            // SAFETY: a page of memory that nobody uses.
            assert_eq!(unsafe { libc::mprotect(address, page_bytes(), protection) }, 0);
        }
        memory
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn both_ways_agree_on_any_memory(
            rights in proptest::array::uniform16(1_u8..4), from in 0_usize..16, count in 0_usize..16, shift in 0_usize..4096,
        ) {
            let memory = patchwork(&rights);
            let start = memory.mapping().address(0).addr();
            let end = (from + count).min(16) * page_bytes();
            let range = (start + from * page_bytes() + shift).min(start + end)..start + end;
            let (now, listed) = (Maps::now().unwrap(), listed());
            prop_assert_eq!(now.pieces(&range).unwrap(), listed.pieces(&range).unwrap());
            let pages = &rights[(range.start - start) / page_bytes()..(range.end - start).div_ceil(page_bytes())];
            for maps in [now, listed] {
                prop_assert_eq!(maps.allows(&range, Access::Read).unwrap(), pages.iter().all(|&rights| rights >= 2));
                prop_assert_eq!(maps.allows(&range, Access::ReadWrite).unwrap(), pages.iter().all(|&rights| rights == 3));
            }
        }
    }
}
