use std::time::Duration;

use addons::contract::{
    ApprovalAnswer, ApprovalId, ContainerId, LeaseId, Level, Question, QuestionKind, Topic,
};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tempfile::TempDir;
use testkit::each_row;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::approvals::bounds::DEFAULT_GRANT;
use crate::approvals::{Decision, Ledger, Record, Scope, State};
use crate::cli::exit::code;
use crate::cli::tests;

/// The end of the prompt.
const PROMPT: &str = "q quit > ";

#[test]
fn an_answer_is_a_letter_and_a_denial_may_have_words() {
    each_row(
        [
            ("y", Some(Answer::Approve)),
            (" l ", Some(Answer::ForLease)),
            ("n", Some(Answer::Deny(None))),
            ("n not today", Some(Answer::Deny(Some("not today".into())))),
            ("e", Some(Answer::Explain)),
            ("s", Some(Answer::Skip)),
            ("q", Some(Answer::Quit)),
            ("", None),
            ("Y", None),
            ("yes", None),
            ("no", None),
            ("nothing", None),
        ],
        |(line, answer)| assert_eq!(Answer::parse(line), answer, "{line}"),
    );
}

/// The output of a watch.
#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// Waits until a text has been written this often.
    async fn shows(&self, text: &str, times: usize) {
        while self.text().matches(text).count() < times {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A watch of a server with a ledger.
struct Fixture {
    directory: TempDir,
    ledger: Arc<Ledger>,
    server: CancellationToken,
    screen: Screen,
    keyboard: mpsc::Sender<Typed>,
    watching: JoinHandle<Result<(), Failure>>,
}

impl Fixture {
    fn start(json: bool, asks: bool, exec: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = tests::ledger(directory.path());
        let server = tests::serve_with(directory.path(), Arc::clone(&ledger));
        let screen = Screen::default();
        let (keyboard, lines) = mpsc::channel(1);
        let exec = exec.map(|program| Exec::new(program.to_owned()));
        let watch = Watch::new(screen.clone(), json, asks, exec);
        let target = Target {
            socket: Some(directory.path().join("api.sock")),
        };
        let watching = tokio::spawn(watch.run(feed::follow(target), lines));
        Self {
            directory,
            ledger,
            server,
            screen,
            keyboard,
            watching,
        }
    }

    async fn ask(&self, subject: &str) -> ApprovalId {
        self.ask_with(QuestionKind::Host, subject, None).await
    }

    async fn ask_with(
        &self,
        kind: QuestionKind,
        subject: &str,
        arguments: Option<&str>,
    ) -> ApprovalId {
        let topic = Topic {
            lease: LeaseId::generate(),
            container: ContainerId::parse("web").unwrap(),
            kind,
            server: None,
            subject: subject.into(),
            rule: None,
            reason: None,
            level: Level::Public,
            revision: "r1".into(),
        };
        let arguments = arguments.map(|json| RawValue::from_string(json.to_owned()).unwrap());
        let question = Question::new(topic, arguments.as_deref()).unwrap();
        let hour = Duration::from_secs(3600);
        match self.ledger.ask(question, hour).await.unwrap() {
            ApprovalAnswer::Open(id) => id,
            other => panic!("{other:?}"),
        }
    }

    async fn types(&self, line: &str) {
        self.keyboard
            .send((Instant::now(), line.to_owned()))
            .await
            .unwrap();
    }

    async fn quit(&mut self) {
        self.types("q").await;
        (&mut self.watching).await.unwrap().unwrap();
    }

    async fn record(&self, id: ApprovalId) -> Record {
        self.ledger.get(id).await.unwrap().unwrap()
    }
}

fn by(name: &str) -> Decision {
    Decision {
        by: name.to_owned(),
        comment: None,
    }
}

#[tokio::test]
async fn questions_are_shown_one_at_a_time_and_answered_by_a_key() {
    let mut watch = Fixture::start(false, true, None);
    let first = watch.ask("a.example.com:443").await;
    watch.screen.shows(PROMPT, 1).await;
    let second = watch.ask("b\u{1b}[2J.example.com:443").await;
    let third = watch.ask("c.example.com:443").await;
    watch.screen.shows(BELL, 3).await;
    assert!(
        !watch.screen.text().contains("b\\u{1b}"),
        "{}",
        watch.screen.text()
    );
    watch.types("what").await;
    watch.screen.shows(PROMPT, 2).await;
    watch.types("y").await;
    watch
        .screen
        .shows("approved: a.example.com:443 for web", 1)
        .await;
    watch.screen.shows("(1 more)", 1).await;
    watch.screen.shows(PROMPT, 3).await;
    watch.types("n not today").await;
    watch
        .screen
        .shows("denied: b\\u{1b}[2J.example.com:443 for web", 1)
        .await;
    watch.screen.shows(PROMPT, 4).await;
    watch.types("l").await;
    watch
        .screen
        .shows("approved: c.example.com:443 for web", 1)
        .await;
    watch.quit().await;

    let scopes = watch.ledger.grants().await.unwrap();
    let scopes: Vec<_> = scopes
        .iter()
        .map(|grant| (grant.approval, grant.scope))
        .collect();
    let expected = [
        (Some(third), Scope::Lease),
        (Some(first), Scope::For(DEFAULT_GRANT)),
    ];
    assert_eq!(scopes, expected);
    let denied = watch.record(second).await;
    let words = denied.decision.and_then(|decision| decision.comment);
    assert_eq!(
        (denied.state, words.as_deref()),
        (State::Denied, Some("not today"))
    );
}

#[tokio::test]
async fn an_explained_question_is_still_to_be_answered() {
    let mut watch = Fixture::start(false, true, None);
    watch.ask("a.example.com:443").await;
    watch.screen.shows(PROMPT, 1).await;
    watch.types("e").await;
    watch.screen.shows(PROMPT, 2).await;
    let text = watch.screen.text();
    for part in [
        "permits web to reach exactly a.example.com:443, for 10 minutes",
        "until the lease of web ends",
        "CONNECT a.example.com:443 by web: allowed",
    ] {
        assert!(text.contains(part), "{text}");
    }
    watch.types("y").await;
    watch
        .screen
        .shows("approved: a.example.com:443 for web", 1)
        .await;
    watch.quit().await;
}

#[tokio::test]
async fn long_arguments_are_cut_and_must_be_shown_whole_before_an_approval() {
    let elements = format!("{{\"all\":[{}],\"amount\":1000}}", ["1"; 10_000].join(","));
    let text = format!("{{\"all\":\"{}\",\"amount\":1000}}", "x".repeat(100_000));
    for arguments in [elements, text] {
        let mut watch = Fixture::start(false, true, None);
        let id = watch
            .ask_with(QuestionKind::Tool, "pay", Some(&arguments))
            .await;
        watch.screen.shows(PROMPT, 1).await;
        let shown = watch.screen.text();
        assert!(shown.lines().count() < 40 && shown.len() < 6000, "{shown}");
        let end: Vec<_> = shown.lines().rev().take(2).collect();
        assert!(end[1].contains("web asks for tool pay"), "{end:?}");
        watch.types("y").await;
        watch.screen.shows("e shows all of them\n", 1).await;
        watch.screen.shows(PROMPT, 2).await;
        assert_eq!(watch.record(id).await.state, State::Pending);
        watch.types("e").await;
        watch.screen.shows(PROMPT, 3).await;
        assert!(watch.screen.text().contains("\"amount\": 1000"));
        watch.types("y").await;
        watch.screen.shows("approved: pay for web", 1).await;
        watch.quit().await;
        assert_eq!(watch.record(id).await.state, State::Approved);
    }
}

#[tokio::test]
async fn a_question_that_another_operator_decides_is_taken_away_and_a_skipped_one_stays_open() {
    let mut watch = Fixture::start(false, true, None);
    let first = watch.ask("a.example.com:443").await;
    watch.screen.shows(PROMPT, 1).await;
    watch.ledger.deny(first, by("uid 7 (ann)")).await.unwrap();
    watch
        .screen
        .shows("\na.example.com:443 denied by uid 7 (ann)", 1)
        .await;
    let second = watch.ask("b.example.com:443").await;
    watch.screen.shows(PROMPT, 2).await;
    watch.types("s").await;
    let third = watch.ask("c.example.com:443").await;
    watch.screen.shows(PROMPT, 3).await;
    watch.types("y").await;
    watch.screen.shows("approved: c", 1).await;
    watch.quit().await;
    let states = [
        watch.record(second).await.state,
        watch.record(third).await.state,
    ];
    assert_eq!(states, [State::Pending, State::Approved]);
}

#[tokio::test]
async fn a_program_gets_each_question_on_its_standard_input_and_json_has_a_line_for_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("got");
    let program = format!("cat >> {}", file.display());
    let watch = Fixture::start(true, false, Some(&program));
    let hostile = "$(reboot)`reboot`'\";\u{202e}\n.example.com:443";
    let id = watch.ask(hostile).await;
    watch.screen.shows("\"pending\"", 1).await;
    watch.ledger.deny(id, by("uid 7")).await.unwrap();
    watch.screen.shows("\"denied\"", 1).await;
    let text = watch.screen.text();
    let lines: Vec<Approval> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown: Vec<_> = lines
        .iter()
        .map(|question| (&*question.state, &*question.subject))
        .collect();
    assert_eq!(shown, [("pending", hostile), ("denied", hostile)]);
    while std::fs::read_to_string(&file).is_ok_and(|got| !got.ends_with('\n')) || !file.exists() {
        sleep(Duration::from_millis(10)).await;
    }
    let got = std::fs::read_to_string(&file).unwrap();
    assert!(!got.contains('\u{202e}'), "{got}");
    let got: Approval = serde_json::from_str(&got).unwrap();
    assert_eq!((got.id, got.subject), (id.to_string(), hostile.to_owned()));

    // A server that the user named and that ends is a failure.
    watch.server.cancel();
    let failure = watch.watching.await.unwrap().unwrap_err();
    assert_eq!(failure.code(), code::UNAVAILABLE);
    drop(watch.directory);
}
