//! An audit line as JSON, for the log and for all who read flows.
//!
//! Every flow has its line, so this is written by hand: what cannot need escaping is copied, and
//! serde_json has the rest.

use std::fmt::Display;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use time::OffsetDateTime;

use super::line::AuditLine;
use crate::contract::Host;

impl AuditLine {
    /// Appends the line as a JSON object with the keys of the log in their order. What is not
    /// there has no key.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"ts\":\"");
        rfc_3339(out, self.ts);
        out.extend_from_slice(b"\",\"flow\":\"");
        out.extend_from_slice(&hex(self.flow.number()));
        out.extend_from_slice(b"\",\"kind\":");
        word(out, self.kind.as_str());
        if let Some(id) = &self.container_id {
            out.extend_from_slice(b",\"container_id\":");
            word(out, id.as_str());
        }
        if let Some(client) = self.client {
            out.extend_from_slice(b",\"client\":\"");
            address(out, client);
            out.push(b'"');
        }
        if let Some(method) = &self.method {
            out.extend_from_slice(b",\"method\":");
            value(out, method);
        }
        out.extend_from_slice(b",\"host\":");
        host(out, &self.host);
        out.extend_from_slice(b",\"port\":");
        value(out, self.port);
        if let Some(path) = &self.path {
            out.extend_from_slice(b",\"path\":");
            value(out, &**path);
        }
        self.write_end(out);
        out.push(b'}');
    }

    /// The line as JSON.
    pub fn json(&self) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out);
        // What texts and ASCII make up is UTF-8.
        String::from_utf8(out).unwrap_or_default()
    }

    /// How it ended, what it cost and where it went.
    fn write_end(&self, out: &mut Vec<u8>) {
        if let Some(status) = self.status {
            out.extend_from_slice(b",\"status\":");
            value(out, status);
        }
        out.extend_from_slice(b",\"outcome\":");
        word(out, self.outcome);
        if let Some(code) = self.code {
            out.extend_from_slice(b",\"code\":");
            word(out, code);
        }
        if let Some(addon) = self.addon {
            out.extend_from_slice(b",\"addon\":");
            word(out, addon);
        }
        if let Some(rule) = &self.rule {
            out.extend_from_slice(b",\"rule\":");
            value(out, &**rule);
        }
        out.extend_from_slice(b",\"bytes_in\":");
        value(out, self.bytes_in);
        out.extend_from_slice(b",\"bytes_out\":");
        value(out, self.bytes_out);
        out.extend_from_slice(b",\"duration_ms\":");
        value(out, self.duration_ms);
        if let Some(upstream) = self.upstream_addr {
            out.extend_from_slice(b",\"upstream_addr\":\"");
            socket_address(out, upstream);
            out.push(b'"');
        }
        if let Some(credential) = &self.credential {
            out.extend_from_slice(b",\"credential\":");
            value(out, &**credential);
        }
        if let Some(count) = self.count {
            out.extend_from_slice(b",\"count\":");
            value(out, count);
        }
    }
}

/// A number, or a text that may need escaping, as serde_json writes it.
fn value(out: &mut Vec<u8>, value: impl Serialize) {
    // Neither is refused, and memory takes what it is given.
    let _ = serde_json::to_writer(out, &value);
}

/// A text that needs no escaping: the program's own words, and what a grammar let in.
fn word(out: &mut Vec<u8>, word: &str) {
    out.push(b'"');
    out.extend_from_slice(word.as_bytes());
    out.push(b'"');
}

fn host(out: &mut Vec<u8>, host: &Host) {
    match host {
        Host::Name(name) => value(out, &**name),
        Host::Address(at @ IpAddr::V4(_)) => {
            out.push(b'"');
            address(out, *at);
            out.push(b'"');
        }
        Host::Address(at @ IpAddr::V6(_)) => {
            out.extend_from_slice(b"\"[");
            address(out, *at);
            out.extend_from_slice(b"]\"");
        }
    }
}

