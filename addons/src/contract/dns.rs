//! A DNS question and its answer, as the chain sees them.

use std::net::IpAddr;

use super::host::Host;

/// One question of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuery {
    /// The queried name.
    pub name: Host,
    /// The number of the record type: 1 for A, 28 for AAAA.
    pub record_type: u16,
}

/// The addresses of an answer. An addon removes those that the client must not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsAnswer {
    /// A and AAAA records.
    pub addresses: Vec<IpAddr>,
}
