//! The guarantees of the chain, independent of its addons.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::*;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use proptest::prelude::*;
use testkit::each_row;

use crate::fixtures::{container, flow, flow_of, query, request, start};

/// The behaviour of a hook in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Pass,
    PassLater,
    Deny,
    DenyLater,
    Panic,
    PanicLater,
    Hang,
}

impl Act {
    fn passes(self) -> bool {
        matches!(self, Self::Pass | Self::PassLater)
    }

    fn step(self) -> Step<'static> {
        let denied = || Err(Denial::new(Code::RuleDenied, "no"));
        match self {
            Self::Pass => Step::PASS,
            Self::PassLater => Step::wait(async { Ok(()) }),
            Self::Deny => denied().into(),
            Self::DenyLater => Step::wait(async move { denied() }),
            Self::Panic => panic!("on purpose"),
            Self::PanicLater => Step::wait(async { panic!("on purpose") }),
            Self::Hang => Step::wait(pending()),
        }
    }
}

/// An addon whose hooks do what `acts` says. Records its calls.
struct Actor {
    name: &'static str,
    /// The acts in `tunnel`, `request`, `dial`, `response` and `finished`.
    acts: [Act; 5],
    calls: Arc<Mutex<Vec<String>>>,
}

impl Actor {
    fn note(&self, phase: usize) {
        self.calls.lock().push(format!("{} {phase}", self.name));
    }

    fn act(&self, phase: usize) -> Step<'static> {
        self.note(phase);
        self.acts[phase].step()
    }
}

impl Addon for Actor {
    fn name(&self) -> &'static str {
        self.name
    }

    fn tunnel<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
        self.act(0)
    }

    fn request<'a>(&'a self, _flow: &'a mut Flow, _request: &'a mut Request) -> Step<'a> {
        self.act(1)
    }

    fn dial<'a>(&'a self, _flow: &'a mut Flow, _addresses: &'a mut Addresses) -> Step<'a> {
        self.act(2)
    }

    fn response<'a>(&'a self, _flow: &'a mut Flow, _response: &'a mut Response) -> Step<'a> {
        self.act(3)
    }

    fn finished(&self, _flow: &Flow, _outcome: &Outcome) {
        let _ = self.act(4);
    }
}

/// Identifies the container `web`, and does what the `acts` of its actor say, without waiting.
struct ActingIdentity(Actor);

impl Identify for ActingIdentity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn identify(&self, _flow: &Flow, request: Option<&mut Request>) -> Identified {
        let phase = usize::from(request.is_some());
        // Identity cannot wait, so each act that waits is replaced by one that does not.
        let act = match self.0.acts[phase] {
            Act::PassLater => Act::Pass,
            Act::PanicLater => Act::Panic,
            Act::DenyLater | Act::Hang => Act::Deny,
            act => act,
        };
        self.0.note(phase);
        Identified {
            principal: Some(container("web").into()),
            verdict: act.step().ready().unwrap(),
        }
    }
}

const DEADLINE: Duration = Duration::from_millis(100);

const NAMES: [&str; 4] = ["first", "identity", "policy", "last"];

/// A chain of actors, and the record of their calls.
fn chain_of(acts: [[Act; 5]; 4]) -> (Chain, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let link = |(name, acts)| -> Link {
        let calls = Arc::clone(&calls);
        let actor = Actor { name, acts, calls };
        match name {
            "identity" => Link::Identity(Arc::new(ActingIdentity(actor))),
            _ => Link::from(Arc::new(actor)),
        }
    };
    let links = NAMES.into_iter().zip(acts).map(link).collect();
    (Chain::new(links, DEADLINE).unwrap(), calls)
}

/// Identifies the container `web` for every flow.
struct Web;

impl Identify for Web {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn identify(&self, _flow: &Flow, _request: Option<&mut Request>) -> Identified {
        Identified {
            principal: Some(container("web").into()),
            verdict: Ok(()),
        }
    }
}

