//! Lists of questions, and the live stream of their changes.

use super::*;

#[tokio::test]
async fn questions_are_listed_by_state_kind_and_container_in_pages_newest_first() {
    let server = Server::start();
    let [first, second] = ["c1", "c2"].map(Sandbox::new);
    let mut ids = Vec::new();
    for (sandbox, kind) in [
        (&first, QuestionKind::Tool),
        (&second, QuestionKind::Tool),
        (&second, QuestionKind::Host),
    ] {
        let id = server.opened(sandbox.question(kind, "a", None)).await;
        ids.push(id.to_string());
    }
    server.act(&ids[1], "deny", json!(null)).await;
    let last = format!("?limit=2&before={}", ids[2]);
    each_row_async(
        [
            ("", vec![2, 1, 0]),
            ("?state=pending", vec![2, 0]),
            ("?state=denied", vec![1]),
            ("?state=used", vec![]),
            ("?kind=tool", vec![1, 0]),
            ("?container=c2", vec![2, 1]),
            ("?container=c2&kind=host&state=pending", vec![2]),
            ("?container=none", vec![]),
            ("?limit=1", vec![2]),
            (last.as_str(), vec![1, 0]),
        ],
        async |(query, expected)| {
            let expected: Vec<_> = expected.iter().map(|&at: &usize| ids[at].clone()).collect();
            assert_eq!(server.listed(query).await, expected, "{query}");
        },
    )
    .await;
    each_row_async(
        [
            "?state=open",
            "?kind=mcp",
            "?container=c/1",
            "?limit=0",
            "?limit=101",
            "?limit=x",
            "?before=1",
            "?page=2",
            "?state=pending&state=denied",
        ],
        async |query| {
            let answer = server.get(&format!("/internal/approvals{query}")).await;
            assert_eq!(answer.status, 400, "{query}");
            assert!(answer.body["error"].is_string(), "{query}");
        },
    )
    .await;
}

/// A live stream of questions.
struct Live {
    body: Incoming,
    text: String,
}

impl Live {
    async fn open(server: &Server, query: &str) -> Self {
        let request = Request::builder()
            .uri(format!("/internal/approvals{query}"))
            .header("accept", "text/event-stream");
        let response = server.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// The next event: its kind, empty for a question, and its data.
    async fn event(&mut self) -> (String, String) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().to_owned()
                };
                let found = (field("event: "), field("data: "));
                self.text = rest.to_owned();
                return found;
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            let data = frame.into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    async fn question(&mut self) -> Value {
        let (kind, data) = self.event().await;
        assert_eq!(kind, "", "{data}");
        serde_json::from_str(&data).unwrap()
    }
}

#[tokio::test]
async fn the_stream_has_each_question_as_its_state_changes() {
    let server = Server::start();
    let mut all = Live::open(&server, "").await;
    let mut hosts = Live::open(&server, "?kind=host&container=c1&state=denied").await;
    let tool = server.asked(QuestionKind::Tool).await;
    let host = server.asked(QuestionKind::Host).await;
    server.act(tool, "approve", json!(null)).await;
    server.act(host, "deny", json!({ "comment": "a\nb" })).await;
    let [tool, host] = [tool, host].map(|id| id.to_string());
    for id in [&tool, &host, &tool] {
        assert_eq!(all.question().await["id"], json!(id));
    }
    let denied = all.question().await;
    assert_eq!(
        (&denied["id"], &denied["state"]),
        (&json!(host), &json!("denied"))
    );
    assert_eq!(denied["comment"], "a\nb");
    assert_eq!(hosts.question().await, denied);

    // The shutdown does not wait for open streams.
    server.shutdown.cancel();
    let stopped = tokio::time::timeout(Duration::from_secs(2), server.serving).await;
    stopped.expect("the server stops").unwrap();
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_to_list_the_questions_again() {
    let server = Server::start();
    let mut slow = Live::open(&server, "").await;
    // More than the buffers of the connection take.
    let arguments = format!("\"{}\"", "x".repeat(250 << 10));
    let sandbox = Sandbox::new("c1");
    for number in 0..8 {
        let subject = format!("tool{number}");
        let question = sandbox.question(QuestionKind::Tool, &subject, Some(&arguments));
        server.opened(question).await;
    }
    for _ in 0..=MAX_BEHIND {
        let target = Target {
            container: ContainerId::parse("c1").unwrap(),
            lease: sandbox.lease,
            kind: QuestionKind::Host,
            server: None,
            subject: "a.example.com:443".into(),
            level: Level::Public,
        };
        let grant = server
            .approvals
            .add_grant(target, Scope::Lease, "ann".into());
        grant.await.unwrap();
    }
    let mut questions = 0;
    let (kind, data) = loop {
        let (kind, data) = slow.event().await;
        if kind.is_empty() {
            questions += 1;
            continue;
        }
        break (kind, data);
    };
    assert!(questions < 8, "{questions}");
    assert_eq!((kind.as_str(), data.as_str()), ("missed", "list again"));
    assert_eq!(server.listed("?state=pending").await.len(), 8);
    // The stream goes on.
    let id = server.asked(QuestionKind::Host).await;
    assert_eq!(slow.question().await["id"], id.to_string());
}
