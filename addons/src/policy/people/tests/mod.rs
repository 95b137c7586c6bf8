mod answers;
mod audit;
mod grants;
mod learned;
mod rules;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::Method;
use parking_lot::Mutex;
use time::OffsetDateTime;

use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, BoxFuture, Chain, Code, Container,
    Delegation, Denial, Flow, GrantId, HostPattern, Identified, Identify, Kind, Learned,
    LearnedHost, LeaseId, Level, Link, LiveGrant, OwnedFlow, Principal, Question, QuestionKind,
    QuestionLimit, Request, RestsOnGrant, System, Unavailable, names,
};
use crate::fixtures::{Nowhere, container, query, read_files, registration, request, start_of};
use crate::policy::{Policy, PolicySettings};

const HOST: &str = "files.example.com";

/// A ledger whose answers a test sets.
struct Answers {
    live: Mutex<Vec<LiveGrant>>,
    learned: Mutex<Vec<LearnedHost>>,
    answer: Mutex<Result<ApprovalAnswer, Unavailable>>,
    outcome: Mutex<Option<ApprovalOutcome>>,
    /// The answer to a look-up.
    known: Mutex<Option<ApprovalAnswer>>,
    /// Becomes live when somebody asks or waits.
    granted: Mutex<Option<LiveGrant>>,
    usable: bool,
    /// Nobody decides, and a wait does not end.
    hangs: bool,
    asked: Mutex<Vec<Question>>,
    lease: LeaseId,
}

impl Answers {
    fn of(container: &Container) -> Self {
        Self {
            live: Mutex::default(),
            learned: Mutex::default(),
            answer: Mutex::new(Ok(ApprovalAnswer::Open(ApprovalId::parse(ID).unwrap()))),
            outcome: Mutex::default(),
            known: Mutex::default(),
            granted: Mutex::default(),
            usable: true,
            hangs: false,
            asked: Mutex::default(),
            lease: container.lease,
        }
    }

    fn subjects(&self) -> Vec<String> {
        let asked = self.asked.lock();
        let subjects = asked
            .iter()
            .map(|question| question.topic().subject.to_string());
        subjects.collect()
    }

    fn grant(&self) {
        self.live.lock().extend(self.granted.lock().take());
    }
}

impl ApprovalLedger for Answers {
    fn live(&self, lease: LeaseId) -> Arc<[LiveGrant]> {
        let live = self.live.lock();
        live.iter()
            .filter(|_| lease == self.lease)
            .cloned()
            .collect()
    }

    fn learned(&self) -> Arc<Learned> {
        Arc::new(self.learned.lock().iter().cloned().collect())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        self.asked.lock().push(question);
        let answer = self.answer.lock().clone();
        if let Ok(ApprovalAnswer::Granted { .. }) = answer {
            self.grant();
        }
        Box::pin(async move { answer })
    }

    fn look_up(&self, _: Question) -> BoxFuture<'_, Result<Option<ApprovalAnswer>, Unavailable>> {
        let known = self.known.lock().clone();
        Box::pin(async move { Ok(known) })
    }

    fn wait(
        &self,
        _: ApprovalId,
        _: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        let outcome = self.outcome.lock().clone();
        self.grant();
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move { Ok(outcome) })
    }

    fn release(&self, _: GrantId) {}

    fn use_grant(&self, _: GrantId, _: LeaseId) -> BoxFuture<'_, Result<bool, Unavailable>> {
        let usable = self.usable;
        Box::pin(async move { Ok(usable) })
    }
}

const ID: &str = "00112233445566778899aabbccddeeff";

fn live(kind: QuestionKind, subject: &str) -> LiveGrant {
    LiveGrant {
        id: GrantId::parse(ID).unwrap(),
        kind,
        subject: subject.into(),
        level: Level::Confidential,
        ends: None,
        is_unasked: false,
    }
}

