//! Hostile bodies and paths: judging them takes little time, does not panic, and does not exhaust
//! the stack.

use std::time::Duration;

use super::*;
use proptest::prelude::*;
use serde_json::json;
use testkit::each_row;

/// The longest text of queries that the addon accepts, in bytes.
const LONGEST: usize = 256 * 1024;

/// The largest body that the addon accepts, in bytes.
const LARGEST: usize = 1 << 20;

fn filled(head: &str, part: &str, tail: &str) -> String {
    let room = LARGEST - head.len() - tail.len() - 64;
    format!("{head}{}{tail}", part.repeat(room / part.len()))
}

/// Queries that are expensive to judge. Those with `in bounds` in their name stay within the
/// addon's budget for one body, so judging does not end early.
fn bombs() -> Vec<(&'static str, String)> {
    let nested = |open: &str, close: &str| {
        let depth = (LARGEST - 64) / (open.len() + close.len());
        format!("{}{}", open.repeat(depth), close.repeat(depth))
    };
    let doubling: String = (0..40)
        .map(|n| format!("fragment f{n} on Q {{ ...f{} ...f{} }} ", n + 1, n + 1))
        .collect();
    vec![
        ("selections", nested("{a", "}")),
        ("lists", format!("{{a(b:{})}}", nested("[", "]"))),
        (
            "objects",
            format!("{{a(b:{}1{})}}", "{a:".repeat(300_000), "}"),
        ),
        ("types", format!("query q($a:{}) {{a}}", nested("[", "]"))),
        ("inline fragments", nested("...{", "}")),
        ("open brackets", "{".repeat(LARGEST - 64)),
        ("names", filled("{", "a ", "}")),
        ("aliases", filled("{", "a:b ", "}")),
        (
            "repositories",
            filled("{", "repository(owner:\"acme\",name:\"web\"){id}", "}"),
        ),
        (
            "many fields, in bounds",
            format!("{{{}}}", "a{b} ".repeat(1300)),
        ),
        (
            "many arguments, in bounds",
            format!("{{a(b:[{}])}}", "{c:$d}".repeat(1100)),
        ),
        (
            "many repositories, in bounds",
            format!(
                "{{{}}}",
                "repository(owner:\"acme\",name:\"web\"){id}".repeat(600)
            ),
        ),
        (
            "a string, in bounds",
            format!("{{a(b:\"{}\")}}", "x".repeat(LONGEST - 64)),
        ),
        (
            "blanks, in bounds",
            format!("{{a{}}}", " ".repeat(LONGEST - 64)),
        ),
        (
            "comments, in bounds",
            format!("{{a{}}}", "#\n".repeat(3900)),
        ),
        (
            "a comment, in bounds",
            format!("{{a#{}\n}}", "é".repeat(LONGEST / 2 - 64)),
        ),
        ("commas", filled("{a", ",", "}")),
        ("blanks", filled("{a", " ", "}")),
        ("comments", filled("{a", "#\n", "}")),
        ("one comment", filled("{a#", "x", "\n}")),
        ("wrong characters", filled("{a", "^", "}")),
        ("characters beyond ASCII", filled("{a", "é", "}")),
        ("one string", filled("{a(b:\"", "x", "\")}")),
        ("a string of escapes", filled("{a(b:\"", "\\u0041", "\")}")),
        ("a string without end", filled("{a(b:\"", "é", "")),
        ("a block string", filled("{a(b:\"\"\"", " \n", "\"\"\")}")),
        ("spreads", filled("{", "... ", "}")),
        ("colons", filled("{", "a,: ", "}")),
        ("numbers", filled("{a(b:[", "-1.0e1 ", "])}")),
        ("directives", filled("{a", "@b", "}")),
        ("definitions", filled("", "{a}", "")),
        ("variables", filled("query q(", "$a:A=1 ", "){a}")),
        ("a circle", "{...f} fragment f on Q {...f}".to_owned()),
        (
            "a wide circle",
            "{...f} fragment f on Q {...g ...g} fragment g on Q {...f ...f}".to_owned(),
        ),
        (
            "doubling",
            format!("{{...f0}} {doubling} fragment f40 on Q {{a}}"),
        ),
    ]
}

/// Limit of the CPU time for judging 1 MiB. A quadratic judge would take seconds. A debug build
/// takes up to 60 ms while other programs use the caches of the same core.
const QUICK: Duration = Duration::from_millis(if cfg!(debug_assertions) { 200 } else { 50 });

/// Limit of the CPU time for searching 1 MiB for mentions. Most of this time is spent in the crate
/// `addons`. A debug build compiles the crate without optimization and takes 200 ms.
const QUICK_SEARCH: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 50 });

#[track_caller]
fn assert_quick(guard: &Guard, what: &str, body: &[u8], bound: Duration) {
    let took = processor_time(|| {
        let _ = guard.send("api.github.com", "POST /graphql", body);
    });
    assert!(took < bound, "{what}: {took:?}");
}

