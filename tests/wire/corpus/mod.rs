//! Compares the externally visible decisions, the answers of `explain` and transcripts of denials,
//! with the files recorded under `tests/corpus`. A refactoring changes none of them.

mod ask;
mod coverage;
mod explain;
mod files;
mod git;
mod judged;
mod limits;
mod listener;
mod normal;
mod policy;
mod questions;
mod registry;
mod send;
mod stage;
mod tunnels;
mod upstream;

use std::panic::resume_unwind;

use testkit::each_row;

use ask::Ingress;
use files::{Recorded, Transcripts};

#[test]
fn explain_answers_as_recorded() {
    let mut recorded = Recorded::default();
    explain::record(&mut recorded);
    recorded.settle("explain");
}

type Scenario = (&'static str, fn() -> Transcripts);

/// Groups of denials, which are recorded concurrently, each with proxies of its own.
const SCENARIOS: [Scenario; 15] = [
    ("slow look-up: CONNECT", || {
        upstream::record_slow_look_up(Ingress::Connect)
    }),
    ("slow look-up: UDP", || {
        upstream::record_slow_look_up(Ingress::DnsUdp)
    }),
    ("slow look-up: TCP", || {
        upstream::record_slow_look_up(Ingress::DnsTcp)
    }),
    ("slow look-up: HTTP", || {
        upstream::record_slow_look_up(Ingress::DnsHttp)
    }),
    ("own listeners", listener::record),
    ("memory of own listeners", listener::record_memory),
    ("time-outs of upstreams", upstream::record_time_outs),
    ("upstreams", upstream::record),
    ("time-outs of bodies", judged::record_time_outs),
    ("registry", registry::record),
    ("policy", policy::record),
    ("pushes by status", policy::record_pushes_by_status),
    ("limits", limits::record),
    ("memory of bodies", judged::record_memory),
    ("unresolved names", upstream::record_unresolved),
];

#[test]
fn denials_are_as_recorded() {
    let mut recorded = Recorded::default();
    std::thread::scope(|scope| {
        // Scenarios that wait for a timeout leave the processor to the others.
        let running = SCENARIOS.map(|(name, scenario)| (name, scope.spawn(scenario)));
        each_row(running, |(_, thread)| {
            // A panic of the scenario fails its row, with the panic's message.
            let files = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            for (path, text) in files {
                recorded.add(path, text);
            }
        });
    });
    coverage::check(&recorded);
    recorded.settle("denials");
}
