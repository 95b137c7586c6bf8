//! Ended flows, for tests of their sinks.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use addons::contract::{
    Addon as _, Client, Endpoint, FlowStart, Host, Kind, Outcome, Scheme, Subject,
};
use addons::observe::{Audit, AuditSettings, AuditSink};

/// Ends `count` flows to the ports 0, 1 and so on; `sink` gets their audit lines.
pub fn end_flows(sink: Arc<dyn AuditSink>, count: usize) {
    let settings = AuditSettings {
        lines_per_minute_per_container: NonZeroU32::MAX,
        bytes_per_minute_per_container: NonZeroU32::MAX,
    };
    let audit = Audit::new(settings, sink, &prometheus::Registry::new()).unwrap();
    let outcome = Outcome {
        status: 200,
        denial: None,
        aborted: false,
        duration: Duration::ZERO,
    };
    for port in 0..u16::try_from(count).unwrap() {
        let host = Host::parse("api.example.com").unwrap();
        let subject = Subject::Upstream(Endpoint {
            scheme: Scheme::Http,
            host,
            port,
        });
        let start = FlowStart::new(Kind::Http, Client::default(), subject, None);
        audit.finished(&start.begin(), &outcome);
    }
}
