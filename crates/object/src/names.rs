//! The names of objects, and which of several objects of one file counts. Pure.
//!
//! A file `heat/rank-00000/pack-7` is the object `heat/rank-00000/pack-7/TAG`. The tag says which
//! owner of the directory made it, so no two processes ever write to one name:
//!
//! ```text
//! 00000004-00000001-9c0de84f72a1b356
//! epoch    revision nonce of the owner
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The directory of claims: `owner/EPOCH`, or `owner/EPOCH-NONCE` where the server ignores
/// conditions.
pub(crate) const OWNER: &str = "owner";
/// The directory of signs of life: `alive/EPOCH-NONCE`.
pub(crate) const ALIVE: &str = "alive";
/// The directory of seals: `seal/EPOCH-NONCE` lists what counts of earlier owners.
pub(crate) const SEAL: &str = "seal";

/// Whether a name in a directory belongs to its owners, and not to its files.
pub(crate) fn is_reserved(name: &str) -> bool {
    [OWNER, ALIVE, SEAL].contains(&name)
}

/// Which owner has made an object, and how often before it. Later is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tag {
    pub(crate) epoch: u32,
    pub(crate) revision: u32,
    pub(crate) nonce: u64,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}-{:016x}", self.epoch, self.revision, self.nonce)
    }
}

impl Tag {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.split_once('-')?;
        let (revision, nonce) = rest.split_once('-')?;
        Some(Self { epoch: hex32(epoch)?, revision: hex32(revision)?, nonce: hex64(nonce)? })
    }
}

/// One owner of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerId {
    pub(crate) epoch: u32,
    pub(crate) nonce: u64,
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:016x}", self.epoch, self.nonce)
    }
}

impl OwnerId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, nonce) = text.split_once('-')?;
        Some(Self { epoch: hex32(epoch)?, nonce: hex64(nonce)? })
    }
}

/// The name of a claim. The nonce is in it where the server ignores conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimName {
    pub(crate) epoch: u32,
    pub(crate) nonce: Option<u64>,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nonce {
            Some(nonce) => OwnerId { epoch: self.epoch, nonce }.fmt(f),
            None => write!(f, "{:08x}", self.epoch),
        }
    }
}

impl ClaimName {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match OwnerId::parse(text) {
            Some(OwnerId { epoch, nonce }) => Some(Self { epoch, nonce: Some(nonce) }),
            None => Some(Self { epoch: hex32(text)?, nonce: None }),
        }
    }
}

fn hex32(text: &str) -> Option<u32> {
    is_hex(text, 8).then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

fn hex64(text: &str) -> Option<u64> {
    is_hex(text, 16).then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Only one spelling of a number is accepted.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The objects of a directory, by the file that they are of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The objects of each file, ascending, with their lengths.
    pub(crate) files: BTreeMap<String, BTreeMap<Tag, u64>>,
    pub(crate) claims: BTreeSet<ClaimName>,
    pub(crate) alive: BTreeSet<OwnerId>,
    pub(crate) seals: BTreeSet<OwnerId>,
}

/// What an owner has written down when it took over: what counts of earlier owners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) epoch: u32,
    /// File names and tags.
    pub(crate) counts: BTreeSet<(String, Tag)>,
}

impl Sealed {
    fn lets(&self, file: &str, tag: Tag) -> bool {
        tag.epoch >= self.epoch || self.counts.contains(&(file.to_owned(), tag))
    }
}

impl Contents {
    /// Adds an object by its name below the directory. What Outcrop did not make is left out.
    pub(crate) fn add(&mut self, name: &str, bytes: u64) {
        let Some((file, last)) = name.split_once('/') else { return };
        match file {
            OWNER => self.claims.extend(ClaimName::parse(last)),
            ALIVE => self.alive.extend(OwnerId::parse(last)),
            SEAL => self.seals.extend(OwnerId::parse(last)),
            _ => {
                if let Some(tag) = Tag::parse(last) {
                    self.files.entry(file.to_owned()).or_default().insert(tag, bytes);
                }
            }
        }
    }

    /// The epoch of the newest claim; 0 if there is none.
    pub(crate) fn newest_epoch(&self) -> u32 {
        self.claims.last().map_or(0, |claim| claim.epoch)
    }

