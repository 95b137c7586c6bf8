//! What the outside sees of decisions: the answers of `explain` and the transcripts of denials, as
//! they were recorded under `tests/corpus`. A refactoring leaves every file as it is.

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

use ask::Ingress;
use files::{Recorded, Transcripts};

#[test]
fn explain_answers_as_recorded() {
    let mut recorded = Recorded::default();
    explain::record(&mut recorded);
    recorded.settle("explain");
}

#[test]
fn denials_are_as_recorded() {
    // What waits for a time-out leaves the processor to the others.
    let scenarios: [fn() -> Transcripts; 13] = [
        || upstream::record_slow_look_up(Ingress::Connect),
        || upstream::record_slow_look_up(Ingress::DnsUdp),
        || upstream::record_slow_look_up(Ingress::DnsTcp),
        || upstream::record_slow_look_up(Ingress::DnsHttp),
        listener::record,
        upstream::record,
        judged::record_time_outs,
        registry::record,
        policy::record,
        policy::record_pushes_by_status,
        limits::record,
        judged::record_memory,
        upstream::record_unresolved,
    ];
    let mut recorded = Recorded::default();
    std::thread::scope(|scope| {
        let running = scenarios.map(|scenario| scope.spawn(scenario));
        for (path, text) in running.into_iter().flat_map(|one| one.join().unwrap()) {
            recorded.add(path, text);
        }
    });
    coverage::check(&recorded);
    recorded.settle("denials");
}