/// Acts that all pass, except that of one addon in one phase.
fn all_pass_but(addon: usize, phase: usize, act: Act) -> [[Act; 5]; 4] {
    let mut acts = [[Act::Pass; 5]; 4];
    acts[addon][phase] = act;
    acts
}

/// Counts connections. Like the engine's dialer, it needs a permit to connect.
#[derive(Default)]
struct Dialer(AtomicUsize);

impl Dialer {
    fn connect(&self, permit: &Permit) {
        assert!(!permit.addresses().is_empty());
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn addresses() -> Vec<SocketAddr> {
    vec!["93.184.216.34:443".parse().unwrap()]
}

/// Takes a flow through the phases up to its upstream, as the engine does.
async fn go(chain: &Chain, dialer: &Dialer) -> Result<(), Denial> {
    let mut flow = flow(Kind::Http, "api.example.com");
    chain.tunnel(&mut flow).await?;
    chain.request(&mut flow, &mut request("/", &[])).await?;
    let permit = chain.dial(&mut flow, addresses()).await?;
    dialer.connect(&permit);
    Ok(())
}

/// Runs a future on a paused clock. When the future waits, the clock jumps to the next timer.
fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn a_panic_and_a_missed_deadline_are_internal_errors_that_name_the_addon() {
    each_row(
        [
            (Act::Panic, "panic"),
            (Act::PanicLater, "panic"),
            (Act::Hang, "deadline"),
        ],
        |(act, rule)| {
            for phase in 0..3 {
                let (chain, _) = chain_of(all_pass_but(3, phase, act));
                let denial = run(go(&chain, &Dialer::default())).unwrap_err();
                assert_eq!(denial.code(), Code::InternalError, "{act:?}");
                assert_eq!(denial.addon(), "last");
                assert_eq!(denial.rule_name(), Some(rule));
                assert!(!denial.to_json().to_string().contains("purpose"));
            }
        },
    );
}

#[test]
fn waits_without_a_limit_of_their_own_share_the_deadline_of_the_phase() {
    struct Sleeper(&'static str, Option<Duration>);
    impl Addon for Sleeper {
        fn name(&self) -> &'static str {
            self.0
        }
        fn tunnel<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
            let nap = async {
                tokio::time::sleep(DEADLINE * 2 / 3).await;
                Ok(())
            };
            match self.1 {
                Some(limit) => Step::wait_up_to(limit, nap),
                None => Step::wait(nap),
            }
        }
    }
    let long = Some(DEADLINE * 100);
    let short = Some(DEADLINE / 3);
    each_row(
        [
            ([None, long], true),
            ([long, None], true),
            ([long, long], true),
            ([None, None], false),
            ([short, long], false),
        ],
        |(limits, passes)| {
            let [first, second] = limits;
            let links = vec![
                Link::Identity(Arc::new(Web)),
                Arc::new(Sleeper("first", first)).into(),
                Arc::new(Sleeper("policy", second)).into(),
            ];
            let chain = Chain::new(links, DEADLINE).unwrap();
            let mut flow = flow(Kind::Tunnel, "api.example.com");
            // Together, both naps are longer than the deadline. A nap with its own limit does not
            // count towards the deadline, but must not be longer than the limit.
            let permit = run(chain.tunnel(&mut flow));
            assert_eq!(permit.is_ok(), passes, "{limits:?}");
        },
    );
}

#[test]
fn requests_run_forward_and_responses_backward() {
    let (chain, calls) = chain_of([[Act::Pass; 5]; 4]);
    let mut flow = flow(Kind::Http, "api.example.com");
    let mut response = Response::new(StatusCode::OK, HeaderMap::new());
    run(chain.request(&mut flow, &mut request("/", &[]))).unwrap();
    run(chain.response(&mut flow, &mut response)).unwrap();
    let forward = NAMES.map(|name| format!("{name} 1"));
    let backward = ["last 3", "policy 3", "first 3"].map(str::to_owned);
    let expected: Vec<_> = forward.into_iter().chain(backward).collect();
    assert_eq!(*calls.lock(), expected);
}

#[test]
fn no_addon_after_a_denial_is_called() {
    let (chain, calls) = chain_of(all_pass_but(1, 0, Act::Deny));
    run(go(&chain, &Dialer::default())).unwrap_err();
    assert_eq!(*calls.lock(), ["first 0", "identity 0"]);
}

#[test]
fn every_addon_sees_the_end_of_a_flow_once_even_if_one_panics() {
    for panics in [0, 2, 3] {
        let (chain, calls) = chain_of(all_pass_but(panics, 4, Act::Panic));
        let live = LiveFlow::begin(&Arc::new(chain), start(Kind::Http, "api.example.com"));
        assert!(calls.lock().is_empty());
        drop(live);
        let finished = ["first 4", "policy 4", "last 4"];
        assert_eq!(*calls.lock(), finished);
    }
}

#[test]
fn no_addon_sees_the_end_of_a_dry_run() {
    let (chain, calls) = chain_of([[Act::Pass; 5]; 4]);
    let mut dry = start(Kind::Http, "api.example.com").begin_dry();
    run(chain.request(&mut dry, &mut request("/", &[]))).unwrap();
    drop(dry);
    assert!(calls.lock().iter().all(|call| call.ends_with('1')));
}

#[test]
fn a_permit_has_the_host_and_port_of_its_flow() {
    let (chain, _) = chain_of([[Act::Pass; 5]; 4]);
    let mut flow = flow(Kind::Tunnel, "api.example.com");
    let permit = run(chain.tunnel(&mut flow)).unwrap();
    assert_eq!((permit.host(), permit.port()), (flow.host(), 443));
    let mut question = start(Kind::Dns, "api.example.com").begin();
    let query = &mut query("api.example.com");
    let permit = run(chain.dns_query(&mut question, query)).unwrap();
    assert_eq!((permit.host(), permit.port()), (flow.host(), 53));
}

/// Never finishes judging.
struct Hanging;

impl BodyJudge<Request> for Hanging {
    fn addon(&self) -> &'static str {
        "policy"
    }