    /// The newest seal, if there is one.
    pub(crate) fn newest_seal(&self) -> Option<OwnerId> {
        self.seals.last().copied()
    }

    /// The objects that do not count: what an earlier owner has made after it was taken over from,
    /// and what was replaced. Without a seal nobody has taken over completely, and only what was
    /// replaced does not count.
    pub(crate) fn stale(&self, sealed: Option<&Sealed>) -> Vec<(String, Tag)> {
        let mut stale = Vec::new();
        for (file, tags) in &self.files {
            let counts = |tag: &Tag| sealed.is_none_or(|sealed| sealed.lets(file, *tag));
            let newest = tags.keys().rev().find(|tag| counts(tag)).copied();
            stale.extend(tags.keys().filter(|tag| Some(**tag) != newest).map(|tag| (file.clone(), *tag)));
        }
        stale
    }

    /// Leaves only the object that counts for each file.
    #[must_use]
    pub(crate) fn settled(mut self, sealed: Option<&Sealed>) -> Self {
        for (file, tag) in self.stale(sealed) {
            if let Some(tags) = self.files.get_mut(&file) {
                tags.remove(&tag);
            }
        }
        self.files.retain(|_, tags| !tags.is_empty());
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tag(epoch: u32, revision: u32) -> Tag {
        Tag { epoch, revision, nonce: u64::from(epoch) }
    }

    fn contents(objects: &[(&str, Tag)], claims: &[u32]) -> Contents {
        let mut contents = Contents::default();
        objects.iter().for_each(|(file, tag)| contents.add(&format!("{file}/{tag}"), 1));
        claims.iter().for_each(|epoch| contents.add(&format!("owner/{epoch:08x}"), 1));
        contents
    }

    proptest! {
        #[test]
        fn names_are_read_back_and_sort_by_age(a: (u32, u32, u64), b: (u32, u32, u64)) {
            let of = |(epoch, revision, nonce)| Tag { epoch, revision, nonce };
            let (a, b) = (of(a), of(b));
            prop_assert_eq!(Tag::parse(&a.to_string()), Some(a));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
            let owner = OwnerId { epoch: a.epoch, nonce: a.nonce };
            prop_assert_eq!(OwnerId::parse(&owner.to_string()), Some(owner));
            for nonce in [None, Some(a.nonce)] {
                let claim = ClaimName { epoch: a.epoch, nonce };
                prop_assert_eq!(ClaimName::parse(&claim.to_string()), Some(claim));
            }
        }

        #[test]
        fn other_names_are_nothing(text in "[0-9a-fA-F/_-]{0,40}") {
            let is_ours = Tag::parse(&text).is_some_and(|tag| tag.to_string() == text);
            prop_assert_eq!(Tag::parse(&text).is_some(), is_ours);
            let mut contents = Contents::default();
            contents.add(&text, 1);
        }
    }

    #[test]
    fn of_several_objects_of_a_file_the_newest_counts() {
        let found = contents(&[("version", tag(1, 0)), ("version", tag(1, 1)), ("pack", tag(1, 0))], &[1]);
        assert_eq!(found.stale(None), [("version".to_owned(), tag(1, 0))]);
        assert_eq!(found.settled(None).files["version"].keys().copied().collect::<Vec<_>>(), [tag(1, 1)]);
    }

    #[test]
    fn what_an_owner_makes_after_it_was_taken_over_from_does_not_count() {
        let found = contents(&[("a", tag(1, 0)), ("a", tag(1, 1)), ("late", tag(1, 0)), ("new", tag(2, 0))], &[1, 2]);
        let sealed = Sealed { epoch: 2, counts: [("a".to_owned(), tag(1, 0))].into() };
        let settled = found.clone().settled(Some(&sealed));
        assert_eq!(settled.files.keys().collect::<Vec<_>>(), ["a", "new"]);
        assert_eq!(settled.files["a"].keys().copied().collect::<Vec<_>>(), [tag(1, 0)]);
        // Until the seal is there, nothing is lost.
        assert_eq!(found.settled(None).files.len(), 3);
    }
}
