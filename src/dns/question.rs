//! One question of a known container: a flow through the chain, and its answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    Chain, Cleared, Client, Code, Denial, DnsAnswer, DnsQuery, Fault, Flow, Host, Kind, Outcome,
    Scheme, Source, fold_address,
};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Record, RecordType};
use hickory_resolver::net::xfer::Protocol;
use hickory_server::server::Request;

use super::World;
use super::bounds::{Bounds, Share};
use super::message::{encode, reflect};
use crate::net::Answer;

/// A question from a known source, not parsed yet.
pub(super) struct Question {
    pub world: Arc<World>,
    pub bounds: Arc<Bounds>,
    pub share: Arc<Share>,
    pub packet: Vec<u8>,
    pub peer: SocketAddr,
    pub protocol: Protocol,
}

impl Question {
    /// Judges the question and answers it, in the form of its protocol.
    pub async fn answer(self) -> Vec<u8> {
        let (request, query) = match read_question(&self.packet, self.peer, self.protocol) {
            Ok(read) => read,
            Err(answer) => return answer,
        };
        let mut flight = Flight::begin(&self.world, self.peer, &query);
        let bytes = match self.judge(&mut flight.flow, query).await {
            Ok(answer) => {
                flight.status(answer.code);
                encode(&request, answer.code, &answer.records)
            }
            Err(denial) => {
                let code = response_code(&denial);
                flight.status(code);
                flight.outcome.denial = Some(denial);
                encode(&request, code, &[])
            }
        };
        flight.counts(request.as_slice().len(), bytes.len());
        bytes
    }

    async fn judge(&self, flow: &mut Flow, mut query: DnsQuery) -> Result<Answer, Denial> {
        let chain = &self.world.chain;
        let cleared = chain.dns_query(flow, &mut query).await?;
        if !self.is_answered(query.record_type) {
            return Ok(Answer {
                code: ResponseCode::NoError,
                records: Vec::new(),
            });
        }
        let mut answer = self.resolve(&cleared, &query).await?;
        let mut addresses = DnsAnswer {
            addresses: answer.records.iter().filter_map(address).collect(),
        };
        chain.dns_answer(flow, &mut addresses).await?;
        let kept = addresses.addresses;
        answer
            .records
            .retain(|record| address(record).is_none_or(|address| kept.contains(&address)));
        Ok(answer)
    }

    /// HTTPS and SVCB stay empty whatever the configuration says: they carry addresses that
    /// nobody would judge, and keys that would hide the name from us.
    fn is_answered(&self, record_type: u16) -> bool {
        let hints = [RecordType::HTTPS, RecordType::SVCB].map(u16::from);
        !hints.contains(&record_type) && self.world.config.proxy.dns.types.contains(&record_type)
    }

    async fn resolve(&self, cleared: &Cleared, query: &DnsQuery) -> Result<Answer, Denial> {
        let _ours = self.share.waiting.try_acquire().map_err(|_full| {
            let sentence = "Too many questions wait for an answer";
            Denial::new(Code::RateLimited, sentence).by("dns")
        })?;
        let _of_all = self
            .bounds
            .waiting
            .try_acquire()
            .map_err(|_full| Denial::internal().rule("waiting_questions").by("dns"))?;
        let record_type = RecordType::from(query.record_type);
        self.world
            .resolver
            .records(cleared, &query.name, record_type)
            .await
    }
}

/// A flow that tells the chain of its end, however it ends.
struct Flight<'w> {
    chain: &'w Chain,
    flow: Flow,
    outcome: Outcome,
}

impl<'w> Flight<'w> {
    fn begin(world: &'w World, peer: SocketAddr, query: &DnsQuery) -> Self {
        let client = Client {
            source: Some(Source::Address(fold_address(peer.ip()))),
            peer: Some(peer),
        };
        let host = query.name.clone();
        let entry = world.config.allowlist.find(&host).cloned();
        let mut flow = Flow::new(Kind::Dns, client, Scheme::Http, host, 53, entry);
        let record_type = RecordType::from(query.record_type);
        flow.record.method = Some(<&str>::from(record_type).into());
        Self {
            chain: &world.chain,
            flow,
            outcome: Outcome {
                status: 0,
                denial: None,
                aborted: true,
                duration: Duration::ZERO,
            },
        }
    }

    fn status(&mut self, code: ResponseCode) {
        self.outcome.status = code.into();
        self.outcome.aborted = false;
    }

    fn counts(&self, bytes_in: usize, bytes_out: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = &self.flow.counters;
        counters.bytes_in.store(bytes_in as u64, Relaxed);
        counters.bytes_out.store(bytes_out as u64, Relaxed);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.outcome.duration = self.flow.started.elapsed();
        self.chain.finished(&self.flow, &self.outcome);
    }
}

/// Reads a packet: the message and what it asks, or the answer for what cannot be judged.
pub fn read_question(
    packet: &[u8],
    peer: SocketAddr,
    protocol: Protocol,
) -> Result<(Request, DnsQuery), Vec<u8>> {
    let request = Request::from_bytes(packet.to_vec(), peer, protocol)
        .map_err(|_malformed| reflect(packet, ResponseCode::FormErr))?;
    match read(&request) {
        Ok(query) => Ok((request, query)),
        Err(code) => Err(encode(&request, code, &[])),
    }
}

/// The question, or why there is none that could be judged.
fn read(request: &Request) -> Result<DnsQuery, ResponseCode> {
    if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return Err(ResponseCode::BADVERS);
    }
    let [query] = request.queries.queries() else {
        return Err(ResponseCode::FormErr);
    };
    let name = query.original().name();
    let record_type = u16::from(query.query_type());
    if query.query_class() != DNSClass::IN || is_meta(record_type) || name.is_root() {
        return Err(ResponseCode::Refused);
    }
    // What no host is called is on no allowlist.
    let name = Host::parse(&name.to_ascii()).map_err(|_| ResponseCode::NXDomain)?;
    Ok(DnsQuery { name, record_type })
}

/// Types that ask for more than records of one type: transfers, ANY, OPT and their like
/// (RFC 6895, section 3.1).
fn is_meta(record_type: u16) -> bool {
    matches!(record_type, 0 | 41 | 128..=255)
}

fn response_code(denial: &Denial) -> ResponseCode {
    match (denial.code(), denial.code().fault()) {
        (Code::DomainNotAllowed, _) => ResponseCode::NXDomain,
        (_, Fault::Us | Fault::Upstream) => ResponseCode::ServFail,
        (_, Fault::Policy | Fault::Client) => ResponseCode::Refused,
    }
}

fn address(record: &Record) -> Option<IpAddr> {
    record.data.ip_addr()
}
