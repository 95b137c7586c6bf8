//! Grants: what they answer, how they are used, and how they end.

use testkit::each_row;

use super::*;

#[test]
fn an_approval_for_one_execution_is_used_once_by_exactly_that_call() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let id = store.opened(&sandbox.call(1));
    store.approve(id, None).unwrap();
    store.opened(&sandbox.call(2));
    store.opened(&Sandbox::new("c1").call(1));
    let grant = store.granted(&sandbox.call(1));
    assert_eq!(
        store.granted(&sandbox.call(1)),
        grant,
        "looking does not use"
    );
    assert!(
        !store.uses(grant, &Sandbox::new("c2")),
        "another lease's grant"
    );
    assert!(store.uses(grant, &sandbox));
    for _ in 0..3 {
        assert!(!store.uses(grant, &sandbox));
        store.reopen();
    }
    assert_eq!(store.state(id), State::Used);
    let again = store.opened(&sandbox.call(1));
    assert_ne!(again, id, "a used approval answers nothing more");
}

#[test]
fn a_grant_for_a_time_answers_any_arguments_of_its_tool_until_it_ends() {
    each_row([true, false], |for_a_time| {
        let mut store = Store::new();
        let sandbox = Sandbox::new("c1");
        let scope = match for_a_time {
            true => Scope::For(Duration::from_secs(60)),
            false => Scope::Lease,
        };
        let id = store.opened(&sandbox.call(1));
        store.approve(id, Some(scope)).unwrap();
        store.pass(Duration::from_secs(59));
        store.reopen();
        for number in 1..4 {
            let grant = store.granted(&sandbox.call(number));
            assert!(store.uses(grant, &sandbox) && store.uses(grant, &sandbox));
        }
        assert_eq!(store.state(id), State::Approved);
        let other_tool = sandbox.topic(QuestionKind::Tool, "write");
        store.opened(&Question::new(other_tool, None).unwrap());
        let mut other_server = sandbox.topic(QuestionKind::Tool, "delete");
        other_server.server = Some("disks".into());
        store.opened(&Question::new(other_server, None).unwrap());
        store.opened(&Sandbox::new("c1").call(1));
        let grant = store.granted(&sandbox.call(1));
        if for_a_time {
            store.pass(Duration::from_secs(1));
        } else {
            let lease = sandbox.lease;
            store
                .store
                .end_leases(&|live| live != lease, store.now)
                .unwrap();
        }
        assert!(!store.uses(grant, &sandbox));
        assert!(store.store.grants(store.now).unwrap().is_empty());
        store.opened(&sandbox.call(1));
    });
}

#[test]
fn a_grant_and_an_open_question_answer_only_up_to_the_level_that_was_shown() {
    each_row([None, Some(Scope::Lease)], |scope| {
        let mut store = Store::new();
        let sandbox = Sandbox::new("c1");
        let at = |level| {
            let mut topic = sandbox.topic(QuestionKind::Tool, "send");
            topic.level = level;
            Question::new(topic, None).unwrap()
        };
        let shown = store.opened(&at(Level::Confidential));
        assert_eq!(store.opened(&at(Level::Public)), shown);
        let higher = store.opened(&at(Level::Secret));
        assert_ne!(higher, shown, "a person has not seen this level");
        store.approve(shown, scope).unwrap();
        assert_eq!(store.opened(&at(Level::Secret)), higher);
        store.granted(&at(Level::Public));
        store.granted(&at(Level::Confidential));
        store.deny(higher, "no").unwrap();
        // A denial answers at every level, before any grant.
        for level in Level::ALL {
            assert!(matches!(store.ask(&at(level)), Asked::Denied { .. }));
        }
    });
}

#[test]
fn an_unused_approval_ends_after_the_ttl_and_with_changed_rules() {
    type End = fn(&mut Store);
    let ends: [(&str, End); 2] = [
        ("ttl", |store| store.pass(TTL)),
        ("rules", |store| {
            store.store.end_outdated(&|_| false, store.now).unwrap();
        }),
    ];
    each_row(ends, |(what, end)| {
        let mut store = Store::new();
        let sandbox = Sandbox::new("c1");
        let id = store.opened(&sandbox.call(1));
        store.approve(id, None).unwrap();
        let grant = store.granted(&sandbox.call(1));
        end(&mut store);
        assert!(!store.uses(grant, &sandbox), "{what}");
        assert_eq!(store.state(id), State::Approved, "{what}");
        assert_ne!(store.opened(&sandbox.call(1)), id, "{what}");
    });
}

#[test]
fn an_operator_gives_and_revokes_grants_without_a_question() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let target = || Target::from(sandbox.host("example.com:443").topic());
    for scope in [Scope::Once, Scope::Always, Scope::For(Duration::ZERO)] {
        let given = store.store.add_grant(target(), scope, "ann", store.now);
        assert_eq!(refusal(given).0, 422, "{scope:?}");
    }
    let given = store
        .store
        .add_grant(target(), Scope::Lease, "ann", store.now)
        .unwrap();
    store.reopen();
    store.store.prune(store.now).unwrap();
    let live = store.store.grants(store.now).unwrap();
    assert_eq!(live, std::slice::from_ref(&given));
    assert_eq!(store.granted(&sandbox.host("example.com:443")), given.id);
    store.opened(&sandbox.host("example.com:80"));
    let revoked = store.store.revoke(given.id, store.now).unwrap();
    assert_eq!(revoked.ended_at, Some(store.now));
    assert!(!store.uses(given.id, &sandbox));
    assert_eq!(refusal(store.store.revoke(given.id, store.now)).0, 410);
    let unknown = GrantId::generate().unwrap();
    assert_eq!(refusal(store.store.revoke(unknown, store.now)).0, 404);
    store.opened(&sandbox.host("example.com:443"));
}

#[test]
fn an_approval_for_everyone_is_a_record_and_opens_nothing_by_itself() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let id = store.opened(&sandbox.host("example.com:443"));
    store.approve(id, Some(Scope::Always)).unwrap();
    assert_eq!(store.store.grants(store.now).unwrap().len(), 1);
    store.opened(&sandbox.host("example.com:443"));
}
