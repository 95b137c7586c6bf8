//! The text of an audit line, for the log and for all who read flows.

use std::ops::Range;

use super::json::{address, beginning, excerpt, host, number, socket_address, text, word};
use super::line::{AuditLine, Cost, McpLine};

/// Most lines fit. One has at most 5 KiB but for the operator's own names: a path of 1 KiB and a
/// policy's reason of 512 bytes, of which each byte may need a backslash, and no other member that
/// a client or a server chooses is long.
const TYPICAL_LENGTH: usize = 512;

/// A line's text.
pub(super) struct EncodedLine {
    json: Vec<u8>,
    /// Offset of the first byte after `ts` and `flow`; two lines that are equal from here on can be
    /// folded.
    fold_start: usize,
    /// The bytes that hold the cost of the flow.
    cost_at: Range<usize>,
}

/// A line taken key, so that lines can be told to say the same.
pub(super) struct FoldKey {
    /// `ts` and `flow`.
    pub(super) head: Vec<u8>,
    /// The rest of the line without its cost: equal for lines that can be folded.
    pub(super) rest: Vec<u8>,
    /// Offset in `rest` at which the cost is inserted.
    pub(super) cost_at: usize,
}

impl EncodedLine {
    /// One object, without a newline.
    pub(super) fn json(&self) -> &[u8] {
        &self.json
    }

    pub(super) fn into_json(self) -> Vec<u8> {
        self.json
    }

    pub(super) fn fold_key(mut self) -> FoldKey {
        self.json.drain(self.cost_at.clone());
        FoldKey {
            rest: self.json.split_off(self.fold_start),
            head: self.json,
            cost_at: self.cost_at.start - self.fold_start,
        }
    }
}

/// A line's cost at its longest, and a count: three numbers and one, with their keys.
const LONGEST_NUMBERS: usize = 129;

impl FoldKey {
    /// The most bytes that the line can have, whatever it stands for.
    pub(super) fn longest(&self) -> usize {
        self.head.len() + self.rest.len() + LONGEST_NUMBERS
    }

    /// Puts the line together so that it stands for `count` flows, which took so much.
    pub(super) fn encode(&self, cost: Cost, count: u64) -> Vec<u8> {
        let (before, after) = self.rest.split_at(self.cost_at);
        let mut out = [&self.head, before].concat();
        cost.write(&mut out);
        out.extend_from_slice(after);
        if count > 1 {
            out.pop();
            out.extend_from_slice(b",\"count\":");
            number(&mut out, count);
            out.push(b'}');
        }
        out
    }
}

impl AuditLine<'_> {
    /// The line as a JSON object with the keys of the log in their order. What is not there has
    /// no key.
    pub(super) fn encode(&self) -> EncodedLine {
        let mut json = Vec::with_capacity(TYPICAL_LENGTH);
        let out = &mut json;
        out.extend_from_slice(&beginning(self.ts, self.flow.number()));
        let fold_start = out.len();
        self.write_question(out);
        self.write_answer(out);
        let cost_start = out.len();
        self.cost.write(out);
        let cost_at = cost_start..out.len();
        self.write_end(out);
        out.push(b'}');
        EncodedLine {
            json,
            fold_start,
            cost_at,
        }
    }

    /// Who asked for what.
    fn write_question(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"kind\":");
        word(out, self.kind.as_str());
        if let Some(id) = self.container_id {
            out.extend_from_slice(b",\"container_id\":");
            word(out, id);
        }
        if let Some(client) = self.client {
            out.extend_from_slice(b",\"client\":\"");
            address(out, client);
            out.push(b'"');
        }
        if let Some(method) = self.method {
            out.extend_from_slice(b",\"method\":");
            excerpt(out, method);
        }
        out.extend_from_slice(b",\"host\":");
        host(out, self.host);
        out.extend_from_slice(b",\"port\":");
        number(out, self.port.into());
        if let Some(path) = self.path {
            out.extend_from_slice(b",\"path\":");
            excerpt(out, path);
        }
    }

    /// How it ended, and who decided.
    fn write_answer(&self, out: &mut Vec<u8>) {
        if let Some(status) = self.status {
            out.extend_from_slice(b",\"status\":");
            number(out, status.into());
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
        if let Some(rule) = self.rule {
            out.extend_from_slice(b",\"rule\":");
            text(out, rule);
        }
    }

    /// Where it went.
    fn write_end(&self, out: &mut Vec<u8>) {
        if let Some(upstream) = self.upstream_addr {
            out.extend_from_slice(b",\"upstream_addr\":\"");
            socket_address(out, upstream);
            out.push(b'"');
        }
        if let Some(credential) = self.credential {
            out.extend_from_slice(b",\"credential\":");
            text(out, credential);
        }
        if let Some(mcp) = &self.mcp {
            mcp.write(out);
        }
    }
}

