//! Resolves names, for the dialer and for the DNS server.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Code, Denial, Fault, Host, ResolvePermit, Stage, names};
use futures_util::future::{Either, select};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::{DnsError, NetError};
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::answer::Answer;
use super::answer_cache::{AnswerCache, Key, Turn, UnderWay};
use super::datagram::{ANSWER_TIMEOUT, Datagrams};
use super::watch::NameserverWatch;
use super::zones::Zones;
use crate::config::{StaticAddress, UpstreamConfig, nameservers_of};

/// Limit for one question to one nameserver, and for one attempt to ask all nameservers.
/// hickory-resolver makes one attempt and one retry; with our own datagram before them, they fit
/// into [`LOOKUP_LIMIT`].
const TRY_LIMIT: Duration = Duration::from_secs(2);

/// Limit for a whole look-up with its retries and CNAMEs. Stub resolvers give up after five
/// seconds, so they still receive the error.
const LOOKUP_LIMIT: Duration = Duration::from_millis(4500);

/// How long an answer with records of one address family waits for the other family. Some
/// nameservers never answer AAAA questions, but they must not slow down every connection.
const FAMILY_GRACE: Duration = Duration::from_millis(200);

/// Bounds of the time to live of an answer, in the cache and at DNS clients. The upper bound is
/// short enough that a changed allowlist takes effect soon, and long enough that the nameserver
/// gets few repeated questions.
const POSITIVE_TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The same bounds for the answer that a name does not exist, or has no record of the type.
const NEGATIVE_TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Time to live of a static host's record, in seconds. It is short, since a reload may change the
/// record.
const STATIC_TTL: u32 = 30;

/// Limit on the concurrent questions to the nameservers, of all flows together. A question beyond
/// it is denied.
const MAX_QUESTIONS: usize = 1024;

/// The most questions in flight on one TCP connection to a nameserver. hickory-resolver asks
/// further questions on another connection.
const MAX_TCP_QUESTIONS: usize = 256;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The most CNAMEs followed from one name. If the chain is longer, the answer has only CNAMEs.
const MAX_CNAMES: usize = 8;
/// The most records kept of one answer, far more than a client tries; the others are dropped.
const MAX_RECORDS: usize = 256;

/// Why no resolver can be built.
#[derive(Debug, Error)]
pub enum ResolverError {
    /// `upstream.nameservers` is empty and the system's resolv.conf cannot be read.
    #[error(
        "the system's nameservers cannot be read from /etc/resolv.conf ({0}): list some in upstream.nameservers of proxy.yaml"
    )]
    NoNameservers(std::io::Error),
    /// The library refused the configuration.
    #[error("the resolver cannot be built: {0}")]
    Build(NetError),
}

/// Asks the nameservers and caches their answers. While a question is under way, equal questions
/// wait for its answer; they are sent only if the first one fails.
///
/// A datagram to the first nameserver settles nearly every question. If it does not,
/// hickory-resolver asks all nameservers, with retries. It uses TCP after a truncated answer, and
/// follows CNAMEs.
pub struct Resolver {
    hosts: Arc<HashMap<Host, StaticAddress>>,
    answers: AnswerCache,
    under_way: UnderWay,
    /// The client for datagrams to the first nameserver.
    first: Option<Datagrams>,
    upstream: hickory_resolver::Resolver<Zones>,
    watch: Option<Arc<NameserverWatch>>,
    /// Limits the concurrent questions to nameservers, since each question holds sockets.
    room: Semaphore,
}

impl Resolver {
    /// Builds a resolver with an empty cache. Reads the nameservers of the system's resolv.conf if
    /// the configuration names none; ignores search lists and the hosts file.
    pub fn new(config: &UpstreamConfig) -> Result<Self, ResolverError> {
        let nameservers = if config.nameservers.is_empty() {
            nameservers_of_the_system()?
        } else {
            config.nameservers.clone()
        };
        let upstream = hickory_resolver::Resolver::builder_with_config(
            ResolverConfig::from_name_servers(nameservers.iter().map(nameserver).collect()),
            Zones::of(&nameservers),
        )
        .with_options(options())
        .build()
        .map_err(ResolverError::Build)?;
        Ok(Self {
            hosts: Arc::clone(&config.hosts),
            answers: AnswerCache::default(),
            under_way: UnderWay::default(),
            first: nameservers.first().copied().map(Datagrams::new),
            upstream,
            watch: None,
            room: Semaphore::new(MAX_QUESTIONS),
        })
    }