fn address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            octet(out, a);
            for next in [b, c, d] {
                out.push(b'.');
                octet(out, next);
            }
        }
        IpAddr::V6(v6) => display(out, v6),
    }
}

fn octet(out: &mut Vec<u8>, octet: u8) {
    if octet >= 100 {
        out.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        out.push(b'0' + octet / 10 % 10);
    }
    out.push(b'0' + octet % 10);
}

fn socket_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            self::address(out, IpAddr::V4(*v4.ip()));
            out.push(b':');
            value(out, v4.port());
        }
        SocketAddr::V6(v6) => display(out, v6),
    }
}

/// What is seldom there, and needs no escaping.
fn display(out: &mut Vec<u8>, value: impl Display) {
    // Memory takes what it is given.
    let _ = write!(out, "{value}");
}

fn hex(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    let (pairs, _) = digits.as_chunks_mut();
    for (pair, byte) in pairs.iter_mut().zip(number.to_be_bytes()) {
        *pair = [hex_digit(byte >> 4), hex_digit(byte & 15)];
    }
    digits
}

fn hex_digit(nibble: u8) -> u8 {
    let first = if nibble < 10 { b'0' } else { b'a' - 10 };
    first + nibble
}

/// To the millisecond, in UTC. A clock that is out of all range shows where it began.
fn rfc_3339(out: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = i64::try_from(since.as_secs()).unwrap_or_default();
    let at = OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    let year = year.unsigned_abs();
    let [y1, y2] = two_digits((year / 100) as u8);
    let [y3, y4] = two_digits((year % 100) as u8);
    let [o1, o2] = two_digits(month.into());
    let [d1, d2] = two_digits(day);
    let [h1, h2] = two_digits(hour);
    let [m1, m2] = two_digits(minute);
    let [s1, s2] = two_digits(second);
    let millisecond = since.subsec_millis();
    let [f1, f2] = two_digits((millisecond / 10) as u8);
    let f3 = b'0' + (millisecond % 10) as u8;
    out.extend_from_slice(&[
        y1, y2, y3, y4, b'-', o1, o2, b'-', d1, d2, b'T', h1, h2, b':', m1, m2, b':', s1, s2, b'.',
        f1, f2, f3, b'Z',
    ]);
}

