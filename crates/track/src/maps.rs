//! What kind of memory lies where in this process.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    ops::Range,
};

use linux_raw_sys::general::{procmap_query, procmap_query_flags as flags};
use rustix::{io::Errno, ioctl::opcode};

use crate::{control::control, ranges::shared};

/// A stretch of memory of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<usize>,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// Neither shared nor of a file: only this process can change it, and only here.
    pub(crate) is_private_anonymous: bool,
}

/// The pieces of `range` that are mapped, ascending and cut to it.
pub(crate) fn pieces(range: &Range<usize>) -> io::Result<Vec<Piece>> {
    let file = File::open("/proc/self/maps")?;
    match query(&file, range) {
        // Linux 6.11 has the query; before, all lines have to be read.
        Err(error) if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => read(BufReader::new(file), range),
        outcome => outcome,
    }
}

/// Whether all of `range` is mapped, readable, private and anonymous.
pub(crate) fn is_private_anonymous(range: &Range<usize>) -> io::Result<bool> {
    let pieces = pieces(range)?;
    let bytes: usize = pieces.iter().map(|piece| piece.range.len()).sum();
    Ok(bytes == range.len() && pieces.iter().all(|piece| piece.is_private_anonymous && piece.is_readable))
}

fn query(maps: &File, range: &Range<usize>) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    while at < range.end {
        // SAFETY: all fields are numbers, and 0 is valid for them.
        let mut query: procmap_query = unsafe { std::mem::zeroed() };
        query.size = size_of::<procmap_query>() as u64;
        query.query_flags = flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
        query.query_addr = at as u64;
        const QUERY: rustix::ioctl::Opcode = opcode::read_write::<procmap_query>(b'f', 17);
        // SAFETY: the structure of this request, without the pointers for names that it could have.
        match unsafe { control(maps, QUERY, &mut query) } {
            Err(Errno::NOENT) => break,
            outcome => outcome?,
        };
        let has = |flag: flags| query.vma_flags & flag as u64 != 0;
        let whole = query.vma_start as usize..query.vma_end as usize;
        at = whole.end;
        pieces.extend(shared(&whole, range).map(|range| Piece {
            range,
            is_readable: has(flags::PROCMAP_QUERY_VMA_READABLE),
            is_writable: has(flags::PROCMAP_QUERY_VMA_WRITABLE),
            is_private_anonymous: !has(flags::PROCMAP_QUERY_VMA_SHARED) && query.inode == 0,
        }));
    }
    Ok(pieces)
}

fn read(maps: impl BufRead, range: &Range<usize>) -> io::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for line in maps.lines() {
        let line = line?;
        let piece = piece(&line).ok_or_else(|| io::Error::other(format!("/proc/self/maps has the line {line:?}")))?;
        if piece.range.start >= range.end {
            break;
        }
        pieces.extend(shared(&piece.range, range).map(|range| Piece { range, ..piece }));
    }
    Ok(pieces)
}

/// A line such as `7f01c0000000-7f01c0021000 rw-p 00000000 00:00 0`.
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
    use super::*;

    #[test]
    fn lines_are_understood() {
        let text =
            "1000-3000 rw-p 00000000 00:00 0 \n3000-4000 r--s 00001000 08:01 77 /a file\n9000-a000 ---p 0 00:00 0\n";
        let found = read(text.as_bytes(), &(0x2000..0x3800)).unwrap();
        let first = Piece { range: 0x2000..0x3000, is_readable: true, is_writable: true, is_private_anonymous: true };
        let second = Piece { range: 0x3000..0x3800, is_writable: false, is_private_anonymous: false, ..first.clone() };
        assert_eq!(found, [first, second]);
        assert!(read("rubbish\n".as_bytes(), &(0..1)).is_err());
    }

    #[test]
    fn both_ways_of_asking_agree() {
        let whole = 0..usize::MAX / 2;
        let Ok(queried) = query(&File::open("/proc/self/maps").unwrap(), &whole) else {
            return eprintln!("SKIPPED, as this kernel has no PROCMAP_QUERY");
        };
        let read = read(BufReader::new(File::open("/proc/self/maps").unwrap()), &whole).unwrap();
        // The program's own files; what is anonymous changes while tests run.
        let of_files = |pieces: Vec<Piece>| pieces.into_iter().filter(|p| !p.is_private_anonymous).collect::<Vec<_>>();
        assert_eq!(of_files(queried), of_files(read));
    }
}
