//! How the files of lost nodes are kept by others.

use std::net::IpAddr;

use outcrop_parity::Code;
use toml::Value;

use crate::value::{Readable, wrong};

/// Which nodes may be lost, and what a node is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParitySettings {
    /// Into how many parts files are cut, and how many nodes of a group may be lost. Default: none.
    pub code: Option<Code>,
    /// What fails together with this rank. Default: the host name.
    pub domain: Option<String>,
    /// An address in the network over which nodes talk to each other. Default: any other machine.
    pub network: Option<IpAddr>,
}

/// A code, or none.
#[derive(Debug)]
pub(crate) struct AnyCode(pub(crate) Option<Code>);

impl Readable for AnyCode {
    fn kind() -> String {
        "\"none\", \"partner\", or two numbers such as \"4+1\"".to_owned()
    }

    fn python() -> String {
        "str".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        const HINT: &str = "write \"partner\", or two numbers such as \"4+1\": any 1 of 5 nodes may be lost then";
        let code = match value.as_str() {
            Some("none") => return Ok(Self(None)),
            Some("partner") => Some(("1", "1")),
            text => text.and_then(|text| text.split_once('+')),
        };
        let number = |text: &str| text.trim().parse::<u16>().ok();
        let numbers = code.and_then(|(data, lost)| Some((number(data)?, number(lost)?)));
        match numbers.map(|(data, lost)| Code::new(data, lost)) {
            Some(code) => code.map(|code| Self(Some(code))).map_err(|error| error.to_string()),
            None => wrong(&value, HINT),
        }
    }
}

impl Readable for IpAddr {
    fn kind() -> String {
        "IP address".to_owned()
    }

    fn python() -> String {
        "str".to_owned()
    }

    fn read(value: Value) -> Result<Self, String> {
        let address = value.as_str().and_then(|text| text.parse().ok());
        address.map_or_else(|| wrong(&value, "write an IP address, such as \"10.1.0.1\""), Ok)
    }
}