    fn judge<'a>(
        self: Box<Self>,
        _flow: &'a mut Flow,
        _head: &'a mut Request,
        _body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>> {
        Box::pin(pending())
    }
}

/// Keeps the principal of every flow.
struct KeepsPrincipal;

impl Identify for KeepsPrincipal {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn identify(&self, _flow: &Flow, _request: Option<&mut Request>) -> Identified {
        Identified {
            principal: None,
            verdict: Ok(()),
        }
    }
}

#[test]
fn the_waiting_flows_of_a_container_are_limited_without_effect_on_other_containers() {
    const MOST: usize = 256;
    struct Waits;
    impl Addon for Waits {
        fn name(&self) -> &'static str {
            "policy"
        }
        fn tunnel<'a>(&'a self, _flow: &'a mut Flow) -> Step<'a> {
            Step::wait_up_to(DEADLINE * 1000, pending())
        }
    }
    let links = vec![
        Link::Identity(Arc::new(KeepsPrincipal)),
        Arc::new(Waits).into(),
    ];
    let chain = Chain::new(links, DEADLINE).unwrap();
    let (web, db) = (container("web"), container("db"));
    let mut flows: Vec<_> = (0..MOST)
        .map(|_| flow_of(&web, Kind::Tunnel, "api.example.com"))
        .collect();
    run(async {
        let mut waiting: Vec<_> = flows
            .iter_mut()
            .map(|flow| Box::pin(chain.tunnel(flow)))
            .collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let mut over = flow_of(&web, Kind::Tunnel, "api.example.com");
        let denial = chain.tunnel(&mut over).await.unwrap_err();
        assert_eq!(denial.code(), Code::RateLimited);
        assert_eq!(denial.to_json()["container_id"], "web");
        let mut others = flow_of(&db, Kind::Tunnel, "api.example.com");
        assert!(chain.tunnel(&mut others).now_or_never().is_none());
        // A look-up is not counted, since the request that it belongs to already is.
        let mut lookup = flow_of(&web, Kind::Tunnel, "api.example.com");
        lookup.put_slot(Lookup);
        assert!(chain.tunnel(&mut lookup).now_or_never().is_none());
        let mut head = request("/", &[]);
        head.judge_body(1, Hanging);
        let judges = head.take_judges().unwrap();
        let body = Buffered::unlimited(Bytes::new());
        let judged = chain.judge(&mut over, &mut head, judges, body).await;
        assert_eq!(judged.unwrap_err().code(), Code::RateLimited);
        waiting.pop();
        assert!(chain.tunnel(&mut over).now_or_never().is_none());
    });
}