    /// Sets how many questions to nameservers may be under way at once: `questions`, but at most
    /// `MAX_QUESTIONS`. A further question is denied.
    #[must_use]
    pub fn with_room_for(mut self, questions: usize) -> Self {
        self.room = Semaphore::new(questions.min(MAX_QUESTIONS));
        self
    }

    /// Reports the outcomes of questions to `watch`.
    #[must_use]
    pub fn watched_by(mut self, watch: Arc<NameserverWatch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The addresses to try for the permitted host, IPv4 first. A static host (`upstream.hosts`)
    /// has its configured address, and its configured port if there is one. An address literal is
    /// returned as it is.
    pub async fn lookup(&self, permit: &ResolvePermit) -> Result<Vec<SocketAddr>, Denial> {
        let (host, port) = (permit.host(), permit.port());
        if let Some(fixed) = self.hosts.get(host) {
            let port = fixed.port.unwrap_or(port);
            return Ok(vec![SocketAddr::new(fixed.address, port)]);
        }
        let name = match host {
            Host::Address(address) => {
                return Ok(vec![SocketAddr::new(*address, port)]);
            }
            Host::Name(name) => name,
        };
        let (v4, v6) = both(
            self.ask(host, name, RecordType::A),
            self.ask(host, name, RecordType::AAAA),
        )
        .await;
        let found = [&v4, &v6].into_iter().flatten().flatten();
        let addresses: Vec<_> = found
            .flat_map(Answer::addresses)
            .map(|address| SocketAddr::new(address, port))
            .collect();
        if !addresses.is_empty() {
            return Ok(addresses);
        }
        match (v4, v6) {
            (Some(Err(denial)), _) | (_, Some(Err(denial))) => Err(denial),
            (Some(Ok(answer)), _) if answer.code == ResponseCode::NXDomain => {
                Err(unreachable(host, "no such name"))
            }
            _ => Err(unreachable(host, "it has no address")),
        }
    }

    /// The records of one type that the permitted name has, for a DNS client. A denial means that
    /// the look-up failed or timed out, not that there is no such name.
    pub async fn records(
        &self,
        permit: &ResolvePermit,
        record_type: RecordType,
    ) -> Result<Answer, Denial> {
        let host = permit.host();
        match (self.cached(permit, record_type)?, host) {
            (Some(answer), _) => Ok(answer),
            (None, Host::Name(name)) => self.ask(host, name, record_type).await,
            (None, Host::Address(_)) => Ok(Answer::empty(ResponseCode::NXDomain)),
        }
    }

    /// The answer from the static hosts or the cache, without a question to a nameserver; `None` if
    /// neither has one.
    pub fn cached(
        &self,
        permit: &ResolvePermit,
        record_type: RecordType,
    ) -> Result<Option<Answer>, Denial> {
        let host = permit.host();
        let Host::Name(name) = host else {
            return Ok(None);
        };
        let Some(fixed) = self.hosts.get(host) else {
            return Ok(self.answers.find(&(host.clone(), record_type)));
        };
        let data = RData::from(fixed.address);
        let mut answer = Answer::empty(ResponseCode::NoError);
        if data.record_type() == record_type {
            let record = Record::from_rdata(absolute(name)?, STATIC_TTL, data);
            answer.records.push(record);
        }
        Ok(Some(answer))
    }

    async fn ask(
        &self,
        host: &Host,
        name: &str,
        record_type: RecordType,
    ) -> Result<Answer, Denial> {
        let key = (host.clone(), record_type);
        if let Some(answer) = self.answers.find(&key) {
            return Ok(answer);
        }
        let name = absolute(name)?;
        match self.under_way.turn(&key) {
            Turn::Ours(_asking) => {
                let _room = self.enter()?;
                let answer = match self.ask_first(&key, &name).await {
                    Some(answer) => Ok(answer),
                    None => self.ask_all(&key, &name).await,
                };
                self.report(&answer);
                answer
            }
            Turn::Theirs(done) => {
                let answer = async {
                    done.cancelled().await;
                    if let Some(answer) = self.answers.find(&key) {
                        return Ok(answer);
                    }
                    let _room = self.enter()?;
                    self.ask_all(&key, &name).await
                };
                let in_time = timeout(LOOKUP_LIMIT, answer).await;
                in_time.unwrap_or_else(|_elapsed| Err(timed_out(host)))
            }
        }
    }

    fn enter(&self) -> Result<SemaphorePermit<'_>, Denial> {
        let full = |_| {
            Denial::internal()
                .rule("questions to nameservers")
                .by(names::RESOLVE)
        };
        self.room.try_acquire().map_err(full)
    }

