//! The bounds of the ledger: a container fills its own places and no other's.

use proptest::prelude::*;
use testkit::each_row;
use unified_proxy::approvals::bounds::{
    MAX_ARGUMENT_BYTES, MAX_DECIDED, MAX_KEPT_BYTES, MAX_NEW_PER_WINDOW, MAX_PAGE, MAX_PENDING,
    MAX_PENDING_PER_CONTAINER, MAX_TOPIC_BYTES, RATE_WINDOW,
};

use super::*;

/// A question with arguments of this many bytes.
fn large(sandbox: &Sandbox, subject: &str, bytes: usize) -> Question {
    let text = format!("\"{}\"", "x".repeat(bytes - 2));
    let arguments = RawValue::from_string(text).unwrap();
    let topic = sandbox.topic(QuestionKind::Tool, subject);
    Question::new(topic, Some(&arguments)).unwrap()
}

#[test]
fn a_container_has_at_most_30_new_questions_a_minute_and_32_open_ones() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    for number in 0..MAX_NEW_PER_WINDOW {
        store.opened(&sandbox.call(number));
    }
    assert_eq!(store.limited(&sandbox.call(100)), QuestionLimit::Rate);
    store.opened(&sandbox.call(0));
    // A new lease of the container, a restart and the end of questions give no further ones.
    store.reopen();
    let again = Sandbox::new("c1");
    assert_eq!(store.limited(&again.call(0)), QuestionLimit::Rate);
    let first = store.opened(&sandbox.call(0));
    store.deny(first, "no").unwrap();
    assert_eq!(store.limited(&sandbox.call(100)), QuestionLimit::Rate);
    store.opened(&Sandbox::new("c2").call(0));

    store.pass(RATE_WINDOW);
    let open = MAX_NEW_PER_WINDOW - 1;
    for number in 0..MAX_PENDING_PER_CONTAINER - open {
        store.opened(&sandbox.call(100 + number));
    }
    assert_eq!(store.limited(&sandbox.call(200)), QuestionLimit::Container);
    let open = store.opened(&sandbox.call(100));
    store.approve(open, None).unwrap();
    store.opened(&sandbox.call(200));
}

#[test]
fn all_containers_together_have_at_most_1000_open_questions() {
    let mut store = Store::new();
    for number in 0..MAX_PENDING {
        let sandbox = Sandbox::new(&format!("c{}", number / 25));
        store.opened(&sandbox.call(number));
    }
    let next = Sandbox::new("next");
    assert_eq!(store.limited(&next.call(0)), QuestionLimit::All);
    store.pass(TTL);
    store.opened(&next.call(0));
}

#[test]
fn a_question_that_nobody_would_read_is_refused() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let rest = sandbox.topic(QuestionKind::Tool, "").size();
    each_row(
        [
            ("a".to_owned(), MAX_ARGUMENT_BYTES, true),
            ("b".to_owned(), MAX_ARGUMENT_BYTES + 1, false),
            ("c".repeat(MAX_TOPIC_BYTES - rest), 2, true),
            ("d".repeat(MAX_TOPIC_BYTES - rest + 1), 2, false),
        ],
        |(subject, bytes, fits)| {
            let question = large(&sandbox, &subject, bytes);
            if fits {
                let id = store.opened(&question);
                let kept = store.store.get(id, store.now).unwrap().unwrap();
                assert_eq!(kept.arguments.as_deref(), question.arguments());
            } else {
                assert_eq!(store.limited(&question), QuestionLimit::TooLong);
            }
        },
    );
}

#[test]
fn arguments_of_decided_questions_make_room_first_those_of_the_same_container() {
    let mut store = Store::new();
    let bytes = MAX_ARGUMENT_BYTES;
    let fits = MAX_KEPT_BYTES / bytes;
    let sandboxes: Vec<_> = (0..12)
        .map(|number| Sandbox::new(&format!("c{number}")))
        .collect();
    let mut ids = Vec::new();
    for number in 0..fits {
        let sandbox = &sandboxes[number / 25];
        ids.push(store.opened(&large(sandbox, &format!("t{number}"), bytes)));
    }
    let (own, other) = (&sandboxes[0], Sandbox::new("other"));
    let ask = |store: &mut Store, sandbox: &Sandbox, subject: &str| {
        store.ask(&large(sandbox, subject, bytes))
    };
    assert_eq!(
        ask(&mut store, &other, "new"),
        Asked::Full(QuestionLimit::Space),
        "open questions keep their arguments"
    );
    store.opened(&other.host("example.com:443"));
    // The oldest decision is another container's.
    store.deny(ids[fits - 1], "no").unwrap();
    store.pass(RATE_WINDOW);
    store.deny(ids[0], "no").unwrap();
    store.deny(ids[1], "no").unwrap();
    let kept = |store: &mut Store, id| {
        let record = store.store.get(id, store.now).unwrap().unwrap();
        record.arguments.is_some()
    };
    assert!(matches!(ask(&mut store, own, "new"), Asked::Open(_)));
    assert!(!kept(&mut store, ids[0]) && kept(&mut store, ids[1]));
    assert!(matches!(ask(&mut store, &other, "new"), Asked::Open(_)));
    assert!(!kept(&mut store, ids[fits - 1]) && kept(&mut store, ids[1]));
    let denied = ask(&mut store, own, "t0");
    assert!(matches!(denied, Asked::Denied { .. }), "the denial stays");
}

