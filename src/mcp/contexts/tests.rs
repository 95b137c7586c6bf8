use addons::contract::{AuthMode, Effect, Executing, Handover, Registration, Source, Standing};
use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::task::yield_now;

use super::*;

const TTL: Duration = Duration::from_secs(600);

fn limits(capacity: usize) -> ContextSettings {
    ContextSettings { ttl: TTL, capacity }
}

fn container(id: &str) -> Arc<Container> {
    let id = ContainerId::parse(id).unwrap();
    let now = OffsetDateTime::now_utc();
    Arc::new(Container::new(Registration {
        source: Source::Listener(id.clone()),
        id,
        lease: LeaseId::generate(),
        repos: Vec::new(),
        auth_mode: AuthMode::User,
        created_at: now,
        expires_at: now + time::Duration::HOUR,
        allowed_domains: None,
        standing: Standing::default(),
    }))
}

fn contexts() -> Arc<Contexts> {
    Contexts::new(IntGauge::new("active", "active").unwrap())
}

fn allowed(id: &str) -> RequestContext {
    let mut context = RequestContext::new(id.into(), "tools/call".into());
    context.decision = Some(Effect::Allow);
    context
}

fn take(contexts: &Contexts, web: &Container, id: &str) -> Result<Arc<RequestContext>, NoContext> {
    contexts.take(web.lease, id, TTL, |_| Ok(()))
}

