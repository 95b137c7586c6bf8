//! Begins and ends the flow of a question.

use std::sync::atomic::Ordering::Relaxed;

use addons::contract::{Code, Denial, DnsQuery, Fault, Host, LiveFlow};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use super::{DnsClient, Snapshot};

/// Begins the flow of a message of `length` bytes. `query` is `None` if the message was not parsed
/// or is malformed.
pub(super) fn begin(
    snapshot: &Snapshot,
    dns_client: &DnsClient,
    query: Option<&DnsQuery>,
    length: usize,
) -> LiveFlow {
    let name = query.map_or_else(|| Host::Name("".into()), |query| query.name.clone());
    let mut start = snapshot.chain().for_name(dns_client.client.clone(), name);
    start.principal = dns_client.principal.clone();
    start.claimed_id = dns_client.claimed_id.clone();
    let mut live = LiveFlow::begin(snapshot.chain(), start);
    let record_type = query.map(|query| RecordType::from(query.record_type));
    live.record().method = record_type.map(|record_type| <&str>::from(record_type).into());
    live.counters.bytes_in.store(length as u64, Relaxed);
    live
}

/// Ends a flow with a response of `length` bytes.
pub(super) fn answered(mut live: LiveFlow, code: ResponseCode, length: usize) {
    live.answered(code.into());
    live.complete();
    live.counters.bytes_out.store(length as u64, Relaxed);
}

/// Ends a flow with a denial and a response of `length` bytes.
pub(super) fn refused(mut live: LiveFlow, code: ResponseCode, denial: &Denial, length: usize) {
    live.denied(denial);
    answered(live, code, length);
}

pub(super) fn response_code(denial: &Denial) -> ResponseCode {
    match (denial.code(), denial.code().fault()) {
        (Code::DomainNotAllowed, _) => ResponseCode::NXDomain,
        (_, Fault::Us | Fault::Upstream) => ResponseCode::ServFail,
        (_, Fault::Policy | Fault::Client) => ResponseCode::Refused,
    }
}
