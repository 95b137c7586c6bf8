//! The promises of the chain, whatever addons stand in it.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use addons::contract::*;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use proptest::prelude::*;
use testkit::each_row;

use crate::fixtures::{container, flow, flow_of, request};

/// What a hook of a test's addon does.
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

/// An addon that does as it is told, and remembers that it was called.
struct Actor {
    name: &'static str,
    /// In `tunnel`, `request`, `dial`, `response` and `finished`.
    acts: [Act; 5],
    calls: Arc<Mutex<Vec<String>>>,
}

impl Actor {
    fn act(&self, phase: usize) -> Step<'static> {
        self.calls.lock().push(format!("{} {phase}", self.name));
        self.acts[phase].step()
    }
}

impl Addon for Actor {
    fn name(&self) -> &'static str {
        self.name
    }

    fn tunnel<'a>(&'a self, flow: &'a mut Flow) -> Step<'a> {
        if self.name == "identity" {
            flow.principal = Some(container("web").into());
        }
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

const DEADLINE: Duration = Duration::from_millis(100);

const NAMES: [&str; 4] = ["first", "identity", "policy", "last"];

/// A chain of actors, and the calls that they get.
fn chain_of(acts: [[Act; 5]; 4]) -> (Chain, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let actor = |(name, acts)| -> Arc<dyn Addon> {
        let calls = Arc::clone(&calls);
        Arc::new(Actor { name, acts, calls })
    };
    let addons = NAMES.into_iter().zip(acts).map(actor).collect();
    (Chain::new(addons, DEADLINE).unwrap(), calls)
}

/// All pass, but for one act of one addon.
fn all_pass_but(addon: usize, phase: usize, act: Act) -> [[Act; 5]; 4] {
    let mut acts = [[Act::Pass; 5]; 4];
    acts[addon][phase] = act;
    acts
}

/// Connects to what it is permitted to: there is nothing else it could be called with.
#[derive(Default)]
struct Dialer(AtomicUsize);

impl Dialer {
    fn connect(&self, permit: &Permit) {
        assert!(!permit.addresses().is_empty());
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn addresses() -> Addresses {
    Addresses(vec!["93.184.216.34:443".parse().unwrap()])
}

/// A flow's way to its upstream, as the engine goes it.
async fn go(chain: &Chain, dialer: &Dialer) -> Result<(), Denial> {
    let mut flow = flow(Kind::Http, "api.example.com");
    chain.tunnel(&mut flow).await?;
    chain.request(&mut flow, &mut request("/", &[])).await?;
    let permit = chain.dial(&mut flow, addresses()).await?;
    dialer.connect(&permit);
    Ok(())
}

/// Runs on a clock that jumps to the next deadline.
fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn a_panic_and_a_missed_deadline_are_denied_as_our_fault_and_name_the_addon() {
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
fn the_deadline_is_one_for_a_phase_and_begins_when_something_waits() {
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
            let addons: Vec<Arc<dyn Addon>> = vec![
                Arc::new(Sleeper("identity", first)),
                Arc::new(Sleeper("policy", second)),
            ];
            let chain = Chain::new(addons, DEADLINE).unwrap();
            let mut flow = flow(Kind::Tunnel, "api.example.com");
            // `long` first spends more than the deadline before anything else waits under it.
            let cleared = run(chain.tunnel(&mut flow));
            assert_eq!(cleared.is_ok(), passes, "{limits:?}");
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
    let backward = NAMES.iter().rev().map(|name| format!("{name} 3"));
    let expected: Vec<_> = forward.into_iter().chain(backward).collect();
    assert_eq!(*calls.lock(), expected);
}

#[test]
fn nobody_behind_a_denial_is_asked() {
    let (chain, calls) = chain_of(all_pass_but(1, 0, Act::Deny));
    run(go(&chain, &Dialer::default())).unwrap_err();
    assert_eq!(*calls.lock(), ["first 0", "identity 0"]);
}

#[test]
fn every_addon_is_told_once_that_a_flow_ended_even_if_one_panics() {
    for panics in 0..4 {
        let (chain, calls) = chain_of(all_pass_but(panics, 4, Act::Panic));
        let outcome = Outcome {
            status: 200,
            denial: None,
            aborted: false,
            duration: Duration::ZERO,
        };
        chain.finished(&flow(Kind::Http, "api.example.com"), &outcome);
        assert_eq!(*calls.lock(), NAMES.map(|name| format!("{name} 4")));
    }
}

#[test]
fn without_a_principal_or_an_address_there_is_no_permit() {
    let (chain, _) = chain_of([[Act::Pass; 5]; 4]);
    let mut nobodys = flow(Kind::Http, "api.example.com");
    assert!(run(chain.dial(&mut nobodys, addresses())).is_err());
    let mut owned = flow_of(&container("web"), Kind::Http, "api.example.com");
    assert!(run(chain.dial(&mut owned, Addresses(Vec::new()))).is_err());
    let permit = run(chain.dial(&mut owned, addresses())).unwrap();
    assert_eq!(permit.addresses(), addresses().0);
    assert_eq!(permit.host(), &owned.host);
}

#[test]
fn a_slot_that_is_missing_is_named_at_start() {
    struct Needs;
    impl Addon for Needs {
        fn name(&self) -> &'static str {
            "needs"
        }
        fn order(&self) -> Order {
            Order {
                needs: vec![Slot::of::<u32>()],
                ..Order::default()
            }
        }
    }
    let errors = Chain::new(vec![Arc::new(Needs)], DEADLINE).err().unwrap();
    assert_eq!(
        errors,
        [
            OrderError::Missing("identity"),
            OrderError::Missing("policy"),
            OrderError::Unprovided {
                addon: "needs",
                slot: "u32"
            },
        ]
    );
}

const WISHES: [&str; 5] = ["identity", "policy", "a", "b", "c"];

/// An addon that wants to stand somewhere. Names in orders are static, so wishes are chosen from
/// slices of one list.
#[derive(Clone, Debug)]
struct Wishful {
    name: &'static str,
    after: &'static [&'static str],
    before: &'static [&'static str],
}

impl Addon for Wishful {
    fn name(&self) -> &'static str {
        self.name
    }

    fn order(&self) -> Order {
        Order {
            after: self.after,
            before: self.before,
            ..Order::default()
        }
    }
}

