//! A question as a flow that tells the chain of its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use addons::contract::{
    Chain, Client, Code, Container, Denial, DnsQuery, Fault, Flow, Host, Kind, Outcome, Scheme,
    Source, fold_address,
};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use super::Snapshot;

/// What was asked, as far as it was read.
pub(super) struct Asked {
    host: Host,
    record_type: Option<RecordType>,
    length: usize,
}

impl Asked {
    /// A question in a message of this length.
    pub fn query(query: &DnsQuery, length: usize) -> Self {
        Self {
            host: query.name.clone(),
            record_type: Some(RecordType::from(query.record_type)),
            length,
        }
    }

    /// A message that was not read, or could not be.
    pub fn nothing(length: usize) -> Self {
        Self {
            host: Host::Name("".into()),
            record_type: None,
            length,
        }
    }
}

/// A flow under way; however it ends, the chain is told once.
pub(super) struct Flight<'w> {
    chain: &'w Chain,
    pub flow: Flow,
    outcome: Outcome,
}

impl<'w> Flight<'w> {
    pub fn begin(snapshot: &'w Snapshot, peer: SocketAddr, asked: Asked) -> Self {
        let client = Client {
            source: Some(Source::Address(fold_address(peer.ip()))),
            peer: Some(peer),
        };
        let entry = snapshot.config.addons.allowlist.find(&asked.host).cloned();
        let mut flow = Flow::new(Kind::Dns, client, Scheme::Http, asked.host, 53, entry);
        let record_type = asked.record_type;
        flow.record.method = record_type.map(|record_type| <&str>::from(record_type).into());
        flow.counters.bytes_in.store(asked.length as u64, Relaxed);
        Self {
            chain: &snapshot.chain,
            flow,
            outcome: Outcome {
                status: 0,
                denial: None,
                aborted: true,
                duration: Duration::ZERO,
            },
        }
    }

    /// Whose it is, where it ends before the chain could find out.
    pub fn of(mut self, container: &Arc<Container>) -> Self {
        self.flow.principal = Some(Arc::clone(container).into());
        self
    }

    /// Ended with an answer.
    pub fn answered(mut self, code: ResponseCode, length: usize) {
        self.outcome.status = code.into();
        self.outcome.aborted = false;
        self.flow.counters.bytes_out.store(length as u64, Relaxed);
    }

    /// Ended with a denial.
    pub fn refused(mut self, code: ResponseCode, denial: Denial, length: usize) {
        self.outcome.denial = Some(denial);
        self.answered(code, length);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.outcome.duration = self.flow.started.elapsed();
        self.chain.finished(&self.flow, &self.outcome);
    }
}

/// A denial as DNS has it.
pub(super) fn response_code(denial: &Denial) -> ResponseCode {
    match (denial.code(), denial.code().fault()) {
        (Code::DomainNotAllowed, _) => ResponseCode::NXDomain,
        (_, Fault::Us | Fault::Upstream) => ResponseCode::ServFail,
        (_, Fault::Policy | Fault::Client) => ResponseCode::Refused,
    }
}