impl McpLine<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(server) = self.server {
            out.extend_from_slice(b",\"server\":");
            text(out, server);
        }
        if let Some(tool) = self.tool {
            out.extend_from_slice(b",\"tool\":");
            excerpt(out, tool);
        }
        if let Some(hash) = self.args_sha256 {
            out.extend_from_slice(b",\"args_sha256\":");
            word(out, hash);
        }
        if let Some(decision) = self.decision {
            out.extend_from_slice(b",\"decision\":");
            word(out, decision);
        }
        if let Some(reason) = self.reason {
            out.extend_from_slice(b",\"reason\":");
            text(out, reason);
        }
        if self.suspicious {
            out.extend_from_slice(b",\"suspicious\":true");
        }
    }
}

impl Cost {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"bytes_in\":");
        number(out, self.bytes_in);
        out.extend_from_slice(b",\"bytes_out\":");
        number(out, self.bytes_out);
        out.extend_from_slice(b",\"duration_ms\":");
        number(out, self.duration_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use testkit::each_row;
    use time::OffsetDateTime;
    use time::format_description::BorrowedFormatItem;
    use time::macros::format_description;

    use super::*;
    use crate::contract::{FlowId, Host, Kind};
    use crate::observe::line::Excerpt;

    /// As short as a line can be.
    fn line() -> AuditLine<'static> {
        AuditLine {
            ts: UNIX_EPOCH,
            flow: FlowId::next(),
            kind: Kind::Dns,
            container_id: None,
            client: None,
            method: None,
            host: None,
            port: 53,
            path: None,
            status: None,
            outcome: "ok",
            code: None,
            addon: None,
            rule: None,
            cost: Cost::default(),
            upstream_addr: None,
            credential: None,
            mcp: None,
        }
    }

    const MCP: McpLine<'static> = McpLine {
        server: None,
        tool: None,
        args_sha256: None,
        decision: None,
        reason: None,
        suspicious: false,
    };

    fn json(line: &AuditLine<'_>) -> String {
        String::from_utf8(line.encode().into_json()).unwrap()
    }

    fn read(line: &AuditLine<'_>) -> Value {
        serde_json::from_str(&json(line)).unwrap()
    }

    fn whole(text: &str) -> Option<Excerpt<'_>> {
        let is_cut = false;
        Some(Excerpt { text, is_cut })
    }

    #[test]
    fn what_is_not_there_has_no_key() {
        let line = line();
        let expected = json!({
            "ts": "1970-01-01T00:00:00.000Z", "flow": line.flow.to_string(), "kind": "dns",
            "host": "*", "port": 53, "outcome": "ok",
            "bytes_in": 0, "bytes_out": 0, "duration_ms": 0,
        });
        assert_eq!(json(&line), expected.to_string());
    }

    #[test]
    fn all_that_can_be_there_is_written_in_the_order_of_the_log() {
        let host = Host::Address("2001:db8::9".parse().unwrap());
        let line = AuditLine {
            kind: Kind::Websocket,
            container_id: Some("web-1_a.B"),
            client: Some("2001:db8::7".parse().unwrap()),
            method: whole("GET"),
            host: Some(&host),
            port: u16::MAX,
            path: whole("/v1"),
            status: Some(403),
            outcome: "denied",
            code: Some("domain_not_allowed"),
            addon: Some("policy"),
            rule: Some("allowlist"),
            cost: Cost {
                bytes_in: u64::MAX,
                bytes_out: 10,
                duration_ms: 1234567,
            },
            upstream_addr: Some("[2001:db8::9]:443".parse().unwrap()),
            credential: Some("anthropic"),
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
        let folded = line.encode().fold_key().encode(line.cost, 7);
        assert_eq!(String::from_utf8(folded).unwrap(), expected.to_string());
    }

    #[test]
    fn a_tool_call_ends_with_what_was_decided_about_it() {
        let mcp = McpLine {
            server: Some("kb"),
            tool: whole("fetch"),
            args_sha256: Some("00ff"),
            decision: Some("deny_continue"),
            reason: Some("not \"today\""),
            suspicious: true,
        };
        let json = json(&AuditLine {
            mcp: Some(mcp),
            ..line()
        });
        let end = r#","duration_ms":0,"server":"kb","tool":"fetch","args_sha256":"00ff","decision":"deny_continue","reason":"not \"today\"","suspicious":true}"#;
        assert!(json.ends_with(end), "{json}");
    }

    #[test]
    fn no_line_is_longer_than_its_longest() {
        let key = line().encode().fold_key();
        let most = Cost {
            bytes_in: u64::MAX,
            bytes_out: u64::MAX,
            duration_ms: u64::MAX,
        };
        assert_eq!(key.encode(most, u64::MAX).len(), key.longest());
    }

    #[test]
    fn a_line_encoded_from_its_fold_key_is_the_same() {
        let cost = Cost {
            bytes_out: 70_000,
            ..Cost::default()
        };
        let credential = Some("anthropic");
        each_row(
            [
                line(),
                AuditLine { cost, ..line() },
                AuditLine {
                    credential,
                    ..line()
                },
            ],
            |line| {
                let again = line.encode().fold_key().encode(line.cost, 1);
                assert_eq!(String::from_utf8(again).unwrap(), json(&line));
            },
        );
    }

    #[test]
    fn lines_say_the_same_unless_something_but_time_flow_and_cost_differs() {
        let rest = |line: AuditLine<'_>| line.encode().fold_key().rest;
        let cost = Cost {
            bytes_in: 1,
            bytes_out: 22,
            duration_ms: 333,
        };
        let ts = SystemTime::now();
        assert_eq!(rest(line()), rest(AuditLine { ts, cost, ..line() }));
        let (name, other) = (
            Host::Name("a.example".into()),
            Host::Name("b.example".into()),
        );
        let with = |change: &dyn Fn(&mut AuditLine<'static>)| {
            let mut line = line();
            change(&mut line);
            rest(line)
        };
        let mut all = vec![
            rest(line()),
            rest(AuditLine {
                host: Some(&name),
                ..line()
            }),
            rest(AuditLine {
                host: Some(&other),
                ..line()
            }),
            with(&|line| line.kind = Kind::Http),
            with(&|line| line.container_id = Some("web")),
            with(&|line| line.client = Some([10, 0, 0, 7].into())),
            with(&|line| line.method = whole("GET")),
            with(&|line| line.port = 54),
            with(&|line| line.path = whole("/")),
            with(&|line| line.status = Some(200)),
            with(&|line| line.outcome = "failed"),
            with(&|line| line.code = Some("internal")),
            with(&|line| line.addon = Some("policy")),
            with(&|line| line.rule = Some("policy")),
            with(&|line| line.upstream_addr = Some(([10, 0, 0, 7], 53).into())),
            with(&|line| line.credential = Some("policy")),
            with(&|line| {
                line.mcp = Some(McpLine {
                    server: Some("kb"),
                    ..MCP
                })
            }),
            with(&|line| {
                line.mcp = Some(McpLine {
                    tool: whole("kb"),
                    ..MCP
                })
            }),
            with(&|line| {
                line.mcp = Some(McpLine {
                    args_sha256: Some("kb"),
                    ..MCP
                })
            }),
            with(&|line| {
                line.mcp = Some(McpLine {
                    decision: Some("kb"),
                    ..MCP
                })
            }),
            with(&|line| {
                line.mcp = Some(McpLine {
                    reason: Some("kb"),
                    ..MCP
                })
            }),
            with(&|line| {
                line.mcp = Some(McpLine {
                    suspicious: true,
                    ..MCP
                })
            }),
        ];
        let lines = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), lines);
    }

    #[test]
    fn where_a_text_is_cut_is_shown_inside_its_string() {
        each_row(["/long", "/\"long\\", ""], |text| {
            let path = Some(Excerpt { text, is_cut: true });
            let line = AuditLine { path, ..line() };
            assert_eq!(read(&line)["path"], format!("{text}…"));
        });
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_string(texts in any::<[String; 5]>(), any_bytes in "[\0-\x7f\u{80}é𝄞]*") {
            let [method, path, rule, credential, host] = texts.map(|text| text + &any_bytes);
            let mcp = McpLine { tool: whole(&path), reason: Some(&rule), ..MCP };
            let name = Host::Name((*host).into());
            let line = AuditLine {
                method: whole(&method),
                path: whole(&path),
                rule: Some(&rule),
                credential: Some(&credential),
                host: Some(&name),
                mcp: Some(mcp),
                ..line()
            };
            let value = read(&line);
            prop_assert_eq!(&value["tool"], &path);
            prop_assert_eq!(&value["reason"], &rule);
            prop_assert_eq!(&value["method"], &method);
            prop_assert_eq!(&value["path"], &path);
            prop_assert_eq!(&value["rule"], &rule);
            prop_assert_eq!(&value["credential"], &credential);
            prop_assert_eq!(&value["host"], &host);
            prop_assert_eq!(value.to_string(), json(&line));
        }

        #[test]
        fn numbers_are_written_in_full(small: u8, large: u64, port: u16, status in 1..1000_u16) {
            let cost = Cost {
                bytes_in: small.into(),
                bytes_out: large,
                duration_ms: large >> (small % 64),
            };
            let status = Some(status);
            let value = read(&AuditLine { cost, port, status, ..line() });
            prop_assert_eq!(&value["bytes_in"], cost.bytes_in);
            prop_assert_eq!(&value["bytes_out"], cost.bytes_out);
            prop_assert_eq!(&value["duration_ms"], cost.duration_ms);
            prop_assert_eq!(&value["port"], port);
            prop_assert_eq!(value["status"].as_u64(), status.map(u64::from));
        }

        /// A newline inside one would make two lines of it, and a forged one among them.
        #[test]
        fn a_line_has_no_newline(path in "(?s).*", is_cut: bool) {
            let path = Some(Excerpt { text: &path, is_cut });
            let json = json(&AuditLine { path, ..line() });
            prop_assert!(!json.contains('\n'), "{}", json);
        }

        #[test]
        fn addresses_and_ids_read_as_they_display(v4: [u8; 4], v6: [u8; 16], port: u16) {
            for address in [IpAddr::from(v4), IpAddr::from(v6)] {
                let upstream = SocketAddr::new(address, port);
                let host = Host::Address(address);
                let line = AuditLine {
                    client: Some(address),
                    host: Some(&host),
                    upstream_addr: Some(upstream),
                    ..line()
                };
                let json = read(&line);
                prop_assert_eq!(&json["client"], &address.to_string());
                prop_assert_eq!(&json["host"], &host.to_string());
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
