//! The ways of interception, and which of them this machine allows.

use std::{fmt, str::FromStr};

use outcrop_error::{Error, ErrorKind, Result};

/// A way to intercept the calls of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// A mount over the directory: all processes of the node, all kinds of programs.
    Fuse,
    /// The kernel asks us about calls that name paths: no privileges, all kinds of programs.
    Seccomp,
    /// A library that is loaded before others: programs that are linked dynamically.
    Preload,
}

impl Via {
    /// All ways, best first.
    pub const ALL: [Self; 3] = [Self::Fuse, Self::Seccomp, Self::Preload];

    /// The first way that works, given what speaks against each.
    pub fn choose(mut obstacle: impl FnMut(Self) -> Option<String>) -> Result<Self> {
        let mut reasons = Vec::new();
        for via in Self::ALL {
            match obstacle(via) {
                None => return Ok(via),
                Some(reason) => reasons.push(format!("{via}: {reason}")),
            }
        }
        let message = format!("this machine allows no way to intercept a program ({})", reasons.join("; "));
        Err(Error::new(ErrorKind::Usage, message))
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fuse => "fuse",
            Self::Seccomp => "seccomp",
            Self::Preload => "preload",
        })
    }
}

impl FromStr for Via {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|via| via.to_string() == text);
        found.ok_or_else(|| {
            let message = format!("there is no way {text:?}; there are auto, fuse, seccomp and preload");
            Error::new(ErrorKind::Usage, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_way_without_an_obstacle_is_chosen() {
        assert_eq!(Via::choose(|_| None).unwrap(), Via::Fuse);
        let only_preload = |via| (via != Via::Preload).then(|| "no".to_owned());
        assert_eq!(Via::choose(only_preload).unwrap(), Via::Preload);
        let error = Via::choose(|via| Some(format!("no {via} here"))).unwrap_err();
        assert!(error.to_string().contains("seccomp: no seccomp here; preload: no preload here"), "{error}");
    }

    #[test]
    fn ways_have_names() {
        for via in Via::ALL {
            assert_eq!(via.to_string().parse::<Via>().unwrap(), via);
        }
        assert!("ptrace".parse::<Via>().unwrap_err().to_string().contains("there are auto, fuse"));
    }
}
