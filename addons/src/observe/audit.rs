//! Writes the audit log: a line for each flow that ended, or one line with a count for several
//! equal ones.

use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use tokio_util::sync::CancellationToken;

use super::line::AuditLine;
use super::line_budget::{Budget, BudgetLimits};
use super::settings::AuditSettings;
use super::sink::{AuditSink, Destination};
use crate::contract::{Addon, Flow, Order, Outcome, names};

/// The audit log. Made once and kept over reloads. Each lease has a budget of lines and bytes. All
/// unknown sources share one budget, and the proxy's own flows share another. Lines are folded only
/// if their budget is used up.
pub struct Audit {
    limits: Arc<BudgetLimits>,
    unknown_sources: Budget,
    /// The budget of the proxy's own flows. It is limited since clients can cause such flows.
    own: Budget,
    /// The budgets that the leases own, so that `tick` writes their folded lines.
    leases: Mutex<Vec<Weak<Budget>>>,
}

impl Audit {
    /// Registers `proxy_audit_lines_folded_total`. `sink` takes the lines, for the log and for live
    /// viewers.
    pub fn new(
        settings: AuditSettings,
        sink: Arc<dyn AuditSink>,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let help = "Audit lines that were folded into an equal one";
        let folded = IntCounter::new("proxy_audit_lines_folded_total", help)?;
        registry.register(Box::new(folded.clone()))?;
        let limits = Arc::new(BudgetLimits {
            lines_per_minute: settings.lines_per_minute_per_container,
            bytes_per_minute: settings.bytes_per_minute_per_container,
            sink,
            folded,
        });
        Ok(Self {
            unknown_sources: Budget::new(Arc::clone(&limits), CancellationToken::new()),
            own: Budget::new(Arc::clone(&limits), CancellationToken::new()),
            limits,
            leases: Mutex::default(),
        })
    }

    /// Writes the line of an operator's act. No budget limits it: otherwise, a container could
    /// cause the line to be folded.
    pub fn operated(&self, act: &Flow, outcome: &Outcome) {
        let line = AuditLine::of(act, outcome).encode();
        self.limits.sink.write(&line.json, Destination::Both);
    }

    /// Writes folded lines that have waited for a minute, and those of leases that have ended. Must
    /// be called about once a second.
    pub fn tick(&self, now: Instant) {
        self.each_budget(|budget| budget.flush_if_due(now));
    }

    /// Writes all folded lines. Must be called before the process exits.
    pub fn flush(&self) {
        self.each_budget(|budget| budget.flush(Instant::now()));
    }

    fn each_budget(&self, act: impl Fn(&Budget)) {
        act(&self.unknown_sources);
        act(&self.own);
        let mut budgets = Vec::new();
        self.leases.lock().retain(|lease| {
            let budget = lease.upgrade();
            budgets.extend(budget.clone());
            budget.is_some()
        });
        budgets.iter().for_each(|budget| act(budget));
    }

    fn budget_of<'a>(&'a self, flow: &'a Flow) -> &'a Budget {
        let Some(principal) = &flow.principal else {
            return &self.unknown_sources;
        };
        let Some(container) = principal.lease() else {
            return &self.own;
        };
        let budget: &Arc<Budget> = container.state_or_init(|| {
            let budget = Budget::new(Arc::clone(&self.limits), container.ended().clone());
            let budget = Arc::new(budget);
            self.leases.lock().push(Arc::downgrade(&budget));
            budget
        });
        budget
    }
}

