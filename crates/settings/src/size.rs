//! Sizes: numbers of bytes, texts such as "2 GiB", and shares of free space.

use std::{fmt, io};

use outcrop_error::{Error, ErrorKind, Result};

/// How a size is written.
pub(crate) const HINT: &str =
    "write a size such as \"2 GiB\" or \"500 MB\", or a number of bytes, above 0 and below 16 EiB";

/// A number of bytes, a text such as `"2 GiB"`, or, as the limit of a directory, a share of the
/// free space there, such as `"90%"`.
///
/// An invalid text is an error when the tape or store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size(Written);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Written {
    Bytes(u64),
    Percent(u8),
    Unclear(String),
}

impl Size {
    /// The number of bytes.
    pub fn bytes(&self) -> Result<u64> {
        match self.0 {
            Written::Bytes(bytes) if bytes > 0 => Ok(bytes),
            _ => Err(self.wrong()),
        }
    }

    /// The number of bytes, of which a share refers to `free_bytes`.
    pub fn bytes_of(&self, free_bytes: impl FnOnce() -> io::Result<u64>) -> Result<u64> {
        match self.0 {
            Written::Percent(percent) => {
                let free = free_bytes()
                    .map_err(|cause| Error::caused(ErrorKind::Storage, "cannot find out how much is free", cause))?;
                Ok((free / 100 * u64::from(percent)).max(1))
            }
            _ => self.bytes(),
        }
    }

    /// Whether it is a valid size.
    pub(crate) fn is_clear(&self) -> bool {
        !matches!(self.0, Written::Unclear(_) | Written::Bytes(0))
    }

    fn wrong(&self) -> Error {
        Error::new(ErrorKind::Usage, format!("{self} is not a size; {HINT}"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Written::Bytes(bytes) => write!(f, "{bytes}"),
            Written::Percent(percent) => write!(f, "\"{percent}%\""),
            Written::Unclear(text) => write!(f, "{text:?}"),
        }
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self(Written::Bytes(bytes))
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        let plain = || text.trim().parse().ok();
        // What is too large for a number becomes the largest one there.
        let sized =
            || text.parse().map(|size: bytesize::ByteSize| size.as_u64()).ok().filter(|bytes| *bytes < u64::MAX);
        Self(match percent {
            Some(percent @ 1..=100) => Written::Percent(percent),
            _ => plain().or_else(sized).map_or_else(|| Written::Unclear(text.to_owned()), Written::Bytes),
        })
    }
}

impl From<String> for Size {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_of_bytes_however_it_is_written() {
        assert_eq!(Size::from("2 GiB"), Size::from(2 << 30));
        assert_eq!(Size::from("500 MB").bytes().unwrap(), 500_000_000);
        assert_eq!(Size::from("50%").bytes_of(|| Ok(1000)).unwrap(), 500);
        assert_eq!(Size::from("7").bytes_of(|| unreachable!()).unwrap(), 7);
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in
            ["2 gigs", "0", "", "90%", "-1", "101%", "99999999999999999999 GiB", "16777216 TiB", "18446744073709551616"]
        {
            let error = Size::from(text).bytes().unwrap_err();
            assert!(error.to_string().contains("is not a size; write"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        assert!(Size::from("5%").bytes_of(|| Err(io::Error::from_raw_os_error(13))).is_err());
    }
}
