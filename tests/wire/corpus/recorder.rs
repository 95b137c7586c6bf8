//! A running proxy whose denials are recorded, each with its audit lines.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use addons::contract::Code;
use rustix::process::Signal;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::files::Transcripts;
use super::normal::normal;
use super::request_spec::{Ingress, RequestSpec};
use super::send::{Connection, Question};
use crate::support::{Origin, Proxy, SOON};

/// Pause before and after each row, so that no two rows share a millisecond: [`Recorder::finish`]
/// assigns an audit line to a row by the millisecond in which the line's flow began.
const APART: Duration = Duration::from_millis(3);
/// Limit on the requests sent to exhaust a budget.
const MOST_REPEATED: usize = 1000;

/// One row: a denial, its transcript, and the times at which it began and ended, in milliseconds
/// since the epoch.
struct Row {
    path: String,
    code: Code,
    text: String,
    begun: u128,
    ended: u128,
}

/// Sends requests to a proxy and records the denials.
pub struct Recorder {
    pub proxy: Proxy,
    /// Whether to record pushes only, for `push_denials: status`.
    only_pushes: bool,
    known: Vec<(String, &'static str)>,
    rows: Vec<Row>,
}

impl Recorder {
    /// Makes a recorder without rows. `origin` is the upstream; `known` has further texts that
    /// differ from run to run, with their placeholders.
    pub fn new(proxy: Proxy, origin: &Origin, known: Vec<(String, &'static str)>) -> Self {
        let mut all = vec![
            (proxy.address.to_string(), "<proxy>"),
            (proxy.dns.to_string(), "<dns>"),
            (origin.https.to_string(), "<https origin>"),
            (origin.http.to_string(), "<http origin>"),
            (proxy.path("").display().to_string(), "<folder>/"),
        ];
        all.extend(known);
        Self {
            proxy,
            only_pushes: false,
            known: all,
            rows: Vec::new(),
        }
    }

    /// Records only pushes, as [`Ingress::PushStatus`].
    pub fn of_pushes(mut self) -> Self {
        self.only_pushes = true;
        self
    }

    /// Records the denial of a request; `name` distinguishes it from other denials with this code
    /// and ingress. A recorder of pushes sends and records only pushes.
    pub fn deny(&mut self, code: Code, ingress: Ingress, name: &str, spec: &RequestSpec) {
        self.on(code, ingress, name, spec, |proxy| {
            Connection::open(proxy, spec)
        });
    }

    /// Like [`Self::deny`], on a connection that is already open.
    pub fn deny_on(
        &mut self,
        code: Code,
        ingress: Ingress,
        name: &str,
        spec: &RequestSpec,
        connection: Connection,
    ) {
        self.on(code, ingress, name, spec, |_| connection);
    }

    fn on(
        &mut self,
        code: Code,
        ingress: Ingress,
        name: &str,
        spec: &RequestSpec,
        open: impl FnOnce(&Proxy) -> Connection,
    ) {
        if let Some(ingress) = self.recorded_as(ingress) {
            self.row(code, ingress, name, |proxy| {
                let mut connection = open(proxy);
                (spec.shown(), connection.send(spec))
            });
        }
    }

    /// Repeats a request until it is denied, and records that denial.
    pub fn exhaust(&mut self, code: Code, ingress: Ingress, name: &str, spec: &RequestSpec) {
        let denied = format!("x-proxy-denied: {}\n", code.as_str());
        let once = |proxy: &Proxy| (spec.shown(), Connection::open(proxy, spec).send(spec));
        self.repeat(code, ingress, name, &denied, once);
    }

    /// Repeats a DNS question until it is refused, and records that denial.
    pub fn exhaust_dns(&mut self, code: Code, name: &str, question: &Question) {
        let once = |proxy: &Proxy| (question.shown(), question.send(proxy));
        let ingress = ingress_of(question);
        self.repeat(code, ingress, name, "response code 5\n", once);
    }

    fn repeat(
        &mut self,
        code: Code,
        ingress: Ingress,
        name: &str,
        denied: &str,
        once: impl Fn(&Proxy) -> (String, String),
    ) {
        for _ in 0..MOST_REPEATED {
            self.row(code, ingress, name, &once);
            if self
                .rows
                .last()
                .is_some_and(|row| row.text.contains(denied))
            {
                return;
            }
            self.rows.pop();
        }
        panic!("{ingress:?}: no {code:?} within {MOST_REPEATED} requests");
    }

    /// Records a DNS question that is denied.
    pub fn deny_dns(&mut self, code: Code, name: &str, question: &Question) {
        if !self.only_pushes {
            let ingress = ingress_of(question);
            self.row(code, ingress, name, |proxy| {
                (question.shown(), question.send(proxy))
            });
        }
    }

    /// Records a denial; `act` sends a request and returns request and response as text.
    pub fn row(
        &mut self,
        code: Code,
        ingress: Ingress,
        name: &str,
        act: impl FnOnce(&Proxy) -> (String, String),
    ) {
        std::thread::sleep(APART);
        let begun = millis();
        let (asked, got) = act(&self.proxy);
        let ended = millis();
        let name = match name {
            "" => ingress.name().to_owned(),
            name => format!("{}-{name}", ingress.name()),
        };
        self.rows.push(Row {
            path: format!("{}/{name}.txt", code.as_str()),
            code,
            text: format!("{asked}\n{got}"),
            begun,
            ended,
        });
        std::thread::sleep(APART);
    }

    /// The ingress under which a denial is recorded; `None` if it is not recorded.
    fn recorded_as(&self, ingress: Ingress) -> Option<Ingress> {
        match ingress {
            Ingress::PushReport if self.only_pushes => Some(Ingress::PushStatus),
            _ if self.only_pushes => None,
            ingress => Some(ingress),
        }
    }

    /// Ends the proxy, so that all audit lines are written. Returns the path and the text of each
    /// row. Panics if any row has no audit line with its code; the message lists all such rows.
    pub fn finish(mut self) -> Transcripts {
        self.proxy.signal(Signal::TERM);
        self.proxy.wait(2 * SOON);
        let lines: Vec<_> = self.proxy.audit().into_iter().map(AuditLine::of).collect();
        let (mut files, mut failures) = (Vec::new(), Vec::new());
        for mut row in std::mem::take(&mut self.rows) {
            // `IdleTracker` stores 0 for "no head", so it records a head in the first millisecond
            // of its connection as 1 ms. The `ts` of its audit line may then be 1 ms after the
            // row's end.
            let last = row.ended + 1;
            let within = |line: &&AuditLine| (row.begun..=last).contains(&line.began);
            let mut own: Vec<_> = lines.iter().filter(within).collect();
            // The order of the lines must not depend on timing.
            own.sort_by_key(|line| {
                let text = |name: &str| line.text[name].as_str().unwrap_or_default();
                (text("kind") != "tunnel", text("host"))
            });
            let code = row.code.as_str();
            let is_denied = own.iter().any(|line| line.text["code"] == code);
            row.text.push('\n');
            for line in own {
                let _ = writeln!(row.text, "audit {}", line.text);
            }
            if !is_denied {
                failures.push(format!(
                    "{} has no audit line with its code:\n{}",
                    row.path, row.text
                ));
            }
            files.push((row.path, normal(&row.text, &self.known)));
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        files
    }
}

/// An audit line, and the millisecond since the epoch in which its flow began.
#[derive(Debug)]
struct AuditLine {
    began: u128,
    text: Value,
}

impl AuditLine {
    fn of(text: Value) -> Self {
        let ts = OffsetDateTime::parse(text["ts"].as_str().unwrap(), &Rfc3339).unwrap();
        let began = u128::try_from(ts.unix_timestamp_nanos()).unwrap() / 1_000_000;
        Self { began, text }
    }
}

fn ingress_of(question: &Question) -> Ingress {
    match question.tcp {
        true => Ingress::DnsTcp,
        false => Ingress::DnsUdp,
    }
}

fn millis() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_millis()
}
