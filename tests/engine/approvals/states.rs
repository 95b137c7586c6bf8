//! The states of a question: what each operation does in each state, and who learns what.

use testkit::each_row;

use super::*;

/// Brings a new question into a state.
fn in_state(store: &mut Store, state: State) -> (Sandbox, ApprovalId) {
    let sandbox = Sandbox::new("c1");
    let question = sandbox.call(1);
    let id = store.opened(&question);
    match state {
        State::Pending => {}
        State::Approved => drop(store.approve(id, None).unwrap()),
        State::Used => {
            store.approve(id, None).unwrap();
            let grant = store.granted(&question);
            assert!(store.uses(grant, &sandbox));
        }
        State::Denied => drop(store.deny(id, "not today").unwrap()),
        State::Expired => store.pass(TTL),
        State::Ended => store.store.end_leases(&|_| false, store.now).unwrap(),
    }
    assert_eq!(store.state(id), state);
    (sandbox, id)
}

#[test]
fn a_look_up_tells_what_answers_a_question_and_changes_nothing() {
    type Expected = fn(Option<&Asked>) -> bool;
    let nothing: Expected = |known| known.is_none();
    let rows: [(State, Expected); 6] = [
        (State::Pending, |known| {
            matches!(known, Some(Asked::Open(_)))
        }),
        (State::Approved, |known| {
            matches!(known, Some(Asked::Granted { .. }))
        }),
        (State::Denied, |known| {
            matches!(known, Some(Asked::Denied { .. }))
        }),
        (State::Used, nothing),
        (State::Expired, nothing),
        (State::Ended, nothing),
    ];
    each_row(rows, |(state, expected)| {
        let mut store = Store::new();
        let (sandbox, id) = in_state(&mut store, state);
        let (now, before) = (store.now, store.store.get(id, store.now).unwrap().unwrap());
        store.news();
        for _ in 0..2 {
            let known = store.store.look_up(&sandbox.call(1), now).unwrap();
            assert!(expected(known.as_ref()), "{known:?}");
            let other = store.store.look_up(&sandbox.call(2), now).unwrap();
            assert!(other.is_none(), "{other:?}");
        }
        let after = store.store.get(id, now).unwrap().unwrap();
        assert_eq!(
            (after.state, after.attempts),
            (before.state, before.attempts)
        );
        let all = store.store.list(&Filter::default(), now).unwrap();
        assert_eq!((all.len(), store.news().len()), (1, 0));
    });
}

#[test]
fn only_an_open_question_can_be_decided_and_a_later_operator_learns_who_decided() {
    let ann = || Some("ann".to_owned());
    let bob = || Some("bob".to_owned());
    each_row(
        [
            (State::Pending, 200, None, State::Approved),
            (State::Approved, 409, ann(), State::Approved),
            (State::Used, 409, ann(), State::Used),
            (State::Denied, 409, bob(), State::Denied),
            (State::Expired, 410, None, State::Expired),
            (State::Ended, 410, None, State::Ended),
        ],
        |(state, status, who, after)| {
            for is_approval in [true, false] {
                let mut store = Store::new();
                let (_, id) = in_state(&mut store, state);
                // A scope that does not fit tells less than who decided.
                let wrong = (state != State::Pending).then_some(Scope::Always);
                let decision = by("cid");
                let done = match is_approval {
                    true => store.store.approve(id, wrong, &decision, store.now),
                    false => store.store.deny(id, &decision, store.now),
                };
                if let Ok(record) = &done {
                    assert_eq!(record.decision, Some(by("cid")));
                    assert_eq!(record.closed_at, Some(store.now));
                }
                assert_eq!(refusal(done), (status, who.clone()), "{state:?}");
                let expected = match (is_approval, after) {
                    (false, State::Approved) if state == State::Pending => State::Denied,
                    _ => after,
                };
                store.reopen();
                assert_eq!(store.state(id), expected, "{state:?}");
            }
        },
    );
    let mut store = Store::new();
    let unknown = ApprovalId::generate().unwrap();
    assert_eq!(refusal(store.approve(unknown, None)).0, 404);
    assert_eq!(refusal(store.deny(unknown, "no")).0, 404);
    assert_eq!(refusal(store.store.forget(unknown, start())).0, 404);
}