#[test]
fn a_flow_that_asks_a_person_beyond_the_limit_is_answered_instead_of_held() {
    const MOST: usize = 256;
    /// Holds a flow while there is room. Without room, answers, or goes on asking for
    /// slow.example.com.
    struct Asks;
    impl Addon for Asks {
        fn name(&self) -> &'static str {
            "policy"
        }
        fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
            let goes_on = flow.host().name() == Some("slow.example.com");
            Step::ask_up_to(DEADLINE * 1000, move |room| async move {
                if room.is_left().await || goes_on {
                    pending::<()>().await;
                }
                Err(Denial::new(Code::ApprovalPending, "Waiting"))
            })
        }
    }
    let links = vec![
        Link::Identity(Arc::new(KeepsPrincipal)),
        Arc::new(Asks).into(),
    ];
    let chain = Chain::new(links, DEADLINE).unwrap();
    let (web, db) = (container("web"), container("db"));
    let flows = |host| -> Vec<_> {
        let flows = (0..MOST).map(|_| flow_of(&web, Kind::Tunnel, host));
        flows.collect()
    };
    let (mut held, mut asking) = (flows("api.example.com"), flows("slow.example.com"));
    run(async {
        let mut held: Vec<_> = held
            .iter_mut()
            .map(|flow| Box::pin(chain.tunnel(flow)))
            .collect();
        for _ in 0..2 {
            for one in &mut held {
                assert!(one.as_mut().now_or_never().is_none());
            }
        }
        let mut over = flow_of(&web, Kind::Tunnel, "api.example.com");
        let denial = chain.tunnel(&mut over).await.unwrap_err();
        assert_eq!(denial.code(), Code::ApprovalPending);
        let mut others = flow_of(&db, Kind::Tunnel, "api.example.com");
        let mut others = Box::pin(chain.tunnel(&mut others));
        for _ in 0..2 {
            assert!(others.as_mut().now_or_never().is_none());
        }
        // The flows that ask meanwhile are limited as well.
        let mut asking: Vec<_> = asking
            .iter_mut()
            .map(|flow| Box::pin(chain.tunnel(flow)))
            .collect();
        for one in &mut asking {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let denial = chain.tunnel(&mut over).await.unwrap_err();
        assert_eq!(denial.code(), Code::RateLimited);
        held.pop();
        let mut over = Box::pin(chain.tunnel(&mut over));
        for _ in 0..2 {
            assert!(over.as_mut().now_or_never().is_none());
        }
    });
}

#[test]
fn without_a_principal_or_an_address_there_is_no_permit() {
    let (chain, _) = chain_of([[Act::Pass; 5]; 4]);
    let mut unowned = flow(Kind::Http, "api.example.com");
    assert!(run(chain.dial(&mut unowned, addresses())).is_err());
    let mut owned = flow_of(&container("web"), Kind::Http, "api.example.com");
    assert!(run(chain.dial(&mut owned, Vec::new())).is_err());
    let permit = run(chain.dial(&mut owned, addresses())).unwrap();
    assert_eq!(permit.addresses(), addresses());
    assert_eq!(permit.host(), owned.host());
}

#[test]
fn missing_addons_are_named_at_start() {
    let errors = Chain::new(Vec::new(), DEADLINE).err().unwrap();
    assert_eq!(
        errors,
        [
            OrderError::NotOneIdentity,
            OrderError::Missing("identity"),
            OrderError::Missing("policy"),
        ]
    );
}