fn two_digits(number: u8) -> [u8; 2] {
    [b'0' + number / 10 % 10, b'0' + number % 10]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use time::format_description::BorrowedFormatItem;
    use time::macros::format_description;

    use super::*;
    use crate::contract::{ContainerId, FlowId, Kind};

    /// As short as a line can be.
    fn line() -> AuditLine {
        AuditLine {
            ts: UNIX_EPOCH,
            flow: FlowId::next(),
            kind: Kind::Dns,
            container_id: None,
            client: None,
            method: None,
            host: Host::Name("api.example.com".into()),
            port: 53,
            path: None,
            status: None,
            outcome: "ok",
            code: None,
            addon: None,
            rule: None,
            bytes_in: 0,
            bytes_out: 0,
            duration_ms: 0,
            upstream_addr: None,
            credential: None,
            count: None,
        }
    }

    fn read(line: &AuditLine) -> Value {
        serde_json::from_str(&line.json()).unwrap()
    }

    #[test]
    fn what_is_not_there_has_no_key() {
        let line = line();
        let expected = json!({
            "ts": "1970-01-01T00:00:00.000Z", "flow": line.flow.to_string(), "kind": "dns",
            "host": "api.example.com", "port": 53, "outcome": "ok",
            "bytes_in": 0, "bytes_out": 0, "duration_ms": 0,
        });
        assert_eq!(line.json(), expected.to_string());
    }

    #[test]
    fn all_that_can_be_there_is_written_in_the_order_of_the_log() {
        let line = AuditLine {
            kind: Kind::Websocket,
            container_id: ContainerId::parse("web-1_a.B"),
            client: Some("2001:db8::7".parse().unwrap()),
            method: Some("GET".into()),
            host: Host::Address("2001:db8::9".parse().unwrap()),
            port: u16::MAX,
            path: Some("/v1".into()),
            status: Some(403),
            outcome: "denied",
            code: Some("domain_not_allowed"),
            addon: Some("policy"),
            rule: Some("allowlist".into()),
            bytes_in: u64::MAX,
            bytes_out: 10,
            duration_ms: 1234567,
            upstream_addr: Some("[2001:db8::9]:443".parse().unwrap()),
            credential: Some("anthropic".into()),
            count: Some(7),
            ..line()
        };
        let expected = json!({
            "ts": "1970-01-01T00:00:00.000Z", "flow": line.flow.to_string(), "kind": "websocket",
            "container_id": "web-1_a.B", "client": "2001:db8::7", "method": "GET",
            "host": "[2001:db8::9]", "port": 65535, "path": "/v1", "status": 403,
            "outcome": "denied", "code": "domain_not_allowed", "addon": "policy",
            "rule": "allowlist", "bytes_in": u64::MAX, "bytes_out": 10, "duration_ms": 1234567,
            "upstream_addr": "[2001:db8::9]:443", "credential": "anthropic", "count": 7,
        });
        assert_eq!(line.json(), expected.to_string());
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_string(texts in any::<[String; 5]>(), any_bytes in "[\0-\x7f\u{80}é𝄞]*") {
            let [method, path, rule, credential, host] = texts.map(|text| text + &any_bytes);
            let line = AuditLine {
                method: Some(method.clone().into()),
                path: Some((*path).into()),
                rule: Some((*rule).into()),
                credential: Some((*credential).into()),
                host: Host::Name((*host).into()),
                ..line()
            };
            let json = read(&line);
            prop_assert_eq!(&json["method"], &method);
            prop_assert_eq!(&json["path"], &path);
            prop_assert_eq!(&json["rule"], &rule);
            prop_assert_eq!(&json["credential"], &credential);
            prop_assert_eq!(&json["host"], &host);
            prop_assert_eq!(json.to_string(), line.json());
        }

        #[test]
        fn addresses_and_ids_read_as_they_display(v4: [u8; 4], v6: [u8; 16], port: u16) {
            for address in [IpAddr::from(v4), IpAddr::from(v6)] {
                let upstream = SocketAddr::new(address, port);
                let line = AuditLine {
                    client: Some(address),
                    host: Host::Address(address),
                    upstream_addr: Some(upstream),
                    ..line()
                };
                let json = read(&line);
                prop_assert_eq!(&json["client"], &address.to_string());
                prop_assert_eq!(&json["host"], &line.host.to_string());
                prop_assert_eq!(&json["upstream_addr"], &upstream.to_string());
                prop_assert_eq!(&json["flow"], &line.flow.to_string());
            }
        }

        /// Up to the end of the year 9999, which is the last that the format has.
        #[test]
        fn times_are_those_of_rfc_3339(second in 0..253_402_300_800_u64, millisecond in 0..1000_u64) {
            const RFC_3339: &[BorrowedFormatItem<'_>] = format_description!(
                "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
            );
            let ts = UNIX_EPOCH + Duration::from_millis(second * 1000 + millisecond);
            let expected = OffsetDateTime::from(ts).format(RFC_3339).unwrap();
            prop_assert_eq!(&read(&AuditLine { ts, ..line() })["ts"], &expected);
        }
    }

    #[test]
    fn a_second_ends_after_its_last_millisecond() {
        let at = |nanos| {
            let ts = UNIX_EPOCH + Duration::from_nanos(nanos);
            read(&AuditLine { ts, ..line() })["ts"].clone()
        };
        // The leap day of 2000, and what came before and after.
        assert_eq!(at(951_782_399_999_999_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(951_868_799_009_999_999), "2000-02-29T23:59:59.009Z");
        assert_eq!(at(951_868_800_010_000_000), "2000-03-01T00:00:00.010Z");
    }
}