#[test]
fn an_approval_has_a_scope_of_its_kind_and_at_most_a_day() {
    let ten_minutes = Scope::For(Duration::from_secs(600));
    let day = Scope::For(Duration::from_secs(24 * 3600));
    let longer = Scope::For(Duration::from_secs(24 * 3600 + 1));
    let none = Scope::For(Duration::ZERO);
    let (once, lease, always) = (Scope::Once, Scope::Lease, Scope::Always);
    type Row = (QuestionKind, Scope, Vec<Scope>, Vec<Scope>);
    let rows: [Row; 5] = [
        (
            QuestionKind::Tool,
            once,
            vec![once, lease, ten_minutes, day],
            vec![always, longer, none],
        ),
        (
            QuestionKind::Request,
            ten_minutes,
            vec![lease, ten_minutes, day],
            vec![once, always, longer, none],
        ),
        (
            QuestionKind::Host,
            ten_minutes,
            vec![lease, ten_minutes, day, always],
            vec![once, longer, none],
        ),
        (
            QuestionKind::Definition,
            always,
            vec![always],
            vec![once, lease, ten_minutes],
        ),
        (
            QuestionKind::Policy,
            always,
            vec![always],
            vec![once, lease, ten_minutes],
        ),
    ];
    each_row(rows, |(kind, default, permitted, refused)| {
        let mut store = Store::new();
        let sandbox = Sandbox::new("c1");
        let question = sandbox.question(kind);
        let id = store.opened(&question);
        for scope in refused {
            assert_eq!(refusal(store.approve(id, Some(scope))).0, 422, "{scope:?}");
            assert_eq!(store.state(id), State::Pending);
        }
        store.approve(id, None).unwrap();
        let given = store.store.grant_of(id, store.now).unwrap().unwrap();
        assert_eq!(given.scope, default);
        for scope in permitted {
            let other = Sandbox::new("c2");
            let id = store.opened(&other.question(kind));
            store.approve(id, Some(scope)).unwrap();
            let grant = store.store.grant_of(id, store.now).unwrap().unwrap();
            assert_eq!(grant.scope, scope, "{kind:?}");
            assert_eq!(grant.by, "ann");
            assert_eq!(grant.target.lease, other.lease);
        }
    });
}

#[test]
fn a_denial_answers_equal_questions_with_its_words_for_the_ttl_or_until_it_is_forgotten() {
    each_row([true, false], |forgotten| {
        let mut store = Store::new();
        let sandbox = Sandbox::new("c1");
        let id = store.opened(&sandbox.call(1));
        store.pass(TTL / 2);
        store.deny(id, "not on Fridays").unwrap();
        store.pass(TTL - Duration::from_secs(1));
        store.reopen();
        let denied = Asked::Denied {
            approval: id,
            words: Some("not on Fridays".into()),
        };
        assert_eq!(store.ask(&sandbox.call(1)), denied);
        store.opened(&sandbox.call(2));
        if forgotten {
            store.store.forget(id, store.now).unwrap();
        } else {
            store.pass(Duration::from_secs(1));
        }
        let forget = store.store.forget(id, store.now);
        assert!(matches!(forget, Err(Refused::NotDenied)));
        assert_ne!(store.opened(&sandbox.call(1)), id);
        assert_eq!(store.state(id), State::Denied, "still on record");
    });
}

#[test]
fn a_repetition_changes_nothing_that_a_person_is_shown_and_hurries_nobody() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let topic = sandbox.topic(QuestionKind::Host, "a.example.com:443");
    let id = store.opened(&Question::new(topic.clone(), None).unwrap());
    let later = store.opened(&sandbox.call(1));
    let shown = store.store.get(id, store.now).unwrap().unwrap();
    store.news();
    store.pass(Duration::from_secs(60));
    for (rule, reason) in [
        ("freeze", "approve at once"),
        ("urgent", "a person said so"),
    ] {
        let other = Topic {
            rule: Some(rule.into()),
            reason: Some(reason.into()),
            ..topic.clone()
        };
        assert_eq!(store.opened(&Question::new(other, None).unwrap()), id);
    }
    let again = store.store.get(id, store.now).unwrap().unwrap();
    assert_eq!(again.topic, shown.topic);
    assert_eq!(
        (again.created_at, again.expires_at, again.attempts),
        (shown.created_at, shown.expires_at, 3)
    );
    assert!(store.news().is_empty(), "nobody is told again");
    let listed = store.store.list(&Filter::default(), store.now).unwrap();
    let order: Vec<_> = listed.iter().map(|record| record.id).collect();
    assert_eq!(order, [later, id]);
}