#[test]
fn old_questions_are_deleted_first_those_that_nobody_decided() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let denied = store.opened(&sandbox.call(1));
    store.deny(denied, "no").unwrap();
    let granted = store.opened(&sandbox.call(2));
    store.approve(granted, Some(Scope::Lease)).unwrap();
    store.opened(&sandbox.host("example.com:443"));
    let row = "INSERT INTO questions (id, state, kind, container, lease, subject, argument_bytes,
            digest, level, revision, created_at, expires_at, attempts, closed_at)
        WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
        SELECT printf('%032x', n), iif(n % 2, 'expired', 'used'), 'tool', 'c9', ?2, 's', 0,
            printf('%064x', n), 0, 'r', ?3 + n, ?3 + n, 1, ?3 + n FROM n";
    let conn = rusqlite::Connection::open(store.directory.path().join(FILE_NAME)).unwrap();
    let since = i64::try_from(store.now.unix_timestamp_nanos() / 1_000_000).unwrap();
    let kept = i64::try_from(MAX_DECIDED).unwrap();
    let many = kept + 10;
    conn.execute(
        row,
        rusqlite::params![many, sandbox.lease.to_string(), since],
    )
    .unwrap();
    let count = |state: &str| -> i64 {
        let count = "SELECT count(*) FROM questions WHERE state = ?1";
        conn.query_row(count, [state], |row| row.get(0)).unwrap()
    };
    store.pass(Duration::from_secs(200));
    store.store.prune(store.now).unwrap();
    assert_eq!(count("used"), many / 2);
    assert_eq!(count("expired"), kept - many / 2 - 2);
    assert_eq!(store.state(denied), State::Denied);

    // After 30 days, all that answers no question any more is gone.
    store.pass(Duration::from_secs(31 * 24 * 3600));
    store.store.prune(store.now).unwrap();
    assert_eq!(
        (count("used"), count("denied"), count("approved")),
        (0, 0, 1)
    );
    assert_eq!(store.store.get(denied, store.now).unwrap(), None);
    let grant = store.granted(&sandbox.call(2));
    store.store.revoke(grant, store.now).unwrap();
    store.store.prune(store.now).unwrap();
    assert_eq!(store.store.get(granted, store.now).unwrap(), None);
    assert_eq!(count("expired"), 1, "the question that was open until now");
    let grants = "SELECT count(*) FROM grants";
    let left: i64 = conn.query_row(grants, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn a_page_has_at_most_100_questions() {
    let mut store = Store::new();
    for number in 0..MAX_PAGE + 1 {
        store.opened(&Sandbox::new(&format!("c{number}")).call(0));
    }
    let filter = Filter {
        limit: Some(usize::MAX),
        ..Filter::default()
    };
    assert_eq!(
        store.store.list(&filter, store.now).unwrap().len(),
        MAX_PAGE
    );
}

/// A step of a container that floods the ledger.
#[derive(Clone, Debug)]
enum Flood {
    Call(usize),
    Host(usize),
    Large(usize),
    Pass(u64),
    NewLease,
}

fn flood() -> impl Strategy<Value = Vec<Flood>> {
    let step = prop_oneof![
        4 => (0..200_usize).prop_map(Flood::Call),
        4 => (0..200_usize).prop_map(Flood::Host),
        1 => (0..50_usize).prop_map(Flood::Large),
        1 => (1..40_u64).prop_map(Flood::Pass),
        1 => Just(Flood::NewLease),
    ];
    prop::collection::vec(step, 40..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_flood_of_one_container_leaves_the_questions_and_places_of_others_alone(
        steps in flood(),
    ) {
        let mut store = Store::new();
        let (quiet, mut loud) = (Sandbox::new("quiet"), Sandbox::new("loud"));
        let open = store.opened(&quiet.call(1));
        let approved = store.opened(&quiet.call(2));
        store.approve(approved, None).unwrap();
        let denied = store.opened(&quiet.call(3));
        store.deny(denied, "no").unwrap();
        for (number, step) in steps.iter().enumerate() {
            let question = match step {
                Flood::Call(number) => loud.call(*number),
                Flood::Host(number) => loud.host(&format!("h{number}.example.com:443")),
                Flood::Large(number) => large(&loud, &format!("t{number}"), 200 << 10),
                Flood::Pass(seconds) => {
                    store.pass(Duration::from_secs(*seconds));
                    continue;
                }
                Flood::NewLease => {
                    loud = Sandbox::new("loud");
                    continue;
                }
            };
            store.ask(&question);
            // The other container is never refused, as long as it keeps its own bounds.
            if number % 10 == 0 {
                store.opened(&quiet.host(&format!("q{number}.example.com:443")));
            }
        }
        let pending = Filter { state: Some(State::Pending), ..Filter::default() };
        let records = store.store.list(&pending, store.now).unwrap();
        let of_loud = records.iter().filter(|record| record.topic.container == loud.container);
        prop_assert!(of_loud.count() <= MAX_PENDING_PER_CONTAINER);
        prop_assert_eq!(store.opened(&quiet.call(1)), open);
        let grant = store.granted(&quiet.call(2));
        prop_assert!(store.uses(grant, &quiet));
        let answer = store.ask(&quiet.call(3));
        let is_denied = matches!(answer, Asked::Denied { approval, .. } if approval == denied);
        prop_assert!(is_denied);
    }
}