fn seen(context: &RequestContext) -> Value {
    serde_json::from_str(&context.to_json()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_context_is_found_with_its_lease_alone_until_its_time_is_over() {
    let (contexts, web, db) = (contexts(), container("web"), container("db"));
    contexts.keep(&web, allowed("1"), &limits(100));
    assert!(contexts.find(web.lease, "1", TTL).is_ok());
    let find = |lease, id| contexts.find(lease, id, TTL).err();
    assert_eq!(find(db.lease, "1"), Some(NoContext::Unknown));
    assert_eq!(find(web.lease, "2"), Some(NoContext::Unknown));
    sleep(TTL).await;
    assert_eq!(find(web.lease, "1"), Some(NoContext::Expired));
    for _repetition in 0..2 {
        assert_eq!(take(&contexts, &web, "1").err(), Some(NoContext::Expired));
    }
    sleep(TTL * 2).await;
    assert_eq!(find(web.lease, "1"), Some(NoContext::Unknown));
    assert_eq!(contexts.active.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_context_that_does_not_fit_the_response_stays() {
    let (contexts, web) = (contexts(), container("web"));
    contexts.keep(&web, allowed("1"), &limits(100));
    let refused = contexts.take(web.lease, "1", TTL, |_| Err(NoContext::OfAnotherTool));
    assert_eq!(refused.err(), Some(NoContext::OfAnotherTool));
    assert!(take(&contexts, &web, "1").is_ok());
    assert_eq!(take(&contexts, &web, "1").err(), Some(NoContext::Unknown));
}

#[test]
fn a_context_is_of_the_tool_by_its_name_or_the_callers_id_alone() {
    let mut context = allowed("1");
    context.tool = Some(Tool::Named("kb_search".into()));
    context.tool_id = Some("mcp-exec".into());
    testkit::each_row(
        [
            (Tool::Named("kb_search".into()), true),
            (Tool::Named("mcp-exec".into()), true),
            (Tool::Named("kb".into()), false),
            (Tool::Named("docker:kb_search".into()), false),
            (Tool::Named("KB_search".into()), false),
            (Tool::OfClaudeCode("kb_search".into()), false),
            (Tool::OfClaudeCode("mcp-exec".into()), false),
        ],
        |(tool, expected)| assert_eq!(context.is_of(&tool), expected, "{tool:?}"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_has_a_tenth_of_the_bytes() {
    let (contexts, web, db) = (contexts(), container("web"), container("db"));
    contexts.keep(&db, allowed("0"), &limits(100_000));
    let params = format!(r#"{{"name":"{}"}}"#, "x".repeat(MAX_PARAMS - 100));
    let params = RawValue::from_string(params).unwrap();
    for id in 0..1000 {
        let mut context = allowed(&id.to_string());
        context.params = Some(params.clone());
        contexts.keep(&web, context, &limits(100_000));
    }
    let kept = contexts.kept.lock();
    let own = &kept.leases[&web.lease];
    assert!(own.bytes <= MAX_BYTES / SHARE);
    assert!(
        own.ids.len() > 500 && own.ids.len() < 1000,
        "{}",
        own.ids.len()
    );
    let all: usize = kept.by_id.values().map(|slot| slot.bytes).sum();
    assert_eq!(kept.bytes, all);
    assert!(kept.leases.contains_key(&db.lease));
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_is_forgotten_without_further_requests() {
    let (contexts, web) = (contexts(), container("web"));
    contexts.keep(&web, allowed("1"), &limits(100));
    assert_eq!(contexts.active.get(), 1);
    sleep(TTL * 3 / 2).await;
    assert_eq!(contexts.active.get(), 0);
    assert_eq!(
        contexts.find(web.lease, "1", TTL).err(),
        Some(NoContext::Expired)
    );
    sleep(TTL).await;
    assert_eq!(
        contexts.find(web.lease, "1", TTL).err(),
        Some(NoContext::Unknown)
    );
    assert!(!contexts.kept.lock().is_swept);
}

#[tokio::test(start_paused = true)]
async fn over_its_capacity_the_oldest_context_goes_of_the_same_container_first() {
    let (contexts, web, db) = (contexts(), container("web"), container("db"));
    let ids = |lease| {
        (0..20)
            .filter(|id| contexts.find(lease, &id.to_string(), TTL).is_ok())
            .count()
    };
    contexts.keep(&db, allowed("0"), &limits(20));
    for id in 0..20 {
        contexts.keep(&web, allowed(&id.to_string()), &limits(20));
    }
    assert_eq!((ids(web.lease), ids(db.lease)), (2, 1));
    assert!(contexts.find(web.lease, "19", TTL).is_ok());
    contexts.keep(&container("third"), allowed("0"), &limits(3));
    assert_eq!((ids(web.lease), ids(db.lease)), (2, 0));
    assert_eq!(contexts.active.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_second_context_with_an_id_replaces_the_first_and_not_its_approval() {
    let (contexts, web) = (contexts(), container("web"));
    let tool = || (Arc::from("kb"), Arc::from("pay"));
    let executing = Executing {
        digest: "d".into(),
        level: Default::default(),
        continues: false,
    };
    let mut first = allowed("1");
    first.handover = Some(Arc::new(Handover::new(
        tool(),
        "args".into(),
        None,
        executing,
    )));
    contexts.keep(&web, first, &limits(100));
    contexts.keep(&web, allowed("1"), &limits(100));
    assert!(
        contexts
            .find(web.lease, "1", TTL)
            .unwrap()
            .handover
            .is_none()
    );
    assert_eq!(contexts.active.get(), 1);
}

#[derive(Clone, Debug)]
enum Act {
    Before(u8),
    Bridge(u8, Option<i32>),
    After(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..6_u8).prop_map(Act::Before),
        (0..6_u8, prop::option::of(0..256_i32)).prop_map(|(id, exit)| Act::Bridge(id, exit)),
        (0..6_u8).prop_map(Act::After),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // Feature: unified-sidecar, Property 2: Context Sharing Lifecycle
    #[test]
    fn a_context_is_stored_seen_completed_read_and_removed(
        acts in prop::collection::vec(act(), 1..40),
        decision in prop::sample::select(Effect::ALL.to_vec()),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (contexts, web) = (contexts(), container("web"));
            let mut expected: HashMap<u8, Option<Option<i32>>> = HashMap::new();
            for act in acts {
                match act {
                    Act::Before(id) => {
                        let mut context = allowed(&id.to_string());
                        context.decision = Some(decision);
                        contexts.keep(&web, context, &limits(1000));
                        expected.insert(id, None);
                    }
                    Act::Bridge(id, exit) => {
                        let found = contexts.find(web.lease, &id.to_string(), TTL);
                        assert_eq!(found.is_ok(), expected.contains_key(&id));
                        if let Ok(context) = found {
                            assert_eq!(seen(&context)["decision"], decision.as_str());
                            context.started();
                            context.ended(exit);
                            let before = expected[&id].flatten();
                            expected.insert(id, Some(before.or(exit)));
                        }
                    }
                    Act::After(id) => {
                        let taken = take(&contexts, &web, &id.to_string());
                        match expected.remove(&id) {
                            None => assert_eq!(taken.err(), Some(NoContext::Unknown)),
                            Some(executed) => {
                                let seen = seen(&taken.unwrap());
                                assert_eq!(seen["decision"], decision.as_str());
                                assert_eq!(seen["execution_ended"].is_string(), executed.is_some());
                                assert_eq!(seen["exit_code"].as_i64(), executed.flatten().map(i64::from));
                            }
                        }
                    }
                }
                assert_eq!(contexts.active.get(), expected.len() as i64);
            }
            web.end();
            yield_now().await;
            yield_now().await;
            assert_eq!(contexts.active.get(), 0);
            assert!(contexts.kept.lock().by_id.is_empty());
            assert_eq!(contexts.kept.lock().bytes, 0);
        });
    }
}