#[test]
fn every_query_is_judged_quickly_on_a_small_stack() {
    let guard = Guard::new(settings());
    // The stack has 1 MiB, half of the stack of a worker thread of tokio.
    let run = move || {
        for (what, text) in bombs() {
            let body = json!({ "query": text }).to_string();
            let body = &body.as_bytes()[..body.len().min(LARGEST)];
            assert_quick(&guard, what, body, QUICK);
        }
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    thread.spawn(run).unwrap().join().unwrap();
}

#[test]
fn every_set_of_variables_is_judged_quickly() {
    let guard = Guard::new(settings());
    let many = "{a:node(id:$v){id}}".repeat(1000);
    each_row(
        [
            (
                "a long list",
                "query q($v:A){nodes(ids:$v){id}}".to_owned(),
                json!(vec!["W"; 100_000]),
            ),
            (
                "many ids",
                "query q($v:A){nodes(ids:$v){id}}".to_owned(),
                json!((0..50_000).map(|n| format!("W{n}")).collect::<Vec<_>>()),
            ),
            (
                "a variable used often",
                format!("query q($v:A){many}"),
                json!("W".repeat(LARGEST / 2)),
            ),
            (
                "a long body",
                "mutation m($v:A){addComment(input:{subjectId:\"W1\",body:$v}){id}}".to_owned(),
                json!("@dependabot ".repeat(80_000)),
            ),
            (
                "many lines",
                "mutation m($v:A){addComment(input:{subjectId:\"W1\",body:$v}){id}}".to_owned(),
                json!("\n".repeat(LARGEST / 3)),
            ),
        ],
        |(what, query, value)| {
            let body = json!({ "query": query, "variables": { "v": value } }).to_string();
            assert_quick(&guard, what, body.as_bytes(), QUICK_SEARCH);
        },
    );
    let deep = format!(
        "{{\"query\":\"{{a}}\",\"variables\":{}",
        "[".repeat(LARGEST - 64)
    );
    assert_quick(&guard, "deep JSON", deep.as_bytes(), QUICK);
}

#[test]
fn queries_over_the_budget_and_circular_fragments_are_refused() {
    let guard = Guard::new(settings());
    for (what, text) in bombs()
        .into_iter()
        .filter(|(what, _)| !what.contains("in bounds"))
    {
        let body = json!({ "query": text });
        let code = guard.code("api.github.com", "POST /graphql", &body);
        assert!(code.is_some(), "{what}");
    }
    let larger = vec![b' '; LARGEST + 1];
    let denial = guard
        .send("api.github.com", "POST /graphql", &larger)
        .err()
        .unwrap();
    assert_eq!(denial.code(), Code::BodyTooLargeToInspect);
}

/// Tokens of GraphQL, which get further in the parser than random text.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ":",
        "...",
        "$",
        "@",
        "!",
        "=",
        "\"",
        "\"\"\"",
        "#",
        "\n",
        ",",
        " ",
        "on ",
        "query ",
        "mutation ",
        "fragment ",
        "F ",
        "repository",
        "node",
        "id",
        "input",
        "mergePullRequest",
        "addComment",
        "owner:\"acme\"",
        "name:\"web\"",
        "1",
        "é",
        "\\u{1F600}",
        "\u{feff}",
        "null",
        "true",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_document_causes_a_panic(text in pieces(), variables in "[{}\\[\\]\":,a1]{0,20}") {
        let guard = Guard::new(settings());
        let query = json!(text);
        for body in [
            format!("{{\"query\":{query}}}"),
            format!("{{\"query\":{query},\"variables\":{variables}}}"),
            format!("[{{\"query\":{query}}}]"),
        ] {
            let denial = guard.send("api.github.com", "POST /graphql", body.as_bytes()).err();
            prop_assert_ne!(denial.map(|denial| denial.code()), Some(Code::InternalError));
        }
    }

    #[test]
    fn a_merge_as_a_plain_field_never_passes(before in pieces(), after in pieces()) {
        let text = format!("{before} mergePullRequest {after}");
        let body = json!({ "query": format!("mutation {{ {text} }}") });
        let guard = Guard::new(settings());
        let code = guard.code("api.github.com", "POST /graphql", &body);
        // A request may pass if the mutation's name is part of a comment, a string, an alias or
        // another token.
        prop_assert!(code.is_some() || text.contains(['#', '"', '$', '@', ':', '.', '(']), "{}", text);
    }

    #[test]
    fn no_path_reaches_another_repository(path in "(/|repos|acme|web|secret|repositories|api|v3|8|\\.\\.|;|%2e|%2F|\\\\|graphql){0,12}") {
        let guard = Guard::new(settings());
        let sent = guard.send("api.github.com", &format!("GET /{path}"), b"");
        if let Ok(sent) = sent {
            let target = sent.path.sent().to_ascii_lowercase();
            let below = target.strip_prefix("/api/v3").unwrap_or(&target);
            let mine = below == "/repos/acme/web" || below.starts_with("/repos/acme/web/");
            prop_assert!(mine || below.trim_matches('/').is_empty(), "{}", target);
        }
    }
}