fn to_host(subject: &str) -> LiveGrant {
    live(QuestionKind::Host, subject)
}

/// Leaves the principal of each flow as it is.
struct Known;

impl Identify for Known {
    fn name(&self) -> &'static str {
        names::IDENTITY
    }

    fn identify(&self, _: &Flow, _: Option<&mut Request>) -> Identified {
        Identified {
            principal: None,
            verdict: Ok(()),
        }
    }
}

/// A chain of identity and policy, with a container and a ledger.
struct Fixture {
    container: Arc<Container>,
    ledger: Arc<Answers>,
    chain: Chain,
}

const ASK: &str = "unknown_hosts: ask";

impl Fixture {
    /// A fixture with these settings in policy.yaml, and with `hold` in proxy.yaml.
    fn with(container: Arc<Container>, ledger: Answers, policy: &str, hold: &str) -> Self {
        let files = [
            (
                "policy.yaml",
                &*format!("version: 1\npolicy: {{ {policy} }}\n"),
            ),
            (
                "proxy.yaml",
                &*format!("version: 1\napprovals: {{ hold: {hold} }}\n"),
            ),
        ];
        let settings = read_files(&files, PolicySettings::read).unwrap();
        let asks = settings.asks_about_hosts;
        let ledger = Arc::new(ledger);
        let port: Arc<dyn ApprovalLedger> = Arc::clone(&ledger) as _;
        let policy = Policy::new(settings, Arc::new(Nowhere)).with_ledger(Arc::clone(&port));
        let links = vec![Link::Identity(Arc::new(Known)), Arc::new(policy).into()];
        let chain = Chain::new(links, Duration::from_secs(10)).unwrap();
        Self {
            container,
            ledger,
            chain: chain.with_ledger(port, asks),
        }
    }

    fn new(policy: &str) -> Self {
        let container = container("web");
        let ledger = Answers::of(&container);
        Self::with(container, ledger, policy, "0s")
    }

    /// A flow to an unlisted host.
    fn flow(&self, kind: Kind, authority: &str) -> OwnedFlow {
        let (host, port) = authority.rsplit_once(':').unwrap();
        let mut start = start_of(&self.container, kind, host);
        start.entry = None;
        let mut flow = start.begin();
        if kind != Kind::Dns {
            flow.endpoint_mut().port = port.parse().unwrap();
        }
        flow
    }

    async fn connect(&self, authority: &str) -> Result<OwnedFlow, Denial> {
        let mut flow = self.flow(Kind::Tunnel, authority);
        self.chain.tunnel(&mut flow).await?;
        Ok(flow)
    }

    async fn send(&self, method: Method, authority: &str, target: &str) -> Result<(), Denial> {
        let mut flow = self.flow(Kind::Http, authority);
        let mut request = request(target, &[]);
        request.method = method;
        self.chain.request(&mut flow, &mut request).await.map(drop)
    }
}

fn code<T>(judged: Result<T, Denial>) -> Option<Code> {
    judged.err().map(|denial| denial.code())
}

#[tokio::test]
async fn an_unlisted_public_host_becomes_a_question_and_is_denied_as_pending() {
    let fixture = Fixture::new(ASK);
    fixture.container.raise_level(Level::Confidential);
    let denial = fixture.connect(&format!("{HOST}:8443")).await.unwrap_err();
    assert_eq!(denial.code(), Code::ApprovalPending);
    let sentence = format!("Waiting for approval {ID}: repeat the request after it was approved");
    assert_eq!(denial.sentence(), sentence);
    assert_eq!(denial.to_json()["approval"], ID);
    let asked = fixture.ledger.asked.lock();
    let topic = asked[0].topic();
    assert_eq!(
        (topic.kind, &*topic.subject),
        (QuestionKind::Host, "files.example.com:8443")
    );
    assert_eq!(topic.lease, fixture.container.lease);
    assert_eq!(topic.level, Level::Confidential);
    assert_eq!(topic.rule.as_deref(), Some("policy.unknown_hosts"));
}