impl Addon for Audit {
    fn name(&self) -> &'static str {
        names::AUDIT
    }

    fn order(&self) -> Order {
        Order {
            before: &[names::IDENTITY],
            ..Order::default()
        }
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        let line = AuditLine::of(flow, outcome);
        let encoded = line.encode();
        let ended = flow.started.checked_add(outcome.duration);
        let ended = ended.unwrap_or(flow.started);
        let budget = self.budget_of(flow);
        let write = |to| self.limits.sink.write(&encoded.json, to);
        if budget.admits(&encoded.json, ended) {
            write(Destination::Both);
        } else {
            write(Destination::Live);
            budget.fold(&line, encoded, ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::contract::{Code, Container, Denial, Effect, Kind};
    use crate::fixtures::{container, flow, flow_of, mcp_flow};

    #[derive(Default)]
    struct Lines(Mutex<Vec<String>>);

    struct Sink {
        log: Arc<Lines>,
        live: Arc<Lines>,
    }

    impl AuditSink for Sink {
        fn write(&self, line: &[u8], to: Destination) {
            let line = str::from_utf8(line).unwrap();
            if to != Destination::Live {
                self.log.0.lock().push(line.to_owned());
            }
            if to != Destination::Log {
                self.live.0.lock().push(line.to_owned());
            }
        }
    }

    impl Lines {
        fn text(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock())
        }

        fn take(&self) -> Vec<Value> {
            let read = |line: &String| serde_json::from_str(line).unwrap();
            self.text().iter().map(read).collect()
        }
    }

    fn counts(lines: &[Value]) -> Vec<Option<u64>> {
        let mut counts: Vec<_> = lines.iter().map(|line| line["count"].as_u64()).collect();
        counts.sort_unstable();
        counts
    }

    fn audit(lines_per_minute: u32) -> (Audit, Arc<Lines>, Arc<Lines>) {
        let (log, live) = (Arc::new(Lines::default()), Arc::new(Lines::default()));
        let sink = Sink {
            log: Arc::clone(&log),
            live: Arc::clone(&live),
        };
        let settings = AuditSettings {
            lines_per_minute_per_container: NonZeroU32::new(lines_per_minute).unwrap(),
            bytes_per_minute_per_container: NonZeroU32::MAX,
        };
        let audit = Audit::new(settings, Arc::new(sink), &Registry::new()).unwrap();
        (audit, log, live)
    }

    fn ok() -> Outcome {
        Outcome {
            status: 200,
            denial: None,
            aborted: false,
            duration: Duration::from_millis(12),
        }
    }

    fn finish(audit: &Audit, container: &Arc<Container>, path: &str) {
        let mut flow = flow_of(container, Kind::Http, "api.example.com");
        flow.record_mut().path = Some(path.into());
        audit.finished(&flow, &ok());
    }

    #[test]
    fn a_container_over_its_budget_cannot_have_an_operators_act_folded() {
        let (audit, log, _) = audit(1);
        let container = container("web");
        for path in 0..1000 {
            finish(&audit, &container, &format!("/{path}"));
        }
        log.take();
        let mut act = flow_of(&container, Kind::Http, "api.example.com");
        act.set_rule("operator: uid 0");
        audit.operated(&act, &ok());
        let lines = log.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(
            (&lines[0]["rule"], &lines[0]["count"]),
            (&"operator: uid 0".into(), &Value::Null)
        );
    }

    #[test]
    fn a_line_has_the_documented_keys_in_order() {
        let (audit, log, _) = audit(10);
        let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
        flow.record_mut().method = Some("GET".into());
        flow.record_mut().path = Some("/v1?key=secret".into());
        flow.record_mut().rule = Some("api.example.com".into());
        flow.record_mut().upstream_addr = Some("93.184.216.34:443".parse().unwrap());
        flow.record_mut().credential = Some("anthropic".into());
        flow.start_mut().at = std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        audit.finished(&flow, &ok());
        let id = flow.id();
        assert_eq!(
            log.text(),
            [format!(
                r#"{{"ts":"2023-11-14T22:13:20.123Z","flow":"{id}","kind":"http","container_id":"web","client":"10.0.0.7","method":"GET","host":"api.example.com","port":443,"path":"/v1","status":200,"outcome":"ok","rule":"api.example.com","bytes_in":0,"bytes_out":0,"duration_ms":12,"upstream_addr":"93.184.216.34:443","credential":"anthropic"}}"#
            )]
        );
    }

    #[test]
    fn a_denial_has_its_code_addon_and_rule_and_no_keys_for_absent_values() {
        let (audit, log, _) = audit(10);
        let mut flow = flow(Kind::Dns, "evil.example.com");
        flow.start_mut().client = crate::contract::Client::default();
        let denial = Denial::new(Code::DomainNotAllowed, "Domain not allowed: secret")
            .rule("allowlist")
            .by("policy");
        let outcome = Outcome {
            status: 0,
            denial: Some(denial),
            ..ok()
        };
        audit.finished(&flow, &outcome);
        let line = log.take().remove(0);
        let keys: Vec<_> = line.as_object().unwrap().keys().cloned().collect();
        assert!(
            !keys
                .iter()
                .any(|key| ["container_id", "client", "status"].contains(&&**key))
        );
        assert_eq!(line["outcome"], "denied");
        assert_eq!(line["code"], "domain_not_allowed");
        assert_eq!(line["addon"], "policy");
        assert_eq!(line["rule"], "allowlist");
        assert!(!line.to_string().contains("secret"));
    }

    #[test]
    fn a_tool_call_is_recorded_with_its_decision_and_without_its_arguments() {
        let (audit, log, _) = audit(10);
        let web = container("web");
        let mut call = mcp_flow(&web, Some("kb"), "tools/call");
        call.mcp_record().args_sha256 = Some("00ff".into());
        call.mcp_record().decision = Some(Effect::DenyContinue);
        call.mcp_record().reason = Some("not today".into());
        audit.finished(&call, &ok());
        let mut read = mcp_flow(&web, Some("kb"), "resources/read");
        read.mcp_record().suspicious = true;
        audit.finished(&read, &ok());
        audit.finished(&mcp_flow(&web, None, &"é".repeat(100)), &ok());
        let lines = log.take();
        let keys: Vec<_> = lines[0].as_object().unwrap().keys().cloned().collect();
        let expected = "ts flow kind container_id client method host port status outcome bytes_in \
             bytes_out duration_ms server tool args_sha256 decision reason";
        assert_eq!(keys.join(" "), expected);
        let text = |line: &Value, key: &str| line[key].as_str().map(str::to_owned);
        let is = |line: usize, key: &str, expected: &str| {
            assert_eq!(text(&lines[line], key).as_deref(), Some(expected), "{key}");
        };
        is(0, "kind", "mcp");
        is(0, "method", "tools/call");
        is(0, "host", "unified-proxy");
        is(0, "server", "kb");
        is(0, "tool", "fetch");
        is(1, "path", "fetch");
        assert_eq!(lines[1]["suspicious"], true);
        assert_eq!((lines[1].get("tool"), lines[2].get("server")), (None, None));
        is(2, "method", &("é".repeat(32) + "…"));
    }

    #[test]
    fn a_flood_of_different_tool_calls_is_written_as_fewer_than_600_lines() {
        let (audit, log, _) = audit(1);
        let web = container("web");
        for n in 0..5000 {
            let mut call = mcp_flow(&web, Some("kb"), "tools/call");
            call.mcp_record().args_sha256 = Some(format!("{n:064}").into());
            audit.finished(&call, &ok());
        }
        audit.flush();
        let lines = log.take();
        assert!(lines.len() < 600, "{}", lines.len());
        let count = |line: &Value| line["count"].as_u64().unwrap_or(1);
        assert_eq!(lines.iter().map(count).sum::<u64>(), 5000);
    }

    #[test]
    fn over_the_budget_equal_lines_are_folded_into_one_with_a_count() {
        let (audit, log, live) = audit(2);
        let web = container("web");
        for _ in 0..7 {
            finish(&audit, &web, "/a");
        }
        finish(&audit, &web, "/b");
        assert_eq!(log.take().len(), 2);
        assert_eq!(live.take().len(), 8);
        audit.tick(Instant::now() + Duration::from_secs(59));
        assert_eq!(log.take().len(), 0);
        audit.tick(Instant::now() + Duration::from_secs(61));
        assert_eq!(counts(&log.take()), [None, Some(5)]);
        assert_eq!(audit.limits.folded.get(), 4);
    }

    #[test]
    fn a_folded_line_has_the_time_of_its_first_flow_and_the_bytes_of_all_flows() {
        let (audit, log, live) = audit(1);
        let web = container("web");
        for (millis, bytes) in [(1, 0), (7, 10), (8, 20), (1234, u64::MAX)] {
            let flow = flow_of(&web, Kind::Http, "api.example.com");
            flow.counters.bytes_in.store(bytes, Relaxed);
            flow.counters.bytes_out.store(bytes / 2, Relaxed);
            let duration = Duration::from_millis(millis);
            audit.finished(&flow, &Outcome { duration, ..ok() });
        }
        log.take();
        audit.flush();
        let mut expected = live.take().remove(1);
        expected["bytes_in"] = u64::MAX.into();
        expected["bytes_out"] = (15 + u64::MAX / 2).into();
        expected["count"] = 3.into();
        assert_eq!(log.text(), [expected.to_string()]);
    }

    #[test]
    fn only_lines_with_equal_keys_are_folded_into_one() {
        let changes: [fn(&mut Flow); 8] = [
            |_| {},
            |flow| flow.record_mut().method = Some("PUT".into()),
            |flow| flow.record_mut().path = Some("/b".into()),
            |flow| flow.record_mut().rule = Some("another".into()),
            |flow| flow.record_mut().credential = Some("another".into()),
            |flow| flow.record_mut().upstream_addr = Some(([10, 0, 0, 1], 443).into()),
            |flow| flow.endpoint_mut().port += 1,
            |flow| flow.start_mut().kind = Kind::Websocket,
        ];
        let (audit, log, _) = audit(1);
        let web = container("web");
        finish(&audit, &web, "/a");
        log.take();
        for _ in 0..2 {
            for change in changes {
                let mut flow = flow_of(&web, Kind::Http, "api.example.com");
                change(&mut flow);
                audit.finished(&flow, &ok());
            }
        }
        audit.flush();
        assert_eq!(counts(&log.take()), [Some(2); 8]);
    }

    #[test]
    fn a_container_over_its_budget_does_not_fold_the_lines_of_another() {
        let (audit, log, _) = audit(1);
        let (web, db) = (container("web"), container("db"));
        for _ in 0..100 {
            finish(&audit, &web, "/a");
        }
        finish(&audit, &db, "/a");
        assert_eq!(log.take().len(), 2);
    }

    #[test]
    fn unknown_sources_share_one_budget() {
        let (audit, log, _) = audit(1);
        for last in 1..=9 {
            let mut flow = flow(Kind::Tunnel, "api.example.com");
            flow.start_mut().client.peer = Some(([10, 0, 0, last], 40000).into());
            audit.finished(&flow, &ok());
        }
        assert_eq!(log.take().len(), 1);
    }

    #[test]
    fn folded_lines_are_written_when_the_lease_ends() {
        let (audit, log, _) = audit(1);
        let web = container("web");
        for _ in 0..3 {
            finish(&audit, &web, "/a");
        }
        log.take();
        web.end();
        audit.tick(Instant::now());
        assert_eq!(counts(&log.take()), [Some(2)]);
        finish(&audit, &web, "/late");
        drop(web);
        assert_eq!(log.take().len(), 1);
    }

    #[test]
    fn a_flood_of_different_requests_is_written_as_fewer_than_600_lines() {
        let (audit, log, _) = audit(1);
        let web = container("web");
        for n in 0..5000 {
            finish(&audit, &web, &format!("/{n}"));
        }
        audit.flush();
        let lines = log.take();
        assert!(lines.len() < 600, "{}", lines.len());
        let flows: u64 = lines
            .iter()
            .map(|line| line["count"].as_u64().unwrap_or(1))
            .sum();
        assert_eq!(flows, 5000);
    }

    #[test]
    fn a_long_path_is_cut() {
        let (audit, log, _) = audit(1);
        finish(&audit, &container("web"), &"é".repeat(5000));
        let line = log.take().remove(0);
        let path = line["path"].as_str().unwrap();
        assert_eq!(path, "é".repeat(512) + "…");
    }
}
