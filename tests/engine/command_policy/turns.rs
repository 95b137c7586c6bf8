//! How many commands run at once.

use serde_json::json;
use tokio::task::JoinSet;

use std::sync::Arc;

use super::fixture::*;
use crate::children::fixture::eventually;

/// Writes a file that says that it began, and waits for the file `go`.
const WAITS: &str = "import json, os, sys, time
who = json.load(sys.stdin)['arguments']['who']
open(f'DIR/began-{who}-{os.urandom(8).hex()}', 'w')
while who == 'a' and not os.path.exists('DIR/go'): time.sleep(0.01)
print('{\"decision\": \"allow\"}')";

#[tokio::test(flavor = "multi_thread")]
async fn four_commands_of_a_container_run_at_once_and_others_are_served_meanwhile() {
    let fixture = Arc::new(Fixture::with(WAITS, &json!({ "confine": "none" })));
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let fixture = Arc::clone(&fixture);
        calls.spawn(async move { fixture.call_of("a", &json!({ "who": "a" }), LONG).await });
    }
    assert!(eventually(LONG, || fixture.files("began-a") == 4).await);
    for _ in 0..3 {
        let served = fixture.call_of("b", &json!({ "who": "b" }), LONG).await;
        served.unwrap();
    }
    assert_eq!(fixture.files("began-a"), 4, "the fifth waits");
    std::fs::write(fixture.directory.path().join("go"), "").unwrap();
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(fixture.files("began-a"), 5);
    fixture.settle().await;
}