#[tokio::test]
async fn what_no_person_may_permit_is_denied_without_a_question() {
    let shut =
        "unknown_hosts: ask, rules: [{ name: shut, effect: deny, hosts: [\"*.example.org\"] }]";
    for (policy, authority, denied) in [
        (
            "unknown_hosts: deny",
            "files.example.com:443",
            Code::DomainNotAllowed,
        ),
        ("", "files.example.com:443", Code::DomainNotAllowed),
        (ASK, "93.184.216.34:443", Code::AddressNotAllowed),
        (ASK, "169.254.169.254:80", Code::AddressNotAllowed),
        (ASK, "[2606:4700::1]:443", Code::AddressNotAllowed),
        (ASK, "0x7f.1:443", Code::AddressNotAllowed),
        (ASK, "localhost:443", Code::DomainNotAllowed),
        (ASK, "intranet:443", Code::DomainNotAllowed),
        (ASK, "com:443", Code::DomainNotAllowed),
        (ASK, "co.uk:443", Code::DomainNotAllowed),
        (ASK, "github.io:443", Code::DomainNotAllowed),
        (ASK, "metadata.google.internal:80", Code::DomainNotAllowed),
        (ASK, "printer.local:443", Code::DomainNotAllowed),
        (shut, "a.example.org:443", Code::RuleDenied),
    ] {
        let fixture = Fixture::new(policy);
        assert_eq!(
            code(fixture.connect(authority).await),
            Some(denied),
            "{policy} {authority}"
        );
        assert_eq!(fixture.ledger.subjects(), [""; 0], "{policy} {authority}");
    }
}

#[tokio::test]
async fn a_dry_run_and_a_part_of_the_proxy_open_no_question() {
    let rule =
        "unknown_hosts: ask, rules: [{ name: first, effect: ask, hosts: [\"*.example.com\"] }]";
    let fixture = Fixture::new(rule);
    let mut dry = fixture
        .flow(Kind::Tunnel, "files.example.com:443")
        .dry_run();
    let denial = fixture.chain.tunnel(&mut dry).await.unwrap_err();
    assert_eq!(denial.code(), Code::ApprovalPending);
    let sentence = "Approval needed: a person would be asked about files.example.com:443";
    assert_eq!(denial.sentence(), sentence);
    assert!(denial.edit().unwrap().contains("unified-proxy approvals"));
    let approval = ApprovalId::parse(ID).unwrap();
    for (known, denied) in [
        (ApprovalAnswer::Open(approval), Code::ApprovalPending),
        (
            ApprovalAnswer::Denied {
                approval,
                words: None,
            },
            Code::ApprovalRejected,
        ),
    ] {
        *fixture.ledger.known.lock() = Some(known);
        let mut dry = fixture
            .flow(Kind::Tunnel, "files.example.com:443")
            .dry_run();
        let denial = fixture.chain.tunnel(&mut dry).await.unwrap_err();
        assert_eq!(
            (denial.code(), denial.detail("approval")),
            (denied, Some(ID))
        );
    }

    let system = System {
        name: "mcp: files".into(),
        hosts: vec![("files.example.com", 443)]
            .into_iter()
            .map(|(host, port)| (crate::contract::Host::parse(host).unwrap(), port))
            .collect(),
        trust_private: false,
        url_secrets: Default::default(),
    };
    let delegation = Delegation::new(system, Arc::clone(&fixture.container));
    let mut start = start_of(&fixture.container, Kind::Tunnel, HOST);
    start.entry = None;
    start.principal = Some(Principal::Delegated(Arc::new(delegation)));
    let denied = code(fixture.chain.tunnel(&mut start.begin()).await);
    assert_eq!(denied, Some(Code::RuleDenied));
    assert_eq!(fixture.ledger.subjects(), [""; 0]);
}