    /// Reports the outcome of a question that this task asked. Ignores failures of this machine (no
    /// free descriptor). The caller reports no look-up that waited for another task's equal
    /// question.
    fn report(&self, answer: &Result<Answer, Denial>) {
        let Some(watch) = &self.watch else { return };
        match answer {
            Ok(_) => watch.answered(),
            Err(denial) if denial.code().fault() == Fault::Upstream => {
                watch.failed(denial.sentence());
            }
            Err(_) => {}
        }
    }

    /// Sends one datagram to the first nameserver. `None` if no answer arrives, or if the answer
    /// does not settle the question.
    async fn ask_first(&self, key: &Key, name: &Name) -> Option<Answer> {
        let (Host::Name(text), record_type) = key else {
            return None;
        };
        let message = self.first.as_ref()?.ask(text, *record_type).await?;
        let code = message.metadata.response_code;
        if code == ResponseCode::NXDomain || message.answers.is_empty() {
            return Some(self.keep(key, code, Vec::new(), negative_lifetime(&message)));
        }
        let records = chain(name, *record_type, &message.answers);
        // A CNAME whose target is not in the answer is left to hickory-resolver, which follows it.
        let is_whole = records.last()?.record_type() == *record_type;
        is_whole.then(|| self.keep_records(key, records))
    }

    /// Asks all nameservers, with retries and over TCP if needed. The datagram that was sent before
    /// may have used [`ANSWER_TIMEOUT`] of [`LOOKUP_LIMIT`].
    async fn ask_all(&self, key: &Key, name: &Name) -> Result<Answer, Denial> {
        let (host, record_type) = key;
        let lookup = self.upstream.lookup(name.clone(), *record_type);
        match timeout(LOOKUP_LIMIT - ANSWER_TIMEOUT, lookup).await {
            Ok(Ok(lookup)) => {
                let records = chain(name, *record_type, lookup.answers());
                let last = records.last().map(Record::record_type);
                if last == Some(*record_type) {
                    return Ok(self.keep_records(key, records));
                }
                // A CNAME without its target's records is kept for the shortest negative lifetime.
                Ok(self.keep(key, ResponseCode::NoError, records, NEGATIVE_TTL.0))
            }
            Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none))))
                if matches!(
                    none.response_code,
                    ResponseCode::NoError | ResponseCode::NXDomain
                ) =>
            {
                let lifetime = clamp(none.negative_ttl.unwrap_or(0), NEGATIVE_TTL);
                Ok(self.keep(key, none.response_code, Vec::new(), lifetime))
            }
            Ok(Err(error)) => Err(failed(host, &error)),
            Err(_elapsed) => Err(timed_out(host)),
        }
    }

    /// Caches records for the shortest of their times to live, each within [`POSITIVE_TTL`].
    fn keep_records(&self, key: &Key, mut records: Vec<Record>) -> Answer {
        records.truncate(MAX_RECORDS);
        let mut lifetime = POSITIVE_TTL.1;
        for record in &mut records {
            let lives = clamp(record.ttl, POSITIVE_TTL);
            record.ttl = u32::try_from(lives.as_secs()).unwrap_or(u32::MAX);
            lifetime = lifetime.min(lives);
        }
        self.keep(key, ResponseCode::NoError, records, lifetime)
    }

    /// Caches an answer and returns it.
    fn keep(
        &self,
        key: &Key,
        code: ResponseCode,
        records: Vec<Record>,
        lifetime: Duration,
    ) -> Answer {
        let answer = Answer { code, records };
        self.answers.keep(key, &answer, lifetime);
        answer
    }
}

fn clamp(seconds: u32, (least, most): (Duration, Duration)) -> Duration {
    Duration::from_secs(seconds.into()).clamp(least, most)
}

/// Time to live of a negative answer, within [`NEGATIVE_TTL`] (RFC 2308, section 5).
fn negative_lifetime(message: &Message) -> Duration {
    let soa = message
        .authorities
        .iter()
        .find_map(|record| match &record.data {
            RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        });
    clamp(soa.unwrap_or(0), NEGATIVE_TTL)
}