const ADDON_NAMES: [&str; 5] = ["identity", "policy", "a", "b", "c"];

/// An addon with constraints on its position. [`Order`] has static slices of names, so the
/// constraints are slices of one static list.
#[derive(Clone, Debug)]
struct Constrained {
    name: &'static str,
    after: &'static [&'static str],
    before: &'static [&'static str],
}

impl Addon for Constrained {
    fn name(&self) -> &'static str {
        self.name
    }

    fn order(&self) -> Order {
        Order {
            after: self.after,
            before: self.before,
        }
    }
}

impl Identify for Constrained {
    fn name(&self) -> &'static str {
        self.name
    }

    fn order(&self) -> Order {
        Addon::order(self)
    }

    fn identify(&self, _flow: &Flow, _request: Option<&mut Request>) -> Identified {
        Identified {
            principal: None,
            verdict: Ok(()),
        }
    }
}

fn some_names() -> impl Strategy<Value = &'static [&'static str]> {
    (0..5_usize, 0..2_usize).prop_map(|(from, count)| {
        let end = (from + count).min(ADDON_NAMES.len());
        &ADDON_NAMES[from..end]
    })
}

fn constrained_chain() -> impl Strategy<Value = Vec<Constrained>> {
    let constraint = (some_names(), some_names());
    let constraints = proptest::collection::vec(constraint, 5);
    let order = Just(ADDON_NAMES.to_vec()).prop_shuffle();
    (constraints, order, 2..=5_usize).prop_map(|(constraints, names, length)| {
        let constrained = |(name, (after, before))| Constrained {
            name,
            after,
            before,
        };
        names
            .into_iter()
            .zip(constraints)
            .map(constrained)
            .take(length)
            .collect()
    })
}

/// Whether `identity` and `policy` are present, and every pair of addons keeps its constraints.
fn holds(addons: &[Constrained]) -> bool {
    let has = |name| addons.iter().any(|addon| addon.name == name);
    let pairs = addons.iter().enumerate().all(|(at, addon)| {
        let (earlier, later) = (&addons[..at], &addons[at + 1..]);
        let wrongly_later = later.iter().any(|other| addon.after.contains(&other.name));
        let wrongly_earlier = earlier
            .iter()
            .any(|other| addon.before.contains(&other.name));
        !wrongly_later && !wrongly_earlier
    });
    has("identity") && has("policy") && pairs
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => Just(Act::Pass),
        2 => Just(Act::PassLater),
        1 => Just(Act::Deny),
        1 => Just(Act::DenyLater),
        1 => Just(Act::PanicLater),
        1 => Just(Act::Hang),
    ]
}

proptest! {
    #[test]
    fn an_order_is_accepted_if_and_only_if_every_constraint_holds(addons in constrained_chain()) {
        let link = |addon: &Constrained| match addon.name {
            "identity" => Link::Identity(Arc::new(addon.clone())),
            _ => Arc::new(addon.clone()).into(),
        };
        let links = addons.iter().map(link).collect();
        prop_assert_eq!(Chain::new(links, DEADLINE).is_ok(), holds(&addons));
    }

    #[test]
    fn a_flow_is_dialled_if_and_only_if_every_hook_passes(
        acts in proptest::array::uniform4(proptest::array::uniform5(any_act())),
    ) {
        let (chain, _) = chain_of(acts);
        let dialer = Dialer::default();
        let result = run(go(&chain, &dialer));
        // Identity has no `dial` hook.
        let asked = |(at, acts): (usize, &[Act; 5])| acts[..if at == 1 { 2 } else { 3 }].to_vec();
        let all_pass = acts.iter().enumerate().flat_map(asked).all(Act::passes);
        prop_assert_eq!(result.is_ok(), all_pass);
        prop_assert_eq!(dialer.0.load(Ordering::Relaxed), usize::from(all_pass));
    }
}
