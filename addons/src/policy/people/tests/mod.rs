mod rules;

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use time::OffsetDateTime;

use crate::contract::{
    ApprovalAnswer, ApprovalId, ApprovalLedger, ApprovalOutcome, BoxFuture, Chain, Code, Container,
    Delegation, Denial, Flow, GrantId, HostPattern, Identified, Identify, Kind, LeaseId, Level,
    Link, LiveGrant, OwnedFlow, Principal, Question, QuestionKind, QuestionLimit, Request,
    RestsOnGrant, System, Unavailable, names,
};
use crate::fixtures::{Nowhere, container, query, read_files, registration, request, start_of};
use crate::policy::{Policy, PolicySettings};

const HOST: &str = "files.example.com";

/// A ledger whose answers a test sets.
struct Answers {
    live: Mutex<Vec<LiveGrant>>,
    answer: Mutex<Result<ApprovalAnswer, Unavailable>>,
    outcome: Mutex<Option<ApprovalOutcome>>,
    /// Becomes live when somebody asks or waits.
    granted: Mutex<Option<LiveGrant>>,
    usable: bool,
    asked: Mutex<Vec<Question>>,
    lease: LeaseId,
}

impl Answers {
    fn of(container: &Container) -> Self {
        Self {
            live: Mutex::default(),
            answer: Mutex::new(Ok(ApprovalAnswer::Open(ApprovalId::parse(ID).unwrap()))),
            outcome: Mutex::default(),
            granted: Mutex::default(),
            usable: true,
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

    fn ttl(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<ApprovalAnswer, Unavailable>> {
        self.asked.lock().push(question);
        let answer = self.answer.lock().clone();
        if let Ok(ApprovalAnswer::Granted(_)) = answer {
            self.grant();
        }
        Box::pin(async move { answer })
    }

    fn wait(
        &self,
        _: ApprovalId,
        _: Duration,
    ) -> BoxFuture<'_, Result<Option<ApprovalOutcome>, Unavailable>> {
        let outcome = self.outcome.lock().clone();
        self.grant();
        Box::pin(async move { Ok(outcome) })
    }

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
async fn a_container_with_its_own_domains_asks_only_about_those_and_is_granted_no_others() {
    let mut registration = registration("web");
    registration.allowed_domains = Some(vec![HostPattern::parse("*.example.com").unwrap()]);
    let container = Arc::new(Container::new(registration));
    let ledger = Answers::of(&container);
    ledger.live.lock().push(to_host("granted.example.org:443"));
    let fixture = Fixture::with(container, ledger, ASK, "0s");
    let pending = Some(Code::ApprovalPending);
    assert_eq!(
        code(fixture.connect("files.example.com:443").await),
        pending
    );
    for outside in ["files.example.org:443", "granted.example.org:443"] {
        let denied = Some(Code::DomainNotAllowed);
        assert_eq!(code(fixture.connect(outside).await), denied, "{outside}");
    }
    assert_eq!(fixture.ledger.subjects(), ["files.example.com:443"]);
}

#[tokio::test]
async fn a_grant_permits_exactly_its_host_and_port_up_to_its_level_and_time() {
    let now = OffsetDateTime::now_utc();
    let ends = |seconds| Some(now + time::Duration::seconds(seconds));
    let granted = "files.example.com:443";
    for (authority, level, ends, passes) in [
        (granted, Level::Public, None, true),
        (granted, Level::Confidential, None, true),
        (granted, Level::Secret, None, false),
        (granted, Level::Public, ends(60), true),
        (granted, Level::Public, ends(-1), false),
        ("FILES.Example.COM.:443", Level::Public, None, true),
        ("files.example.com:8443", Level::Public, None, false),
        ("files.example.com:44", Level::Public, None, false),
        ("example.com:443", Level::Public, None, false),
        ("x.files.example.com:443", Level::Public, None, false),
        ("other.example.com:443", Level::Public, None, false),
        ("xfiles.example.com:443", Level::Public, None, false),
        ("fıles.example.com:443", Level::Public, None, false),
    ] {
        let fixture = Fixture::new(ASK);
        fixture.container.raise_level(level);
        fixture.ledger.live.lock().push(LiveGrant {
            ends,
            ..to_host(granted)
        });
        let permitted = fixture.connect(authority).await;
        if let Ok(flow) = &permitted {
            assert_eq!(flow.upstream_label(), "granted");
            assert!(flow.find_slot::<RestsOnGrant>().is_some());
            assert_eq!(flow.record().rule.as_deref(), Some(&*format!("grant {ID}")));
        }
        let row = format!("{authority} {level:?} {ends:?}");
        assert_eq!(permitted.is_ok(), passes, "{row}");
        // What the grant does not cover is another question.
        assert_eq!(fixture.ledger.asked.lock().is_empty(), passes, "{row}");
    }
}

#[tokio::test]
async fn a_grant_of_another_lease_permits_nothing() {
    let (before, after) = (container("web"), container("web"));
    let ledger = Answers::of(&before);
    ledger.live.lock().push(to_host("files.example.com:443"));
    let fixture = Fixture::with(after, ledger, ASK, "0s");
    let denied = code(fixture.connect("files.example.com:443").await);
    assert_eq!(denied, Some(Code::ApprovalPending));
}

#[tokio::test]
async fn rules_still_judge_a_granted_host() {
    let shut =
        "unknown_hosts: ask, rules: [{ name: shut, effect: deny, hosts: [\"*.example.com\"] }]";
    let fixture = Fixture::new(shut);
    fixture
        .ledger
        .live
        .lock()
        .push(to_host("files.example.com:443"));
    let denied = code(fixture.connect("files.example.com:443").await);
    assert_eq!(denied, Some(Code::RuleDenied));
}

#[tokio::test]
async fn only_a_grant_opens_dns_and_a_dns_question_asks_nobody() {
    let fixture = Fixture::new(ASK);
    let ask = async || {
        let mut flow = fixture.flow(Kind::Dns, &format!("{HOST}:0"));
        fixture
            .chain
            .dns_query(&mut flow, &mut query(HOST))
            .await
            .map(drop)
    };
    assert_eq!(code(ask().await), Some(Code::DomainNotAllowed));
    fixture
        .ledger
        .live
        .lock()
        .push(to_host("files.example.com:8443"));
    assert_eq!(code(ask().await), None);
    fixture.container.raise_level(Level::Secret);
    assert_eq!(code(ask().await), Some(Code::DomainNotAllowed));
    assert_eq!(fixture.ledger.subjects(), [""; 0]);
}

#[tokio::test]
async fn each_answer_of_the_ledger_has_its_denial() {
    let approval = ApprovalId::parse(ID).unwrap();
    let words = |words: &str| ApprovalAnswer::Denied {
        approval,
        words: (!words.is_empty()).then(|| words.into()),
    };
    let rejected = format!("Rejected by a person (approval {ID}): ");
    for (answer, denied, sentence, outcome) in [
        (
            Ok(words("use the mirror\n at  mirror.example.com")),
            Code::ApprovalRejected,
            format!("{rejected}use the mirror at mirror.example.com"),
            None,
        ),
        (
            Ok(words("")),
            Code::ApprovalRejected,
            format!("{rejected}do not repeat the request"),
            None,
        ),
        (
            Ok(ApprovalAnswer::Full(QuestionLimit::Container)),
            Code::DomainNotAllowed,
            format!("Domain not allowed: {HOST}"),
            Some("full"),
        ),
        (
            Ok(ApprovalAnswer::Used),
            Code::DomainNotAllowed,
            format!("Domain not allowed: {HOST}"),
            Some("used"),
        ),
        (
            Err(Unavailable),
            Code::RegistryUnavailable,
            "Registry unavailable".to_owned(),
            None,
        ),
    ] {
        let fixture = Fixture::new(ASK);
        *fixture.ledger.answer.lock() = answer.clone();
        let denial = fixture.connect(&format!("{HOST}:443")).await.unwrap_err();
        assert_eq!(
            (denial.code(), denial.sentence()),
            (denied, &*sentence),
            "{answer:?}"
        );
        assert_eq!(denial.detail("outcome"), outcome, "{answer:?}");
    }
}

#[tokio::test]
async fn a_flow_passes_as_soon_as_a_grant_answers_it_and_can_be_used() {
    let grant = GrantId::parse(ID).unwrap();
    let approval = ApprovalId::parse(ID).unwrap();
    let open = || Ok(ApprovalAnswer::Open(approval));
    for (answer, hold, outcome, usable, denied) in [
        (Ok(ApprovalAnswer::Granted(grant)), "0s", None, true, None),
        (
            Ok(ApprovalAnswer::Granted(grant)),
            "0s",
            None,
            false,
            Some(Code::DomainNotAllowed),
        ),
        (
            open(),
            "0s",
            Some(ApprovalOutcome::Granted(grant)),
            true,
            Some(Code::ApprovalPending),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Granted(grant)),
            true,
            None,
        ),
        (open(), "2s", None, true, Some(Code::ApprovalPending)),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Denied(None)),
            true,
            Some(Code::ApprovalRejected),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Expired),
            true,
            Some(Code::DomainNotAllowed),
        ),
        (
            open(),
            "2s",
            Some(ApprovalOutcome::Ended),
            true,
            Some(Code::DomainNotAllowed),
        ),
    ] {
        let container = container("web");
        let ledger = Answers {
            usable,
            ..Answers::of(&container)
        };
        let row = format!("{answer:?} {hold} {outcome:?}");
        *ledger.answer.lock() = answer;
        if let Some(ApprovalOutcome::Granted(_)) | None = outcome
            && denied.is_none()
        {
            *ledger.granted.lock() = Some(to_host("files.example.com:443"));
        }
        *ledger.outcome.lock() = outcome;
        let fixture = Fixture::with(container, ledger, ASK, hold);
        let judged = fixture.connect("files.example.com:443").await;
        assert_eq!(code(judged), denied, "{row}");
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
