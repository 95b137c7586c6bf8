//! A question of a known container: a flow through the chain, and its response.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;

use addons::contract::{
    Code, Container, Denial, DnsAnswer, DnsQuery, Host, LiveFlow, ResolvePermit, names,
};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, RecordType};
use hickory_resolver::net::xfer::Protocol;
use hickory_server::server::Request;

use super::bounds::{Bounds, Share};
use super::flow::{self, response_code};
use super::message::{encode, reflect};
use super::{DnsClient, Snapshot};
use crate::upstream::Answer;

/// Placeholder for the client's address, which hickory's requests must have. This code never reads
/// it, and the client of a Unix socket has no address.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// An admitted question, not parsed yet.
pub(super) struct Question {
    pub snapshot: Arc<Snapshot>,
    pub bounds: Arc<Bounds>,
    pub container: Arc<Container>,
    pub share: Arc<Share>,
    pub packet: Vec<u8>,
    pub dns_client: DnsClient,
    pub protocol: Protocol,
}

impl Question {
    /// Judges the question and returns the response for its protocol. `gone` completes when the
    /// client disconnects; returns `None` if that happens while an addon makes the question wait.
    pub async fn answer(self, gone: impl Future<Output = ()>) -> Option<Vec<u8>> {
        let (request, query) = match read_question(&self.packet, self.protocol) {
            Ok(read) => read,
            Err(refused) => return Some(self.refuse(refused)),
        };
        let length = self.packet.len();
        let mut live = flow::begin(&self.snapshot, &self.dns_client, Some(&query), length);
        Some(match self.judge(&mut live, query, gone).await {
            Ok(answer) => {
                let answer = answer?;
                let bytes = encode(&request, answer.code, &answer.records);
                flow::answered(live, answer.code, bytes.len());
                bytes
            }
            Err(denial) => {
                let code = response_code(&denial);
                let bytes = encode(&request, code, &[]);
                flow::refused(live, code, &denial, bytes.len());
                bytes
            }
        })
    }

    /// Records a denied flow of the container for a message that cannot be judged. Returns the
    /// response.
    fn refuse(&self, refused: Refused) -> Vec<u8> {
        let mut live = flow::begin(&self.snapshot, &self.dns_client, None, self.packet.len());
        live.belongs_to(&self.container);
        let denial = refused.denial.by(names::DNS);
        flow::refused(live, refused.code, &denial, refused.answer.len());
        refused.answer
    }

    /// Takes the question and its answer through the chain. `None` if `gone` completes while the
    /// chain judges.
    async fn judge(
        &self,
        live: &mut LiveFlow,
        mut query: DnsQuery,
        gone: impl Future<Output = ()>,
    ) -> Result<Option<Answer>, Denial> {
        let mut gone = pin!(gone);
        let permitted = live.chain.dns_query(&mut live.flow, &mut query);
        let Some(permit) = unless(gone.as_mut(), permitted).await? else {
            return Ok(None);
        };
        let mut answer = match self.is_resolved(query.record_type) {
            true => self.resolve(&permit, query.record_type).await?,
            false => Answer::empty(ResponseCode::NoError),
        };
        let addresses = answer.addresses();
        let mut kept = DnsAnswer { addresses };
        let judged = live.chain.dns_answer(&mut live.flow, &mut kept);
        let judged = unless(gone, judged).await?;
        answer.records.retain(|record| {
            let address = record.data.ip_addr();
            address.is_none_or(|address| kept.addresses.contains(&address))
        });
        Ok(judged.map(|()| answer))
    }

    /// Whether questions for this type are resolved; all others get an empty response. HTTPS and
    /// SVCB are never resolved: their records carry addresses that the chain would not judge, and
    /// ECH keys that would hide the server name from the proxy.
    fn is_resolved(&self, record_type: u16) -> bool {
        let hints = [RecordType::HTTPS, RecordType::SVCB].map(u16::from);
        !hints.contains(&record_type) && self.snapshot.config.proxy.dns.types.contains(&record_type)
    }

    async fn resolve(&self, permit: &ResolvePermit, record_type: u16) -> Result<Answer, Denial> {
        let (resolver, record_type) = (&self.snapshot.network.resolver, record_type.into());
        // Cached answers take no permit of the semaphores, so that they are served while questions
        // to a nameserver that does not answer hold all permits.
        if let Some(answer) = resolver.cached(permit, record_type)? {
            return Ok(answer);
        }
        let _ours = self.share.waiting.try_acquire().map_err(|_full| {
            let sentence = "Too many questions wait for an answer";
            Denial::new(Code::RateLimited, sentence).by(names::DNS)
        })?;
        let _of_all = self
            .bounds
            .waiting
            .try_acquire()
            .map_err(|_full| Denial::internal().rule("waiting_questions").by(names::DNS))?;
        resolver.records(permit, record_type).await
    }
}

/// Awaits a phase of the chain; `None` if `gone` completes first.
async fn unless<T>(
    gone: Pin<&mut impl Future<Output = ()>>,
    phase: impl Future<Output = Result<T, Denial>>,
) -> Result<Option<T>, Denial> {
    tokio::select! {
        biased;
        done = phase => done.map(Some),
        () = gone => Ok(None),
    }
}

/// A message that cannot be judged, with its denial and response.
pub struct Refused {
    pub code: ResponseCode,
    pub denial: Denial,
    pub answer: Vec<u8>,
}

/// Parses a packet into a message and its question. For an invalid packet, returns the denial and
/// the response.
pub fn read_question(packet: &[u8], protocol: Protocol) -> Result<(Request, DnsQuery), Refused> {
    let request = Request::from_bytes(packet.to_vec(), NO_ADDRESS, protocol);
    let request = request.map_err(|_malformed| Refused {
        code: ResponseCode::FormErr,
        denial: Denial::malformed("the message cannot be read"),
        answer: reflect(packet, ResponseCode::FormErr),
    })?;
    match read(&request) {
        Ok(query) => Ok((request, query)),
        Err((code, denial)) => Err(Refused {
            code,
            denial,
            answer: encode(&request, code, &[]),
        }),
    }
}

/// Returns the question, or the reason why it cannot be judged.
fn read(request: &Request) -> Result<DnsQuery, (ResponseCode, Denial)> {
    if let Some(edns) = request.edns.as_ref().filter(|edns| edns.version() > 0) {
        let why = format!("EDNS version {} is not supported", edns.version());
        let denial = Denial::malformed(why);
        return Err((ResponseCode::BADVERS, denial));
    }
    let [query] = request.queries.queries() else {
        let count = request.queries.queries().len();
        let why = format!("the message has {count} questions, one is required");
        let denial = Denial::malformed(why);
        return Err((ResponseCode::FormErr, denial));
    };
    let name = query.original().name();
    let record_type = u16::from(query.query_type());
    if query.query_class() != DNSClass::IN || is_meta(record_type) || name.is_root() {
        let denial = Denial::malformed("only records of one type and class IN are answered");
        return Err((ResponseCode::Refused, denial));
    }
    // A name that is no valid host name is on no allowlist and gets the same response as an
    // unlisted name.
    let name = Host::parse(&name.to_ascii())
        .map_err(|why| (ResponseCode::NXDomain, Denial::malformed(why)))?;
    Ok(DnsQuery { name, record_type })
}

/// Whether the type is not a data type (RFC 6895, section 3.1): 0, OPT, and the question and meta
/// types, such as AXFR and ANY.
fn is_meta(record_type: u16) -> bool {
    matches!(record_type, 0 | 41 | 128..=255)
}
