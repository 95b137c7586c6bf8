//! The answer of a nameserver.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Record;

/// A nameserver's answer to a question for the records of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `NoError`, with or without records, or `NXDomain`.
    pub code: ResponseCode,
    /// The chain of CNAMEs from the name, then the records of the last name in the chain.
    pub records: Vec<Record>,
}

impl Answer {
    pub fn empty(code: ResponseCode) -> Self {
        let records = Vec::new();
        Self { code, records }
    }

    pub fn addresses(&self) -> Vec<IpAddr> {
        self.records
            .iter()
            .filter_map(|record| record.data.ip_addr())
            .collect()
    }
}
