//! Compares the proxy's decisions with the files recorded under `tests/corpus`: the output of
//! `explain`, and transcripts of denials. A refactoring must change none of these files.

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
mod recorder;
mod registry;
mod request_spec;
mod send;
mod tunnels;
mod upstream;

use std::panic::resume_unwind;

use testkit::each_row;

use files::{Recorded, Transcripts};
use request_spec::Ingress;

#[test]
fn explain_answers_as_recorded() {
    let mut recorded = Recorded::default();
    explain::record(&mut recorded);
    recorded.settle("explain");
}

/// The name of a scenario in messages, and the function that records its denials.
type Scenario = (&'static str, fn() -> Transcripts);

/// Groups of denials, recorded concurrently, each with separate proxies.
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
        // Runs the scenarios at the same time: some of them mostly wait for timeouts.
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
