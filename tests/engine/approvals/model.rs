//! Random histories against a simple model, with restarts between any two steps.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A step of a history. Numbers choose among the questions, grants and leases that there are.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        lease: usize,
        call: usize,
        revision: usize,
    },
    Approve {
        at: usize,
        scope: Option<Scope>,
    },
    Deny {
        at: usize,
    },
    Forget {
        at: usize,
    },
    Use {
        at: usize,
        lease: usize,
    },
    Revoke {
        at: usize,
    },
    EndLease {
        lease: usize,
    },
    ChangeRules {
        revision: usize,
    },
    Pass {
        seconds: u64,
    },
    Prune,
    Restart,
}

const LEASES: usize = 2;
const CALLS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let scope = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Scope::Lease)),
        1 => Just(Some(Scope::For(Duration::from_secs(600)))),
        1 => Just(Some(Scope::Always)),
    ];
    let at = || 0..100_usize;
    prop_oneof![
        6 => (0..LEASES, 0..CALLS, 0..2_usize)
            .prop_map(|(lease, call, revision)| Step::Ask { lease, call, revision }),
        4 => (at(), scope).prop_map(|(at, scope)| Step::Approve { at, scope }),
        2 => at().prop_map(|at| Step::Deny { at }),
        1 => at().prop_map(|at| Step::Forget { at }),
        5 => (at(), 0..LEASES).prop_map(|(at, lease)| Step::Use { at, lease }),
        1 => at().prop_map(|at| Step::Revoke { at }),
        1 => (0..LEASES).prop_map(|lease| Step::EndLease { lease }),
        1 => (0..2_usize).prop_map(|revision| Step::ChangeRules { revision }),
        3 => prop_oneof![1..30_u64, 300..1200_u64, 3000..4000_u64]
            .prop_map(|seconds| Step::Pass { seconds }),
        1 => Just(Step::Prune),
        3 => Just(Step::Restart),
    ]
}

/// A question of the model.
struct Posed {
    id: ApprovalId,
    lease: usize,
    call: usize,
    revision: usize,
    state: State,
    by: Option<&'static str>,
    expires_at: OffsetDateTime,
    denied_until: Option<OffsetDateTime>,
}

/// A grant of the model.
struct Given {
    id: GrantId,
    question: usize,
    once: bool,
    expires_at: Option<OffsetDateTime>,
    used: usize,
    ended: bool,
}

/// What the ledger should know, in the simplest form.
#[derive(Default)]
struct Model {
    questions: Vec<Posed>,
    grants: Vec<Given>,
}

impl Model {
    fn expire(&mut self, now: OffsetDateTime) {
        for question in &mut self.questions {
            if question.state == State::Pending && question.expires_at <= now {
                question.state = State::Expired;
            }
        }
    }

    fn is_live(&self, grant: &Given, now: OffsetDateTime) -> bool {
        let expired = grant.expires_at.is_some_and(|at| at <= now);
        !expired && !grant.ended && (!grant.once || grant.used == 0)
    }

