//! The answer of a nameserver.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Record;

/// What a name has of one record type.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `NoError`, also where there is no such record, or `NXDomain`.
    pub code: ResponseCode,
    /// The CNAMEs from the name on, in their order, then the records.
    pub records: Vec<Record>,
}

impl Answer {
    /// The addresses among the records.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.records
            .iter()
            .filter_map(|record| record.data.ip_addr())
            .collect()
    }
}