fn nameservers_of_the_system() -> Result<Vec<SocketAddr>, ResolverError> {
    let text = std::fs::read(RESOLV_CONF).map_err(ResolverError::NoNameservers)?;
    let nameservers = nameservers_of(&String::from_utf8_lossy(&text));
    match nameservers.is_empty() {
        true => Err(ResolverError::NoNameservers(std::io::Error::other(
            "the file lists none",
        ))),
        false => Ok(nameservers),
    }
}

fn nameserver(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn options() -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = TRY_LIMIT;
    options.attempts = 1;
    options.use_hosts_file = ResolveHosts::Never;
    // `AnswerCache` keeps the answers instead.
    options.cache_size = 0;
    (options.positive_min_ttl, options.positive_max_ttl) =
        (Some(POSITIVE_TTL.0), Some(POSITIVE_TTL.1));
    (options.negative_min_ttl, options.negative_max_ttl) =
        (Some(NEGATIVE_TTL.0), Some(NEGATIVE_TTL.1));
    options.max_active_requests = MAX_TCP_QUESTIONS;
    // Random ids and source ports are the library's default; a random letter case adds bits that
    // an off-path attacker would have to guess.
    options.case_randomization = true;
    options
}

/// The name with a trailing dot, so that no search list applies.
fn absolute(name: &str) -> Result<Name, Denial> {
    let mut name = Name::from_ascii(name).map_err(Denial::malformed)?;
    name.set_fqdn(true);
    Ok(name)
}

/// Waits for both. After one has ended, the other may take [`FAMILY_GRACE`] longer if the ended one
/// found records, otherwise [`LOOKUP_LIMIT`] longer. After that time, its result is `None`.
async fn both<F>(v4: F, v6: F) -> (Option<F::Output>, Option<F::Output>)
where
    F: Future<Output = Result<Answer, Denial>>,
{
    let found = |result: &F::Output| result.as_ref().is_ok_and(|a| !a.records.is_empty());
    let grace = |result: &F::Output| match found(result) {
        true => FAMILY_GRACE,
        false => LOOKUP_LIMIT,
    };
    match select(pin!(v4), pin!(v6)).await {
        Either::Left((v4, v6)) => {
            let v6 = timeout(grace(&v4), v6).await.ok();
            (Some(v4), v6)
        }
        Either::Right((v6, v4)) => {
            let v4 = timeout(grace(&v6), v4).await.ok();
            (v4, Some(v6))
        }
    }
}

/// The records that answer the question, without the other records of the message: the chain of
/// CNAMEs from the name, then the records of the last name in the chain.
fn chain(name: &Name, record_type: RecordType, answers: &[Record]) -> Vec<Record> {
    let mut chain = Vec::new();
    let mut owner = name;
    for _ in 0..=MAX_CNAMES {
        let of_owner = |kind: RecordType| {
            answers.iter().filter(move |record| {
                record.dns_class == DNSClass::IN
                    && record.record_type() == kind
                    && record.name == *owner
            })
        };
        let found = chain.len();
        chain.extend(of_owner(record_type).map(|record| owned_by(owner, record)));
        if chain.len() > found {
            break;
        }
        let Some(record) = of_owner(RecordType::CNAME).next() else {
            break;
        };
        chain.push(owned_by(owner, record));
        match &record.data {
            RData::CNAME(target) => owner = &target.0,
            _ => break,
        }
    }
    chain
}

/// A copy of the record with `owner` as its name. The nameserver repeats the random letter case of
/// our question, but the client did not send that letter case.
fn owned_by(owner: &Name, record: &Record) -> Record {
    let mut record = record.clone();
    record.name = owner.clone();
    record
}

fn failed(host: &Host, error: &NetError) -> Denial {
    match error {
        NetError::Timeout => timed_out(host),
        NetError::Busy => Denial::internal()
            .rule("nameserver_queue")
            .by(names::RESOLVE),
        NetError::Io(error) if crate::runtime::exhausted(error) => {
            Denial::internal().rule("sockets").by(names::RESOLVE)
        }
        NetError::Dns(_) => unreachable(host, "the nameserver failed"),
        _ => unreachable(host, "the nameserver cannot be reached"),
    }
}

fn unreachable(host: &Host, why: &str) -> Denial {
    let sentence = format!("Cannot resolve {host}: {why}");
    Denial::new(Code::UpstreamUnreachable, sentence)
        .at(Stage::Resolve)
        .by(names::RESOLVE)
}

fn timed_out(host: &Host) -> Denial {
    let sentence = format!("Cannot resolve {host}: timed out");
    Denial::new(Code::UpstreamTimeout, sentence)
        .at(Stage::Resolve)
        .by(names::RESOLVE)
}
