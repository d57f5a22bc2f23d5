//! Messages by which ranks find out who keeps whose shards: when a store is opened, and when a
//! session is.

use std::collections::BTreeSet;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use super::{Kind, begin, body, end, push_text, take_text};
use crate::{PeerSecret, error::Result};

/// Where a rank can be reached, and what may fail together with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// How many shards give a file back, and how many nodes of a group may be lost: the same on all
    /// ranks.
    pub code: (u16, u16),
    /// The secret of the run; that of rank 0 counts.
    pub secret: PeerSecret,
    /// Its failure domain.
    pub domain: String,
    /// Where it listens, or why it cannot.
    pub address: std::result::Result<String, String>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    data: U16,
    lost: U16,
    secret: PeerSecret,
    is_unreachable: u8,
}

impl Card {
    /// Encodes it. Texts of more than 4096 bytes are cut off.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Card);
        let (data, lost) = (self.code.0.into(), self.code.1.into());
        let raw = Raw { data, lost, secret: self.secret, is_unreachable: self.address.is_err().into() };
        bytes.extend_from_slice(raw.as_bytes());
        push_text(&mut bytes, &self.domain);
        let (Ok(text) | Err(text)) = &self.address;
        push_text(&mut bytes, text);
        end(bytes)
    }

    /// Decodes the card of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Card, bytes)?;
        let raw: &Raw = cursor.value()?;
        let domain = take_text(&mut cursor)?;
        let address = match (raw.is_unreachable, take_text(&mut cursor)?) {
            (0, address) => Ok(address),
            (1, reason) => Err(reason),
            _ => return Err(cursor.wrong("it says neither an address nor why there is none")),
        };
        cursor.end()?;
        Ok(Self { code: (raw.data.get(), raw.lost.get()), secret: raw.secret, domain, address })
    }
}

/// Of which ranks a rank keeps shards in a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keeps(pub BTreeSet<u32>);

impl Keeps {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Keeps);
        bytes.extend_from_slice(U32::from(self.0.len() as u32).as_bytes());
        self.0.iter().for_each(|rank| bytes.extend_from_slice(U32::from(*rank).as_bytes()));
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Keeps, bytes)?;
        let count = cursor.value::<U32>()?.get();
        let raw: &[U32] = cursor.slice(count.into())?;
        if raw.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(cursor.wrong("ranks are not in ascending order"));
        }
        cursor.end()?;
        Ok(Self(raw.iter().map(|rank| rank.get()).collect()))
    }
}