    /// What the ledger must answer to the question of a lease, a call and a revision.
    fn answer(&self, of: (usize, usize, usize), now: OffsetDateTime) -> Expected {
        let is_equal = |question: &Posed| (question.lease, question.call, question.revision) == of;
        let denied = self.questions.iter().rposition(|question| {
            is_equal(question) && question.denied_until.is_some_and(|until| until > now)
        });
        if let Some(denied) = denied {
            return Expected::Denied(self.questions[denied].id);
        }
        let grants = self.grants.iter().filter(|grant| {
            let question = &self.questions[grant.question];
            let covers = match grant.once {
                true => is_equal(question),
                // All calls of the model are calls of one tool.
                false => question.lease == of.0,
            };
            covers && self.is_live(grant, now)
        });
        let grants: Vec<&Given> = grants.collect();
        let for_a_time = grants.iter().find(|grant| !grant.once);
        if let Some(grant) = for_a_time.or(grants.first()) {
            return Expected::Granted(grant.id);
        }
        let is_open = |question: &&Posed| is_equal(question) && question.state == State::Pending;
        match self.questions.iter().find(is_open) {
            Some(question) => Expected::Open(question.id),
            None => Expected::New,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Expected {
    Denied(ApprovalId),
    Granted(GrantId),
    Open(ApprovalId),
    New,
}

struct History {
    store: Store,
    model: Model,
    sandboxes: Vec<Sandbox>,
}

impl History {
    fn new() -> Self {
        let names = ["c1", "c2"];
        Self {
            store: Store::new(),
            model: Model::default(),
            sandboxes: names.into_iter().map(Sandbox::new).collect(),
        }
    }

    fn question(&self, lease: usize, call: usize, revision: usize) -> Question {
        let sandbox = &self.sandboxes[lease];
        let mut topic = sandbox.topic(QuestionKind::Tool, "delete");
        topic.revision = format!("r{revision}").into();
        let arguments = RawValue::from_string(format!("[{call}]")).unwrap();
        Question::new(topic, Some(&arguments)).unwrap()
    }

    fn step(&mut self, step: &Step) {
        let now = self.store.now;
        self.model.expire(now);
        match *step {
            Step::Ask {
                lease,
                call,
                revision,
            } => self.ask(lease, call, revision),
            Step::Approve { at, scope } => self.approve(at, scope),
            Step::Deny { at } => {
                let at = at % self.model.questions.len();
                let done = self.store.deny(self.model.questions[at].id, "no");
                if self.check_refusal(at, done) {
                    let question = &mut self.model.questions[at];
                    question.state = State::Denied;
                    question.by = Some("bob");
                    question.denied_until = Some(now + TTL);
                }
            }
            Step::Forget { at } => {
                let at = at % self.model.questions.len();
                let question = &mut self.model.questions[at];
                let done = self.store.store.forget(question.id, now);
                let denies = question.denied_until.is_some_and(|until| until > now);
                assert_eq!(done.is_ok(), denies);
                if denies {
                    question.denied_until = None;
                }
            }
            Step::Use { at, lease } => self.use_grant(at, lease),
            Step::Revoke { at } => {
                let Some(at) = at.checked_rem(self.model.grants.len()) else {
                    return;
                };
                let grant = &self.model.grants[at];
                let done = self.store.store.revoke(grant.id, now);
                assert_eq!(done.is_ok(), self.model.is_live(grant, now));
                self.model.grants[at].ended |= done.is_ok();
            }
            Step::EndLease { lease } => {
                let ended = self.sandboxes[lease].lease;
                let store = &mut self.store.store;
                store.end_leases(&|live| live != ended, now).unwrap();
                self.end(now, State::Ended, false, |question| question.lease == lease);
            }
            Step::ChangeRules { revision } => {
                let current = format!("r{revision}");
                let is_current = |record: &Record| *record.topic.revision == *current;
                self.store.store.end_outdated(&is_current, now).unwrap();
                self.end(now, State::Expired, true, |question| {
                    question.revision != revision
                });
            }
            Step::Pass { seconds } => self.store.pass(Duration::from_secs(seconds)),
            // Nothing is old enough.
            Step::Prune => self.store.store.prune(now).unwrap(),
            Step::Restart => self.store.reopen(),
        }
    }

    /// Ends what a lease's end or changed rules end.
    fn end(
        &mut self,
        now: OffsetDateTime,
        state: State,
        only_once: bool,
        is_ended: impl Fn(&Posed) -> bool,
    ) {
        let live = self.model.grants.iter();
        let live: Vec<bool> = live.map(|grant| self.model.is_live(grant, now)).collect();
        let Model { questions, grants } = &mut self.model;
        for (grant, is_live) in grants.iter_mut().zip(live) {
            let reached = grant.once || !only_once;
            if is_live && reached && is_ended(&questions[grant.question]) {
                grant.ended = true;
            }
        }
        for question in questions {
            if question.state == State::Pending && is_ended(question) {
                question.state = state;
            }
        }
    }

    fn ask(&mut self, lease: usize, call: usize, revision: usize) {
        let now = self.store.now;
        let question = self.question(lease, call, revision);
        let expected = self.model.answer((lease, call, revision), now);
        let found = match self.store.ask(&question) {
            Asked::Denied { approval, .. } => Expected::Denied(approval),
            Asked::Granted { grant, .. } => Expected::Granted(grant),
            Asked::Open(id) if self.model.questions.iter().all(|known| known.id != id) => {
                self.model.questions.push(Posed {
                    id,
                    lease,
                    call,
                    revision,
                    state: State::Pending,
                    by: None,
                    expires_at: now + TTL,
                    denied_until: None,
                });
                Expected::New
            }
            Asked::Open(id) => Expected::Open(id),
            // At most 30 new questions a minute: histories are shorter.
            Asked::Full(limit) => panic!("{limit}"),
        };
        assert_eq!(found, expected);
    }

    fn approve(&mut self, at: usize, scope: Option<Scope>) {
        let now = self.store.now;
        let at = at % self.model.questions.len();
        let id = self.model.questions[at].id;
        let done = self.store.approve(id, scope);
        let is_open = self.model.questions[at].state == State::Pending;
        if is_open && scope == Some(Scope::Always) {
            assert!(matches!(done, Err(Refused::Scope(_))));
            return;
        }
        if !self.check_refusal(at, done) {
            return;
        }
        self.model.questions[at].state = State::Approved;
        self.model.questions[at].by = Some("ann");
        let given = self.store.store.grant_of(id, now).unwrap().unwrap();
        self.model.grants.push(Given {
            id: given.id,
            question: at,
            once: scope.is_none(),
            expires_at: match scope {
                None => Some(now + TTL),
                Some(Scope::For(time)) => Some(now + time),
                _ => None,
            },
            used: 0,
            ended: false,
        });
    }

    /// Compares the result of a decision with the state of the question. Returns whether the
    /// decision should have been made.
    fn check_refusal(&self, at: usize, done: Result<Record, Refused>) -> bool {
        let question = &self.model.questions[at];
        match question.state {
            State::Pending => drop(done.unwrap()),
            State::Approved | State::Used | State::Denied => match done {
                Err(Refused::Decided(record)) => {
                    let by = record.decision.map(|decision| decision.by);
                    assert_eq!(by.as_deref(), question.by);
                }
                other => panic!("{other:?}"),
            },
            State::Expired | State::Ended => assert!(matches!(done, Err(Refused::Over(_)))),
        }
        question.state == State::Pending
    }

    fn use_grant(&mut self, at: usize, lease: usize) {
        let now = self.store.now;
        let Some(at) = at.checked_rem(self.model.grants.len()) else {
            return;
        };
        let grant = &self.model.grants[at];
        let question = grant.question;
        let is_ours = self.model.questions[question].lease == lease;
        let expected = is_ours && self.model.is_live(grant, now);
        let sandbox = self.sandboxes[lease].clone();
        assert_eq!(self.store.uses(grant.id, &sandbox), expected);
        if expected {
            self.model.grants[at].used += 1;
            if self.model.grants[at].once {
                self.model.questions[question].state = State::Used;
            }
        }
    }

    /// Compares everything that the store keeps with the model.
    fn check(&mut self) {
        let now = self.store.now;
        self.model.expire(now);
        let records = self.store.store.list(&Filter::default(), now).unwrap();
        let known: HashMap<_, _> = records.iter().map(|record| (record.id, record)).collect();
        assert_eq!(known.len(), self.model.questions.len());
        for question in &self.model.questions {
            let record = known[&question.id];
            assert_eq!(record.state, question.state);
            let by = record.decision.as_ref().map(|decision| &*decision.by);
            assert_eq!(by, question.by);
            let decided = matches!(record.state, State::Approved | State::Used | State::Denied);
            assert_eq!(decided, by.is_some(), "no effect without a decision");
        }
        let live = self.store.store.grants(now).unwrap();
        let live = live.into_iter().rev().map(|grant| grant.id);
        let expected = self.model.grants.iter();
        let expected = expected.filter(|grant| self.model.is_live(grant, now));
        let expected: Vec<GrantId> = expected.map(|grant| grant.id).collect();
        assert_eq!(live.collect::<Vec<_>>(), expected);
        for grant in &self.model.grants {
            assert!(!grant.once || grant.used <= 1, "one use");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_with_restarts_is_that_of_a_simple_model(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut history = History::new();
        // So that there is a question from the beginning.
        history.ask(0, 0, 0);
        for step in &steps {
            history.step(step);
            history.check();
        }
        history.store.reopen();
        history.check();
    }
}