fn some_wishes() -> impl Strategy<Value = &'static [&'static str]> {
    (0..5_usize, 0..2_usize).prop_map(|(from, count)| {
        let end = (from + count).min(WISHES.len());
        &WISHES[from..end]
    })
}

fn wishful_chain() -> impl Strategy<Value = Vec<Wishful>> {
    let wish = (some_wishes(), some_wishes());
    let wishes = proptest::collection::vec(wish, 5);
    let order = Just(WISHES.to_vec()).prop_shuffle();
    (wishes, order, 2..=5_usize).prop_map(|(wishes, names, length)| {
        let wishful = |(name, (after, before))| Wishful {
            name,
            after,
            before,
        };
        names
            .into_iter()
            .zip(wishes)
            .map(wishful)
            .take(length)
            .collect()
    })
}

/// What the order promises, told pair by pair.
fn holds(addons: &[Wishful]) -> bool {
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
    fn an_order_is_accepted_if_and_only_if_every_wish_holds(addons in wishful_chain()) {
        let chain: Vec<Arc<dyn Addon>> =
            addons.iter().map(|addon| Arc::new(addon.clone()) as Arc<dyn Addon>).collect();
        prop_assert_eq!(Chain::new(chain, DEADLINE).is_ok(), holds(&addons));
    }

    #[test]
    fn any_denial_in_any_phase_means_that_nothing_is_dialled(
        acts in proptest::array::uniform4(proptest::array::uniform5(any_act())),
    ) {
        let (chain, _) = chain_of(acts);
        let dialer = Dialer::default();
        let result = run(go(&chain, &dialer));
        let all_pass = acts.iter().all(|acts| acts[..3].iter().all(|act| act.passes()));
        prop_assert_eq!(result.is_ok(), all_pass);
        prop_assert_eq!(dialer.0.load(Ordering::Relaxed), usize::from(all_pass));
    }
}
