//! The memory of calls that wait for people.

use std::net::Ipv4Addr;

use super::super::floods::raise_file_limit;
use super::*;

const CONTAINERS: u8 = 8;
/// The waiting calls of each container.
const CALLS: usize = 125;
/// Different calls of each container.
const QUESTIONS: usize = 5;
/// Limit on the growth of the proxy's resident memory besides the calls' arguments, in KiB. Builds
/// without optimization hold 43 MB.
const GROWTH: usize = 55_000_000 / 1024;
/// Length of the arguments of a call, in KiB.
const ARGUMENTS: usize = 1;

#[test]
fn a_wait_for_people_takes_little_memory() {
    raise_file_limit();
    let asking = Asking::start(json!({ "wait": "15m" }));
    let source = |number| Ipv4Addr::new(127, 0, 2, number);
    for number in 1..=CONTAINERS {
        let id = format!("c{number}");
        asking
            .gateway
            .proxy
            .register(&source(number).to_string(), &id);
    }
    let clients: Vec<_> = (1..=CONTAINERS)
        .map(|number| Client::of(&asking.gateway, Era::Modern, source(number)))
        .map(|client| client.wait_for(&["kb_pay"]))
        .collect();
    let text = "x".repeat(ARGUMENTS * 1024);
    let call = |client, number| begin(client, json!({ "n": number, "text": text }));
    let resident = || usize::try_from(asking.gateway.proxy.memory("VmRSS")).unwrap();
    let before = resident();
    let mut streams = Vec::new();
    for _ in 0..CALLS / QUESTIONS {
        for client in &clients {
            // Few evaluations of policies may wait at once.
            streams.extend((0..QUESTIONS).map(|number| call(client, number)));
            let waiting = || -> u64 {
                let questions = asking.questions().into_iter();
                questions.map(|one| one["waiting"].as_u64().unwrap()).sum()
            };
            eventually("the calls wait", SOON, || waiting() == streams.len() as u64);
        }
    }
    let calls = usize::from(CONTAINERS) * CALLS;
    assert_eq!(streams.len(), calls);
    let grown = resident().saturating_sub(before);
    assert!(
        grown < GROWTH + calls * ARGUMENTS,
        "memory grew by {grown} KiB"
    );
    assert_eq!(asking.calls(), 0);
}