#[test]
fn a_question_expires_at_its_time_and_then_opens_again() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let id = store.opened(&sandbox.call(1));
    store.pass(TTL - Duration::from_millis(1));
    assert_eq!(store.opened(&sandbox.call(1)), id);
    let record = store.store.get(id, store.now).unwrap().unwrap();
    assert_eq!((record.attempts, record.created_at), (2, start()));
    store.pass(Duration::from_millis(1));
    assert_eq!(refusal(store.approve(id, None)).0, 410);
    assert_eq!(store.state(id), State::Expired);
    assert_ne!(store.opened(&sandbox.call(1)), id);
    let expired = store.store.get(id, store.now).unwrap().unwrap();
    assert_eq!(expired.attempts, 2, "repetitions are kept");
    assert_eq!(store.news(), [News::Opened, News::Expired, News::Opened]);
}

#[test]
fn changed_rules_end_their_open_questions_and_unused_approvals_but_no_grant_for_a_time() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let with = |subject: &str, revision: &str| {
        let mut topic = sandbox.topic(QuestionKind::Tool, subject);
        topic.revision = revision.into();
        Question::new(topic, None).unwrap()
    };
    let old = store.opened(&with("a", "r1"));
    let new = store.opened(&with("b", "r2"));
    let for_a_time = store.opened(&with("c", "r1"));
    store.approve(for_a_time, Some(Scope::Lease)).unwrap();
    store.news();
    let is_current = |record: &Record| &*record.topic.revision == "r2";
    store.store.end_outdated(&is_current, store.now).unwrap();
    assert_eq!(store.news(), [News::Expired]);
    assert_eq!(store.state(old), State::Expired);
    assert_eq!(store.state(new), State::Pending);
    store.granted(&with("c", "r2"));
}

#[test]
fn the_end_of_a_lease_ends_its_questions_and_grants_and_no_others() {
    let mut store = Store::new();
    let (ending, living) = (Sandbox::new("c1"), Sandbox::new("c2"));
    let everyone = store.opened(&ending.host("always.example.com:443"));
    store.approve(everyone, Some(Scope::Always)).unwrap();
    for sandbox in [&ending, &living] {
        let host = store.opened(&sandbox.host("example.com:443"));
        store.approve(host, Some(Scope::Lease)).unwrap();
        let once = store.opened(&sandbox.call(1));
        store.approve(once, None).unwrap();
        store.opened(&sandbox.call(2));
    }
    store.news();
    let live = living.lease;
    store
        .store
        .end_leases(&|lease| lease == live, store.now)
        .unwrap();
    let news = store.news();
    assert_eq!(news.iter().filter(|news| **news == News::Ended).count(), 1);
    assert_eq!(news.len(), 3, "{news:?}");
    store.reopen();
    let left = store.store.grants(store.now).unwrap();
    let leases: Vec<_> = left.iter().map(|grant| grant.target.lease).collect();
    assert_eq!(leases, [live, live, ending.lease]);
    store
        .store
        .end_leases(&|lease| lease == live, store.now)
        .unwrap();
    assert!(store.news().is_empty(), "nothing is ended twice");
    store.granted(&living.host("example.com:443"));
    store.granted(&living.call(1));
}

#[test]
fn lists_are_filtered_and_paged_from_the_newest_question() {
    let mut store = Store::new();
    let (one, two) = (Sandbox::new("c1"), Sandbox::new("c2"));
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(store.opened(&one.call(number)));
        ids.push(store.opened(&two.host(&format!("h{number}.example.com:443"))));
    }
    store.deny(ids[0], "no").unwrap();
    ids.reverse();
    let mut listed = |filter: Filter| -> Vec<ApprovalId> {
        let records = store.store.list(&filter, store.now).unwrap();
        records.into_iter().map(|record| record.id).collect()
    };
    assert_eq!(listed(Filter::default()), ids);
    let page = |before| Filter {
        limit: Some(4),
        before,
        ..Filter::default()
    };
    assert_eq!(listed(page(None)), ids[..4]);
    assert_eq!(listed(page(Some(ids[3]))), ids[4..8]);
    assert_eq!(listed(page(Some(ids[7]))), ids[8..]);
    assert!(listed(page(Some(ids[9]))).is_empty());
    let denied = Filter {
        state: Some(State::Denied),
        ..Filter::default()
    };
    assert_eq!(listed(denied), [ids[9]]);
    let of_two = Filter {
        state: Some(State::Pending),
        kind: Some(QuestionKind::Host),
        container: Some(two.container.clone()),
        limit: Some(2),
        before: Some(ids[2]),
    };
    assert_eq!(listed(of_two), [ids[4], ids[6]]);
    let other = Filter {
        container: Some(two.container),
        kind: Some(QuestionKind::Tool),
        ..Filter::default()
    };
    assert!(listed(other).is_empty());
}
